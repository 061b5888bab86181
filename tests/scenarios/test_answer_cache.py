"""Answers that are kept and given again, over all wires: the cases in which other gateways' caches went wrong, by their numbers."""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Mapping
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
        if said.get("content"):
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
            if value is None:
                continue
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


async def _say(
    reply: web.StreamResponse, head: dict[str, Any], delta: dict[str, Any], finish: str | None = None
) -> None:
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

    def __init__(self, gateway: Running, model: Model, session: aiohttp.ClientSession, served: Provider) -> None:
        self.gateway = gateway
        self.provider = served
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
            return Told(
                reply.status, {name.lower(): value for name, value in reply.headers.items()}, await reply.read()
            )

    async def key_of(self, team_id: str, **fields: Any) -> str:
        """A key of another team, which is made."""
        accounts = self.gateway.accounts
        with contextlib.suppress(Exception):
            await accounts.create_team(team_id, name=team_id, **fields)
        return (await accounts.create_key(team_id, "k", _pepper(self.gateway))).plaintext

    async def rows(self, where: str = "1 = 1") -> list[dict[str, Any]]:
        return await self.gateway.rows(where)


def _pepper(gateway: Running) -> Pepper:
    from pydantic import SecretStr

    from gateway.configuration.environment import Environment

    return peppers(None, Environment(data_dir=gateway.config_path.parent, pepper=SecretStr(PEPPER)))[0]


@contextlib.asynccontextmanager
async def house(
    folder: Path, model: Model | None = None, *, redis_server: RedisServer | None = None, **sections: Any
) -> AsyncIterator[House]:
    model = model or Model()
    if redis_server is not None:
        address = folder / "redis.address"
        address.write_text(redis_server.url)
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
            if redis_server is not None:
                await until(lambda: _is_shared(gateway))
            yield House(gateway, model, session, served)


async def _is_shared(gateway: Running) -> bool:
    link = gateway.live.gate.link
    return link is not None and link.healthy


def _entry(model_id: str, served: Provider, **fields: Any) -> dict[str, Any]:
    deployment = {"kind": "openai", "base_url": f"{served.base_url}/v1", "api_key": "env:MADE_UP_KEY"}
    fields.setdefault("capabilities", ["tools", "json"])
    return {
        "model_id": model_id,
        "provider": "elsewhere",
        "prices": DEAR_PRICES,
        "max_context_tokens": 32_000,
        **fields,
        "deployments": [deployment],
    }


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


_VARIES: Final = {
    "id",
    "created",
    "created_at",
    "completed_at",
    "weighbridge",
    "item_id",
    "signature",
    "encrypted_content",
    "data",
}


def _without(value: Any) -> Any:
    match value:
        case dict():
            return {name: _without(each) for name, each in value.items() if name not in _VARIES}
        case list():
            return [_without(each) for each in value]
    return value


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_46_47_48_an_answer_is_given_again_as_it_was(
    tmp_path: Path, where: RedisServer | None, *, stream: bool
) -> None:
    """On every wire: with its reasoning, calls and usage, a stream as a stream, under an id and a time of its own."""
    async with house(tmp_path, redis_server=where) as it:
        for says in ({}, {"content": None, "tool_calls": CALL}):
            it.model.says = {"content": "hello", "reasoning_content": "I think", **says}
            it.model.finish = "tool_calls" if says else "stop"
            for wire in WIRES:
                if says and wire == "completions":
                    continue
                calls = it.model.calls
                more: dict[str, Any] = (
                    {"stream": stream, "user": str(bool(says))}
                    if wire != "messages"
                    else {"stream": stream, "metadata": {"user_id": str(bool(says))}}
                )
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
        found |= {
            str(part["id"]) for part in (each, each.get("response") or {}, each.get("message") or {}) if "id" in part
        }
    return found


async def test_47_a_claudes_own_events_are_given_again_as_events(tmp_path: Path, where: RedisServer | None) -> None:
    """What passes as its provider wrote it is kept as it was written, but for its id."""

    async def claude(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        model.calls += 1
        return await (anthropic_stream if body.get("stream") else anthropic_whole)(request, body)

    def entry(served: Provider) -> list[dict[str, Any]]:
        deployment = {
            "kind": "litellm", "upstream_model": "anthropic/claude-sonnet-4-5", "base_url": served.base_url,
            "api_key": "env:MADE_UP_KEY",
        }  # fmt: skip
        return [{"model_id": "claude", "provider": "anthropic", "prices": DEAR_PRICES, "deployments": [deployment]}]

    model = Model()
    model.answer = claude  # type: ignore[method-assign]
    async with house(tmp_path, model, redis_server=where, models=entry) as it:
        for stream in (False, True):
            for tools in (..., [{"name": "weigh", "input_schema": {"type": "object"}}]):
                asked: dict[str, Any] = {"model": "claude", "stream": stream, "tools": tools}
                first, second = await it.ask("messages", **asked), await it.ask("messages", **asked)
                assert (first.status, first.cache, second.cache) == (200, "miss", "hit"), first.body
                assert words_of(first, stream=stream) == words_of(second, stream=stream)
                assert _ids(first, stream=stream).isdisjoint(_ids(second, stream=stream))
                names = [line for line in second.body.split(b"\n") if line.startswith(b"event: ")]
                assert (b"event: message_stop" in names) is stream
    assert model.calls == 4


async def test_embeddings_are_given_again(tmp_path: Path, where: RedisServer | None) -> None:
    """Also with another encoding in between, which has an answer of its own."""
    async with house(tmp_path, redis_server=where) as it:
        asked: dict[str, Any] = {"model": "vectors", "input": "hi", "messages": ..., "temperature": ...}
        first = await it.ask(path="/v1/embeddings", **asked)
        other = await it.ask(path="/v1/embeddings", encoding_format="base64", **asked)
        second = await it.ask(path="/v1/embeddings", **asked)
        assert [each.cache for each in (first, other, second)] == ["miss", "miss", "hit"], first.body
        assert first.json["data"] == second.json["data"]
        assert first.json["usage"] == second.json["usage"]


async def test_41_teams_and_organisations_are_apart(tmp_path: Path, where: RedisServer | None) -> None:
    """The same request of another team is asked anew; of another key of the team it is not."""
    async with house(tmp_path, redis_server=where) as it:
        theirs, ours = await it.key_of("team_b"), await it.key_of("team_a")
        told = [await it.ask(), await it.ask(key=theirs), await it.ask(key=ours), await it.ask(key=theirs)]
        assert [each.cache for each in told] == ["miss", "miss", "hit", "hit"]
        said = [each.json["choices"][0]["message"]["content"] for each in told]
        assert said == ["hello 1", "hello 2", "hello 1", "hello 2"]


CHANGES: Final[tuple[dict[str, Any], ...]] = (
    {"temperature": 0.0, "top_p": 0.5}, {"max_tokens": 50}, {"seed": 7}, {"stop": ["x"]}, {"stop": ["y"]},
    {"response_format": {"type": "json_object"}}, {"logit_bias": {"5": 1}}, {"presence_penalty": 1},
    {"frequency_penalty": 1}, {"reasoning_effort": "low"}, {"tools": [{"type": "function", "function": TOOL}]},
    {"tools": [{"type": "function", "function": TOOL}], "tool_choice": "required"}, {"parallel_tool_calls": False},
    {"logprobs": True}, {"user": "u1"}, {"metadata": {"a": "b"}}, {"stream": True},
    {"stream": True, "stream_options": {"include_usage": True}}, {"service_tier": "flex"}, {"x-tier": "batch"},
    {"messages": [{"role": "user", "content": "hi "}]}, {"messages": [{"role": "system", "content": "hi"}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}, {"unheard_of": 1}, {"model": "other"},
    {"model": "auto"}, {"prediction": {"type": "content", "content": "x"}}, {"verbosity": "low"},
)  # fmt: skip


async def test_42_each_parameter_counts(tmp_path: Path) -> None:
    """None is left out of the key, so none gets the answer of another one; a key order and blanks are no parameter."""
    async with house(tmp_path, models=lambda served: [_entry("other", served)]) as it:
        assert (await it.ask()).cache == "miss"
        for change in CHANGES:
            told = await it.ask(**change)
            assert (told.status, told.cache) == (200, "miss"), (change, told.body)
            assert (await it.ask(**change)).cache == "hit", change
        body = b'{"messages":[ {"role":"user" ,"content":"hi"}],\n "temperature":0, "model":"m"}'
        headers = {"authorization": f"Bearer {it.gateway.key}", "content-type": "application/json"}
        async with it.session.post("/v1/chat/completions", data=body, headers=headers) as reply:
            assert reply.headers["x-weighbridge-cache"] == "hit"


async def test_42_a_missing_temperature_is_not_0(tmp_path: Path) -> None:
    """It is the model's own, so its answers have a part of chance. Who wants them again all the same says so."""
    async with house(tmp_path) as it:
        assert [(await it.ask(temperature=value)).cache for value in (0, ..., 1, None, 0.1)] == [
            "miss",
            *["bypass"] * 4,
        ]
        assert [(await it.ask(temperature=..., cache="ttl=60")).cache for _ in range(2)] == ["miss", "hit"]
        assert (await it.ask(temperature=1, cache="ttl=60")).cache == "miss"
        assert (await it.ask(temperature=0)).cache == "hit"


async def test_43_what_was_kept_under_other_rules_is_not_given(tmp_path: Path) -> None:
    """Neither after a change of what inspects answers, nor of the catalog; the same rules again find it again."""
    async with house(tmp_path) as it:
        line = it.gateway.live.line
        assert (await it.ask()).cache == "miss"
        line.guard_digest = b"stricter"
        assert (await it.ask()).cache == "miss"
        line.guard_digest = b""
        assert (await it.ask()).cache == "hit"
        path = it.gateway.config_path
        written = path.read_text()
        path.write_text(written.replace("max_context_tokens: 32000", "max_context_tokens: 31000"))
        it.gateway.reload()
        assert (await it.ask()).cache == "miss"
        path.write_text(written)
        it.gateway.reload()
        assert (await it.ask()).cache == "hit"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_hit_is_inspected_as_a_models_answer_is(tmp_path: Path, *, stream: bool) -> None:
    """What was masked on the way in comes back in words; what must not be said is not said again, and not kept."""
    rules = [
        {"name": "mails", "kind": "pii", "entities": ["email"], "input": "mask"},
        {"name": "words", "kind": "words", "words": ["mudlark"], "output": "block"},
    ]

    async def echoes(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        model.says = {"content": body["messages"][-1]["content"]}
        return await answer(request, body)

    model = Model()
    answer, model.answer = model.answer, echoes  # type: ignore[method-assign]
    async with house(tmp_path, model, guard={"rules": rules}) as it:
        asked: Any = {"stream": stream, "messages": [{"role": "user", "content": "write to ann@example.com now"}]}
        told = [await it.ask(**asked) for _ in range(2)]
        assert [each.cache for each in told] == ["miss", "hit"], told[0].body
        assert "EMAIL_" in model.says["content"]
        for each in told:
            assert "ann@example.com" in _content(each, stream=stream)
        model.calls = 0
        blocked: Any = {"stream": stream, "messages": [{"role": "user", "content": "say mud-lark without its dash"}]}

        async def says(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
            model.says = {"content": "a mudlark it is"}
            return await answer(request, body)

        model.answer = says  # type: ignore[method-assign]
        it.provider.answer = says
        told = [await it.ask(**blocked) for _ in range(2)]
        assert [each.cache for each in told] == ["miss", "miss"]
        assert all(b"mudlark" not in each.body for each in told)
        assert model.calls == 2


def _content(told: Told, *, stream: bool) -> str:
    if not stream:
        return str(told.json["choices"][0]["message"]["content"])
    return "".join(choice["delta"].get("content") or "" for each in told.events for choice in each["choices"])


async def test_44_a_revoked_key_and_a_limit_come_first(tmp_path: Path, where: RedisServer | None) -> None:
    """A hit is a request like any other: its key has to be good, and it counts in the limit."""
    limits = {"team": {"requests_per_minute": 1, "request_burst": 4}}
    async with house(tmp_path, redis_server=where, limits=limits) as it:
        key = await it.key_of("team_b")
        told = [await it.ask(key=key) for _ in range(5)]
        assert [each.status for each in told] == [200] * 4 + [429]
        assert [each.cache for each in told[:4]] == ["miss"] + ["hit"] * 3
        other = await it.gateway.accounts.create_key("team_a", "k", _pepper(it.gateway))
        assert [(await it.ask(key=other.plaintext)).cache for _ in range(2)] == ["miss", "hit"]
        await it.gateway.accounts.revoke_key(other.key_id)

        async def is_refused() -> bool:
            return (await it.ask(key=other.plaintext)).status == 401

        await until(is_refused)
        assert it.model.calls == 2


async def test_a_hits_tokens_are_given_back_to_the_limit(tmp_path: Path) -> None:
    """Nobody used them."""
    limits = {"team": {"tokens_per_minute": 60, "token_burst": 3_000}}
    async with house(tmp_path, limits=limits) as it:
        left = [int((await it.ask(max_tokens=200)).headers["x-ratelimit-remaining-tokens"]) for _ in range(6)]
        # The first was told before it was used.
        assert left[0] - left[1] > 800
        assert left[1] - left[-1] < 50


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_45_only_clean_answers_are_kept(tmp_path: Path, *, stream: bool) -> None:
    """None that was cut off by its length or a filter, refused, said nothing, or failed."""
    async with house(tmp_path) as it:
        for wire in WIRES:
            for number, (finish, says) in enumerate((
                ("length", {}), ("content_filter", {}), ("stop", {"content": None, "reasoning_content": None, "refusal": "I will not"}),
                ("stop", {"content": "", "reasoning_content": None}),
            )):  # fmt: skip
                it.model.finish, it.model.says = finish, {"content": "hello", **says}
                more: dict[str, Any] = {"stream": stream, "top_p": 0.5 + number / 100}
                told = [(await it.ask(wire, **more)).cache for _ in range(2)]
                assert told == ["miss", "miss"], (wire, finish, says)
        it.model.status = 500
        assert [(await it.ask(stream=stream, seed=1)).status for _ in range(2)] == [502, 502]
        it.model.status, it.model.finish, it.model.says = 200, "stop", {"content": "well"}
        assert [(await it.ask(stream=stream, seed=1)).cache for _ in range(2)] == ["miss", "hit"]


async def test_45_a_stand_ins_answer_is_not_kept(tmp_path: Path) -> None:
    """For an hour a fallback's would be given where the model that was asked for answers again."""
    policy = {"fallbacks": {"m": ["other"]}}

    async def falls(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        model.status = 500 if body["model"] == "m" and ill else 200
        return await answer(request, body)

    ill, model = True, Model()
    answer, model.answer = model.answer, falls  # type: ignore[method-assign]
    async with house(tmp_path, model, policy=policy, models=lambda served: [_entry("other", served)]) as it:
        told = await it.ask()
        assert (told.status, told.headers["x-weighbridge-target"], told.cache) == (200, "other", "miss")
        ill = False
        again = [await it.ask() for _ in range(2)]
        assert [each.headers["x-weighbridge-target"] for each in again] in (["m", "m"], ["other", "other"])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_49_a_hit_has_books_of_its_own(tmp_path: Path, where: RedisServer | None, *, stream: bool) -> None:
    """It costs nothing, and neither its tokens nor what it saved are in a sum of anything else. All identities hold."""
    async with house(tmp_path, redis_server=where, cost={"reference_target": "m"}) as it:
        told = [await it.ask(stream=stream, user="x") for _ in range(4)]
        assert [each.cache for each in told] == ["miss", "hit", "hit", "hit"]
        rows = await it.rows()
        assert [row["entry"] for row in rows] == ["reserve", "settle", "cache", "cache", "cache"]
        asked, given = rows[1], rows[2]
        assert asked["cost_nanousd"] == COST_NANOUSD
        amounts = {name: given[name] for name in given if name.endswith(("_tokens", "_nanousd"))}
        assert {name: amount for name, amount in amounts.items() if amount} == {
            "replayed_input_tokens": 1_000,
            "replayed_output_tokens": 100,
            "cache_saved_nanousd": COST_NANOUSD,
        }
        assert (given["cost_nanousd"], given["baseline_nanousd"], given["served"], given["end_user"]) == (
            0,
            None,
            0,
            "x",
        )
        if not stream:
            assert told[1].headers["x-weighbridge-cost-usd"] == "0.000000000"
        now = wall_us()
        found = await check(it.gateway.engine, now - DAY_US, now + DAY_US, now_us=now)
        assert (found.differences, found.open_reserves, found.cost_nanousd) == (0, 0, COST_NANOUSD)
        async with it.gateway.engine.connect() as connection:
            for table in ("rollup_hour", "rollup_day", "rollup_team_day", "rollup_model_day", "rollup_team_model_day"):
                sums = await connection.exec_driver_sql(
                    "SELECT sum(requests), sum(input_tokens), sum(cost_nanousd), sum(cache_hits), sum(cache_saved_nanousd), "  # noqa: S608
                    f"sum(replayed_output_tokens), sum(baseline_nanousd) FROM {table}"
                )
                assert tuple(sums.one()) == (1, 1_000, COST_NANOUSD, 3, 3 * COST_NANOUSD, 300, COST_NANOUSD), table


async def test_50_what_ended_is_kept_though_its_caller_went(tmp_path: Path) -> None:
    """Also where it goes while the last of it is being sent; but never what had not ended."""
    async with house(tmp_path) as it:
        it.model.gate = asyncio.Event()
        for stream in (False, True):
            asked = asyncio.create_task(it.ask(stream=stream))
            await until(lambda: _has_calls(it.model, 1))
            it.model.calls = 0
            asked.cancel()
            await until(lambda: _is_idle(it.gateway))
        it.model.gate = None
        # Neither had ended.
        assert [(await it.ask(stream=stream)).cache for stream in (False, True)] == ["miss", "miss"]


async def _has_calls(model: Model, calls: int) -> bool:
    return model.calls >= calls


async def _is_idle(gateway: Running) -> bool:
    return gateway.live.line.in_flight == 0


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_equal_requests_wait_for_one(tmp_path: Path, where: RedisServer | None, *, stream: bool) -> None:
    """Twenty at once are asked once, and have the same answer under ids of their own."""
    async with house(tmp_path, redis_server=where) as it:
        it.model.gate = asyncio.Event()
        asked = [asyncio.create_task(it.ask(stream=stream)) for _ in range(20)]
        await until(lambda: _has_calls(it.model, 1))
        await until(lambda: _has_in_flight(it.gateway, 20))
        it.model.gate.set()
        told = await asyncio.gather(*asked)
        assert it.model.calls == 1
        assert sorted(each.cache for each in told) == ["hit"] * 19 + ["miss"]
        assert len({words_of(each, stream=stream) for each in told}) == 1
        assert len(set.union(*(_ids(each, stream=stream) for each in told))) == 20


async def _has_in_flight(gateway: Running, requests: int) -> bool:
    return gateway.live.line.in_flight == requests


async def test_one_that_hangs_up_fails_none_that_waits(tmp_path: Path) -> None:
    """The next of them asks, once for all others."""
    async with house(tmp_path) as it:
        it.model.gate = asyncio.Event()
        first = asyncio.create_task(it.ask())
        await until(lambda: _has_calls(it.model, 1))
        asked = [asyncio.create_task(it.ask()) for _ in range(5)]
        await until(lambda: _has_in_flight(it.gateway, 6))
        first.cancel()
        await until(lambda: _has_calls(it.model, 2))
        it.model.gate.set()
        told = await asyncio.gather(*asked)
        assert it.model.calls == 2
        assert sorted(each.cache for each in told) == ["hit"] * 4 + ["miss"]


async def test_one_that_fails_lets_the_others_ask(tmp_path: Path) -> None:
    """A failure is nobody else's, nor is an answer that may not be given twice."""
    async with house(tmp_path) as it:
        it.model.gate, it.model.finish = asyncio.Event(), "length"
        asked = [asyncio.create_task(it.ask()) for _ in range(4)]
        await until(lambda: _has_in_flight(it.gateway, 4))
        it.model.gate.set()
        told = await asyncio.gather(*asked)
        assert ([each.cache for each in told], it.model.calls) == (["miss"] * 4, 4)


async def test_one_that_waits_keeps_its_own_deadline(tmp_path: Path) -> None:
    """It is told that it passed, and the one it waited for goes on."""
    async with house(tmp_path) as it:
        it.model.gate = asyncio.Event()
        first = asyncio.create_task(it.ask())
        await until(lambda: _has_calls(it.model, 1))
        headers = {"authorization": f"Bearer {it.gateway.key}", "x-request-timeout-ms": "300"}
        body = {"model": "m", "temperature": 0, **ASKED["chat"][1]}
        async with it.session.post("/v1/chat/completions", json=body, headers=headers) as reply:
            assert (reply.status, (await reply.json())["error"]["code"]) == (504, "deadline_exceeded")
        it.model.gate.set()
        assert (await first).status == 200
        assert it.model.calls == 1


async def test_nobody_waits_for_ever(tmp_path: Path) -> None:
    """After `cache.wait_s` it asks itself."""
    async with house(tmp_path, cache={"default": True, "wait_s": 0.05}) as it:
        it.model.gate = asyncio.Event()
        asked = [asyncio.create_task(it.ask()) for _ in range(2)]
        await until(lambda: _has_calls(it.model, 2))
        it.model.gate.set()
        assert [each.status for each in await asyncio.gather(*asked)] == [200, 200]


async def test_callers_ask_for_less_only(tmp_path: Path) -> None:
    """A team that is off stays off; `no-cache` asks anew and keeps that; `no-store` keeps nothing; a ttl makes young."""
    async with house(tmp_path, cache={"default": False, "ttl_s": 100}) as it:
        assert [(await it.ask()).cache for _ in range(2)] == ["bypass", "bypass"]
        assert [(await it.ask(cache="ttl=60")).cache for _ in range(2)] == ["miss", "hit"]
        await it.gateway.accounts.update_team("team_a", cache="on")
        await until(lambda: _is_told(it, "hit"))
        assert [(await it.ask(cache=word)).cache for word in ("no-cache", "refresh", "ttl=1, no-cache")] == [
            "refresh"
        ] * 3
        assert (await it.ask()).json["choices"][0]["message"]["content"] == f"hello {it.model.calls}"
        assert [(await it.ask(seed=1, cache="no-store")).cache for _ in range(2)] == ["miss", "miss"]
        assert (await it.ask(seed=1, cache="no-store, no-cache")).cache == "bypass"
        for word in ("yes", "ttl=-1", "ttl=", "ttl=1e3", ""):
            refused = await it.ask(cache=word)
            assert (refused.status, refused.json["error"]["param"]) == (400, "x-weighbridge-cache"), word
        await it.gateway.accounts.update_team("team_a", cache="off")
        await until(lambda: _is_told(it, "bypass"))
        assert (await it.ask(cache="ttl=60")).cache == "bypass"


async def _is_told(it: House, cache: str) -> bool:
    return (await it.ask()).cache == cache


@pytest.mark.parametrize(
    ("wire", "fields"),
    [
        ("chat", {"n": 2}), ("chat", {"store": True}), ("chat", {"web_search_options": {}}),
        ("chat", {"modalities": ["text", "audio"], "audio": {"voice": "a", "format": "wav"}}), ("completions", {"prompt": ["a", "b"]}),
        ("responses", {"store": ...}), ("responses", {"store": True}), ("responses", {"background": True, "store": True}),
        ("responses", {"tools": [{"type": "web_search"}]}), ("messages", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
    ],
)  # fmt: skip
async def test_what_has_an_effect_or_is_one_of_many_is_not_for_it(
    tmp_path: Path, wire: str, fields: dict[str, Any]
) -> None:
    """Stored, background, provider-run tools, several answers, sound."""
    async with house(tmp_path) as it:
        assert (await it.ask(wire, **fields)).cache in {"bypass", ""}
        assert (await it.ask(wire, cache="ttl=60", **fields)).cache in {"bypass", ""}


async def test_a_continued_response_is_not_for_it(tmp_path: Path) -> None:
    """What it follows from is kept elsewhere, and may be deleted."""
    async with house(tmp_path) as it:
        kept = await it.ask("responses", store=True)
        more = {"previous_response_id": kept.json["id"], "store": False}
        assert [(await it.ask("responses", **more)).cache for _ in range(2)] == ["bypass", "bypass"]


async def test_a_target_that_is_no_longer_allowed_is_a_miss(tmp_path: Path) -> None:
    """Of the team or of the key: what a model said is not given to who may not ask it."""
    async with house(tmp_path, policy={"auto": ["m", "other"]}, models=lambda served: [_entry("other", served)]) as it:
        first = await it.ask(model="auto")
        chosen = first.headers["x-weighbridge-target"]
        another = "other" if chosen == "m" else "m"
        key = await it.gateway.accounts.create_key("team_a", "narrow", _pepper(it.gateway), models=[another])
        narrow = await it.ask(model="auto", key=key.plaintext)
        assert (narrow.status, narrow.cache, narrow.headers["x-weighbridge-target"]) == (200, "miss", another)


async def test_a_flush_forgets_a_teams_answers_alone(tmp_path: Path, where: RedisServer | None) -> None:
    """What was kept before is not found any more, within the time in which settings are."""
    async with house(tmp_path, redis_server=where) as it:
        theirs = await it.key_of("team_b")
        await it.ask(), await it.ask(key=theirs)
        await it.gateway.accounts.flush_cache("default", "team_a")
        await until(lambda: _is_told(it, "miss"))
        assert [(await it.ask()).cache, (await it.ask(key=theirs)).cache] == ["hit", "hit"]


async def test_no_word_of_an_answer_or_a_request_is_in_redis(tmp_path: Path, empty_redis: RedisServer) -> None:
    """Neither names nor values say anything without the gateway's own secret."""
    async with house(tmp_path, redis_server=empty_redis) as it:
        secret = "thequickbrownsecret"
        it.model.says = {"content": secret * 20}
        body: dict[str, Any] = {"messages": [{"role": "user", "content": "askedforthequickbrown"}]}
        assert [(await it.ask(**body)).cache for _ in range(2)] == ["miss", "hit"]
        held = await asyncio.to_thread(_all_of, empty_redis)
    assert b"answer:" in held
    for word in (b"thequick", b"askedfor", b"team_a"):
        assert word not in held.split(b"answer:", 1)[1], word


def _all_of(server: RedisServer) -> bytes:
    import redis

    with redis.Redis(port=server.port) as asked:
        names = sorted(asked.keys("*answer:*"))
        return b"".join(name + (asked.get(name) or b"") for name in names)


async def test_without_a_section_nothing_is_told_or_kept(tmp_path: Path) -> None:
    """A wrong header is none of its business either."""
    async with house(tmp_path, cache=None) as it:
        told = [await it.ask(cache=word) for word in (None, "ttl=60", "nonsense")]
        assert [(each.status, each.cache) for each in told] == [(200, "")] * 3
        assert it.model.calls == 3


async def test_a_redis_that_hangs_is_full_or_dies_changes_nothing_but_hits(
    tmp_path: Path, empty_redis: RedisServer
) -> None:
    """Requests are answered all the same, in the time that limits wait for it."""
    swift = {"timeout_s": 0.4, "slow_s": 0.15, "probe_s": 0.05}
    async with house(tmp_path, redis_server=empty_redis, redis=swift) as it:
        assert [(await it.ask(seed=1)).cache for _ in range(2)] == ["miss", "hit"]
        empty_redis.freeze()
        asked_at = asyncio.get_running_loop().time()
        assert [(await it.ask(seed=2)).status for _ in range(3)] == [200] * 3
        assert asyncio.get_running_loop().time() - asked_at < 5
        empty_redis.thaw()
        await until(lambda: _is_shared(it.gateway))
        empty_redis.kill()
        assert [(await it.ask(seed=3)).status for _ in range(3)] == [200] * 3
        empty_redis.start()
        await until(lambda: _is_shared(it.gateway))
        assert [(await it.ask(seed=4)).cache for _ in range(2)] == ["miss", "hit"]


async def test_a_full_redis_takes_nothing_new_and_stays_in_use(tmp_path: Path, empty_redis: RedisServer) -> None:
    """What was kept is still given, and limits are decided there as before."""
    async with house(tmp_path, redis_server=empty_redis) as it:
        assert [(await it.ask(seed=1)).cache for _ in range(2)] == ["miss", "hit"]
        empty_redis.ask("CONFIG", "SET", "maxmemory", "1")
        try:
            assert [(await it.ask(seed=number)).cache for number in (2, 2, 3, 3, 1)] == ["miss"] * 4 + ["hit"]
            assert await _is_shared(it.gateway)
        finally:
            empty_redis.ask("CONFIG", "SET", "maxmemory", "0")
        assert [(await it.ask(seed=2)).cache for _ in range(2)] == ["miss", "hit"]


async def test_redis_holds_no_more_than_is_allowed(tmp_path: Path, empty_redis: RedisServer) -> None:
    """By all processes together; what is in there goes by its age."""
    async with house(tmp_path, redis_server=empty_redis, cache={"default": True, "max_bytes": 65_536}) as it:
        it.model.says = {"content": random.Random(1).randbytes(10_000).hex()}
        told = [(await it.ask(seed=number)).cache for number in range(12) for _ in range(2)]
        assert told[:2] == ["miss", "hit"]
        assert told[-2:] == ["miss", "miss"]
        assert len(await asyncio.to_thread(_all_of, empty_redis)) < 80_000


async def test_a_process_without_redis_holds_no_more_than_is_allowed(tmp_path: Path) -> None:
    """The oldest go first."""
    async with house(tmp_path, cache={"default": True, "max_bytes": 65_536}) as it:
        it.model.says = {"content": random.Random(1).randbytes(10_000).hex()}
        told = [(await it.ask(seed=number)).cache for number in range(12) for _ in range(2)]
        assert told == ["miss", "hit"] * 12
        assert [(await it.ask(seed=number)).cache for number in (11, 0)] == ["hit", "miss"]


async def test_a_long_answer_is_not_kept(tmp_path: Path) -> None:
    """Nor does anybody wait for it longer than until that is known."""
    async with house(tmp_path, cache={"default": True, "max_answer_bytes": 2_000}) as it:
        it.model.says = {"content": "x" * 3_000}
        for stream in (False, True):
            assert [(await it.ask(stream=stream)).cache for _ in range(2)] == ["miss", "miss"]
