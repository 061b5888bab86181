"""A scripted upstream on a socket, shared by the stories."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from aiohttp import web

import classifier
from testing.scripted.log import LogLine
from testing.scripted.server import make_app

PACKAGED: Final = Path(classifier.__file__).parent / "artifacts"
"""The trained model that is shipped."""


class Upstream(msgspec.Struct, frozen=True):
    """A running scripted server and what it saw."""

    url: str
    log: list[LogLine]

    def deployment(self, script: str, name: str = "main", **fields: Any) -> dict[str, Any]:
        """A deployment whose model name is the script that it plays."""
        return {"name": name, "kind": "openai", "base_url": self.url, "upstream_model": script, **fields}

    def arrived(self) -> list[str]:
        """The request ids that reached it, in order."""
        return [line.request_id for line in self.log if line.event == "arrived"]

    def over(self) -> list[LogLine]:
        """The replies that have ended, one way or the other."""
        return [line for line in self.log if line.event != "arrived"]


@contextlib.asynccontextmanager
async def scripted_upstream() -> AsyncIterator[Upstream]:
    """Serves scripts until the block ends."""
    log: list[LogLine] = []
    runner = web.AppRunner(make_app(log.append), access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield Upstream(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", log)
    finally:
        await runner.cleanup()


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    """One for the test."""
    async with scripted_upstream() as served:
        yield served
