"""Buckets of one process: alone, and as its share of what several have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.admit.limits.limit import Limit
from proxy.admit.limits.limit_set import LimitSet, LimitSetCache, Outcome
from proxy.admit.limits.local import LocalBuckets
from tests.proxy.admit.limits.direct import PREFIX, limit

_S = 1_000_000.0


def draw(*limits: Limit) -> LimitSet:
    return LimitSet(limits, PREFIX)


def admitted(buckets: LocalBuckets, drawn: LimitSet, tokens: int = 0, *, at_s: float = 0.0, live: int = 1) -> bool:
    return buckets.admit(drawn, tokens, at_s * _S, live).admitted


def test_the_draw_of_the_same_limits_is_made_once() -> None:
    """Each request looks it up."""
    draws = LimitSetCache(PREFIX)
    limits = (limit("tokens", 5), limit("requests", 7))
    assert draws.of(limits) is draws.of(limits)
    assert [each.kind for each in draws.of(limits).limits] == ["requests", "tokens"]


def test_a_full_bucket_grants_its_burst_and_then_what_is_refilled() -> None:
    """One a second."""
    buckets, drawn = LocalBuckets(), draw(limit("requests", 60))
    assert all(admitted(buckets, drawn) for _ in range(60))
    assert not admitted(buckets, drawn)
    assert admitted(buckets, drawn, at_s=1.0)
    assert not admitted(buckets, drawn, at_s=1.0)


@given(st.integers(1, 80), st.integers(0, 60), st.integers(0, 3))
def test_a_refusal_takes_nothing_anywhere(tokens: int, used: int, running: int) -> None:
    """Whichever of its limits refuses (rivals leak here)."""
    buckets = LocalBuckets()
    drawn = draw(limit("requests", 60), limit("tokens", 80), limit("concurrency", 3))
    for _ in range(running):
        buckets.admit(drawn, 0, 0.0, 1)
    buckets.settle(drawn, -used, 0.0, 1)
    before = buckets.peek(drawn, _S, 1)
    if not buckets.admit(drawn, tokens, _S, 1).admitted:
        assert buckets.peek(drawn, _S, 1) == before
        assert buckets.in_flight.get(limit("concurrency", 3).key, 0) == running


def test_settling_refunds_and_leaves_debts() -> None:
    """A debt is paid by refilling before anything else gets in."""
    buckets, drawn = LocalBuckets(), draw(limit("tokens", 600))
    assert admitted(buckets, drawn, 500)
    buckets.settle(drawn, 400, 0.0, 1)
    assert admitted(buckets, drawn, 500)
    buckets.settle(drawn, -100, 0.0, 1)
    assert not admitted(buckets, drawn, 1, at_s=10.0)
    assert admitted(buckets, drawn, 1, at_s=10.2)


def test_places_in_flight_are_given_back() -> None:
    """The limit is on what runs at the same time."""
    buckets, drawn = LocalBuckets(), draw(limit("concurrency", 2))
    assert admitted(buckets, drawn)
    assert admitted(buckets, drawn)
    assert not admitted(buckets, drawn)
    buckets.end(drawn)
    assert admitted(buckets, drawn)
    buckets.end(drawn)
    buckets.end(drawn)
    assert buckets.in_flight == {}


def test_changed_limits_keep_the_level_and_clip_it() -> None:
    """A key that has used its limit does not get another by a reload."""
    buckets = LocalBuckets()
    assert admitted(buckets, draw(limit("tokens", 100)), 90)
    assert buckets.peek(draw(limit("tokens", 1000)), 0.0, 1).figures == [10.0]
    assert buckets.peek(draw(limit("tokens", 4)), 0.0, 1).figures == [4.0]


def test_old_buckets_are_forgotten_but_never_what_is_in_flight() -> None:
    """Memory is bounded, and a place that was taken is always known."""
    buckets = LocalBuckets(most=3)
    first = draw(limit("requests", 5, whose="first"), limit("concurrency", 1, whose="first"))
    assert admitted(buckets, first)
    for number in range(10):
        assert admitted(buckets, draw(limit("requests", 5, whose=f"t{number}")))
    assert len(buckets) == 3
    assert not admitted(buckets, first)
    buckets.end(first)
    assert buckets.peek(first, 0.0, 1).figures == [5.0, 0]


def test_each_of_several_processes_enforces_its_share() -> None:
    """Together they are the limit; places are rounded up."""
    rate, places = draw(limit("requests", 60)), draw(limit("concurrency", 30))
    shares = [LocalBuckets() for _ in range(4)]
    assert [sum(admitted(each, rate, live=4) for _ in range(40)) for each in shares] == [15] * 4
    assert [sum(admitted(each, rate, live=4, at_s=8.0) for _ in range(40)) for each in shares] == [2] * 4
    assert [sum(admitted(each, places, live=4) for _ in range(40)) for each in shares] == [8] * 4


def test_a_request_above_a_share_but_not_above_the_limit_waits_for_a_full_share() -> None:
    """It would otherwise never get in while Redis is away. What it takes too much is a debt."""
    buckets, drawn = LocalBuckets(), draw(limit("tokens", 600))
    assert admitted(buckets, drawn, 400, live=4)
    assert buckets.peek(drawn, 0.0, 4).figures == [-250.0]
    assert not admitted(buckets, drawn, 400, live=4, at_s=159.0)
    assert admitted(buckets, drawn, 400, live=4, at_s=160.0)


def test_a_share_begins_with_its_part_of_what_redis_told() -> None:
    """Not with a full bucket."""
    buckets, drawn = LocalBuckets(), draw(limit("requests", 60))
    buckets.learn(drawn, Outcome(True, 7 * _S, [20.0]), 0.0)
    assert buckets.peek(drawn, 0.0, 4).figures == [5.0]
    assert buckets.peek(drawn, 20 * _S, 4).figures == [10.0]
    assert buckets.peek(drawn, 600 * _S, 4).figures == [15.0]


def test_what_was_taken_is_owed_and_what_was_refilled_meanwhile_is_not() -> None:
    """Redis's bucket has filled up too."""
    buckets, drawn = LocalBuckets(), draw(limit("tokens", 600))
    buckets.learn(drawn, Outcome(True, 7 * _S, [400.0]), 0.0)
    assert admitted(buckets, drawn, 80, live=4)
    buckets.settle(drawn, 30, 0.0, 4)
    buckets.settle(drawn, -5, 0.0, 4)
    (owed,) = buckets.hand_over(lambda: 0.0)
    assert (owed.amount, owed.told_us) == (55.0, -1.0)
    assert list(buckets.hand_over(lambda: 0.0)) == []
    buckets.take_back([owed])
    assert [each.amount for each in buckets.hand_over(lambda: _S)] == [55.0]
    assert admitted(buckets, drawn, 10, live=4, at_s=1.0)
    # Both have become full.
    assert list(buckets.hand_over(lambda: 600 * _S)) == []


def test_what_is_owed_survives_a_change_of_how_many_share() -> None:
    """Another process died; what was taken before was taken all the same."""
    buckets, drawn = LocalBuckets(), draw(limit("tokens", 600))
    assert admitted(buckets, drawn, 100, live=4)
    assert admitted(buckets, drawn, 10, live=2)
    assert [each.amount for each in buckets.hand_over(lambda: 0.0)] == [pytest.approx(110.0)]


def test_a_redis_that_forgot_is_told_what_it_said_before() -> None:
    """Also of buckets that nothing was taken from since."""
    buckets, drawn = LocalBuckets(), draw(limit("requests", 60))
    buckets.learn(drawn, Outcome(True, 7 * _S, [20.0]), 0.0)
    assert list(buckets.hand_over(lambda: 0.0, 6 * _S)) == []
    (owed,) = buckets.hand_over(lambda: 0.0, 8 * _S)
    assert (owed.amount, owed.known, owed.told_us) == (0.0, 20.0, 7 * _S)
    assert list(buckets.hand_over(lambda: 0.0, 8 * _S)) == []


def test_after_a_handover_a_share_begins_anew_from_where_all_are() -> None:
    """Redis may go away again before it has told anything."""
    buckets, drawn = LocalBuckets(), draw(limit("requests", 60))
    assert admitted(buckets, drawn, live=4)
    before = buckets.deciding
    list(buckets.hand_over(lambda: 0.0))
    buckets.rest(0.0)
    assert (before, buckets.deciding) == (True, False)
    assert buckets.peek(drawn, 0.0, 4).figures == [14.0]
    buckets.learn(drawn, Outcome(True, 7 * _S, [20.0]), 0.0)
    assert buckets.peek(drawn, 0.0, 4) == Outcome(False, 0.0, [5.0])


def test_an_empty_bucket_fills_though_the_clock_was_set_back() -> None:
    """By an hour: who is refused then waits for as long as is told, and not for an hour."""
    buckets, drawn = LocalBuckets(), draw(limit("requests", 1, rate=60))
    assert admitted(buckets, drawn, at_s=3_600.0)
    assert not admitted(buckets, drawn)
    assert admitted(buckets, drawn, at_s=1.0)


def test_what_was_used_last_is_remembered() -> None:
    """Whether something was taken of it, or Redis told it; what is forgotten is owed no more."""
    buckets = LocalBuckets(most=2)
    first, second, third, fourth = (draw(limit("requests", 5, whose=each)) for each in "abcd")
    assert admitted(buckets, first)
    assert admitted(buckets, second)
    assert admitted(buckets, first)
    assert admitted(buckets, third)
    assert buckets.peek(first, 0.0, 1).figures == [3.0]
    buckets.learn(third, Outcome(True, 7 * _S, [4.0]), 0.0)
    assert admitted(buckets, fourth)
    assert sorted((each.key, each.amount) for each in buckets.hand_over(lambda: 0.0)) == [
        (third.rated[0].key, 1.0),
        (fourth.rated[0].key, 1.0),
    ]


def test_redis_is_reminded_of_what_it_said_before_it_forgot_and_of_nothing_else() -> None:
    """Not of what it never said, nor of what it said since."""
    buckets, never, since = LocalBuckets(), draw(limit("requests", 9, whose="a")), draw(limit("requests", 9, whose="b"))
    buckets.peek(never, 0.0, 1)
    buckets.learn(since, Outcome(True, 8 * _S, [4.0]), 0.0)
    assert admitted(buckets, since)
    assert [(each.key, each.told_us) for each in buckets.hand_over(lambda: 0.0, 8 * _S)] == [(since.rated[0].key, -1.0)]
