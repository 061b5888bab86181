"""Facts for closing a month: its lines, savings, provider bills, checks of the books, and what people said of it."""

from collections.abc import Callable

import msgspec
from sqlalchemy.ext.asyncio import AsyncEngine

from api.savings_calculator import SavingsCalculator
from cost.close.checklist import MonthFacts
from cost.close.checks import MonthChecks
from cost.close.closing import MonthClosing
from cost.close.month import Month
from cost.dimensions import Dimension
from cost.ledger.late_entries import Late, late_between
from cost.reconcile.coverage import compared_days
from cost.reports.period import PeriodLine, PeriodReader, SpendSum, spent
from cost.reports.scope import ReadScope
from cost.savings.savings_report import SavingsReport


class ClosingMonth(msgspec.Struct, frozen=True, kw_only=True):
    """A month to be closed, with the previous month's spend to compare with."""

    facts: MonthFacts
    savings: SavingsReport
    before: SpendSum
    late: tuple[Late, ...] = ()
    """Bookings that belong to the month and came after it was signed: they stand in a later one."""
    taken_over: tuple[Late, ...] = ()
    """Bookings that stand in the month and belong to an earlier one, which was signed before they came."""

    @property
    def lines(self) -> tuple[PeriodLine, ...]:
        """The month's cost by team, model and provider."""
        return self.facts.lines

    @property
    def gateway_nanousd(self) -> int:
        """Cost of the gateway's own machines, which the ledger does not contain. Nano-dollars."""
        return self.savings.parts["gateway"]


class MonthClose:
    """A reader of a scope's months."""

    def __init__(self, engine: AsyncEngine, savings: SavingsCalculator, now_us: Callable[[], int]) -> None:
        self._engine = engine
        self._periods = PeriodReader(engine)
        self._closing = MonthClosing(engine, now_us)
        self._checks = MonthChecks(engine, now_us)
        self._savings = savings
        self._now_us = now_us

    async def read(self, scope: ReadScope, month: Month) -> ClosingMonth:
        """Return the month with its savings and the previous month's spend."""
        facts, savings = await self._facts(scope, month)
        before = month.previous
        lines = await self._periods.lines(scope, before.start_us, before.end_us, ())
        late, taken_over = [
            await late_between(self._engine, scope.organisation_id, month.days, posted=posted)
            for posted in (False, True)
        ]
        return ClosingMonth(facts=facts, savings=savings, before=spent(lines), late=late, taken_over=taken_over)

    async def facts(self, scope: ReadScope, month: Month) -> MonthFacts:
        """Return facts for the list of steps alone."""
        return (await self._facts(scope, month))[0]

    async def _facts(self, scope: ReadScope, month: Month) -> tuple[MonthFacts, SavingsReport]:
        by: tuple[Dimension, ...] = ("team", "model", "provider")
        lines = await self._periods.lines(scope, month.start_us, month.end_us, by)
        inputs = await self._savings.inputs(scope, month.days)
        savings = await self._savings.report(scope, inputs)
        pays = [pool.name for pool in self._savings.pools if pool.organisation == scope.organisation_id]
        uses = {line.pool for line in lines if line.pool}
        # Providers' books are of UTC.
        theirs = Month(month.year, month.number)
        invoiced = lines
        if (theirs.start_us, theirs.end_us) != (month.start_us, month.end_us):
            invoiced = await self._periods.lines(scope, theirs.start_us, theirs.end_us, by)
        facts = MonthFacts(
            month=month,
            invoiced=invoiced,
            now_us=self._now_us(),
            check=await self._checks.known(month),
            lines=lines,
            pools=tuple(sorted({*pays, *uses})),
            provisional_days=inputs.provisional_days,
            unpriced_attempts=savings.figures.unpriced_attempts,
            used_days=await self._periods.used_days(scope, theirs.start_us, theirs.end_us),
            compared=await compared_days(self._engine, scope.organisation_id, theirs.start_us, theirs.end_us),
            marks=await self._closing.marks(scope.organisation_id, month),
        )
        return facts, savings
