"""What a process remembers of how fast its targets are."""

import statistics

from hypothesis import given
from hypothesis import strategies as st

from proxy.shared.target_latency import LatencyTracker, TargetLatency


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_nothing_is_expected_of_what_was_hardly_seen() -> None:
    """Seven samples are too few, eight are enough; another target's do not count."""
    tracker = LatencyTracker(Clock())
    for _ in range(7):
        tracker.observe("a", 0.2, 0.01)
        tracker.observe("b", 0.3, 0.01)
    assert tracker.expect("a") is None
    tracker.observe("a", 0.2, 0.01)
    assert tracker.expect("a") == TargetLatency(ttft_s=0.2, tpot_s=0.01, fast_ttft_s=0.2, fast_tpot_s=0.01)
    assert tracker.expect("b") is None
    assert tracker.expect("c") is None


def test_unknown_speed_of_tokens_is_no_time_at_all() -> None:
    """Answers of one token say nothing of the tokens after it; answers that were not streamed nothing of the first."""
    tracker = LatencyTracker(Clock())
    for _ in range(8):
        tracker.observe("a", 0.5, None)
        tracker.observe("b", None, 0.02)
    assert tracker.expect("a") == TargetLatency(ttft_s=0.5, tpot_s=0.0, fast_ttft_s=0.5, fast_tpot_s=0.0)
    assert tracker.expect("b") is None


@given(st.lists(st.floats(0, 100), min_size=8, max_size=300))
def test_the_quantiles_are_of_the_last_64(samples: list[float]) -> None:
    """The median and the tenth, whatever came before and in whatever order."""
    tracker = LatencyTracker(Clock())
    for sample in samples:
        tracker.observe("a", sample, sample / 10)
    latency = tracker.expect("a")
    recent = sorted(samples[-64:])
    assert latency is not None
    assert latency.ttft_s == statistics.median_low(recent)
    assert latency.fast_ttft_s == recent[int(0.1 * (len(recent) - 1))]
    assert latency.fast_tpot_s == latency.fast_ttft_s / 10


def test_the_usual_time_of_a_whole_answer_is_by_its_tokens() -> None:
    """As streams of the target came; where there were none, it is the median of whole answers."""
    tracker = LatencyTracker(Clock())
    for _ in range(8):
        tracker.observe("streams", 0.5, 0.02)
        tracker.observe_whole("streams", 9.0)
        tracker.observe_whole("whole", 3.0)
    assert tracker.usually_s("streams", "interactive", 101, stream=False) == 2.5
    assert tracker.usually_s("streams", "interactive", 101, stream=True) == 0.5
    assert tracker.usually_s("whole", "interactive", 101, stream=False) == 3.0
    assert tracker.usually_s("whole", "interactive", 101, stream=True) is None
    assert tracker.usually_s("unseen", "interactive", 101, stream=False) is None


def test_what_was_waited_for_in_vain_takes_at_least_that_long() -> None:
    """Three in a row, of one kind, until one is answered or a minute is over."""
    clock = Clock()
    tracker = LatencyTracker(clock)

    def known(*, stream: bool = True) -> float | None:
        return tracker.known_s("a", "interactive", 100, stream=stream)

    for waited_s in (5.0, 7.0):
        tracker.observe_missed("a", waited_s, stream=True)
    assert known() is None
    tracker.observe_missed("a", 6.0, stream=True)
    assert (known(), known(stream=False)) == (5.0, None)
    tracker.observe_whole("a", 1.0)
    assert known() == 5.0
    tracker.observe("a", 1.0, None)
    assert known() is None
    for _ in range(3):
        tracker.observe_missed("a", 4.0, stream=True)
    assert known() == 4.0
    clock.now = 61.0
    tracker.observe_whole("a", 1.0)
    assert known() is None


def test_a_target_that_is_not_asked_is_forgotten() -> None:
    """A minute later nothing is known of it, so that it is asked again, and the old samples do not come back."""
    clock = Clock()
    tracker = LatencyTracker(clock)
    for _ in range(8):
        tracker.observe("a", 30.0, 1.0)
    clock.now = 60.0
    assert tracker.expect("a") is not None
    clock.now = 60.1
    assert tracker.expect("a") is None
    tracker.observe("a", 0.1, 0.01)
    assert tracker.expect("a") is None


def test_memory_is_bounded() -> None:
    """Of very many names the oldest are forgotten."""
    tracker = LatencyTracker(Clock())
    for number in range(2_100):
        for _ in range(8):
            tracker.observe(str(number), 0.1, 0.01)
    assert tracker.expect("99") is None
    assert tracker.expect("100") is not None


def test_what_is_late_is_told_of_twenty_samples() -> None:
    """Streams by their first token, whole answers by their end, each tier by itself."""
    tracker = LatencyTracker(Clock())
    for tenths in range(19):
        tracker.observe("a", tenths / 10, None)
        tracker.observe_whole("a", tenths)
    assert tracker.late_s("a", "interactive", stream=True) is None
    tracker.observe("a", 5.0, None)
    tracker.observe_whole("a", 50.0)
    assert tracker.late_s("a", "interactive", stream=True) == 1.8
    assert tracker.late_s("a", "interactive", stream=False) == 18
    assert tracker.late_s("a", "batch", stream=True) is None
    assert tracker.expect("a", "batch") is None
