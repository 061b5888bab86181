"""The fleet as operators, and the pages that show it, are told of it. Pure; every state is one word out of a short list."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from cost.times import iso
from selfhosted.config import PoolConfig
from selfhosted.discovery.discovery import Discovery, Problem
from selfhosted.kv_events.following import KvState
from selfhosted.registry.registry import Registry
from selfhosted.registry.store import RegistryStore, ScaleTarget
from selfhosted.replica import EngineStats, PoolSnapshot, Replica, ReplicaState

PoolState = Literal["ok", "degraded", "starting", "draining", "down", "empty", "scaled_to_zero"]
"""`ok`: all is well. `degraded`: it serves, but a replica is suspect or down, or something is to be looked into.
`starting`, `draining`: nobody is ready, but some start, or all that are there finish their work. `down`: replicas are
there and none can serve. `empty`: there are none, though there should be. `scaled_to_zero`: there are none, as decided."""

STATES: Final[tuple[ReplicaState, ...]] = ("ready", "starting", "suspect", "draining", "down")
_PLACES: Final = 4


class WatchedPool(msgspec.Struct, frozen=True, kw_only=True):
    """A pool, and who knows what of it."""

    config: PoolConfig
    snapshot: Callable[[], PoolSnapshot]
    discovery: Discovery
    token: str | None = None
    """What registrations must show; None: it takes none. Never show it."""
    kv_events: Callable[[], Mapping[str, KvState]] | None = None
    """How it stands with each replica's KV events; None where nobody listens for them."""


class FleetView(msgspec.Struct, frozen=True):
    """All pools, as one process sees them."""

    pools: Mapping[str, WatchedPool]
    registry: Registry
    store: RegistryStore


def fleet_as_json(view: FleetView, now: float) -> dict[str, Any]:
    """What GET /v1/fleet says. `now` is of the monotonic clock."""
    problem = view.registry.problem
    return {
        "object": "list",
        "data": [told_pool(watched, view.registry, now) for watched in view.pools.values()],
        "registry": {"reachable": not problem, "problem": problem or None},
    }


def told_pool(watched: WatchedPool, registry: Registry, now: float) -> dict[str, Any]:
    """One pool, with its replicas."""
    config, snapshot = watched.config, watched.snapshot()
    wish = registry.target(config.name)
    desired = None if wish is None else wish.desired
    problems = [*watched.discovery.problems]
    state = state_of(snapshot.replicas, problems, desired)
    events = None if watched.kv_events is None else watched.kv_events()
    return {
        "object": "fleet.pool",
        "name": config.name,
        "state": state,
        "engine": config.engine,
        "targets": list(config.served),
        **told_wish(wish),
        "counts": {name: sum(each.state == name for each in snapshot.replicas) for name in STATES},
        **_load(snapshot.replicas),
        "problems": [*map(_told_problem, problems), *_own_problems(state, desired)],
        "replicas": [
            {
                **told_replica(each, now, ordered=each.name in registry.ordered(config.name)),
                "kv_events": _told_events(events, each.name),
            }
            for each in snapshot.replicas
        ],
    }


def state_of(replicas: Sequence[Replica], problems: Sequence[Problem], desired: int | None) -> PoolState:
    """The pool in one word."""
    states = {replica.state for replica in replicas}
    if not states:
        return "scaled_to_zero" if desired == 0 else "empty"
    if "ready" in states:
        return "degraded" if problems or states & {"suspect", "down"} else "ok"
    if "starting" in states:
        return "starting"
    return "draining" if states == {"draining"} else "down"


def told_wish(wish: ScaleTarget | None) -> dict[str, Any]:
    """How many replicas there should be, and who says so; nulls where nobody decided."""
    if wish is None or wish.desired is None:
        return {"desired": None, "desired_reason": "", "decided_at": None}
    return {"desired": wish.desired, "desired_reason": wish.reason, "decided_at": iso(wish.decided_us)}


def told_replica(replica: Replica, now: float, *, ordered: bool) -> dict[str, Any]:
    """One replica. Statistics that are unknown are null, never 0."""
    return {
        "name": replica.name,
        "url": replica.address.url,
        "source": replica.address.source,
        "state": replica.state,
        "why": replica.why,
        "since_s": round(max(0.0, now - replica.since), 1),
        "drain_ordered": ordered,
        "stats": None if replica.stats is None else _told_stats(replica.stats, now),
        "adapters": sorted(replica.adapters),
    }


def _told_events(events: Mapping[str, KvState] | None, name: str) -> dict[str, Any] | None:
    """Null where caches are inferred, as configured."""
    found = None if events is None else events.get(name)
    return None if found is None else msgspec.structs.asdict(found)


def _told_stats(stats: EngineStats, now: float) -> dict[str, Any]:
    return {
        "age_s": round(max(0.0, now - stats.at), 1),
        "running": stats.running,
        "waiting": stats.waiting,
        "kv_usage": _rounded(stats.kv_usage),
        "kv_tokens": stats.kv_tokens,
        "gpu_memory": _rounded(stats.gpu_memory),
        "prefix_hit_rate": hit_rate([stats]),
        "preemptions": stats.preemptions,
    }


def _load(replicas: Iterable[Replica]) -> dict[str, Any]:
    """Over those that serve, of those whose statistics are known."""
    serving = [replica for replica in replicas if replica.state in {"ready", "suspect", "draining"}]
    known = [replica.stats for replica in serving if replica.stats is not None]
    kv = [stats.kv_usage for stats in known if stats.kv_usage is not None]
    return {
        "running": sum(stats.running for stats in known) if known else None,
        "waiting": sum(stats.waiting for stats in known) if known else None,
        "kv_usage": _rounded(sum(kv) / len(kv)) if kv else None,
        "prefix_hit_rate": hit_rate(known),
        "unknown": len(serving) - len(known),
    }


def hit_rate(known: Iterable[EngineStats]) -> float | None:
    """The part of prompt tokens that engines found in their caches since they started."""
    pairs = [(each.prefix_hits, each.prefix_queries) for each in known]
    told_of = [(hits, queries) for hits, queries in pairs if hits is not None and queries is not None]
    queries = sum(queries for _, queries in told_of)
    return _rounded(sum(hits for hits, _ in told_of) / queries) if queries > 0 else None


def _own_problems(state: PoolState, desired: int | None) -> list[dict[str, str]]:
    match state:
        case "empty":
            wanted = "" if desired is None else f", though {desired} should be"
            text = f"there are no replicas{wanted}; requests go to the next target"
        case "down":
            text = "no replica can serve; requests go to the next target"
        case _:
            return []
    return [{"kind": "no_replicas" if state == "empty" else "none_ready", "source": "watch", "text": text}]


def _told_problem(problem: Problem) -> dict[str, str]:
    return {"kind": problem.kind, "source": problem.source, "text": problem.text}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _PLACES)
