"""The gate between callers and the line: limits, queues, the overload guard and idempotency, as one process has them."""

from collections.abc import Callable
from typing import NamedTuple

from proxy.idempotency.claims import Idempotency
from proxy.latency import LatencyTracker
from proxy.limits.book import LimitBook
from proxy.limits.limiter import BucketLimiter
from proxy.overload import OverloadGuard
from proxy.queues.queues import Queues
from proxy.redis.redis_link import RedisLink


class Gate(NamedTuple):
    """Wired once per process."""

    limiter: BucketLimiter
    limit_book: LimitBook
    queues: Queues
    guard: OverloadGuard
    latency: LatencyTracker
    once: Idempotency
    sharers: Callable[[], int]
    """How many processes serve, as known last."""
    link: RedisLink | None = None
    """To the Redis that all processes share, where there is one."""
