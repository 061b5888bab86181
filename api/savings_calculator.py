"""Savings and the bills of self-hosted GPUs, for the routes, the command line, and the nightly jobs."""

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.learning.store import LearningStore
from cost.calendar import Days
from cost.config import CostSection
from cost.fleet.cost_adjustment import TrueUpRounds, TrueUpStore
from cost.fleet.pool_config import PoolSection, pool_of_target
from cost.ledger.store import LedgerStore
from cost.reports.scope import ReadScope
from cost.savings.comparisons import Ground
from cost.savings.savings_reader import ARMS_WITHIN_S, SavingsInputs, SavingsReader
from cost.savings.savings_report import SavingsReport, savings_as_json, savings_report
from proxy.plan.evidence import PUBLISHED, UNMEASURED, Evidence


class SavingsCalculator:
    """The calculation of a scope's savings. `section` returns the current configuration; `operator` is the organisation
    that pays for the gateway; `evidence` tells of a target id what a choice of it rests on, the baseline model counted
    in, and `costs_nothing` whether its tokens are booked as those of an own engine.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        section: Callable[[], CostSection],
        now_us: Callable[[], int],
        *,
        operator: str,
        evidence: Callable[[str], Evidence],
        costs_nothing: Callable[[str], bool] = lambda _target_id: False,
        arms_within_s: float = ARMS_WITHIN_S,
    ) -> None:
        self._section = section
        self._operator = operator
        self._now_us = now_us
        self._learning = LearningStore(engine)
        self.fleet = TrueUpStore(engine, LedgerStore(engine))
        self.rounds = TrueUpRounds(self.fleet, lambda: section().pools, now_us)
        self._evidence = evidence
        self._costs_nothing = costs_nothing
        self._reader = SavingsReader(engine, self.fleet, ground_of=self._ground, arms_within_s=arms_within_s)

    def _ground(self, target_id: str) -> Ground:
        if target_id == self._section().reference_target:
            return "measured"
        evidence = self._evidence(target_id)
        return "unmeasured" if evidence in UNMEASURED else "published" if evidence in PUBLISHED else "measured"

    @property
    def pools(self) -> Sequence[PoolSection]:
        """Self-hosted pools with their costs, as configured now."""
        return self._section().pools

    async def inputs(self, scope: ReadScope, days: Days) -> SavingsInputs:
        """Read the inputs of a savings report for these days. Raises BadQuery."""
        start_us, end_us = max(0, days.start_us), days.end_us
        return await self._reader.read(scope, self._section().pools, start_us, end_us, self._now_us(), days.calendar)

    async def report(self, scope: ReadScope, inputs: SavingsInputs) -> SavingsReport:
        """Return the report on these inputs. A team's has neither idle GPUs nor the gateway: they are the organisation's.

        The gateway's own cost is counted once, with the organisation that operates it.
        """
        section = self._section()
        pays = scope.team_id is None and scope.organisation_id == self._operator
        billed = pool_of_target(section.pools)
        judged = await self._learning.adequacy(scope.organisation_id, scope.team_id, inputs.start_us, inputs.end_us)
        return savings_report(
            inputs,
            target=section.savings_target,
            gateway_usd_per_hour=section.gateway_usd_per_hour if pays else Decimal(0),
            now_us=self._now_us(),
            judged=judged,
            is_unbilled=lambda target_id: target_id not in billed and self._costs_nothing(target_id),
        )

    def as_json(self, scope: ReadScope, found: SavingsReport) -> dict[str, Any]:
        """Return the report as JSON values, with the names of its comparators."""
        section = self._section()
        return {
            **savings_as_json(found),
            "organisation_id": scope.organisation_id,
            "team_id": scope.team_id,
            "reference_target": section.reference_target,
            "hosted_targets": dict(section.hosted),
        }
