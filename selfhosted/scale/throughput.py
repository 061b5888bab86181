"""Throughput of one replica while the pool keeps its aims, learnt from live traffic.

What a replica carries is its work per second over its pressure (`pressure.py`), by running sums: known from the first busy minute on, long before anything waits. `share` is the part of it that is planned with: every minute moves it, down when more first
tokens were late or answers slow than may be, up when fewer were, within bounds, as some are late for other reasons. `full` is
the work per second of a saturated replica, which shows itself whenever work waits.
"""

import math
from typing import Final

import msgspec

_LEAST_WORK_PER_S: Final = 1e-9
"""Less is none: a share of it could not be told from 0."""
_LEAST_OF_FULL: Final = 0.15
# What is planned with of a saturated replica's work, where no signal tells a pressure.
_OF_FULL: Final = 0.6
_LEAST_SHARE: Final = 0.3
_MOST_SHARE: Final = 1.6
# The same where signals tell a pressure: a replica too few is missed for a cold start.
_MOST_OF_PRESSURE: Final = 1.2
# Natural logarithm of what a usual minute takes off the share in which everything is late.
_GAIN: Final = 0.1
_OVER: Final = 1.1
_UNDER: Final = 0.7
_ANYWAY_GAIN: Final = 0.02
_MOST_WEIGHT: Final = 4.0
_USUAL: Final = 1 / 1_440
# Weights of a higher and of a lower measurement: replicas are seldom saturated all the time, so a lower says little.
_RISE: Final = 0.3
_FALL: Final = 0.02
# Part of a minute's weight that is left a minute later.
_KEPT: Final = 0.97
# A lighter load tells too little of what a full one would be.
_LEAST_PRESSURE: Final = 0.25
_MOST_PRESSURE: Final = 10.0
_MOST_WORK_PER_S: Final = 1e12
# Requests for each replica up to which a token takes as long as alone, and the target's part that it is taken for before that was seen.
_ALONE: Final = 2.0
_ALONE_OF_TARGET: Final = 1 / 3
_ALONE_GAIN: Final = 0.1


class SavedThroughput(msgspec.Struct):
    """The learnt state that survives a restart."""

    full: float | None = None
    work: float = 0.0
    pressure: float = 0.0
    """Sums over minutes of a replica's work per second times itself, and times its pressure; older ones fade."""
    share: float = 1.0
    alone_s: float | None = None
    """Time of a further token on a replica that has little to do."""
    usual: float = 0.0
    """Mean work of the minutes that had any."""
    anyway: float = 0.0
    """Fraction of first tokens that are late even when replicas have little to do, which no number of replicas cures.
    """

    @property
    def sound(self) -> bool:
        """True when all values are in range; the saved state may come from another version or be corrupt."""
        known = (self.full, self.alone_s)
        positive = all(each is None or 0 < each < math.inf for each in known)
        if not _LEAST_SHARE <= self.share <= _MOST_SHARE:
            return False
        return (
            positive
            and 0 <= self.usual < math.inf
            and 0 <= self.work < math.inf
            and 0 <= self.pressure < math.inf
            and 0 <= self.anyway <= 1
        )


class PoolThroughput:
    """The learnt throughput of one pool's replicas."""

    def __init__(
        self, allowed: float, tpot_target_s: float, *, prior: float | None = None, learnt: SavedThroughput | None = None
    ) -> None:
        """Begin without measurements; `allowed` is the fraction that may be late; `prior` is used until a replica's work was measured."""
        self._allowed = allowed
        self._tpot_target_s = tpot_target_s
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

    def observe_pressure(self, work_per_s: float, pressure: float) -> None:
        """Learn from the work per second of a ready replica, and the pressure that it is under."""
        self.learnt.work, self.learnt.pressure = self._line_with(work_per_s, pressure)

    def with_minute(self, work_per_s: float, pressure: float) -> float | None:
        """Return `per_replica` as it would be with such a minute, which is not learnt."""
        work, under = self._line_with(work_per_s, pressure)
        return work / under * self.learnt.share if work > 0 and under > 0 else self.per_replica

    def _line_with(self, work_per_s: float, pressure: float) -> tuple[float, float]:
        learnt = self.learnt
        if not (_LEAST_WORK_PER_S <= work_per_s <= _MOST_WORK_PER_S and _LEAST_PRESSURE <= pressure <= _MOST_PRESSURE):
            return learnt.work, learnt.pressure
        # A full replica shows its work, and not how far it is beyond its limit.
        weight = min(1.0, 1 / pressure**3)
        # The straight line through the origin that fits the minutes best: busy ones count more.
        return (
            learnt.work * _KEPT + work_per_s * work_per_s * weight,
            learnt.pressure * _KEPT + pressure * work_per_s * weight,
        )

    def observe_tokens(self, mean_s: float, running: float) -> None:
        """Learn how long a further token takes alone, from the mean while so many requests run on a replica."""
        if not 0 < mean_s < math.inf:
            return
        known = self.alone_s
        if mean_s < known:
            self.learnt.alone_s = mean_s
        elif running <= _ALONE:
            self.learnt.alone_s = known + (mean_s - known) * _ALONE_GAIN

    def observe_minute(self, work: float, missed: float, slow: float, *, light: bool, each: float) -> None:
        """Learn from a minute: its work, the fractions of its first tokens that were late and of its answers that were slow,
        whether replicas had little to do in all of it, and the work per second of each.
        """
        if not (math.isfinite(work) and work > 0 and 0 <= missed <= 1 and 0 <= slow <= 1):
            return
        learnt = self.learnt
        learnt.usual += (work - learnt.usual) * (_USUAL if learnt.usual else 1.0)
        weight = min(_MOST_WEIGHT, work / learnt.usual)
        if light:
            learnt.anyway += (missed - learnt.anyway) * _ANYWAY_GAIN * weight
        late = max(slow, (missed - learnt.anyway) / max(1 - learnt.anyway, self._allowed))
        planned = self.per_replica
        if planned is None or (each > _OVER * planned if late > self._allowed else each < _UNDER * planned):
            # More came than was planned for, or so little that it says nothing: the share is not to blame, nor to praise.
            return
        share = learnt.share * math.exp(_GAIN * weight * (self._allowed - late))
        most = _MOST_OF_PRESSURE if learnt.pressure > 0 else _MOST_SHARE
        learnt.share = min(most, max(_LEAST_SHARE, share))

    @property
    def alone_s(self) -> float:
        """Seconds of a further token on a replica that has little to do; a guess until it is known."""
        known = self.learnt.alone_s
        return self._tpot_target_s * _ALONE_OF_TARGET if known is None else known

    @property
    def per_replica(self) -> float | None:
        """Work per second to plan one replica with; None until it is known."""
        learnt = self.learnt
        if learnt.pressure > 0 and learnt.work > 0:
            return learnt.work / learnt.pressure * learnt.share
        return self._prior if learnt.full is None else learnt.full * _OF_FULL * learnt.share

    @property
    def at_least(self) -> float | None:
        """Work per second of a replica that is planned to do very little, as when nearly all first tokens are late."""
        return None if self.learnt.full is None else self.learnt.full * _LEAST_OF_FULL
