"""The database goes away while pages are open: people are told, and operators see what is wrong."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
import yaml
from pydantic import SecretStr

from accounts.people.sessions import REMEMBERED_US, Sessions
from accounts.store import AccountStore
from gateway.configuration.environment import Environment
from gateway.database import make_engine, migrate
from tests.postgres import postgres_binaries, running_postgres
from tests.running_gateway import PEPPER, gateway_at, model
from tests.signed_in import Browser, signed_in

OPERATIONS: Final = tuple(
    f"/dashboard/operations{place}" for place in ("", "/targets", "/pools", "/queues", "/classifier", "/config")
)


@contextlib.asynccontextmanager
async def left_alone(folder: Path) -> AsyncIterator[tuple[Browser, Browser, Sessions]]:
    """An administrator and an operator whose gateway's PostgreSQL has stopped since they looked last."""
    binaries = postgres_binaries()
    assert binaries is not None, "this test needs a PostgreSQL server; `make install` brings one"
    async with contextlib.AsyncExitStack() as stack:
        with running_postgres(binaries) as server:
            url = await server.empty_database()
            config = folder / "gateway.yaml"
            scripted = {"name": "a", "kind": "scripted", "upstream_model": "ok"}
            journal = {"journal_dir": str(folder / "journal")}
            config.write_text(yaml.safe_dump({"providers": {"models": [model("only", [scripted])]}, "cost": journal}))
            environment = Environment(data_dir=folder, pepper=SecretStr(PEPPER), database_url=SecretStr(url))
            engine = make_engine(environment.database())
            stack.push_async_callback(engine.dispose)
            await migrate(engine)
            await AccountStore(engine).create_team("team_a")
            running = await stack.enter_async_context(gateway_at(config, environment, engine, ""))
            admin = await stack.enter_async_context(signed_in(running, "ann@example.com", role="admin"))
            operator = await stack.enter_async_context(signed_in(running, "ola@example.com", role="operator"))
            for browser, path in ((admin, "/dashboard/teams/team_a"), (operator, "/dashboard/operations")):
                assert (await browser.get(path)).status == 200
        yield admin, operator, running.parts.identity.sessions


async def test_pages_say_so_and_operators_still_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """503 with what to do, and not a failure of ours; operators' pages go on for a while, and change nothing."""
    async with left_alone(tmp_path) as (admin, operator, sessions):
        for path in (
            "/dashboard",
            "/dashboard/sign-in",
            "/dashboard/teams/team_a",
            "/dashboard/finance",
            "/dashboard/audit",
        ):
            for browser in (admin, operator):
                answer = await browser.get(path)
                assert (answer.status, answer.headers.get("retry-after")) == (503, "1"), path
                assert "The database does not answer" in answer.text
                assert "<h1" in answer.text
        told = await admin.post("/dashboard/teams", {"team_id": "new"})
        assert told.status == 503
        for path in OPERATIONS:
            assert (await operator.get(path)).status == 200, path
        page = (await operator.get(OPERATIONS[0])).text
        assert "database" in page.partition("Incidents (")[2][:2_000].lower()
        assert (await operator.post("/dashboard/operations/pools/p/replicas/r/drain")).status == 503
        operator.cookie = "a" * 43
        assert (await operator.get(OPERATIONS[0])).status == 503
        now_us = sessions._now_us() + REMEMBERED_US
        monkeypatch.setattr(sessions, "_now_us", lambda: now_us)
        assert (await admin.get(OPERATIONS[0])).status == 503, "not for ever"
