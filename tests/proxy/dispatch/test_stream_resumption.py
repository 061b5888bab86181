"""How two engines' events become one stream."""

import json
from typing import Any

import pytest

from cost.usage import Usage
from providers.delta_coalescing import DeltaCoalescer
from providers.wire import Event, decode_event
from proxy.dispatch.stream_resumption import Seam

FIRST = b'{"id":"c1","object":"chat.completion.chunk","created":1,"model":"m","choices":[]}'
BEFORE = Usage(input_tokens=20, cached_input_tokens=16, output_tokens=5, source="upstream")


def event(text: str | None = None, **fields: Any) -> Event:
    delta = {"role": "assistant", "content": ""} if text is None else {"content": text}
    body = {"id": "c2", "created": 9, "model": "m", "choices": [{"index": 0, "delta": delta}], **fields}
    return decode_event(json.dumps(body).encode(), "m/b")


END = event("", choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])


def sewn(*events: Event, said: str = "It was", overlap: str = "", stops: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Event by event, as they come."""
    seam = Seam(FIRST, said, overlap=overlap, stops=stops, before=BEFORE)
    found = [each for one in events for each in seam.sewn([one])] + seam.rest()
    assert all(each.words in {"", _text(json.loads(each.payload))} for each in found)
    return [json.loads(each.payload) for each in found]


def _text(body: dict[str, Any]) -> str:
    return "".join(choice["delta"].get("content", "") for choice in body["choices"])


def text(events: list[dict[str, Any]]) -> str:
    return "".join(map(_text, events))


def test_the_rest_carries_the_first_engines_head() -> None:
    """Its id and its time; no second message begins."""
    (one, end) = sewn(event(), event(" late."), END)
    assert (one["id"], one["created"]) == (end["id"], end["created"]) == ("c1", 1)
    assert one["choices"][0]["delta"] == {"content": " late."}
    assert end["choices"][0]["finish_reason"] == "stop"


def test_what_came_together_is_sewn_as_one() -> None:
    """Its text is whole, and the events that it stood for are forgotten: they have another head."""
    two = b'data: {"choices":[{"index":0,"delta":{"content":" la"}}]}\n\n'
    found = DeltaCoalescer().find(two + two.replace(b" la", b"te."))
    assert found is not None
    (one,) = Seam(FIRST, "It was", overlap=" ", stops=(), before=BEFORE).sewn([found.event])
    assert (one.words, _text(json.loads(one.payload)), one.run) == ("late.", "late.", None)


@pytest.mark.parametrize(
    ("overlap", "pieces", "left"),
    [
        (" ", [" late"], "late"),
        ("\n", ["\n", "    return"], "    return"),
        ("\n", ["\n    return"], "    return"),
        ("\n\n", ["\n", "\n", "So"], "So"),
        ("\n", ["So"], "So"),
        (" ", ["\n", " So"], "\n So"),
        ("", [" late"], " late"),
    ],
)
def test_blanks_that_the_caller_has_do_not_come_twice(overlap: str, pieces: list[str], left: str) -> None:
    """Only as many as are the same; indentation stays."""
    assert text(sewn(*map(event, pieces), END, overlap=overlap)) == left


def test_a_last_event_that_has_text_too_is_sewn_like_any_other() -> None:
    """As vLLM ends an answer, with its last token."""
    last = event(choices=[{"index": 0, "delta": {"content": " end"}, "finish_reason": "length"}])
    (only,) = sewn(last, overlap=" ")
    assert only["choices"][0] == {"index": 0, "delta": {"content": "end"}, "finish_reason": "length"}
    (stopped,) = sewn(last, said="so -", stops=("- end",))
    assert (text([stopped]), stopped["choices"][0]["stop_reason"]) == ("", "- end")


@pytest.mark.parametrize(
    ("said", "pieces", "left", "reason"),
    [
        ("the E", ["ND", " more"], "", "END"),
        ("the E", ["N", "D", " more"], "", "END"),
        ("the E", ["N", "ough"], "Nough", None),
        ("the E", ["N"], "N", None),
        ("the e", ["ND"], "ND", None),
        ("a\n", ["\n", "b"], "", "\n\n"),
    ],
)
def test_a_stop_sequence_across_the_cut_ends_the_answer(
    said: str, pieces: list[str], left: str, reason: str | None
) -> None:
    """What may be one is held back until it is known."""
    events = sewn(*map(event, pieces), END, said=said, stops=("END", "\n\n"))
    assert text(events) == left
    assert events[-1]["choices"][0].get("stop_reason") == reason
    assert events[-1]["choices"][0]["finish_reason"] == "stop"
    assert len([each for each in events if each["choices"][0].get("finish_reason")]) == 1


def test_the_usage_is_that_of_the_whole() -> None:
    """The prompt once, and all of the answer."""
    told = {"prompt_tokens": 25, "completion_tokens": 3, "total_tokens": 28, "prompt_tokens_details": None}
    (plain,) = sewn(event(choices=[], usage=told))
    assert plain["usage"] == {**told, "prompt_tokens": 20, "completion_tokens": 8, "total_tokens": 28}
    (detailed,) = sewn(event(choices=[], usage={**told, "prompt_tokens_details": {"cached_tokens": 24}}))
    assert detailed["usage"]["prompt_tokens_details"] == {"cached_tokens": 16}
