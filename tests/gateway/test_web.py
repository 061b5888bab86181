"""The HTTP server behind the workers, at its end."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp

from gateway.web import serving_web


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

    def client() -> aiohttp.ClientSession:
        return aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path)))

    async with client() as kept, client() as late:
        async with serving_web(app, path):
            app.let_go.set()
            assert await (await kept.get("http://web/")).text() == "done"
            app.let_go.clear()
            app.asked.clear()
            running = asyncio.create_task(late.get("http://web/"))
            await app.asked.wait()
            asyncio.get_running_loop().call_later(0.02, app.let_go.set)
        assert await (await running).text() == "done"
        async with client() as refused:
            try:
                await refused.get("http://web/")
            except aiohttp.ClientConnectionError:
                return
        raise AssertionError("a server that is gone took a connection")
