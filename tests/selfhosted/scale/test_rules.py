"""The rules that the policy is compared with."""

from selfhosted.config import ScaleConfig
from selfhosted.scale.rules import ConcurrencyRule, PerfectForecast, QueueRule
from selfhosted.scale.signals import Signals


def decided(rule: QueueRule | PerfectForecast, at_s: float, waiting: int, ready: int = 1) -> int:
    return rule.decide(Signals(at_s=at_s, wall_s=at_s, ready=ready, waiting=waiting)).desired


def test_the_queue_rule_polls_and_steps_as_the_hpa_does() -> None:
    """Every 15 s, by four or to twice as many, with a tolerance of a tenth."""
    rule = QueueRule(ScaleConfig(max_replicas=40))
    assert decided(rule, 0, 5) == 1
    assert decided(rule, 10, 500) == 1
    assert decided(rule, 15, 500) == 5
    assert decided(rule, 30, 500) == 10
    assert decided(rule, 45, 52) == 10
    assert decided(rule, 60, 56) == 12


def test_the_queue_rule_shrinks_after_five_minutes_by_half_a_minute() -> None:
    """The highest of five minutes counts, then half of the replicas may go in each minute."""
    rule = QueueRule(ScaleConfig(max_replicas=40))
    rule.decide(Signals(at_s=0, wall_s=0, ready=16, waiting=80))
    found = {at: decided(rule, at, 0, 16) for at in range(15, 600, 15)}
    assert found[285] == 16
    assert found[300] == 8
    assert found[345] == 8
    assert found[360] == 4


def test_the_queue_rule_sleeps_and_wakes_as_keda_does() -> None:
    """To zero after the cooldown, to one when anything waits."""
    rule = QueueRule(ScaleConfig(min_replicas=0))
    for at in range(0, 1_000, 15):
        decided(rule, at, 0)
    assert decided(rule, 1_005, 0) == 0
    assert decided(rule, 1_020, 1, 0) == 1


def test_who_knows_the_future_orders_a_cold_start_before() -> None:
    """And lets go when the last of it has come."""
    rule = PerfectForecast(ScaleConfig(), demand=lambda at: 5_000 if 1_000 <= at < 1_100 else 100, carries=1_000)
    assert [decided(rule, at, 0) for at in (600, 690, 1_090, 1_110)] == [1, 5, 5, 1]


def in_flight(rule: ConcurrencyRule, at_s: float, running: int, ready: int = 1) -> int:
    return rule.decide(Signals(at_s=at_s, wall_s=at_s, ready=ready, running=running)).desired


def test_the_concurrency_rule_takes_a_minute_and_panics_at_twice_as_many() -> None:
    """The mean of a minute counts; in a panic the last seconds do, and nothing shrinks until a minute after it."""
    rule = ConcurrencyRule(ScaleConfig(max_replicas=40), target=10)
    assert {in_flight(rule, at, 10) for at in range(5, 65, 5)} == {1}
    assert in_flight(rule, 65, 15) == 2
    assert [in_flight(rule, at, 200) for at in (70, 75)] == [11, 20]
    assert in_flight(rule, 80, 5, 20) == 20
    assert [in_flight(rule, at, 5, 20) for at in range(85, 200, 5)][-1] == 1
