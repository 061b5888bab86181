"""Queues that are as large as the pools behind them: what their replicas hold that are ready and not full."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from proxy.queues.queues_config import QueueConfig

_NOTICED: Final = 0.02
"""A queue keeps its size when the new one differs by no more than this part."""


def sized(
    queues: Mapping[str, QueueConfig], now: Mapping[str, QueueConfig], carried: Callable[[Sequence[str]], int]
) -> dict[str, QueueConfig]:
    """`queues` as configured, `now` as they are; `carried` tells how many tokens the pools of these targets carry.

    A pool without a ready replica leaves room for one request alone.
    """
    return {name: _sized(queue, now.get(name), carried) for name, queue in queues.items()}


def _sized(queue: QueueConfig, now: QueueConfig | None, carried: Callable[[Sequence[str]], int]) -> QueueConfig:
    if queue.tokens_in_flight:
        return queue
    tokens = max(1, carried(queue.targets))
    if now is not None and abs(tokens - now.tokens_in_flight) <= _NOTICED * now.tokens_in_flight:
        tokens = now.tokens_in_flight
    return queue.model_copy(update={"tokens_in_flight": tokens})
