"""What is expected, one cold start ahead."""

import math
from collections.abc import Callable

import pytest

from selfhosted.scale.forecast import Forecast, Seasons, rise_per_s

DAY_S = 86_400.0
# A Monday, 00:00 UTC.
MONDAY = 1_699_833_600.0


def watch(forecast: Forecast, work: Callable[[float], float], from_s: float, until_s: float) -> None:
    at = from_s
    while at < until_s:
        forecast.observe(work(at), at, MONDAY + at)
        at += 30


def daily(at: float) -> float:
    return 1_000 + 900 * math.sin(2 * math.pi * at / DAY_S)


def test_the_last_hour_is_expected_while_no_earlier_day_is_known() -> None:
    """Nothing before anything was seen, and the highest minute while there are few."""
    forecast = Forecast()
    assert forecast.busy(300, 0.9) is None
    watch(forecast, lambda at: 500 if at < 300 else 400, 0, 600)
    assert forecast.busy(300, 0.9) == pytest.approx(500)
    watch(forecast, lambda _: 400, 600, 5_400)
    assert forecast.busy(300, 0.9) == pytest.approx(400)


def test_the_same_time_of_earlier_days_is_expected() -> None:
    """A rise is expected before it begins, and a fall too."""
    forecast = Forecast()
    watch(forecast, daily, 0, 3 * DAY_S)
    for hour in (1, 3, 6, 9, 12, 22):
        now = 3 * DAY_S + hour * 3_600
        watch(forecast, daily, now - 3_600, now)
        assert forecast.busy(3_600, 0.5) == pytest.approx(daily(now + 3_600), rel=0.25)


def test_a_day_that_goes_higher_is_expected_to_go_on_higher() -> None:
    """The usual course, scaled to how today goes."""
    forecast = Forecast()
    watch(forecast, daily, 0, 2 * DAY_S)
    watch(forecast, lambda at: 2 * daily(at), 2 * DAY_S, 2 * DAY_S + 4 * 3_600)
    assert forecast.busy(300, 0.5) == pytest.approx(2 * daily(4 * 3_600), rel=0.2)


def test_the_weekend_is_told_from_the_week() -> None:
    """Once it was seen, its time of the week counts more than its time of day."""
    forecast = Forecast()
    watch(forecast, lambda at: 100 if at % (7 * DAY_S) >= 5 * DAY_S else 1_000, 0, 13 * DAY_S)
    saturday, friday = forecast.seasons.at(MONDAY + 5.5 * DAY_S), forecast.seasons.at(MONDAY + 4.5 * DAY_S)
    assert saturday is not None
    assert friday is not None
    assert saturday < 0.6 * friday


def test_bursts_are_expected_again_and_steady_work_asks_for_no_more() -> None:
    """The busy minute counts, by work: a burst a tenth of the time is nearly all of it."""
    bursty = Forecast()
    watch(bursty, lambda at: 8_000 if at % 600 < 60 else 100, 0, DAY_S / 12)
    assert bursty.busy(300, 0.9) == pytest.approx(8_000)
    # It is over an hour later, and a step counts for what it went up to.
    watch(bursty, lambda _: 100, DAY_S / 12, DAY_S / 12 + 3_700)
    assert bursty.busy(300, 0.9) == pytest.approx(100)


def test_gaps_and_nonsense_are_no_observations() -> None:
    """A clock that jumps, a process that slept, a NaN."""
    forecast = Forecast()
    watch(forecast, lambda _: 500, 0, 3_600)
    for at, work in ((3_570.0, 9e9), (1e6, 9e9), (1e6 + 30, math.nan)):
        forecast.observe(work, at, MONDAY + at)
    assert forecast.busy(300, 0.9) == pytest.approx(500)


def test_seasons_of_another_shape_are_not_believed() -> None:
    """They may come from another version."""
    assert Seasons().sound
    odd = (
        Seasons(day=[1.0]),
        Seasons(day_seen=[-1] * 144),
        Seasons(minutes=[(math.inf, None)]),
        Seasons(minutes=[(1.0, -1.0)]),
        Seasons(minutes=[(1.0, None)] * 61),
    )
    for broken in odd:
        assert not broken.sound
        assert Forecast(broken).seasons.sound


def test_arrivals_show_the_rise_of_what_has_just_begun_sooner() -> None:
    """Work scatters from minute to minute; nothing is expected of arrivals that only scatter, and nothing by them later."""

    def watched(rate: Callable[[float], float], until_s: int, every_s: int = 5) -> Forecast:
        forecast = Forecast()
        for at in range(0, until_s, every_s):
            work = 1_000 * rate(at) * (1.4 if at % 120 < 60 else 0.6)
            forecast.observe(work, at, MONDAY + at, arrivals_per_s=rate(at) * (1.1 if at % 10 else 0.9))
        return forecast

    def rising(at: float) -> float:
        return 1 + at / 60

    soon = watched(rising, 180)
    doubted, believed = soon.busy(360, 0.9), soon.busy(360, 0.9, new=True)
    assert doubted is not None
    assert believed is not None
    # Three a second come now, and a minute later the work of what came.
    assert 1.5 * 3_000 < doubted < 1_000 * (rising(180) + 3)
    assert 1.3 * doubted < believed < 1_000 * rising(540)
    for other in (watched(lambda _: 2.0, 180), watched(rising, 180, 30)):
        assert other._rising([1_000.0] * 3, 360, 1.0) == 0
    assert watched(rising, 1_200)._rising([1_000.0] * 20, 360, 1.0) == 0


def test_a_rise_goes_on_and_what_may_be_chance_does_not() -> None:
    """One cold start ahead of a steady rise half of what it would add is expected, and all of it in a pool's first minutes if asked so;
    scatter, a fall and two minutes say nothing.
    """
    rising = Forecast()
    watch(rising, lambda at: 1_000 + at, 0, 600)
    assert rising.busy(360, 0.9) == pytest.approx(1_510 + 180, rel=0.02)
    assert rising.busy(360, 0.9, new=True) == pytest.approx(1_510 + 360, rel=0.02)
    watch(rising, lambda at: 1_000 + at, 600, 1_200)
    for new in (False, True):
        assert rising.busy(360, 0.9, new=new) == pytest.approx(2_110 + 180, rel=0.02)
    assert rise_per_s([100, 900, 200, 800, 150, 900, 300, 850]) == 0
    assert rise_per_s([900, 800, 700, 600, 500]) == 0
    assert rise_per_s([100, 900]) == 0
    steep = Forecast()
    watch(steep, lambda at: math.exp(at / 100), 0, 900)
    assert (steep.busy(7_200, 0.9) or 0) <= 3 * math.exp(9)
