"""A comparison of two versions: failures, latency and quality, each with an interval. Pure.

Intervals of one version: Wilson's score interval for shares and for means of values from 0 to 1 (where it is rather too
wide), and the distribution-free interval between two order statistics for percentiles. The interval of a difference is
Zou and Donner's (MOVER): from the two own intervals, without a further assumption.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

SHOWN_Z: Final = 1.96
"""95 %, for people who look once."""
LATENCY_QUANTILE: Final = 0.95


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of the newest attempts that one version served."""

    attempts: int = 0
    failed: int = 0
    """Attempts that the engine answered with an error, cut, or not in time."""
    weak: int = 0
    """Whole answers that a better target's replaced."""
    ttft_s: tuple[float, ...] = ()
    """Sorted. Of served streams, in seconds; so is the next."""
    tpot_s: tuple[float, ...] = ()
    verdicts: Mapping[str, tuple[float, ...]] = {}
    """Adequacy, 0 to 1, by where a verdict came from: `feedback`, `implicit` (regenerations and the like) or `shadow`."""


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of one version, with its interval."""

    value: float
    low: float
    high: float
    count: int


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of both versions. An estimate is None where there is too little to tell, and then so are the bounds."""

    name: str
    """`failures`, `ttft_p95_s`, `tpot_p95_s`, `escalations`, or `verdicts_` and where they came from."""
    stable: Estimate | None
    candidate: Estimate | None
    low: float | None
    """Interval of the candidate's figure less the stable one's."""
    high: float | None
    more_is_worse: bool

    @property
    def is_worse(self) -> bool:
        """The candidate is worse, beyond doubt."""
        if self.low is None or self.high is None:
            return False
        return self.low > 0 if self.more_is_worse else self.high < 0

    @property
    def is_better(self) -> bool:
        """The candidate is better, beyond doubt."""
        if self.low is None or self.high is None:
            return False
        return self.high < 0 if self.more_is_worse else self.low > 0


def sequence_z(count: int, first: int, error: float) -> float:
    """Return the width, in standard errors, of intervals that all hold at once with a chance of at least `1 - error`, at whatever
    counts one looks; narrowest around the count `first`. Robbins' normal mixture (Howard et al., "Time-uniform, nonparametric,
    nonasymptotic confidence sequences", Annals of Statistics 49, 2021), which holds asymptotically for means (Waudby-Smith et
    al., "Time-uniform central limit theory and asymptotic confidence sequences", Annals of Statistics 52, 2024).
    """
    spread = first / (-2 * math.log(error) + math.log1p(-2 * math.log(error)))
    return math.sqrt((1 + spread / count) * math.log((count + spread) / (spread * error * error)))


def share(hits: float, count: int, z: float) -> Estimate | None:
    """Return a share, or a mean of values from 0 to 1 whose sum is `hits`, with Wilson's interval; None without any."""
    if not count:
        return None
    mean = hits / count
    scale = 1 + z * z / count
    middle = (mean + z * z / (2 * count)) / scale
    half = z / scale * math.sqrt(mean * (1 - mean) / count + z * z / (4 * count * count))
    # Rounding must not put the value outside of its interval.
    return Estimate(
        value=mean, low=max(0.0, min(mean, middle - half)), high=min(1.0, max(mean, middle + half)), count=count
    )


def percentile(ordered: Sequence[float], part: float, z: float) -> Estimate | None:
    """Return a percentile of sorted values with its interval; None when there are too few for an upper bound."""
    count = len(ordered)
    middle, half = count * part, z * math.sqrt(count * part * (1 - part))
    first, last = math.floor(middle - half), math.ceil(middle + half)
    if first < 0 or last >= count:
        return None
    value = ordered[max(0, math.ceil(middle) - 1)]
    return Estimate(value=value, low=ordered[max(0, first - 1)], high=ordered[last], count=count)


def difference(stable: Estimate, candidate: Estimate, scale: float = 1.0) -> tuple[float, float]:
    """Return the interval of the candidate's value less `scale` times the stable one's."""
    middle = candidate.value - scale * stable.value
    below = math.hypot(candidate.value - candidate.low, scale * (stable.high - stable.value))
    above = math.hypot(candidate.high - candidate.value, scale * (stable.value - stable.low))
    return middle - below, middle + above


def compared(stable: Sample, candidate: Sample, z: float = SHOWN_Z) -> tuple[Compared, ...]:
    """Return every figure that is known of either version."""
    sources = sorted({*stable.verdicts, *candidate.verdicts})
    return (
        _pair("failures", *(share(each.failed, each.attempts, z) for each in (stable, candidate))),
        _pair("ttft_p95_s", *(percentile(each.ttft_s, LATENCY_QUANTILE, z) for each in (stable, candidate))),
        _pair("tpot_p95_s", *(percentile(each.tpot_s, LATENCY_QUANTILE, z) for each in (stable, candidate))),
        _pair("escalations", *(share(each.weak, each.attempts, z) for each in (stable, candidate))),
        *(
            _pair(
                f"verdicts_{source}",
                *(_mean(each.verdicts.get(source, ()), z) for each in (stable, candidate)),
                more_is_worse=False,
            )
            for source in sources
        ),
    )


def _mean(values: Sequence[float], z: float) -> Estimate | None:
    return share(sum(values), len(values), z)


def _pair(name: str, stable: Estimate | None, candidate: Estimate | None, *, more_is_worse: bool = True) -> Compared:
    low = high = None
    if stable is not None and candidate is not None:
        low, high = difference(stable, candidate)
    return Compared(name=name, stable=stable, candidate=candidate, low=low, high=high, more_is_worse=more_is_worse)
