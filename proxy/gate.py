"""The gate before the request line: limits, queues, overload guard and idempotency of one process."""

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
    """The parts of the gate, wired once per process."""

    limiter: BucketLimiter
    limit_book: LimitBook
    queues: Queues
    guard: OverloadGuard
    latency: LatencyTracker
    once: Idempotency
    sharers: Callable[[], int]
    """The number of serving processes, as last counted."""
    link: RedisLink | None = None
    """The link to the Redis that all processes share, if one is configured."""
