import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.arrivals import Stream, arrivals, poisson


@given(per_s=st.floats(0, 200), seconds=st.floats(0, 5), seed=st.integers(0, 100))
def test_moments_are_in_order_and_within_the_load(per_s: float, seconds: float, seed: int) -> None:
    """Whatever the rate and the seed."""
    moments = poisson(per_s, seconds, random.Random(seed))
    assert moments == sorted(moments)
    assert all(0 <= moment < seconds for moment in moments)


def test_the_rate_and_the_spread_are_those_of_a_poisson_process() -> None:
    """On the average as many as asked for, and gaps that vary as much as they are long."""
    moments = poisson(100, 200, random.Random(1))
    gaps = [after - before for before, after in itertools.pairwise(moments)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert len(moments) == pytest.approx(20_000, rel=0.03)
    assert deviation / mean == pytest.approx(1, rel=0.05)


def test_a_callers_requests_do_not_depend_on_the_others() -> None:
    """With a heavy team or without it, the nine ask for the same at the same moments."""
    light = [Stream(caller, 5) for caller in range(1, 10)]
    alone = arrivals(light, 10, (20, 40), 7)
    together = arrivals([*light, Stream(0, 100)], 10, (20, 40), 7)
    assert [each for each in together if each.caller != 0] == alone
    assert len(together) > 5 * len(alone) / 2


def test_the_same_seed_gives_the_same_load() -> None:
    """And another one another load; all in the order of their moments."""
    streams = [Stream(0, 20), Stream(1, 20)]
    first = arrivals(streams, 5, (1, 2, 3), 1)
    assert first == arrivals(streams, 5, (1, 2, 3), 1)
    assert first != arrivals(streams, 5, (1, 2, 3), 2)
    assert [each.at_s for each in first] == sorted(each.at_s for each in first)
    assert {each.tokens for each in first} == {1, 2, 3}


def test_a_load_has_a_bound() -> None:
    """A plan of millions is refused before it is made."""
    with pytest.raises(ValueError, match="more than"):
        arrivals([Stream(0, 1e9)], 10, (1,), 1)
