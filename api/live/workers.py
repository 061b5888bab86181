"""All data-plane workers of this host as they are now, put together for pages and APIs."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from providers.breaker import FAULTS_KEPT, BreakerSnapshot, BreakerState
from proxy.admin.worker_report import QueueReport, RedisState, WorkerReport
from proxy.admit.limits.limit import Limit, Remaining
from proxy.admit.limits.limiter import Mode
from proxy.admit.queues.queue_item import QueueSnapshot, QueueState

_WORST_LAST: Final[tuple[BreakerState, ...]] = ("closed", "paced", "half-open", "open")
_NEVER_CALLED: Final = BreakerSnapshot(state="closed", opens_again_s=None, failures=0, ejections=0, faults=())

AskWorkers = Callable[[], Awaitable[Sequence[WorkerReport]]]
"""Asks all workers of this host for their reports; those that do not answer are left out."""
PeekLimits = Callable[[tuple[Limit, ...]], Awaitable[Sequence[tuple[Remaining, ...]]]]
"""Asks all workers for the state of these limits, in the same order."""


class WorkersNow(msgspec.Struct, frozen=True):
    """The workers' reports, by boot id."""

    reports: tuple[WorkerReport, ...]

    @property
    def draining(self) -> bool:
        """True while all of them stop."""
        return bool(self.reports) and all(each.draining for each in self.reports)

    @property
    def in_flight(self) -> int:
        return sum(each.in_flight for each in self.reports)

    @property
    def max_in_flight(self) -> int:
        return sum(each.max_in_flight for each in self.reports)

    @property
    def is_refusing(self) -> bool:
        """True while at least one of them refuses, because it has more to do than it can."""
        return any(each.is_refusing for each in self.reports)

    @property
    def live(self) -> int:
        """Processes of all hosts that share limits, by the workers' latest count; at least 1."""
        return max((each.live for each in self.reports), default=1)

    @property
    def limits_mode(self) -> Mode:
        """The authority on limits: Redis, while it decides for all workers."""
        modes = {each.limits_mode for each in self.reports}
        return next(iter(modes)) if len(modes) == 1 else "share"

    @property
    def redis(self) -> RedisState | None:
        """The worst view of Redis; None without one."""
        states = [each.redis for each in self.reports if each.redis is not None]
        return min(states, key=lambda each: each.healthy, default=None)

    @property
    def scored_by_rule(self) -> int:
        return sum(each.scored_by_rule for each in self.reports)

    def breaker(self, deployment_id: str) -> BreakerSnapshot:
        """Return the worst view of a deployment, with the latest faults of all."""
        found = [each.breakers[deployment_id] for each in self.reports if deployment_id in each.breakers]
        if not found:
            return _NEVER_CALLED
        worst = max(found, key=lambda each: (_WORST_LAST.index(each.state), each.opens_again_s or 0.0, each.failures))
        faults = sorted((fault for each in found for fault in each.faults), key=lambda fault: fault[0])
        return msgspec.structs.replace(worst, faults=tuple(faults[:FAULTS_KEPT]))

    def is_called(self, deployment_id: str) -> bool:
        """Return True where at least one worker would call the deployment now."""
        return not self.reports or any(
            deployment_id not in each.breakers or each.breakers[deployment_id].opens_again_s in {None, 0.0}
            for each in self.reports
        )

    @property
    def queues(self) -> list[QueueReport]:
        """Each queue, with the sums of all workers and the longest of their waits."""
        named: dict[str, list[QueueReport]] = {}
        for each in self.reports:
            for queue in each.queues:
                named.setdefault(queue.name, []).append(queue)
        return [_sum(parts) for parts in named.values()]


def _sum(parts: Sequence[QueueReport]) -> QueueReport:
    snapshots = [each.snapshot for each in parts]
    states = [each.state for each in snapshots]
    first = snapshots[0]
    state = QueueState(
        name=parts[0].name,
        waiting=sum(each.waiting for each in states),
        waiting_tokens=sum(each.waiting_tokens for each in states),
        in_flight=sum(each.in_flight for each in states),
        in_flight_tokens=sum(each.in_flight_tokens for each in states),
        capacity_tokens=sum(each.capacity_tokens for each in states),
        predicted_wait_s=max(each.predicted_wait_s for each in states),
    )
    return QueueReport(
        name=parts[0].name,
        targets=parts[0].targets,
        snapshot=QueueSnapshot(
            state=state,
            whole_capacity_tokens=first.whole_capacity_tokens,
            by_demand=first.by_demand,
            waiting_interactive=sum(each.waiting_interactive for each in snapshots),
            waiting_batch=sum(each.waiting_batch for each in snapshots),
            drain_tokens_per_s=sum(each.drain_tokens_per_s for each in snapshots),
        ),
    )


class Workers:
    """Asks the workers when somebody wants to know; several who ask at once are told the same."""

    def __init__(self, ask: AskWorkers, peek: PeekLimits) -> None:
        self._ask = ask
        self._peek = peek
        self._asking: asyncio.Task[WorkersNow] | None = None

    async def now(self) -> WorkersNow:
        """Return all workers that answer."""
        if self._asking is None:
            self._asking = asyncio.create_task(self._look(), name="workers")
            self._asking.add_done_callback(self._looked)
        # Who goes away must not take the answer from the others.
        return await asyncio.shield(self._asking)

    async def remaining(self, limits: tuple[Limit, ...]) -> tuple[Remaining, ...]:
        """Return the state of each limit, in the same order: what Redis says, or the sum of the workers' parts."""
        told = await self._peek(limits)
        if not told or (await self.now()).limits_mode == "shared":
            return told[0] if told else ()
        return tuple(
            Remaining(
                limit=sum(each.limit for each in parts),
                remaining=sum(each.remaining for each in parts),
                reset_s=max(each.reset_s for each in parts),
            )
            for parts in zip(*told, strict=True)
        )

    async def _look(self) -> WorkersNow:
        reports = await self._ask()
        return WorkersNow(tuple(sorted(reports, key=lambda each: each.boot_id)))

    def _looked(self, _task: "asyncio.Task[WorkersNow]") -> None:
        self._asking = None
