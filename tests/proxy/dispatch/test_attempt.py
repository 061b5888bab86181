"""How an attempt ended, told to the ledger as flags and to the observers as a result."""

import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.errors import (
    ConnectFailed,
    FirstTokenTimeout,
    RequestRejected,
    StreamCut,
    UpstreamError,
    UpstreamRateLimited,
    UpstreamRefusedUs,
    UpstreamTimeout,
)
from providers.wire import Event, decode_event
from proxy.dispatch.attempt import RetainedAnswer, flags_of, result_of
from proxy.dispatch.outcome import Ending
from proxy.errors import DeadlineExceeded
from proxy.learning.shadow import answer_of


@pytest.mark.parametrize(
    ("ending", "flags", "result"),
    [
        ("ok", (), "ok"),
        ("caller_gone", ("caller_gone",), "cancelled"),
        ("slow_reader", ("slow_reader",), "cancelled"),
        ("shutdown", ("shutdown",), "cancelled"),
        ("failed", ("failed",), "cancelled"),
        ("hedge_lost", ("hedge_lost",), "hedge_lost"),
    ],
)
def test_without_an_error_the_ending_tells(ending: Ending, flags: tuple[str, ...], result: str) -> None:
    """An answer that went well has no flag."""
    assert (flags_of(ending, None), result_of(ending, None)) == (flags, result)


@pytest.mark.parametrize(
    ("error", "flag", "result"),
    [
        (FirstTokenTimeout("no", deployment_id="t0/a"), "first_token_timeout", "timeout"),
        (UpstreamTimeout("no", deployment_id="t0/a"), "upstream_timeout", "timeout"),
        (StreamCut("no", deployment_id="t0/a"), "stream_cut", "cut"),
        (UpstreamRateLimited("no", deployment_id="t0/a"), "upstream_error", "rate_limited"),
        (ConnectFailed("no", deployment_id="t0/a"), "upstream_error", "error"),
    ],
)
def test_an_upstreams_error_comes_first(error: UpstreamError, flag: str, result: str) -> None:
    """Whatever the ending is called, the error says more."""
    assert (flags_of("failed", error), result_of("failed", error)) == ((flag,), result)


def test_the_upstreams_own_status_is_kept() -> None:
    """The caller's may be another: a rejected key of ours is a 502."""
    for error in (
        RequestRejected("no", deployment_id="t0/a", status=400),
        UpstreamRefusedUs("no", deployment_id="t0/a", status=401),
    ):
        assert flags_of("failed", error) == ("upstream_error", f"upstream_status_{error.status}")
    assert result_of("failed", RequestRejected("no", deployment_id="t0/a", status=400)) == "rejected"


def test_a_deadline_is_a_timeout() -> None:
    """Whoever set it."""
    error = DeadlineExceeded("late")
    assert (flags_of("failed", error), result_of("failed", error)) == (("deadline_exceeded",), "timeout")


_TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)


def chunk(content: str, **delta: object) -> bytes:
    choice = {"index": 0, "delta": {"content": content, **delta}, "finish_reason": None}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "llama-3-70b"}
    return msgspec.json.encode({**head, "choices": [choice]})


def event(payload: bytes) -> Event:
    return decode_event(payload, "vm-1")


@given(st.lists(st.tuples(_TEXTS, st.sampled_from([None, "tool", "refusal", "thought"]))))
def test_it_says_what_was_said(pieces: list[tuple[str, str | None]]) -> None:
    """In the same order, whatever stands between the pieces of text."""
    others: dict[str | None, dict[str, object]] = {
        None: {},
        "tool": {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{}"}}]},
        "refusal": {"refusal": "no"},
        "thought": {"reasoning_content": "hm"},
    }
    payloads = [chunk(text, **others[kind]) for text, kind in pieces]
    retained = RetainedAnswer(1_000_000)
    for payload in payloads:
        retained.add([event(payload)])
    assert answer_of(retained.payloads()) == answer_of(payloads)
    assert len(retained.payloads()) <= len(payloads)


def test_a_stream_of_text_takes_little() -> None:
    """A token is held as its letters, not as the event that told it."""
    events = [event(chunk(f" word{number}")) for number in range(1_000)]
    retained = RetainedAnswer(1_000_000)
    tracemalloc.start()
    try:
        retained.add(events)
        assert tracemalloc.get_traced_memory()[0] < 20 * len(events)
    finally:
        tracemalloc.stop()


def test_what_exceeds_the_bound_is_let_go() -> None:
    """All of it: half an answer is not judged."""
    retained = RetainedAnswer(40)
    retained.add([event(chunk("some words"))])
    assert retained.payloads()
    retained.add([event(chunk("more than forty letters of an answer that goes on"))])
    retained.add([event(chunk("and on"))])
    assert not retained.is_whole
    assert retained.payloads() == []
