"""The circuit breaker of the Redis link."""

from typing import Final

_STEADY_S: Final = 10.0
_LONGEST_WAIT_S: Final = 15.0


class RedisBreaker:
    """A breaker that decides from events and times passed in; no I/O. A connection that had lasted is retried at once
    when it breaks. One that breaks again and again is retried with exponential back-off, as each failure costs
    waiting callers a full time-out.
    """

    def __init__(self, failures: int, probe_s: float, *, steady_s: float = _STEADY_S) -> None:
        self._failures = failures
        self._probe_s = probe_s
        self._steady_s = steady_s
        self._in_a_row = 0
        self._short_lives = 0
        self._closed_at: float | None = None

    @property
    def closed(self) -> bool:
        return self._closed_at is not None

    def answered(self) -> None:
        self._in_a_row = 0

    def failed(self) -> bool:
        """Count a failure. Return True when that reaches the limit in a row."""
        self._in_a_row += 1
        return self._in_a_row >= self._failures

    def close(self, now: float) -> None:
        self._closed_at = now
        self._in_a_row = 0

    def open(self, now: float) -> float:
        """Open the breaker. Return the seconds to wait before the next try."""
        if self._closed_at is None:
            return self._probe_s
        lasted = now - self._closed_at >= self._steady_s
        self._closed_at = None
        self._short_lives = 0 if lasted else self._short_lives + 1
        if self._short_lives == 0:
            return 0.0
        # 2 ** 16 is beyond the longest wait for any interval that can be set.
        return float(min(max(_LONGEST_WAIT_S, self._probe_s), self._probe_s * 2 ** min(self._short_lives - 1, 16)))
