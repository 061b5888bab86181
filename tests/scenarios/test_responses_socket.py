"""The socket of responses where it does not go smoothly: handshakes, bounds, callers that leave, servers that stop."""

from pathlib import Path

import aiohttp
import httpx
import pytest

from tests.processes import until
from tests.running_gateway import running_gateway
from tests.scenarios.conftest import Upstream
from tests.scenarios.test_open_responses import socket_of, tags
from tests.scenarios.test_responses_client import house

_CLOSING = (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.CLOSING)
HANDSHAKE = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
}


async def closed(socket: aiohttp.ClientWebSocketResponse) -> int | None:
    """The code with which the server ended it."""
    while (await socket.receive(timeout=30)).type not in _CLOSING:
        pass
    return socket.close_code


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"authorization": ""}, 401),
        ({"authorization": "Bearer wb-no-key-at-all"}, 401),
        ({"upgrade": ""}, 405),
        ({"upgrade": "h2c"}, 405),
        ({"sec-websocket-key": "short"}, 400),
        ({"sec-websocket-version": "8"}, 400),
    ],
)
async def test_what_is_no_handshake_is_refused(
    tmp_path: Path, upstream: Upstream, changed: dict[str, str], status: int
) -> None:
    """As HTTP, before anything is switched; the connection may be used again."""
    async with running_gateway(tmp_path, house(upstream)) as gateway, httpx.AsyncClient() as plain:
        headers = {name: value for name, value in {**HANDSHAKE, **tags(gateway), **changed}.items() if value}
        reply = await plain.get(f"{gateway.base_url}/responses", headers=headers)
        assert (reply.status_code, set(reply.json())) == (status, {"error"})
        assert (await plain.get(f"{gateway.url}/healthz")).status_code == 200


async def test_a_handshake_has_no_body(tmp_path: Path, upstream: Upstream) -> None:
    """Its bytes would be taken for frames."""
    async with running_gateway(tmp_path, house(upstream)) as gateway, httpx.AsyncClient() as plain:
        headers = HANDSHAKE | tags(gateway)
        reply = await plain.request("GET", f"{gateway.base_url}/responses", headers=headers, content=b"\x81\x02hi")
        assert (reply.status_code, set(reply.json())) == (400, {"error"})


async def test_a_message_has_its_bounds(tmp_path: Path, upstream: Upstream) -> None:
    """One that is too large, and one that is no text, end the socket with the code for it."""
    sections = {"server": {"max_body_bytes": 2_048}}
    async with running_gateway(tmp_path, house(upstream), **sections) as gateway:
        async with socket_of(gateway) as socket:
            assert (await socket.turn(input="x" * 1_000))["status"] == "completed"
            await socket.raw.send_str("x" * 3_000)
            assert await closed(socket.raw) == aiohttp.WSCloseCode.MESSAGE_TOO_BIG
        async with socket_of(gateway) as socket:
            await socket.raw.send_bytes(b"{}")
            assert await closed(socket.raw) == aiohttp.WSCloseCode.UNSUPPORTED_DATA


@pytest.mark.parametrize(
    "message", ["", "[]", "{", '{"type": "response.cancel"}', '{"type": "response.create", "stream_id": "s"}']
)
async def test_what_is_no_request_is_told(tmp_path: Path, upstream: Upstream, message: str) -> None:
    """And the socket goes on."""
    async with running_gateway(tmp_path, house(upstream)) as gateway, socket_of(gateway) as socket:
        await socket.raw.send_str(message)
        error = await socket.raw.receive_json(timeout=30)
        assert (error["type"], error["status"], error["error"]["type"]) == ("error", 400, "invalid_request_error")
        assert (await socket.turn(input="hi"))["status"] == "completed"


async def test_a_caller_that_leaves_ends_its_turn(tmp_path: Path, upstream: Upstream) -> None:
    """The upstream's call ends, and what it cost is booked."""
    script = "tokens-2000+every-50ms"
    async with running_gateway(tmp_path, house(upstream, script)) as gateway:
        async with socket_of(gateway) as socket:
            await socket.raw.send_json({"type": "response.create", "model": "auto", "input": "hi"})
            assert (await socket.raw.receive_json(timeout=30))["type"] == "response.created"
        await until(lambda: bool(upstream.over()))

        async def is_booked() -> bool:
            return len(await gateway.rows("entry = 'settle'")) == 1

        await until(is_booked)
        (row,) = await gateway.rows("entry = 'settle'")
        assert "caller_gone" in row["flags"]


async def test_a_stream_that_breaks_off_is_told(tmp_path: Path, upstream: Upstream) -> None:
    """By the events of its failure; what it left is not gone on from."""
    async with running_gateway(tmp_path, house(upstream, "cut-3+tokens-9")) as gateway, socket_of(gateway) as socket:
        events = await socket.events(input="hi")
        assert [event["type"] for event in events][-2:] == ["error", "response.failed"]
        (error,) = await socket.events(input="on", previous_response_id=events[-1]["response"]["id"])
        assert error["error"]["code"] == "previous_response_not_found"


async def test_a_server_that_stops_ends_idle_sockets(tmp_path: Path, upstream: Upstream) -> None:
    """With the code that asks to connect again; a turn that runs comes to its end first."""
    script = "tokens-20+every-20ms"
    async with (
        running_gateway(tmp_path, house(upstream, script)) as gateway,
        socket_of(gateway) as socket,
        socket_of(gateway) as other,
    ):
        await socket.raw.send_json({"type": "response.create", "model": "auto", "input": "hi"})
        assert (await socket.raw.receive_json(timeout=30))["type"] == "response.created"
        for connection in tuple(gateway.server.connections):
            connection.leave()
        assert await closed(other.raw) == aiohttp.WSCloseCode.SERVICE_RESTART
        while (await socket.raw.receive_json(timeout=30))["type"] != "response.completed":
            pass
        assert await closed(socket.raw) == aiohttp.WSCloseCode.SERVICE_RESTART
