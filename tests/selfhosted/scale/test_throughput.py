"""What a replica carries, as learnt."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfhosted.scale.throughput import PoolThroughput, SavedThroughput


def full(work: float) -> PoolThroughput:
    carried = PoolThroughput(0.1, 0.05)
    carried.observe_replica(work, full=True, waited=True)
    return carried


def test_nothing_is_known_before_a_replica_was_full_or_under_pressure() -> None:
    """The guess counts until then, where there is one; six tenths of what a full one does are planned with."""
    light = PoolThroughput(0.1, 0.05)
    light.observe_replica(500, full=False, waited=False)
    assert light.per_replica is None
    assert PoolThroughput(0.1, 0.05, prior=7_000).per_replica == 7_000
    assert full(8_000).per_replica == pytest.approx(4_800)


def test_what_a_replica_carries_is_known_from_the_first_minute_under_pressure() -> None:
    """Half the pressure that may be at 500 means 1,000; a busy minute counts more than a quiet one, nonsense not at all."""
    carried = PoolThroughput(0.1, 0.05)
    carried.observe_pressure(500, 0.5)
    assert carried.per_replica == pytest.approx(1_000)
    carried.observe_pressure(50, 0.25)
    assert carried.per_replica == pytest.approx(1_000, rel=0.1)
    for work, pressure in ((math.nan, 0.5), (500, math.inf), (500, 0.01), (0.0, 0.5)):
        carried.observe_pressure(work, pressure)
    assert carried.per_replica == pytest.approx(1_000, rel=0.1)


def test_a_minute_that_is_not_over_is_asked_about_and_not_learnt() -> None:
    """As it would be with it; of nonsense as it is."""
    carried, same = PoolThroughput(0.1, 0.05), PoolThroughput(0.1, 0.05)
    for each in (carried, same):
        each.observe_pressure(300, 0.3)
    shown = carried.with_minute(2_200, 0.5)
    assert carried.per_replica == pytest.approx(1_000)
    assert carried.with_minute(math.nan, 0.5) == carried.per_replica
    same.observe_pressure(2_200, 0.5)
    assert shown == same.per_replica == pytest.approx(4_300, rel=0.05)


def test_how_long_a_token_takes_alone_is_a_guess_until_it_was_seen() -> None:
    """A third of the target; a shorter mean at once, a longer one only of replicas with little to do."""
    carried = PoolThroughput(0.1, 0.06)
    assert carried.alone_s == pytest.approx(0.02)
    carried.observe_tokens(0.04, running=30)
    assert carried.alone_s == pytest.approx(0.02)
    carried.observe_tokens(0.01, running=30)
    assert carried.alone_s == pytest.approx(0.01)
    for _ in range(60):
        carried.observe_tokens(0.03, running=1)
    assert carried.alone_s == pytest.approx(0.03, rel=0.01)


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


def test_the_share_follows_how_many_are_late_or_slow() -> None:
    """Down when too many were, whichever it is, up when fewer than may be, and settled when as many."""
    late, slow, up, settled = full(1_000), full(1_000), full(1_000), full(1_000)
    for _ in range(120):
        late.observe_minute(100, 0.5, 0.0, light=False, each=100)
        slow.observe_minute(100, 0.0, 0.5, light=False, each=100)
        up.observe_minute(100, 0.0, 0.0, light=False, each=900)
        settled.observe_minute(100, 0.1, 0.1, light=False, each=600)
    assert late.learnt.share == slow.learnt.share == pytest.approx(0.3)
    assert up.learnt.share == pytest.approx(1.6)
    assert settled.learnt.share == pytest.approx(1.0)


def test_a_minute_that_was_not_as_planned_says_nothing_of_the_share() -> None:
    """Too much came, and answers were late; two thirds came or next to nothing, and none was."""
    carried = full(1_000)
    for _ in range(60):
        carried.observe_minute(100, 0.9, 0.9, light=False, each=900)
        carried.observe_minute(100, 0.0, 0.0, light=False, each=400)
        carried.observe_minute(100, 0.0, 0.0, light=False, each=200)
    assert carried.learnt.share == 1


def test_what_is_late_anyway_orders_nothing() -> None:
    """Prompts that take longer than the target on an empty engine: no number of replicas cures that."""
    carried = full(1_000)
    for _ in range(1_000):
        carried.observe_minute(100, 0.3, 0.0, light=True, each=600)
    assert carried.learnt.anyway == pytest.approx(0.3, abs=0.01)
    assert carried.learnt.share > 1


@given(
    st.lists(st.tuples(st.floats(), st.booleans(), st.booleans(), st.floats(), st.floats(), st.floats()), max_size=60)
)
def test_it_stays_within_its_range_whatever_it_is_told(
    seen: list[tuple[float, bool, bool, float, float, float]],
) -> None:
    """Work and counts come from engines, which may say anything."""
    carried = PoolThroughput(0.1, 0.05)
    for work, is_full, waited, requests, missed, slow in seen:
        carried.observe_replica(work, full=is_full, waited=waited)
        carried.observe_pressure(work, slow)
        carried.observe_tokens(requests, running=missed)
        carried.observe_minute(requests, missed, slow, light=waited, each=work)
    assert carried.learnt.sound
    assert carried.per_replica is None or carried.per_replica > 0


@pytest.mark.parametrize(
    "odd",
    [
        SavedThroughput(full=-1),
        SavedThroughput(full=math.nan),
        SavedThroughput(share=9),
        SavedThroughput(anyway=2),
        SavedThroughput(work=math.inf),
    ],
)
def test_what_cannot_have_been_learnt_is_not_believed(odd: SavedThroughput) -> None:
    """It may come from another version."""
    assert PoolThroughput(0.1, 0.05, learnt=odd).learnt == SavedThroughput()
