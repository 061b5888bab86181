"""Books that keep budgets are the books they stand in front of."""

import asyncio
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.budgets.budget_reservations import BudgetReservations
from cost.budgets.budgeted_ledger import BudgetedBooks
from cost.budgets.grants import GrantNeed, GrantStore
from cost.budgets.memory import MemoryGrants
from cost.budgets.presence import BudgetPresence
from cost.budgets.store import BudgetStore
from cost.errors import BudgetExceeded
from cost.ledger.drain import Drain, SingleHost
from cost.ledger.entries import Entry
from cost.ledger.journal import Journal
from cost.ledger.ledger import Books, Ledger, MemoryLedger
from cost.ledger.store import LedgerStore
from tests.cost.budgets.crowd import NOON_US, budget
from tests.cost.entries import reserve, settle, until


async def test_hold_reserve_settle_and_drain(tmp_path: Path, engine: AsyncEngine) -> None:
    """With a real journal, ledger and database: what is settled is spent, and nothing is held in the end."""
    await BudgetStore(engine).put(budget(100))
    grants = GrantStore(engine)
    holds = BudgetReservations(grants, lambda: ledger.boot_id, now_us=lambda: NOON_US, look=lambda: journal.look())  # noqa: PLW0108
    journal = Journal(tmp_path, awaiting=holds)
    # It looks by itself only where a budget would refuse.
    ledger = Ledger(journal, look_every_s=3_600)
    drain = Drain(
        tmp_path,
        LedgerStore(engine),
        presence=BudgetPresence(SingleHost(), grants),
        interval_s=3_600,
        recover_every_s=0,
    )
    await drain.start()
    await ledger.start()
    await holds.start()
    books: Books = BudgetedBooks(ledger, holds)
    await books.reserve(reserve("r1", cost_nanousd=50, boot_id=books.boot_id), 80)
    with pytest.raises(BudgetExceeded):
        await books.reserve(reserve("r2", cost_nanousd=21, boot_id=books.boot_id))
    books.settle(settle("r1", cost_nanousd=60, boot_id=books.boot_id))
    assert await drain.drain_now()
    await books.reserve(reserve("r3", cost_nanousd=40, boot_id=books.boot_id))
    books.settle(settle("r3", cost_nanousd=40, boot_id=books.boot_id))
    assert await drain.drain_now()
    assert await ledger.wait_drained()
    await holds.aclose()
    await ledger.aclose()
    await drain.aclose()
    (standing,) = await grants.standings(NOON_US)
    assert (standing.spent_nanousd, standing.held_nanousd) == (100, 0)


async def test_what_is_not_drained_stays_covered(tmp_path: Path, engine: AsyncEngine) -> None:
    """A process that ends while nobody drains leaves its spending held, until it is recovered and counts as spent."""
    await BudgetStore(engine).put(budget(100))
    grants = GrantStore(engine)
    holds = BudgetReservations(grants, lambda: ledger.boot_id, now_us=lambda: NOON_US)
    ledger = Ledger(Journal(tmp_path, awaiting=holds))
    await ledger.start()
    await holds.start()
    books = BudgetedBooks(ledger, holds)
    await books.reserve(reserve("r1", cost_nanousd=50, boot_id=books.boot_id), 80)
    books.settle(settle("r1", cost_nanousd=60, boot_id=books.boot_id))
    assert not await ledger.wait_drained(0.01)
    await holds.aclose()
    await ledger.aclose()
    (standing,) = await grants.standings(NOON_US)
    assert (standing.spent_nanousd, standing.held_nanousd) == (0, 60)
    drain = Drain(tmp_path, LedgerStore(engine), presence=BudgetPresence(SingleHost(), grants))
    await drain.start()
    await drain.aclose()
    (standing,) = await grants.standings(NOON_US)
    assert (standing.spent_nanousd, standing.held_nanousd) == (60, 0)


async def test_a_reserve_that_is_cancelled_gives_its_hold_back() -> None:
    """The ledger itself voids what it may have written."""

    class Waiting:
        boot_id = "boot1"
        holds_money = False
        settled: list[Entry]

        def __init__(self) -> None:
            self.settled = []

        async def reserve(self, entry: Entry, hold_nanousd: int | None = None) -> bool:
            await asyncio.sleep(3_600)
            return False

        def settle(self, entry: Entry) -> None:
            self.settled.append(entry)

    holds = BudgetReservations(MemoryGrants(budget(100)), lambda: "boot1", now_us=lambda: NOON_US)
    task = asyncio.create_task(BudgetedBooks(Waiting(), holds).reserve(reserve(cost_nanousd=100)))
    await until(lambda: holds._open)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await holds.hold(reserve("r2", cost_nanousd=100), None) is False


async def test_who_is_recovered_has_no_grants_any_more(engine: AsyncEngine) -> None:
    """The one that forgets a dead process forgets its grants too."""
    await BudgetStore(engine).put(budget(100))
    grants = GrantStore(engine)
    await grants.renew_grants("dead", {"b1": GrantNeed(floor_nanousd=9)}, [], NOON_US)
    presence = BudgetPresence(SingleHost(), grants)
    await presence.show(["living"])
    await presence.expire([])
    await presence.forget("dead")
    (standing,) = await grants.standings(NOON_US)
    assert (standing.held_nanousd, presence.may_be_given_up("living")) == (0, False)


async def test_a_reserve_says_whether_a_hard_budget_holds_it() -> None:
    """Also the first one of a process that had no chance yet to read the budgets."""
    for kept, is_held in ((budget(100), True), (budget(100, kind="soft"), False)):
        books = BudgetedBooks(
            MemoryLedger("boot1"), BudgetReservations(MemoryGrants(kept), lambda: "boot1", now_us=lambda: NOON_US)
        )
        assert await books.reserve(reserve(cost_nanousd=10)) is is_held
