"""Which engine processes to start, drain, take back and end."""

from typing import Any

import pytest

from selfhosted.scale.children import Child, Orders, orders, wait_s


def child(name: str, phase: Any = "ready", **told: Any) -> Child:
    return Child(**{"name": name, "phase": phase, "since": 0.0, "answered": True, **told})


def ordered(*children: Child, desired: int | None, at: float = 100.0) -> Orders:
    return orders(children, desired, at, ready_s=600, drain_s=300, settle_s=5)


@pytest.mark.parametrize(
    ("children", "desired", "expected"),
    [
        ((), 2, Orders(start=2)),
        ((child("a"),), None, Orders()),
        ((child("a"), child("b", busy=3), child("c", busy=1)), 1, Orders(drain=("c", "b"))),
        ((child("a"), child("b", "starting")), 1, Orders(drain=("b",))),
        ((child("a"), child("b", "waiting")), 1, Orders(end=("b",))),
        ((child("a", "draining", busy=4), child("b", "draining", since=50.0, busy=4)), 1, Orders(keep=("b",))),
        ((child("a", "waiting", again_at=99.0), child("b", "waiting", again_at=101.0)), 2, Orders(again=("a",))),
        ((child("a", "starting", since=-501.0),), 1, Orders(failed=("a",))),
        ((child("a", "draining", idle_looks=2),), 0, Orders(end=("a",))),
        ((child("a", "draining", idle_looks=1),), 0, Orders()),
        ((child("a", "draining", idle_looks=9, since=96.0),), 0, Orders()),
        ((child("a", "draining", busy=7, since=-200.0),), 0, Orders(end=("a",))),
        ((child("a", "draining", answered=False),), 0, Orders(end=("a",))),
    ],
)
def test_orders(children: tuple[Child, ...], desired: int | None, expected: Orders) -> None:
    """The crashed go first, then those that start, then those with the least work; warm ones are taken back first."""
    assert ordered(*children, desired=desired) == expected


def test_it_waits_longer_after_each_crash_up_to_a_minute() -> None:
    """An engine that cannot start must not be started every second."""
    assert [wait_s(crashes) for crashes in (1, 2, 3, 7, 1_000)] == [1, 2, 4, 60, 60]


def rested(*children: Child, desired: int, keep_asleep: int) -> Orders:
    return orders(children, desired, 100.0, ready_s=600, drain_s=300, settle_s=5, keep_asleep=keep_asleep)


@pytest.mark.parametrize(
    ("children", "desired", "keep_asleep", "expected"),
    [
        ((child("a", "draining", idle_looks=2),), 0, 1, Orders(sleep=("a",))),
        ((child("a", "draining", idle_looks=2), child("b", "asleep")), 0, 1, Orders(end=("a",))),
        ((child("a", "draining", busy=7, since=-300.0),), 0, 1, Orders(end=("a",))),
        ((child("a", "draining", answered=False),), 0, 1, Orders(end=("a",))),
        ((child("a"), child("b", "asleep")), 3, 1, Orders(wake=("b",), start=1)),
        ((child("a", "draining", busy=1), child("b", "asleep")), 1, 1, Orders(keep=("a",))),
        ((child("a"), child("b", "asleep"), child("c", "asleep", since=9.0)), 2, 2, Orders(wake=("c",))),
        ((child("a", "asleep"), child("b", "asleep", since=9.0)), 0, 1, Orders(end=("a",))),
        ((child("a", "asleep"),), 0, 0, Orders(end=("a",))),
    ],
)
def test_the_warm_are_kept_and_taken_first(
    children: tuple[Child, ...], desired: int, keep_asleep: int, expected: Orders
) -> None:
    """One that drains comes back before one that sleeps, and that before a cold one; only what has nothing to do may sleep."""
    assert rested(*children, desired=desired, keep_asleep=keep_asleep) == expected


@pytest.mark.parametrize(
    ("children", "desired", "expected"),
    [
        ((child("a"),), 1, Orders(warm=1)),
        # Those that are wanted come first.
        ((), 1, Orders(start=1)),
        ((child("a", "starting"),), 1, Orders()),
        ((child("a"),), None, Orders()),
        ((child("a"), child("b", "warming", answered=False)), 1, Orders()),
        ((child("a"), child("b", "warming")), 1, Orders(sleep=("b",))),
        ((child("a"), child("b", "asleep")), 1, Orders()),
        ((child("a"), child("b", "asleep")), 2, Orders(wake=("b",))),
        ((child("a"), child("b", "warming", answered=False)), 2, Orders(hurry=("b",))),
        ((child("a"), child("b", "warming", answered=False, since=-501.0)), 1, Orders(failed=("b",))),
        ((child("a"), child("b", "draining", idle_looks=2)), 1, Orders(sleep=("b",))),
    ],
)
def test_one_more_than_is_wanted_sleeps(children: tuple[Child, ...], desired: int | None, expected: Orders) -> None:
    """It is started ahead, put to sleep once it answers, and taken as soon as it is wanted."""
    assert orders(children, desired, 100.0, ready_s=600, drain_s=300, settle_s=5, warm=1) == expected


def test_who_is_warmed_ends_with_the_others() -> None:
    """Nothing is kept, or started, once all are to go."""
    children = (child("a", "asleep"), child("b", "warming"))
    assert orders(children, 0, 100.0, ready_s=600, drain_s=300, settle_s=5) == Orders(end=("a", "b"))
