"""An engine that misbehaves on demand: for the faults that real engines can't be made to show when a test wants them."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from aiohttp import web

from testing.scripted.metered import add_metered_routes

_PAGE = """\
vllm:num_requests_running{{engine="0",model_name="own"}} {running}
vllm:num_requests_waiting{{engine="0",model_name="own"}} {waiting}
vllm:kv_cache_usage_perc{{engine="0",model_name="own"}} {kv_usage}
vllm:cache_config_info{{block_size="16",engine="0",num_gpu_blocks="{blocks}"}} 1.0
vllm:prefix_cache_queries_total{{engine="0",model_name="own"}} 100.0
vllm:prefix_cache_hits_total{{engine="0",model_name="own"}} 50.0
"""


def metrics_page(*, running: object, waiting: object, kv_usage: object, blocks: object) -> str:
    """Returns metrics of vLLM, as far as a pool reads them."""
    return _PAGE.format(running=running, waiting=waiting, kv_usage=kv_usage, blocks=blocks)


class OddEngine:
    """Speaks vLLM's HTTP: health, metrics and chat. Its attributes say how badly."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.url = ""
        self.asked: list[dict[str, Any]] = []
        self.key: str | None = None
        """With one, metrics and chat are answered to nobody else."""
        self.keys: list[tuple[str, str]] = []
        """The path and key of each request to these."""
        self.healthy = True
        self.running: object = 0
        self.waiting: object = 0
        self.kv_usage: object = 0.1
        self.blocks = 1_000
        self.page: Callable[[], bytes] | None = None
        """Instead of the usual metrics."""
        self.page_delay_s = 0.0
        self.status = 200
        """Of answers to requests."""
        self.dies: bool = False
        """Drops the connection of each request without an answer, and is not well from then on."""
        self.adapters: set[str] = set()
        """That are loaded."""
        self.loads: list[str] = []
        """Adapters that it was told to load."""
        self.load_status = 200
        self.gate = asyncio.Event()
        """Answers wait for it."""
        self.gate.set()

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/load_lora_adapter", self._load)
        add_metered_routes(app.router)
        return app

    def _refusal(self, request: web.Request) -> web.Response | None:
        if self.key is None:
            return None
        key = request.headers.get("authorization", "").removeprefix("Bearer ")
        self.keys.append((request.path, key))
        return None if key == self.key else web.json_response({"error": "Unauthorized"}, status=401)

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        await asyncio.sleep(self.page_delay_s)
        if self.page is not None:
            return web.Response(body=self.page())
        told = metrics_page(running=self.running, waiting=self.waiting, kv_usage=self.kv_usage, blocks=self.blocks)
        return web.Response(text=told)

    async def _models(self, _request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": each} for each in ("own", *sorted(self.adapters))]})

    async def _load(self, request: web.Request) -> web.Response:
        name = (await request.json())["lora_name"]
        self.loads.append(name)
        if self.load_status == 200:
            self.adapters.add(name)
        return web.Response(status=self.load_status)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        refusal = self._refusal(request)
        return await self._answer(request, body) if refusal is None else refusal

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        self.asked.append(body)
        if self.dies:
            return self._died(request)
        if body["model"].startswith("lora-") and body["model"] not in self.adapters:
            return web.json_response({"error": {"message": "no such model", "type": "NotFoundError"}}, status=404)
        if self.status != 200:
            return web.json_response({"error": {"message": "broken", "type": "server_error"}}, status=self.status)
        await self.gate.wait()
        if self._dies_now():
            return self._died(request)
        usage = {"prompt_tokens": 20, "completion_tokens": 1, "total_tokens": 21}
        head = {"id": "chatcmpl-1", "created": 1, "model": body["model"]}
        if not body.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", "content": self.name}, "finish_reason": "stop"}
            return web.json_response({**head, "object": "chat.completion", "choices": [choice], "usage": usage})
        reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await reply.prepare(request)
        choice = {"index": 0, "delta": {"role": "assistant", "content": self.name}, "finish_reason": "stop"}
        event = {**head, "object": "chat.completion.chunk", "choices": [choice], "usage": usage}
        await reply.write(f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n".encode())
        return reply

    def _dies_now(self) -> bool:
        return self.dies

    def _died(self, request: web.Request) -> web.Response:
        """Whoever probes it finds that out from now on."""
        assert request.transport is not None
        self.healthy = False
        request.transport.close()
        return web.Response()


async def served(stack: contextlib.AsyncExitStack, app: web.Application) -> str:
    """The address of an application that is served on a port of its own until the stack closes."""
    runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=0.2)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return f"http://127.0.0.1:{runner.addresses[0][1]}"


@contextlib.asynccontextmanager
async def odd_engines(*names: str) -> AsyncIterator[list[OddEngine]]:
    """So many, each on a port of its own."""
    engines = [OddEngine(name) for name in names]
    async with contextlib.AsyncExitStack() as stack:
        for engine in engines:
            engine.url = await served(stack, engine.app())
        yield engines
