"""What the relay makes of an upstream's events, byte by byte."""

import asyncio
import gc
import json
from typing import Any

import pytest

from providers.delta_coalescing import DeltaCoalescer
from providers.upstream import UpstreamCall, UpstreamStream
from providers.wire import Event, decode_event
from proxy.context import RequestContext
from proxy.parse.wires.chat.dialect import CHAT
from proxy.parse.wires.wire import Wire
from proxy.relay.response_stream import RelayedAnswer
from tests.proxy.exchanges import HeardExchange
from tests.scenarios.test_rules import MINTED, WIRES, House, said


class Playing:
    """An upstream whose stream is these payloads, one a read, and then its end. `first` comes before them."""

    ended = False

    def __init__(self, *payloads: dict[str, Any], first: Event | None = None) -> None:
        self.events = [decode_event(json.dumps(payload).encode(), "t0/a") for payload in payloads]
        if first is not None:
            self.events.insert(0, first)

    async def open(self, call: UpstreamCall) -> UpstreamStream:
        return self

    async def read(self) -> list[Event] | None:
        return [self.events.pop(0)] if self.events else None

    def unread(self) -> list[Event]:
        return []

    async def aclose(self) -> None: ...


def content(text: str, **fields: Any) -> dict[str, Any]:
    return {"id": "c1", "model": "m", "choices": [{"index": 0, "delta": {"content": text}}], **fields}


def tokens(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


END = {"id": "c1", "model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


async def relayed(*payloads: dict[str, Any], asked: bool) -> list[dict[str, Any]]:
    house = House("ok", upstream=Playing(*payloads))
    text = said(await house.ask(stream=True, include_usage=asked)).decode()
    assert text.endswith("data: [DONE]\n\n")
    return [json.loads(event.removeprefix("data: ")) for event in text.split("\n\n")[:-2]]


async def test_events_keep_every_field_and_gain_one() -> None:
    """Fields that nobody knows pass; `model_used` comes first."""
    (first, _) = await relayed(content("a", system_fingerprint="fp", tomorrow=[1]), END, asked=False)
    assert next(iter(first)) == "model_used"
    assert {name: first[name] for name in first if name != "model_used"} == content(
        "a", system_fingerprint="fp", tomorrow=[1]
    )


async def test_events_that_came_together_stay_apart() -> None:
    """A caller gets them as they came, and without the upstream's usage each of them counts as a token."""
    payloads = [content(text) for text in ("a", ' "b"', "", "c\n")]
    found = DeltaCoalescer().find(b"".join(b"data: %b\n\n" % json.dumps(payload).encode() for payload in payloads))
    assert found is not None
    together, singly = (
        House("ok", upstream=Playing(END, first=found.event)),
        House("ok", upstream=Playing(*payloads, END)),
    )
    assert said(await together.ask(stream=True)) == said(await singly.ask(stream=True))
    assert [house.books.entries[-1].output_tokens for house in (together, singly)] == [3, 3]


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.path)
async def test_a_stream_leaves_nothing_to_the_collector(wire: Wire) -> None:
    """What it was made of goes with its last reference: under load the collector would have to find thousands of streams."""

    def held() -> list[object]:
        return [each for each in gc.get_objects() if type(each) in {RequestContext, RelayedAnswer}]

    house = House("ok")
    gc.collect()
    # A log record may still hold another test's failure.
    others = held()
    gc.disable()
    try:
        assert said(await house.ask(stream=True, wire=wire))
        assert len(held()) == len(others)
    finally:
        gc.enable()


async def test_usage_on_every_event_was_our_wish_and_is_taken_out() -> None:
    """Continuous usage never shows; who asked gets one chunk at the end."""
    counted = [content("a", usage=tokens(5, 1)), content("b", usage=tokens(5, 2)), {**END, "usage": tokens(5, 2)}]
    assert all("usage" not in event for event in await relayed(*counted, asked=False))
    events = await relayed(*counted, asked=True)
    assert [event.get("usage") for event in events] == [None, None, None, tokens(5, 2)]
    assert events[-1]["choices"] == []


async def test_the_extra_chunk_is_hidden_unless_asked_for() -> None:
    """OpenAI's own usage chunk goes through to those who asked, with the cost beside it."""
    extra = {"id": "c1", "model": "m", "choices": [], "usage": tokens(5, 1)}
    assert len(await relayed(content("a"), END, extra, asked=False)) == 2
    events = await relayed(content("a"), END, extra, asked=True)
    assert len(events) == 3
    assert events[-1]["usage"] == tokens(5, 1)
    assert events[-1]["weighbridge"]["usage_source"] == "upstream"


async def test_usage_that_never_came_is_made_up_for_who_asked() -> None:
    """From our own count, and marked as such, in the manner of the stream's other chunks."""
    events = await relayed(content("a"), content("b"), END, asked=True)
    assert events[-1]["id"] == "c1"
    assert events[-1]["usage"]["completion_tokens"] == 2
    assert events[-1]["weighbridge"]["usage_source"] == "estimated"


async def test_a_chunk_without_choices_that_is_no_usage_passes() -> None:
    """Azure begins its streams with one that holds the filters' results."""
    filters = {"id": "", "choices": [], "prompt_filter_results": [{"prompt_index": 0}]}
    events = await relayed(filters, content("a"), END, asked=False)
    assert events[0]["prompt_filter_results"] == [{"prompt_index": 0}]


async def test_a_whole_answer_is_let_go_once_its_caller_has_it() -> None:
    """Its stream, which counts what is held, stays open while a slow caller has not taken the answer."""
    house = House("ok")
    body = json.dumps({"model": "auto", "messages": [{"role": "user", "content": "hi"}]}).encode()
    answered = asyncio.Event()
    exchange = HeardExchange(body, [(b"authorization", f"Bearer {MINTED.plaintext}".encode())], heard=answered.set)
    exchange.reads.clear()
    serving = asyncio.create_task(house.line.serve(CHAT, exchange))
    await answered.wait()
    assert (exchange.ended, house.upstream.open_streams) == (True, 1)
    exchange.reads.set()
    await serving
    assert house.upstream.open_streams == 0
