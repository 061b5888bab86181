"""The simulated day of batches, an hour of it."""

import pytest

from benchmarks.batch_day import Day, Plan, Policy, carried_per_s, simulated, table
from planner.simulate.machines import Machine, machine_of


@pytest.fixture(scope="module")
def machine() -> Machine:
    return machine_of(max_num_seqs=2, max_num_batched_tokens=2_048)


def test_the_cheapest_way_keeps_every_promise_for_less(machine: Machine) -> None:
    """More work than the engine carries: own engines alone are late, and the rule costs less than any way that is not.

    The same day comes out the same.
    """
    per_s = carried_per_s(machine)

    def day(policy: Policy) -> Day:
        plan = Plan(hours=1.0, load=1.3, hourly=0.0, at_once=16, turnaround_s=200.0, spread=0.2)
        return simulated(plan, policy, machine, per_s)

    rule, own, calls = day("rule"), day("own"), day("calls")
    assert rule.kept == rule.lines == calls.kept
    assert own.kept < own.lines
    assert 0 < rule.bought_usd < calls.bought_usd
    assert sum(rule.by_way.values()) == rule.lines
    again = day("rule")
    assert (again.bought_usd, again.p95_s) == (rule.bought_usd, rule.p95_s)
    assert "100.0%" in table([rule])


def test_no_batch_starves_beside_more_interactive_work_than_the_engine_carries(machine: Machine) -> None:
    """All day, with nothing idle: money buys what time does not, and every promise is kept."""
    per_s = carried_per_s(machine)
    plan = Plan(hours=1.0, interactive=1.1, load=1.5, hourly=0.0, at_once=16, turnaround_s=200.0, spread=0.2)
    day = simulated(plan, "rule", machine, per_s)
    assert day.kept == day.lines > 0
    assert day.by_way["provider"] + day.by_way["calls"] > day.lines / 3
