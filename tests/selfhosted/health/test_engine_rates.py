"""What an engine does in a second, from its counters."""

import itertools

import msgspec
import pytest

from selfhosted.health.engine_rates import EngineRates
from selfhosted.replica import EngineStats

FIRST = EngineStats(
    at=0.0, running=1, waiting=0, prompt_tokens=1_000.0, output_tokens=100.0, prefix_hits=500.0, preemptions=2.0
)


def after(seconds: float, **grown: float) -> EngineStats:
    return msgspec.structs.replace(
        FIRST, at=seconds, **{name: getattr(FIRST, name) + more for name, more in grown.items()}
    )


def rates(*readings: EngineStats) -> EngineStats:
    found = EngineRates()
    for before, now in itertools.pairwise(readings):
        found.add(before, now)
    return found.put_into(readings[-1])


def test_a_second_is_a_second() -> None:
    """Tokens in and out, those that were not cached, and preemptions, from two readings two seconds apart."""
    found = rates(FIRST, after(2.0, prompt_tokens=400, output_tokens=100, prefix_hits=300, preemptions=1))
    assert found.tokens_per_s == pytest.approx(250)
    assert found.computed_per_s == pytest.approx(100)
    assert found.output_per_s == pytest.approx(50)
    assert found.preemptions_per_s == pytest.approx(0.5)


def test_it_is_a_mean_of_the_last_minute() -> None:
    """Of a burst long ago nothing is left; a steady flow shows itself as it is."""
    steady = [after(float(second), prompt_tokens=100.0 * second, output_tokens=10.0 * second) for second in range(200)]
    assert rates(*steady).tokens_per_s == pytest.approx(110)
    still = [after(float(second), prompt_tokens=1e6, output_tokens=0) for second in range(1, 700)]
    assert (rates(FIRST, *still).tokens_per_s or 0) < 1


def test_one_reading_says_nothing() -> None:
    """Nor does an engine that does not count; unknown is not 0."""
    assert rates(FIRST).tokens_per_s is None
    silent = EngineStats(at=0.0, running=1, waiting=0)
    assert rates(silent, msgspec.structs.replace(silent, at=1.0)).tokens_per_s is None


def test_without_hits_all_of_a_prompt_counts_as_computed() -> None:
    """And a clock that stood still adds nothing."""
    bare = msgspec.structs.replace(FIRST, prefix_hits=None)
    later = msgspec.structs.replace(bare, at=1.0, prompt_tokens=1_050.0)
    assert rates(bare, later).computed_per_s == pytest.approx(50)
    assert rates(bare, msgspec.structs.replace(later, at=0.0)).tokens_per_s is None
