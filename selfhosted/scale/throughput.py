"""What one replica carries while its first tokens come in time, learnt from traffic as it is.

Two numbers. `full` is the work a second that a replica does when it has as much as it can do: it shows itself whenever
work waits, within seconds. `share` is the part of that which is planned for. It begins at one half, and every minute's
first tokens move it a little: down when more were late than may be, up when fewer were. So whatever makes them late
(bursts within the minute, forecasts that were too low, long prompts) is answered, by no more than the share's range.
"""

import math
from typing import Final

import msgspec

_FIRST_SHARE: Final = 0.5
_LEAST_SHARE: Final = 0.15
_MOST_SHARE: Final = 0.95
# A replica that does less than this part of `full` has little to do.
_LIGHT: Final = 0.25
_ANYWAY_GAIN: Final = 0.02
# Minutes as they usually are, each with a tenth more late than may be, until the share is a tenth smaller.
_GAIN: Final = 0.01
_MOST_WEIGHT: Final = 4.0
_USUAL: Final = 1 / 1_440
# How far a measurement moves what is known. Replicas seldom have enough to do all the time: less says little.
_RISE: Final = 0.3
_FALL: Final = 0.02


class SavedThroughput(msgspec.Struct):
    """What survives a restart."""

    full: float | None = None
    share: float = _FIRST_SHARE
    usual: float = 0.0
    """Work of a minute that has any."""
    anyway: float = 0.0
    """The part of first tokens that is late even when replicas have little to do: no number of them cures that."""

    @property
    def sound(self) -> bool:
        """Whether it can have been learnt: it may come from anywhere."""
        full = self.full is None or 0 < self.full < math.inf
        return (
            full and _LEAST_SHARE <= self.share <= _MOST_SHARE and 0 <= self.usual < math.inf and 0 <= self.anyway <= 1
        )


class PoolThroughput:
    """One pool's."""

    def __init__(self, allowed: float, *, prior: float | None = None, learnt: SavedThroughput | None = None) -> None:
        """`allowed` is the part of first tokens that may be late; `prior` counts until `full` was measured."""
        self._allowed = allowed
        self._prior = prior
        self.learnt = learnt if learnt is not None and learnt.sound else SavedThroughput()

    def did(self, work_per_s: float, *, full: bool, waited: bool) -> None:
        """So much a ready replica did in a quarter of a minute. `full`: first tokens say that it could do no more.

        Only while work `waited` all the time does doing less say that less can be done: first tokens can be late for
        other reasons, and more replicas, with less to do each, must not look like slower ones.
        """
        if not (math.isfinite(work_per_s) and work_per_s > 0):
            return
        known = self.learnt.full
        if known is None:
            self.learnt.full = work_per_s if full else None
        elif work_per_s > known:
            self.learnt.full = known + (work_per_s - known) * _RISE
        elif waited:
            self.learnt.full = known + (work_per_s - known) * _FALL

    def came(self, work: float, missed: float, *, busiest: float = math.inf) -> None:
        """A minute's work, the part of its first tokens that was late, and the most that a replica did in a moment of it."""
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
        """Work a second to plan one replica with; None until it is known."""
        learnt = self.learnt
        return self._prior if learnt.full is None else learnt.full * learnt.share

    @property
    def at_least(self) -> float | None:
        """What one replica is planned with when nearly all first tokens are late, whatever the reason is."""
        return None if self.learnt.full is None else self.learnt.full * _LEAST_SHARE
