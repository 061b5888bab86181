"""Wiring of the gate: limits, queues, overload guard and idempotency of one process, and what they share with others."""

import contextlib
import random
import time
from collections.abc import Callable, Mapping

from gateway.configuration.environment import Environment
from gateway.configuration.gateway_config import GatewayConfig
from gateway.wiring.metrics import AllMetrics
from gateway.wiring.worker_ledger import ProcessParts
from proxy.admit.gate import Gate
from proxy.admit.idempotency.claims import Idempotency
from proxy.admit.idempotency.store import IdempotencyStore
from proxy.admit.limits.book import LimitBook, LimitWatch
from proxy.admit.limits.limiter import BucketLimiter
from proxy.admit.load_shedding import TICK_S, OverloadGuard
from proxy.admit.queues.capacity import Capacity
from proxy.admit.queues.queues import Queues, ShutFor
from proxy.admit.queues.queues_config import QueueConfig
from proxy.parse.chat_request import AUTO
from proxy.shared.background_tasks import background
from proxy.shared.redis.live_processes import ProcessCount
from proxy.shared.redis.redis_link import RedisLink
from proxy.shared.target_latency import LatencyTracker

_SELDOM_S = 0.25
"""Between two looks at the lateness of a loop whose requests nobody waits for."""


def adopt(gate: Gate, config: GatewayConfig, queues: Mapping[str, QueueConfig]) -> None:
    """Adopt a reloaded configuration. `queues` are the configured queues with their present sizes."""
    gate.limit_book.adopt(config.limits, nameable_models(config))
    gate.queues.adopt(queues)
    gate.guard.max_lag_s = config.server.max_lag_s


def nameable_models(config: GatewayConfig) -> set[str]:
    """Return the names that callers may send as `model`."""
    return {AUTO, *config.policy.aliases, *(model.model_id for model in config.providers.models)}


async def open_gate(
    process: ProcessParts,
    config: GatewayConfig,
    queues_of: Mapping[str, QueueConfig],
    environment: Environment,
    metrics: AllMetrics,
    in_flight: Callable[[], int],
    stack: contextlib.AsyncExitStack,
    *,
    shares: bool,
    shut_s: ShutFor,
) -> Gate:
    """Build the gate; all of it is usable on return, whether or not Redis answers. One that `shares` lets callers in, and counts
    through Redis with those of other processes.
    """
    url = environment.redis(config.redis) if shares else None
    link = None if url is None else RedisLink(url, config.redis, process.boot_id, observer=metrics.redis)
    sharers = ProcessCount(process.sources.processes, link)
    book = LimitBook(config.limits, nameable_models(config))
    watch = LimitWatch(process.sources.limits, book)
    await watch.refresh()
    background(stack, watch.follow())
    limiter = BucketLimiter(book.limits_of, sharers.live, link=link, observer=metrics.limits)
    stack.callback(limiter.close)
    queues = Queues(
        queues_of,
        Capacity(sharers.live, link, clock=time.monotonic),
        time.monotonic,
        observer=metrics.queues,
        shut_s=shut_s,
    )
    if link is not None:
        # They have told it what to do when it is lost and found.
        stack.push_async_callback(link.aclose)
        await link.start()
    stack.push_async_callback(queues.aclose)
    await queues.start()
    once = Idempotency(
        IdempotencyStore(process.engine), process.boot_id, config.idempotency, counted=metrics.idempotency.count
    )
    stack.push_async_callback(once.aclose)
    background(stack, once.run())
    guard = OverloadGuard(
        max_lag_s=config.server.max_lag_s,
        clock=time.monotonic,
        rng=random.Random(),  # noqa: S311 - it spreads load, it guards nothing
        in_flight=in_flight,
        refused=metrics.overload.count_refusal,
        lag_seen=metrics.overload.set_loop_lag,
        tick_s=TICK_S if shares else _SELDOM_S,
    )
    background(stack, guard.follow())
    return Gate(limiter, book, queues, guard, LatencyTracker(time.monotonic), once, sharers.live, link)
