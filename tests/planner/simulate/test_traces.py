"""Traces are read as they are, or refused by file and line."""

import random
from pathlib import Path

import pytest

from planner.simulate.simulation_errors import TraceUnreadable
from planner.simulate.traces import (
    Trace,
    TraceRequest,
    multiplied,
    read_trace,
    root,
    shared_beginnings,
    sped_up,
    spread,
    tiled,
)

DATA = Path(__file__).parent / "data"
CHAT, CODE = DATA / "conversation.jsonl", DATA / "coding.csv"


def test_mooncake() -> None:
    """Requests come in order, from second 0 on, with their blocks; an answer has at least one token."""
    trace = read_trace(CHAT)
    assert trace.format == "mooncake"
    assert [each.at_s for each in trace.requests] == pytest.approx([0, 0, 1.5005, 3, 60])
    assert [each.prompt_tokens for each in trace.requests] == [1_100, 700, 512, 2_000, 2_600]
    assert trace.requests[2].output_tokens == 1
    assert trace.requests[3].blocks == (0, 1, 4, 5)
    assert (trace.duration_s, trace.prompt_tokens, trace.output_tokens) == (60, 6_912, 92)


def test_azure() -> None:
    """Times are read to the microsecond, and nothing is taken to be shared."""
    trace = read_trace(CODE)
    assert trace.format == "azure"
    assert [round(each.at_s, 6) for each in trace.requests] == [0, 0.052, 0.098189, 61]
    assert [len(each.blocks) for each in trace.requests] == [10, 7, 1, 1]
    every = [block for each in trace.requests for block in each.blocks]
    assert len(set(every)) == len(every)


def test_azure_with_a_zone(tmp_path: Path) -> None:
    """The later traces of the same source write the zone, and are read too."""
    file = tmp_path / "t.csv"
    file.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,10,1\n2024-05-10 00:00:01+00:00,10,1\n"
    )
    assert read_trace(file).duration_s == pytest.approx(0.99007)


def test_limit() -> None:
    """Only so many are read; what follows need not even be right."""
    assert len(read_trace(CHAT, limit=2).requests) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "1: neither"),
        ("a,b\n1,2\n", "1: neither"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "holds no request"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1,1\nyesterday,1,1\n", ":3: not a time"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,-1,1\n", ":2: ContextTokens"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1\n", ":2: not a time"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16,1,1\n2027-11-16,1,1\n", "more than a year"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1]}\n{"timestamp": 0\n', ":2: "),
        ('{"timestamp": 0, "input_length": "5", "output_length": 1, "hash_ids": [1]}\n', ":1: Expected"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1, 2]}\n', ":1: 2 hash_ids"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [-1]}\n', ":1: hash_ids must"),
        ('{"timestamp": -3, "input_length": 5, "output_length": 1, "hash_ids": []}\n', ":1: timestamp"),
        ('{"timestamp": 0, "input_length": 99999999999, "output_length": 1, "hash_ids": []}\n', ":1: input_length"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, said: str) -> None:
    """A bad trace is refused with its file, its line and what is wrong with it."""
    file = tmp_path / "bad"
    file.write_text(text)
    with pytest.raises(TraceUnreadable, match=said) as caught:
        read_trace(file)
    assert str(file) in str(caught.value)


def test_endless_line(tmp_path: Path) -> None:
    """A line without end is refused before it fills the memory."""
    file = tmp_path / "bad"
    file.write_text('{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": []}\n' + "9" * 1_000_001)
    with pytest.raises(TraceUnreadable, match=":2: longer"):
        read_trace(file)


def test_missing(tmp_path: Path) -> None:
    """A file that is not there is said so."""
    with pytest.raises(TraceUnreadable, match="cannot be read"):
        read_trace(tmp_path / "nothing")


def test_sped_up() -> None:
    """Twice as fast is half as long."""
    assert [each.at_s for each in sped_up(read_trace(CHAT), 2).requests] == pytest.approx([0, 0, 0.75025, 1.5, 30])


def test_spread() -> None:
    """Requests of one moment come one after the other until the next moment."""
    assert [round(each.at_s, 4) for each in spread(read_trace(CHAT)).requests] == [0, 0.7503, 1.5005, 3, 60]


def test_multiplied() -> None:
    """So many times the users share nothing with one another."""
    trace = multiplied(read_trace(CHAT), 3, random.Random(1))
    assert len(trace.requests) == 15
    assert trace.prompt_tokens == 3 * 6_912
    starts = [each.blocks[0] for each in trace.requests]
    assert sorted({starts.count(start) for start in starts}) == [1, 4]
    assert len(set(starts)) == 6
    assert [each.at_s for each in trace.requests] == sorted(each.at_s for each in trace.requests)


def test_tiled() -> None:
    """Days follow an office day's profile: nights are quiet, and no hour shares a prefix with another."""
    long = multiplied(read_trace(CHAT), 40, random.Random(1))
    trace = tiled(long, 2, random.Random(2))
    by_hour = [sum(1 for each in trace.requests if int(each.at_s // 3_600) == hour) for hour in range(48)]
    assert by_hour[14] > 2 * by_hour[3] > 0
    assert by_hour[14 + 24] > 2 * by_hour[3 + 24] > 0
    owners: dict[int, int] = {}
    for each in trace.requests:
        for block in each.blocks:
            assert owners.setdefault(block, int(each.at_s // 3_600)) == int(each.at_s // 3_600)


def test_too_many() -> None:
    """What would become too long is refused, not begun."""
    with pytest.raises(TraceUnreadable, match="more than 5,000,000 requests"):
        multiplied(read_trace(CHAT), 1_000_001, random.Random(1))


def test_a_conversations_root_lies_behind_what_all_share() -> None:
    """Neither tools and system prompt nor the turn that it is at tell a conversation; its first own block does."""
    tools = (1, 2, 3)
    asked = [
        TraceRequest(0.0, 9_000, 1, (*tools, 100 * user, *range(100 * user + 1, 100 * user + turn)))
        for user in range(1, 13)
        for turn in (1, 3, 5)
    ]
    trace = Trace("t", "mooncake", tuple(asked))
    shared = shared_beginnings(trace)
    assert {root(each, shared) for each in asked} == {100 * user for user in range(1, 13)}
    assert root(TraceRequest(0.0, 1, 1, ()), shared) == 0
    assert root(TraceRequest(0.0, 1, 1, (7,)), shared) == 7
    assert root(TraceRequest(0.0, 1_536, 1, tools), shared) == 3
