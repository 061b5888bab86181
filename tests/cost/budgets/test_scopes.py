"""Budgets of end users, models and providers, in one database and over several processes."""

import asyncio
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlmodel import col

from cost.budgets.budget import Budget, checked
from cost.budgets.budget_errors import BadBudget
from cost.budgets.grants import GrantStore
from cost.budgets.memory import MemoryGrants
from cost.budgets.store import BudgetStore
from cost.ledger.rebuild import rebuild
from cost.ledger.store import LedgerStore
from cost.ledger.verify import Difference, check
from cost.scopes import ROWS, Scope, Spender
from cost.tables import BudgetGrant
from cost.times import DAY_US
from tests.cost.budgets.crowd import NOON_US, TEAM, Clock, Process, budget
from tests.cost.entries import reserve, settle


def for_each(limit_nanousd: int = 100, scope_id: str = f"{TEAM}/*", **changes: Any) -> Budget:
    """A hard budget of each end user of the team."""
    return budget(limit_nanousd, scope="end_user", scope_id=scope_id, **changes)


def memory(*budgets: Budget) -> Process:
    return Process(MemoryGrants(*budgets), None, "boot1", Clock())


def spender(**names: str) -> Spender:
    return Spender(organisation_id="default", team_id=TEAM, key_id="key_abc", **names)


@pytest.mark.parametrize(
    ("scope", "shown", "stored", "words"),
    [
        ("end_user", "payments/ada", "payments/ada", "end user `ada` of team `payments`"),
        ("end_user", "payments/a/b", "payments/a/b", "end user `a/b` of team `payments`"),
        ("end_user", "payments/*", "payments/*", "each end user of team `payments`"),
        ("end_user", "*", "*/default", "each end user of every team"),
        ("model", "azure/gpt-4o", "default/azure/gpt-4o", "model `azure/gpt-4o`"),
        ("provider", "openai", "default/openai", "provider `openai`"),
        ("team_model", "payments/gpt-4o", "payments/gpt-4o", "model `gpt-4o` of team `payments`"),
        ("team_provider", "payments/openai", "payments/openai", "provider `openai` of team `payments`"),
        ("tag", "search", "default/search", "tag `search`"),
        ("team", "payments", "payments", "team `payments`"),
    ],
)
def test_an_id_is_written_and_read_alike(scope: Scope, shown: str, stored: str, words: str) -> None:
    """What people write is what they read again, and the refusal says whose budget it is."""
    row = ROWS[scope]
    assert row.stored(shown, "default") == stored
    assert row.shown(stored, "default") == shown
    assert checked(budget(scope=scope, scope_id=stored, organisation_id="default")).in_words == words


def test_a_mail_address_is_set_as_it_is_booked() -> None:
    """An operator names the person; the books and the budget have the digest."""
    stored = ROWS["end_user"].stored("payments/ada@example.com", "default")
    assert stored.startswith("payments/digest-")
    assert checked(budget(scope="end_user", scope_id=stored)).scope_id == stored


@pytest.mark.parametrize(
    ("scope", "scope_id"),
    [
        ("end_user", "ada"),
        ("end_user", "payments/"),
        ("end_user", "*/ada"),
        ("end_user", "payments/ada lovelace"),
        ("model", "gpt-4o"),
        ("model", "other/gpt-4o"),
        ("team_model", "gpt-4o"),
        ("team_model", "payments/*"),
        ("team_provider", "*/openai"),
    ],
)
def test_an_id_that_nothing_is_booked_under_is_refused(scope: Scope, scope_id: str) -> None:
    """A budget that would never count anything is no budget."""
    with pytest.raises(BadBudget):
        checked(budget(scope=scope, scope_id=scope_id))


def test_a_soft_budget_of_a_model_only_warns() -> None:
    """Where a request goes instead is decided by hard ones, before it is sent."""
    with pytest.raises(BadBudget, match="only warns"):
        checked(budget(scope="team_model", scope_id=f"{TEAM}/gpt-4o", kind="soft", on_exhausted="downgrade"))


async def test_each_end_user_has_a_budget_of_their_own() -> None:
    """What one spends is nobody else's; those without a name are not bounded by it, nor is another team."""
    process = memory(for_each(100))
    assert await process.reserve("r1", 80, end_user="ada")
    assert not await process.reserve("r2", 30, end_user="ada")
    assert str(process.refusals[0]).startswith(
        f"The monthly budget of end user `ada` of team `{TEAM}` ($0.0000001) has no room left"
    )
    assert await process.reserve("r3", 80, end_user="bob")
    assert await process.reserve("r4", 10_000)
    assert await process.reserve("r5", 10_000, end_user="ada", team_id="team_other")


async def test_the_nearest_budget_of_a_period_holds() -> None:
    """An end user's own goes before the team's for each one, that before every team's; another period's holds beside it."""
    process = memory(
        for_each(10, "*/default", budget_id="every"),
        for_each(100, budget_id="team"),
        for_each(1_000, f"{TEAM}/ada", budget_id="own"),
        for_each(700, "*/default", budget_id="daily", period="day"),
    )
    assert await process.reserve("r1", 10, end_user="eve", team_id="team_other")
    assert not await process.reserve("r2", 11, end_user="eve", team_id="team_other")
    assert await process.reserve("r3", 100, end_user="bob")
    assert not await process.reserve("r4", 1, end_user="bob")
    assert await process.reserve("r5", 700, end_user="ada")
    assert not await process.reserve("r6", 1, end_user="ada")
    assert process.refusals[-1].period_adjective == "daily"


async def test_many_processes_spend_one_end_users_budget_exactly(engine: AsyncEngine) -> None:
    """Never more than the limit, to the last nano-dollar, whoever asks first; what is not used is given back."""
    store, clock = LedgerStore(engine), Clock()
    await BudgetStore(engine).put(for_each(1_000))
    processes = [Process(GrantStore(engine), store, f"boot{each}", clock, patience_s=60.0) for each in range(3)]

    async def spends(process: Process) -> int:
        names = [f"{process.boot_id}-{number}" for number in range(8)]
        room = await asyncio.gather(*(process.reserve(each, 60, end_user="ada") for each in names))
        for name, there in zip(names, room, strict=True):
            if there:
                process.settle(name, 60, end_user="ada")
        return sum(room)

    served = sum(await asyncio.gather(*map(spends, processes)))
    # One that is refused may have found the last of it granted to another process for its next one.
    assert 12 <= served <= 1_000 // 60
    for process in processes:
        await process.drain()
        await process.holds.tidy()
        await process.holds.tidy()
    (ada,) = await GrantStore(engine).standings_of_each([f"b1/{TEAM}/ada"], clock())
    assert (ada.spent_nanousd, ada.held_nanousd) == (60 * served, 0)
    left = 1_000 - 60 * served
    assert await processes[0].reserve("late", left, end_user="ada")
    assert not await processes[1].reserve("later", 1, end_user="ada")
    assert await processes[0].reserve("other", 60, end_user="bob")


async def test_another_end_user_in_each_request_takes_no_more_memory(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many were used lately: those used longest ago are forgotten, and what they spent is read again."""
    monkeypatch.setattr("cost.budgets.budget_reservations._MAX_EACH", 5)
    store, clock = LedgerStore(engine), Clock()
    await BudgetStore(engine).put(for_each(10))
    process = Process(GrantStore(engine), store, "boot1", clock, patience_s=60.0)
    for each in range(20):
        assert await process.reserve(f"s{each}", 10, end_user=f"user-{each}")
        process.settle(f"s{each}", 10, end_user=f"user-{each}")
    await process.drain()
    await process.holds.tidy()
    await process.holds.tidy()
    assert process.holds.remembered == 5
    assert not await process.reserve("again", 1, end_user="user-0")


async def test_a_hundred_thousand_end_users_make_nothing_before_they_call(engine: AsyncEngine) -> None:
    """One budget is read, whoever has spent; what a call made is forgotten when it was not used for long."""
    store, clock = LedgerStore(engine), Clock()
    await BudgetStore(engine).put(for_each(1_000))
    await store.insert([settle(f"r{each}", end_user=f"user-{each}", cost_nanousd=1) for each in range(500)])
    process = Process(GrantStore(engine), store, "boot1", clock, patience_s=60.0)
    assert len(await process.holds.poll()) == 1
    assert process.holds.remembered == 0
    for each in range(20):
        assert await process.reserve(f"s{each}", 10, end_user=f"user-{each}")
        process.settle(f"s{each}", 10, end_user=f"user-{each}")
    assert process.holds.remembered == 20
    await process.drain()
    clock.at_us += 3_600_000_000
    await process.holds.tidy()
    await process.holds.tidy()
    assert process.holds.remembered == 0
    async with engine.connect() as connection:
        assert await connection.scalar(select(func.count()).select_from(BudgetGrant)) == 0


async def test_a_removed_budget_leaves_no_grants(engine: AsyncEngine) -> None:
    """Also those of single end users go, and nobody is held to it any more."""
    budgets, clock = BudgetStore(engine), Clock()
    await budgets.put(for_each(100))
    await budgets.put(for_each(100, f"{TEAM}/bob", budget_id="b1x"))
    process = Process(GrantStore(engine), LedgerStore(engine), "boot1", clock, patience_s=60.0)
    assert await process.reserve("r1", 100, end_user="ada")
    assert await process.reserve("r2", 100, end_user="bob")
    await budgets.remove("b1")
    async with engine.connect() as connection:
        assert list(await connection.scalars(select(col(BudgetGrant.budget_id)))) == ["b1x"]
    await process.holds.poll()
    assert await process.reserve("r3", 100, end_user="ada")
    assert not await process.reserve("r4", 100, end_user="bob")


async def test_a_soft_budget_for_each_downgrades_who_has_spent_it() -> None:
    """The poll tells of those that called lately, and of nobody else."""
    process = memory(for_each(100, kind="soft", on_exhausted="downgrade"))
    grants = process.grants
    assert isinstance(grants, MemoryGrants)
    grants.book("end_user", f"{TEAM}/ada", NOON_US, 100)
    await process.holds.poll()
    assert not process.holds.check(spender(end_user="ada")).downgrade
    await process.holds.poll()
    assert process.holds.check(spender(end_user="ada")).downgrade
    assert not process.holds.check(spender(end_user="bob")).downgrade


async def test_a_changed_limit_holds_for_those_that_are_known() -> None:
    """A raise reaches an end user whose budget was spent."""
    process = memory(for_each(100))
    assert await process.reserve("r1", 100, end_user="ada")
    assert not await process.reserve("r2", 1, end_user="ada")
    grants = process.grants
    assert isinstance(grants, MemoryGrants)
    grants.budgets["b1"] = for_each(200)
    await process.holds.poll()
    assert await process.reserve("r3", 100, end_user="ada")


@pytest.mark.parametrize(
    ("scope", "scope_id", "part"),
    [
        ("model", "default/llama-3-70b", ("model", "llama-3-70b")),
        ("provider", "default/vllm", ("provider", "vllm")),
        ("team_model", f"{TEAM}/llama-3-70b", ("model", "llama-3-70b")),
        ("team_provider", f"{TEAM}/vllm", ("provider", "vllm")),
    ],
)
async def test_a_model_or_provider_has_a_budget(
    engine: AsyncEngine, scope: Scope, scope_id: str, part: tuple[str, str]
) -> None:
    """It holds the money of that target alone, and once it is spent, planning is told which target has none."""
    store, clock = LedgerStore(engine), Clock()
    await BudgetStore(engine).put(budget(100, scope=scope, scope_id=scope_id))
    process = Process(GrantStore(engine), store, "boot1", clock, patience_s=60.0)
    assert await process.reserve("r1", 100)
    assert not await process.reserve("r2", 1)
    assert await process.reserve("r3", 1_000, target_id="gpt-4o", provider="openai")
    process.settle("r1", 100)
    await process.drain()
    await process.holds.poll()
    look = process.holds.check(spender())
    assert (look.exceeded, look.hard) == (None, True)
    assert list(look.spent_targets) == [part]
    other = msgspec.structs.replace(spender(), team_id="team_other", organisation_id="other")
    assert process.holds.check(other).spent_targets == {}


async def wrong(engine: AsyncEngine, day_us: int) -> list[Difference]:
    """The differences between the ledger and what budgets read."""
    found = await check(engine, day_us, day_us + DAY_US, now_us=NOON_US)
    return [each for each in found.told if each.table == "spend_day"]


async def test_what_was_spent_is_the_ledgers_after_a_rebuild(engine: AsyncEngine) -> None:
    """The rows of end users, models and providers are verified like the others, and made anew from the ledger."""
    store = LedgerStore(engine)
    await store.insert(
        [
            reserve("r1", end_user="ada"),
            settle("r1", end_user="ada"),
            settle("r2", end_user="ada", team_id="team_other"),
            settle("r3", end_user="bob", cost_nanousd=None),
            settle("r4", origin="true-up", end_user="ada"),
        ]
    )
    day_us = NOON_US - NOON_US % DAY_US
    assert await wrong(engine, day_us) == []
    await BudgetStore(engine).put(for_each(2_000_000))
    ids = [f"b1/{TEAM}/ada", f"b1/{TEAM}/bob", f"b1/{TEAM}/eve", "gone/x/y"]
    before = await GrantStore(engine).standings_of_each(ids, NOON_US)
    assert {each.budget.shown_id: each.spent_nanousd for each in before} == {
        f"{TEAM}/ada": 1_000_000,
        f"{TEAM}/bob": 0,
        f"{TEAM}/eve": 0,
    }
    assert next(each.share for each in before if each.budget.shown_id == f"{TEAM}/ada") == Decimal("0.5")
    assert await rebuild(engine, day_us, day_us + DAY_US) == 1
    assert await wrong(engine, day_us) == []
    assert sorted(await GrantStore(engine).standings_of_each(ids, NOON_US), key=str) == sorted(before, key=str)


async def test_the_largest_end_users_of_a_month(engine: AsyncEngine) -> None:
    """They come from a roll-up that is verified and rebuilt, with the budgets that hold for each of them."""
    store, budgets = LedgerStore(engine), BudgetStore(engine, lambda: NOON_US)
    spent = {f"user-{each}": each for each in range(1, 13)}
    entries = [settle(f"r-{name}", end_user=name, cost_nanousd=amount) for name, amount in spent.items()]
    entries.append(settle("old", end_user="user-1", cost_nanousd=999, at_us=NOON_US - 40 * DAY_US))
    entries.append(settle("other", end_user="user-1", cost_nanousd=999, team_id="team_other"))
    await store.insert(entries)
    await budgets.put(for_each(15))
    await budgets.put(for_each(20, "*/default", budget_id="daily", period="day"))
    await budgets.put(for_each(10, f"{TEAM}/user-11", budget_id="own"))
    month_us = NOON_US - NOON_US % DAY_US - 4 * DAY_US

    async def largest() -> list[tuple[str, int, list[tuple[str, str]]]]:
        found = await budgets.largest_end_users("default", TEAM)
        return [
            (each.end_user, each.spent_nanousd, [(status.budget.budget_id, status.state) for status in each.budgets])
            for each in found
        ]

    found = await largest()
    assert [name for name, _, _ in found] == [f"user-{each}" for each in range(12, 2, -1)]
    assert found[0] == ("user-12", 12, [(f"b1/{TEAM}/user-12", "warning"), (f"daily/{TEAM}/user-12", "open")])
    assert found[1] == ("user-11", 11, [("own", "spent"), (f"daily/{TEAM}/user-11", "open")])
    async with engine.begin() as connection:
        await connection.exec_driver_sql("UPDATE end_user_month SET spent_nanousd = 5 WHERE end_user = 'user-12'")
    whole = await check(engine, month_us, NOON_US, now_us=NOON_US)
    assert [(each.table, each.expected, each.found) for each in whole.told if each.table == "end_user_month"] == [
        ("end_user_month", 12, 5)
    ]
    await rebuild(engine, NOON_US, NOON_US + 1)
    assert await largest() == found


def test_a_budget_for_each_one_has_no_webhook() -> None:
    """It would never be told, or be told of everybody."""
    with pytest.raises(BadBudget, match="warns nobody"):
        checked(for_each(webhook="finance"))
