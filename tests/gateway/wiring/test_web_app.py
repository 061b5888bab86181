"""The HTTP server behind the workers: who may speak to it, and its end."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.wiring.web_app import serving_web

_GET = b"GET / HTTP/1.1\r\nhost: web\r\n\r\n"


class _Held:
    """Answers once it is let go."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.let_go = asyncio.Event()

    async def __call__(self, _scope: Any, _receive: Any, send: Any) -> None:
        self.asked.set()
        await self.let_go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"done"})


async def test_what_runs_at_the_end_is_answered_and_nobody_comes_in(tmp_path: Path) -> None:
    """Leaving waits for the answer that is under way, refuses new connections meanwhile, and closes those that are kept."""
    app, path = _Held(), tmp_path / "web"
    async with serving_web(app, path):
        kept, keeping = await _asked(path)
        app.let_go.set()
        assert (await kept.readuntil(b"done")).startswith(b"HTTP/1.1 200 ")
        app.let_go.clear()
        app.asked.clear()
        late, waiting = await _asked(path)
        await app.asked.wait()
        asyncio.get_running_loop().call_later(0.02, app.let_go.set)
    assert (await late.read()).endswith(b"done")
    assert await kept.read() == b""
    for writer in (keeping, waiting):
        writer.close()
    with pytest.raises((FileNotFoundError, ConnectionRefusedError)):
        await asyncio.open_unix_connection(path)


async def _asked(path: Path, sent: bytes = b"weighbridge/1 tcp 203.0.113.9 4711\n" + _GET) -> Any:
    """A connection on which this was sent."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(sent)
    return reader, writer


class _Tells:
    """Says who asked, after the body."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, str]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked.append((scope["client"], scope["scheme"]))
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"done"})


@pytest.mark.parametrize("cut", [None, *range(1, 36)])
async def test_a_worker_says_who_asks(tmp_path: Path, cut: int | None) -> None:
    """However its line is cut into pieces."""
    app = _Tells()
    line = b"weighbridge/1 tls 2001:db8::1%eth0 65535\n"
    async with serving_web(app, tmp_path / "web"):
        reader, writer = await _asked(tmp_path / "web", line[:cut])
        if cut is not None:
            await asyncio.sleep(0)
            writer.write(line[cut:])
        writer.write(_GET)
        await reader.readuntil(b"done")
        writer.close()
    assert app.asked == [(("2001:db8::1%eth0", 65535), "https")]


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\n",
        b"weighbridge/1 tcp 203.0.113.9\n",
        b"weighbridge/1 tcp 203.0.113.9 4711 1\n",
        b"weighbridge/1 tcp 203.0.113.9 99999\n",
        b"weighbridge/1 tcp  1\n",
        b"weighbridge/1 udp 203.0.113.9 1\n",
        b"weighbridge/2 tcp 203.0.113.9 1\n",
        b"weighbridge/1 tcp " + b"9" * 200 + b" 1\n",
        b"x-weighbridge-peer: 203.0.113.9 1\r\n",
    ],
)
async def test_nobody_else_is_answered(tmp_path: Path, sent: bytes) -> None:
    """A request without the line that only a worker writes ends its connection, and reaches no route."""
    app = _Tells()
    async with serving_web(app, tmp_path / "web"):
        reader, writer = await _asked(tmp_path / "web", sent + _GET * 8)
        assert await _all_of(reader) == b""
        writer.close()
    assert app.asked == []


async def _all_of(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_connection_has_one_request(tmp_path: Path, *, at_once: bool) -> None:
    """A second one is not answered, whether it comes with the first one or behind its reply."""
    app = _Tells()
    async with serving_web(app, tmp_path / "web"):
        reader, writer = await _asked(tmp_path / "web", b"weighbridge/1 tcp - 0\n" + _GET * (1 + at_once))
        if not at_once:
            await reader.readuntil(b"done")
            writer.write(_GET)
        assert (await _all_of(reader)).count(b"200") <= at_once
        writer.close()
    assert app.asked in ([], [(None, "http")])
