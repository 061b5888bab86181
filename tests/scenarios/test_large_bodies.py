"""Large bodies over real sockets: what people send is answered on every wire, what nobody sends is refused unread."""

import io
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from proxy.parse.headers import RequestHeaders
from proxy.parse.wires.chat.dialect import CHAT
from proxy.parse.wires.wire import IsModel, Understood
from tests.proxy.exchanges import HeardExchange
from tests.running_gateway import Running, model, running_gateway
from tests.scenarios.test_rules import MINTED, House

_PART = {"type": "text", "text": "a"}
_MANY = [_PART] * 40_000
_CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
_LONG = "The quick brown fox, it jumps over the lazy dog. " * 200_000


def turn(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


TOO_FULL: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": turn(_MANY)},
    "/v1/messages": {"max_tokens": 9, "messages": turn(_MANY)},
    "/v1/messages/count_tokens": {"messages": turn(_MANY)},
    "/v1/responses": {"input": turn(_MANY)},
    "/v1/completions": {"prompt": "hi", "metadata": _MANY},
    "/v1/embeddings": {"input": [[1]] * 40_000},
    "/v1/rerank": {"query": "hi", "documents": _MANY},
    "/v1/moderations": {"input": _MANY},
    "/v1/images/generations": {"prompt": "hi", "metadata": _MANY},
    "/v1/audio/speech": {"input": "hi", "voice": "a", "metadata": _MANY},
    "/v1/conversations": {"items": _MANY},
}
TAKEN: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": turn(_LONG)}),
    (
        "/v1/chat/completions",
        {
            "messages": [
                *turn("do it"),
                *[{"role": "assistant", "tool_calls": [_CALL]}, {"role": "tool", "tool_call_id": "call_1", "content": "x"}]
                * 2_000,
            ]
        },
    ),
    (
        "/v1/chat/completions",
        {"messages": turn([{"type": "image_url", "image_url": {"url": "data:image/png;base64," + "QUJD" * 1_000_000}}])},
    ),
    ("/v1/messages", {"max_tokens": 9, "messages": turn(_LONG)}),
    ("/v1/messages", {"max_tokens": 9, "messages": turn([_PART] * 10_000)}),
    ("/v1/responses", {"input": _LONG}),
    ("/v1/completions", {"prompt": _LONG}),
]  # fmt: skip


async def post(gateway: Running, path: str, fields: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    headers = {"authorization": f"Bearer {gateway.key}", "content-type": "application/json"}
    data = io.BytesIO(json.dumps({"model": "m", **fields}).encode())
    async with aiohttp.ClientSession(headers=headers) as session, session.post(gateway.url + path, data=data) as reply:
        return reply.status, await reply.json()


async def test_every_route_bounds_what_a_body_holds_and_takes_what_people_send(tmp_path: Path) -> None:
    """40,000 parts are too many on each, in whatever field; long texts, images and histories are answered."""
    scripted = [{"name": "a", "kind": "scripted", "upstream_model": "ok"}]
    models = [model("m", scripted, max_context_tokens=9_000_000)]
    async with running_gateway(tmp_path, models) as gateway:
        for path, fields in TOO_FULL.items():
            status, told = await post(gateway, path, fields)
            assert (path, status) == (path, 400), told
            assert "32768 objects and lists" in told["error"]["message"]
        for path, fields in TAKEN:
            status, told = await post(gateway, path, fields)
            assert (path, status) == (path, 200), told
        status, told = await post(
            gateway, "/v1/chat/completions", {"messages": turn("hi"), **dict.fromkeys(map(str, range(300)))}
        )
        assert (status, "302 fields" in told["error"]["message"]) == (400, True)


async def served(body: bytes, read: Callable[[bytes, RequestHeaders, IsModel], Understood]) -> HeardExchange:
    """What a caller hears whose body is read so."""
    house = House("ok")
    house.line.config = msgspec.structs.replace(house.line.config, max_body_bytes=20_000_000)
    exchange = HeardExchange(body, [(b"authorization", f"Bearer {MINTED.plaintext}".encode())])
    await house.line.serve(msgspec.structs.replace(CHAT, read=read), exchange)
    return exchange


async def test_what_is_refused_is_not_decoded() -> None:
    """The wire never sees a body with too much in it."""
    read: list[bytes] = []

    def reading(body: bytes, headers: RequestHeaders, is_model: IsModel) -> Understood:
        read.append(body)
        return CHAT.read(body, headers, is_model)

    full = await served(json.dumps({"model": "auto", "messages": turn(_MANY)}).encode(), reading)
    assert (full.messages[0]["status"], len(read)) == (400, 0)
    usual = await served(json.dumps({"model": "auto", "messages": turn("hi")}).encode(), reading)
    assert (usual.messages[0]["status"], len(read)) == (200, 1)


async def test_what_takes_long_to_read_is_read_beside_the_loop() -> None:
    """A long text, and many parts, are read on a thread; a usual body on the loop's own."""
    threads: list[threading.Thread] = []

    def reading(body: bytes, headers: RequestHeaders, is_model: IsModel) -> Understood:
        threads.append(threading.current_thread())
        return CHAT.read(body, headers, is_model)

    for content in ("hi", [_PART] * 500, _LONG, [_PART] * 10_000):
        await served(json.dumps({"model": "auto", "messages": turn(content)}).encode(), reading)
    main = threading.main_thread()
    assert [each is main for each in threads] == [True, True, False, False]
