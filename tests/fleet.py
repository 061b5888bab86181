"""A gateway in front of a pool of real engines: its configuration, its callers, and what it tells of the pool."""

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import aiohttp
import msgspec

from accounts.keys import Pepper
from accounts.pepper_file import pepper_id
from tests.processes import until
from tests.running_gateway import CHEAP_PRICES, PEPPER, Running, model

POOL: Final = "own"
OWN: Final = "own-model"
"""The target that the pool serves."""
_PATIENCE_S: Final = 120.0


class Place(msgspec.Struct, frozen=True):
    """Where a replica is."""

    name: str
    url: str


def pool(places: Iterable[Place], **fields: Any) -> dict[str, Any]:
    """A pool of these replicas, watched so closely that tests need not wait."""
    replicas = [{"name": place.name, "url": place.url} for place in places]
    watch = {"every_s": 0.2, "timeout_s": 5.0, **fields.pop("watch", {})}
    return {"name": POOL, "targets": [OWN], "replicas": replicas, "watch": watch, **fields}


def pooled_model(model_id: str = OWN, **fields: Any) -> dict[str, Any]:
    """A target that a pool serves has no addresses of its own."""
    return {
        name: value
        for name, value in model(
            model_id, [], provider="self-hosted", capability=0.5, prices=CHEAP_PRICES, **fields
        ).items()
        if name != "deployments"
    }


class Reply(msgspec.Struct, kw_only=True):
    """What one caller got to see."""

    status: int = 0
    headers: Mapping[str, str] = {}
    text: str = ""
    usage: dict[str, Any] = {}
    error: dict[str, Any] | None = None
    first_at: float | None = None
    """When the first event came."""
    events: int = 0
    """That came so far."""
    done: bool = False
    """It came to its proper end."""
    ended_at: float | None = None
    """When that end came, of a stream."""
    cut: str = ""

    @property
    def replica(self) -> str:
        return self.headers.get("x-weighbridge-deployment", "/").partition("/")[2]

    @property
    def began(self) -> bool:
        return self.first_at is not None


class Callers(msgspec.Struct, frozen=True):
    """Clients of one gateway, and its operator."""

    gateway: Running
    session: aiohttp.ClientSession
    admin: str

    async def ask(self, messages: Sequence[Mapping[str, Any]], **fields: Any) -> Reply:
        """One answer, whole."""
        reply = Reply()
        async with self._post(messages, fields) as got:
            reply.status, reply.headers = got.status, got.headers
            body = await got.json(content_type=None)
        if reply.status == 200:
            reply.first_at = time.monotonic()
            reply.text = body["choices"][0]["message"]["content"] or ""
            reply.usage, reply.done = body["usage"], True
        else:
            reply.error = body["error"]
        return reply

    async def stream(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        events: int | None = None,
        into: Reply | None = None,
        **fields: Any,
    ) -> Reply:
        """One answer as a stream; the caller hangs up after so many events. `into` can be read while it comes."""
        reply = Reply() if into is None else into
        fields = {"stream": True, "stream_options": {"include_usage": True}, **fields}
        try:
            async with self._post(messages, fields) as got:
                await _read(got, reply, events)
                if events is not None:
                    got.close()
        except (aiohttp.ClientError, TimeoutError) as error:
            reply.cut = type(error).__name__
        return reply

    def _post(
        self, messages: Sequence[Mapping[str, Any]], fields: dict[str, Any]
    ) -> "aiohttp.client._RequestContextManager":
        headers = {"authorization": f"Bearer {self.gateway.key}", **fields.pop("headers", {})}
        body = {"model": OWN, "max_tokens": 8, "temperature": 0, **fields, "messages": list(messages)}
        return self.session.post(f"{self.gateway.base_url}/chat/completions", json=body, headers=headers)

    async def order(self, method: str, path: str, **body: Any) -> Any:
        """The operator's request; its answer."""
        headers = {"authorization": f"Bearer {self.admin}"}
        url = f"{self.gateway.base_url}{path}"
        async with self.session.request(method, url, headers=headers, json=body or None) as got:
            told = await got.json(content_type=None)
            assert got.status < 300, f"{method} {path}: {got.status} {told}"
            return told

    async def pool(self, name: str = POOL) -> dict[str, Any]:
        """What the gateway tells of the pool."""
        return next(each for each in (await self.order("GET", "/fleet"))["data"] if each["name"] == name)

    async def replica(self, name: str) -> dict[str, Any]:
        return next(each for each in (await self.pool())["replicas"] if each["name"] == name)

    async def states(self) -> dict[str, str]:
        return {each["name"]: each["state"] for each in (await self.pool())["replicas"]}

    async def until_states(self, **states: str) -> None:
        """Returns once the replicas are as told."""

        async def reached() -> bool:
            found = await self.states()
            return all(found.get(name) == state for name, state in states.items())

        await until(reached)


@contextlib.asynccontextmanager
async def callers(gateway: Running, *, patience_s: float = _PATIENCE_S) -> AsyncIterator[Callers]:
    """Of this gateway, whose operator is `team_a`'s admin; they wait so long for an answer."""
    secret = PEPPER.encode()
    pepper = Pepper(id=pepper_id(secret), secret=secret)
    minted = await gateway.accounts.create_key("team_a", "operator", pepper, role="admin")
    timeout = aiohttp.ClientTimeout(total=patience_s)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        yield Callers(gateway, session, minted.plaintext)


@contextlib.asynccontextmanager
async def renewed(ask: Callable[[str], Awaitable[object]], *, callers: int) -> AsyncIterator[None]:
    """So many callers ask again and again, each time by another name, until the block ends and their answers are there.

    However fast an engine is, there is always work. What a caller raises ends the block.
    """
    leaving = asyncio.Event()

    async def caller(number: int) -> None:
        for turn in itertools.count():
            await ask(f"{number} {turn}")
            if leaving.is_set():
                return

    async with asyncio.TaskGroup() as group:
        for number in range(callers):
            group.create_task(caller(number))
        yield
        leaving.set()


async def _read(got: aiohttp.ClientResponse, reply: Reply, events: int | None) -> None:
    reply.status, reply.headers = got.status, got.headers
    if got.status != 200:
        reply.error = (await got.json(content_type=None))["error"]
        return
    async for line in got.content:
        if not line.startswith(b"data: "):
            continue
        if line.startswith(b"data: [DONE]"):
            reply.done, reply.ended_at = True, time.monotonic()
            return
        reply.first_at = reply.first_at or time.monotonic()
        _take(json.loads(line[6:]), reply)
        reply.events += 1
        if reply.events == events:
            return


def _take(event: dict[str, Any], reply: Reply) -> None:
    if event.get("error"):
        reply.error = event["error"]
    if event.get("usage"):
        reply.usage = event["usage"]
    for choice in event.get("choices") or ():
        reply.text += choice["delta"].get("content") or ""
