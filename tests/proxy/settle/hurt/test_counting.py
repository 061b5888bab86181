"""The count of requests that ill targets hurt: each once, by what became of it."""

from typing import Any

import pytest

from cost.times import MINUTE_US
from proxy.dispatch.outcome import AttemptOutcome
from proxy.settle.hurt.counting import MOST_KEPT, HurtCounts
from proxy.settle.refusals.counting import Refusals
from tests.proxy.settle.refusals.test_counting import NOW_US, outcome


def attempt(target_id: str, result: Any = "error", ttft_s: float | None = None) -> AttemptOutcome:
    return AttemptOutcome(
        target_id=target_id,
        deployment_id=f"{target_id}/main",
        provider="p",
        result=result,
        duration_s=0.1,
        ttft_s=ttft_s,
    )


@pytest.mark.parametrize(
    ("status", "code", "attempts", "out_of_use", "told"),
    [
        (502, "upstream_error", (attempt("b"), attempt("a")), (), ("refused", ("a", "b"))),
        # Circuits were open: it was refused without an attempt.
        (503, "targets_unavailable", (), ("a", "b", "a"), ("refused", ("a", "b"))),
        (429, "queue_full", (), ("a",), ("refused", ("a",))),
        (200, "stream_cut", (attempt("a", "cut"),), (), ("refused", ("a",))),
        (200, None, (attempt("a"), attempt("b", "ok")), (), ("rerouted", ("a",))),
        (200, None, (attempt("a", "ok", 8.0),), (), ("slow", ("a",))),
        (200, None, (attempt("a", "ok", 0.1),), (), None),
        # Another one was quicker, the request itself was wrong, its caller left, or a limit of ours refused it.
        (200, None, (attempt("a", "hedge_lost"), attempt("b", "ok")), (), None),
        (400, "invalid", (attempt("a", "rejected"),), ("b",), None),
        (499, None, (attempt("a"),), (), None),
        (429, "rate_limit_exceeded", (), (), None),
    ],
)
def test_what_became_of_a_request(
    status: int,
    code: str | None,
    attempts: tuple[AttemptOutcome, ...],
    out_of_use: tuple[str, ...],
    told: tuple[str, tuple[str, ...]] | None,
) -> None:
    """By whose fault it was refused, answered by another try, or late."""
    counts = HurtCounts()
    ended = outcome(status=status, error_code=code, attempts=attempts, out_of_use=out_of_use)
    assert counts.add(ended, MINUTE_US, 7.5, 1) is (told is not None)
    assert [(each.hurt.fate, each.hurt.targets) for each in counts.changed_after(0, 0)] == ([told] if told else [])


def test_a_count_is_told_with_the_refusals_when_it_changed() -> None:
    """Whole, so that telling twice is telling once; and nothing that did not change."""
    counted = Refusals(lambda: NOW_US)
    for _ in range(3):
        counted.finished(outcome(status=502, error_code="upstream_error", attempts=(attempt("a"),)))
    first = counted.changed_after(0, "b")
    assert [each.count for each in first.hurt] == [3]
    assert counted.changed_after(first.mark, "b").hurt == ()
    counted.finished(outcome(status=502, error_code="upstream_error", attempts=(attempt("a"),)))
    assert [each.count for each in counted.changed_after(first.mark, "b").hurt] == [4]


def test_names_without_end_take_bounded_room() -> None:
    """Beyond it they are counted without their names, and every request is counted while there is room for its team."""
    counts = HurtCounts()
    for number in range(2 * MOST_KEPT):
        ended = outcome(status=502, error_code="upstream_error", attempts=(attempt("a"),), key_id=f"k{number}")
        counts.add(ended, MINUTE_US, 7.5, number + 1)
    told = counts.changed_after(0, 0)
    assert len(told) <= MOST_KEPT
    assert sum(each.count for each in told) == 2 * MOST_KEPT
