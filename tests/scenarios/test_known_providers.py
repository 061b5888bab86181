"""Providers by name, end to end: the `openai` client at one end, what a provider of that wire was sent at the other."""

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web

from tests.providers.wires import LITELLM_WARNINGS, Provider, anthropic_whole, provider
from tests.running_gateway import DEAR_PRICES, Running, running_gateway

pytestmark = LITELLM_WARNINGS

ASK: Any = [{"role": "user", "content": "Say hello."}]
USAGE = {"prompt_tokens": 1_000, "completion_tokens": 100, "total_tokens": 1_100}


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the configuration refers to."""
    monkeypatch.setenv("MADE_UP_KEY", "made-up")
    monkeypatch.setenv("CF_TOKEN", "Bearer of-the-edge")


async def whole(_request: web.Request, body: dict[str, Any]) -> web.Response:
    message = {"role": "assistant", "content": "hello"}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    return web.json_response({"id": "c", "object": "chat.completion", "created": 0, "model": body["model"], "choices": choices, "usage": USAGE})  # fmt: skip


async def never(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


def client(gateway: Running) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key=gateway.key, base_url=gateway.base_url, max_retries=0)


def path_of(served: Provider, number: int = 0) -> str:
    return served.requests[number].path


async def test_openrouter_by_name(tmp_path: Path) -> None:
    """Its models' names have slashes; key and headers are sent, and what stands in a variable is the variable's."""
    async with provider(whole) as served:
        entry = {
            "provider": "openrouter",
            "model": "qwen/qwen3-235b-a22b",
            "base_url": f"{served.base_url}/api/v1",
            "api_key": "env:MADE_UP_KEY",
            "prices": DEAR_PRICES,
            "headers": {
                "HTTP-Referer": "https://example.com",
                "X-Title": "My app",
                "cf-aig-authorization": "env:CF_TOKEN",
            },
        }
        async with running_gateway(tmp_path, [entry]) as gateway, client(gateway) as ask:
            answer = await ask.chat.completions.create(model="qwen/qwen3-235b-a22b", messages=ASK)
            rows = await gateway.rows("entry = 'settle'")
    assert answer.choices[0].message.content == "hello"
    assert path_of(served) == "/api/v1/chat/completions"
    assert served.bodies[0]["model"] == "qwen/qwen3-235b-a22b"
    sent = served.requests[0].headers
    assert sent["authorization"] == "Bearer made-up"
    assert (sent["http-referer"], sent["x-title"]) == ("https://example.com", "My app")
    assert sent["cf-aig-authorization"] == "Bearer of-the-edge"
    assert [row["provider"] for row in rows] == ["openrouter"]


async def test_any_name_below_openrouter(tmp_path: Path) -> None:
    """`openrouter/*` passes the rest on, at the maker's price; one without a price is refused with what to write."""
    async with provider(whole) as served:
        entry = {"model": "openrouter/*", "base_url": f"{served.base_url}/api/v1", "api_key": "env:MADE_UP_KEY"}
        async with running_gateway(tmp_path, [entry]) as gateway, client(gateway) as ask:
            await ask.chat.completions.create(model="openrouter/anthropic/claude-sonnet-4.5", messages=ASK)
            with pytest.raises(openai.BadRequestError, match="prices"):
                await ask.chat.completions.create(model="openrouter/qwen/qwen3-max", messages=ASK)
            (row,) = await gateway.rows("entry = 'settle'")
    assert [body["model"] for body in served.bodies] == ["anthropic/claude-sonnet-4.5"]
    assert row["cost_nanousd"] == 1_000 * 3_000 + 100 * 15_000


async def test_a_cost_that_openrouter_tells_is_booked(tmp_path: Path) -> None:
    """Of a name that no table has a price of, too, where such are to be booked."""

    async def tells(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        plain = json.loads((await whole(request, body)).text or "")
        return web.json_response(plain | {"usage": USAGE | {"cost": 0.00042, "is_byok": False}})

    async with provider(tells) as served:
        entry = {"model": "openrouter/*", "base_url": f"{served.base_url}/api/v1", "api_key": "env:MADE_UP_KEY"}
        unpriced = {"unpriced": "book"}
        async with running_gateway(tmp_path, [entry], cost=unpriced) as gateway, client(gateway) as ask:
            for name in ("openrouter/qwen/qwen3-max", "openrouter/anthropic/claude-sonnet-4.5"):
                await ask.chat.completions.create(model=name, messages=ASK)
            rows = await gateway.rows("entry = 'settle'")
    assert [row["cost_nanousd"] for row in rows] == [420_000, 420_000]


@pytest.mark.parametrize(
    "written", [{"provider": "ollama"}, {"kind": "ollama"}, {"provider": "lmstudio"}, {"provider": "llamacpp"}]
)
async def test_an_engine_of_ones_own_by_name(tmp_path: Path, written: dict[str, str]) -> None:
    """No path, no key, no price: it is called at `/v1` without a key, named and by `auto`, and costs nothing."""
    async with provider(whole) as served:
        entry = {**written, "model": "qwen3:8b", "base_url": served.base_url}
        async with running_gateway(tmp_path, [entry]) as gateway, client(gateway) as ask:
            for name in ("qwen3:8b", "auto"):
                await ask.chat.completions.create(model=name, messages=ASK)
            rows = await gateway.rows("entry = 'settle'")
    assert [path_of(served, number) for number in (0, 1)] == ["/v1/chat/completions"] * 2
    assert "authorization" not in served.requests[0].headers
    assert [(row["cost_nanousd"], row["price_version"]) for row in rows] == [(0, "own engine")] * 2


async def test_anthropic_by_name(tmp_path: Path) -> None:
    """As a kind, by habit: its own wire, key and version, and the table's price."""
    async with provider(anthropic_whole) as served:
        entry = {
            "kind": "anthropic",
            "model": "claude-sonnet-4-5",
            "base_url": served.base_url,
            "api_key": "env:MADE_UP_KEY",
            "headers": {"X-Title": "My app"},
        }
        async with running_gateway(tmp_path, [entry]) as gateway, client(gateway) as ask:
            await ask.chat.completions.create(model="claude-sonnet-4-5", messages=ASK)
            (row,) = await gateway.rows("entry = 'settle'")
    assert path_of(served) == "/v1/messages"
    assert served.bodies[0]["model"] == "claude-sonnet-4-5"
    sent = served.requests[0].headers
    assert (sent["x-api-key"], sent["anthropic-version"], sent["x-title"]) == ("made-up", "2023-06-01", "My app")
    assert row["cost_nanousd"] > 0


async def test_a_deployment_has_time_outs_of_its_own(tmp_path: Path) -> None:
    """One that is silent for longer than its own first token's time is left for the other; all others have the usual 60 s."""
    async with provider(never) as hangs, provider(whole) as served:
        common = {"kind": "openai", "api_key": "env:MADE_UP_KEY"}
        deployments = [
            common
            | {"name": "a", "base_url": f"{hangs.base_url}/v1", "weight": 1_000, "timeouts": {"first_token_s": 0.3}},
            common | {"name": "b", "base_url": f"{served.base_url}/v1", "weight": 0.001},
        ]
        entry = {"model_id": "m", "provider": "acme", "prices": DEAR_PRICES, "deployments": deployments}
        sections: dict[str, Any] = {
            "providers": {"timeouts": {"first_token_interactive_s": 60}},
            "deadlines": {"interactive": {"first_token_s": None, "answer_s": None}},
        }
        async with running_gateway(tmp_path, [entry], **sections) as gateway, client(gateway) as ask:
            async with asyncio.timeout(30):
                stream = await ask.chat.completions.create(model="m", messages=ASK, stream=True)
                text = "".join([each.choices[0].delta.content or "" async for each in stream if each.choices])
    assert text == "hello"
    assert len(hangs.bodies) == 1


async def test_no_more_go_to_a_deployment_than_it_takes_in_a_minute(tmp_path: Path) -> None:
    """The next go to the other deployment; with none left the caller is told when, and nothing was sent."""
    async with provider(whole) as small, provider(whole) as large:
        common = {"kind": "openai", "api_key": "env:MADE_UP_KEY"}
        deployments = [
            common | {"name": "a", "base_url": f"{small.base_url}/v1", "weight": 1_000, "requests_per_minute": 1},
            common | {"name": "b", "base_url": f"{large.base_url}/v1", "weight": 0.001, "requests_per_minute": 2},
        ]
        entry = {"model_id": "m", "provider": "acme", "prices": DEAR_PRICES, "deployments": deployments}
        async with running_gateway(tmp_path, [entry]) as gateway, client(gateway) as ask:
            for _ in range(2):
                await ask.chat.completions.create(model="m", messages=ASK)
            with pytest.raises(openai.RateLimitError) as refused:
                await ask.chat.completions.create(model="m", messages=ASK)
    assert (len(small.bodies), len(large.bodies)) == (1, 1)
    assert 0 < int(refused.value.response.headers["retry-after"]) <= 60
    assert "hat may be sent there in a minute is reached" in refused.value.message
