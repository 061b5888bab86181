"""Hard budgets: never overrun, by no crowd, no number of processes, and no death."""

import asyncio
import itertools
import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.budgets.budget import Budget, BudgetStatus
from cost.budgets.budget_errors import BadBudget, BudgetConflict, UnknownBudget
from cost.budgets.budget_rounds import BudgetWatch
from cost.budgets.grants import GrantNeed, Grants, GrantStore
from cost.budgets.memory import MemoryGrants
from cost.budgets.periods import Period
from cost.budgets.store import BudgetStore
from cost.budgets.topups import Topup
from cost.calendars import set_calendar
from cost.errors import BudgetsUnavailable, LedgerUnavailable, UnpricedUnderBudget
from cost.ledger.entries import Entry, orphan_settlement, void_of
from cost.ledger.rebuild import rebuild
from cost.ledger.store import LedgerStore
from cost.ledger.verify import Difference
from cost.scopes import Spender
from cost.tables import Boot
from cost.times import DAY_US
from settings.key_ids import successor_id
from tests.cost.budgets.crowd import NOON_US, TEAM, Clock, Process, budget, ends_of
from tests.cost.entries import reserve, settle, until
from tests.cost.ledger.verified import verify

pytestmark = pytest.mark.story

HOUR_US = 3_600_000_000


class Real:
    """Processes on one database."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self.budgets = BudgetStore(engine)
        self.grants = GrantStore(engine)
        self.store = LedgerStore(engine)
        self.clock = Clock()

    async def set(self, limit_nanousd: int, **changes: Any) -> None:
        await self.budgets.put(budget(limit_nanousd, **changes))

    def process(self, boot_id: str = "boot1", grants: Grants | None = None, **holds: Any) -> Process:
        return Process(grants or self.grants, self.store, boot_id, self.clock, **{"patience_s": 20.0, **holds})

    async def standing(self) -> BudgetStatus:
        (found,) = await self.grants.standings(self.clock())
        return found


@pytest.fixture
def real(engine: AsyncEngine) -> Real:
    return Real(engine)


def watching(real: Real, *living: str) -> BudgetWatch:
    """The watch of the host on which these processes live."""
    return BudgetWatch(real.grants, lambda: living, nobody, now_us=real.clock)


async def nobody(_standings: Sequence[BudgetStatus]) -> None:
    """Is told and does nothing."""


SPENDER = Spender(organisation_id="default", team_id=TEAM, key_id="key_abc")


def memory(*budgets: Budget, **holds: Any) -> Process:
    """One process with budgets in memory."""
    return Process(MemoryGrants(*budgets), None, "boot1", Clock(), **holds)


def kept(process: Process) -> MemoryGrants:
    assert isinstance(process.grants, MemoryGrants)
    return process.grants


class SlowGrants(MemoryGrants):
    """Changes wait until the gate is open."""

    def __init__(self, *budgets: Budget) -> None:
        super().__init__(*budgets)
        self.gate = asyncio.Event()
        self.asked = 0
        self.afterwards: Callable[[], object] = lambda: None

    async def renew_grants(self, boot_id: str, asks: Any, wants: Any, at_us: int) -> Any:
        self.asked += 1
        await self.gate.wait()
        given = await super().renew_grants(boot_id, asks, wants, at_us)
        asyncio.get_running_loop().call_soon(self.afterwards)
        return given


# Crowds.


@pytest.mark.parametrize("limit", [7, 999])
async def test_a_crowd_gets_exactly_what_there_is(real: Real, limit: int) -> None:
    """Of 1,000 at once, as many as the budget admits; when all is settled, spent is the limit and not a nano more."""
    await real.set(limit)
    process = real.process()
    admitted = await process.crowd(1_000, 1)
    assert len(admitted) == limit
    for each in admitted:
        process.settle(each, 1)
    await process.drain()
    assert (await real.standing()).spent_nanousd == limit
    assert not await process.reserve("late", 1)
    await process.holds.tidy()
    assert (await real.standing()).held_nanousd == 0


async def test_a_rotated_key_goes_on_with_its_budget(real: Real) -> None:
    """What the first key spent and holds is missing for its successors, at once, and the roll-ups are sound."""
    first = "key_0123456789ab"
    second, third = successor_id(first, "key_aaaaaaaaaaaa"), successor_id("key_0123456789ab.x", "key_bbbbbbbbbbbb")
    await real.set(10, scope="key", scope_id=second)
    process, other = real.process(), real.process("boot2")
    assert await process.reserve("r1", 4, key_id=first)
    process.settle("r1", 4, key_id=first)
    await process.drain()
    assert (await real.standing()).spent_nanousd == 4
    assert await process.reserve("r2", 3, key_id=first)
    await process.holds.tidy()
    await process.holds.tidy()
    assert not await other.reserve("r3", 4, key_id=second)
    assert await other.reserve("r4", 3, key_id=third)
    other.settle("r4", 3, key_id=third)
    await other.drain()
    assert (await real.standing()).spent_nanousd == 7
    assert await _wrong_sums(real) == []
    await rebuild(real.engine, 0, NOON_US + DAY_US)
    assert (await real.standing()).spent_nanousd == 7
    assert await _wrong_sums(real) == []


async def test_a_raise_ends_by_itself(real: Real) -> None:
    """More fits until then and not a nano more after it, whatever was granted ahead meanwhile."""
    await real.set(10)
    with pytest.raises(BadBudget):
        await real.budgets.raise_limit("b1", 100, 1)
    await BudgetStore(real.engine, real.clock).raise_limit("b1", 100, NOON_US + HOUR_US)
    process = real.process()
    assert await process.reserve("r1", 8)
    assert await process.reserve("r2", 8)
    # Setting the budget again leaves the raise alone.
    await real.set(12)
    assert (await real.standing()).limit_nanousd == 100
    real.clock.at_us = NOON_US + HOUR_US - 1
    assert await process.reserve("r3", 1)
    real.clock.at_us += 1
    assert (await real.standing()).limit_nanousd == 12
    assert not await process.reserve("r4", 1)
    assert "$0.000000012" in str(process.refusals[-1])
    process.settle("r1", 8)
    process.settle("r2", 0)
    process.settle("r3", 0)
    await process.drain()
    assert await process.reserve("r5", 4)
    assert not await process.reserve("r6", 1)


async def test_a_raise_lowers_nothing(real: Real) -> None:
    """It is to more than the budget's own limit, which holds where it is set above the raise meanwhile."""
    await real.set(10)
    store = BudgetStore(real.engine, real.clock)
    for lower in (0, 9, 10):
        with pytest.raises(BadBudget, match="own limit"):
            await store.raise_limit("b1", lower, NOON_US + HOUR_US)
    with pytest.raises(UnknownBudget):
        await store.raise_limit("nothing", 11, NOON_US + HOUR_US)
    await store.raise_limit("b1", 11, NOON_US + HOUR_US)
    await real.set(20)
    assert (await real.standing()).limit_nanousd == 20
    process = real.process()
    assert await process.reserve("r1", 20)
    assert (await store.raise_limit("b1", 0, 0)).limit_at(NOON_US) == 20


async def test_a_prepaid_balance_is_spent_to_the_end_and_topped_up(real: Real) -> None:
    """What was booked before it was made does not count; top-ups count at once and once each, and no month renews it."""
    process = real.process()
    assert await process.reserve("before", 40)
    process.settle("before", 40)
    await process.drain()
    await real.set(10, period="prepaid")
    await process.holds.poll()
    assert len(await process.crowd(20, 1)) == 10
    real.clock.at_us += 40 * DAY_US
    assert not await process.reserve("late", 1)
    assert process.refusals[-1].resets_at is None
    assert "does not renew" in str(process.refusals[-1])
    topups = [Topup(f"t{number}", 5) for number in range(4)]
    paid = await asyncio.gather(*(real.budgets.top_up("b1", each) for each in (*topups, *topups)))
    assert sorted(new for _, new in paid) == [False] * 4 + [True] * 4
    assert (await real.standing()).limit_nanousd == 30
    assert [each.amount_nanousd for each in await real.budgets.topups("b1")] == [10, 5, 5, 5, 5]
    await process.holds.poll()
    assert len(await process.crowd(40, 1, "more")) == 20
    with pytest.raises(BudgetConflict, match="another amount"):
        await real.budgets.top_up("b1", Topup("t0", 6))
    with pytest.raises(BadBudget, match="taken back"):
        await real.budgets.top_up("b1", Topup("back", -31))
    # What sets it again with its first amount changes nothing; another amount is refused.
    await real.set(10, period="prepaid")
    with pytest.raises(BadBudget, match="top it up"):
        await real.set(20, period="prepaid")
    assert (await real.standing()).limit_nanousd == 30


@pytest.mark.parametrize("period", ["hour", "year", "lifetime"])
async def test_other_periods_are_as_exact(real: Real, period: Period) -> None:
    """A crowd gets what there is, once for each hour, year or life, and the quarters of an hour are what was booked."""
    await real.set(7, period=period)
    process = real.process()
    for at_us, room in ((NOON_US, 7), (NOON_US + HOUR_US - 1, 0), (NOON_US + HOUR_US, 7 if period == "hour" else 0)):
        real.clock.at_us = at_us
        await process.holds.poll()
        admitted = await process.crowd(20, 1, f"at{at_us}")
        assert len(admitted) == room
        for each in admitted:
            process.settle(each, 1)
        await process.drain()
    assert await _wrong_sums(real) == []
    await rebuild(real.engine, 0, NOON_US + DAY_US)
    assert (await real.standing()).spent_nanousd == 7
    assert await _wrong_sums(real) == []


async def test_organisations_cut_their_budgets_by_their_own_calendar(real: Real) -> None:
    """The day of each begins at its own midnight, from the day that its calendar holds; UTC is everybody's before."""
    start = NOON_US - 12 * HOUR_US
    midnight_us = start - int(5.5 * HOUR_US)
    for number, hours in enumerate((-6.0, -5.5, -5.25, 18.25, 18.5)):
        at_us = start + int(hours * HOUR_US)
        for owner in ("default", "acme"):
            booked = settle(f"{owner}{number}", at_us=at_us, cost_nanousd=10**number, organisation_id=owner)
            await real.store.insert([msgspec.structs.replace(booked, team_id=f"team_{owner}")])
    for owner in ("default", "acme"):
        place = {"organisation_id": owner, "scope_id": f"team_{owner}", "budget_id": f"b_{owner}"}
        await real.set(10**9, period="day", **place)
    await set_calendar(real.engine, "acme", "Asia/Kolkata", "sunday", midnight_us, NOON_US)
    real.clock.at_us = midnight_us - 1
    assert await _spent(real) == {"b_default": 111, "b_acme": 1}
    (eve,) = [each for each in await real.grants.standings(midnight_us - 1) if each.budget.budget_id == "b_acme"]
    assert eve.resets_us == midnight_us
    real.clock.at_us = NOON_US
    assert await _spent(real) == {"b_default": 11_000, "b_acme": 1_110}
    found = {each.budget.budget_id: each for each in await real.grants.standings(NOON_US)}
    assert found["b_acme"].resets_us == start + int(18.5 * HOUR_US)
    room = await real.grants.renew_grants("boot1", {"b_acme": GrantNeed(floor_nanousd=0)}, [], NOON_US)
    assert room["b_acme"].room.spent_nanousd == 10_000


async def _spent(real: Real) -> dict[str, int]:
    return {each.budget.budget_id: each.spent_nanousd for each in await real.grants.standings(real.clock())}


async def _wrong_sums(real: Real) -> list[Difference]:
    found = await verify(real.engine, 0, NOON_US + DAY_US)
    return [each for each in found if each.table.startswith("spend")]


async def test_a_crowd_on_several_budgets_gets_exactly_what_the_tightest_has(real: Real) -> None:
    """An attempt falls under organisation, team, key and tag at once, and takes of all or of none."""
    await real.set(500, budget_id="b_org", scope="organisation", scope_id="default")
    await real.set(50)
    await real.set(60, budget_id="b_key", scope="key", scope_id="key_abc", period="day")
    await real.set(30, budget_id="b_tag", scope="tag", scope_id="default/search", period="week")
    process = real.process()
    tagged = [process.reserve(f"t{number}", 1, tag="search") for number in range(100)]
    plain = [process.reserve(f"p{number}", 1) for number in range(100)]
    assert sum(await asyncio.gather(*tagged)) == 30
    assert sum(await asyncio.gather(*plain)) == 20
    assert {(each.scope, each.period_adjective) for each in process.refusals} == {
        ("tag", "weekly"),
        ("team", "monthly"),
    }
    await process.holds.tidy()
    await process.holds.tidy()
    assert {each.budget.budget_id: each.held_nanousd for each in await real.grants.standings(NOON_US)} == {
        "b_org": 50,
        "b1": 50,
        "b_key": 50,
        "b_tag": 30,
    }


async def test_four_processes_share_a_budget(real: Real) -> None:
    """A crowd in each of four at once: exactly what there is, for nobody keeps ready what somebody waits for."""
    await real.set(100)
    processes = [real.process(f"boot{number}") for number in range(4)]
    admitted = await asyncio.gather(*(each.crowd(250, 1) for each in processes))
    assert sum(map(len, admitted)) == 100
    for process, names in zip(processes, admitted, strict=True):
        for each in names:
            process.settle(each, 1)
    await asyncio.gather(*(each.drain() for each in processes))
    assert (await real.standing()).spent_nanousd == 100


async def test_four_processes_in_traffic_overrun_nothing_and_leave_nothing(real: Real) -> None:
    """Amounts, ends and drains at random: spent never exceeds the limit, and the last nano can be had in the end."""
    await real.set(2_000)
    rng = random.Random(4)
    processes = [real.process(f"boot{number}") for number in range(4)]

    async def request(process: Process, name: str) -> None:
        bound = rng.randint(1, 40)
        if await process.reserve(name, bound):
            await asyncio.sleep(rng.random() / 100)
            process.settle(name, rng.randint(0, bound))
        if rng.random() < 0.1:
            await process.drain()
            assert (await real.standing()).spent_nanousd <= 2_000
        if rng.random() < 0.1:
            await process.holds.tidy()

    for wave in range(4):
        requests = [
            request(process, f"{process.boot_id}-{wave}-{number}") for process in processes for number in range(25)
        ]
        await asyncio.gather(*requests)
    for process in processes:
        await process.drain()
        await process.holds.tidy()
        await process.holds.tidy()
    standing = await real.standing()
    assert (standing.held_nanousd, standing.spent_nanousd <= 2_000) == (0, True)
    assert len(await processes[0].crowd(2_100, 1)) == 2_000 - standing.spent_nanousd


async def test_most_holds_ask_nobody() -> None:
    """Where there is room, a little more is granted than is needed, so that the next requests need no transaction."""
    process = memory(budget(1_000_000))
    for number in range(90):
        assert await process.reserve(f"r{number}", 10)
    assert kept(process).calls <= 1 + 10


async def test_without_a_hard_budget_nobody_is_asked() -> None:
    """A soft budget, and another team's hard one, hold nothing and refuse nothing."""
    process = memory(budget(0, kind="soft"), budget(0, budget_id="b2", scope_id="team_other"))
    assert len(await process.crowd(50, 10)) == 50
    assert kept(process).calls == 1


# What becomes of a hold.


async def test_what_a_request_did_not_use_is_free_again() -> None:
    """Settled below its bound, voided, refused by the journal or cancelled: only what was spent stays spent."""
    process = memory(budget(100))
    assert await process.reserve("settled", 100)
    process.settle("settled", 30)
    assert not await process.reserve("too much", 71)
    assert await process.reserve("void", 70)
    process.books.settle(void_of(reserve("void", cost_nanousd=70)))
    process.ledger.accepting = False
    with pytest.raises(LedgerUnavailable):
        await process.reserve("not booked", 70)
    process.ledger.accepting = True
    await process.drain()
    assert await process.reserve("fits", 70)
    process.settle("fits", 70)
    await process.drain()
    assert kept(process).spend["team", TEAM, NOON_US] == 100
    assert not await process.reserve("spent", 1)


async def test_each_attempt_of_a_request_is_held() -> None:
    """A retry, a fallback or an escalation is an attempt of its own, and what a failed one cost is spent."""
    process = memory(budget(100))
    assert await process.reserve("r", 60, attempt=1)
    assert not await process.reserve("r", 60, attempt=2)
    process.settle("r", 40, attempt=1, status=502)
    assert await process.reserve("r", 60, attempt=2)
    assert not await process.reserve("r", 1, attempt=3)


async def test_the_hold_may_differ_from_the_reserves_cost() -> None:
    """What is held is what the caller of the books says, else what the reserve is booked at."""
    process = memory(budget(100))
    await process.books.reserve(reserve("r1", cost_nanousd=10), 80)
    assert not await process.reserve("r2", 21)
    assert await process.reserve("r3", 20)


async def test_whoever_is_cancelled_holds_nothing() -> None:
    """While waiting, and at the very moment that the hold is given."""
    grants = SlowGrants(budget(100))
    process = Process(grants, None, "boot1", Clock())
    waiting = asyncio.create_task(process.reserve("waits", 60))
    given = asyncio.create_task(process.reserve("given", 60))
    await until(lambda: grants.asked)
    waiting.cancel()
    grants.afterwards = given.cancel
    grants.gate.set()
    results = await asyncio.gather(waiting, given, return_exceptions=True)
    assert [type(each) for each in results] == [asyncio.CancelledError] * 2
    assert process.holds._open == {}
    assert await process.reserve("after", 100)


async def test_an_unpriced_target_is_refused_under_a_hard_budget_only() -> None:
    """What cannot be bounded cannot be held; where nothing is hard it is served as ever."""
    process = memory(budget(100), budget(1, budget_id="soft", kind="soft", scope_id="team_other"))
    with pytest.raises(UnpricedUnderBudget, match="no price"):
        await process.books.reserve(reserve("r1", cost_nanousd=None))
    await process.books.reserve(reserve("r2", cost_nanousd=None, team_id="team_other"))


async def test_a_cost_above_its_bound_is_counted_and_covered() -> None:
    """A bound that was wrong overruns by its own error, and what is left is computed from the truth."""
    process = memory(budget(100))
    assert await process.reserve("r1", 10)
    process.settle("r1", 60)
    await process.holds.tidy()
    assert kept(process).grants["b1", "boot1"] == 60
    assert not await process.reserve("r2", 41)
    assert await process.reserve("r3", 40)


# The database.


async def test_a_database_that_does_not_answer_refuses() -> None:
    """Neither what asks nor what comes after is admitted: from then on nothing counts as kept ready."""
    process = memory(budget(1_000))
    assert await process.reserve("r1", 10)
    kept(process).down = True
    for amount in (500, 1):
        with pytest.raises(BudgetsUnavailable):
            await process.reserve("r2", amount)
    await process.holds.tidy()
    kept(process).down = False
    assert await process.reserve("r3", 990)
    assert not await process.reserve("r4", 1)


async def test_a_process_that_never_learned_the_budgets_admits_nothing() -> None:
    """It cannot know who has none."""
    process = memory(budget(1_000))
    kept(process).down = True
    with pytest.raises(BudgetsUnavailable):
        await process.reserve("r1", 10)
    kept(process).down = False
    assert await process.reserve("r1", 10)


async def test_patience_has_an_end() -> None:
    """A database that hangs refuses those who wait, and holds nothing for them when it comes back."""
    grants = SlowGrants(budget(100))
    process = Process(grants, None, "boot1", Clock(), patience_s=0.02)
    with pytest.raises(BudgetsUnavailable):
        await process.reserve("r1", 60)
    grants.gate.set()
    assert await process.reserve("r2", 100)


async def test_money_that_is_committed_but_not_told_yet_refuses_nobody(real: Real) -> None:
    """For a moment it is in the database and still covered here; the one who would be refused looks once more."""
    await real.set(100)
    process = real.process()
    assert await process.reserve("r1", 50)
    process.settle("r1", 50)
    committed = list(process.ledger.entries)
    await real.store.insert(committed)
    asyncio.get_running_loop().call_later(0.01, process.holds.booked, ends_of(committed))
    assert await process.reserve("r2", 50)
    assert not await process.reserve("r3", 1)


async def test_what_is_booked_while_a_grant_is_changed_is_not_free_twice() -> None:
    """The database may or may not have counted it: so it is taken off what was granted."""
    grants = SlowGrants(budget(100))
    grants.gate.set()
    process = Process(grants, None, "boot1", Clock())
    assert await process.reserve("r1", 60)
    process.settle("r1", 60)
    grants.gate.clear()
    waiting = asyncio.create_task(process.reserve("r2", 40))
    await until(lambda: grants.asked == 2)
    entries = list(process.ledger.entries)
    # Committed after the database was read: its answer does not know of it.
    grants.gate.set()
    process.holds.booked(ends_of(entries))
    assert await waiting
    grants.book("team", TEAM, NOON_US, 60)
    assert not await process.reserve("r3", 1)


# Death and recovery.


async def test_a_dead_process_keeps_its_grant_until_it_is_recovered(real: Real) -> None:
    """What it may have spent stays covered; once its attempts are closed and it is forgotten, the rest is free."""
    await real.set(100)
    dead, living = real.process("dead"), real.process("living")
    assert await dead.reserve("r1", 70)
    assert await dead.reserve("r2", 20)
    dead.settle("r2", 5)
    assert not await living.reserve("r3", 11)
    # Its journal is found: what it settled, and the orphan at the most it may have cost.
    journal: list[Entry] = [*dead.ledger.entries, orphan_settlement(dead.ledger.entries[0])]
    await real.store.insert(journal)
    assert not await living.reserve("r4", 21)
    await living.grants.forget_boot("dead")
    assert (await real.standing()).spent_nanousd == 75
    assert len(await living.crowd(30, 1)) == 25


async def test_an_outage_makes_nobody_dead(real: Real, engine: AsyncEngine) -> None:
    """After hours without a database all look dead to whoever is first; what they have spent meanwhile stays covered."""
    await real.set(100)
    first, second = real.process("first"), real.process("second")
    async with engine.begin() as connection:
        for name in ("first", "second"):
            await connection.execute(insert(Boot).values(boot_id=name, host="h", started_us=0, seen_us=NOON_US))
    assert await second.reserve("r1", 90)
    second.settle("r1", 90)
    real.clock.at_us += 3 * HOUR_US
    await watching(real, "first").forget_dead()
    assert not await first.reserve("r2", 20)
    await second.drain()
    await second.holds.tidy()
    assert (await real.standing()).spent_nanousd == 90
    assert await first.reserve("r3", 10)


async def test_a_process_that_closes_leaves_only_what_is_not_booked(real: Real) -> None:
    """What it kept ready is given back, what the database does not have yet stays covered."""
    await real.set(1_000)
    process = real.process()
    await process.holds.start()
    assert await process.reserve("r1", 10)
    assert await process.reserve("r2", 10)
    process.settle("r1", 4)
    await process.holds.aclose()
    assert (await real.standing()).held_nanousd == 14
    again = real.process()
    await again.holds.start()
    assert await again.reserve("r3", 10)
    again.settle("r3", 10)
    await again.drain()
    await again.holds.aclose()
    assert (await real.standing()).held_nanousd == 0


async def test_who_waits_when_it_closes_is_refused() -> None:
    """And nobody waits after that."""
    grants = SlowGrants(budget(100))
    process = Process(grants, None, "boot1", Clock(), patience_s=0.05)
    waiting = asyncio.create_task(process.reserve("r1", 60))
    await until(lambda: grants.asked)
    await process.holds.aclose()
    with pytest.raises(BudgetsUnavailable):
        await waiting
    with pytest.raises(BudgetsUnavailable):
        await process.reserve("r2", 60)


# Periods.


async def test_a_new_period_begins_with_the_whole_limit(real: Real) -> None:
    """At midnight UTC what was spent is of the day before."""
    await real.set(100, period="day")
    process = real.process()
    assert await process.reserve("r1", 100)
    process.settle("r1", 100)
    await process.drain()
    assert not await process.reserve("r2", 1)
    assert process.refusals[-1].resets_at == datetime(2026, 4, 6, tzinfo=UTC)
    assert process.refusals[-1].retry_after_s == 12 * 3600
    real.clock.at_us += DAY_US // 2
    assert await process.reserve("r3", 100)
    assert not await process.reserve("r4", 1)


async def test_what_runs_at_midnight_counts_in_both_periods(real: Real) -> None:
    """It may be settled on either side, so neither side has its money for others."""
    await real.set(100, period="day")
    process, other = real.process("boot1"), real.process("boot2")
    assert await process.reserve("r1", 60)
    await process.holds.tidy()
    await process.holds.tidy()
    real.clock.at_us += DAY_US // 2
    assert not await other.reserve("r2", 41)
    assert await other.reserve("r3", 40)
    process.settle("r1", 60)
    other.settle("r3", 40)
    await process.drain()
    await other.drain()
    assert (await real.standing()).spent_nanousd == 100


async def test_whoever_waited_across_midnight_is_dated_after_it() -> None:
    """Its orphan would be dated like it, and belongs to the day whose money is held."""
    grants = SlowGrants(budget(100, period="day"))
    process = Process(grants, None, "boot1", Clock())
    waiting = asyncio.create_task(process.reserve("r1", 60))
    await until(lambda: grants.asked)
    process.clock.at_us += DAY_US
    grants.gate.set()
    assert await waiting
    assert [each.at_us for each in process.ledger.entries] == [NOON_US + DAY_US]


# What people change.


async def test_limits_follow_at_once_where_money_is_asked_for(real: Real) -> None:
    """A raised limit after a poll, a lowered one with the next grant, a removed budget: all without a restart."""
    await real.set(100)
    process = real.process()
    assert await process.reserve("r1", 100)
    assert not await process.reserve("r2", 1)
    await real.set(150)
    assert await process.reserve("r3", 50)
    await real.set(120)
    process.settle("r3", 0)
    await process.drain()
    await process.holds.tidy()
    assert not await process.reserve("r4", 21)
    assert await process.reserve("r5", 20)
    await real.budgets.remove("b1")
    assert await process.reserve("r6", 100)
    await process.holds.poll()
    assert await process.reserve("r7", 10_000)


async def test_a_budget_that_comes_back_has_nothing_kept_ready() -> None:
    """What was granted of the removed one is nobody's; what still runs is covered again."""
    process = memory(budget(100))
    assert await process.reserve("r1", 10)
    removed = kept(process).budgets.pop("b1")
    kept(process).grants.clear()
    await process.holds.poll()
    kept(process).budgets["b1"] = removed
    await process.holds.poll()
    assert not await process.reserve("r2", 91)
    assert await process.reserve("r3", 90)


async def test_it_looks_by_itself(real: Real) -> None:
    """A budget that is set while a process runs holds there soon."""
    process = real.process(poll_s=0.1)
    await process.holds.start()
    assert await process.reserve("r1", 1_000)
    await real.set(10)
    numbers = itertools.count(2)
    async with asyncio.timeout(60):
        while await process.reserve(f"r{next(numbers)}", 11):  # noqa: ASYNC110 - nothing tells of a poll
            await asyncio.sleep(0.01)
    await process.holds.aclose()


# What is known beforehand.


@pytest.mark.parametrize(
    ("changes", "exceeded", "downgrade"),
    [
        ({}, True, False),
        ({"on_exhausted": "downgrade"}, True, False),
        ({"kind": "soft"}, False, False),
        ({"kind": "soft", "on_exhausted": "downgrade"}, False, True),
        ({"limit_nanousd": 101}, False, False),
        ({"scope_id": "team_other"}, False, False),
        ({"scope": "organisation", "scope_id": "default"}, False, False),
    ],
)
async def test_a_look_tells_what_is_spent(changes: dict[str, Any], exceeded: bool, downgrade: bool) -> None:
    """Only what the last poll saw: a hard budget refuses, a soft one downgrades where its owner wants that."""
    process = memory(msgspec.structs.replace(budget(100), **changes))
    kept(process).book("team", TEAM, NOON_US, 100)
    look: Callable[[], Any] = lambda: process.holds.check(SPENDER)  # noqa: E731  It is asked often.
    assert look().exceeded is None
    await process.holds.poll()
    assert (look().exceeded is not None, look().downgrade) == (exceeded, downgrade)
    process.clock.at_us += 31 * DAY_US
    assert (look().exceeded, look().downgrade) == (None, False)


async def test_a_refusal_names_whose_budget_it_is_and_when_it_resets() -> None:
    """It tells the limit in dollars, and whether a smaller request may still fit; it is counted by its scope."""
    counted: list[str] = []
    process = memory(budget(500_000_000_000, on_exhausted="downgrade"), refused=counted.append)
    assert not await process.reserve("r1", 500_000_000_001)
    assert str(process.refusals[0]) == (
        "The monthly budget of team `team_payments` ($500.00) has no room left for what this request may cost. "
        "A smaller `max_tokens` or a cheaper model may still fit. It resets at 2026-05-01T00:00:00Z."
    )
    assert (process.refusals[0].downgrade, process.refusals[0].spent) == (True, False)
    assert await process.reserve("r2", 500_000_000_000)
    process.settle("r2", 500_000_000_000)
    await process.drain()
    await process.holds.poll()
    refusal = process.holds.check(msgspec.structs.replace(SPENDER, tag="any")).exceeded
    assert str(refusal) == (
        "The monthly budget of team `team_payments` ($500.00) is used up. It resets at 2026-05-01T00:00:00Z."
    )
    assert counted == ["team", "team"]


async def test_a_refusal_wins_over_a_downgrade() -> None:
    """Of two budgets without room, the one whose owner wants a refusal decides."""
    other = budget(10, budget_id="b0", scope="key", scope_id="key_abc", on_exhausted="downgrade")
    process = memory(other, budget(10))
    assert not await process.reserve("r1", 11)
    assert (process.refusals[0].scope, process.refusals[0].downgrade) == ("team", False)
