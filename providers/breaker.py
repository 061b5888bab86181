"""Circuit breakers: ejection of failing deployments and their return. No I/O; the clock is injected.

    closed --5 gateway failures in a row--> open --30 s x ejections--> half-open --one probe--> closed
                                              ^----------------------------- failure --'

Like Envoy's outlier detection, at most `max_ejected_share` of a target's deployments is ejected, however badly all of
them do; one deployment may always be.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal

import msgspec

from providers.config import BreakerConfig
from providers.target import Deployment, Target

BreakerState = Literal["closed", "half-open", "open"]
FAULTS_KEPT: Final = 8
"""Latest faults kept for each deployment, for display."""


class Fault(msgspec.Struct, frozen=True):
    """One failed attempt at a deployment, without anything of the request."""

    at: float
    """Time on the breakers' clock, in seconds."""
    kind: str
    """The error's class, as `providers.errors` names it."""
    status: int | None
    counted: bool
    """True when the breaker counts it as a gateway failure."""
    detail: str = ""
    """The upstream's own words, on one line, bounded, without keys and without what they repeat of a request."""


class BreakerSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one deployment's breaker, for display."""

    state: BreakerState
    opens_again_s: float | None
    """Seconds until a probe is let through, 0 when one may go now; None while the breaker is closed."""
    failures: int
    """Consecutive gateway failures since the last success."""
    ejections: int
    """Ejections so far, less one for each base ejection time in good standing; the factor of the next ejection's
    length.
    """
    faults: tuple[tuple[float, Fault], ...]
    """The latest faults, newest first, each with its age in seconds."""


class _Breaker:
    """One deployment's state. `open_until` is None while closed."""

    __slots__ = (
        "answered_at",
        "closed_at",
        "ejections",
        "epoch",
        "failures",
        "faults",
        "group",
        "open_until",
        "probe",
        "successes",
    )

    def __init__(self, group: "_Group", now: float) -> None:
        self.group = group
        self.failures = 0
        self.faults: deque[Fault] = deque(maxlen=FAULTS_KEPT)
        self.successes = 0
        self.answered_at = -math.inf
        """The last success, on the monotonic clock."""
        self.ejections = 0
        self.open_until: float | None = None
        self.closed_at = now
        self.probe: Permit | None = None
        self.epoch = 0
        """Number of openings and closings, so that reports of earlier attempts are told apart."""


class _Group:
    """The deployments of one target, whose ejected share is limited."""

    __slots__ = ("ejected", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.ejected = 0


class Permit(msgspec.Struct, eq=False):
    """The right to make one attempt, to which its outcome is reported; reports after the final one do nothing.

    `success` may come early, at the first token, and still be followed by `failure` when the stream is cut later: the
    failure then counts as if the success had not been.
    """

    _breakers: "Breakers"
    _breaker: _Breaker
    _failures_before: int
    _epoch: int
    _successes_before: int
    _successes: int = -1
    _done: bool = False

    def success(self) -> None:
        """Reports that the deployment answers: closes the breaker after a probe, and clears earlier failures."""
        breaker = self._breaker
        if self._done or breaker.epoch != self._epoch:
            return
        if breaker.probe is self:
            self._breakers._close(breaker)  # noqa: SLF001  # The two are one machine.
            self._epoch = breaker.epoch
        elif breaker.failures:
            self._failures_before = breaker.failures
        breaker.failures = 0
        breaker.successes += 1
        breaker.answered_at = self._breakers._clock()  # noqa: SLF001  # The two are one machine.
        self._successes = breaker.successes

    def failure(self) -> None:
        """Reports a gateway failure: no connection, 5xx, a cut or malformed reply, silence."""
        breaker = self._breaker
        if self._done or breaker.epoch != self._epoch:
            self._done = True
            return
        self._done = True
        if self._successes == breaker.successes:
            # Nobody else succeeded since: this attempt's own early success is taken back.
            breaker.failures = self._failures_before
        breaker.failures += 1
        self._breakers._record_failure(breaker, self)  # noqa: SLF001

    def went_wrong(self, kind: str, status: int | None, *, counted: bool, detail: str = "") -> None:
        """Records a fault for display, whether it counts or not. `kind` is an error's class."""
        self._breaker.faults.append(Fault(self._breakers._clock(), kind, status, counted, detail))  # noqa: SLF001

    def refused(self) -> None:
        """Reports that the deployment refuses our key: it is ejected at once, as no other call can succeed either."""
        if not self._done and self._breaker.epoch == self._epoch:
            self._breakers._eject_refused(self._breaker)  # noqa: SLF001
        self._done = True

    def silent(self) -> None:
        """Reports that nothing came in time, which may be a slow answer or a hang.

        It counts as a failure unless another attempt at the deployment succeeded since this one began.
        """
        if self._breaker.successes == self._successes_before:
            self.failure()
        else:
            self.abandon()

    def abandon(self) -> None:
        """Ends the attempt without a verdict (the caller hung up, a rate limit); a probe frees its place."""
        self._done = True
        if self._breaker.probe is self:
            self._breaker.probe = None


def _all_deployments(target: Target) -> tuple[Deployment, ...]:
    return target.deployments


class Breakers:
    """All deployments' breakers in this process.

    `adopt` sets the targets. Requests that began before a reload go on with their own targets; deployments that only
    those have stand alone, and are dropped at the next reload.
    """

    def __init__(self, config: BreakerConfig, clock: Callable[[], float]) -> None:
        self._config = config
        self._clock = clock
        self._groups: dict[str, _Group] = {}
        self._breakers: dict[str, _Breaker] = {}
        self._whole: tuple[Mapping[str, Target], Mapping[str, tuple[Deployment, ...]]] | None = None
        """Targets of which every deployment may be called, and those; None where that was not seen since the last ejection."""
        self.ready: Callable[[Target], tuple[Deployment, ...]] = _all_deployments
        """The deployments that a pool's target has now. The pools set it: their replicas come and go between two reloads."""

    def adopt(self, targets: Iterable[Target]) -> None:
        """Sets the targets: deployments that stay keep their state, the state of others is dropped."""
        old, self._breakers, self._groups = self._breakers, {}, {}
        self._whole = None
        for target in targets:
            self._add_group(target, old)

    def available(self, target: Target) -> tuple[Deployment, ...]:
        """The deployments that may be called now, in their order. Takes no permit and changes no state."""
        group = self._groups.get(target.entry)
        if group is None:
            group = self._add_group(target, self._breakers)
        deployments = target.deployments if target.pool is None else self.ready(target)
        if not group.ejected:
            return deployments
        now = self._clock()
        return tuple(each for each in deployments if self._accepts_calls(self._breaker_of(each.deployment_id), now))

    def fleet(self, targets: Mapping[str, Target]) -> Mapping[str, tuple[Deployment, ...]]:
        """What is `available` of each target, by its id. Where nothing is ejected and no pool's replicas come and go, that is
        the same mapping each time.
        """
        if self._whole is not None and self._whole[0] is targets:
            return self._whole[1]
        found = {target_id: self.available(target) for target_id, target in targets.items()}
        if all(target.pool is None for target in targets.values()):
            self._whole = None if any(group.ejected for group in self._groups.values()) else (targets, found)
        return found

    def try_acquire(self, deployment_id: str) -> Permit | None:
        """A permit for one attempt, or None when the deployment is ejected or its probe is taken."""
        breaker = self._breaker_of(deployment_id)
        if breaker.open_until is None:
            return Permit(self, breaker, breaker.failures, breaker.epoch, breaker.successes)
        if not self._accepts_calls(breaker, self._clock()):
            return None
        # A probe that succeeds and then breaks off counts as the failed probe that it was.
        failures = self._config.consecutive_failures - 1
        breaker.probe = Permit(self, breaker, failures, breaker.epoch, breaker.successes)
        return breaker.probe

    def answered_since(self, deployment_id: str, moment: float) -> bool:
        """True when the deployment has answered somebody since a moment on the monotonic clock."""
        breaker = self._breakers.get(deployment_id)
        return breaker is not None and breaker.answered_at >= moment

    def cleared(self, deployment_id: str) -> None:
        """Closes the breaker and clears its failures, for a health check that has seen the deployment work again."""
        breaker = self._breakers.get(deployment_id)
        if breaker is None:
            return
        breaker.failures = 0
        if breaker.open_until is not None:
            self._close(breaker)

    def state(self, deployment_id: str) -> BreakerState:
        """A deployment's state; an unknown one is closed."""
        breaker = self._breakers.get(deployment_id)
        if breaker is None or breaker.open_until is None:
            return "closed"
        return "half-open" if self._clock() >= breaker.open_until else "open"

    def telling(self) -> dict[str, BreakerSnapshot]:
        """The breakers that have anything to show, by deployment id: not closed, or with ejections, failures or faults."""
        return {
            deployment_id: self.describe(deployment_id)
            for deployment_id, breaker in self._breakers.items()
            if breaker.open_until is not None or breaker.failures or breaker.ejections or breaker.faults
        }

    def describe(self, deployment_id: str) -> BreakerSnapshot:
        """One deployment's breaker for display; one that was never called is closed."""
        breaker = self._breakers.get(deployment_id)
        now = self._clock()
        return BreakerSnapshot(
            state=self.state(deployment_id),
            opens_again_s=None if breaker is None or breaker.open_until is None else max(0.0, breaker.open_until - now),
            failures=0 if breaker is None else breaker.failures,
            ejections=0 if breaker is None else breaker.ejections,
            faults=() if breaker is None else tuple((now - each.at, each) for each in reversed(breaker.faults)),
        )

    def configure(self, config: BreakerConfig) -> None:
        """Sets new thresholds, from the next failure on; ejections in progress end as they were going to."""
        self._config = config

    @staticmethod
    def _accepts_calls(breaker: _Breaker, now: float) -> bool:
        return breaker.open_until is None or (breaker.probe is None and now >= breaker.open_until)

    def _breaker_of(self, deployment_id: str) -> _Breaker:
        breaker = self._breakers.get(deployment_id)
        if breaker is None:
            # Never adopted as part of a target, so it stands alone.
            breaker = self._breakers[deployment_id] = _Breaker(_Group(1), self._clock())
        return breaker

    def _add_group(self, target: Target, known: Mapping[str, _Breaker]) -> _Group:
        """Makes one group of a target's deployments, with their known state."""
        group = self._groups[target.entry] = _Group(len(target.deployments))
        for deployment in target.deployments:
            breaker = known.get(deployment.deployment_id) or _Breaker(group, self._clock())
            breaker.group = group
            self._breakers[deployment.deployment_id] = breaker
            group.ejected += breaker.open_until is not None
        return group

    def _record_failure(self, breaker: _Breaker, permit: Permit) -> None:
        now = self._clock()
        if breaker.open_until is not None:
            if breaker.probe is permit:
                self._eject(breaker, now)
        elif breaker.failures >= self._config.consecutive_failures and self._may_eject(breaker.group):
            breaker.group.ejected += 1
            # Health earns forgiveness: each base ejection time in good standing takes one ejection off.
            healthy = int((now - breaker.closed_at) // self._config.base_ejection_s)
            breaker.ejections = max(0, breaker.ejections - healthy)
            self._eject(breaker, now)

    def _eject_refused(self, breaker: _Breaker) -> None:
        if breaker.open_until is None:
            breaker.group.ejected += 1
        self._eject(breaker, self._clock())

    def _may_eject(self, group: _Group) -> bool:
        # One may always go; of one, that is all of them, and the next candidate takes over.
        return group.ejected + 1 <= max(1, int(group.size * self._config.max_ejected_share))

    def _eject(self, breaker: _Breaker, now: float) -> None:
        breaker.ejections += 1
        breaker.epoch += 1
        breaker.probe = None
        breaker.failures = 0
        self._whole = None
        lasts_s = min(self._config.base_ejection_s * breaker.ejections, self._config.max_ejection_s)
        breaker.open_until = now + lasts_s

    def _close(self, breaker: _Breaker) -> None:
        breaker.group.ejected -= 1
        breaker.epoch += 1
        breaker.probe = None
        breaker.open_until = None
        breaker.closed_at = self._clock()
