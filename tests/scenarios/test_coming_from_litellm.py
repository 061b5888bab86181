"""From a LiteLLM with 30 models, 20 teams and 200 keys to here: the old client goes on with its old key, and changes nothing."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import asyncpg
import openai
import pytest
from aiohttp import web
from pydantic import SecretStr
from typer.testing import CliRunner, Result

from accounts.store import AccountStore
from cost.budgets.store import BudgetStore
from gateway.cli import app
from gateway.configuration.environment import Environment
from gateway.database import make_engine
from tests.gateway.from_litellm.litellm_database import SALT_KEY, TABLES, LitellmDatabase
from tests.postgres import Postgres
from tests.processes import ROOT
from tests.providers.wires import LITELLM_WARNINGS, Provider, provider
from tests.running_gateway import PEPPER, Running, gateway_at
from tests.scenarios.test_model_facts import answer

pytestmark = LITELLM_WARNINGS

TEAMS: Final = 20
KEYS: Final = 200
MODELS: Final = 30
SECRET: Final = "sk-upstream-secret-0123456789"
MASTER: Final = "sk-master-0123456789abcdef"
CONFIG: Final = """\
model_list: []
litellm_settings:
  drop_params: true
  num_retries: 2
  fallbacks: [{model-0: [model-1]}]
router_settings:
  model_group_alias: {gpt-4: model-0}
general_settings:
  master_key: os.environ/LITELLM_MASTER_KEY
  database_url: os.environ/DATABASE_URL
  store_model_in_db: true
"""


def key_of(number: int) -> str:
    """The key that a client of LiteLLM has."""
    return f"sk-client-{number:03}-iq3LAOD-XDxZj-gSvOY"


async def fill(theirs: LitellmDatabase, base_url: str) -> None:
    """Twenty teams of ten keys each, with what people set of them, and thirty sealed models."""
    for number in range(MODELS):
        await theirs.model(
            f"model-{number}",
            {"model": f"openai/upstream-{number}", "api_base": f"{base_url}/v1", "api_key": SECRET},
            {"mode": "chat", "input_cost_per_token": 1e-06, "output_cost_per_token": 2e-06},
        )
    for team in range(TEAMS):
        bounds: dict[str, Any] = (
            {"max_budget": 100.0, "budget_duration": "30d", "spend": 1.5, "rpm_limit": 10_000} if team % 2 else {}
        )
        await theirs.add(
            "TeamTable",
            team_id=f"team-{team:02}",
            team_alias=f"Team {team}",
            models=[] if team else ["model-0", "model-1"],
            **bounds,
        )
    for number in range(KEYS):
        bounds = {"max_budget": 1.0, "spend": 2.0} if number == 13 else {"blocked": True} if number == 17 else {}
        key = key_of(number)
        await theirs.key(key, team_id=f"team-{number % TEAMS:02}", key_alias=f"key {number}", **bounds)
        if number % 5 == 0:
            await theirs.spent(datetime.now(UTC), key, 0.1, team=f"team-{number % TEAMS:02}")


@pytest.fixture
async def upstream() -> AsyncIterator[Provider]:
    """What LiteLLM called, and we call now."""

    async def whole(_request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(answer(body))

    async with provider(whole) as served:
        yield served


@pytest.fixture
async def theirs(postgres: Postgres, upstream: Provider) -> AsyncIterator[LitellmDatabase]:
    """LiteLLM's database."""
    url = await postgres.empty_database()
    connection = await asyncpg.connect(url)
    await connection.execute(TABLES)
    made = LitellmDatabase(url, connection)
    await fill(made, upstream.base_url)
    yield made
    await connection.close()
    await postgres.drop(url)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with LiteLLM's file, and an environment with nothing of ours but the pepper."""
    for name in list(os.environ):
        if name.startswith("WEIGHBRIDGE_") or name in {"DATABASE_URL", "OPENAI_API_KEY", "REDIS_URL"}:
            monkeypatch.delenv(name)
    monkeypatch.setenv("WEIGHBRIDGE_PEPPER", PEPPER)
    monkeypatch.setenv("WEIGHBRIDGE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("LITELLM_SALT_KEY", SALT_KEY)
    monkeypatch.setenv("LITELLM_MASTER_KEY", MASTER)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(CONFIG)
    return tmp_path


async def weighbridge(*words: str) -> Result:
    """Run a command, which has a loop of its own."""
    return await asyncio.to_thread(CliRunner().invoke, app, list(words))


async def ask(running: Running, key: str, model: str) -> str | None:
    """Ask as the old client does: another address, and the key that it has."""
    async with openai.AsyncOpenAI(base_url=running.base_url, api_key=key, max_retries=0) as client:
        said = await client.chat.completions.create(model=model, messages=ASK)
    return said.choices[0].message.content


async def models_of(running: Running, key: str) -> list[str]:
    """The names that a key sees."""
    async with openai.AsyncOpenAI(base_url=running.base_url, api_key=key, max_retries=0) as client:
        return [each.id for each in (await client.models.list()).data]


ASK: Final[Any] = [{"role": "user", "content": "Say hello."}]


async def test_the_old_client_goes_on(
    theirs: LitellmDatabase, upstream: Provider, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One command brings everything; with the address changed, and nothing else, each client has what it had."""
    words = ("import", "litellm", "config.yaml", "--database", theirs.url, "--secrets", "secrets.env")
    tried = await weighbridge(*words, "--dry-run")
    assert tried.exit_code == 0, tried.output
    assert not (place / "weighbridge.yaml").exists()
    done = await weighbridge(*words)
    assert done.exit_code == 0, done.output
    for secret in (SECRET, MASTER, key_of(1), SALT_KEY):
        assert secret not in done.output
        assert secret not in (place / "weighbridge.yaml").read_text()
    checked = await weighbridge("config", "check", "weighbridge.yaml")
    assert checked.exit_code == 0, checked.output
    for line in (place / "secrets.env").read_text().splitlines():
        name, _, value = line.partition("=")
        monkeypatch.setenv(name, value.strip("'"))
    again = await weighbridge(*words)
    assert again.exit_code == 0, again.output
    monkeypatch.setenv("WEIGHBRIDGE_CONFIG", "weighbridge.yaml")
    assert (await weighbridge("teams", "create", "ops")).exit_code == 0
    master = await weighbridge("keys", "import", "ops", "--role", "admin", "--from-env", "LITELLM_MASTER_KEY")
    assert master.exit_code == 0, master.output
    await _goes_on(place, upstream)


async def _goes_on(place: Path, upstream: Provider) -> None:
    environment = Environment(data_dir=place, pepper=SecretStr(PEPPER))
    engine = make_engine(f"sqlite:///{place}/weighbridge.sqlite")
    try:
        accounts = AccountStore(engine)
        assert len(await accounts.list_teams()) == TEAMS + 1
        assert len(await accounts.list_keys()) == KEYS + 1
        async with gateway_at(place / "weighbridge.yaml", environment, engine, key_of(1)) as running:
            await _each_has_what_it_had(running, upstream)
            await running.rows()
        (team,) = [
            each
            for each in await BudgetStore(engine).all()
            if each.budget.scope_id == "team-01" and each.budget.scope == "team"
        ]
        assert team.spent_nanousd > 1_500_000_000
    finally:
        await engine.dispose()


async def _each_has_what_it_had(running: Running, upstream: Provider) -> None:
    assert await ask(running, key_of(1), "model-7")
    assert await ask(running, key_of(1), "gpt-4")
    assert upstream.requests[-1].headers["Authorization"] == f"Bearer {SECRET}"
    assert (await models_of(running, key_of(1))).count("model-29") == 1
    # A team that had two models has those two.
    assert await ask(running, key_of(20), "model-1")
    with pytest.raises(openai.NotFoundError):
        await ask(running, key_of(20), "model-2")
    with pytest.raises(openai.PermissionDeniedError):
        await ask(running, key_of(17), "model-0")
    with pytest.raises(openai.APIStatusError, match="budget"):
        await ask(running, key_of(13), "model-0")
    with pytest.raises(openai.AuthenticationError):
        await ask(running, key_of(999), "model-0")
    assert await models_of(running, MASTER)


async def test_a_gateway_behind_ours_is_an_address(
    upstream: Provider, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While clients move team by team, ours calls the LiteLLM that is still there as any OpenAI-compatible host, by a key of its own."""
    (place / "config.yaml").write_text(
        "model_list:\n"
        f"  - {{model_name: '*', litellm_params: {{model: 'litellm_proxy/*', api_base: '{upstream.base_url}', api_key: os.environ/OLD_KEY}}}}\n"
    )
    monkeypatch.setenv("OLD_KEY", key_of(1))
    assert (await weighbridge("import", "litellm", "config.yaml")).exit_code == 0
    monkeypatch.setenv("WEIGHBRIDGE_CONFIG", "weighbridge.yaml")
    assert (await weighbridge("teams", "create", "payments")).exit_code == 0
    made = await weighbridge("keys", "create", "payments")
    environment = Environment(data_dir=place, pepper=SecretStr(PEPPER))
    engine = make_engine(f"sqlite:///{place}/weighbridge.sqlite")
    try:
        async with gateway_at(place / "weighbridge.yaml", environment, engine, made.stdout.strip()) as running:
            assert await ask(running, made.stdout.strip(), "gpt-4o-at-litellm")
        assert upstream.requests[-1].headers["Authorization"] == f"Bearer {key_of(1)}"
        assert upstream.bodies[-1]["model"] == "gpt-4o-at-litellm"
    finally:
        await engine.dispose()


async def test_an_import_tells_its_lines_and_nothing_else(theirs: LitellmDatabase, place: Path) -> None:
    """Two hundred hashes of the audit log stood before what was written, and hid it."""
    words = ["import", "litellm", "config.yaml", "--database", theirs.url, "--secrets", "secrets.env"]
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "gateway.cli", *words],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "wrote weighbridge.yaml" in done.stderr
    assert len(done.stderr.splitlines()) < 10, done.stderr
