"""Prediction of waits: the work served before a request, divided by the rate at which work ends."""

import math
from typing import Final

from proxy.admit.queues.fair_queue import Backlog, WorkAhead

_BUSY_MEMORY_S: Final = 10.0
"""The time constant of the measured rate in busy seconds: an older observation counts for a third."""
_STAY_MEMORY_S: Final = 30.0
_GUESSED_STAY_S: Final = 10.0
"""The assumed seconds a token is in flight before anything was measured; a long answer's, so rather too long."""
_PRIOR_S: Final = 2.0
"""Busy seconds that the assumption counts for beside the measurement."""
_LONGEST_STAY_S: Final = 600.0
LONGEST_S: Final = 3_600.0
"""The longest prediction; a larger figure would say no more."""


class DrainRate:
    """The tokens per second that end in one queue of one process. While work waits, the tokens that end are all that
    can end, so their rate is simply measured. When nothing waits, only the tokens that came end; the rate at full
    capacity then follows from the time that a token stays (Little's law). The first notices an engine that slows
    down, the second is there before the first rush, so each makes up for the other's lack.
    """

    def __init__(self, now: float) -> None:
        self._at = now
        self._ended = 0.0
        """Tokens that ended in busy time, exponentially decayed."""
        self._busy_s = 0.0
        self._tokens = 1.0
        self._stays = _GUESSED_STAY_S
        """The sum of tokens times seconds in flight, decayed as `_tokens`. Starts with one token of the assumption."""

    def advance(self, now: float, *, busy: bool) -> None:
        """Advance the clock; `busy` is True when work waited since the last call."""
        passed_s, self._at = now - self._at, now
        if passed_s <= 0:
            return
        if busy:
            faded = math.exp(-passed_s / _BUSY_MEMORY_S)
            self._ended *= faded
            self._busy_s = self._busy_s * faded + _BUSY_MEMORY_S * (1 - faded)
        faded = math.exp(-passed_s / _STAY_MEMORY_S)
        self._tokens = 1 + (self._tokens - 1) * faded
        self._stays = _GUESSED_STAY_S + (self._stays - _GUESSED_STAY_S) * faded

    def ended(self, tokens: int, stayed_s: float, *, busy: bool) -> None:
        if busy:
            self._ended += tokens
        self._tokens += tokens
        self._stays += tokens * stayed_s

    def per_s(self, capacity: float) -> float:
        """Return the rate, in tokens per second, for a capacity in tokens. Always above 0, as a rate of 0 would
        predict an endless wait.
        """
        guess = capacity * self._tokens / max(self._stays, 1e-9)
        measured = (self._ended + guess * _PRIOR_S) / (self._busy_s + _PRIOR_S)
        return max(measured, capacity / _LONGEST_STAY_S, 1e-9)


def predicted_wait_s(backlog: Backlog, tokens_per_s: float, aging_s: float) -> float:
    """Predict the wait in seconds by a fluid model: the work ahead, and the tokens that must end for the request to
    fit, over the drain rate.
    """
    wait_s = _until_served(backlog.ahead, backlog.short, tokens_per_s)
    if backlog.aged is not None:
        wait_s = min(wait_s, aging_s + _until_served(backlog.aged, backlog.short, tokens_per_s))
    return min(wait_s, LONGEST_S)


def _until_served(ahead: WorkAhead, short: float, tokens_per_s: float) -> float:
    """Return the seconds until all work ahead is served, including the tokens that the competing teams go on sending.
    A competing team takes a part of the rate for them, until it has had its most. The wait is where the line of
    tokens served meets the line of tokens that go first, which bends where a team is done.
    """
    first = ahead.own + short
    sent_per_s = 0.0
    bends: list[tuple[float, float, float]] = []
    for rival in ahead.rivals:
        first += min(rival.waiting, rival.most)
        if rival.waiting < rival.most and rival.per_s > 0:
            left = rival.most - rival.waiting
            bends.append((left / rival.per_s, left, rival.per_s))
            sent_per_s += rival.per_s
    if first <= 0:
        return 0.0
    bends.sort()
    for until_s, left, per_s in bends:
        if first <= until_s * (tokens_per_s - sent_per_s):
            break
        first += left
        sent_per_s -= per_s
    if tokens_per_s <= sent_per_s:
        return math.inf
    return first / (tokens_per_s - sent_per_s)
