"""Health of a replica: what follows from probes and from the outcomes of requests. Pure: no clock, no socket.

Two kinds of evidence: a probe says whether the engine answers at all, a request says whether it works. A request that
failed makes the replica suspect at once, and a probe that was sent after it clears it. Where probes are fine but
requests go on failing, each suspicion lasts longer than the one before, and then a single request goes there on trial,
so that each suspicion costs one request.

Probes are sent once a host, and requests are sent by every process of it. So a health is the verdict on two values that
travel: the newest probe, and the doubt that requests raised. Each is ordered by its time of the host's monotonic clock,
the newer one counts, and a doubt never loses the newest failure or the newest proof. Whatever order they come in, how
often, and whether some are left out, processes that know the same have the same verdict, and what a process sees for
itself is only ever overruled by something newer.
"""

from typing import Final

import msgspec

from selfhosted.config import PoolConfig
from selfhosted.replica import ReplicaState

_FIRST_SUSPICION_S: Final = 1.0
# 2 ** 40 seconds are more than any limit; the shift itself must stay small, too.
_MOST_DOUBLINGS: Final = 40
_STARTING_S: Final = 600.0
_NEVER: Final = float("-inf")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The thresholds of a verdict, from the configuration."""

    misses: int
    max_suspicion_s: float
    starting_s: float
    """Seconds after which a replica that has never answered is down instead of starting."""


def limits_of(config: PoolConfig) -> Limits:
    """Return the thresholds of a pool. `starting_s` is the most of 10 minutes, twice the cold start and the launch's
    `ready_s`: an address where nothing ever answered must not count as starting for ever.
    """
    cold_start_s = 0.0 if config.scale is None else 2 * config.scale.cold_start_s
    ready_s = 0.0 if config.launch is None else config.launch.ready_s
    return Limits(
        misses=config.watch.misses,
        max_suspicion_s=config.watch.max_suspicion_s,
        starting_s=max(_STARTING_S, cold_start_s, ready_s),
    )


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """The newest probe of a replica, with what those before it found. Times are of the host's monotonic clock."""

    sent_at: float
    first_at: float
    """Time at which its address began to be probed."""
    misses: int = 0
    """Failed probes in a row, this one included; 0 when it was answered well."""
    why: str = ""
    """The reason of its failure, for people."""
    answered_at: float = _NEVER
    """Time at which the newest that was answered well was sent."""
    asleep: bool = False


class Doubt(msgspec.Struct, frozen=True, kw_only=True):
    """The evidence of requests' outcomes against a replica. Times are of the host's monotonic clock."""

    at: float = _NEVER
    """The newest outcome that changed it. The doubt with the later one counts."""
    suspicions: int = 0
    """Consecutive suspicions raised by requests, since a request last succeeded there."""
    doubted_at: float = _NEVER
    """The last failed request: an answer to a probe sent earlier does not clear it."""
    proved_at: float = _NEVER
    """Start of the newest request that succeeded in spite of a doubt: it clears the failures before that."""
    suspect_until: float = _NEVER
    """Earliest time at which the suspicion is cleared."""
    trial_until: float | None = None
    """End of the trial, in which one request goes there; None when there is no trial."""


NO_DOUBT: Final = Doubt()


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Health of one replica. Draining is not part of it: `JudgedReplica.state` adds that."""

    state: ReplicaState
    since: float
    why: str
    probe: Probe | None = None
    doubt: Doubt = NO_DOUBT
    on_trust: bool = False
    """True when the next request goes there on trial because nobody probes. It is a process's own, and travels nowhere."""

    @property
    def suspicions(self) -> int:
        return self.doubt.suspicions

    @property
    def is_open(self) -> bool:
        """True while requests have something to prove there."""
        return bool(self.doubt.suspicions) or self.doubt.trial_until is not None or self.on_trust or self.is_unproved

    @property
    def is_unproved(self) -> bool:
        """True when a request failed there and nothing that came after it was answered yet."""
        return self.probe is not None and _is_unproved(self.probe, self.doubt)


def unknown(now: float) -> Health:
    """Return the health of a replica that was just discovered."""
    return Health(state="starting", since=now, why="it was not probed yet")


def observed(health: Health, probe: Probe | None, doubt: Doubt, *, now: float, limits: Limits) -> Health:
    """Return the health with what another process knows: its newest probe, None if there is none, and its doubt."""
    on_trust, before = health.on_trust, health.probe
    if probe is None or probe == before or (before is not None and probe.sent_at < before.sent_at):
        probe = before
    else:
        probe, on_trust = _continued(before, probe), False
    return _judged(health, probe, merged(health.doubt, doubt), on_trust, now, limits)


def rejudged(health: Health, *, now: float, limits: Limits) -> Health:
    """Return the health now: suspicions and trials end with time."""
    return _judged(health, health.probe, health.doubt, health.on_trust, now, limits)


def unheard(health: Health, *, now: float, limits: Limits) -> Health:
    """Return the health when nobody probes any more: a suspect gets one request on trial, so that it can find its way back.
    Who was down, starting or asleep stays so.
    """
    asleep = health.probe is not None and health.probe.asleep
    if health.state != "suspect" or asleep or health.on_trust:
        return rejudged(health, now=now, limits=limits)
    return _judged(health, health.probe, health.doubt, True, now, limits)


def merged(mine: Doubt, other: Doubt) -> Doubt:
    """Return the newer of two doubts, with the newest failure and the newest proof of both."""
    newer = other if _order(other) > _order(mine) else mine
    doubted_at, proved_at = max(mine.doubted_at, other.doubted_at), max(mine.proved_at, other.proved_at)
    if (newer.doubted_at, newer.proved_at) == (doubted_at, proved_at):
        return newer
    return msgspec.structs.replace(newer, doubted_at=doubted_at, proved_at=proved_at)


def request_failed(health: Health, *, now: float, began_at: float | None, limits: Limits) -> Health:
    """Return the health after a request that failed through the replica's fault."""
    if health.state not in ("ready", "suspect"):
        return health
    # Of many requests that fail together only the first is new evidence; one from before the last clearing is none.
    old = began_at is not None and began_at < health.since
    doubt = msgspec.structs.replace(health.doubt, at=now, doubted_at=now, trial_until=None)
    if _on_trial(health.doubt, now) or (health.state == "ready" and not old):
        suspicions = doubt.suspicions + 1
        doubt = msgspec.structs.replace(
            doubt, suspicions=suspicions, suspect_until=now + _suspicion_s(suspicions, limits)
        )
    return _judged(health, health.probe, doubt, False, now, limits)


def request_began(health: Health, *, now: float, limits: Limits) -> Health:
    """Return the health after a request was sent there. After repeated failures it is the only one until its outcome is known."""
    if health.state != "ready" or not (health.doubt.suspicions > 1 or health.on_trust):
        return health
    doubt = msgspec.structs.replace(health.doubt, at=now, trial_until=now + limits.max_suspicion_s)
    return _judged(health, health.probe, doubt, health.on_trust, now, limits)


def request_left(health: Health, *, now: float, began_at: float, limits: Limits) -> Health:
    """Return the health after a request that ended without evidence, such as one whose caller hung up. The next one is on
    trial in its place.
    """
    if health.doubt.trial_until is None or began_at < health.since:
        return health
    doubt = msgspec.structs.replace(health.doubt, at=now, trial_until=None)
    return _judged(health, health.probe, doubt, health.on_trust, now, limits)


def request_succeeded(health: Health, *, now: float, began_at: float, limits: Limits) -> Health:
    """Return the health after a request that succeeded; unchanged unless there were failures before."""
    if not health.is_open:
        return health
    doubt = Doubt(
        at=now, doubted_at=health.doubt.doubted_at, proved_at=max(health.doubt.proved_at, began_at), trial_until=None
    )
    probe, on_trust = health.probe, health.on_trust
    if on_trust and probe is not None and began_at > health.doubt.doubted_at:
        # Nobody probes, and this is as good.
        probe, on_trust = msgspec.structs.replace(probe, misses=0, why=""), False
    return _judged(health, probe, doubt, on_trust, now, limits)


def _judged(before: Health, probe: Probe | None, doubt: Doubt, on_trust: bool, now: float, limits: Limits) -> Health:
    state, why = _verdict(probe, doubt, on_trust, now, limits)
    since = before.since if state == before.state else now
    return Health(state=state, since=since, why=why, probe=probe, doubt=doubt, on_trust=on_trust)


def _verdict(probe: Probe | None, doubt: Doubt, on_trust: bool, now: float, limits: Limits) -> tuple[ReplicaState, str]:
    if probe is None:
        return "starting", "it was not probed yet"
    state = _state_by_probes(probe, now, limits)
    if state in ("starting", "down") or (state == "suspect" and not on_trust):
        return state, probe.why
    if probe.asleep:
        return "suspect", "it is asleep"
    if (not on_trust and _is_unproved(probe, doubt)) or now < doubt.suspect_until:
        return "suspect", _suspicion_text(doubt)
    return ("suspect", "one request is there on trial") if _on_trial(doubt, now) else ("ready", "")


def _state_by_probes(probe: Probe, now: float, limits: Limits) -> ReplicaState:
    if not probe.misses:
        return "ready"
    if probe.answered_at == _NEVER:
        return "down" if now - probe.first_at >= limits.starting_s else "starting"
    return "down" if probe.misses >= limits.misses else "suspect"


def _is_unproved(probe: Probe, doubt: Doubt) -> bool:
    return doubt.doubted_at != _NEVER and doubt.doubted_at >= max(probe.sent_at, doubt.proved_at)


def _continued(before: Probe | None, probe: Probe) -> Probe:
    """Return the probe, with what was known before: whoever probes may have begun to count anew."""
    if before is None:
        return probe
    since_answered = probe.answered_at > before.answered_at
    misses = probe.misses if since_answered or not probe.misses else max(probe.misses, before.misses)
    answered_at, first_at = max(probe.answered_at, before.answered_at), min(probe.first_at, before.first_at)
    if (misses, answered_at, first_at) == (probe.misses, probe.answered_at, probe.first_at):
        return probe
    return msgspec.structs.replace(probe, misses=misses, answered_at=answered_at, first_at=first_at)


def _order(doubt: Doubt) -> tuple[float, ...]:
    """Return the sort key, which also orders replicas that changed at the same moment alike everywhere."""
    trial_until = _NEVER if doubt.trial_until is None else doubt.trial_until
    return doubt.at, doubt.suspicions, doubt.suspect_until, trial_until


def _on_trial(doubt: Doubt, now: float) -> bool:
    return doubt.trial_until is not None and now < doubt.trial_until


def _suspicion_s(suspicions: int, limits: Limits) -> float:
    if suspicions <= 1:
        return 0.0
    return min(_FIRST_SUSPICION_S * 2.0 ** min(suspicions - 2, _MOST_DOUBLINGS), limits.max_suspicion_s)


def _suspicion_text(doubt: Doubt) -> str:
    if doubt.suspicions <= 1:
        return "a request failed there"
    return f"requests failed there {doubt.suspicions} times in a row, though it answers probes"
