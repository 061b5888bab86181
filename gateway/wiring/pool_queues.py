"""Queues that are as large as the pools behind them: what their replicas hold that are ready and not full."""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from proxy.queues.queues_config import QueueConfig

_NOTICED: Final = 0.02
"""A queue keeps its size when the new one differs by no more than this part."""


class Carries(Protocol):
    """A fleet, by how much work its pools carry."""

    def tokens(self, targets: Sequence[str]) -> int: ...


def sized(queues: Mapping[str, QueueConfig], now: Mapping[str, QueueConfig], fleet: Carries) -> dict[str, QueueConfig]:
    """`queues` as configured, `now` as they are. A pool without a ready replica leaves room for one request alone."""
    return {name: _sized(queue, now.get(name), fleet) for name, queue in queues.items()}


def _sized(queue: QueueConfig, now: QueueConfig | None, fleet: Carries) -> QueueConfig:
    if queue.tokens_in_flight:
        return queue
    tokens = max(1, fleet.tokens(queue.targets))
    if now is not None and abs(tokens - now.tokens_in_flight) <= _NOTICED * now.tokens_in_flight:
        tokens = now.tokens_in_flight
    return queue.model_copy(update={"tokens_in_flight": tokens})
