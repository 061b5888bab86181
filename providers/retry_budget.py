"""Retry budgets: a limit on asking again what fails, so that an outage is not multiplied. One for each target."""

from collections import deque
from collections.abc import Callable
from typing import Final

from providers.config import RetryConfig

_BUCKETS: Final = 10
REFILL_S: Final = 60.0
"""Seconds in which a used-up floor comes back, however few requests there are."""


class RetryBudget:
    """A token bucket that every request fills by `share`, and a retry empties by 1.

    It starts with `floor`, which comes back within a minute, so over any run of requests retries <= floor + share x requests +
    floor x minutes. The balance is capped at max(floor, share x requests within the last `window_s` seconds). Envoy's and
    Finagle's retry budgets work alike.
    """

    def __init__(self, share: float, floor: int, window_s: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._share, self._floor, self._bucket_s = share, float(floor), window_s / _BUCKETS
        self._balance = self._floor
        self._refilled_at = clock()
        # Requests by time, in coarse buckets: (number of the bucket, requests).
        self._recent: deque[list[int]] = deque()
        self._latest = [-1, 0]
        self._requests = 0

    def configure(self, share: float, floor: int, window_s: float) -> None:
        """Go on by other rules: a higher floor is there at once, and requests of another window are counted anew."""
        bucket_s = window_s / _BUCKETS
        if bucket_s != self._bucket_s:
            self._recent.clear()
            self._latest, self._requests = [-1, 0], 0
        self._balance += max(0.0, floor - self._floor)
        self._share, self._floor, self._bucket_s = share, float(floor), bucket_s
        self._balance = min(self._balance, self._cap())

    def request(self) -> None:
        """Count a new request, whose first attempt is free."""
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
        """Take one retry from the budget; False when there is none left."""
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
        """Return the number of the present bucket."""
        return int(self._clock() // self._bucket_s)

    def _expire(self, number: int) -> None:
        """Drop old buckets, now that the bucket of this number is the present one, and give back the retries that time
        has earned.
        """
        while self._recent and self._recent[0][0] <= number - _BUCKETS:
            self._requests -= self._recent.popleft()[1]
        now = self._clock()
        earned = self._floor * (now - self._refilled_at) / REFILL_S
        self._refilled_at = now
        self._balance = min(self._balance + earned, self._cap())


class RetryBudgets:
    """The budget of each target, by the name of its entry in the catalog."""

    def __init__(self, config: RetryConfig, clock: Callable[[], float]) -> None:
        self._config = config
        self._clock = clock
        self._of: dict[str, RetryBudget] = {}

    def of(self, entry: str) -> RetryBudget:
        """Return the target's budget."""
        found = self._of.get(entry)
        if found is None:
            config = self._config
            found = RetryBudget(config.budget_share, config.budget_floor, config.budget_window_s, self._clock)
            self._of[entry] = found
        return found

    def configure(self, config: RetryConfig) -> None:
        """Set other bounds for all of them."""
        self._config = config
        for each in self._of.values():
            each.configure(config.budget_share, config.budget_floor, config.budget_window_s)
