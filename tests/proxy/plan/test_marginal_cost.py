"""The price of one more request on our own GPUs: nearly nothing with room, the cheapest alternative's at most."""

import itertools
import math
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.plan.marginal_cost import RESTING_PARTS, Margin, Room, margin, place_of, resting_nanousd

PRICES = st.integers(0, 10**12)
ALTERNATIVES = st.none() | PRICES
PLACES = st.floats(0, 1, exclude_max=True)
WAITS = st.floats(0, 1e4)
FILLS = st.floats(0, 2)
AIM_S = 1.0
IDS = [f"req_{uuid.UUID(int=number * 7919).hex}" for number in range(4_000)]


def at(wait_s: float, place: float = 0.0, average: int = 1_000_000, alternative: int | None = 200_000) -> Margin:
    return margin(average, alternative, Room(wait_s, AIM_S), place)


@given(PRICES, ALTERNATIVES, WAITS, FILLS, PLACES)
def test_it_lies_between_nearly_nothing_and_the_alternative(
    average: int, alternative: int | None, wait_s: float, fill: float, place: float
) -> None:
    """Never above what the request would cost elsewhere; without an elsewhere, never above its average."""
    found = margin(average, alternative, Room(wait_s, AIM_S, fill), place)
    most = average if alternative is None else alternative
    assert type(found.nanousd) is int
    assert 0 <= resting_nanousd(average, alternative) <= found.nanousd <= most
    assert resting_nanousd(average, alternative) <= average // RESTING_PARTS


@given(PRICES, ALTERNATIVES, WAITS, WAITS, FILLS, FILLS, PLACES)
def test_it_never_falls_as_the_wait_or_the_fill_rises(
    average: int, alternative: int | None, one_s: float, other_s: float, one: float, other: float, place: float
) -> None:
    """Monotone in both, and what overflows at some wait overflows at every longer one."""
    low = margin(average, alternative, Room(min(one_s, other_s), AIM_S, min(one, other)), place)
    high = margin(average, alternative, Room(max(one_s, other_s), AIM_S, max(one, other)), place)
    assert low.nanousd <= high.nanousd
    assert low.overflows <= high.overflows


@given(PRICES, ALTERNATIVES, st.floats(0, 3), st.floats(0, 0.01), PLACES)
def test_it_is_continuous(average: int, alternative: int | None, wait_s: float, step_s: float, place: float) -> None:
    """A wait that differs by little makes a price that differs by little: nowhere more than its steepest slope says."""
    most = average if alternative is None else alternative
    apart = margin(average, alternative, Room(wait_s + step_s, AIM_S), place).nanousd
    apart -= margin(average, alternative, Room(wait_s, AIM_S), place).nanousd
    assert apart <= most * step_s / (0.75 * 0.5) + most / 1e6 + 2


@pytest.mark.parametrize(
    ("wait_s", "place", "expected"),
    [
        (0.0, 0.0, Margin(10_000, "own-room")),
        (0.25, 0.0, Margin(10_000, "own-room")),
        (0.625, 0.0, Margin(105_000, "own-filling")),
        (0.625, 0.8, Margin(200_000, "own-full", overflows=True)),
        (1.0, 0.0, Margin(200_000, "own-full", overflows=True)),
    ],
)
def test_it_says_what_it_follows_from(wait_s: float, place: float, expected: Margin) -> None:
    """By hand: the aim is a second, the average a thousandth of a dollar and the alternative a fifth of it."""
    assert at(wait_s, place) == expected


def test_without_an_alternative_it_stays() -> None:
    """Where nobody else can, a full pool costs its average and there is nowhere to overflow to."""
    assert at(5.0, alternative=None) == Margin(1_000_000, "own-full", overflows=False)


def test_an_alternative_below_what_rests_is_the_price() -> None:
    """Hardly a pool's case, and yet nothing is priced above its alternative."""
    assert at(0.0, alternative=3).nanousd == 3


def test_no_aim_leaves_only_the_wall() -> None:
    """Who may wait for ever is priced by how full the pool is, and who may not wait at all finds no room."""
    assert margin(100, 50, Room(1e9, math.inf), 0.5).why == "own-room"
    assert margin(100, 50, Room(0.0, math.inf, 0.9), 0.5).why == "own-filling"
    assert margin(100, 50, Room(0.0, math.inf, 1.0), 0.0).overflows
    assert margin(100, 50, Room(0.0, 0.0), 0.0).overflows


def test_a_place_is_the_ids_own() -> None:
    """Every process draws the same place for a request, and places are spread evenly."""
    places = sorted(map(place_of, IDS))
    assert [place_of(each) for each in IDS[:50]] == [place_of(each) for each in IDS[:50]]
    assert all(0 <= each < 1 for each in places)
    assert all(abs(each - number / len(places)) < 0.03 for number, each in enumerate(places))


def test_the_share_that_goes_elsewhere_grows_smoothly_with_the_wait() -> None:
    """From half of the aim to all of it, the same part for each part of the wait; never a jump."""
    shares = [sum(at(step / 100, place_of(each)).overflows for each in IDS) / len(IDS) for step in range(121)]
    assert shares[:50] == [0] * 50
    assert shares[100:] == [1] * 21
    steps = [later - before for before, later in itertools.pairwise(shares)]
    assert all(0 <= step < 0.04 for step in steps)
    assert shares[75] == pytest.approx(0.5, abs=0.05)
