"""What a gateway knows of a model by its name, and what its parameters come to: the `openai` client at one end, what the
upstream was sent at the other.
"""

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.budgets.budget import Budget
from cost.budgets.store import BudgetStore
from cost.price_book.litellm_table import read_table
from cost.prices import nanousd
from tests.processes import until
from tests.providers.wires import LITELLM_WARNINGS, TOOLS, Provider, anthropic_whole, provider
from tests.running_gateway import DEAR_PRICES, Running, running_gateway

pytestmark = LITELLM_WARNINGS

ASK: Any = [{"role": "user", "content": "Say hello."}]
PICTURE: Any = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "What is this?"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        ],
    }
]
TOOL: Any = TOOLS
USAGE = {"prompt_tokens": 1_000, "completion_tokens": 100, "total_tokens": 1_100}


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the configuration refers to."""
    monkeypatch.setenv("MADE_UP_KEY", "made-up")


async def whole(_request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Answers as OpenAI does, in the service tier that was asked for."""
    tier = {} if body.get("service_tier") is None else {"service_tier": body["service_tier"]}
    return web.json_response(answer(body) | tier)


async def never_flex(_request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Answers in the usual tier, whatever was asked for."""
    return web.json_response(answer(body) | {"service_tier": "default"})


async def unknown_model(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    error = {"message": "The model does not exist", "type": "invalid_request_error", "code": "model_not_found"}
    return web.json_response({"error": error}, status=404)


def answer(body: dict[str, Any]) -> dict[str, Any]:
    message = {"role": "assistant", "content": "hello"}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": USAGE,
    }


def bare(model_id: str, served: Provider, **fields: Any) -> dict[str, Any]:
    """An entry with nothing but a name, who runs it, and where."""
    deployment = {"kind": "openai", "base_url": f"{served.base_url}/v1", "api_key": "env:MADE_UP_KEY"}
    return {"model_id": model_id, "provider": "openai", "deployments": [deployment], **fields}


def claude(served: Provider, **fields: Any) -> dict[str, Any]:
    deployment = {
        "kind": "litellm",
        "upstream_model": "anthropic/claude-sonnet-4-5",
        "base_url": served.base_url,
        "api_key": "env:MADE_UP_KEY",
    }
    return {"model_id": "claude", "provider": "anthropic", "deployments": [deployment], **fields}


def client(gateway: Running) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key=gateway.key, base_url=gateway.base_url, max_retries=0)


async def budget(engine: AsyncEngine, usd: str) -> None:
    await BudgetStore(engine).put(
        Budget(
            budget_id="bud_1",
            organisation_id="default",
            scope="team",
            scope_id="team_a",
            period="month",
            kind="hard",
            limit_nanousd=nanousd(usd),
        )
    )


async def test_a_known_model_needs_nothing_typed(tmp_path: Path) -> None:
    """Tools, JSON and pictures go through, and the price is the one of the table."""
    price = read_table().price("gpt-4o")
    assert price is not None
    async with provider(whole) as served, running_gateway(tmp_path, [bare("gpt-4o", served)]) as gateway:
        async with client(gateway) as ask:
            await ask.chat.completions.create(model="auto", messages=ASK, tools=TOOL)
            await ask.chat.completions.create(model="gpt-4o", messages=ASK, response_format={"type": "json_object"})
            await ask.chat.completions.create(model="gpt-4o", messages=PICTURE)
            listed = (await ask.models.retrieve("gpt-4o")).model_dump()
        rows = await gateway.rows("entry = 'settle'")
    assert {row["cost_nanousd"] for row in rows} == {price.tokens_nanousd(1_000, 100)}
    assert {row["price_version"] for row in rows} == {price.version}
    assert (listed["max_context_tokens"], listed["max_output_tokens"]) == (128_000, 16_384)
    assert listed["capabilities"] == ["json", "tools", "vision"]


async def test_an_unknown_model_may_do_everything(tmp_path: Path) -> None:
    """Nothing is refused for what nobody said; only its price is missing, which no table can guess."""
    async with provider(whole) as served:
        entry = bare("my-own-tune", served, prices=DEAR_PRICES)
        async with running_gateway(tmp_path, [entry]) as gateway, client(gateway) as ask:
            await ask.chat.completions.create(model="auto", messages=PICTURE, tools=TOOL, max_tokens=50_000)
            listed = (await ask.models.retrieve("my-own-tune")).model_dump()
    assert served.bodies[0]["max_tokens"] == 50_000
    assert (listed["max_context_tokens"], listed["max_output_tokens"]) == (None, None)


async def test_a_wildcard_stands_for_every_name_of_its_provider(tmp_path: Path) -> None:
    """Names of the table have its facts and prices, later ones pass too, and all of them share one circuit breaker."""
    price = read_table().price("gpt-4o-mini")
    assert price is not None
    sections: dict[str, Any] = {"policy": {"aliases": {"small": "openai/gpt-4o-mini"}}, "cost": {"unpriced": "book"}}
    async with provider(whole) as served:
        entry = bare("openai/*", served)
        async with running_gateway(tmp_path, [entry], **sections) as gateway, client(gateway) as ask:
            for name in ("openai/gpt-4o-mini", "small", "openai/gpt-99-preview"):
                await ask.chat.completions.create(model=name, messages=ASK)
            names = [each.id async for each in ask.models.list()]
            with pytest.raises(openai.NotFoundError):
                await ask.chat.completions.create(model="mistral/large", messages=ASK)
            rows = await gateway.rows("entry = 'settle'")
    assert [body["model"] for body in served.bodies] == ["gpt-4o-mini", "gpt-4o-mini", "gpt-99-preview"]
    assert [(row["target_id"], row["cost_nanousd"]) for row in rows] == [
        ("openai/gpt-4o-mini", price.tokens_nanousd(1_000, 100)),
        ("openai/gpt-4o-mini", price.tokens_nanousd(1_000, 100)),
        ("openai/gpt-99-preview", None),
    ]
    assert {row["deployment_id"] for row in rows} == {"openai/*/main"}
    assert "openai/gpt-4o" in names
    assert "small" in names


async def test_a_name_that_a_wildcards_provider_does_not_know_is_the_callers_fault(tmp_path: Path) -> None:
    """404 with what the upstream said, rather than our operators' fault; and nothing opens a circuit breaker."""
    async with provider(unknown_model) as served:
        entry = bare("openai/*", served)
        async with running_gateway(tmp_path, [entry], cost={"unpriced": "book"}) as gateway, client(gateway) as ask:
            for _ in range(7):
                with pytest.raises(openai.NotFoundError, match="gpt-nonsense"):
                    await ask.chat.completions.create(model="openai/gpt-nonsense", messages=ASK)


@pytest.mark.parametrize(
    ("status", "kind", "code", "told"),
    [
        (403, "invalid_request_error", "model_not_found", 404),
        (410, "invalid_request_error", "model_decommissioned", 404),
        (400, "invalid_model", None, 404),
        (400, "invalid_request_error", "model_decommissioned", 404),
        (429, "insufficient_quota", "insufficient_quota", 502),
        (403, "permission_error", None, 502),
    ],
)
async def test_a_name_that_a_provider_refuses_takes_no_other_name_away(
    tmp_path: Path, status: int, kind: str, code: str | None, told: int
) -> None:
    """However one name of a wildcard is refused, and however often: its other names are answered as before."""

    async def refusing(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if body["model"] != "gpt-nonsense":
            return await whole(request, body)
        error = {"message": "You cannot have gpt-nonsense.", "type": kind, "param": None, "code": code}
        return web.json_response({"error": error}, status=status)

    async with provider(refusing) as served:
        entry = bare("openai/*", served)
        async with running_gateway(tmp_path, [entry], cost={"unpriced": "book"}) as gateway, client(gateway) as ask:
            for _ in range(4):
                with pytest.raises(openai.APIStatusError) as refused:
                    await ask.chat.completions.create(model="openai/gpt-nonsense", messages=ASK)
                assert refused.value.status_code == told
                await ask.chat.completions.create(model="openai/gpt-4o-mini", messages=ASK)


async def test_the_rate_limit_of_one_name_keeps_nobody_from_another(tmp_path: Path) -> None:
    """Providers limit each model by itself: only the name that met its limit is left alone for as long as they say."""

    async def limited(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if body["model"] != "gpt-4.1":
            return await whole(request, body)
        error = {"message": "Rate limit reached", "type": "requests", "param": None, "code": "rate_limit_exceeded"}
        return web.json_response({"error": error}, status=429, headers={"retry-after": "200"})

    async with provider(limited) as served:
        entry = bare("openai/*", served)
        async with running_gateway(tmp_path, [entry]) as gateway, client(gateway) as ask:
            for _ in range(3):
                with pytest.raises(openai.RateLimitError) as refused:
                    await ask.chat.completions.create(model="openai/gpt-4.1", messages=ASK)
                assert 190 < int(refused.value.response.headers["retry-after"]) <= 200
                await ask.chat.completions.create(model="openai/gpt-4o-mini", messages=ASK)
    assert [body["model"] for body in served.bodies].count("gpt-4.1") == 1


@pytest.mark.parametrize("tier", ["flex", "priority"])
async def test_a_service_tier_is_asked_for_and_booked_at_its_price(tmp_path: Path, tier: str) -> None:
    """It reaches a provider that sells it."""
    price = read_table().price("gpt-5")
    assert price is not None
    assert price.flex is not None
    assert price.priority is not None
    right = price.flex if tier == "flex" else price.priority
    async with provider(whole) as served, running_gateway(tmp_path, [bare("gpt-5", served)]) as gateway:
        async with client(gateway) as ask:
            await ask.chat.completions.create(model="gpt-5", messages=ASK, service_tier=tier)  # type: ignore[call-overload]
        (row,) = await gateway.rows("entry = 'settle'")
    assert served.bodies[0]["service_tier"] == tier
    assert row["cost_nanousd"] == right.tokens_nanousd(1_000, 100) != price.tokens_nanousd(1_000, 100)


async def test_a_service_tier_that_was_not_granted_costs_the_usual(tmp_path: Path) -> None:
    """The upstream says which tier served it."""
    price = read_table().price("gpt-5")
    assert price is not None
    async with provider(never_flex) as served, running_gateway(tmp_path, [bare("gpt-5", served)]) as gateway:
        async with client(gateway) as ask:
            await ask.chat.completions.create(model="gpt-5", messages=ASK, service_tier="flex")
        (row,) = await gateway.rows("entry = 'settle'")
    assert row["cost_nanousd"] == price.tokens_nanousd(1_000, 100)


async def test_who_sells_no_service_tiers_is_not_asked_for_one(tmp_path: Path) -> None:
    """An engine of one's own, or a provider without it, would refuse the field."""
    async with provider(whole) as served:
        entry = bare("some-model", served, provider="elsewhere", prices=DEAR_PRICES)
        async with running_gateway(tmp_path, [entry]) as gateway, client(gateway) as ask:
            await ask.chat.completions.create(model="some-model", messages=ASK, service_tier="flex")
    assert "service_tier" not in served.bodies[0]


async def test_what_an_answer_can_do_without_is_dropped_and_said(tmp_path: Path) -> None:
    """Claude has no seed and no penalties: it answers without them."""
    async with (
        provider(anthropic_whole) as served,
        running_gateway(tmp_path, [claude(served)]) as gateway,
        client(gateway) as ask,
    ):
        reply = await ask.chat.completions.with_raw_response.create(
            model="auto", messages=ASK, seed=7, frequency_penalty=0.5, presence_penalty=0.5, n=1, logprobs=False
        )
    assert reply.headers["x-weighbridge-dropped"] == "frequency_penalty, presence_penalty, seed"
    assert not {"seed", "frequency_penalty", "presence_penalty", "n", "logprobs"} & served.bodies[0].keys()


async def test_what_an_answer_cannot_do_without_chooses_another_target(tmp_path: Path) -> None:
    """Two choices, or log-probabilities: Claude, though cheaper here, is passed over, and a caller who names it is told."""
    cheap = {"input": "0.1", "output": "0.1", "version": "test"}
    async with provider(anthropic_whole) as anthropic, provider(whole) as other:
        models = [claude(anthropic, prices=cheap, capability=1.0), bare("gpt-4o", other, capability=1.0)]
        async with running_gateway(tmp_path, models) as gateway, client(gateway) as ask:
            for fields in ({"n": 2}, {"logprobs": True}):
                reply = await ask.chat.completions.with_raw_response.create(model="auto", messages=ASK, **fields)
                assert reply.headers["x-weighbridge-target"] == "gpt-4o"
            reply = await ask.chat.completions.with_raw_response.create(model="auto", messages=ASK)
            assert reply.headers["x-weighbridge-target"] == "claude"
            with pytest.raises(openai.BadRequestError, match="cannot take n"):
                await ask.chat.completions.create(model="claude", messages=ASK, n=2)


async def test_a_model_that_reasons_is_spared_what_it_refuses(tmp_path: Path) -> None:
    """No temperature, and the newer name for the longest answer."""
    async with (
        provider(whole) as served,
        running_gateway(tmp_path, [bare("gpt-5-mini", served)]) as gateway,
        client(gateway) as ask,
    ):
        reply = await ask.chat.completions.with_raw_response.create(
            model="auto", messages=ASK, temperature=0.2, max_tokens=500
        )
    assert reply.headers["x-weighbridge-dropped"] == "temperature"
    assert "temperature" not in served.bodies[0]
    assert "max_tokens" not in served.bodies[0]
    assert served.bodies[0]["max_completion_tokens"] == 500


async def test_the_longest_answer_counts_in_choosing_and_in_calling(tmp_path: Path) -> None:
    """Who cannot write as much is passed over; where nobody can, the limit that is sent is what the target can."""
    cheap = {"input": "0.1", "output": "0.1", "version": "test"}
    async with provider(whole) as served:
        models = [
            bare("short", served, prices=cheap, max_output_tokens=1_000, capability=1.0),
            bare("long", served, prices=DEAR_PRICES, max_output_tokens=8_000, capability=1.0),
        ]
        async with running_gateway(tmp_path, models) as gateway, client(gateway) as ask:
            for wanted in (500, 5_000, 64_000):
                await ask.chat.completions.create(model="auto", messages=ASK, max_tokens=wanted)
            await ask.chat.completions.create(model="short", messages=ASK, max_completion_tokens=2_000)
    sent = [(body["model"], body.get("max_tokens"), body.get("max_completion_tokens")) for body in served.bodies]
    assert sent[:2] == [("short", 500, None), ("long", 5_000, None)]
    assert sent[2] in {("short", 1_000, None), ("long", 8_000, None)}
    assert sent[3] == ("short", None, 1_000)


async def test_a_hard_budget_bounds_what_the_upstream_may_write(tmp_path: Path) -> None:
    """Without a limit of the caller's, what is held for the answer is what it is asked to end at."""
    async with provider(whole) as served:
        entry = bare("some-model", served, provider="elsewhere", prices=DEAR_PRICES)
        async with running_gateway(tmp_path, [entry]) as gateway, client(gateway) as ask:
            await ask.chat.completions.create(model="some-model", messages=ASK)
            await budget(gateway.engine, "5")
            # The process hears of a new budget at its next look.
            await until(lambda: _is_bounded(ask, served))
    assert "max_tokens" not in served.bodies[0]
    assert served.bodies[-1]["max_tokens"] == 4_096


async def _is_bounded(ask: openai.AsyncOpenAI, served: Provider) -> bool:
    await ask.chat.completions.create(model="some-model", messages=ASK)
    return "max_tokens" in served.bodies[-1]


async def test_an_alias_may_stand_for_auto(tmp_path: Path) -> None:
    """The gateway chooses under that name, among the alias's own targets, and the name is what is booked."""
    dear, cheap = DEAR_PRICES, {"input": "0.1", "output": "0.1", "version": "test"}
    async with provider(whole) as served:
        models = [bare("small", served, prices=cheap, capability=0.5), bare("big", served, prices=dear, capability=1.0)]
        policy = {"aliases": {"smart": "auto", "best": {"auto": ["big"], "quality_floor": 1.0}}}
        async with running_gateway(tmp_path, models, policy=policy) as gateway, client(gateway) as ask:
            for name in ("smart", "best"):
                reply = await ask.chat.completions.with_raw_response.create(model=name, messages=ASK)
                assert reply.headers["x-weighbridge-complexity"]
            names = [each.id async for each in ask.models.list()]
            rows = await gateway.rows("entry = 'settle'")
    assert [(row["alias"], row["target_id"]) for row in rows] == [("smart", "small"), ("best", "big")]
    assert {"smart", "best"} <= set(names)


async def boasting(_request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Answers with one word, and claims a quarter of a million tokens for it."""
    usage = {"prompt_tokens": 10, "completion_tokens": 250_000, "total_tokens": 250_010}
    return web.json_response(answer(body) | {"usage": usage})


@pytest.mark.parametrize("hard", [True, False])
async def test_a_claim_beyond_what_was_asked_for_is_booked(tmp_path: Path, *, hard: bool) -> None:
    """As far as the model can write so much: its provider will bill it. A hard budget asks the model no more."""
    async with provider(boasting) as served:
        entry = bare("some-model", served, provider="elsewhere", prices=DEAR_PRICES, max_context_tokens=200_000)
        async with running_gateway(tmp_path, [entry]) as gateway, client(gateway) as ask:
            if hard:
                await budget(gateway.engine, "100000.00")
            await ask.chat.completions.create(model="some-model", messages=ASK, max_tokens=10)
            row = (await gateway.rows("entry = 'settle'"))[0]
            if hard:
                # The process learns of the budget after its first reservation; the answer after that is the one that is noticed.
                async with asyncio.timeout(60):
                    refused = ""
                    while not refused:
                        try:
                            await ask.chat.completions.create(model="some-model", messages=ASK, max_tokens=10)
                        except openai.BadRequestError as error:
                            refused = str(error)
                assert "wrote 250,000 tokens where 10 were asked for" in refused
    assert (row["flags"], row["usage_source"]) == ('["usage_disputed"]', "upstream")
    assert row["output_tokens"] == 200_000
