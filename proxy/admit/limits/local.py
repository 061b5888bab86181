"""Buckets in this process: the only ones without Redis, and this process's share while Redis is unreachable.

A process owes Redis the tokens that it takes by its share: the level that a bucket would have untouched, less the level
it has.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from proxy.admit.limits.bucket import corrected, places, refilled, share
from proxy.admit.limits.limit import Limit
from proxy.admit.limits.limit_set import LimitSet, Outcome

MAX_BUCKETS: Final = 100_000


class UnsentTake(msgspec.Struct, frozen=True, kw_only=True):
    """A change of one bucket that Redis has not been told yet."""

    key: str
    rate: int
    burst: int
    amount: float
    """The amount taken; negative for a refund."""
    known: float
    """The last level that Redis reported to this process."""
    told_us: float
    """The time of that report by Redis's clock, in microseconds; negative without one."""


class _Bucket:
    """The local state of one bucket, `active` from the first local decision until Redis is told everything."""

    __slots__ = (
        "active",
        "at_us",
        "known",
        "known_us",
        "level",
        "limit",
        "live",
        "owed",
        "share_burst",
        "share_rate",
        "told_us",
        "untouched",
    )

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.live = 1
        self.share_rate = float(limit.rate)
        self.share_burst = float(limit.burst)
        self.active = False
        self.level = self.untouched = self.owed = self.at_us = 0.0
        # Without a report from Redis a bucket counts as full.
        self.known = float(limit.burst)
        self.known_us = self.told_us = -1.0

    def fit(self, limit: Limit, live: int) -> None:
        """Adopt a changed limit or number of processes; the level stays."""
        self.owed += self.untouched - self.level
        self.untouched = self.level
        self.limit, self.live = limit, live
        self.share_rate, self.share_burst = share(float(limit.rate), float(limit.burst), live)

    def level_at(self, now_us: float) -> float:
        if self.active:
            return refilled(self.level, self.at_us, now_us, self.share_rate, self.share_burst)
        if self.known_us < 0:
            return self.share_burst
        # The processes that share the limit have each heard of about the same level, and each begins with its part of it.
        left = refilled(self.known, self.known_us, now_us, float(self.limit.rate), float(self.limit.burst))
        return min(left / self.live, self.share_burst)

    def move(self, level: float, now_us: float) -> None:
        """Set the level after a take or a refund."""
        if self.active:
            # A full one stays full.
            if self.untouched != self.share_burst:
                self.untouched = refilled(self.untouched, self.at_us, now_us, self.share_rate, self.share_burst)
        else:
            self.untouched = self.level_at(now_us)
            self.active = True
        self.level, self.at_us = level, now_us

    def set_back(self, now_us: float) -> None:
        """Reset the refill time when the clock was set back, so that refilling does not stall until it catches up."""
        if self.active and now_us < self.at_us:
            self.move(self.level_at(now_us), now_us)

    def owes(self, now_us: float) -> float:
        if not self.active:
            return 0.0
        untouched = refilled(self.untouched, self.at_us, now_us, self.share_rate, self.share_burst)
        return self.owed + (untouched - self.level_at(now_us))

    def pay(self, now_us: float) -> None:
        """Mark the debt as reported to Redis, and the level last known from Redis as outdated."""
        if self.active:
            self.level = self.untouched = self.level_at(now_us)
            self.at_us, self.owed = now_us, 0.0
        self.told_us = -1.0

    def rest(self, now_us: float) -> None:
        """Deactivate the bucket because Redis decides again; the shared level is assumed as this share's times
        `live`.
        """
        if self.active:
            self.known, self.known_us = self.level_at(now_us) * self.live, now_us
            self.active = False

    def learn(self, level: float, told_us: float, now_us: float) -> None:
        self.known, self.told_us, self.known_us = level, told_us, now_us


class LocalBuckets:
    """The local buckets, and decisions by them. All times are microseconds of a clock that normally does not go back."""

    def __init__(self, most: int = MAX_BUCKETS) -> None:
        self._most = most
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()
        self._active: dict[str, _Bucket] = {}
        self.in_flight: dict[str, int] = {}
        """Requests in flight per concurrency limit, only where there are any. Bounded by the requests running, never
        evicted.
        """

    def __len__(self) -> int:
        return len(self._buckets)

    def admit(self, draw: LimitSet, tokens: int, now_us: float, live: int) -> Outcome:
        """Take from all buckets, or from none."""
        buckets: list[_Bucket] = []
        figures: list[float] = []
        fits = True
        for limit in draw.rated:
            bucket = self._bucket(limit, live)
            level = bucket.level_at(now_us)
            buckets.append(bucket)
            figures.append(level)
            # Above a share's burst, but not above the limit's: admitted by a share that is full, which then is in debt.
            if level < bucket.share_burst and level < (tokens if limit.kind == "tokens" else 1):
                fits = False
        for limit in draw.counted:
            count = self.in_flight.get(limit.key, 0)
            figures.append(count)
            if count >= places(limit.burst, live):
                fits = False
        if not fits:
            for bucket in buckets:
                bucket.set_back(now_us)
            return Outcome(False, now_us, figures)
        for index, bucket in enumerate(buckets):
            figures[index] -= 1 if index < draw.requests else tokens
            self._active[bucket.limit.key] = bucket
            bucket.move(figures[index], now_us)
        if draw.counted:
            self.begin(draw)
            for index in range(len(buckets), len(figures)):
                figures[index] += 1
        return Outcome(True, now_us, figures)

    def peek(self, draw: LimitSet, now_us: float, live: int) -> Outcome:
        """Return the figures without taking anything."""
        figures = [self._bucket(limit, live).level_at(now_us) for limit in draw.rated]
        figures += [self.in_flight.get(limit.key, 0) for limit in draw.counted]
        return Outcome(False, now_us, figures)

    def settle(self, draw: LimitSet, correction: float, now_us: float, live: int) -> None:
        """Refund `correction` to the token buckets, or charge them where it is negative."""
        for limit in draw.tokens:
            bucket = self._bucket(limit, live)
            self._active[limit.key] = bucket
            bucket.move(corrected(bucket.level_at(now_us), correction, bucket.share_burst), now_us)

    def begin(self, draw: LimitSet) -> None:
        for limit in draw.counted:
            self.in_flight[limit.key] = self.in_flight.get(limit.key, 0) + 1

    def end(self, draw: LimitSet) -> None:
        for limit in draw.counted:
            left = self.in_flight.get(limit.key, 0) - 1
            if left > 0:
                self.in_flight[limit.key] = left
            else:
                self.in_flight.pop(limit.key, None)

    def learn(self, draw: LimitSet, told: Outcome, now_us: float) -> None:
        """Remember the levels Redis reported, as the starting point of local shares should Redis be lost."""
        for limit, level in zip(draw.rated, told.figures, strict=False):
            self._find_or_add(limit).learn(level, told.now_us, now_us)

    @property
    def deciding(self) -> bool:
        """True when decisions were made here that Redis may not know."""
        return bool(self._active)

    def hand_over(self, clock_us: Callable[[], float], born_us: float | None = None) -> Iterator[UnsentTake]:
        """Yield the changes that Redis must be told; each counts as told once it is yielded. With `born_us`, the time
        since when Redis has its memory, buckets that it has forgotten are included.
        """
        some = self._active if born_us is None else self._buckets
        since_us = 0.0 if born_us is None else born_us
        for key, bucket in [each for each in some.items() if each[1].active or 0 <= each[1].told_us < since_us]:
            now_us = clock_us()
            amount = bucket.owes(now_us)
            forgotten = 0 <= bucket.told_us < since_us
            if amount or forgotten:
                told_us = bucket.told_us if forgotten else -1.0
                bucket.pay(now_us)
                yield UnsentTake(
                    key=key,
                    rate=bucket.limit.rate,
                    burst=bucket.limit.burst,
                    amount=amount,
                    known=bucket.known,
                    told_us=told_us,
                )

    def take_back(self, untold: Sequence[UnsentTake]) -> None:
        """Restore debts that could not be sent."""
        for each in untold:
            bucket = self._buckets.get(each.key)
            if bucket is not None:
                bucket.owed += each.amount

    def rest(self, now_us: float) -> None:
        """Deactivate all buckets, as Redis decides again and knows everything."""
        for bucket in self._active.values():
            bucket.rest(now_us)
        self._active.clear()

    def _bucket(self, limit: Limit, live: int) -> _Bucket:
        bucket = self._buckets.get(limit.key)
        if bucket is None or bucket.limit is not limit or bucket.live != live:
            return self._fitted(limit, live)
        self._buckets.move_to_end(limit.key)
        return bucket

    def _fitted(self, limit: Limit, live: int) -> _Bucket:
        bucket = self._find_or_add(limit)
        if bucket.live != live or bucket.limit != limit:
            bucket.fit(limit, live)
        # It may be the same limit made anew.
        bucket.limit = limit
        return bucket

    def _find_or_add(self, limit: Limit) -> _Bucket:
        bucket = self._buckets.get(limit.key)
        if bucket is None:
            bucket = self._buckets[limit.key] = _Bucket(limit)
            if len(self._buckets) > self._most:
                # It was used longest ago, so it is most likely full again, as a new one will be.
                forgotten, _ = self._buckets.popitem(last=False)
                self._active.pop(forgotten, None)
        else:
            self._buckets.move_to_end(limit.key)
        return bucket
