"""The check of a limit finds exactly what breaks it."""

from itertools import combinations_with_replacement

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.windows import Admitted, Bound, busiest, most_over, used_share

_BOUND = Bound(per_s=2.0, burst=5.0)
_times = st.integers(0, 60).map(lambda tenths: tenths / 10)


def at(*moments: float) -> list[Admitted]:
    """Requests that took no time."""
    return [Admitted(sent_at=moment, answered_at=moment) for moment in moments]


@st.composite
def _requests(draw: st.DrawFn) -> list[Admitted]:
    found = []
    for _ in range(draw(st.integers(1, 12))):
        sent_at = draw(_times)
        answered_at = sent_at + draw(_times) / 4
        found.append(
            Admitted(
                sent_at=sent_at,
                answered_at=answered_at,
                used=draw(st.integers(1, 4)),
                refunded=draw(st.integers(0, 3)),
                over_at=answered_at + draw(_times) / 4,
            )
        )
    return found


def _worst_by_trying(admitted: list[Admitted]) -> float:
    moments = sorted({moment for each in admitted for moment in (each.sent_at, each.answered_at)})
    worst = float("-inf")
    for begin, end in combinations_with_replacement(moments, 2):
        if begin not in {each.sent_at for each in admitted} or end not in {each.answered_at for each in admitted}:
            continue
        inside = sum(each.used for each in admitted if begin <= each.sent_at and each.answered_at <= end)
        back = sum(each.refunded for each in admitted if each.sent_at < begin <= each.over_at)
        worst = max(worst, inside - back - _BOUND.allows(end - begin))
    return worst


@given(_requests())
def test_the_worst_window_is_the_worst_of_all(admitted: list[Admitted]) -> None:
    """The same as trying every pair of moments."""
    assert most_over(admitted, _BOUND) == pytest.approx(_worst_by_trying(admitted))


@given(_requests(), st.integers(1, 40).map(lambda tenths: tenths / 10))
def test_the_busiest_window_is_the_busiest_of_all(admitted: list[Admitted], window_s: float) -> None:
    """The same as trying every window that ends with an answer."""
    tried = (
        sum(
            each.used
            for each in admitted
            if each.sent_at >= last.answered_at - window_s and each.answered_at <= last.answered_at
        )
        for last in admitted
    )
    assert busiest(admitted, window_s) == max(0, *tried)


def test_a_burst_and_then_the_rate_is_just_allowed() -> None:
    """A bucket emptied at once and then drawn from as fast as it fills is not above its bound."""
    just = at(*[0.0] * 5, *(number / 2 for number in range(1, 40)))
    assert most_over(just, _BOUND) == pytest.approx(0.0)
    assert most_over([*just, *at(10.1)], _BOUND) > 0.5


def test_a_request_on_the_edge_is_given_the_benefit_of_the_doubt() -> None:
    """What may have been let through before the window or after it does not count in it."""
    slow = [Admitted(sent_at=0.0, answered_at=10.0) for _ in range(20)]
    assert most_over(slow, _BOUND) == pytest.approx(20 - 25)


def test_the_whole_allowance_used_is_all_of_it() -> None:
    """A share of 1 is the burst and all that flowed in."""
    assert used_share(at(*[0.0] * 25), _BOUND, 10) == 1.0
