"""Which windows of a trace are simulated, and what they say of the whole."""

import numpy as np
import pytest
from numpy.typing import NDArray

from planner.savings.windows import LEAD_S, Sample, sample_of, share_of

DAY_S = 86_400.0


def arrivals(days: int, *, per_hour: int, seed: int = 0) -> NDArray[np.float64]:
    """Busy by day, calm by night, and one hour of the third day twice as busy as any other."""
    rng = np.random.default_rng(seed)
    hours = []
    for hour in range(24 * days):
        part = 1.0 if 8 <= hour % 24 < 18 else 0.2
        count = rng.poisson(per_hour * (2.0 if hour == 2 * 24 + 11 else part))
        hours.append(hour * 3_600 + rng.uniform(0, 3_600, count))
    return np.sort(np.concatenate(hours))


def drawn(sample: Sample) -> list[int]:
    return [window.first for span in sample.spans for window in span.windows]


def test_a_short_trace_is_simulated_whole() -> None:
    """Its parts hold every request once."""
    at_s = arrivals(1, per_hour=100)
    sample = sample_of(at_s, DAY_S, most=len(at_s), seed=0)
    (run,) = sample.runs
    assert sample.length_s is None
    assert (run.lead, run.start_s, run.last) == (0, 0.0, len(at_s))
    assert [window.last for window in run.windows[:-1]] == [window.first for window in run.windows[1:]]
    assert sample.requests == len(at_s)


def test_of_a_long_trace_the_busiest_window_is_taken_and_two_of_every_day() -> None:
    """Whatever the seed is, and for about as many requests as were allowed."""
    at_s = arrivals(10, per_hour=400)
    for seed in range(5):
        sample = sample_of(at_s, 10 * DAY_S, most=len(at_s) // 10, seed=seed)
        days = {int(run.start_s // DAY_S) for run in sample.runs}
        busiest = sample.runs[0]
        assert 2 * DAY_S + 11 * 3_600 <= busiest.start_s + LEAD_S < 2 * DAY_S + 12 * 3_600
        assert days == set(range(10))
        simulated = sum(run.last - run.lead for run in sample.runs)
        assert simulated == pytest.approx(len(at_s) / 10, rel=0.5)
        assert sum(span.of for span in sample.spans) == 10 * DAY_S / (sample.length_s or 0)


def test_every_window_has_a_time_before_it_that_is_not_counted() -> None:
    """Except where the trace begins."""
    at_s = arrivals(4, per_hour=400)
    sample = sample_of(at_s, 4 * DAY_S, most=len(at_s) // 10, seed=1)
    for run in sample.runs:
        first_s = at_s[run.windows[0].first]
        assert at_s[run.lead] >= run.start_s
        assert run.start_s == 0 or first_s - run.start_s >= LEAD_S


def test_the_same_seed_draws_the_same() -> None:
    """And another one others."""
    at_s = arrivals(4, per_hour=400)
    first, again, other = (sample_of(at_s, 4 * DAY_S, most=2_000, seed=seed) for seed in (1, 1, 2))
    assert drawn(first) == drawn(again)
    assert drawn(first) != drawn(other)


@pytest.mark.parametrize("most", [1, 500, 5_000])
@pytest.mark.parametrize("seconds", [90.0, 1_000.0, 3 * DAY_S])
def test_there_always_is_a_window(most: int, seconds: float) -> None:
    """However little may be simulated, and however short the trace is."""
    at_s = np.linspace(0, seconds, 6_000)
    sample = sample_of(at_s, seconds, most=most, seed=0)
    assert 0 < sample.requests <= len(at_s)
    assert share_of(sample, [window.requests for span in sample.spans for window in span.windows]).share == 1.0


def test_a_share_that_is_everywhere_the_same_is_certain() -> None:
    """Every tenth request of every window."""
    at_s = np.arange(0, 4 * DAY_S, 10.0)
    sample = sample_of(at_s, 4 * DAY_S, most=2_000, seed=0)
    found = share_of(sample, [window.requests // 10 for span in sample.spans for window in span.windows])
    assert found.share == pytest.approx(0.1)
    assert found.high - found.low < 1e-9


@pytest.mark.long
def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    """Lateness that comes in stretches, more of it where more comes; 95 of 100 are promised, and small samples are noisy."""
    at_s = arrivals(20, per_hour=300)
    rng = np.random.default_rng(3)
    stretch = rng.random(20 * 24 * 12) < 0.3
    late = stretch[(at_s // 300).astype(int)] & (rng.random(len(at_s)) < 0.4)
    truth = float(late.mean())
    held = 0
    for seed in range(200):
        sample = sample_of(at_s, 20 * DAY_S, most=len(at_s) // 8, seed=seed)
        counts = [int(late[w.first : w.last].sum()) for span in sample.spans for w in span.windows]
        found = share_of(sample, counts)
        held += found.low <= truth <= found.high
    assert 180 <= held < 200


def test_what_was_never_seen_may_still_happen() -> None:
    """No late request in n means fewer than three in n."""
    at_s = arrivals(2, per_hour=100)
    sample = sample_of(at_s, 2 * DAY_S, most=500, seed=0)
    found = share_of(sample, [0] * len(drawn(sample)))
    assert found.share == 0
    assert found.high == pytest.approx(3 / sample.requests)
