"""A key that may use some of its team's models only: what it is listed, what it may name, and what `auto` chooses for it."""

from pathlib import Path
from typing import Any

import openai
import pytest

from accounts.keys import Pepper
from accounts.pepper_file import pepper_id
from tests.processes import until
from tests.running_gateway import DEAR_PRICES, PEPPER, Running, model, running_gateway
from tests.scenarios.conftest import Upstream

ASK: Any = [{"role": "user", "content": "Say hello."}]
CHEAP = {"input": "0.1", "output": "0.1", "version": "test"}


def client(gateway: Running, key: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key=key, base_url=gateway.base_url, max_retries=0)


async def key_for(gateway: Running, models: list[str] | None) -> str:
    secret = PEPPER.encode()
    pepper = Pepper(id=pepper_id(secret), secret=secret)
    return (await gateway.accounts.create_key("team_a", "some", pepper, models=models)).plaintext


async def test_a_key_uses_its_own_models_only(tmp_path: Path, upstream: Upstream) -> None:
    """The others are refused by name, not listed, and never chosen, though they cost less."""
    models = [
        model("small", [upstream.deployment("ok")], prices=CHEAP),
        model("big", [upstream.deployment("ok")], prices=DEAR_PRICES),
        model("free/*", [upstream.deployment("ok")]),
    ]
    async with running_gateway(tmp_path, models) as gateway:
        async with client(gateway, await key_for(gateway, ["big", "free/ok"])) as ask:
            reply = await ask.chat.completions.with_raw_response.create(model="auto", messages=ASK)
            assert reply.headers["x-weighbridge-target"] == "big"
            await ask.chat.completions.create(model="free/ok", messages=ASK)
            for name in ("small", "free/other"):
                with pytest.raises(openai.NotFoundError, match="this key may not use it"):
                    await ask.chat.completions.create(model=name, messages=ASK)
            assert [each.id async for each in ask.models.list()] == ["auto", "big"]
        async with client(gateway, await key_for(gateway, None)) as ask:
            await ask.chat.completions.create(model="small", messages=ASK)


async def test_a_change_reaches_every_server_within_seconds(tmp_path: Path, upstream: Upstream) -> None:
    """As a revocation does; a team's own bounds hold beside it."""
    models = [model(name, [upstream.deployment("ok")]) for name in ("a", "b", "c")]
    async with running_gateway(tmp_path, models, accounts={"fresh_s": 0.05}) as gateway:
        key = await key_for(gateway, ["a"])
        key_id = next(each.key_id for each in await gateway.accounts.list_keys() if each.models == ["a"])
        async with client(gateway, key) as ask:
            await ask.chat.completions.create(model="a", messages=ASK)
            await gateway.accounts.update_team("team_a", allowed_models=["b", "c"])
            await gateway.accounts.set_key_models("default", "team_a", key_id, ["a", "b"])

            async def follows() -> bool:
                return [each.id async for each in ask.models.list()] == ["auto", "b"]

            await until(follows)
