import msgspec
import pytest

from benchmarks import fairness, overload, queued
from benchmarks.open_loop import Reply
from benchmarks.outcomes import Window

_REPLY = Reply(
    caller=1, at_s=1.0, tokens=40, late_us=0, status=200, whole=True, latency_us=200_000, ttft_us=5_000, code="", why="",
    retry_after=False, target="bench-ours",
)  # fmt: skip


def _reply(**changes: object) -> Reply:
    return msgspec.structs.replace(_REPLY, **changes)


def test_the_heavy_team_is_not_among_the_nine() -> None:
    """Nor is what was refused or cut."""
    replies = [_reply(), _reply(caller=fairness.HEAVY), _reply(caller=2, status=429), _reply(caller=2, whole=False)]
    assert fairness.latencies_us(replies) == [200_000]
    assert fairness.latencies_us(replies, fairness.HEAVY) == [200_000]
    assert fairness.latencies_us(replies, 2) == []


def test_the_same_request_is_compared_with_itself() -> None:
    """Where it was answered both times, whatever came in between."""
    before = [_reply(at_s=1.0), _reply(at_s=2.0, latency_us=100_000), _reply(at_s=3.0, status=429)]
    after = [_reply(at_s=2.0, latency_us=150_000), _reply(at_s=3.0), _reply(caller=0, at_s=1.0)]
    assert fairness.added_us(before, after) == [50_000]


def test_together_is_compared_with_alone() -> None:
    """And alone with alone again, which tells what the machine itself does."""
    parts = {
        "alone": [_reply(latency_us=100_000)],
        "alone again": [_reply(latency_us=110_000)],
        "together": [_reply(latency_us=121_000), _reply(caller=fairness.HEAVY, latency_us=900_000)],
    }
    told = fairness.compared(parts)
    assert told["count"] == 1
    assert told["p99_ratio"] == pytest.approx(1.1)
    assert told["p99_noise_ratio"] == pytest.approx(1.1)
    assert fairness.compared(parts, 5)["p99_ratio"] is None


def test_shares_are_of_what_was_served_in_the_window() -> None:
    """Prompts count with their answers, as the queue counts them."""
    window = Window(1.0, 2.0)
    replies = [_reply(), _reply(), _reply(caller=2), _reply(caller=2, at_s=1.9), _reply(caller=3, status=429)]
    assert fairness.shares(replies, window) == {1: pytest.approx(2 / 3), 2: pytest.approx(1 / 3)}


def test_every_team_asks_for_more_than_its_weight_gives() -> None:
    """Otherwise shares would show demand rather than weights."""
    assert max(fairness.WEIGHTS) / sum(fairness.WEIGHTS) < fairness._EACH_OF_CAPACITY
    assert len(fairness.WEIGHTS) == len(fairness.TEAMS)


def test_capacity_follows_from_the_slots() -> None:
    """Requests a second and the tokens in flight that fill the engine and no more."""
    capacity = queued.Capacity(10)
    assert capacity.requests_per_s * queued.MEAN_TOKENS == capacity.tokens_per_s == 10 * queued.TOKENS_PER_S
    assert capacity.tokens_in_flight == round(10 * (queued.PROMPT_TOKENS + queued.MEAN_TOKENS))


def test_the_body_has_places_for_its_number_and_its_tokens() -> None:
    """Once each, so that every request can be its own."""
    body = queued.body()
    assert (body.count("########"), body.count('"max_tokens":999999')) == (1, 1)


def test_goodput_is_told_beside_the_best_step() -> None:
    """The best is 1; a step that was not taken is not known."""
    steps = overload.of_peak([{"factor": 1.0, "goodput_per_s": 100.0}, {"factor": 2.0, "goodput_per_s": 95.0}])
    assert [step["goodput_of_peak"] for step in steps] == [1.0, 0.95]
    assert overload.at_factor(steps, 2.0, "goodput_of_peak") == 0.95
    assert overload.at_factor(steps, 3.0, "goodput_of_peak") is None
    assert overload.of_peak([{"goodput_per_s": 0.0}])[0]["goodput_of_peak"] is None
