"""The load of llm-d's comparisons."""

from collections import Counter

import pytest

from benchmarks.shared_prefix import CLOSE, HELD, TUNED, Run, misses, shared_prefix

_LOAD = TUNED["150 x 5, 60/s"]


def test_the_load_is_that_of_the_generator() -> None:
    """Every prompt once while caches fill, then all of them again in the same order; groups share their system prompt alone."""
    trace = shared_prefix(_LOAD, 1)
    filling, measured = trace.requests[: _LOAD.filling], trace.requests[_LOAD.filling :]
    assert (len(filling), len(measured)) == (750, 1_500)
    assert len({each.blocks for each in filling}) == 750
    assert [each.blocks for each in measured] == [each.blocks for each in filling] * 2
    assert {(each.prompt_tokens, each.output_tokens) for each in measured} == {(7_200, 1_000)}
    assert Counter(Counter(each.blocks[:11] for each in filling).values()) == {5: 150}
    assert measured[-1].at_s - 110 == pytest.approx(_LOAD.measured.seconds)
    assert shared_prefix(_LOAD, 1) == trace != shared_prefix(_LOAD, 2)


def test_loads_to_check_on_are_others_than_those_tuned_on() -> None:
    """No shape is in both."""
    assert not {(load.groups, load.prompts) for load in TUNED.values()} & {
        (load.groups, load.prompts) for load in HELD.values()
    }


def test_a_bar_is_missed_by_more_than_what_is_close() -> None:
    """Times are compared with the least of the others, throughput with the most; each figure for itself."""

    def run(mean_s: float, tokens_per_s: float) -> Run:
        return Run(picker="x", mean_s=mean_s, median_s=1, p99_s=1, tokens_per_s=tokens_per_s, hit_rate=0)

    others = [run(2.0, 100.0), run(1.0, 50.0)]
    assert misses(run(1 + CLOSE, 100 * (1 - CLOSE)), others) == []
    assert misses(run(1.1, 80.0), others) == ["mean 1.10", "tokens_per 0.80"]
