"""Wiring of the books of one process that serves requests: its journal, and the budgets before it."""

import contextlib
from collections.abc import Callable
from typing import NamedTuple

from sqlalchemy.ext.asyncio import AsyncEngine

from cost.budgets.budget_reservations import BudgetReservations
from cost.budgets.budgeted_ledger import BudgetedBooks
from cost.budgets.grants import Grants
from cost.config import CostSection
from cost.ledger.journal import Awaiting, Journal
from cost.ledger.ledger import Ledger
from gateway.link.data_sources import DataSources
from gateway.wiring.metrics import AllMetrics
from selfhosted.pools.fleet import Fleet


class WorkerLedger(NamedTuple):
    """The books of a process that serves requests. `budgeted` is the ledger behind the budgets, through which attempts
    are booked.
    """

    ledger: Ledger
    holds: BudgetReservations
    budgeted: BudgetedBooks


class ProcessParts(NamedTuple):
    """The parts that a process opens before its pipeline."""

    engine: AsyncEngine
    """The database, for what a caller waits for."""
    sources: DataSources
    books: WorkerLedger
    fleet: Fleet

    @property
    def boot_id(self) -> str:
        """Id of the process, as in its entries."""
        return self.books.ledger.boot_id


def open_journal(section: CostSection, awaiting: Awaiting | None = None) -> Journal:
    """Open this process's journal. `awaiting` is told of attempts that the database has. Raises LedgerUnavailable."""
    journal = Journal(
        section.journal_dir, sync=section.journal_sync, max_bytes=section.max_journal_bytes, awaiting=awaiting
    )
    journal.open()
    return journal


async def open_worker_ledger(
    section: CostSection,
    grants: Grants,
    metrics: AllMetrics,
    now_us: Callable[[], int],
    stack: contextlib.AsyncExitStack,
) -> WorkerLedger:
    """Open journal, ledger and budgets; none of them touches a database but through `grants`."""
    journal: Journal
    holds = BudgetReservations(
        grants,
        lambda: journal.boot_id,
        patience_s=section.budgets.patience_s,
        poll_s=section.budgets.poll_s,
        now_us=now_us,
        refused=metrics.budgets.count_refusal,
        look=lambda: journal.look(),  # noqa: PLW0108  It is opened below, for the holds.
    )
    journal = open_journal(section, holds)
    ledger = Ledger(journal)
    await ledger.start()
    # The lock is let go last: once it is, the drain takes the process for dead, and its grants with it.
    stack.push_async_callback(ledger.aclose)
    await holds.start()
    # What is not in the database by then stays covered.
    stack.push_async_callback(holds.aclose)
    stack.push_async_callback(ledger.wait_drained)
    return WorkerLedger(ledger, holds, BudgetedBooks(ledger, holds))
