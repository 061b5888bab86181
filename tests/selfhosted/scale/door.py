"""A gateway's side of registrations, over a real socket: it keeps what it was told."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from aiohttp import web
from aiohttp.test_utils import TestServer

TOKEN = "the-pools-token"
WAIT_S = 30.0


class Door:
    """`desired` is what it answers; `registered` what it knows."""

    def __init__(self) -> None:
        self.desired: int | None = None
        self.desired_readers: int | None = None
        self.away = False
        self.registered: dict[str, dict[str, object]] = {}
        self.url = ""

    async def target(self, request: web.Request) -> web.StreamResponse:
        if self.away:
            return web.json_response({"error": {"message": "The database does not answer."}}, status=503)
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return web.json_response({"error": {"message": "It is another's token."}}, status=401)
        desired = self.desired_readers if request.query.get("part") == "prefill" else self.desired
        return web.json_response({"object": "fleet.target", "desired": desired, "reason": ""})

    async def register(self, request: web.Request) -> web.StreamResponse:
        if self.away:
            return web.json_response({"error": {"message": "The database does not answer."}}, status=503)
        self.registered[request.match_info["name"]] = await request.json()
        return web.json_response({"again_s": 0.1, "ttl_s": 1.0})

    async def leave(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        mine = self.registered.get(name, {}).get("instance") == request.query["instance"]
        if mine:
            del self.registered[name]
        return web.json_response({"deleted": mine})

    @property
    def takes_work(self) -> list[str]:
        return sorted(name for name, told in self.registered.items() if not told["draining"])


async def until(holds: Callable[[], object]) -> None:
    """Returns when it holds. Far later than ever needed it fails."""
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110 - other processes set no event here
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def open_door() -> AsyncIterator[Door]:
    door = Door()
    app = web.Application()
    base = "/v1/fleet/pools/{pool}"
    app.router.add_get(base + "/target", door.target)
    app.router.add_put(base + "/replicas/{name}", door.register)
    app.router.add_delete(base + "/replicas/{name}", door.leave)
    server = TestServer(app)
    await server.start_server()
    door.url = str(server.make_url("")).rstrip("/")
    try:
        yield door
    finally:
        await server.close()
