"""The gate before the request line: limits, queues, overload guard and idempotency of one process."""

from collections.abc import Callable
from typing import NamedTuple

from proxy.admit.idempotency.claims import Idempotency
from proxy.admit.limits.book import LimitBook
from proxy.admit.limits.limiter import BucketLimiter
from proxy.admit.load_shedding import OverloadGuard
from proxy.admit.queues.queues import Queues
from proxy.shared.redis.redis_link import RedisLink
from proxy.shared.target_latency import LatencyTracker


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
