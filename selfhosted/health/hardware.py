"""A pool's GPUs, their cost and peak, and how much of that is used. Pure."""

from collections.abc import Iterable
from typing import Final

import msgspec

from selfhosted.replica import Replica, ReplicaState

_UP: Final[frozenset[ReplicaState]] = frozenset({"starting", "ready", "suspect", "draining"})
_HOUR_S: Final = 3_600
_MILLION: Final = 1_000_000


class PoolHardware(msgspec.Struct, frozen=True, kw_only=True):
    """The hardware of one replica, as far as it is known."""

    gpus: int | None = None
    nanousd_per_hour: int | None = None
    """Nano-dollars for an hour that one replica is up, overhead included."""
    flops_per_token: float | None = None
    peak_flops: float | None = None
    """Operations a second by the data sheet, of all GPUs of a replica."""


UNKNOWN: Final = PoolHardware()


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The present work of a pool's replicas, as a mean of the last minute. A field is None where it is not known."""

    tokens_per_s: float | None = None
    """Prompt and completion tokens a second."""
    tokens_per_s_per_gpu: float | None = None
    mfu: float | None = None
    """Model FLOPs utilisation: operations that computed tokens need, as a fraction of the data sheet's. An estimate:
    attention is left out, and so is whatever is computed twice."""
    nanousd_per_million: int | None = None
    """Nano-dollars for a million tokens at this throughput, idle replicas included."""
    preemptions_per_s: float | None = None
    gpu_utilisation: float | None = None
    gpu_memory: float | None = None


def usage_of(replicas: Iterable[Replica], hardware: PoolHardware = UNKNOWN) -> Usage:
    """Return the use of a pool. Replicas that are up and tell nothing make throughput unknown, not 0."""
    up = [each for each in replicas if each.state in _UP]
    serving = [each for each in up if each.state != "starting"]
    known = [each.stats for each in serving if each.stats is not None]
    tokens = computed = preemptions = None
    if known and len(known) == len(serving):
        tokens = _sum(stats.tokens_per_s for stats in known)
        computed = _sum(stats.computed_per_s for stats in known)
        preemptions = _sum(stats.preemptions_per_s for stats in known)
    gpus = None if hardware.gpus is None else hardware.gpus * len(up)
    peak = None if hardware.peak_flops is None else hardware.peak_flops * len(up)
    hour = None if hardware.nanousd_per_hour is None else hardware.nanousd_per_hour * len(up)
    return Usage(
        tokens_per_s=tokens,
        tokens_per_s_per_gpu=None if tokens is None or not gpus else tokens / gpus,
        mfu=None
        if computed is None or not peak or hardware.flops_per_token is None
        else computed * hardware.flops_per_token / peak,
        nanousd_per_million=None if not tokens or hour is None else round(hour * _MILLION / (tokens * _HOUR_S)),
        preemptions_per_s=preemptions,
        gpu_utilisation=_mean(stats.gpu_utilisation for stats in known),
        gpu_memory=_mean(stats.gpu_memory for stats in known),
    )


def usage_by_version(replicas: Iterable[Replica], hardware: PoolHardware = UNKNOWN) -> dict[str, Usage]:
    """Return the use of a pool's replicas by the version that they run, sorted; under the empty name of those that say none. Empty where
    none says any.
    """
    sides: dict[str, list[Replica]] = {}
    for replica in replicas:
        sides.setdefault(replica.address.version, []).append(replica)
    return {version: usage_of(sides[version], hardware) for version in sorted(sides)} if any(sides) else {}


def _sum(values: Iterable[float | None]) -> float | None:
    told = list(values)
    return None if None in told else sum(value for value in told if value is not None)


def _mean(values: Iterable[float | None]) -> float | None:
    told = [value for value in values if value is not None]
    return sum(told) / len(told) if told else None
