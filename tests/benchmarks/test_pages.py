"""The benchmark of pages: it opens every page that there is, over a company as large as asked."""

import argparse
import asyncio
from pathlib import Path

import pytest
import yaml
from sqlalchemy import Connection, text

from benchmarks.pages import FOUND_ON, NOT_PAGES, PAGES, filled, grown, routes_left_out, with_models
from cost.ledger.verify import check
from cost.times import DAY_US, day_of, wall_us
from gateway.database import make_engine
from gateway.demo.history import DAYS
from gateway.demo.sample_config import Addresses, write_sample_config
from tests.browser.serving import write_history
from tests.dashboards.pages.routes_table import RIGHTS

ARGUMENTS = argparse.Namespace(rows=5_000, audit=200, keys=60, teams=20, models=12)


def test_it_opens_every_page() -> None:
    """A route without an address of it, or without a reason why not, is missing here."""
    paths = [*PAGES, *(f"{beginning}1" for _, beginning in FOUND_ON)]
    assert routes_left_out(paths) == []
    assert {f"GET {route}" for route in NOT_PAGES} <= set(RIGHTS)


def test_a_route_without_an_address_is_told() -> None:
    """Also one that differs from others in its end alone."""
    paths = [path for path in PAGES if not path.startswith("/dashboard/operations/pools/")]
    assert "/dashboard/operations/pools/{pool}" in routes_left_out(paths)


def test_added_models_are_configured_and_open_to_auto(tmp_path: Path) -> None:
    """As many as asked, the sample's among them."""
    config = write_sample_config(tmp_path, Addresses(), day_of(wall_us()))
    with_models(config, ARGUMENTS.models)
    told = yaml.safe_load(config.read_text())
    names = [each["model_id"] for each in told["providers"]["models"]]
    assert len(names) == len(set(names)) == ARGUMENTS.models
    assert {name for name in names if name.startswith("model-")} < set(told["policy"]["auto"])


@pytest.mark.long
async def test_roll_ups_are_those_of_the_copied_ledger(tmp_path: Path) -> None:
    """And every copied request is of a team and a key that there are."""
    await asyncio.to_thread(write_history, tmp_path, 300)
    config = write_sample_config(tmp_path, Addresses(), day_of(wall_us() - DAYS * DAY_US))
    engine = make_engine(f"sqlite:///{tmp_path}/sample.sqlite")
    try:
        async with engine.begin() as connection:
            await connection.run_sync(grown, ARGUMENTS.keys, ARGUMENTS.teams)
            await connection.run_sync(grown, ARGUMENTS.keys, ARGUMENTS.teams)
        await filled(engine, config, ARGUMENTS, lambda _: None)
        async with engine.connect() as connection:
            assert await connection.run_sync(_strangers) == 0
            assert await connection.run_sync(_count, "ledger_entry") >= ARGUMENTS.rows
            assert await connection.run_sync(_count, "team") > ARGUMENTS.teams
        now_us = wall_us()
        found = await check(engine, now_us - (DAYS + 3) * DAY_US, now_us + DAY_US, now_us=now_us)
        assert found.differences == 0
    finally:
        await engine.dispose()


def _strangers(connection: Connection) -> int:
    """Return the rows of callers whose key is not of their team."""
    owned = (
        "SELECT 1 FROM api_key WHERE api_key.key_id = ledger_entry.key_id AND api_key.team_id = ledger_entry.team_id"
    )
    return int(
        connection.scalar(
            text(f"SELECT count(*) FROM ledger_entry WHERE boot_id <> 'books' AND NOT EXISTS ({owned})")  # noqa: S608
        )
        or 0
    )


def _count(connection: Connection, table: str) -> int:
    return int(connection.scalar(text(f"SELECT count(*) FROM {table}")) or 0)  # noqa: S608  Our own names.
