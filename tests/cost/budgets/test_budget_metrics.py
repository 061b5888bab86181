import re

from prometheus_client import CollectorRegistry, generate_latest

from cost.budgets.budget import Budget, BudgetStatus
from cost.budgets.budget_metrics import BudgetMetrics


def test_a_budget_that_is_gone_shows_nothing() -> None:
    """Each budget has its limit and its spending in dollars, as long as there is one."""

    def shown() -> set[str]:
        return set(re.findall(r"^weighbridge_budget_.*", generate_latest(registry).decode(), re.MULTILINE))

    registry = CollectorRegistry()
    metrics = BudgetMetrics(registry)
    budget = Budget(
        budget_id="b1",
        organisation_id="default",
        scope="team",
        scope_id="team_a",
        period="month",
        kind="soft",
        limit_nanousd=500_000_000_000,
    )
    metrics.set_budgets([BudgetStatus(budget=budget, at_us=0, spent_nanousd=250_000_000)])
    assert shown() == {
        'weighbridge_budget_limit_usd{budget_id="b1"} 500.0',
        'weighbridge_budget_spent_usd{budget_id="b1"} 0.25',
    }
    metrics.set_budgets([])
    assert shown() == set()
    metrics.count_refusal("team")
    assert registry.get_sample_value("weighbridge_budget_refusals_total", {"scope": "team"}) == 1
