"""Buckets in this process: all there is without a Redis, and this process's share while Redis is away.

What a process takes by its share is owed to Redis: the level that a bucket would have untouched, less the level it has.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from proxy.limits.bucket import corrected, places, refilled, share
from proxy.limits.limit import Limit
from proxy.limits.limit_set import LimitSet, Outcome

MAX_BUCKETS: Final = 100_000


class UnsentTake(msgspec.Struct, frozen=True, kw_only=True):
    """What Redis does not know of one bucket."""

    key: str
    rate: int
    burst: int
    amount: float
    """What was taken; below zero for what is to be given back."""
    known: float
    """The last level that Redis told this process..."""
    told_us: float
    """...and when, by Redis's clock; below zero where it told none."""


class _Bucket:
    """One limit's state. It is `active` once something was decided by it since Redis was last told everything."""

    __slots__ = (
        "active",
        "at_us",
        "burst",
        "known",
        "known_us",
        "level",
        "live",
        "owed",
        "rate",
        "share_burst",
        "share_rate",
        "told_us",
        "untouched",
    )

    def __init__(self, limit: Limit) -> None:
        self.rate = limit.rate
        self.burst = limit.burst
        self.live = 1
        self.share_rate = float(limit.rate)
        self.share_burst = float(limit.burst)
        self.active = False
        self.level = self.untouched = self.owed = self.at_us = 0.0
        # A bucket that nobody has told of is full.
        self.known = float(limit.burst)
        self.known_us = self.told_us = -1.0

    def fit(self, limit: Limit, live: int) -> None:
        """Takes over a changed limit or a changed number of those who share it; the level stays."""
        if self.rate == limit.rate and self.burst == limit.burst and self.live == live:
            return
        self.owed += self.untouched - self.level
        self.untouched = self.level
        self.rate, self.burst, self.live = limit.rate, limit.burst, live
        self.share_rate, self.share_burst = share(float(limit.rate), float(limit.burst), live)

    def level_at(self, now_us: float) -> float:
        if self.active:
            return refilled(self.level, self.at_us, now_us, self.share_rate, self.share_burst)
        if self.known_us < 0:
            return self.share_burst
        # The processes that share the limit have each heard of about the same level, and each begins with its part of it.
        left = refilled(self.known, self.known_us, now_us, float(self.rate), float(self.burst))
        return min(left / self.live, self.share_burst)

    def move(self, level: float, now_us: float) -> None:
        """Sets the level after something was taken from it or given back."""
        if self.active:
            self.untouched = refilled(self.untouched, self.at_us, now_us, self.share_rate, self.share_burst)
        else:
            self.untouched = self.level_at(now_us)
            self.active = True
        self.level, self.at_us = level, now_us

    def set_back(self, now_us: float) -> None:
        """Should the clock have been set back, it fills from now on, and not from when the clock is where it was."""
        if self.active and now_us < self.at_us:
            self.move(self.level_at(now_us), now_us)

    def owes(self, now_us: float) -> float:
        if not self.active:
            return 0.0
        untouched = refilled(self.untouched, self.at_us, now_us, self.share_rate, self.share_burst)
        return self.owed + (untouched - self.level_at(now_us))

    def pay(self, now_us: float) -> None:
        """Redis knows everything now. What it said before says nothing more."""
        if self.active:
            self.level = self.untouched = self.level_at(now_us)
            self.at_us, self.owed = now_us, 0.0
        self.told_us = -1.0

    def rest(self, now_us: float) -> None:
        """Redis decides from now on; until it tells its level, it is taken for what all have together as we have."""
        if self.active:
            self.known, self.known_us = self.level_at(now_us) * self.live, now_us
            self.active = False

    def learn(self, level: float, told_us: float, now_us: float) -> None:
        self.known, self.told_us, self.known_us = level, told_us, now_us


class LocalBuckets:
    """Decides by this process's own buckets. Times are in microseconds, by any clock that does not go back."""

    def __init__(self, most: int = MAX_BUCKETS) -> None:
        self._most = most
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()
        self._active: dict[str, _Bucket] = {}
        self.in_flight: dict[str, int] = {}
        """For each concurrency limit that has any. They are as many as requests run, and none is ever forgotten."""

    def __len__(self) -> int:
        return len(self._buckets)

    def admit(self, draw: LimitSet, tokens: int, now_us: float, live: int) -> Outcome:
        """Takes from all, or from none."""
        buckets, figures = self._look(draw, now_us, live)
        fits = True
        for index, bucket in enumerate(buckets):
            amount = 1.0 if index < draw.requests else float(tokens)
            # Above a share's burst, but not above the limit's: admitted by a share that is full, which then is in debt.
            if figures[index] < min(amount, bucket.share_burst):
                fits = False
        for limit, count in zip(draw.counted, figures[len(buckets) :], strict=True):
            if count >= places(limit.burst, live):
                fits = False
        if fits:
            for index, bucket in enumerate(buckets):
                figures[index] -= 1.0 if index < draw.requests else float(tokens)
                self._move(draw.rated[index], bucket, figures[index], now_us)
            self.begin(draw)
            for index in range(len(buckets), len(figures)):
                figures[index] += 1
        else:
            for bucket in buckets:
                bucket.set_back(now_us)
        return Outcome(fits, now_us, figures)

    def peek(self, draw: LimitSet, now_us: float, live: int) -> Outcome:
        """What `admit` would find."""
        return Outcome(False, now_us, self._look(draw, now_us, live)[1])

    def settle(self, draw: LimitSet, correction: float, now_us: float, live: int) -> None:
        """Refunds to, or charges, the token buckets."""
        for limit in draw.rated[draw.requests :]:
            bucket = self._bucket(limit, live)
            level = corrected(bucket.level_at(now_us), correction, bucket.share_burst)
            self._move(limit, bucket, level, now_us)

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
        """Remembers what Redis said, as that from which this process's share begins if Redis goes away."""
        for limit, level in zip(draw.rated, told.figures, strict=False):
            self._found(limit).learn(level, told.now_us, now_us)

    @property
    def deciding(self) -> bool:
        """Whether anything was decided here that Redis may not know."""
        return bool(self._active)

    def hand_over(self, clock_us: Callable[[], float], born_us: float | None = None) -> Iterator[UnsentTake]:
        """What Redis is to be told; what was given out counts as told.

        Given since when Redis has its memory, also what it has forgotten since it told us.
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
                    key=key, rate=bucket.rate, burst=bucket.burst, amount=amount, known=bucket.known, told_us=told_us
                )

    def take_back(self, untold: Sequence[UnsentTake]) -> None:
        """It was not told after all."""
        for each in untold:
            bucket = self._buckets.get(each.key)
            if bucket is not None:
                bucket.owed += each.amount

    def rest(self, now_us: float) -> None:
        """From now on Redis decides, and knows everything."""
        for bucket in self._active.values():
            bucket.rest(now_us)
        self._active.clear()

    def _look(self, draw: LimitSet, now_us: float, live: int) -> tuple[list[_Bucket], list[float]]:
        buckets = [self._bucket(limit, live) for limit in draw.rated]
        figures = [bucket.level_at(now_us) for bucket in buckets]
        figures += [self.in_flight.get(limit.key, 0) for limit in draw.counted]
        return buckets, figures

    def _move(self, limit: Limit, bucket: _Bucket, level: float, now_us: float) -> None:
        if not bucket.active:
            self._active[limit.key] = bucket
        bucket.move(level, now_us)

    def _bucket(self, limit: Limit, live: int) -> _Bucket:
        bucket = self._found(limit)
        bucket.fit(limit, live)
        return bucket

    def _found(self, limit: Limit) -> _Bucket:
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
