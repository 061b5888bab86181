"""The arithmetic of one bucket."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.admit.limits.bucket import corrected, places, refilled, share, wait_us

_START_US = 1_790_000_000_000_000.0


def test_a_bucket_fills_by_its_rate_and_no_further_than_its_burst() -> None:
    """600 a minute are 10 a second."""
    assert refilled(0.0, _START_US, _START_US + 1_000_000, 600.0, 50.0) == 10.0
    assert refilled(0.0, _START_US, _START_US + 60_000_000, 600.0, 50.0) == 50.0


def test_a_clock_that_goes_back_takes_nothing_and_gives_nothing() -> None:
    """The level stays."""
    assert refilled(7.0, _START_US, _START_US - 5_000_000, 600.0, 50.0) == 7.0


def test_a_smaller_burst_clips_the_level_and_a_larger_one_leaves_it() -> None:
    """Nothing is scaled when limits are reloaded."""
    assert refilled(40.0, _START_US, _START_US, 600.0, 10.0) == 10.0
    assert refilled(40.0, _START_US, _START_US, 600.0, 100.0) == 40.0


def test_a_refund_never_fills_above_the_burst_and_a_debt_goes_below_zero() -> None:
    """Refilling in between may have filled the bucket already."""
    assert corrected(45.0, 10.0, 50.0) == 50.0
    assert corrected(5.0, -20.0, 50.0) == -15.0


@given(st.floats(-1e6, 1e4), st.floats(0, 1e4), st.integers(1, 10**6))
def test_what_waited_as_long_as_it_was_told_fits(level: float, amount: float, rate: int) -> None:
    """To the microsecond, which is finer than any caller is told."""
    wait = wait_us(level, amount, float(rate))
    after = refilled(level, 0.0, wait + 1.0, float(rate), 1e9)
    assert after >= amount - 1e-6
    assert (wait == 0) == (level >= amount)


@pytest.mark.parametrize(("most", "live", "each"), [(10, 1, 10), (10, 4, 3), (1, 8, 1), (8, 4, 2)])
def test_places_are_shared_by_rounding_up(most: int, live: int, each: int) -> None:
    """A process that may have none at all would turn everybody away."""
    assert places(most, live) == each


def test_a_share_is_its_part_of_rate_and_burst() -> None:
    """A burst of less than one would never let a request in."""
    assert share(600.0, 100.0, 4) == (150.0, 25.0)
    assert share(600.0, 2.0, 4) == (150.0, 1.0)
    assert share(600.0, 100.0, 1) == (600.0, 100.0)


def test_one_process_has_the_limit_and_two_have_half_each() -> None:
    """A burst below 1 is raised only where it is divided."""
    assert share(600.0, 0.5, 1) == (600.0, 0.5)
    assert share(600.0, 60.0, 2) == (300.0, 30.0)
    assert share(600.0, 1.5, 2) == (300.0, 1.0)


def test_a_faster_rate_waits_less() -> None:
    """Ten at 600 a minute are a second."""
    assert wait_us(0.0, 10.0, 600.0) == 1_000_000.0
    assert wait_us(0.0, 10.0, 1_200.0) == 500_000.0
