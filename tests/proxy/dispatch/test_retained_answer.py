"""What is retained of an answer says what its events said, in less memory."""

import tracemalloc

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from providers.wire import Event, decode_event
from proxy.dispatch.retained_answer import RetainedAnswer
from proxy.learning.shadow import answer_of

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
