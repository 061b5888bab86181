"""Health of a replica: its state machine over probes and request outcomes. Pure: no clock, no socket.

Two kinds of evidence: a probe says whether the engine answers at all, a request says whether it works. A request that
failed makes the replica suspect at once, and a probe that was sent after it clears it. Where probes are fine but
requests go on failing, each suspicion lasts longer than the one before, and then a single request goes there on trial,
so that each suspicion costs one request.
"""

from typing import Final

import msgspec

from selfhosted.config import PoolConfig
from selfhosted.replica import ReplicaState

_FIRST_SUSPICION_S: Final = 1.0
# 2 ** 40 seconds are more than any limit; the shift itself must stay small, too.
_MOST_DOUBLINGS: Final = 40
_STARTING_S: Final = 600.0


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The thresholds of the state machine, from the configuration."""

    misses: int
    max_suspicion_s: float
    starting_s: float
    """Seconds after which a replica that has never answered is down instead of starting."""


def limits_of(config: PoolConfig) -> Limits:
    """The thresholds of a pool. `starting_s` is the most of 10 minutes, twice the cold start and the launch's
    `ready_s`: an address where nothing ever answered must not count as starting for ever.
    """
    cold_start_s = 0.0 if config.scale is None else 2 * config.scale.cold_start_s
    ready_s = 0.0 if config.launch is None else config.launch.ready_s
    return Limits(
        misses=config.watch.misses,
        max_suspicion_s=config.watch.max_suspicion_s,
        starting_s=max(_STARTING_S, cold_start_s, ready_s),
    )


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Health of one replica. Draining is not part of it: `Watched.state` adds that."""

    state: ReplicaState
    since: float
    why: str
    misses: int = 0
    """Consecutive failed probes."""
    suspicions: int = 0
    """Consecutive suspicions raised by requests, since a request last succeeded there."""
    doubted_at: float = float("-inf")
    """Time of the last failed request: an answer to a probe sent earlier does not clear it."""
    suspect_until: float = float("-inf")
    """Earliest time at which a good probe clears the suspicion."""
    trial_until: float | None = None
    """End of the trial, in which one request goes there; None when there is no trial."""


def unknown(now: float) -> Health:
    """Health of a replica that was just discovered."""
    return Health(state="starting", since=now, why="it was not probed yet")


def _become(health: Health, state: ReplicaState, why: str, now: float) -> Health:
    since = health.since if health.state == state else now
    return msgspec.structs.replace(health, state=state, why=why, since=since)


def answered(health: Health, *, sent_at: float, now: float, asleep: bool) -> Health:
    """The health after a probe that was answered well."""
    health = msgspec.structs.replace(health, misses=0) if health.misses else health
    if asleep:
        return _become(health, "suspect", "it is asleep", now)
    if health.state == "ready":
        return health
    if sent_at < health.doubted_at:
        return _become(health, "suspect", "a request failed there, and no probe was answered since", now)
    if now < health.suspect_until:
        return _become(health, "suspect", _suspicion_text(health), now)
    if health.trial_until is not None and now < health.trial_until:
        return health
    if health.trial_until is not None:
        health = msgspec.structs.replace(health, trial_until=None)
    return _become(health, "ready", "", now)


def missed(health: Health, why: str, *, now: float, limits: Limits) -> Health:
    """The health after a probe that failed."""
    health = msgspec.structs.replace(health, misses=health.misses + 1)
    if health.state == "starting":
        waited = now - health.since
        state: ReplicaState = "down" if waited >= limits.starting_s else "starting"
        return _become(health, state, why, now)
    if health.state == "down" or health.misses >= limits.misses:
        return _become(health, "down", why, now)
    return _become(health, "suspect", why, now)


def request_failed(health: Health, *, now: float, began_at: float | None, limits: Limits) -> Health:
    """The health after a request that failed through the replica's fault."""
    if health.state not in ("ready", "suspect"):
        return health
    on_trial = health.trial_until is not None
    health = msgspec.structs.replace(health, doubted_at=now, trial_until=None)
    # Of many requests that fail together only the first is new evidence; one from before the last clearing is none.
    old = began_at is not None and began_at < health.since
    if not on_trial and (health.state == "suspect" or old):
        return _become(health, "suspect", health.why or "a request failed there", now)
    suspicions = health.suspicions + 1
    wait_s = 0.0
    if suspicions > 1:
        doubled = _FIRST_SUSPICION_S * 2 ** min(suspicions - 2, _MOST_DOUBLINGS)
        wait_s = min(doubled, limits.max_suspicion_s)
    health = msgspec.structs.replace(health, suspicions=suspicions, suspect_until=now + wait_s)
    return _become(health, "suspect", _suspicion_text(health), now)


def request_began(health: Health, *, now: float, limits: Limits) -> Health:
    """The health after a request was sent there. After repeated failures it is the only one until its outcome is known."""
    if health.state != "ready" or health.suspicions <= 1:
        return health
    health = msgspec.structs.replace(health, trial_until=now + limits.max_suspicion_s)
    return _become(health, "suspect", "one request is there on trial", now)


def request_left(health: Health, *, began_at: float) -> Health:
    """The health after a request that ended without evidence, such as one whose caller hung up. The next one is on
    trial in its place.
    """
    if health.trial_until is None or began_at < health.since:
        return health
    return msgspec.structs.replace(health, trial_until=None)


def request_succeeded(health: Health, *, now: float) -> Health:
    """The health after a request that succeeded; unchanged unless there were failures before."""
    if not health.suspicions and health.trial_until is None:
        return health
    on_trial = health.trial_until is not None
    health = msgspec.structs.replace(health, suspicions=0, trial_until=None, suspect_until=now)
    # Where a probe was missed meanwhile, the next one decides.
    return _become(health, "ready", "", now) if on_trial and not health.misses else health


def _suspicion_text(health: Health) -> str:
    if health.suspicions <= 1:
        return "a request failed there"
    return f"requests failed there {health.suspicions} times in a row, though it answers probes"
