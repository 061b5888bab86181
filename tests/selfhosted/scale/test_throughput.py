"""What a replica carries, as learnt."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfhosted.scale.throughput import PoolThroughput, SavedThroughput


def full(work: float) -> PoolThroughput:
    carried = PoolThroughput(0.1)
    carried.observe_replica(work, full=True, waited=True)
    return carried


def test_nothing_is_known_before_a_replica_was_full() -> None:
    """The guess counts until then, where there is one; half of what it does then is planned with."""
    light = PoolThroughput(0.1)
    light.observe_replica(500, full=False, waited=False)
    assert light.per_replica is None
    assert PoolThroughput(0.1, prior=7_000).per_replica == 7_000
    assert full(8_000).per_replica == pytest.approx(4_000)


def test_more_than_was_known_is_believed_at_once_and_less_only_of_work_that_waited() -> None:
    """First tokens can be late for other reasons, and replicas that are given less are not slower ones."""
    carried = full(1_000)
    for _ in range(20):
        carried.observe_replica(8_000, full=False, waited=False)
    assert carried.learnt.full == pytest.approx(8_000, rel=0.01)
    for _ in range(500):
        carried.observe_replica(100, full=True, waited=False)
    assert carried.learnt.full == pytest.approx(8_000, rel=0.01)
    for _ in range(500):
        carried.observe_replica(4_000, full=True, waited=True)
    assert carried.learnt.full == pytest.approx(4_000, rel=0.01)


def test_the_share_follows_how_many_first_tokens_are_late() -> None:
    """Down when too many were, up when fewer than may be, and settled when as many."""
    down, up, settled = full(1_000), full(1_000), full(1_000)
    for _ in range(300):
        down.observe_minute(100, 0.5)
        up.observe_minute(100, 0.0)
        settled.observe_minute(100, 0.1)
    assert down.learnt.share < 0.2
    assert up.learnt.share > 0.65
    assert settled.learnt.share == pytest.approx(0.5)


def test_what_is_late_anyway_orders_nothing() -> None:
    """Prompts that take longer than the target on an empty engine: no number of replicas cures that."""
    carried = full(1_000)
    for _ in range(1_000):
        carried.observe_minute(100, 0.3, busiest=100)
    assert carried.learnt.anyway == pytest.approx(0.3, abs=0.01)
    assert carried.learnt.share > 0.5


@given(st.lists(st.tuples(st.floats(), st.booleans(), st.booleans(), st.floats(), st.floats()), max_size=60))
def test_it_stays_within_its_range_whatever_it_is_told(
    seen: list[tuple[float, bool, bool, float, float]],
) -> None:
    """Work and counts come from engines, which may say anything."""
    carried = PoolThroughput(0.1)
    for work, is_full, waited, requests, missed in seen:
        carried.observe_replica(work, full=is_full, waited=waited)
        carried.observe_minute(requests, missed, busiest=work)
    assert carried.learnt.sound
    assert carried.per_replica is None or carried.per_replica > 0


@pytest.mark.parametrize(
    "odd",
    [SavedThroughput(full=-1), SavedThroughput(full=math.nan), SavedThroughput(share=9), SavedThroughput(anyway=2)],
)
def test_what_cannot_have_been_learnt_is_not_believed(odd: SavedThroughput) -> None:
    """It may come from another version."""
    assert PoolThroughput(0.1, learnt=odd).learnt == SavedThroughput()
