"""Sharing out what is left: never more than there is, in the order of asking."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import insert, select, text
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlmodel import col

from cost.budgets.grants import BudgetRoom, GrantNeed, GrantRequest, GrantStore, share_out
from cost.budgets.store import BudgetStore
from cost.ledger.store import LedgerStore
from cost.tables import Boot, BudgetGrant, BudgetRow
from tests.cost.budgets.crowd import NOON_US, budget
from tests.cost.entries import reserve, settle


def room(limit: int, spent: int = 0, others: int = 0) -> BudgetRoom:
    return BudgetRoom(budget=budget(limit), spent_nanousd=spent, others_nanousd=others)


def want(amount: int, *names: str) -> GrantRequest:
    return GrantRequest(amount_nanousd=amount, budget_ids=names or ("b1",))


@pytest.mark.parametrize(
    ("limit", "spent", "others", "floor", "wants", "granted", "scarce"),
    [
        (1_000_000, 0, 0, 0, [10], 90, False),
        (1_000, 0, 0, 0, [100], 212, True),
        (1_000, 500, 300, 100, [100], 200, True),
        (1_000, 500, 300, 100, [101], 100, True),
        (1_000, 500, 300, 100, [60, 60, 40], 200, True),
        (1_000, 900, 300, 100, [1], 100, True),
        (1_000, 0, 0, 70, [], 70, False),
        (0, 0, 0, 0, [0], 0, False),
    ],
)
def test_what_is_granted(
    limit: int, spent: int, others: int, floor: int, wants: list[int], granted: int, scarce: bool
) -> None:
    """The floor, those that fit in order, and eight times that beforehand, but an eighth of what is left at most."""
    given_ = share_out(
        {"b1": room(limit, spent, others)}, {"b1": GrantNeed(floor_nanousd=floor)}, [want(w) for w in wants]
    )
    assert (given_["b1"].granted_nanousd, given_["b1"].scarce) == (granted, scarce)


@pytest.mark.parametrize(
    ("limit", "spent", "floor", "keep", "wants", "told", "scarce"),
    [
        (1_000, 0, 0, 5, [], (5, 1_000, 0), False),
        (1_000, 0, 0, 125, [], (125, 1_000, 0), False),
        (1_000, 0, 0, 126, [], (125, 1_000, 0), True),
        (1_000, 0, 100, 50, [10], (190, 890, 0), False),
        (100, 70, 30, 0, [], (30, 0, 0), False),
        (100, 90, 30, 0, [], (30, 0, 20), False),
        (100, 90, 30, 0, [1], (30, 0, 20), True),
    ],
)
def test_what_a_grant_tells(
    limit: int, spent: int, floor: int, keep: int, wants: list[int], told: tuple[int, int, int], scarce: bool
) -> None:
    """What it would like to keep is an eighth of what is left at most; a limit that was lowered is overrun by so much."""
    asks = {"b1": GrantNeed(floor_nanousd=floor, keep_nanousd=keep)}
    found = share_out({"b1": room(limit, spent)}, asks, [want(amount) for amount in wants])["b1"]
    assert (found.granted_nanousd, found.left_nanousd, found.over_nanousd) == told
    assert found.scarce == scarce


def test_all_budgets_or_none() -> None:
    """Who finds too little in one takes nothing of the others, and only that one is told to lack."""
    rooms, asks = {"a": room(100), "b": room(50)}, {"a": GrantNeed(floor_nanousd=0), "b": GrantNeed(floor_nanousd=0)}
    given_ = share_out(rooms, asks, [want(60, "a", "b"), want(50, "a", "b"), want(50, "a")])
    assert (given_["a"].granted_nanousd, given_["b"].granted_nanousd) == (100, 50)
    assert (given_["a"].lacking, given_["b"].lacking) == (False, True)


@given(
    *(st.integers(0, 1_000) for _ in range(4)),
    st.integers(0, 200),
    st.lists(st.integers(0, 300), max_size=20),
)
def test_never_more_than_there_is(
    limit: int, spent: int, others: int, floor: int, keep: int, amounts: list[int]
) -> None:
    """Above the floor, which cannot be given back, all grants and what is spent stay within the limit."""
    grant = share_out(
        {"b1": room(limit, spent, others)},
        {"b1": GrantNeed(floor_nanousd=floor, keep_nanousd=keep)},
        [want(amount) for amount in amounts],
    )["b1"]
    assert grant.granted_nanousd >= floor
    assert grant.granted_nanousd == floor or spent + others + grant.granted_nanousd <= limit


async def test_grants_of_the_dead_are_found_once_their_attempts_are_closed(engine: AsyncEngine) -> None:
    """Those of a process seen since, or with an attempt open beside a closed one, are not; those of nobody are told apart."""
    names = ("busy", "dead", "gone", "late")
    grants = [{"budget_id": "b1", "boot_id": name, "granted_nanousd": 5} for name in names]
    seen = {"busy": 1, "dead": 99, "late": 100, "idle": 1}
    boots = [{"boot_id": name, "host": "h", "started_us": 0, "seen_us": at_us} for name, at_us in seen.items()]
    async with engine.begin() as connection:
        await connection.execute(insert(BudgetGrant), grants)
        await connection.execute(insert(Boot), boots)
    closed = [each for name in ("busy", "dead") for each in (reserve(name, boot_id=name), settle(name, boot_id=name))]
    await LedgerStore(engine).insert([*closed, reserve("busy", boot_id="busy", attempt=2)])
    store = GrantStore(engine)
    assert await store.closed_boots(100) == (["dead"], ["gone"])
    await store.forget_boot("gone")
    assert await store.closed_boots(100) == (["dead"], [])
    async with engine.connect() as connection:
        left = (await connection.execute(select(col(BudgetGrant.boot_id)).order_by(col(BudgetGrant.boot_id)))).scalars()
        assert list(left) == ["busy", "dead", "late"]


@pytest.mark.parametrize("backend", ["postgresql"])
async def test_a_grant_waits_for_who_changes_its_budget_and_for_no_other(engine: AsyncEngine) -> None:
    """What was granted meanwhile counts; another budget is free all the time."""
    for name in ("b1", "b2"):
        await BudgetStore(engine).put(budget(100, budget_id=name, scope_id=name))
    store, none = GrantStore(engine), GrantNeed(floor_nanousd=0)
    row = select(col(BudgetRow.budget_id)).where(col(BudgetRow.budget_id) == "b1").with_for_update()
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    async with engine.connect() as holder, engine.connect() as watcher:
        await holder.execute(row)
        asked = asyncio.create_task(store.renew_grants("mine", {"b1": none}, [want(60, "b1")], NOON_US))
        while not asked.done() and not (await watcher.execute(waiting)).scalar():
            await watcher.rollback()
        assert not asked.done()
        other = await asyncio.wait_for(store.renew_grants("mine", {"b2": none}, [want(60, "b2")], NOON_US), 60)
        assert not other["b2"].lacking
        await holder.execute(insert(BudgetGrant), [{"budget_id": "b1", "boot_id": "theirs", "granted_nanousd": 60}])
        await holder.commit()
        assert (await asked)["b1"].lacking


async def test_a_process_changes_its_own_grant_of_a_budget_alone(engine: AsyncEngine) -> None:
    """Those of others, and its own of other budgets, stay; a grant of nothing has no row."""
    for name in ("b1", "b2"):
        await BudgetStore(engine).put(budget(100, budget_id=name, scope_id=name))
    store = GrantStore(engine)

    async def rows_after(boot_id: str, **floors: int) -> dict[tuple[str, str], int]:
        asks = {name: GrantNeed(floor_nanousd=floor) for name, floor in floors.items()}
        given_ = await store.renew_grants(boot_id, asks, [], NOON_US)
        assert {name: each.granted_nanousd for name, each in given_.items()} == floors
        async with engine.connect() as connection:
            found = await connection.execute(select(*BudgetGrant.__table__.c))  # type: ignore[attr-defined]
            return {(row.budget_id, row.boot_id): row.granted_nanousd for row in found}

    await rows_after("theirs", b1=30, b2=5)
    theirs = {("b1", "theirs"): 30, ("b2", "theirs"): 5}
    assert await rows_after("mine", b1=20, b2=7) == theirs | {("b1", "mine"): 20, ("b2", "mine"): 7}
    assert await rows_after("mine", b1=10) == theirs | {("b1", "mine"): 10, ("b2", "mine"): 7}
    assert await rows_after("mine", b1=0, b2=7) == theirs | {("b2", "mine"): 7}
    found = (await store.renew_grants("mine", {"b1": GrantNeed(floor_nanousd=0)}, [want(71, "b1")], NOON_US))["b1"]
    assert (found.room.others_nanousd, found.lacking) == (30, True)
