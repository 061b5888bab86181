"""`weighbridge events`: the schema, how far each sink was told, and days told once more."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import yaml
from sqlalchemy.ext.asyncio import AsyncEngine
from typer.testing import CliRunner, Result

from cost.events.event import schema
from cost.events.outbox import EventOutbox
from cost.ledger.store import LedgerStore
from gateway.cli import app
from gateway.database import make_engine
from tests.cost.entries import settle
from tests.sqlite import newest_sqlite


@pytest.fixture(autouse=True)
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A configuration with one sink, and a database."""
    for name in list(os.environ):
        if name.startswith("WEIGHBRIDGE_") or name == "DATABASE_URL":
            monkeypatch.delenv(name)
    deployment = {"name": "a", "kind": "scripted", "upstream_model": "ok"}
    model = {"model_id": "m", "provider": "p", "max_context_tokens": 8000, "deployments": [deployment]}
    lake = {"name": "lake", "kind": "http", "url": "https://example.com/a-token", "token": "env:LAKE"}
    config = {
        "providers": {"models": [{**model, "prices": {"input": "1", "output": "1"}}]},
        "events": {"sinks": [lake]},
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("WEIGHBRIDGE_CONFIG", str(tmp_path / "c.yaml"))
    monkeypatch.setenv("WEIGHBRIDGE_DATA_DIR", str(tmp_path / "data"))
    return newest_sqlite(tmp_path / "data" / "weighbridge.sqlite")


def events(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["events", *arguments])


def within(url: str, act: Callable[[AsyncEngine], Awaitable[None]]) -> None:
    async def run() -> None:
        engine = make_engine(url)
        await act(engine)
        await engine.dispose()

    asyncio.run(run())


def test_the_schema_is_printed() -> None:
    """As it is published."""
    assert json.loads(events("schema").stdout) == schema()


def test_sinks_are_listed_with_what_waits(url: str) -> None:
    """Also one that was never told, and one that is configured no more; neither address nor secret is shown."""
    assert json.loads(events("list", "--json").stdout) == [
        {"name": "lake", "kind": "http", "sequence": None, "waiting": None, "moved": None}
    ]

    async def tell(engine: AsyncEngine) -> None:
        outbox = EventOutbox(engine)
        await outbox.begin()
        for each in ("lake", "old"):
            await outbox.place(each)
        await LedgerStore(engine).insert([settle("a"), settle("b")])
        await outbox.number()
        await outbox.move("lake", 0, 1)

    within(url, tell)
    done = events("list")
    rows = [line.split()[:5] for line in done.stdout.splitlines()[1:]]
    assert rows[0][:4] == ["lake", "http", "1", "1"]
    assert rows[1] == ["old", "not", "configured", "0", "2"]
    assert "a-token" not in done.output


def test_days_are_told_again(url: str) -> None:
    """While somebody tells events; entries from before there were any, too."""

    async def book(engine: AsyncEngine) -> None:
        await LedgerStore(engine).insert([settle("a"), settle("b")])

    within(url, book)
    days = ("--from", "2026-04-04", "--to", "2026-04-05")
    refused = events("replay", *days)
    assert (refused.exit_code, "nobody tells events" in refused.stderr) == (1, True)
    within(url, lambda engine: EventOutbox(engine).begin())
    assert events("replay", *days).stdout == "2 entries will be told again\n"
    assert events("replay", *days).stdout == "0 entries will be told again\n"
    assert events("replay", "--from", "2026-04-05", "--to", "2026-04-04").exit_code == 2
    assert events("replay", "--from", "2026-01-01", "--to", "2026-04-04").exit_code == 2
