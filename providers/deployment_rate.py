"""The requests and tokens that may go to a deployment in a minute, as far as one process may send them. Pure; times are given.

Each is a bucket that holds a tenth of a minute's amount and refills with what is left of it, so that no minute, wherever it
begins, has more. Of several processes each has its part.
"""

import math
from typing import Final

_MINUTE_S: Final = 60.0
_AT_ONCE: Final = 0.1
"""The part of a minute's amount that may go at once."""


class _Bucket:
    __slots__ = ("at", "level", "per_minute")

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self.at = 0.0
        self.level = math.inf

    def wait_s(self, amount: float, now: float, live: int) -> float:
        """Refill it, and return the seconds until `amount` is there."""
        mine = self.per_minute / live
        # One at least goes at once, however few a minute has.
        burst = max(1.0, mine * _AT_ONCE)
        rate = (mine if burst == 1.0 else mine - burst) / _MINUTE_S
        self.level = min(self.level + max(0.0, now - self.at) * rate, burst)
        self.at = now
        # What is more than it can hold goes when it is full, and is paid off afterwards.
        return max(0.0, (min(amount, burst) - self.level) / rate)


class DeploymentRate:
    """What may still go to one deployment now."""

    __slots__ = ("_requests", "_tokens")

    def __init__(self, requests_per_minute: int | None, tokens_per_minute: int | None) -> None:
        self._requests = None if requests_per_minute is None else _Bucket(requests_per_minute)
        self._tokens = None if tokens_per_minute is None else _Bucket(tokens_per_minute)

    def take(self, now: float, tokens: int, live: int) -> float:
        """Take a request with its tokens and return 0, or return the seconds until it may go, and take nothing."""
        wait_s = 0.0
        if self._requests is not None:
            wait_s = self._requests.wait_s(1.0, now, live)
        if self._tokens is not None:
            wait_s = max(wait_s, self._tokens.wait_s(tokens, now, live))
        if wait_s <= 0.0:
            if self._requests is not None:
                self._requests.level -= 1.0
            if self._tokens is not None:
                self._tokens.level -= tokens
        return wait_s

    def correct(self, taken: int, used: int) -> None:
        """Correct what was taken for a request by the tokens that it used."""
        if self._tokens is not None:
            self._tokens.level += taken - used
