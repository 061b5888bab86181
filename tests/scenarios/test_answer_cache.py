"""Answers that are kept and given again, over all wires: the cases in which other gateways' caches went wrong, by their numbers."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp
import pytest
from aiohttp import web

from accounts.keys import Pepper
from cost.ledger.verify import check
from cost.times import DAY_US, wall_us
from gateway.configuration.peppers import peppers
from tests.processes import until
from tests.providers.wires import Provider, anthropic_stream, anthropic_whole, provider
from tests.redis_server import RedisServer
from tests.running_gateway import DEAR_PRICES, PEPPER, Running, running_gateway

CACHE: Final = {"default": True}
USAGE: Final = {
    "prompt_tokens": 1_000,
    "completion_tokens": 100,
    "total_tokens": 1_100,
    "completion_tokens_details": {"reasoning_tokens": 40},
}
COST_NANOUSD: Final = 1_000 * 2_500 + 100 * 10_000
"""What one answer costs at `DEAR_PRICES`."""
TOOL: Final = {"name": "weigh", "description": "Weighs.", "parameters": {"type": "object", "properties": {}}}
ASKED: Final[Mapping[str, tuple[str, dict[str, Any]]]] = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    "completions": ("/v1/completions", {"prompt": "hi", "max_tokens": 200}),
    "messages": ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 200}),
    "responses": ("/v1/responses", {"input": "hi", "store": False}),
}
WIRES: Final = tuple(ASKED)


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the configuration refers to."""
    monkeypatch.setenv("MADE_UP_KEY", "made-up")


class Model:
    """An upstream whose every answer is another one, so that one that is given again is recognised."""

    def __init__(self, **says: Any) -> None:
        self.calls = 0
        self.finish = "stop"
        self.gate: asyncio.Event | None = None
        """Holds back the rest of a stream, and whole answers."""
        self.says = {"content": "hello", "reasoning_content": "I think", **says}
        self.status = 200

    def message(self, number: int) -> dict[str, Any]:
        said = dict(self.says)
        if isinstance(said.get("content"), str):
            said["content"] += f" {number}"
        return said

    async def answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        self.calls += 1
        number = self.calls
        if self.status != 200:
            return web.json_response({"error": {"message": "no"}}, status=self.status)
        if request.path.endswith("/embeddings"):
            vector = {"object": "embedding", "index": 0, "embedding": [0.25, number]}
            usage = {"prompt_tokens": 1_000, "total_tokens": 1_000}
            return web.json_response({"object": "list", "data": [vector], "model": body["model"], "usage": usage})
        head = {"id": f"chatcmpl-{number}", "created": 1_000 + number, "model": body["model"]}
        if not body.get("stream"):
            await self._held()
            choice = {
                "index": 0,
                "message": {"role": "assistant", **self.message(number)},
                "finish_reason": self.finish,
            }
            return web.json_response({**head, "object": "chat.completion", "choices": [choice], "usage": USAGE})
        reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await reply.prepare(request)
        head["object"] = "chat.completion.chunk"
        for name, value in self.message(number).items():
            pieces = [value[:3], value[3:]] if isinstance(value, str) else [_indexed(value)]
            for piece in pieces:
                await _say(reply, head, {name: piece})
        await self._held()
        await _say(reply, head, {}, self.finish)
        await reply.write(b"data: " + json.dumps({**head, "choices": [], "usage": USAGE}).encode() + b"\n\n")
        await reply.write(b"data: [DONE]\n\n")
        return reply

    async def _held(self) -> None:
        if self.gate is not None:
            await self.gate.wait()


def _indexed(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"index": index, **call} for index, call in enumerate(calls)]


async def _say(reply: web.StreamResponse, head: dict[str, Any], delta: dict[str, Any], finish: str | None = None) -> None:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    await reply.write(b"data: " + json.dumps({**head, "choices": [choice]}).encode() + b"\n\n")


class Told(NamedTuple):
    """An answer as its caller has it."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def cache(self) -> str:
        return self.headers.get("x-weighbridge-cache", "")

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The data of a stream's events."""
        lines = [line[6:] for line in self.body.split(b"\n") if line.startswith(b"data: ")]
        return [json.loads(line) for line in lines if line != b"[DONE]"]


class House:
    """A gateway before one model."""

    def __init__(self, gateway: Running, model: Model, session: aiohttp.ClientSession) -> None:
        self.gateway = gateway
        self.model = model
        self.session = session

    async def ask(
        self, wire: str = "chat", *, key: str = "", cache: str | None = None, path: str = "", **fields: Any
    ) -> Told:
        where, asked = ASKED[wire]
        body = {"model": "m", "temperature": 0, **asked, **fields}
        headers = {"authorization": f"Bearer {key or self.gateway.key}"}
        if cache is not None:
            headers["x-weighbridge-cache"] = cache
        body = {name: value for name, value in body.items() if value is not ...}
        async with self.session.post(path or where, json=body, headers=headers) as reply:
            return Told(reply.status, {name.lower(): value for name, value in reply.headers.items()}, await reply.read())

    async def key_of(self, team_id: str, **fields: Any) -> str:
        """A key of another team, which is made."""
        accounts = self.gateway.accounts
        with contextlib.suppress(Exception):
            await accounts.create_team(team_id, name=team_id, **fields)
        return (await accounts.create_key(team_id, "k", _pepper(self.gateway))).plaintext

    async def rows(self, where: str = "1 = 1") -> list[dict[str, Any]]:
        return await self.gateway.rows(where)


def _pepper(gateway: Running) -> Pepper:
    from pydantic import SecretStr  # noqa: PLC0415

    from gateway.configuration.environment import Environment  # noqa: PLC0415

    return peppers(None, Environment(data_dir=gateway.config_path.parent, pepper=SecretStr(PEPPER)))[0]


@contextlib.asynccontextmanager
async def house(
    folder: Path, model: Model | None = None, *, redis: RedisServer | None = None, **sections: Any
) -> AsyncIterator[House]:
    model = model or Model()
    if redis is not None:
        address = folder / "redis.address"
        address.write_text(redis.url)
        patient = {"timeout_s": 5.0, "slow_s": 2.0, "probe_s": 0.05}
        sections["redis"] = {"url": f"file:{address}", **sections.get("redis", patient)}
    async with provider(model.answer) as served:
        entries = [_entry("m", served), _entry("vectors", served, capabilities=["embeddings"])]
        entries += sections.pop("models", lambda _served: [])(served)
        sections.setdefault("cache", CACHE)
        async with (
            running_gateway(folder, entries, accounts={"fresh_s": 0.1}, **sections) as gateway,
            aiohttp.ClientSession(gateway.url) as session,
        ):
            if redis is not None:
                await until(lambda: _is_shared(gateway))
            yield House(gateway, model, session)


async def _is_shared(gateway: Running) -> bool:
    link = gateway.live.gate.link
    return link is not None and link.healthy


def _entry(model_id: str, served: Provider, **fields: Any) -> dict[str, Any]:
    deployment = {"kind": "openai", "base_url": f"{served.base_url}/v1", "api_key": "env:MADE_UP_KEY"}
    fields.setdefault("capabilities", ["tools", "json"])
    return {"model_id": model_id, "provider": "elsewhere", "prices": DEAR_PRICES, "max_context_tokens": 32_000, **fields, "deployments": [deployment]}


@pytest.fixture(params=["here", "redis"])
def where(request: pytest.FixtureRequest) -> RedisServer | None:
    """Where answers are kept: in the process, or in a real Redis."""
    if request.param == "here":
        return None
    server: RedisServer = request.getfixturevalue("empty_redis")
    return server


CALL: Final = [{"id": "call_1", "type": "function", "function": {"name": "weigh", "arguments": '{"kg":7}'}}]


def words_of(told: Told, *, stream: bool) -> str:
    """All that is not an id or a time, on whatever wire, so that two answers can be compared."""
    return json.dumps([_without(each) for each in (told.events if stream else [told.json])])


_VARIES: Final = {"id", "created", "created_at", "completed_at", "weighbridge", "item_id", "signature", "encrypted_content", "data"}


def _without(value: Any) -> Any:
    match value:
        case dict():
            return {name: _without(each) for name, each in value.items() if name not in _VARIES}
        case list():
            return [_without(each) for each in value]
    return value


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_46_47_48_an_answer_is_given_again_as_it_was(tmp_path: Path, where: RedisServer | None, *, stream: bool) -> None:
    """On every wire: with its reasoning, calls and usage, a stream as a stream, under an id and a time of its own."""
    async with house(tmp_path, redis=where) as it:
        for says in ({}, {"content": None, "tool_calls": CALL}):
            it.model.says = {"content": "hello", "reasoning_content": "I think", **says}
            it.model.finish = "tool_calls" if says else "stop"
            for wire in WIRES:
                if says and wire == "completions":
                    continue
                calls = it.model.calls
                more: dict[str, Any] = {"stream": stream, "user": str(bool(says))} if wire != "messages" else {"stream": stream, "metadata": {"user_id": str(bool(says))}}
                first, second = await it.ask(wire, **more), await it.ask(wire, **more)
                assert (first.status, first.cache, second.cache) == (200, "miss", "hit"), (wire, first.body)
                assert it.model.calls == calls + 1
                assert first.headers["content-type"] == second.headers["content-type"]
                assert words_of(first, stream=stream) == words_of(second, stream=stream), wire
                assert second.headers["age"].isdecimal()
                assert second.headers["x-weighbridge-target"] == "m"
                if stream:
                    assert second.headers["content-type"].startswith("text/event-stream")
                ids = [_ids(each, stream=stream) for each in (first, second)]
                assert ids[0]
                assert ids[0].isdisjoint(ids[1]), wire


def _ids(told: Told, *, stream: bool) -> set[str]:
    found = set()
    for each in told.events if stream else [told.json]:
        found |= {str(part["id"]) for part in (each, each.get("response") or {}, each.get("message") or {}) if "id" in part}
    return found
