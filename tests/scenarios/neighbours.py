"""Gateways that share a database and a Redis, in the test's own loop."""

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
from pydantic import SecretStr

from gateway.configuration.environment import Environment
from tests.processes import until
from tests.running_gateway import PEPPER, gateway_at, model, running_gateway
from tests.scenarios.conftest import Upstream

# A busy machine must not be taken for a slow Redis where the test is about something else.
PATIENT: Final = {"timeout_s": 5.0, "slow_s": 2.0, "probe_s": 0.05}
SWIFT: Final = {"timeout_s": 0.4, "slow_s": 0.15, "probe_s": 0.05}


class Neighbour(msgspec.Struct, frozen=True):
    """One of them, as its team's callers meet it."""

    session: aiohttp.ClientSession

    async def ask(self, name: str = "ok", **fields: Any) -> int:
        """The status of one whole answer."""
        async with self.session.post("/v1/chat/completions", json=_body(name, fields)) as reply:
            await reply.read()
            return reply.status

    async def refused(self, name: str = "ok", **fields: Any) -> tuple[dict[str, Any], dict[str, str]]:
        """A refusal: its error and its headers."""
        async with self.session.post("/v1/chat/completions", json=_body(name, fields)) as reply:
            assert reply.status == 429
            return json.loads(await reply.read())["error"], {
                name.lower(): value for name, value in reply.headers.items()
            }

    async def passed(self, count: int, name: str = "ok") -> int:
        """How many of so many requests were let through; the others were refused by the limit."""
        statuses = [await self.ask(name) for _ in range(count)]
        assert set(statuses) <= {200, 429}
        return statuses.count(200)

    async def limits(self) -> dict[str, Any]:
        async with self.session.get("/v1/limits") as reply:
            assert reply.status == 200
            found: dict[str, Any] = await reply.json()
            return found

    async def remaining(self, kind: str) -> int:
        found: list[int] = [each["remaining"] for each in (await self.limits())["data"] if each["kind"] == kind]
        return found[0]

    async def becomes(self, mode: str, live: int) -> None:
        """Waits until it enforces limits in this manner, with so many processes known."""

        async def has() -> bool:
            found = await self.limits()
            return (found["mode"], found["live_replicas"]) == (mode, live)

        await until(has)


def _body(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {"model": name, "messages": [{"role": "user", "content": "What is the capital of France?"}], **fields}


@contextlib.asynccontextmanager
async def neighbours(
    folder: Path, upstream: Upstream, scripts: dict[str, str], *, redis_url: str | None = None, **sections: Any
) -> AsyncIterator[tuple[Neighbour, Neighbour]]:
    """Two gateways, one configuration."""
    if redis_url is not None:
        address = folder / "redis.address"
        address.write_text(redis_url)
        sections["redis"] = {"url": f"file:{address}", **sections.get("redis", PATIENT)}
    models = [model(name, [upstream.deployment(script)]) for name, script in scripts.items()]
    async with contextlib.AsyncExitStack() as stack:
        one = await stack.enter_async_context(running_gateway(folder, models, **sections))
        environment = Environment(data_dir=folder, pepper=SecretStr(PEPPER))
        other = await stack.enter_async_context(gateway_at(one.config_path, environment, one.engine, one.key))
        urls = (one.url, other.url)
        headers = {"authorization": f"Bearer {one.key}"}
        made = [Neighbour(await stack.enter_async_context(aiohttp.ClientSession(url, headers=headers))) for url in urls]
        yield made[0], made[1]
