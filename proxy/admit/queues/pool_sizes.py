"""Queue sizes by the pools behind them: the tokens that their ready and not full replicas can hold."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from proxy.admit.queues.queues_config import QueueConfig

_NOTICED: Final = 0.02
"""The relative change of size below which a queue keeps its present one."""


def sized(
    queues: Mapping[str, QueueConfig], now: Mapping[str, QueueConfig], carried: Callable[[Sequence[str]], int]
) -> dict[str, QueueConfig]:
    """Return the queues with their sizes: `queues` as configured, `now` as in force; `carried` returns the tokens that
    the pools of these targets can hold.

    A pool without a ready replica leaves room for one request.
    """
    return {name: _sized(queue, now.get(name), carried) for name, queue in queues.items()}


def _sized(queue: QueueConfig, now: QueueConfig | None, carried: Callable[[Sequence[str]], int]) -> QueueConfig:
    if queue.tokens_in_flight:
        return queue
    tokens = max(1, carried(queue.targets))
    if now is not None and abs(tokens - now.tokens_in_flight) <= _NOTICED * now.tokens_in_flight:
        tokens = now.tokens_in_flight
    return queue.model_copy(update={"tokens_in_flight": tokens})
