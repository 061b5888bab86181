"""Stand-ins for everything that the sample's gateway calls: a provider, three replicas with metrics, a webhook
receiver.

`python -m gateway.demo.stand_ins` prints where they listen as one JSON line, and ends with its parent.
"""

import asyncio
import json
import signal
import sys
import time
from typing import Final

from aiohttp import web

from gateway.demo.sample_config import REPLICAS
from gateway.process.parent_pipe import exit_with_parent
from testing.scripted.log import LogLine
from testing.scripted.server import make_app

_BLOCKS: Final = 4_096
_BLOCK_TOKENS: Final = 16
_TOKENS_OF_REQUEST: Final = 9_000
"""The approximate cache tokens that a running request holds."""
_CACHED_SHARE: Final = 0.4


class StandIn:
    """A scripted server that counts its requests and reports them as vLLM does."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._running = 0
        self._prompt_tokens = 0
        self._output_tokens = 0
        self._started = time.time()

    def app(self) -> web.Application:
        app = make_app(self._wrote)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/v1/models", self._models)
        return app

    def _wrote(self, line: LogLine) -> None:
        if line.event == "arrived":
            self._running += 1
            return
        self._running -= 1
        self._prompt_tokens += line.prompt_tokens
        self._output_tokens += line.completion_tokens

    async def _models(self, _request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self.name, "object": "model"}]})

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(text=self.page(), content_type="text/plain")

    def page(self) -> str:
        """Renders Prometheus text with the vLLM metrics that the gateway reads."""
        held = self._running * _TOKENS_OF_REQUEST / (_BLOCKS * _BLOCK_TOKENS)
        figures = {
            "num_requests_running": self._running,
            "num_requests_waiting": 0,
            "kv_cache_usage_perc": min(1.0, 0.04 + held),
            "prefix_cache_queries_total": self._prompt_tokens,
            "prefix_cache_hits_total": int(self._prompt_tokens * _CACHED_SHARE),
            "prompt_tokens_total": self._prompt_tokens,
            "generation_tokens_total": self._output_tokens,
        }
        labels = f'{{engine="0",model_name="{self.name}"}}'
        lines = [f"vllm:{name}{labels} {float(value)}" for name, value in figures.items()]
        lines.append(
            f'vllm:cache_config_info{{block_size="{_BLOCK_TOKENS}",engine="0",num_gpu_blocks="{_BLOCKS}"}} 1.0'
        )
        lines.append(f"process_start_time_seconds {self._started}")
        return "\n".join(lines) + "\n"


async def _hook(request: web.Request) -> web.Response:
    await request.read()
    return web.Response(status=204)


async def _listen(app: web.Application) -> tuple[web.AppRunner, str]:
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


async def serve() -> None:
    """Serves until SIGTERM, SIGINT or the parent's end."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    hooks = web.Application()
    hooks.router.add_post("/hook", _hook)
    apps = (StandIn("provider").app(), hooks, *(StandIn(name).app() for name in REPLICAS))
    listening = [await _listen(app) for app in apps]
    upstream, webhook, *replicas = [url for _, url in listening]
    told = {"upstream": f"{upstream}/v1", "webhook": f"{webhook}/hook", "replicas": replicas}
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()
    try:
        await stop.wait()
    finally:
        for runner, _ in listening:
            await runner.cleanup()


if __name__ == "__main__":
    exit_with_parent()
    asyncio.run(serve())
