"""The page of caches: reads are from the books, losses told with what to change, and only administrators forget answers."""

import csv
import io
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, get_args

import pytest
from sqlalchemy import text as sql

from cost.times import DAY_US, wall_us
from dashboards.caching.causes import CAUSES
from proxy.settle.prompt_caches.losses import Cause
from proxy.settle.prompt_caches.store import CacheLossStore
from proxy.settle.prompt_caches.watch import CacheDelta
from tests.dashboards.pages.teams import asked, keep, running_teams
from tests.running_gateway import Running
from tests.signed_in import Browser, signed_in

PAGE: Final = "/dashboard/teams/team_a/caching"


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with running_teams(tmp_path, cache={"default": True}) as found:
        yield found


@pytest.fixture
async def tess(running: Running) -> AsyncIterator[Browser]:
    async with signed_in(running, "tess@example.com", teams={"team_a": "admin"}) as found:
        yield found


def lost(cause: str, **changes: Any) -> CacheDelta:
    now_us = wall_us()
    usual = {
        "organisation_id": "default",
        "team_id": "team_a",
        "target_id": "small",
        "day_us": now_us - now_us % DAY_US,
    }
    amounts = {"requests": 3, "tokens": 30_000, "nanousd": 81_000_000, "unpriced": 0}
    return CacheDelta(**{**usual, "cause": cause, **amounts, **changes})


def figure(page: str, label: str) -> str:
    """Return what a tile says, and what stands below it."""
    tile = page.partition(f'<div class="label">{label}</div>')[2].partition("<section")[0]
    tile = tile.partition('<div class="figure')[0]
    return " ".join(re.sub(r"<[^>]*>", " ", tile).split())


def test_each_cause_has_words() -> None:
    assert set(CAUSES) == set(get_args(Cause))
    assert all(each.title and each.advice.endswith(".") for each in CAUSES.values())


async def test_what_was_lost_is_told_with_what_to_change(running: Running, tess: Browser) -> None:
    """The dearest first, unknown prices as unknown, and nothing of another team or organisation."""
    store = CacheLossStore(running.engine)
    await store.add(
        [
            lost("looked", requests=40),
            lost("skipped", requests=2),
            lost("time"),
            lost("time", target_id="large", nanousd=9_000_000),
            lost("tools_order", unpriced=3, nanousd=0),
            lost("short", nanousd=0),
            lost("history", nanousd=900_000_000, day_us=0),
            lost("moved", team_id="team_b", nanousd=500_000_000),
            lost("late", organisation_id="fjord", team_id="fjord-lab"),
        ]
    )
    page = await tess.get(PAGE)
    assert page.status == 200, page.text[:500]
    assert "40 prompts looked at, 2 more were not" in page.text
    assert "some models have no price" in page.text
    assert CAUSES["time"].advice in page.text
    rows = list(csv.DictReader(io.StringIO((await tess.get(f"{PAGE}?format=csv&table=lost")).text)))
    assert [(row["cause"], row["requests"], row["lost_usd"], row["models"]) for row in rows] == [
        (CAUSES["time"].title, "6", "0.090000000", "small, large"),
        (CAUSES["tools_order"].title, "3", "", "small"),
        (CAUSES["short"].title, "3", "", "small"),
    ]


async def test_what_was_read_is_from_the_books(running: Running, tess: Browser) -> None:
    """At the price of a fresh token of the same time; without one it is unknown."""
    tokens = {"input_tokens": 10_000, "cached_input_tokens": 6_000, "cache_write_tokens": 1_000}
    money = {
        "input_nanousd": 3_000_000,
        "cached_input_nanousd": 600_000,
        "cache_write_nanousd": 1_250_000,
        "output_nanousd": 0,
    }
    whole = {
        "input_tokens": 500,
        "cached_input_tokens": 500,
        "input_nanousd": 0,
        "cached_input_nanousd": 50_000,
        "output_nanousd": 0,
    }
    await keep(
        running,
        [
            asked("one", **tokens, **money, cost_nanousd=sum(money.values())),
            asked("two", target_id="large", **whole, cost_nanousd=50_000),
        ],
    )
    rows = list(csv.DictReader(io.StringIO((await tess.get(f"{PAGE}?format=csv&table=read")).text)))
    assert [(row["model"], row["cached"], row["saved_usd"], row["written"], row["extra_usd"]) for row in rows] == [
        ("small", "6000", "0.005400000", "1000", "0.000250000"),
        ("large", "500", "", "0", "0.000000000"),
    ]
    told = (await tess.get(PAGE)).text
    assert figure(told, "Saved by prompt caches") == "$0.0052 some models not known"
    assert figure(told, "Read from caches") == "61.9 % of prompt tokens at providers"


async def test_what_writing_cost_is_taken_off(running: Running, tess: Browser) -> None:
    """A cache that is written and seldom read costs more than it saves: the figure is below nothing."""
    money = {"input_nanousd": 3_000_000, "cached_input_nanousd": 90_000, "cache_write_nanousd": 12_500_000}
    tokens = {"input_tokens": 13_900, "cached_input_tokens": 900, "cache_write_tokens": 10_000}
    await keep(
        running, [asked("one", **tokens, **money, output_nanousd=0, cost_nanousd=sum(money.values()), output_tokens=0)]
    )
    assert figure((await tess.get(PAGE)).text, "Saved by prompt caches") == "-$0.0017 in 30 days, less paid for writing"


async def test_our_own_engines_saved_no_bill(tmp_path: Path) -> None:
    """Their hours are paid for anyway: the row stands in the table, and in no figure beside what was lost at providers."""
    pool = {
        "name": "l40s",
        "targets": ["small"],
        "usd_per_gpu_hour": 1,
        "organisation": "default",
        "seconds_per_million": {"input": 5, "output": 20},
    }
    async with running_teams(tmp_path, cost={"pools": [pool]}) as running:
        rows = {"input_tokens": 1_000, "cached_input_tokens": 500, "input_nanousd": 5_000_000}
        cheaper = {**rows, "cached_input_nanousd": 100_000, "output_nanousd": 0, "cost_nanousd": 5_100_000}
        await keep(running, [asked("own", **cheaper), asked("bought", target_id="large", **cheaper)])
        async with signed_in(running, "tess@example.com", teams={"team_a": "admin"}) as tess:
            table = await tess.get(f"{PAGE}?format=csv&table=read")
            told = (await tess.get(PAGE)).text
    found = {row["model"]: (row["whose"], row["saved_usd"]) for row in csv.DictReader(io.StringIO(table.text))}
    assert found == {"small": ("Our own GPUs", ""), "large": ("A provider", "0.004900000")}
    assert figure(told, "Saved by prompt caches") == "$0.0049 in 30 days"
    assert figure(told, "Read from caches") == "50.0 % of prompt tokens at providers"


async def test_what_nobody_looked_at_is_not_known(tess: Browser) -> None:
    """No line says that nothing was lost where no prompt was compared."""
    told = (await tess.get(PAGE)).text
    assert figure(told, "Lost") == "— nothing was looked at"
    assert "No prompt was looked at in this time, so what was lost is not known." in told
    assert "0 prompts" not in told


async def test_an_administrator_forgets_what_is_kept(running: Running, tess: Browser) -> None:
    """With an entry in the audit log; a member is shown no button, and refused."""
    before = (await running.accounts.get_team("team_a")).settings.cache_epoch
    assert f'action="{PAGE}/flush"' in (await tess.get(PAGE)).text
    answer = await tess.post(f"{PAGE}/flush", {})
    assert answer.status == 303
    assert (await running.accounts.get_team("team_a")).settings.cache_epoch == before + 1
    async with running.engine.connect() as connection:
        assert (
            await connection.execute(sql("SELECT action FROM audit_entry ORDER BY number DESC LIMIT 1"))
        ).scalar_one() == "team.cache_flushed"
    async with signed_in(running, "mem@example.com", teams={"team_a": "member"}) as member:
        assert "/caching/flush" not in (await member.get(PAGE)).text
        assert (await member.post(f"{PAGE}/flush", {})).status == 403
    assert (await running.accounts.get_team("team_a")).settings.cache_epoch == before + 1


async def test_without_a_section_there_is_nothing_to_forget(tmp_path: Path) -> None:
    async with (
        running_teams(tmp_path, telemetry={"prompt_caches": False}) as running,
        signed_in(running, "tess@example.com", teams={"team_a": "admin"}) as tess,
    ):
        page = (await tess.get(PAGE)).text
        assert "has no <code>cache</code> section" in page
        assert figure(page, "Saved by the answer cache") == "— there is none"
        assert "<code>telemetry.prompt_caches</code> is off" in page
        assert "/caching/flush" not in page
