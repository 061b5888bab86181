"""The retry budget: a limit on retries and fallbacks of all requests together, so that an outage is not multiplied."""

from collections import deque
from collections.abc import Callable

_BUCKETS = 10


class RetryBudget:
    """A token bucket that every request fills by `share`, and a retry or fallback empties by 1.

    It starts with `floor`, so over any run of requests retries <= floor + share x requests. The balance is capped at
    max(floor, share x requests within the last `window_s` seconds). Envoy's and Finagle's retry budgets work alike.
    """

    def __init__(self, share: float, floor: int, window_s: float, clock: Callable[[], float]) -> None:
        self._share = share
        self._floor = float(floor)
        self._bucket_s = window_s / _BUCKETS
        self._clock = clock
        self._balance = self._floor
        # Requests by time, in coarse buckets: (number of the bucket, requests).
        self._recent: deque[list[int]] = deque()
        self._latest = [-1, 0]
        self._requests = 0

    def request(self) -> None:
        """Counts a new request, whose first attempt is free."""
        number = self._bucket()
        if self._latest[0] != number:
            self._expire(number)
            self._latest = [number, 0]
            self._recent.append(self._latest)
        self._latest[1] += 1
        before = self._share * self._requests
        self._requests += 1
        self._balance += self._share
        if before < self._floor:
            # From there on the cap rises by as much.
            self._balance = min(self._balance, self._cap())

    def try_spend(self) -> bool:
        """Takes one retry from the budget; False when there is none left."""
        self._expire(self._bucket())
        # The small slack makes five fifths a whole in floating point.
        if self._balance < 1 - 1e-9:
            return False
        self._balance -= 1
        return True

    @property
    def balance(self) -> float:
        """Retries that are left now."""
        self._expire(self._bucket())
        return self._balance

    def _cap(self) -> float:
        return max(self._floor, self._share * self._requests)

    def _bucket(self) -> int:
        """The number of the present bucket."""
        return int(self._clock() // self._bucket_s)

    def _expire(self, number: int) -> None:
        """Forgets what is too old, now that the bucket of this number is the present one."""
        while self._recent and self._recent[0][0] <= number - _BUCKETS:
            self._requests -= self._recent.popleft()[1]
        self._balance = min(self._balance, self._cap())
