"""Throughput of one replica while its first tokens come in time, learnt from live traffic.

Two numbers. `full` is the work per second of a saturated replica: it shows itself whenever work waits, within seconds.
`share` is the part of that which is planned for. It begins at one half, and every minute's first tokens move it a
little: down when more were late than may be, up when fewer were. So whatever makes them late (bursts within the minute,
forecasts that were too low, long prompts) is answered, by no more than the share's range.
"""

import math
from typing import Final

import msgspec

_FIRST_SHARE: Final = 0.5
_LEAST_WORK_PER_S: Final = 1e-9
"""Less is none: a share of it could not be told from 0."""
_LEAST_SHARE: Final = 0.15
_MOST_SHARE: Final = 0.95
# A replica that does less than this part of `full` has little to do.
_LIGHT: Final = 0.25
_ANYWAY_GAIN: Final = 0.02
# Minutes as they usually are, each with a tenth more late than may be, until the share is a tenth smaller.
_GAIN: Final = 0.01
_MOST_WEIGHT: Final = 4.0
_USUAL: Final = 1 / 1_440
# Weights of a higher and of a lower measurement: replicas are seldom saturated all the time, so a lower says little.
_RISE: Final = 0.3
_FALL: Final = 0.02


class SavedThroughput(msgspec.Struct):
    """The learnt state that survives a restart."""

    full: float | None = None
    share: float = _FIRST_SHARE
    usual: float = 0.0
    """Mean work of the minutes that had any."""
    anyway: float = 0.0
    """Fraction of first tokens that are late even when replicas have little to do, which no number of replicas cures.
    """

    @property
    def sound(self) -> bool:
        """True when all values are in range; the saved state may come from another version or be corrupt."""
        full = self.full is None or 0 < self.full < math.inf
        return (
            full and _LEAST_SHARE <= self.share <= _MOST_SHARE and 0 <= self.usual < math.inf and 0 <= self.anyway <= 1
        )


class PoolThroughput:
    """The learnt throughput of one pool's replicas."""

    def __init__(self, allowed: float, *, prior: float | None = None, learnt: SavedThroughput | None = None) -> None:
        """Begin without measurements; `allowed` is the fraction of first tokens that may be late; `prior` is used until `full` was measured."""
        self._allowed = allowed
        self._prior = prior
        self.learnt = learnt if learnt is not None and learnt.sound else SavedThroughput()

    def observe_replica(self, work_per_s: float, *, full: bool, waited: bool) -> None:
        """Learn from the work per second of a ready replica in a quarter of a minute. `full`: the replicas were
        saturated.

        The estimate falls only while work `waited` all the time: first tokens can be late for other reasons, and more
        replicas, with less to do each, must not look like slower ones.
        """
        if not _LEAST_WORK_PER_S <= work_per_s < math.inf:
            return
        known = self.learnt.full
        if known is None:
            self.learnt.full = work_per_s if full else None
        elif work_per_s > known:
            self.learnt.full = known + (work_per_s - known) * _RISE
        elif waited:
            self.learnt.full = known + (work_per_s - known) * _FALL

    def observe_minute(self, work: float, missed: float, *, busiest: float = math.inf) -> None:
        """Learn from a minute: its work, the fraction of its first tokens that was late, and the most work per second
        that a replica did in any moment of it.
        """
        if not (math.isfinite(work) and work > 0 and 0 <= missed <= 1):
            return
        learnt = self.learnt
        learnt.usual += (work - learnt.usual) * (_USUAL if learnt.usual else 1.0)
        if learnt.full is None:
            return
        weight = min(_MOST_WEIGHT, work / learnt.usual)
        if busiest < _LIGHT * learnt.full:
            learnt.anyway += (missed - learnt.anyway) * _ANYWAY_GAIN * weight
        missed = max(0.0, missed - learnt.anyway) / max(1 - learnt.anyway, _LEAST_SHARE)
        share = learnt.share * math.exp(_GAIN * weight * (self._allowed - missed))
        learnt.share = min(_MOST_SHARE, max(_LEAST_SHARE, share))

    @property
    def per_replica(self) -> float | None:
        """Work per second to plan one replica with; None until it is known."""
        learnt = self.learnt
        return self._prior if learnt.full is None else learnt.full * learnt.share

    @property
    def at_least(self) -> float | None:
        """Work per second of a replica at the smallest share, reached when nearly all first tokens are late."""
        return None if self.learnt.full is None else self.learnt.full * _LEAST_SHARE
