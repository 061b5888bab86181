"""Whether an hour of one more replica is worth buying."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfhosted.scale.worth import GRAIN_S, Market, SavedWorth, Worth
from tests.examples import examples

pytestmark = pytest.mark.story

COLD_S = 300.0


def market(break_even: float = 0.25) -> Market:
    """One unit of work per second keeps a replica busy, and costs a dollar elsewhere."""
    return Market(replica_usd_per_s=break_even, elsewhere_usd=1.0, carries=1.0)


def worth(saved: SavedWorth | None = None, *, least: int = 0, most: int = 20) -> Worth:
    return Worth(least=least, most=most, cold_start_s=COLD_S, usual=lambda _wall_s: None, saved=saved)


def live(it: Worth, work: float, seconds: float, break_even: float = 0.25, from_s: float = 0.0) -> int | None:
    """Work that arrives evenly for some seconds. Returns what is wanted then."""
    for step in range(round(seconds / GRAIN_S)):
        it.observe(work, market(break_even), GRAIN_S, from_s + (step + 1) * GRAIN_S)
    return it.wanted


def test_nothing_is_wanted_before_anything_was_seen() -> None:
    """Unknown is not idle."""
    assert worth().wanted is None
    assert live(worth(), 1.0, GRAIN_S) is None


@pytest.mark.parametrize(
    ("work", "break_even", "replicas"), [(3.0, 0.25, 3), (3.5, 0.25, 4), (3.5, 0.7, 3), (0.2, 0.25, 0), (3.0, 1.5, 0)]
)
def test_each_rank_is_bought_that_is_busy_for_longer_than_its_price_asks(
    work: float, break_even: float, replicas: int
) -> None:
    """The fourth replica carries half of its time, which pays at a quarter and does not at 70 %."""
    assert live(worth(), work, 3_600, break_even) == replicas


def test_large_requests_make_the_next_rank_worth_more() -> None:
    """Work of two replicas overflows two often, if it comes in large pieces: a third is bought that steady work does not need."""

    def wanted(request_s: float, break_even: float) -> int | None:
        it = Worth(least=0, most=20, cold_start_s=COLD_S, usual=lambda _wall_s: None, bears_s=1.0)
        for step in range(720):
            it.observe(2.0, market(break_even), GRAIN_S, (step + 1) * GRAIN_S, request_s=request_s)
        return it.wanted

    assert wanted(0.0, 0.14) == 2
    assert wanted(0.5, 0.14) == 3
    assert wanted(0.5, 0.5) == 2
    assert wanted(float("inf"), 0.1) == 2


def test_what_would_arrive_after_the_burst_is_not_bought() -> None:
    """Three minutes of ten times the work are over before a replica has started."""
    it = worth()
    assert live(it, 1.0, 8 * 3_600) == 1
    assert live(it, 10.0, 180, from_s=8 * 3_600) == 1


def test_a_level_that_moved_for_good_is_followed() -> None:
    """After an hour of more work than before, more replicas are there."""
    it = worth()
    live(it, 1.0, 8 * 3_600)
    assert (live(it, 5.0, 3 * 3_600, from_s=8 * 3_600) or 0) >= 4
    assert live(it, 0.0, 4 * 3_600, from_s=11 * 3_600) == 0


def test_the_minimum_holds_whatever_it_earns() -> None:
    """min_replicas is a promise, not a question of price."""
    assert live(worth(least=2), 0.0, 3_600) == 2


@pytest.mark.parametrize(
    "break_even", [0.5, *(pytest.param(each, marks=pytest.mark.long) for each in (0.05, 0.2, 0.9))]
)
def test_bursts_that_cannot_be_met_cost_little_more_than_the_best_fixed_fleet(break_even: float) -> None:
    """Bursts of four minutes every half hour: on paper and in truth, nobody can order for them."""
    it, bill, day = worth(), 0.0, 2 * 86_400
    fixed = [0.0] * 12
    ready = 0
    starting: list[float] = []
    for step in range(round(day / GRAIN_S)):
        at_s = step * GRAIN_S
        work = 8.0 if at_s % 1_800 < 240 else 1.0
        ready += sum(when <= at_s for when in starting)
        starting = [when for when in starting if when > at_s]
        bill += ((ready + len(starting)) * break_even + max(0.0, work - ready)) * GRAIN_S
        for replicas in range(12):
            there = replicas if at_s >= COLD_S else 0
            fixed[replicas] += (replicas * break_even + max(0.0, work - there)) * GRAIN_S
        it.observe(work, market(break_even), GRAIN_S, at_s + GRAIN_S)
        wanted = it.wanted or 0
        starting += [at_s + GRAIN_S + COLD_S] * (wanted - ready - len(starting))
        while ready + len(starting) > wanted:
            if starting:
                starting.pop()
            else:
                ready -= 1
    assert bill <= 1.05 * min(fixed[1:])


def test_what_was_learnt_survives_a_restart() -> None:
    """The next process wants what the last one wanted."""
    it = worth()
    live(it, 3.0, 3_600)
    again = msgspec.json.decode(msgspec.json.encode(it.saved()), type=SavedWorth)
    assert worth(again).wanted == it.wanted == 3


@given(st.lists(st.floats(), max_size=4), st.integers(-2, 9))
@settings(max_examples=examples(50))
def test_a_corrupt_state_is_not_believed(busy: list[float], follows: int) -> None:
    """It may come from another version: nothing of it may end the loop."""
    it = worth(SavedWorth(busy=busy, follows=follows))
    assert live(it, 2.0, 120) is not None
