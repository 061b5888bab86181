"""One exchange, told by every wire, whole and streamed and in a batch's lines: the same calls, texts, thoughts, usage and end."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import msgspec
import pytest

from accounts.caller import Caller
from providers.connections.connection import Connection
from providers.connections.errors import ReplyLost
from providers.connections.pool import ConnectionPool
from providers.errors import UpstreamError
from providers.http_client import HttpUpstream
from providers.upstream import UpstreamCall, UpstreamStream
from proxy.batch.line_protocol import LineRequest
from proxy.parse.wires.chat.dialect import CHAT
from proxy.parse.wires.completions.wire import COMPLETIONS
from proxy.parse.wires.messages.wire import MESSAGES
from proxy.parse.wires.responses.wire import RESPONSES
from proxy.parse.wires.wire import Wire
from proxy.provider_batch_lines import PipelineOffers
from tests.proxy.parse.wires.differential.behaviours import BEHAVIOURS, Behaviour
from tests.proxy.parse.wires.differential.told import FAILED, Told, Way, read
from tests.scenarios.test_rules import House, said

pytestmark = pytest.mark.usefixtures("leaping_time")

_WIRES: Final[dict[Way, Wire]] = {
    "chat": CHAT, "responses": RESPONSES, "messages": MESSAGES, "completions": COMPLETIONS,
}  # fmt: skip
_NAMES: Final = ("weigh", "print", "stamp")
_SCHEMA: Final = {"type": "object"}
_TURN: Final = [
    {"role": "user", "content": "Weigh it."},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_0", "type": "function", "function": {"name": "weigh", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "call_0", "content": "7 t"},
    {"role": "user", "content": "Again."},
]
_ASKED: Final[dict[Way, dict[str, Any]]] = {
    "chat": {
        "messages": _TURN,
        "tools": [{"type": "function", "function": {"name": name, "parameters": _SCHEMA}} for name in _NAMES],
    },
    "responses": {
        "input": [
            {"role": "user", "content": "Weigh it."},
            {"type": "function_call", "call_id": "call_0", "name": "weigh", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_0", "output": "7 t"},
            {"role": "user", "content": "Again."},
        ],
        "store": False,
        "tools": [{"type": "function", "name": name, "parameters": _SCHEMA} for name in _NAMES],
    },
    "messages": {
        "messages": [
            {"role": "user", "content": "Weigh it."},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "call_0", "name": "weigh", "input": {}}]},
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "call_0", "content": "7 t"},
                    {"type": "text", "text": "Again."},
                ],
            },
        ],
        "tools": [{"name": name, "input_schema": _SCHEMA} for name in _NAMES],
        "max_tokens": 2_000,
        "thinking": {"type": "enabled", "budget_tokens": 1_024},
    },
    "completions": {"prompt": "Weigh it."},
}
"""The same conversation on each wire, in which a call had the id `call_0`."""


class _Reply:
    """A connection that gives a reply in these reads, and then ends, or breaks off."""

    status = 200
    at_eof = False

    def __init__(self, media_type: bytes, reads: Sequence[bytes], *, breaks: bool) -> None:
        self.fields = {b"content-type": media_type}
        self.headers: dict[str, str] = {}
        self._reads = list(reads)
        self._breaks = breaks

    async def reply_begins(self) -> None: ...

    async def read(self) -> bytes:
        if self._reads:
            return self._reads.pop(0)
        if self._breaks:
            raise ReplyLost
        self.at_eof = True
        return b""

    def take(self) -> bytes:
        data, self._reads = b"".join(self._reads), []
        self.at_eof = True
        return data

    def limit_silence(self, idle_s: float) -> None: ...

    def gather(self) -> None: ...


class _Pool:
    """Connections to an upstream that answers each call by what `reply` makes."""

    def __init__(self, reply: Callable[[dict[str, Any]], _Reply]) -> None:
        self._reply = reply

    async def send(self, _address: Any, _head: bytes, body: bytes, **_more: Any) -> Connection:
        return cast("Connection", self._reply(json.loads(body)))

    def release(self, connection: Connection) -> None: ...


class Playing:
    """The client of upstreams, over connections that are played."""

    def __init__(self, reply: Callable[[dict[str, Any]], _Reply]) -> None:
        self._client = HttpUpstream()
        self._client._pool = cast("ConnectionPool", _Pool(reply))

    async def open(self, call: UpstreamCall) -> UpstreamStream:
        deployment = msgspec.structs.replace(call.deployment, base_url="http://engine.test/v1")
        return await self._client.open(msgspec.structs.replace(call, deployment=deployment))

    async def aclose(self) -> None: ...


def _as_sse(behaviour: Behaviour) -> bytes:
    found = b""
    for data in behaviour.stream:
        name = f"event: {data['type']}\n".encode() if behaviour.speaks == "claude" and isinstance(data, dict) else b""
        payload = data if isinstance(data, bytes) else json.dumps(data, separators=(",", ":")).encode()
        found += name + b"data: " + payload + b"\n\n"
    return found


def house_of(reply: Callable[[dict[str, Any]], _Reply], speaks: str) -> House:
    model, kind = ("anthropic/claude-opus-4-8", "litellm") if speaks == "claude" else ("m", "openai")
    return House(model, upstream=Playing(reply), kind=cast("Any", kind), first_token_s=5)


async def _asked(house: House, way: Way, *, stream: bool, **fields: Any) -> Told:
    asked = {**_ASKED[way], **fields}
    if stream and way in ("chat", "completions"):
        asked["include_usage"] = True
    sent = await house.ask(stream=stream, wire=_WIRES[way], **asked)
    return read(way, sent[0]["status"], said(sent), stream=stream)


def _streamed(data: bytes, size: int, *, breaks: bool = False) -> Callable[[dict[str, Any]], _Reply]:
    reads = [data[at : at + size] for at in range(0, len(data), size)]
    return lambda _body: _Reply(b"text/event-stream", reads, breaks=breaks)


def _expected(told: Told, way: Way, found: Told) -> Told:
    """What this wire can tell of it. Without the upstream's usage it is estimated."""
    if told.end == "failed":
        return FAILED
    if told.usage is None:
        told = msgspec.structs.replace(told, usage=found.usage)
    if way == "messages" and told.refusal:
        told = msgspec.structs.replace(told, text=told.text + told.refusal, refusal="", end="filtered")
    if way == "completions":
        text = told.text + told.refusal
        told = msgspec.structs.replace(told, text=text, refusal="", thought="", calls=())
        told = msgspec.structs.replace(told, end=found.end if told.end == "calls" else told.end)
    return told


def _ways(behaviour: Behaviour) -> list[Way]:
    return [way for way in _WIRES if way in behaviour.ways]


def _same(found: Told, told: Told, way: Way) -> None:
    text = found.text.encode("utf-16", "surrogatepass").decode("utf-16")
    found = msgspec.structs.replace(found, text=text)
    nameless = tuple(msgspec.structs.replace(call, call_id="") for call in found.calls)
    assert "call_0" not in {call.call_id for call in found.calls}
    assert msgspec.structs.replace(found, calls=nameless) == _expected(told, way, found), way


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda each: each.name)
async def test_a_stream(behaviour: Behaviour) -> None:
    """In one read, and in reads that end anywhere."""
    for way in _ways(behaviour):
        for size in (10**6, 37):
            house = house_of(_streamed(_as_sse(behaviour), size), behaviour.speaks)
            _same(await _asked(house, way, stream=True), behaviour.told, way)


_CUT: Final = (
    "interleaved pieces",
    "text between pieces of a call",
    "a thought as reasoning_content",
    "claude: thinking before a call",
)


@pytest.mark.parametrize("behaviour", [each for each in BEHAVIOURS if each.name in _CUT], ids=lambda each: each.name)
async def test_a_stream_that_is_cut_anywhere(behaviour: Behaviour) -> None:
    """Before its end was told it has failed, whether its connection broke or ended, or an end marker follows."""
    data = _as_sse(behaviour)
    events = data.split(b"\n\n")
    tells_end = next(at for at, each in enumerate(events) if b'"finish_reason":"' in each or b'"stop_reason":"' in each)
    for at in range(1, tells_end + 1):
        whole = b"\n\n".join(events[:at]) + b"\n\n"
        for cut in (whole, whole + events[at][: len(events[at]) // 2]):
            for way in _ways(behaviour):
                for breaks in (True, False):
                    house = house_of(_streamed(cut, 10**6, breaks=breaks), behaviour.speaks)
                    assert await _asked(house, way, stream=True) == FAILED, (cut, way)
        for way in _ways(behaviour):
            house = house_of(_streamed(whole + b"data: [DONE]\n\n", 10**6), behaviour.speaks)
            assert await _asked(house, way, stream=True) == FAILED, (whole, way)


@pytest.mark.parametrize("behaviour", [each for each in BEHAVIOURS if each.whole], ids=lambda each: each.name)
async def test_a_whole_answer(behaviour: Behaviour) -> None:
    """On each wire, also where the caller asked for a stream; and by the provider's batch API."""
    told = behaviour.told_whole or behaviour.told
    body = json.dumps(behaviour.whole).encode()

    def reply(_asked: dict[str, Any]) -> _Reply:
        return _Reply(b"application/json", [body], breaks=False)

    for way in _ways(behaviour):
        house = house_of(reply, behaviour.speaks)
        _same(await _asked(house, way, stream=False), told, way)
        _same(await _line(house, way), told, way)
        if behaviour.speaks == "openai":
            _same(await _asked(house_of(reply, "openai"), way, stream=True), told, way)
            _same(await _provider_line(house, way, body), told, way)


def _line_of(way: Way) -> LineRequest:
    caller = Caller(key_id="k", key_name="k", team_id="team_a", organisation_id="o")
    asked = json.dumps({"model": "auto", **_ASKED[way]}).encode()
    return LineRequest(request_id="req_2", caller=caller, endpoint="", body=asked, priority=0)


async def _line(house: House, way: Way) -> Told:
    """The answer of a batch's line."""
    reply = await house.line.answer(_WIRES[way], _line_of(way))
    return read(way, reply.status, reply.body, stream=False)


async def _provider_line(house: House, way: Way, body: bytes) -> Told:
    """The answer of a line whose result came from the provider's batch API."""
    loop = asyncio.get_running_loop()
    lines = PipelineOffers(house.line, lambda _path: _WIRES[way], loop.time, lambda: 1)
    try:
        reply, _ = await lines.answered(_line_of(way), house.books.entries[0], body)
    except UpstreamError:
        return FAILED
    return read(way, reply.status, reply.body, stream=False)
