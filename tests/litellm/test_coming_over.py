"""The way over from a LiteLLM that wrote its database itself: models, teams, people, keys, limits, budgets and what was spent."""

import asyncio
import os
from pathlib import Path
from typing import Any, Final

import asyncpg
import litellm
import openai
import pytest
from pydantic import SecretStr

from accounts.store import AccountStore
from cost.budgets.store import BudgetStore
from gateway.configuration.environment import Environment
from gateway.database import make_engine
from tests.litellm.proxy import MASTER, SALT, LitellmProxy
from tests.providers.wires import LITELLM_WARNINGS, Provider
from tests.running_gateway import PEPPER, Running, gateway_at
from tests.scenarios.test_coming_from_litellm import weighbridge

pytestmark = LITELLM_WARNINGS

MODELS: Final = 30
TEAMS: Final = 20
KEYS: Final = 200
AT_ONCE: Final = 8
SECRET: Final = "sk-upstream-0123456789"
ASK: Final[Any] = [{"role": "user", "content": "Say hello."}]


async def fill(proxy: LitellmProxy, upstream: Provider) -> dict[int, str]:
    """Make all of it by LiteLLM's routes, and have some keys spend; returns the keys by number."""
    keys: dict[int, str] = {}
    busy = asyncio.Semaphore(AT_ONCE)

    async def post(path: str, body: dict[str, Any]) -> Any:
        async with busy:
            return await proxy.call("POST", path, json=body)

    async def key(number: int) -> None:
        body: dict[str, Any] = {"team_id": f"team-{number % TEAMS:02}", "key_alias": f"key {number}"}
        if number == 13:
            body |= {"max_budget": 0.00001}
        if number == 21:
            body |= {"rpm_limit": 1}
        made = await post("/key/generate", body)
        keys[number] = made["key"]

    # What stands in `model_info` of a model of the database, LiteLLM does not count with.
    costs = {"input_cost_per_token": 1e-06, "output_cost_per_token": 2e-06}
    params = {"api_base": f"{upstream.base_url}/v1", "api_key": SECRET, **costs}
    await asyncio.gather(
        *(
            post(
                "/model/new",
                {
                    "model_name": f"model-{each}",
                    "litellm_params": {"model": f"openai/up-{each}"} | params,
                    "model_info": {"mode": "chat"},
                },
            )
            for each in range(MODELS)
        )
    )
    for team in range(TEAMS):
        bounds: dict[str, Any] = (
            {"max_budget": 100.0, "budget_duration": "30d", "rpm_limit": 10_000} if team % 2 else {}
        )
        models = {} if team else {"models": ["model-0", "model-1"]}
        await post("/team/new", {"team_id": f"team-{team:02}", "team_alias": f"Team {team}"} | bounds | models)
    await post(
        "/user/new",
        {"user_email": "ada@example.com", "user_role": "proxy_admin", "user_id": "ada", "auto_create_key": False},
    )
    await asyncio.gather(*(key(number) for number in range(KEYS)))
    await post("/key/block", {"key": keys[17]})
    for number in (1, 13):
        await ask(f"{proxy.url}/v1", keys[number], "model-1")
    return keys


async def ask(base_url: str, key: str, model: str) -> str | None:
    """Ask as an old client does."""
    async with openai.AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0) as client:
        said = await client.chat.completions.create(model=model, messages=ASK)
    return said.choices[0].message.content


async def spent(proxy: LitellmProxy, key: str) -> float:
    """What LiteLLM has written down for a key, once it has; it does so every few seconds."""
    for _ in range(600):
        found = (await proxy.call("GET", "/key/info", params={"key": key}))["info"]["spend"]
        if found and await _days(proxy):
            return float(found)
        await asyncio.sleep(0.5)
    raise AssertionError("LiteLLM wrote down nothing")


async def _days(proxy: LitellmProxy) -> int:
    connection = await asyncpg.connect(proxy.database)
    try:
        return int(
            await connection.fetchval("""SELECT count(*) FROM "LiteLLM_DailyTeamSpend" WHERE team_id = 'team-13'""")
        )
    finally:
        await connection.close()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder and an environment with nothing of ours but the pepper."""
    for name in list(os.environ):
        if name.startswith("WEIGHBRIDGE_") or name in {"DATABASE_URL", "OPENAI_API_KEY", "REDIS_URL"}:
            monkeypatch.delenv(name)
    monkeypatch.setenv("WEIGHBRIDGE_PEPPER", PEPPER)
    monkeypatch.setenv("WEIGHBRIDGE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("LITELLM_SALT_KEY", SALT)
    monkeypatch.setenv("LITELLM_MASTER_KEY", MASTER)
    # What entries without a key of their own are called with.
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none-0123456789")
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def test_the_old_client_goes_on(
    proxy: LitellmProxy, upstream: Provider, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a real LiteLLM wrote is brought over by one command, after which its keys, limits and budgets are as they were."""
    keys = await fill(proxy, upstream)
    theirs = await spent(proxy, keys[13])
    words = ("import", "litellm", str(proxy.config), "--database", proxy.database, "--secrets", "secrets.env")
    done = await weighbridge(*words)
    assert "Traceback" not in done.output, done.output
    assert keys[1] not in done.output
    for line in (place / "secrets.env").read_text().splitlines():
        name, _, value = line.partition("=")
        monkeypatch.setenv(name, value.strip("'"))
    monkeypatch.setenv("WEIGHBRIDGE_CONFIG", "weighbridge.yaml")
    checked = await weighbridge("config", "check", "weighbridge.yaml")
    assert checked.exit_code == 0, checked.output
    engine = make_engine(f"sqlite:///{place}/weighbridge.sqlite")
    try:
        accounts = AccountStore(engine)
        assert {f"team-{each:02}" for each in range(TEAMS)} <= {each.team_id for each in await accounts.list_teams()}
        assert len([each for each in await accounts.list_keys() if each.name.startswith("key ")]) == KEYS
        (budget,) = [
            each
            for each in await BudgetStore(engine).all()
            if each.budget.scope == "key" and each.budget.limit_nanousd == 10_000
        ]
        assert budget.spent_nanousd == round(theirs * 1e9)
        environment = Environment(data_dir=place, pepper=SecretStr(PEPPER))
        async with gateway_at(place / "weighbridge.yaml", environment, engine, keys[1]) as running:
            await _each_has_what_it_had(running, upstream, keys)
    finally:
        await engine.dispose()


async def _each_has_what_it_had(running: Running, upstream: Provider, keys: dict[int, str]) -> None:
    for base_url in (running.base_url, running.url):
        # LiteLLM's own documentation leaves /v1 out.
        assert await ask(base_url, keys[1], "model-7") == "hello there"
    assert upstream.requests[-1].headers["Authorization"] == f"Bearer {SECRET}"
    assert upstream.bodies[-1]["model"] == "up-7"
    said = await litellm.acompletion(
        model="litellm_proxy/model-29", messages=ASK, api_base=running.url, api_key=keys[199], num_retries=0
    )
    assert said.choices[0].message.content == "hello there"
    assert await ask(running.base_url, keys[20], "model-1")
    with pytest.raises(openai.NotFoundError):
        await ask(running.base_url, keys[20], "model-2")
    with pytest.raises(openai.PermissionDeniedError):
        await ask(running.base_url, keys[17], "model-0")
    with pytest.raises(openai.APIStatusError, match="budget"):
        await ask(running.base_url, keys[13], "model-0")
    await ask(running.base_url, keys[21], "model-0")
    with pytest.raises(openai.RateLimitError):
        await ask(running.base_url, keys[21], "model-0")
    async with openai.AsyncOpenAI(base_url=running.url, api_key=keys[1], max_retries=0) as client:
        names = [each.id for each in (await client.models.list()).data]
    assert {f"model-{each}" for each in range(MODELS)} <= set(names)
