"""Pressure on a replica: its load as a part of the load at which the pool just keeps its aims. Pure.

Each signal is told as such a part, and the worst counts. So whichever gives out first (slow tokens, a full KV cache, a queue)
tells how much work a replica carries: what it does now over its pressure.
"""

from typing import Final, Literal, NamedTuple

from selfhosted.config import ScaleConfig
from selfhosted.scale.signals import Signals

Strained = Literal["tpot", "memory", "queue"]
"""The signal that is nearest to its limit."""

# Within a minute some answers have it much worse than the mean, so the mean may take that part of the target.
_MEAN_OF_TARGET: Final = 0.7
_MOST: Final = 1.5
_WORDS: Final[dict[Strained, str]] = {"tpot": "slow tokens", "memory": "the KV cache", "queue": "the queue"}


class Pressure(NamedTuple):
    """The worst signal. 1: just as much as may be."""

    ratio: float
    of: Strained

    @property
    def words(self) -> str:
        return _WORDS[self.of]


def pressure_of(signals: Signals, config: ScaleConfig, *, alone_s: float) -> Pressure | None:
    """Return the worst signal's pressure; None where no signal tells any. `alone_s`: time of a further token on an idle replica."""
    if not signals.ready:
        return None
    queued = signals.queued / signals.ready / config.waiting_high
    told: list[tuple[float, Strained]] = [(queued, "queue")] if queued > 1 else []
    if signals.kv_used is not None:
        told.append((signals.kv_used / signals.ready / config.kv_high, "memory"))
    if signals.tpot_s is not None:
        told.append((_of_tokens(signals.tpot_s, alone_s, config.tpot_target_s), "tpot"))
    worst = max(told, default=None)
    return None if worst is None or worst[0] <= 0 else Pressure(min(_MOST, worst[0]), worst[1])


def _of_tokens(mean_s: float, alone_s: float, target_s: float) -> float:
    """Return the pressure by the mean time of a further token. Answers share a replica: at a load of u they take 1 / (1 - u) times
    as long as alone, so u is 1 - alone / mean.
    """
    limit = 1 - alone_s / (_MEAN_OF_TARGET * target_s)
    return max(0.0, 1 - alone_s / mean_s) / limit if limit > 0 and mean_s > 0 else 0.0
