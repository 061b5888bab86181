"""Circuit breakers: ejection of failing deployments and their return. No I/O; the clock is injected.

    closed --5 health failures in a row--> open --30 s x ejections--> half-open --one probe--> closed
                                             ^---------------------------- failure --'

Three things take a deployment out of use:

- failures of its health in a row open its circuit, but only for those who caused them: failures of one API key open it for that
  key, and those of several keys of one team for the team. Two failures of other teams among them, or one that no request can
  have caused (no connection), open it for everyone. So nobody's requests take a deployment away from others;
- a refusal that is the operator's to mend (key, credit, quota, model) opens it for everyone at once, with that reason;
- the provider's pace (429) sets it aside for as long as the provider says, for the team whose request met it and, once another
  team's did meanwhile, for everyone; of a wildcard only the name that was asked for.

Like Envoy's outlier detection, failures of health eject at most `max_ejected_share` of a target's deployments, however badly
all of them do; one deployment may always be. What is set aside or refused is out of use however many there are.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Literal

import msgspec

from providers.config import BreakerConfig
from providers.deployment_rate import DeploymentRate
from providers.errors import Owner
from providers.failure_streak import EVERYONE, FAILING_AFTER, NO_STREAK, FailureStreak, Scope, join_scopes
from providers.provider_pace import ProviderPace
from providers.target import Deployment, Target

BreakerState = Literal["closed", "paced", "half-open", "open"]
"""`paced`: set aside for the provider's pace, while the circuit is closed."""
FAULTS_KEPT: Final = 8
"""Latest faults kept for each deployment, for display."""
_MOST_NAMES: Final = 1_024
"""The most names below wildcards that are set aside; beyond that the one that is due first is forgotten."""
_MOST_SCOPES: Final = 64
"""The most keys and teams that a deployment's circuit is open for; beyond that the one that is due first is forgotten."""


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
    """As everyone sees it; `only_for` tells of those who alone are kept from it."""
    opens_again_s: float | None
    """Seconds until it is called again, 0 when a probe may go now; None while it is called."""
    failures: int
    """Consecutive gateway failures since the last success."""
    ejections: int
    """Ejections so far, less one for each base ejection time in good standing; the factor of the next ejection's
    length.
    """
    faults: tuple[tuple[float, Fault], ...]
    """The latest faults, newest first, each with its age in seconds."""
    why: str = ""
    """The reason while it is not called: `failing`, a refusal's reason such as `credit`, or `rate`."""
    only_for: int = 0
    """Keys and teams that the circuit is open for while it is closed for everyone else."""


LIMIT: Final = "limit"
"""The reason of a pace that the operator set, rather than the provider."""


class Absence(msgspec.Struct, frozen=True):
    """The reason for which no deployment of a target is called now."""

    owner: Owner
    reason: str
    again_s: float
    """Seconds until one of them is called again; 0 where only its probe is waited for."""


class _Opening:
    """The circuit, opened for one scope."""

    __slots__ = ("blame", "owner", "probe", "times", "until", "why")

    def __init__(self, until: float, times: int, why: str, owner: Owner) -> None:
        self.until = until
        self.times = times
        self.why = why
        self.owner = owner
        self.probe: Permit | None = None
        self.blame: Scope | None = None
        """The callers whose probes have failed since it is half-open."""


class _Breaker:
    """One deployment's state."""

    __slots__ = (
        "closed_at",
        "deployment",
        "ejections",
        "epoch",
        "faults",
        "group",
        "openings",
        "pace",
        "rate",
        "streak",
        "successes",
    )

    def __init__(self, group: "_Group", now: float, deployment: Deployment | None = None) -> None:
        self.group = group
        self.deployment = deployment
        """As it was configured when this was learnt; None for one that no target has."""
        self.streak = NO_STREAK
        """The failures since the last success."""
        self.faults: deque[Fault] = deque(maxlen=FAULTS_KEPT)
        self.successes = 0
        self.ejections = 0
        self.openings: dict[Scope, _Opening] = {}
        self.pace = ProviderPace()
        self.rate: DeploymentRate | None = None
        """What the operator lets go there in a minute; None for all."""
        self.closed_at = now
        self.epoch = 0
        """Number of openings and closings for everyone, so that reports of earlier attempts are told apart."""

    @property
    def is_troubled(self) -> bool:
        """True when anybody is kept from it, or was when it was looked at last."""
        return bool(self.openings) or self.pace.is_set


class _Group:
    """The deployments of one target, whose ejected share is limited."""

    __slots__ = ("ejected", "size", "troubled")

    def __init__(self, size: int) -> None:
        self.size = size
        self.ejected = 0
        """Deployments whose circuit is open for everyone."""
        self.troubled = 0
        """Deployments that somebody may be kept from."""


class Permit(msgspec.Struct, eq=False):
    """The right to make one attempt, to which its outcome is reported; reports after the final one do nothing.

    `success` may come early, at the first token, and still be followed by `failure` when the stream is cut later: the
    failure then counts as if the success had not been.
    """

    _breakers: "Breakers"
    _breaker: _Breaker
    _scope: Scope
    _streak_before: FailureStreak
    _epoch: int
    _successes_before: int
    probes: tuple[Scope, ...] = ()
    """The openings that this attempt is the probe of."""
    _name: str = ""
    _paces_before: int = 0
    _tokens: int = 0
    """The tokens that were taken of the deployment's rate."""
    _successes: int = -1
    _done: bool = False

    def success(self) -> None:
        """Report that the deployment answers: close the circuit after a probe, and clear earlier failures."""
        breaker = self._breaker
        if self._done or breaker.epoch != self._epoch:
            return
        if self.probes:
            self._breakers._probed_well(breaker, self)  # noqa: SLF001  # The two are one machine.
            self._epoch = breaker.epoch
        elif breaker.streak.failures:
            self._streak_before = breaker.streak
        breaker.streak = NO_STREAK
        breaker.pace.times = 0
        if self._name:
            self._breakers._names.pop((breaker, self._name), None)  # noqa: SLF001
        breaker.successes += 1
        self._successes = breaker.successes

    def failure(self, *, of_everyone: bool = False) -> None:
        """Report a failure of the deployment's health: no connection, 5xx, a cut or malformed reply, silence.

        `of_everyone` says that no request can have caused it, such as a refused connection.
        """
        breaker = self._breaker
        if self._done or breaker.epoch != self._epoch:
            self.abandon()
            return
        self._done = True
        if self._successes == breaker.successes:
            # Nobody else succeeded since: this attempt's own early success is taken back.
            breaker.streak = self._streak_before
        scope = EVERYONE if of_everyone else self._scope
        breaker.streak = breaker.streak.with_one(scope)
        self._breakers._record_failure(breaker, self, scope)  # noqa: SLF001

    def record_fault(self, kind: str, status: int | None, *, counted: bool, detail: str = "") -> None:
        """Record a fault for display, whether it counts or not. `kind` is an error's class."""
        self._breaker.faults.append(Fault(self._breakers._clock(), kind, status, counted, detail))  # noqa: SLF001

    def refused(self, why: str = "key") -> None:
        """Report a refusal that is the operator's to mend: it is ejected at once, as no other call can succeed either."""
        if not self._done and self._breaker.epoch == self._epoch:
            self._breakers._open_for_everyone(self._breaker, why, "operator")  # noqa: SLF001
        self.abandon()

    def paced(self, wait_s: float | None, why: str = "rate") -> None:
        """Report that the provider refused for its pace: it is left alone for `wait_s` seconds, a growing guess without. Of a
        wildcard only the name that was asked for is, as providers limit each model by itself.
        """
        if not self._done and self._breaker.epoch == self._epoch:
            self._breakers._set_aside(self._breaker, self, wait_s, why)  # noqa: SLF001
        self.abandon()

    def silent(self) -> None:
        """Report that nothing came in time, which may be a slow answer or a hang.

        It counts as a failure unless another attempt at the deployment succeeded since this one began.
        """
        if self._breaker.successes == self._successes_before:
            self.failure()
        else:
            self.abandon()

    def used(self, tokens: int) -> None:
        """Report the tokens that the attempt has cost of the deployment's rate; called once."""
        if self._breaker.rate is not None:
            self._breaker.rate.correct(self._tokens, tokens)

    def abandon(self) -> None:
        """End the attempt without a verdict (the caller hung up); a probe frees its place."""
        self._done = True
        for scope in self.probes:
            opening = self._breaker.openings.get(scope)
            if opening is not None and opening.probe is self:
                opening.probe = None


class Breakers:
    """All deployments' breakers in this process.

    `adopt` sets the targets. Requests that began before a reload go on with their own targets; deployments that only
    those have stand alone, and are dropped at the next reload. A `caller` is a team's id and a key's id.
    """

    def __init__(self, config: BreakerConfig, clock: Callable[[], float]) -> None:
        self._config = config
        self._clock = clock
        self._groups: dict[str, _Group] = {}
        self._breakers: dict[str, _Breaker] = {}
        self._whole: tuple[Mapping[str, Target], dict[str, tuple[Deployment, ...]], tuple[str, ...]] | None = None
        """Targets, the deployments of each, and the ids of those whose deployments come and go."""
        self._troubled = 0
        """Deployments that somebody may be kept from."""
        self._names: dict[tuple[_Breaker, str], ProviderPace] = {}
        """The pace of names below wildcards."""
        self.ready: Callable[[Target], tuple[Deployment, ...]] = lambda target: target.deployments
        """The deployments that a pool's target has now. The pools set it: their replicas come and go between two reloads."""
        self.live: Callable[[], int] = lambda: 1
        """Returns the number of processes that share the rates of deployments; the gate sets it."""

    def adopt(self, targets: Iterable[Target]) -> None:
        """Set the targets: deployments that stay keep their state, the state of others is dropped, and so is that of those with
        another key or address, of which nothing is known.
        """
        old, self._breakers, self._groups = self._breakers, {}, {}
        self._whole = None
        self._troubled = 0
        for target in targets:
            self._add_group(target, old)
        kept = set(self._breakers.values())
        self._names = {each: pace for each, pace in self._names.items() if each[0] in kept}

    def available(self, target: Target, caller: Scope = EVERYONE) -> tuple[Deployment, ...]:
        """Return the deployments that `caller` may call now, in their order. Takes no permit."""
        group = self._groups.get(target.entry)
        if group is None:
            group = self._add_group(target, self._breakers)
        deployments = target.deployments if target.pool is None else self.ready(target)
        if not (group.troubled or (target.pattern and self._names)):
            return deployments
        now, name = self._clock(), name_of(target)
        return tuple(
            [
                each
                for each in deployments
                if self._accepts_calls(self._breaker_of(each.deployment_id), caller, now, name)
            ]
        )

    def fleet(self, targets: Mapping[str, Target], caller: Scope = EVERYONE) -> Mapping[str, tuple[Deployment, ...]]:
        """Return the `available` deployments of each target, by its id. While nothing is kept from anybody and no
        pool's replicas change, it is the same mapping each time.
        """
        if self._whole is None or self._whole[0] is not targets:
            for target in targets.values():
                if target.entry not in self._groups:
                    self._add_group(target, self._breakers)
            pooled = tuple([target_id for target_id, target in targets.items() if target.pool is not None])
            self._whole = targets, {each: target.deployments for each, target in targets.items()}, pooled
        _, whole, pooled = self._whole
        if not (self._troubled or self._names or pooled):
            return whole
        found = dict(whole)
        for target_id in pooled:
            found[target_id] = self.available(targets[target_id], caller)
        if self._troubled or self._names:
            groups = self._groups
            for target_id, target in targets.items():
                if target.pool is None and (groups[target.entry].troubled or target.pattern):
                    found[target_id] = self.available(target, caller)
        return found

    def absences(
        self, targets: Mapping[str, Target], fleet: Mapping[str, tuple[Deployment, ...]], caller: Scope
    ) -> Mapping[str, Absence]:
        """Return why the targets that nothing of may be called are out of use, by their ids."""
        found = {each: self.absence(targets[each], caller) for each, callable_ in fleet.items() if not callable_}
        return {target_id: why for target_id, why in found.items() if why is not None}

    def absence(self, target: Target, caller: Scope = EVERYONE) -> Absence | None:
        """Return the reason that nothing of the target is called now, of the deployment that is called again first. None where something is, or
        where it has no deployment.
        """
        now, name = self._clock(), name_of(target)
        found: Absence | None = None
        for each in target.deployments if target.pool is None else self.ready(target):
            why = self._absence_of(self._breaker_of(each.deployment_id), caller, now, name)
            if why is None:
                return None
            if found is None or why.again_s < found.again_s:
                found = why
        return found

    def try_acquire(
        self,
        deployment_id: str,
        caller: Scope = EVERYONE,
        *,
        tried: Collection[str] = (),
        name: str = "",
        tokens: int = 0,
    ) -> Permit | None:
        """Return a permit for one attempt of the caller's, or None when the deployment is out of use or its probe is taken. A request
        is no probe of a deployment that it has `tried`. `name` is what is asked for of a wildcard, `tokens` what it may use.
        """
        breaker = self._breaker_of(deployment_id)
        probes: tuple[Scope, ...] = ()
        if breaker.is_troubled or name:
            if not self._accepts_calls(breaker, caller, self._clock(), name):
                return None
            probes = tuple(_applying(breaker, caller))
            if probes and deployment_id in tried:
                return None
        if breaker.rate is not None and not self._takes(breaker, tokens):
            return None
        # A probe that succeeds and then breaks off counts as the failed probe that it was.
        before = FailureStreak(self._config.consecutive_failures - 1) if probes else breaker.streak
        pace = self._names.get((breaker, name)) if name else breaker.pace
        paces = 0 if pace is None else pace.times
        permit = Permit(self, breaker, caller, before, breaker.epoch, breaker.successes, probes, name, paces, tokens)
        for scope in probes:
            breaker.openings[scope].probe = permit
        return permit

    def again_s(self, deployment_id: str, caller: Scope = EVERYONE) -> float:
        """Return the seconds until the caller may call a deployment again; 0 where it may, or where only its probe is waited for."""
        absence = self._absence_of(self._breaker_of(deployment_id), caller, self._clock())
        return 0.0 if absence is None else absence.again_s

    def _takes(self, breaker: _Breaker, tokens: int) -> bool:
        """Take of the deployment's rate; where that is used up, keep everyone away until there is some."""
        assert breaker.rate is not None  # noqa: S101  Whoever asks has looked.
        now = self._clock()
        wait_s = breaker.rate.take(now, tokens, max(1, self.live()))
        if wait_s > 0.0:
            with _Trouble(self, breaker):
                breaker.pace.hold(now, wait_s, LIMIT)
        return wait_s <= 0.0

    def is_failing(self, deployment_id: str, caller: Scope = EVERYONE) -> bool:
        """Return True when the latest calls all failed for reasons that concern the caller: failures of another team's
        requests alone do not.
        """
        breaker = self._breakers.get(deployment_id)
        if breaker is None or breaker.streak.failures < FAILING_AFTER:
            return False
        return breaker.streak.whose in {EVERYONE, (caller[0], ""), caller}

    def cleared(self, deployment_id: str) -> None:
        """Close the circuit and clear failures, for a health check that has seen the deployment work again."""
        breaker = self._breakers.get(deployment_id)
        if breaker is None:
            return
        breaker.streak = NO_STREAK
        for scope in tuple(breaker.openings):
            self._close(breaker, scope)

    def state(self, deployment_id: str) -> BreakerState:
        """Return a deployment's state for everyone; an unknown one is closed."""
        breaker = self._breakers.get(deployment_id)
        now = self._clock()
        opening = None if breaker is None else breaker.openings.get(EVERYONE)
        if opening is not None:
            return "half-open" if now >= opening.until else "open"
        return "paced" if breaker is not None and breaker.pace.until > now else "closed"

    def telling(self) -> dict[str, BreakerSnapshot]:
        """Return the breakers that have anything to show, by deployment id: not closed, or with ejections, failures or faults."""
        return {
            deployment_id: self.describe(deployment_id)
            for deployment_id, breaker in self._breakers.items()
            if breaker.is_troubled or breaker.streak.failures or breaker.ejections or breaker.faults
        }

    def describe(self, deployment_id: str) -> BreakerSnapshot:
        """Return one deployment's breaker for display; one that was never called is closed."""
        breaker = self._breakers.get(deployment_id)
        if breaker is None:
            return BreakerSnapshot(state="closed", opens_again_s=None, failures=0, ejections=0, faults=())
        now = self._clock()
        absence = self._absence_of(breaker, EVERYONE, now)
        # A half-open circuit that takes a probe now is called again in no time.
        again_s = (0.0 if EVERYONE in breaker.openings else None) if absence is None else absence.again_s
        return BreakerSnapshot(
            state=self.state(deployment_id),
            opens_again_s=again_s,
            failures=breaker.streak.failures,
            ejections=breaker.ejections,
            faults=tuple((now - each.at, each) for each in reversed(breaker.faults)),
            why=_why(breaker, now),
            only_for=(breaker.pace.team_until > now)
            + sum(scope != EVERYONE and each.until > now for scope, each in breaker.openings.items()),
        )

    def configure(self, config: BreakerConfig) -> None:
        """Set new thresholds, from the next failure on; ejections in progress end as they were going to."""
        self._config = config

    def _accepts_calls(self, breaker: _Breaker, caller: Scope, now: float, name: str = "") -> bool:
        if breaker.is_troubled:
            self._forget_what_is_over(breaker, now)
        if breaker.pace.is_set and breaker.pace.ends_at(caller[0]) > now:
            return False
        pace = self._names.get((breaker, name)) if name else None
        if pace is not None and pace.ends_at(caller[0]) > now:
            return False
        openings = breaker.openings
        if not openings:
            return True
        for scope in _applying(breaker, caller):
            opening = openings[scope]
            if opening.probe is not None or now < opening.until:
                return False
        return True

    def _absence_of(self, breaker: _Breaker, caller: Scope, now: float, name: str = "") -> Absence | None:
        if self._accepts_calls(breaker, caller, now, name):
            return None
        longest: Absence | None = None
        for pace in (breaker.pace, self._names.get((breaker, name))):
            again_s = 0.0 if pace is None else pace.ends_at(caller[0]) - now
            if pace is not None and again_s > 0.0 and (longest is None or again_s > longest.again_s):
                longest = Absence("pace", pace.why, again_s)
        for scope in _applying(breaker, caller):
            opening = breaker.openings[scope]
            again_s = max(0.0, opening.until - now)
            if longest is None or again_s > longest.again_s:
                longest = Absence(opening.owner, opening.why, again_s)
        return longest

    def _breaker_of(self, deployment_id: str) -> _Breaker:
        breaker = self._breakers.get(deployment_id)
        if breaker is None:
            # Never adopted as part of a target, so it stands alone.
            breaker = self._breakers[deployment_id] = _Breaker(_Group(1), self._clock())
        return breaker

    def _add_group(self, target: Target, known: Mapping[str, _Breaker]) -> _Group:
        """Make one group of a target's deployments, with their known state."""
        group = self._groups[target.entry] = _Group(len(target.deployments))
        for deployment in target.deployments:
            breaker = known.get(deployment.deployment_id)
            if breaker is None or _is_called_otherwise(breaker.deployment, deployment):
                breaker = _Breaker(group, self._clock(), deployment)
            rate = _rate_of(breaker, deployment)
            if rate is not breaker.rate and breaker.pace.why == LIMIT:
                # It was kept away by another limit.
                breaker.pace = ProviderPace()
            breaker.rate = rate
            breaker.group, breaker.deployment = group, deployment
            self._breakers[deployment.deployment_id] = breaker
            group.ejected += EVERYONE in breaker.openings
            group.troubled += breaker.is_troubled
            self._troubled += breaker.is_troubled
        return group

    def _record_failure(self, breaker: _Breaker, permit: Permit, scope: Scope) -> None:
        probed = [each for each in permit.probes if _is_probe(breaker, each, permit)]
        for each in probed:
            self._probe_failed(breaker, each, scope)
        if probed or breaker.streak.failures < self._config.consecutive_failures:
            return
        whose = breaker.streak.whose
        if whose != EVERYONE:
            if whose not in breaker.openings:
                self._open_for(breaker, whose)
        elif self._may_eject(breaker.group):
            self._open_for_everyone(breaker, "failing", "health")

    def _probe_failed(self, breaker: _Breaker, opened_for: Scope, culprit: Scope) -> None:
        """Open the circuit for longer. For everyone only when the probes of two teams failed: one alone may be its own fault."""
        opening = breaker.openings[opened_for]
        opening.probe = None
        if opened_for != EVERYONE:
            self._open_for(breaker, opened_for)
            return
        opening.blame = join_scopes(opening.blame, culprit)
        if opening.blame == EVERYONE:
            self._open_for_everyone(breaker, opening.why, opening.owner)
        else:
            self._open_for(breaker, opening.blame)

    def _probed_well(self, breaker: _Breaker, permit: Permit) -> None:
        for scope in permit.probes:
            if _is_probe(breaker, scope, permit):
                self._close(breaker, scope)

    def _may_eject(self, group: _Group) -> bool:
        # One may always go; of one, that is all of them, and the next candidate takes over.
        return group.ejected + 1 <= max(1, int(group.size * self._config.max_ejected_share))

    def _open_for_everyone(self, breaker: _Breaker, why: str, owner: Owner) -> None:
        now = self._clock()
        if EVERYONE not in breaker.openings:
            breaker.group.ejected += 1
            # Health earns forgiveness: each base ejection time in good standing takes one ejection off.
            healthy = int((now - breaker.closed_at) // self._config.base_ejection_s)
            breaker.ejections = max(0, breaker.ejections - healthy)
        breaker.ejections += 1
        breaker.epoch += 1
        breaker.streak = NO_STREAK
        with _Trouble(self, breaker):
            times = breaker.ejections
            breaker.openings[EVERYONE] = _Opening(now + self._lasts_s(times), times, why, owner)

    def _open_for(self, breaker: _Breaker, scope: Scope) -> None:
        """Open the circuit for a key or a team alone, each time for longer until a probe of its own succeeds."""
        known = breaker.openings.get(scope)
        times = 1 if known is None else known.times + 1
        with _Trouble(self, breaker):
            if known is None and len(breaker.openings) >= _MOST_SCOPES:
                narrow = [each for each in breaker.openings if each != EVERYONE]
                del breaker.openings[min(narrow, key=lambda each: breaker.openings[each].until)]
            until = self._clock() + self._lasts_s(times)
            breaker.openings[scope] = _Opening(until, times, "failing", "health")

    def _lasts_s(self, times: int) -> float:
        return min(self._config.base_ejection_s * times, self._config.max_ejection_s)

    def _set_aside(self, breaker: _Breaker, permit: Permit, wait_s: float | None, why: str) -> None:
        now, most_s, names = self._clock(), self._config.max_ejection_s, self._names
        name, team, times_before = permit._name, permit._scope[0], permit._paces_before  # noqa: SLF001
        if not name:
            with _Trouble(self, breaker):
                breaker.pace.lengthen(now, wait_s, why, most_s, times_before, team)
            return
        pace = names.get((breaker, name))
        if pace is None:
            if len(names) >= _MOST_NAMES:
                del names[min(names, key=lambda each: max(names[each].until, names[each].team_until))]
            pace = names[breaker, name] = ProviderPace()
        pace.lengthen(now, wait_s, why, most_s, times_before, team)

    def _close(self, breaker: _Breaker, scope: Scope) -> None:
        with _Trouble(self, breaker):
            del breaker.openings[scope]
        if scope == EVERYONE:
            breaker.group.ejected -= 1
            breaker.epoch += 1
            breaker.closed_at = self._clock()

    def _forget_what_is_over(self, breaker: _Breaker, now: float) -> None:
        """Forget a pace that is over, and openings for keys and teams that did not come back long after they might."""
        late = now - self._config.max_ejection_s
        stale = [
            scope
            for scope, opening in breaker.openings.items()
            if scope != EVERYONE and opening.until < late and opening.probe is None
        ]
        pace = breaker.pace
        if not stale and not (0.0 < pace.until <= now or 0.0 < pace.team_until <= now):
            return
        with _Trouble(self, breaker):
            pace.forget(now)
            for scope in stale:
                del breaker.openings[scope]


class _Trouble:
    """A change to a breaker, after which it counts among the troubled ones, or no more."""

    def __init__(self, breakers: Breakers, breaker: _Breaker) -> None:
        self._breakers = breakers
        self._breaker = breaker

    def __enter__(self) -> None:
        self._before = self._breaker.is_troubled

    def __exit__(self, *_: object) -> None:
        change = self._breaker.is_troubled - self._before
        self._breaker.group.troubled += change
        self._breakers._troubled += change  # noqa: SLF001  # The two are one machine.


def _rate_of(breaker: _Breaker, now: Deployment) -> DeploymentRate | None:
    """Return the rate of a deployment: what it has used of the old one counts as long as that is the same."""
    limits = now.requests_per_minute, now.tokens_per_minute
    if limits == (None, None):
        return None
    was = breaker.deployment
    if breaker.rate is not None and was is not None and limits == (was.requests_per_minute, was.tokens_per_minute):
        return breaker.rate
    return DeploymentRate(*limits)


def _is_called_otherwise(known: Deployment | None, now: Deployment) -> bool:
    """Return True when the two differ in provider, address or key, so that the state of the one says nothing of the
    other.
    """
    return known is not None and _called_by(known) != _called_by(now)


def _called_by(deployment: Deployment) -> tuple[object, ...]:
    return (
        deployment.base_url,
        deployment.api_key,
        deployment.upstream_model,
        deployment.options,
        deployment.headers,
    )


def name_of(target: Target) -> str:
    """Return the name that is asked for of a wildcard; empty for a target with an entry of its own."""
    return target.target_id if target.pattern else ""


def _applying(breaker: _Breaker, caller: Scope) -> list[Scope]:
    """Return the scopes that the circuit is open for and the caller belongs to."""
    openings = breaker.openings
    return [scope for scope in dict.fromkeys((EVERYONE, (caller[0], ""), caller)) if scope in openings]


def _is_probe(breaker: _Breaker, scope: Scope, permit: Permit) -> bool:
    opening = breaker.openings.get(scope)
    return opening is not None and opening.probe is permit


def _why(breaker: _Breaker, now: float) -> str:
    opening = breaker.openings.get(EVERYONE)
    if opening is not None:
        return opening.why
    return breaker.pace.why if breaker.pace.until > now else ""
