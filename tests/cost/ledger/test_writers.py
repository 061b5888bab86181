"""Several processes write to the same rows of the roll-ups at once: no deadlock, and no lost update."""

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.cost.entries import reserve
from tests.cost.ledger.verified import verify
from tests.cost.ledger.writing_child import KEYS

PROCESSES, BATCHES, BATCH = 4, 25, 100


def _write_at_once(url: str) -> None:
    """All processes begin when all are ready, and none may fail."""
    numbers = [str(BATCHES), str(BATCH)]
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.cost.ledger.writing_child", url, str(place), *numbers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=Path(__file__).parents[3],
        )
        for place in range(PROCESSES)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write(b"go\n")
        child.stdin.flush()
    for child in children:
        _, errors = child.communicate(timeout=600)
        assert child.returncode == 0, errors.decode()


@pytest.mark.long
async def test_four_processes_on_one_teams_row(database_url: str, engine: AsyncEngine) -> None:
    """At full speed, with batches that overlap: every entry is counted once, and PostgreSQL saw no deadlock."""
    _write_at_once(database_url)
    attempts = BATCHES * (BATCH // 4) * (PROCESSES + 1)
    async with engine.connect() as connection:
        query = "SELECT count(*), sum(requests), sum(cost_nanousd) FROM rollup_day WHERE team_id = 'team_payments'"
        rows, requests, cost = (await connection.execute(text(query))).one()
        assert (rows, int(requests), int(cost)) == (KEYS, attempts, attempts * 1_000_000)
        spent = await connection.scalar(text("SELECT spent_nanousd FROM spend_day WHERE scope = 'team'"))
        assert spent == attempts * 1_000_000
        if engine.dialect.name == "postgresql":
            deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
            assert await connection.scalar(text(deadlocks)) == 0
    assert await verify(engine, reserve().at_us, reserve().at_us + 1) == []
