"""Admit: token buckets of requests and tokens a minute for each key.

The buckets live in this process. Each refills continuously (rate = limit / 60 s, burst = limit).
"""

from collections import OrderedDict
from collections.abc import Callable

import msgspec

from proxy.errors import RateLimited

_MAX_KEYS = 100_000


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one key may use; None means no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


class _Bucket:
    """A token bucket. A settled truth above its estimate leaves a debt that refilling pays off."""

    __slots__ = ("at", "level", "limit")

    def __init__(self, limit: int, now: float) -> None:
        self.limit = limit
        self.level = float(limit)
        self.at = now

    def refill(self, now: float) -> None:
        self.level = min(float(self.limit), self.level + (now - self.at) * self.limit / 60)
        self.at = now

    def wait_s(self, amount: float) -> float:
        """Seconds until `amount` fits; more than the burst waits for a full bucket."""
        return max(0.0, (min(amount, self.limit) - self.level) * 60 / self.limit)

    def reset_s(self) -> float:
        return (self.limit - self.level) * 60 / self.limit


class Remaining(msgspec.Struct, frozen=True):
    """One limit as the caller's headers tell it: `x-ratelimit-{limit,remaining,reset}-…`."""

    limit: int
    remaining: int
    reset_s: float


class Admission:
    """What was taken. `settle` corrects the token estimate to the truth, once."""

    __slots__ = ("_open", "_tokens", "_tokens_bucket", "requests", "tokens")

    def __init__(
        self,
        bucket: _Bucket | None,
        taken: int,
        requests: Remaining | None,
        tokens: Remaining | None,
    ) -> None:
        self._tokens_bucket = bucket
        self._tokens = taken
        self._open = True
        self.requests = requests
        self.tokens = tokens

    def settle(self, used_tokens: int) -> None:
        if not self._open:
            return
        self._open = False
        if self._tokens_bucket is not None:
            # Refilling in between may have topped the bucket up already: never above the burst.
            bucket = self._tokens_bucket
            bucket.level = min(float(bucket.limit), bucket.level + self._tokens - used_tokens)


class Limiter:
    """Takes from the buckets. Keys beyond the bound forget their oldest bucket, which then starts full."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self.limits = limits
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[_Bucket | None, _Bucket | None]] = OrderedDict()

    def admit(self, key_id: str, tokens: int) -> Admission:
        """Takes one request and `tokens` of the key's allowance, or raises and takes nothing."""
        requests_bucket, tokens_bucket = self._buckets_of(key_id)
        self._check(requests_bucket, 1, "requests")
        self._check(tokens_bucket, tokens, "tokens")
        if requests_bucket is not None:
            requests_bucket.level -= 1
        if tokens_bucket is not None:
            tokens_bucket.level -= tokens
        return Admission(tokens_bucket, tokens, _remaining(requests_bucket), _remaining(tokens_bucket))

    def _buckets_of(self, key_id: str) -> tuple[_Bucket | None, _Bucket | None]:
        now = self._clock()
        found = self._buckets.get(key_id)
        if found is None:
            found = self._fresh(now)
            self._buckets[key_id] = found
            if len(self._buckets) > _MAX_KEYS:
                self._buckets.popitem(last=False)
            return found
        wanted = (self.limits.requests_per_minute, self.limits.tokens_per_minute)
        for bucket in found:
            if bucket is not None:
                bucket.refill(now)
        if tuple(bucket and bucket.limit for bucket in found) != wanted:
            # The limits were reloaded: start over rather than scale what was left.
            found = self._buckets[key_id] = self._fresh(now)
        return found

    def _fresh(self, now: float) -> tuple[_Bucket | None, _Bucket | None]:
        requests, tokens = self.limits.requests_per_minute, self.limits.tokens_per_minute
        return (
            _Bucket(requests, now) if requests is not None else None,
            _Bucket(tokens, now) if tokens is not None else None,
        )

    @staticmethod
    def _check(bucket: _Bucket | None, amount: int, kind: str) -> None:
        if bucket is None:
            return
        wait_s = bucket.wait_s(amount)
        if wait_s <= 0:
            return
        used = max(0, bucket.limit - int(bucket.level))
        raise RateLimited(
            f"Rate limit reached for {kind} per minute: Limit {bucket.limit}, Used {used}, Requested {amount}. "
            f"Please try again in {wait_s:.3f}s.",
            retry_after_s=wait_s,
            param=None,
        )


def _remaining(bucket: _Bucket | None) -> Remaining | None:
    if bucket is None:
        return None
    return Remaining(limit=bucket.limit, remaining=max(0, int(bucket.level)), reset_s=max(0.0, bucket.reset_s()))


def duration(seconds: float) -> str:
    """OpenAI's spelling of a reset time: `12ms`, `1.5s`, `6m0s`."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    minutes, rest = divmod(seconds, 60)
    if not minutes:
        return f"{rest:.3f}".rstrip("0").rstrip(".") + "s"
    return f"{int(minutes)}m{int(rest)}s"


_REQUESTS, _TOKENS = (
    (
        f"x-ratelimit-limit-{kind}".encode(),
        f"x-ratelimit-remaining-{kind}".encode(),
        f"x-ratelimit-reset-{kind}".encode(),
    )
    for kind in ("requests", "tokens")
)


def rate_headers(admission: Admission) -> list[tuple[bytes, bytes]]:
    """`x-ratelimit-*`, for the limits that are set."""
    headers: list[tuple[bytes, bytes]] = []
    for (limit, remaining, reset), left in ((_REQUESTS, admission.requests), (_TOKENS, admission.tokens)):
        if left is not None:
            headers += [
                (limit, b"%d" % left.limit),
                (remaining, b"%d" % left.remaining),
                (reset, duration(left.reset_s).encode()),
            ]
    return headers
