"""An engine says itself where it is: a running gateway finds it, sends it work, drains it and lets it go."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from sqlalchemy import text

from accounts.keys import Pepper
from accounts.pepper_file import pepper_id
from tests.fleet import pooled_model
from tests.running_gateway import PEPPER, Running, running_gateway

TOKEN = "what the pool's engines know"


@contextlib.asynccontextmanager
async def engine() -> AsyncIterator[str]:
    """Healthy, idle, and of few words."""

    async def chat(_request: web.Request) -> web.Response:
        message = {"role": "assistant", "content": "Weighed."}
        usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response({"id": "c", "object": "chat.completion", "choices": [choice], "usage": usage})

    async def fine(_request: web.Request) -> web.Response:
        return web.Response(text="vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n")

    app = web.Application()
    app.router.add_get("/health", fine)
    app.router.add_get("/metrics", fine)
    app.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


class Operator:
    """Looks at the fleet until it is as expected."""

    def __init__(self, gateway: Running, session: aiohttp.ClientSession, key: str) -> None:
        self._gateway = gateway
        self._session = session
        self._key = key

    async def call(self, method: str, path: str, key: str = "", **body: Any) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {key or self._key}"}
        async with self._session.request(
            method, f"{self._gateway.base_url}{path}", headers=headers, json=body or None
        ) as reply:
            told: dict[str, Any] = await reply.json()
            return {**told, "status": reply.status}

    async def sees(self, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        async with asyncio.timeout(30):
            while True:
                pool = await self.call("GET", "/fleet/pools/own")
                if fits(pool):
                    return pool
                await asyncio.sleep(0.05)

    async def asks(self) -> int:
        body = {"model": "own-model", "messages": [{"role": "user", "content": "hello"}]}
        told = await self.call("POST", "/chat/completions", self._gateway.key, **body)
        return int(told["status"])


async def test_an_engine_registers_serves_drains_and_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each within seconds; the time that it was up is counted from the beginning."""
    monkeypatch.setenv("OWN_POOL_TOKEN", TOKEN)
    registration = {"token": "env:OWN_POOL_TOKEN", "networks": ["127.0.0.0/8"], "ttl_s": 60}
    pool = {"name": "own", "targets": ["own-model"], "registration": registration, "watch": {"every_s": 0.2}}
    async with (
        engine() as url,
        running_gateway(tmp_path, [pooled_model("own-model")], selfhosted={"pools": [pool]}) as gateway,
        aiohttp.ClientSession() as session,
    ):
        secret = Pepper(id=pepper_id(PEPPER.encode()), secret=PEPPER.encode())
        key = (await gateway.accounts.create_key("team_a", "operator", secret, role="admin")).plaintext
        operator = Operator(gateway, session, key)
        assert (await operator.sees(lambda told: told["state"] == "empty"))["replicas"] == []
        assert await operator.asks() >= 500

        place = "/fleet/pools/own/replicas/self"
        registered = await operator.call("PUT", place, TOKEN, url=url, instance="i1")
        assert (registered["status"], registered["again_s"]) == (200, 20.0)
        await operator.sees(lambda told: told["state"] == "ok")
        assert await operator.asks() == 200

        assert (await operator.call("PUT", f"{place}/drain"))["drained"]
        await operator.sees(lambda told: told["state"] == "draining")
        assert await operator.asks() >= 500
        assert not (await operator.call("DELETE", f"{place}/drain"))["drained"]
        await operator.sees(lambda told: told["state"] == "ok")
        assert await operator.asks() == 200

        assert (await operator.call("DELETE", f"{place}?instance=i1", TOKEN))["deleted"]
        await operator.sees(lambda told: told["state"] == "empty")
        async with gateway.engine.connect() as connection:
            holder = await connection.scalar(text("SELECT holder FROM pool_target WHERE pool = 'own'"))
        assert holder
