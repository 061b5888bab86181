"""Slots by holder."""

from proxy.http.slots import Slots


def test_nobody_holds_all_of_them() -> None:
    """Two limits: one holder's, and that of all; what is given back can be taken again, and nothing is remembered of it."""
    slots = Slots(3, 2)
    assert [slots.take("a") for _ in range(3)] == [True, True, False]
    assert [slots.take("b") for _ in range(2)] == [True, False]
    slots.give_back("a")
    assert [slots.take("b"), slots.take("c")] == [True, False]
    for whose in ("a", "b", "b"):
        slots.give_back(whose)
    assert slots._held == {}
    assert [slots.take("c") for _ in range(3)] == [True, True, False]
