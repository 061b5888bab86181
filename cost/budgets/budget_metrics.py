"""Prometheus metrics of budgets."""

from collections.abc import Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from cost.budgets.budget import BudgetStatus, Scope
from cost.prices import NANO_PER_USD

MAX_SHOWN: Final = 1_000


class BudgetMetrics:
    """Gauges of limit and spending per budget, and a counter of refusals per scope."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._shown: set[str] = set()
        # Every process sees the same books, so the newest view is the true one.
        self._limit, self._spent = (
            Gauge(name, text, ("budget_id",), registry=registry, multiprocess_mode="livemostrecent")
            for name, text in (
                ("weighbridge_budget_limit_usd", "Limit of the budget's period."),
                ("weighbridge_budget_spent_usd", "Cost booked in the budget's period."),
            )
        )
        self._refusals = Counter(
            "weighbridge_budget_refusals",
            "Times that a hard budget had no room, by its scope.",
            ("scope",),
            registry=registry,
        )

    def count_refusal(self, scope: Scope) -> None:
        """Count one refusal. The label has four possible values, so its cardinality needs no cap."""
        self._refusals.labels(scope).inc()

    def set_budgets(self, standings: Sequence[BudgetStatus]) -> None:
        """Set the gauges of the first `MAX_SHOWN` budgets, and remove those of budgets that are gone."""
        shown = {each.budget.budget_id: each for each in standings[:MAX_SHOWN]}
        for gone in self._shown - shown.keys():
            self._limit.remove(gone)
            self._spent.remove(gone)
        self._shown = set(shown)
        for budget_id, each in shown.items():
            self._limit.labels(budget_id).set(each.limit_nanousd / NANO_PER_USD)
            self._spent.labels(budget_id).set(each.spent_nanousd / NANO_PER_USD)
