"""A check of limits, from what callers saw: in every window of time at most the burst and what flowed in meanwhile."""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray


class Admitted(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was let through, somewhere between its sending and the head of its reply. One clock, in seconds."""

    sent_at: float
    answered_at: float
    used: float = 1.0
    refunded: float = 0.0
    """Tokens taken beyond `used`, which came back when the request was over."""
    over_at: float = 0.0
    """Time by which its refund, if any, has been given."""


class Bound(msgspec.Struct, frozen=True):
    """A bucket, and what it lets through at most in `w` seconds: the burst and `w` times the rate."""

    per_s: float
    burst: float

    def allows(self, seconds: float) -> float:
        return self.burst + self.per_s * seconds


def most_over(admitted: Sequence[Admitted], bound: Bound) -> float:
    """Return the excess of the worst of all windows over the bound; 0 or less says that the limit held in every window.

    A request counts in a window only when it was sent and answered in it, so that it was certainly let through in it:
    what is above the bound is above it whatever the clocks and the wire did. What was outstanding when a window begins
    may have come back in it as refunds, and then was there to be taken again.
    """
    if not admitted:
        return -bound.burst
    begins = np.sort(np.array([each.sent_at for each in admitted]))
    above = bound.per_s * begins - bound.burst - _outstanding(admitted, begins)
    worst = -np.inf
    for each in sorted(admitted, key=lambda each: each.answered_at):
        above[: np.searchsorted(begins, each.sent_at, side="right")] += each.used
        inside = above[: np.searchsorted(begins, each.answered_at, side="right")]
        worst = max(worst, float(inside.max()) - bound.per_s * each.answered_at)
    return float(worst)


def _outstanding(admitted: Sequence[Admitted], moments: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the tokens that may come back, at each moment: the refunds of requests that were sent before it and not over."""
    refunds = [each for each in admitted if each.refunded > 0]
    return _sums_before(moments, [(each.sent_at, each.refunded) for each in refunds]) - _sums_before(
        moments, [(each.over_at, each.refunded) for each in refunds]
    )


def _sums_before(moments: NDArray[np.float64], events: list[tuple[float, float]]) -> NDArray[np.float64]:
    events = sorted(events)
    totals = np.concatenate([[0.0], np.cumsum([amount for _, amount in events])])
    sums: NDArray[np.float64] = totals[np.searchsorted([at for at, _ in events], moments, side="left")]
    return sums


def busiest(admitted: Sequence[Admitted], window_s: float) -> float:
    """Return the most that any window of this length certainly let through."""
    begins = np.array(sorted(each.sent_at for each in admitted))
    # What was sent from each of these moments on, and answered so far.
    since = np.zeros(len(begins))
    most = 0.0
    for each in sorted(admitted, key=lambda each: each.answered_at):
        since[: np.searchsorted(begins, each.sent_at, side="right")] += each.used
        first = np.searchsorted(begins, each.answered_at - window_s, side="left")
        most = max(most, float(since[first]) if first < len(since) else 0.0)
    return most


def used_share(admitted: Sequence[Admitted], bound: Bound, seconds: float) -> float:
    """Return the share of what the bucket, full at first, had to give in that time that was let through."""
    return sum(each.used for each in admitted) / bound.allows(seconds)
