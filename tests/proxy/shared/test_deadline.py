"""Deadlines: what the caller sends, what its tier says, and what follows for queues and upstreams."""

import json
import math
from typing import Any

import pytest
from pydantic import ValidationError

from proxy.errors import BadRequest, error_reply
from proxy.shared.deadline import (
    TIMEOUT_HEADER,
    Deadline,
    DeadlinesSection,
    client_timeout,
    deadline_of,
    own_timeout_s,
)
from proxy.shared.target_latency import TargetLatency

DEFAULTS = DeadlinesSection()
SHORT = DeadlinesSection.model_validate({"interactive": {"answer_s": 10}})
ARRIVED = 100.0
LATENCY = TargetLatency(ttft_s=0.4, tpot_s=0.05, fast_ttft_s=0.2, fast_tpot_s=0.01)


def of_tier() -> Deadline:
    return deadline_of(None, "interactive", SHORT, ARRIVED)


def own(timeout_s: float) -> Deadline:
    return deadline_of(timeout_s, "interactive", DEFAULTS, ARRIVED)


@pytest.mark.parametrize(("sent", "expected_s"), [("1", 0.001), ("2500", 2.5), ("3600000", 3600.0), ("0250", 0.25)])
def test_a_whole_number_of_milliseconds_is_taken(sent: str, expected_s: float) -> None:
    """From one to an hour's worth."""
    assert own_timeout_s(sent) == expected_s


@pytest.mark.parametrize(
    "sent",
    [
        "",
        "0",
        "-1",
        "+5",
        "1.5",
        "1e3",
        "3600001",
        "1_000",
        "١٢",
        "²",
        "12 34",
        "0x10",
        "inf",
        "nan",
        "9" * 5000,
        "10s",
    ],
)
def test_anything_else_is_refused_by_name(sent: str) -> None:
    """400 that names the header; what Python's own `int` would take is no exception."""
    with pytest.raises(BadRequest) as refused:
        own_timeout_s(sent)
    assert refused.value.param == TIMEOUT_HEADER
    assert error_reply(refused.value).status == 400


def test_without_the_header_the_tier_decides() -> None:
    """Interactive and batch have their own defaults; null lifts each."""
    assert (of_tier().first_token_at, of_tier().answer_at, of_tier().own) == (101.0, 110.0, False)
    batch = deadline_of(None, "batch", DEFAULTS, ARRIVED)
    assert (batch.first_token_at, batch.answer_at) == (220.0, 700.0)
    lifted = DeadlinesSection.model_validate({"interactive": {"first_token_s": None, "answer_s": None}})
    free = deadline_of(None, "interactive", lifted, ARRIVED)
    assert free.start_by(ARRIVED, LATENCY, 1_000, stream=False) == math.inf
    assert free.start_by(1e9, LATENCY, 10**6, stream=False) is not None
    assert free.total_timeout_s(1e9, 600.0, stream=False) == 600.0
    assert not free.passed(1e9)


@pytest.mark.parametrize("timeout_s", [2.0, 3_600.0])
def test_the_callers_own_replaces_the_tiers(timeout_s: float) -> None:
    """Also when it is larger; half of it may be waited for the first token, and what the tier allows in any case."""
    deadline = own(timeout_s)
    assert (deadline.answer_at, deadline.own, deadline.cuts_streams) == (ARRIVED + timeout_s, True, True)
    assert deadline.first_token_at == ARRIVED + max(1.0, timeout_s / 2)


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"interactive": {"first_token_s": 20, "answer_s": 10}}, "longer than answer_s"),
        ({"batch": {"answer_s": 60}}, "longer than answer_s"),
        ({"batch": {"answer_s": 0}}, "greater than 0"),
        ({"interactive": {"answer_s": math.inf}}, "finite"),
        ({"interactive": {"answer": 5}}, "Extra"),
    ],
)
def test_a_section_that_means_nothing_is_refused(section: dict[str, Any], told: str) -> None:
    """The message says what is wrong."""
    with pytest.raises(ValidationError, match=told):
        DeadlinesSection.model_validate(section)


def test_a_wait_must_leave_time_for_the_first_token() -> None:
    """The usual time to the first token is taken off the objective."""
    assert of_tier().start_by(ARRIVED, LATENCY, 1, stream=True) == 101.0 - 0.4
    assert of_tier().start_by(ARRIVED, None, 1, stream=True) == 101.0


def test_the_objective_never_refuses_who_hardly_waits() -> None:
    """A target that always takes longer than the objective, and a fallback after it, may wait a tenth of it."""
    slow = TargetLatency(ttft_s=3.0, tpot_s=0.05, fast_ttft_s=2.0, fast_tpot_s=0.01)
    assert of_tier().start_by(ARRIVED, slow, 1, stream=True) == pytest.approx(ARRIVED + 0.1)
    assert of_tier().start_by(105.0, LATENCY, 1, stream=True) == pytest.approx(105.1)


def test_a_whole_answer_must_fit_a_stream_must_begin() -> None:
    """By the tier's default a long answer that is streamed is started, and the same one whole is not."""
    assert of_tier().start_by(ARRIVED, LATENCY, 2_000, stream=False) is None
    assert of_tier().start_by(ARRIVED, LATENCY, 2_000, stream=True) is not None
    assert of_tier().start_by(ARRIVED, LATENCY, 900, stream=False) is not None
    assert of_tier().start_by(109.9, LATENCY, 1, stream=True) is None
    # Its own deadline bounds a stream to its end.
    assert own(10.0).start_by(ARRIVED, LATENCY, 2_000, stream=True) is None


def test_what_nobody_has_seen_is_tried() -> None:
    """Without a latency only a deadline that is over keeps a request from being started."""
    assert own(0.001).start_by(ARRIVED, None, 10**6, stream=False) is not None
    assert own(0.001).start_by(100.001, None, 1, stream=False) is None


@pytest.mark.parametrize("tokens", [1, 10, 700])
@pytest.mark.parametrize("stream", [True, False])
def test_what_can_make_it_may_start_now(tokens: int, stream: bool) -> None:
    """A queue is never told a latest start in the past by a deadline that can still be kept."""
    for deadline in (of_tier(), own(1.0), own(30.0)):
        for now in (100.0, 100.5, 100.79, 107.0, 109.79):
            latest = deadline.start_by(now, LATENCY, tokens, stream=stream)
            assert latest is None or latest > now


def test_an_upstream_gets_what_is_left() -> None:
    """The lesser of our patience and the rest; a stream under way is cut by its caller's own deadline only."""
    assert of_tier().total_timeout_s(104.0, 600.0, stream=False) == 6.0
    assert of_tier().total_timeout_s(104.0, 600.0, stream=True) == 600.0
    assert own(10.0).total_timeout_s(104.0, 600.0, stream=True) == 6.0
    assert own(10.0).total_timeout_s(120.0, 600.0, stream=True) == 0.001
    assert own(10.0).remaining_s(104.0) == 6.0


def test_who_was_late_is_told_apart() -> None:
    """A timer may fire a hair early, and that is the deadline all the same."""
    assert own(1.0).passed(100.9995)
    assert not own(1.0).passed(100.99)


def test_the_refusal_says_what_to_do() -> None:
    """504 with a code, no retry by the client, and the header that allows more."""
    for error in (
        own(1.25).exceeded(),
        own(1.25).unreachable("gpt"),
        of_tier().exceeded(),
        of_tier().unreachable("gpt"),
    ):
        told = error_reply(error)
        body = json.loads(told.body)["error"]
        assert (told.status, body["code"]) == (504, "deadline_exceeded")
        assert dict(told.headers)[b"x-should-retry"] == b"false"
        assert TIMEOUT_HEADER in body["message"]
    assert "1250 ms" in own(1.25).exceeded().message
    assert "10 s of `deadlines.interactive.answer_s`" in of_tier().exceeded().message


def test_nobody_is_cut_off_by_default() -> None:
    """A tier's aim is no guillotine: a whole answer has ten minutes where neither caller nor operator says less."""
    assert deadline_of(None, "interactive", DEFAULTS, ARRIVED).answer_at == ARRIVED + 600


@pytest.mark.parametrize(
    ("read", "general", "expected"),
    [
        ("30", None, (30.0, "x-stainless-read-timeout")),
        ("0.5", "60", (0.5, "x-stainless-read-timeout")),
        (None, "60", (60.0, "x-stainless-timeout")),
        ("None", "60", (60.0, "x-stainless-timeout")),
        ("NOT_GIVEN", None, None),
        ("-1", None, None),
        ("0", None, None),
        ("1e9", None, None),
        ("9" * 40, None, None),
        ("²", None, None),
    ],
)
def test_what_a_client_says_of_its_patience_is_read(
    read: str | None, general: str | None, expected: tuple[float, str] | None
) -> None:
    """The clients of OpenAI tell how long they wait; what makes no sense is not looked at, since nobody wrote it."""
    assert client_timeout(read, general) == expected


def test_a_clients_patience_only_shortens() -> None:
    """It bounds the wait for a reply to begin, the tier's time bounds it, and the caller's own header stands before both."""
    client = (30.0, "x-stainless-read-timeout")
    deadline = deadline_of(None, "interactive", DEFAULTS, ARRIVED, client)
    assert (deadline.answer_at, deadline.own, deadline.cuts_streams) == (ARRIVED + 30, False, False)
    assert not deadline.is_good_part(29.0)
    assert "30 s of `x-stainless-read-timeout`" in deadline.exceeded().message
    assert deadline_of(None, "interactive", SHORT, ARRIVED, client).answer_at == ARRIVED + 10
    assert deadline_of(60.0, "interactive", DEFAULTS, ARRIVED, client).answer_at == ARRIVED + 60
