"""A provider in the simulated network: it answers chats, counts what it gave out, and misbehaves as the seed says."""

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final, Literal

import httptools
import msgspec

from tests.simulation.batch_api import BatchMood, ProviderBatches
from tests.simulation.machine import Machine
from tests.simulation.network import Network
from tests.simulation.story import Story

Behaviour = Literal[
    "answers",
    "no_usage",
    "usage_twice",
    "busy",
    "overloaded",
    "broken",
    "unavailable",
    "refuses",
    "silent",
    "stalls",
    "cut",
    "garbage",
    "hangs_up",
]
REFUSALS: Final[Mapping[Behaviour, int]] = {
    "busy": 429,
    "overloaded": 529,
    "broken": 500,
    "unavailable": 503,
    "refuses": 400,
}
WORD: Final = re.compile(r"c\d+w\d+ ")
_ASKED: Final = re.compile(r"n(\d+)q")


class Call(msgspec.Struct, kw_only=True):
    """One request as the provider saw it."""

    number: int
    provider: str
    request_id: str
    nonce: int
    behaviour: Behaviour
    stream: bool
    began_at: float
    team: str = ""
    said: int = 0
    """Words that were sent."""
    input_tokens: int = 0
    output_tokens: int = 0
    told_usage: bool = False
    """True once a usage has left for the gateway."""
    whole: bool = False
    """True once everything was sent."""
    batch: str = ""
    """Our name of the provider's batch that it was a line of; empty for a call by itself."""
    custom_id: str = ""
    ended_at: float | None = None

    @property
    def text(self) -> str:
        return "".join(f"c{self.number}w{at} " for at in range(self.said))

    @property
    def refused(self) -> bool:
        """True where the gateway was told that nothing was done."""
        return self.behaviour in REFUSALS and self.whole


class Mood(msgspec.Struct, kw_only=True):
    """How often a provider does what, and how fast it is."""

    weights: dict[Behaviour, float]
    first_s: float = 0.2
    word_s: float = 0.03


class Provider:
    """One address of a provider."""

    def __init__(self, name: str, machine: Machine, network: Network, story: Story, calls: list[Call]) -> None:
        self.name = name
        self.mood = Mood(weights={"answers": 1.0})
        self.batch_mood = BatchMood(slips={"answers": 1.0}, lines={"answers": 1.0}, endings={"completed": 1.0})
        self.batches = ProviderBatches(self)
        self.wall: Callable[[], float] = lambda: machine.now + machine.wall
        self.calls = calls
        """Of all providers, in the order in which they came."""
        self.running: set[Any] = set()
        self.chance = machine.chance(f"provider {name}")
        self.story = story
        network.listen((name, 80), lambda: _Connection(self))

    def drawn(self, weights: Mapping[Any, float]) -> Any:
        return self.chance.choices(list(weights), list(weights.values()))[0]

    def called(self, body: str, request_id: str, *, stream: bool) -> Call:
        """Note a call."""
        nonce = _ASKED.search(body)
        call = Call(
            number=len(self.calls),
            provider=self.name,
            request_id=request_id,
            nonce=int(nonce[1]) if nonce else -1,
            behaviour=self.drawn(self.mood.weights),
            stream=stream,
            began_at=self.now,
        )
        self.calls.append(call)
        return call

    def chat(self, call: Call) -> dict[str, Any]:
        """Return a whole answer."""
        message = {"role": "assistant", "content": call.text}
        body: dict[str, Any] = {
            **_frame(call, "chat.completion"),
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        }
        if call.behaviour != "no_usage":
            body["usage"] = _usage(call)
        return body

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()


class _Connection(asyncio.Protocol):
    """One connection of the gateway's."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._parser = httptools.HttpRequestParser(self)
        self._body, self._url = b"", b""
        self._headers: dict[bytes, bytes] = {}
        self._answering: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answering is not None:
            self._answering.cancel()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        provider, body, headers, url = self._provider, self._body, self._headers, self._url.decode()
        self._body, self._headers, self._url = b"", {}, b""
        if not url.endswith("/completions"):
            self._answering = asyncio.ensure_future(self._do(url, headers, body))
            return
        asked = json.loads(body)
        call = provider.called(
            body.decode(), headers.get(b"x-request-id", b"").decode(), stream=bool(asked.get("stream"))
        )
        most = int(asked.get("max_tokens") or asked.get("max_completion_tokens") or 20)
        provider.story.tell(provider.name, "is asked", call=call.number, request=call.request_id, then=call.behaviour)
        self._answering = asyncio.ensure_future(self._answer(call, most, provider.chance))
        provider.running.add(self._answering)
        self._answering.add_done_callback(provider.running.discard)

    async def _do(self, url: str, headers: Mapping[bytes, bytes], body: bytes) -> None:
        """Do what the batch API is asked."""
        provider, method = self._provider, self._parser.get_method().decode()
        await asyncio.sleep(provider.chance.expovariate(1 / provider.mood.first_s))
        slip = provider.batches.draw()
        if slip == "hangs_up":
            self.transport.abort()
            return
        if slip in {"busy", "broken"}:
            self._refuse(REFUSALS[slip], provider.chance)
            return
        status, told = provider.batches.do(method, url, headers, body)
        if slip == "does_and_hangs_up":
            self.transport.abort()
            return
        self._head(status, "application/json", len(told))
        if slip == "cut":
            self.transport.write(told[: len(told) // 2])
            self.transport.abort()
            return
        self.transport.write(told)

    async def _answer(self, call: Call, most: int, chance: Random) -> None:
        try:
            await self._misbehave_or_answer(call, most, chance)
        finally:
            call.ended_at = self._provider.now
            self._provider.story.tell(
                self._provider.name, "is done", call=call.number, said=call.said, whole=call.whole
            )

    async def _misbehave_or_answer(self, call: Call, most: int, chance: Random) -> None:
        mood = self._provider.mood
        await asyncio.sleep(chance.expovariate(1 / mood.first_s))
        if call.behaviour in REFUSALS:
            self._refuse(REFUSALS[call.behaviour], chance)
            call.whole = not self.transport.is_closing()
            return
        match call.behaviour:
            case "silent":
                await asyncio.sleep(1_000)
            case "hangs_up":
                self.transport.abort()
                return
            case "garbage":
                self._head(200, "application/json", len(b"<html>not found</html>"))
                self.transport.write(b"<html>not found</html>")
                return
        call.input_tokens = 10 + chance.randrange(20)
        words = 1 + chance.randrange(min(most, 30))
        if call.stream:
            await self._stream(call, words, chance)
        else:
            await self._whole(call, words, chance)

    def _refuse(self, status: int, chance: Random) -> None:
        told = json.dumps({"error": {"message": "no", "type": "server_error", "param": None, "code": None}}).encode()
        pace = b"retry-after: %d\r\n" % chance.choice((1, 2, 5)) if chance.random() < 0.7 else b""
        self._head(status, "application/json", len(told), pace if status != REFUSALS["refuses"] else b"")
        self.transport.write(told)

    async def _whole(self, call: Call, words: int, chance: Random) -> None:
        await asyncio.sleep(words * chance.expovariate(1 / self._provider.mood.word_s))
        call.said, call.output_tokens = words, words
        body = self._provider.chat(call)
        told = json.dumps(body).encode()
        self._head(200, "application/json", len(told))
        if call.behaviour == "cut":
            self.transport.write(told[: len(told) // 2])
            self.transport.abort()
            return
        if call.behaviour == "stalls":
            self.transport.write(told[: len(told) // 2])
            await asyncio.sleep(1_000)
        call.told_usage, call.whole = "usage" in body, True
        self.transport.write(told)

    async def _stream(self, call: Call, words: int, chance: Random) -> None:
        self._head(200, "text/event-stream")
        ends_after = chance.randrange(words + 1) if call.behaviour in {"cut", "stalls"} else None
        self._event({**_frame(call), "choices": [_choice({"role": "assistant", "content": ""})]})
        for at in range(words):
            if at == ends_after:
                break
            await asyncio.sleep(chance.expovariate(1 / self._provider.mood.word_s))
            call.said = call.output_tokens = at + 1
            self._event({**_frame(call), "choices": [_choice({"content": f"c{call.number}w{at} "})]})
        if call.behaviour == "stalls":
            await asyncio.sleep(1_000)
        if call.behaviour == "cut":
            self.transport.abort()
            return
        self._event({**_frame(call), "choices": [_choice({}, "stop")]})
        for _ in range({"no_usage": 0, "usage_twice": 2}.get(call.behaviour, 1)):
            call.told_usage = True
            self._event({**_frame(call), "choices": [], "usage": _usage(call)})
        call.whole = True
        self._chunk(b"data: [DONE]\n\n")
        self.transport.write(b"0\r\n\r\n")

    def _head(self, status: int, kind: str, length: int | None = None, more: bytes = b"") -> None:
        size = b"transfer-encoding: chunked\r\n" if length is None else b"content-length: %d\r\n" % length
        self.transport.write(b"HTTP/1.1 %d X\r\ncontent-type: %b\r\n%b%b\r\n" % (status, kind.encode(), size, more))

    def _event(self, event: dict[str, Any]) -> None:
        self._chunk(b"data: %b\n\n" % json.dumps(event).encode())

    def _chunk(self, data: bytes) -> None:
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))


def _frame(call: Call, kind: str = "chat.completion.chunk") -> dict[str, Any]:
    return {"id": f"call-{call.number}", "object": kind, "created": 1, "model": "m"}


def _choice(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": finish}


def _usage(call: Call) -> dict[str, int]:
    total = call.input_tokens + call.output_tokens
    return {"prompt_tokens": call.input_tokens, "completion_tokens": call.output_tokens, "total_tokens": total}
