"""An engine that sleeps as vLLM does: its routes and answers by the sources of 0.32 (entrypoints/serve/dev/sleep/api_router.py)."""

import asyncio
from typing import Final

from aiohttp import web

from tests.odd_engine import OddEngine

_STATES: Final = ("awake", "weights_offloaded", "discard_all")


class Gpu:
    """Memory that engines share: who is awake in it. One that wakes beside another one finds no room."""

    def __init__(self) -> None:
        self.awake: set[str] = set()
        self.clashes: list[str] = []


class SleepingEngine(OddEngine):
    """Takes `takes_s` to fall asleep or to wake. Asked while it sleeps, it fails, which vLLM leaves open."""

    def __init__(self, name: str, gpu: Gpu, *, level: int = 0) -> None:
        super().__init__(name)
        self.gpu = gpu
        self.level = level
        self.takes_s = 0.05
        self.calls: list[str] = []
        self.refuses = False
        self.has_routes = True
        """False where VLLM_SERVER_DEV_MODE is not set."""
        self.asleep_when_asked = 0
        if not level:
            gpu.awake.add(name)

    def app(self) -> web.Application:
        app = super().app()
        app.router.add_post("/sleep", self._sleep)
        app.router.add_post("/wake_up", self._wake_up)
        app.router.add_post("/collective_rpc", self._rpc)
        app.router.add_get("/is_sleeping", self._is_sleeping)
        return app

    async def _metrics(self, request: web.Request) -> web.Response:
        page = (await super()._metrics(request)).text or ""
        told = (
            f'vllm:engine_sleep_state{{engine="0",model_name="own",sleep_state="{name}"}} {float(index == self.level)}\n'
            for index, name in enumerate(_STATES)
        )
        return web.Response(text=page + "".join(told))

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        if self.level:
            self.asleep_when_asked += 1
            return web.json_response({"error": {"message": "asleep", "type": "server_error"}}, status=500)
        self.running = int(str(self.running)) + 1
        try:
            return await super()._chat(request)
        finally:
            self.running = int(str(self.running)) - 1

    async def _sleep(self, request: web.Request) -> web.Response:
        if not self.has_routes:
            return web.Response(status=404)
        level = int(request.query.get("level", "1"))
        self.calls.append(request.path_qs)
        if self.refuses:
            return web.json_response({"error": "no"}, status=500)
        await asyncio.sleep(self.takes_s)
        self.level = level
        self.gpu.awake.discard(self.name)
        return web.json_response({"status": "sleeping", "level": level})

    async def _wake_up(self, request: web.Request) -> web.Response:
        tags = request.query.getall("tags", [])
        self.calls.append(request.path_qs)
        if self.refuses:
            return web.json_response({"error": "no"}, status=500)
        await asyncio.sleep(self.takes_s)
        if self.gpu.awake - {self.name}:
            self.gpu.clashes.append(self.name)
            return web.json_response({"error": "CUDA out of memory"}, status=500)
        fully = not tags or "kv_cache" in tags
        self.gpu.awake.add(self.name)
        if fully:
            self.level = 0
        return web.json_response({"status": "awake" if fully else "sleeping", "tags": tags or None})

    async def _rpc(self, request: web.Request) -> web.Response:
        self.calls.append(f"{request.path} {(await request.json())['method']}")
        return web.json_response({"results": [None]})

    async def _is_sleeping(self, _request: web.Request) -> web.Response:
        if not self.has_routes:
            return web.Response(status=404)
        return web.json_response({"is_sleeping": bool(self.level)})
