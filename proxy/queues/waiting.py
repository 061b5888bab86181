"""How long a request that comes now will wait: what is served before it, at the rate at which work ends."""

import math
from typing import Final

from proxy.queues.fair_queue import Backlog, WorkAhead

_BUSY_MEMORY_S: Final = 10.0
"""Of the measured rate: seconds of busy time after which an observation counts for a third."""
_STAY_MEMORY_S: Final = 30.0
_GUESSED_STAY_S: Final = 10.0
"""How long a token is in flight before anything was measured: a whole answer's promise, so rather too long."""
_PRIOR_S: Final = 2.0
"""Busy seconds that the guess counts for beside the measurement."""
_LONGEST_STAY_S: Final = 600.0
LONGEST_S: Final = 3_600.0
"""Nothing longer is predicted: it would say no more."""


class DrainRate:
    """Tokens that end each second, of one queue in one process.

    While work waits, what ends is what can end, so it is simply measured. When nothing waits, what ends is only what
    came; the rate at full capacity then follows from how long a token stays (Little's law). The first notices an engine
    that slows down, the second is there before the first rush, so each makes up for what the other lacks.
    """

    def __init__(self, now: float) -> None:
        self._at = now
        self._ended = 0.0
        """Tokens that ended in busy time, faded."""
        self._busy_s = 0.0
        self._tokens = 1.0
        self._stays = _GUESSED_STAY_S
        """Sum of tokens times the seconds they stayed, faded as `_tokens`. It begins with one token of the guess."""

    def advance(self, now: float, *, busy: bool) -> None:
        """Tells whether work waited since the last call."""
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
        """Above 0 always: a rate of nothing would be a wait without end."""
        guess = capacity * self._tokens / max(self._stays, 1e-9)
        measured = (self._ended + guess * _PRIOR_S) / (self._busy_s + _PRIOR_S)
        return max(measured, capacity / _LONGEST_STAY_S, 1e-9)


def predicted_wait_s(backlog: Backlog, tokens_per_s: float, aging_s: float) -> float:
    """The fluid model: what is served before the request and what must end for it to fit, at the rate at which work ends."""
    wait_s = _until_served(backlog.ahead, backlog.short, tokens_per_s)
    if backlog.aged is not None:
        wait_s = min(wait_s, aging_s + _until_served(backlog.aged, backlog.short, tokens_per_s))
    return min(wait_s, LONGEST_S)


def _until_served(ahead: WorkAhead, short: float, tokens_per_s: float) -> float:
    """When all that goes first is served, with what the rivals go on to send until then.

    A rival takes a part of the rate for what it sends, until it has had as much as may go before the request. The wait
    is where the line of what is served meets the line of what goes first, which has a bend for each rival that is done.
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
