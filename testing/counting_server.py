"""A scripted server that reports what it served as a vLLM replica does, so that it can stand in for one."""

import time
from typing import Final

from aiohttp import web

from testing.scripted.log import LogLine
from testing.scripted.server import Answer, make_app

_BLOCKS: Final = 4_096
_BLOCK_TOKENS: Final = 16
_TOKENS_OF_REQUEST: Final = 9_000
"""The approximate cache tokens that a running request holds."""
_CACHED_SHARE: Final = 0.4


class CountingServer:
    """A scripted server that counts its requests and reports them as vLLM does."""

    def __init__(self, name: str, answer: Answer | None = None) -> None:
        self.name = name
        self._answer = answer
        self._running = 0
        self._prompt_tokens = 0
        self._output_tokens = 0
        self._started = time.time()

    def app(self) -> web.Application:
        app = make_app(self._wrote, self._answer)
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
        """Render Prometheus text with the vLLM metrics that the gateway reads."""
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
