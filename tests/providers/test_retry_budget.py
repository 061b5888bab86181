"""The retry budget bounds what an outage can multiply."""

from hypothesis import given
from hypothesis import strategies as st

from providers.config import RetryConfig
from providers.retry_budget import REFILL_S, RetryBudget, RetryBudgets


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_total_outage() -> None:
    """200 requests a second for a minute, each retrying as often as it may: at most 1.2 attempts a request, and the floor a minute."""
    clock = Clock()
    budget = RetryBudget(0.2, 3, 10.0, clock)
    requests = attempts = 0
    for _ in range(60 * 200):
        clock.now += 1 / 200
        budget.request()
        requests += 1
        attempts += 1
        while budget.try_spend():
            attempts += 1
    assert requests * 1.19 < attempts <= requests * 1.2 + 2 * 3


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(0, 5)), max_size=200), st.integers(0, 10), st.floats(0, 1))
def test_never_more_than_the_share(steps: list[tuple[float, int]], floor: int, share: float) -> None:
    """Over any traffic at all, retries stay within floor + share x requests + floor x minutes."""
    clock = Clock()
    budget = RetryBudget(share, floor, 10.0, clock)
    retries = 0
    for requests, (wait_s, tries) in enumerate(steps, start=1):
        clock.now += wait_s
        budget.request()
        retries += sum(budget.try_spend() for _ in range(tries))
        assert retries <= floor * (1 + clock.now / REFILL_S) + share * requests + 1e-6


def test_the_floor_serves_few_requests() -> None:
    """A first request may be retried; a minute later the whole floor is back, without a request."""
    clock = Clock()
    budget = RetryBudget(0.2, 3, 10.0, clock)
    budget.request()
    assert [budget.try_spend() for _ in range(4)] == [True, True, True, False]
    clock.now += REFILL_S / 3
    assert [budget.try_spend() for _ in range(2)] == [True, False]
    clock.now += REFILL_S
    assert [budget.try_spend() for _ in range(4)] == [True, True, True, False]


def test_old_savings_are_forgotten() -> None:
    """A busy healthy hour does not pay for a burst of retries in the quiet that follows."""
    clock = Clock()
    budget = RetryBudget(0.2, 3, 10.0, clock)
    for _ in range(10_000):
        budget.request()
    assert budget.balance == 2_000
    clock.now += 11
    budget.request()
    assert sum(budget.try_spend() for _ in range(100)) == 3


def test_five_requests_earn_one() -> None:
    """Fractions add up to a whole retry."""
    budget = RetryBudget(0.2, 0, 10.0, Clock())
    for _ in range(5):
        assert not budget.try_spend()
        budget.request()
    assert budget.try_spend()


def test_each_target_has_its_own() -> None:
    """What one target uses up is there for the other."""
    budgets = RetryBudgets(RetryConfig(), Clock())
    assert [budgets.of("a").try_spend() for _ in range(4)] == [True, True, True, False]
    assert budgets.of("b").try_spend()


def test_other_bounds_count_at_once() -> None:
    """For the budgets that are there, and for those to come."""
    budgets = RetryBudgets(RetryConfig(), Clock())
    assert budgets.of("a").balance == 3
    budgets.configure(RetryConfig(budget_floor=1, budget_window_s=20))
    assert [budgets.of(name).balance for name in ("a", "b")] == [1, 1]
    budgets.configure(RetryConfig(budget_floor=5))
    assert [budgets.of(name).balance for name in ("a", "b", "c")] == [5, 5, 5]


def test_another_configuration_counts_at_once() -> None:
    """A higher floor is there to be spent, a lower one no more than that; what requests have earned stays."""
    clock = Clock()
    budget = RetryBudget(0.0, 1, 10.0, clock)
    assert budget.try_spend()
    budget.configure(0.5, 3, 20.0)
    assert budget.balance == 2
    budget.configure(0.5, 0, 20.0)
    assert budget.balance == 0
    for _ in range(4):
        budget.request()
    assert budget.balance == 2
