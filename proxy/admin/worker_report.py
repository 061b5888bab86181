"""A data-plane worker's report on itself: for pages, APIs and operators."""

import msgspec

from cost.ledger.journal import JournalState
from cost.ledger.ledger import Ledger
from providers.breaker import Breakers, BreakerSnapshot
from proxy.admit.gate import Gate
from proxy.admit.limits.limiter import Mode
from proxy.admit.queues.queue_item import QueueSnapshot
from proxy.pipeline import RequestPipeline
from proxy.shared.redis.redis_link import RedisLink


class RedisState(msgspec.Struct, frozen=True, kw_only=True):
    """The shared counters, as one worker reaches them."""

    place: str
    healthy: bool
    live: int
    """Processes that share limits, by Redis's count."""
    problem: str


class QueueReport(msgspec.Struct, frozen=True, kw_only=True):
    """A queue of one worker."""

    name: str
    targets: tuple[str, ...]
    snapshot: QueueSnapshot


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's state now."""

    boot_id: str
    draining: bool
    in_flight: int
    max_in_flight: int
    is_refusing: bool
    """True while the overload guard refuses."""
    limits_mode: Mode
    live: int
    """Processes that it shares limits with, itself included."""
    redis: RedisState | None
    """None without a Redis."""
    breakers: dict[str, BreakerSnapshot]
    """The breakers that have anything to show, by deployment id."""
    queues: tuple[QueueReport, ...]
    journal: JournalState
    settle_failures: int
    """Entries that could not even be queued."""
    scored_by_rule: int
    """Prompts that the trained classifier could not score."""


def report_of(
    ledger: Ledger, pipeline: RequestPipeline, gate: Gate, breakers: Breakers, scored_by_rule: int
) -> WorkerReport:
    """Return the report of this process."""
    return WorkerReport(
        boot_id=ledger.boot_id,
        journal=ledger.state(),
        settle_failures=ledger.settle_failures,
        draining=pipeline.draining,
        in_flight=pipeline.in_flight,
        max_in_flight=pipeline.config.max_in_flight,
        is_refusing=gate.guard.guarding,
        limits_mode=gate.limiter.mode,
        live=gate.sharers(),
        redis=None if gate.link is None else redis_state(gate.link),
        breakers=breakers.telling(),
        queues=_queues(pipeline, gate),
        scored_by_rule=scored_by_rule,
    )


def redis_state(link: RedisLink) -> RedisState:
    """Return the state of a link, without the secret in its address."""
    return RedisState(place=link.place, healthy=link.healthy, live=link.live, problem=link.problem)


def _queues(pipeline: RequestPipeline, gate: Gate) -> tuple[QueueReport, ...]:
    targets: dict[str, list[str]] = {name: [] for name in gate.queues.names}
    for target in pipeline.config.catalog.targets:
        queue = gate.queues.queue_of(target)
        if queue is not None:
            targets[queue].append(target)
    return tuple(
        QueueReport(name=name, targets=tuple(served), snapshot=gate.queues.snapshot(name))
        for name, served in targets.items()
    )
