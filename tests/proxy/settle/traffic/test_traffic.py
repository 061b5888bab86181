"""Traffic by minute: figures grow, twice is once, quarters are sums of minutes, and quantiles stand for what was measured."""

import random

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.times import MINUTE_US
from proxy.settle.traffic.counting import MOST_MINUTES, Traffic
from proxy.settle.traffic.store import KEPT_US, MINUTES_FOR_US, QUARTER_US, TrafficStore
from proxy.settle.traffic.waits import RANGES, quantile_s, range_of
from tests.proxy.settle.refusals.test_counting import outcome

NOW_US = 1_000_000 * QUARTER_US
ANSWER = {"status": 200, "stream": True, "ttft_s": 0.4, "input_tokens": 80, "output_tokens": 20, "cost_nanousd": 5_000}


def test_a_minute_has_what_ended_in_it() -> None:
    """Refusals are no errors, a request without a known cost adds no priced tokens, and who hung up is only a request."""
    traffic = Traffic(lambda: NOW_US + 1)
    for changes in (ANSWER, {**ANSWER, "cost_nanousd": None}, {"status": 502}, {"status": 429}, {"status": 499}):
        traffic.finished(outcome(**changes))
    traffic.count_shed()
    traffic.look(3)
    traffic.look(2)
    (minute,) = traffic.changed_after(0, "b").minutes
    assert (minute.minute_us, minute.requests, minute.errors, minute.refusals) == (NOW_US, 6, 1, 2)
    assert (minute.output_tokens, minute.priced_tokens, minute.cost_nanousd) == (40, 100, 5_000)
    assert (minute.waiting, sum(minute.ttft), minute.ttft[range_of(0.4)]) == (3, 2, 2)


def test_only_what_changed_is_told_and_what_was_read_is_let_go_of() -> None:
    """A look that finds no more than before changes nothing."""
    clock = [NOW_US]
    traffic = Traffic(lambda: clock[0])
    traffic.look(0)
    first = traffic.changed_after(0, "b")
    traffic.look(0)
    assert len(first.minutes) == 1
    assert traffic.changed_after(first.mark, "b").minutes == ()
    clock[0] += 60 * MINUTE_US
    assert len(traffic.changed_after(0, "b").minutes) == 1
    traffic.changed_after(first.mark, "b")
    assert traffic.changed_after(0, "b").minutes == ()


def test_what_nobody_reads_has_a_bound() -> None:
    """The newest minutes stay."""
    clock = [NOW_US]
    traffic = Traffic(lambda: clock[0])
    for _ in range(MOST_MINUTES + 5):
        traffic.look(0)
        clock[0] += MINUTE_US
    minutes = traffic.changed_after(0, "b").minutes
    assert len(minutes) == MOST_MINUTES
    assert max(each.minute_us for each in minutes) == clock[0] - MINUTE_US


@pytest.mark.parametrize("share", [0.5, 0.95, 0.99])
def test_a_quantile_is_near_the_measured_one(share: float) -> None:
    """Within a quarter, over five orders of magnitude."""
    rng = random.Random(7)
    measured = sorted(rng.lognormvariate(0, 1.5) for _ in range(5_000))
    counts = [0] * RANGES
    for each in measured:
        counts[range_of(each)] += 1
    assert quantile_s(counts, share) == pytest.approx(measured[int(share * len(measured))], rel=0.25)


def test_a_quantile_of_nothing_is_unknown_and_of_what_is_too_long_the_bound() -> None:
    """Never 0, and never an index beyond the ranges."""
    assert quantile_s([], 0.5) is None
    assert quantile_s([0] * RANGES, 0.5) is None
    counts = [0] * RANGES
    counts[range_of(1e6)] = 1
    assert quantile_s(counts, 0.5) == pytest.approx(359.0, rel=0.01)


def counted(at_us: int, requests: int, waiting: int) -> Traffic:
    traffic = Traffic(lambda: at_us)
    for _ in range(requests):
        traffic.finished(outcome(**ANSWER))
    traffic.look(waiting)
    return traffic


async def test_twice_is_once_and_processes_add_up(engine: AsyncEngine) -> None:
    """An older telling of a minute does not replace a newer one."""
    store = TrafficStore(engine)
    traffic = counted(NOW_US, 2, 4)
    old = traffic.changed_after(0, "a")
    await store.keep(old)
    await store.keep(old)
    await store.keep(counted(NOW_US, 5, 3).changed_after(0, "b"))
    await store.keep(counted(NOW_US, 1, 0).changed_after(0, "a"))
    (interval,) = await store.read(NOW_US, NOW_US + MINUTE_US, MINUTE_US)
    assert (interval.requests, interval.waiting, interval.cost_nanousd, sum(interval.ttft)) == (7, 7, 35_000, 7)


async def test_minutes_become_quarters_and_nothing_is_lost(engine: AsyncEngine) -> None:
    """What is told late is added to its quarter; a month later it is gone."""
    store = TrafficStore(engine)
    for minute in range(15):
        for boot_id in ("a", "b"):
            traffic = counted(NOW_US + minute * MINUTE_US, 1, minute)
            await store.keep(traffic.changed_after(0, boot_id))
    before = await store.read(NOW_US, NOW_US + QUARTER_US, QUARTER_US)
    later_us = NOW_US + QUARTER_US + MINUTES_FOR_US
    await store.roll_up(later_us - 1)
    assert len(await store.read(NOW_US, later_us, MINUTE_US)) == 15
    await store.roll_up(later_us)
    assert await store.read(NOW_US, later_us, MINUTE_US) == before
    assert (before[0].requests, before[0].waiting) == (30, 28)
    await store.keep(counted(NOW_US, 3, 99).changed_after(0, "late"))
    await store.roll_up(later_us)
    (after,) = await store.read(NOW_US, later_us, MINUTE_US)
    assert (after.requests, after.waiting, sum(after.ttft), after.cost_nanousd) == (33, 99, 33, 165_000)
    await store.roll_up(NOW_US + KEPT_US + 1)
    assert await store.read(0, later_us, MINUTE_US) == ()
