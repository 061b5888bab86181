"""The capacity that interactive work leaves for batches, from the queues of all processes of this host and the engines behind them."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from providers.catalog import Catalog
from providers.target import Target
from proxy.admit.queues.queue_item import QueueSnapshot
from selfhosted.replica import PoolReading, PoolRoom

_TYPICAL_TOKENS: Final = 1_000
BESIDE: Final = 1.8
"""The tokens of batches that a token of interactive work displaces. More than its own: the busier engines are with
interactive work, the more first tokens a line beside it delays, and the less idle time is lost by leaving the line
out.
"""
_PLACES_KEPT: Final = 0.1
"""The part of the requests that may run at once that batches leave free: a caller that finds no place waits until a
whole answer ends.
"""


def left_beside(
    capacity_tokens: int, own_tokens: int, others_tokens: int, *, places: int | None, requests: int
) -> float:
    """Return the share, from 0 to 1, that batches may still have of engines: of their tokens, and of their places
    where those are known. `own_tokens` are the batches' there, `others_tokens` are mostly interactive, `requests` is
    the number of all that run.
    """
    tokens = 1.0 - (own_tokens + BESIDE * others_tokens) / capacity_tokens
    left = tokens if places is None else min(tokens, 1.0 - _PLACES_KEPT - requests / places)
    return max(0.0, left)


class QueueLooks(Protocol):
    """The queues, as sources of their fullness."""

    def queue_of(self, target_id: str) -> str | None: ...

    def snapshot(self, name: str) -> QueueSnapshot: ...


class PoolLooks(Protocol):
    """The pools, as sources of their fullness."""

    def free(self, target: Target, tokens: int) -> PoolRoom | None:
        """Return the room of the target's pool for a prompt of `tokens`; None when it is not known."""
        ...

    def reading(self, target: Target) -> PoolReading | None:
        """Return the prompts that the replicas of the target's pool still have to read; None when they are not known."""
        ...

    def places(self, target: Target) -> int | None:
        """Return the number of requests that the replicas of the target's pool run at once; None when it is not
        known.
        """
        ...


class IdleCapacity:
    """The idle share of a model's targets. Behind a queue it is the capacity that all processes together leave, less
    for the work of other processes, which is mostly interactive, and nothing while work waits there. A pool without a
    queue has the idle share that its engines report, and none without a report. Paid targets count as idle: no
    interactive work beside them suffers.
    """

    def __init__(
        self,
        catalog: Callable[[], Catalog],
        queues: QueueLooks,
        pools: PoolLooks | None,
        others: Callable[[str], Sequence[QueueSnapshot] | None] = lambda _name: (),
    ) -> None:
        """`others` returns the latest snapshots of a queue in the processes that serve callers; None while they have
        not reported.
        """
        self._catalog = catalog
        self._queues = queues
        self._pools = pools
        self._others = others

    def idle(self, model: str | None) -> float:
        """Return the idle share, from 0 to 1, of a model's targets; of any target, for `auto`, an alias or several
        models.
        """
        return max((self._idle(target) for target in self._targets(model)), default=0.0)

    def reading(self, model: str | None) -> PoolReading | None:
        """Return the prompts that own engines for a model still have to read; None where a paid target, or one in an
        unknown state, serves it.
        """
        clear, wait_s = 0, math.inf
        for target in self._targets(model):
            known = None if target.pool is None or self._pools is None else self._pools.reading(target)
            if known is None:
                return None
            clear, wait_s = clear + known.clear, min(wait_s, known.wait_s)
        return None if wait_s == math.inf else PoolReading(clear, wait_s)

    def _targets(self, model: str | None) -> Iterable[Target]:
        catalog = self._catalog()
        named = None if model is None else catalog.targets.get(model)
        return catalog if named is None else (named,)

    def _idle(self, target: Target) -> float:
        name = self._queues.queue_of(target.target_id)
        if name is None:
            return 1.0 if target.pool is None else self._idle_engines(target)
        others = self._others(name)
        if others is None:
            # Unknown is not idle.
            return 0.0
        own = self._queues.snapshot(name)
        capacity = own.whole_capacity_tokens
        if capacity <= 0 or any(each.waiting_interactive or each.waiting_batch for each in (own, *others)):
            return 0.0
        return left_beside(
            capacity,
            own.state.in_flight_tokens,
            sum(each.state.in_flight_tokens for each in others),
            places=self._places(target, own),
            requests=sum(each.state.in_flight for each in (own, *others)),
        )

    def _places(self, target: Target, queue: QueueSnapshot) -> int | None:
        """Return the number of requests that may run at once: the queue's limit, or the places of its engines."""
        if queue.whole_capacity_requests is not None or target.pool is None or self._pools is None:
            return queue.whole_capacity_requests
        return self._pools.places(target)

    def _idle_engines(self, target: Target) -> float:
        room = None if self._pools is None else self._pools.free(target, _TYPICAL_TOKENS)
        return 0.0 if room is None or room.wait_s > 0 else max(0.0, 1.0 - room.fill)
