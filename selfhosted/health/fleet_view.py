"""The JSON of GET /v1/fleet, also read by the dashboard. Pure functions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from cost.times import iso
from selfhosted.config import PoolConfig, SharedGpusConfig
from selfhosted.discovery.discovery import Discovery, Problem
from selfhosted.health.hardware import UNKNOWN, PoolHardware, Usage, usage_by_version, usage_of
from selfhosted.kv_events.subscriber import KvState
from selfhosted.registry.registry import Registry
from selfhosted.registry.store import RegistryStore, ScaleTarget
from selfhosted.replica import NOT_READ_YET, EngineStats, PoolSnapshot, Replica, ReplicaState

PoolState = Literal["ok", "degraded", "starting", "draining", "down", "empty", "scaled_to_zero", "asleep"]
"""State of a pool. `ok`: all is well. `degraded`: it serves, but a replica is suspect or down, or it has a problem.
`starting`, `draining`: none is ready, but some start, or all that are there finish their work. `down`: there are
replicas and none can serve. `empty`: there are none, though there should be. `scaled_to_zero`: there are none, as
decided. `asleep`: another pool has the GPUs that they share, and requests wait for their turn."""

STATES: Final[tuple[ReplicaState, ...]] = ("ready", "starting", "suspect", "draining", "down")
_PLACES: Final = 4


class WatchedPool(msgspec.Struct, kw_only=True):
    """A pool and the sources of what is shown of it."""

    config: PoolConfig
    snapshot: Callable[[], PoolSnapshot]
    discovery: Discovery
    token: str | None = None
    """Bearer token required for registrations; None: the pool accepts none. Must never be shown."""
    hardware: PoolHardware = UNKNOWN
    """As the configuration in effect has it."""
    kv_events: Callable[[], Mapping[str, KvState]] | None = None
    """State of each replica's KV events by name; None where the pool does not subscribe to them."""


class FleetView(msgspec.Struct, frozen=True):
    """All pools as one process sees them, with the shared registry."""

    pools: Mapping[str, WatchedPool]
    registry: Registry
    store: RegistryStore
    shared: Sequence[SharedGpusConfig] = ()
    turn_problems: dict[str, Mapping[str, str]] = msgspec.field(default_factory=dict)
    """Problems of engines that should sleep in turns, by the group and then the pool, where this process leads."""

    def turn_problem(self, pool: str) -> str:
        """Return why the pool's engines do not sleep in turns, as they should; empty where they do, or this process does not lead."""
        return next((found[pool] for found in self.turn_problems.values() if found.get(pool)), "")


def fleet_as_json(view: FleetView, now: float) -> dict[str, Any]:
    """Return the body of GET /v1/fleet. `now` is on the monotonic clock, in seconds."""
    problem = view.registry.problem
    return {
        "object": "list",
        "data": [
            told_pool(watched, view.registry, now, view.turn_problem(name)) for name, watched in view.pools.items()
        ],
        "registry": {"reachable": not problem, "problem": problem or None},
    }


def told_pool(watched: WatchedPool, registry: Registry, now: float, problem: str = "") -> dict[str, Any]:
    """Return the JSON object of one pool, with its replicas. `problem`: why its engines do not sleep in turns."""
    config, snapshot = watched.config, watched.snapshot()
    wish = registry.wish(config.name)
    desired = None if wish is None else wish.desired
    problems, unread = [*watched.discovery.problems], _unread(snapshot.replicas)
    state = _state_of_pool(config, snapshot.replicas, problems, desired)
    if unread and state == "ok":
        state = "degraded"
    shared = registry.shared(config.name)
    reading = None if config.prefill is None else _told_readers(config, registry, snapshot.replicas)
    if registry.rests(config.name) and snapshot.replicas and state in ("draining", "ok", "degraded"):
        state = "asleep"
    asleep = [] if not problem else [{"kind": "no_sleep", "source": "watch", "text": problem}]
    events, ordered = None if watched.kv_events is None else watched.kv_events(), registry.ordered(config.name)
    return {
        "object": "fleet.pool",
        "name": config.name,
        "state": state,
        "engine": config.engine,
        "targets": list(config.served),
        **told_wish(wish),
        "counts": {name: sum(each.state == name for each in snapshot.replicas) for name in STATES},
        "ranks": config.data_parallel_ranks,
        **_load(snapshot.replicas),
        "usage": _usage_as_json(usage_of(snapshot.replicas, watched.hardware)),
        "versions": _versions_as_json(snapshot.replicas, watched.hardware),
        "prefill": reading,
        "shared_gpus": None if shared is None else msgspec.structs.asdict(shared),
        "problems": [*map(_problem_as_json, problems), *unread, *asleep, *_state_problems(state, desired)],
        "replicas": [
            {
                **told_replica(each, now, ordered=not ordered.isdisjoint((each.name, each.address.process))),
                "kv_events": _events_as_json(events, each.name),
            }
            for each in snapshot.replicas
        ],
    }


def state_of(replicas: Sequence[Replica], problems: Sequence[Problem], desired: int | None) -> PoolState:
    """Return the pool's state, from its replicas' states, its problems and the desired number of replicas (None: undecided)."""
    states = {replica.state for replica in replicas}
    if not states:
        return "scaled_to_zero" if desired == 0 else "empty"
    if "ready" in states:
        return "degraded" if problems or states & {"suspect", "down"} else "ok"
    if "starting" in states:
        return "starting"
    return "draining" if states == {"draining"} else "down"


def _unread(replicas: Iterable[Replica]) -> list[dict[str, str]]:
    """Return the problem that statistics of replicas that serve cannot be read."""
    unread = [each for each in replicas if each.state == "ready" and each.stats is None]
    names = [each.name for each in unread if each.why not in {"", NOT_READ_YET}]
    if not names:
        return []
    text = f"{len(names)} replicas serve whose statistics are not known, such as {names[0]}: they count as loaded as the mean"
    return [{"kind": "unread", "source": "watch", "text": text}]


def _state_of_pool(
    config: PoolConfig, replicas: Sequence[Replica], problems: Sequence[Problem], desired: int | None
) -> PoolState:
    """Return the state as `state_of` does; where some replicas only read prompts for the others, only the others count."""
    prefill, whole = config.prefill, state_of(replicas, problems, desired)
    if prefill is None:
        return whole
    serving = state_of([each for each in replicas if not prefill.reads(each.name)], problems, desired)
    return "degraded" if serving == "ok" and whole == "degraded" else serving


def _told_readers(config: PoolConfig, registry: Registry, replicas: Sequence[Replica]) -> dict[str, Any]:
    """Return the JSON of the replicas that only read prompts, whose number is decided apart."""
    (part,) = (each for each in config.parts if each.does == "reads")
    own = [each for each in replicas if config.is_in(part, each.name)]
    return {
        **told_wish(registry.wish(part.name)),
        "there": len(own),
        "ready": sum(each.state == "ready" for each in own),
        "waiting": _load(own)["waiting"],
    }


def told_wish(wish: ScaleTarget | None) -> dict[str, Any]:
    """Return the desired number of replicas, the reason and the time of the decision; null, empty and null where there was
    none.
    """
    if wish is None or wish.desired is None:
        return {"desired": None, "desired_reason": "", "decided_at": None}
    return {"desired": wish.desired, "desired_reason": wish.reason, "decided_at": iso(wish.decided_us)}


def told_replica(replica: Replica, now: float, *, ordered: bool) -> dict[str, Any]:
    """Return the JSON object of one replica. Statistics that are unknown are null, never 0."""
    return {
        "name": replica.name,
        "url": replica.address.url,
        "source": replica.address.source,
        "version": replica.address.version or None,
        "state": replica.state,
        "why": replica.why,
        "since_s": round(max(0.0, now - replica.since), 1),
        "drain_ordered": ordered,
        "stats": None if replica.stats is None else _stats_as_json(replica.stats, now),
        "adapters": sorted(replica.adapters),
    }


def _events_as_json(events: Mapping[str, KvState] | None, name: str) -> dict[str, Any] | None:
    """Return the state of one replica's KV events; None where the pool does not subscribe to them."""
    found = None if events is None else events.get(name)
    return None if found is None else msgspec.structs.asdict(found)


def _stats_as_json(stats: EngineStats, now: float) -> dict[str, Any]:
    return {
        "age_s": round(max(0.0, now - stats.at), 1),
        "running": stats.running,
        "waiting": stats.waiting,
        "kv_usage": _rounded(stats.kv_usage),
        "kv_tokens": stats.kv_tokens,
        "gpu_memory": _rounded(stats.gpu_memory),
        "gpu_utilisation": _rounded(stats.gpu_utilisation),
        "tokens_per_s": _rounded(stats.tokens_per_s),
        "prefix_hit_rate": hit_rate([stats]),
        "preemptions": stats.preemptions,
    }


def _usage_as_json(usage: Usage) -> dict[str, Any]:
    plain = msgspec.structs.asdict(usage)
    return {name: value if name == "nanousd_per_million" else _rounded(value) for name, value in plain.items()}


def _versions_as_json(replicas: Sequence[Replica], hardware: PoolHardware) -> list[dict[str, Any]]:
    """Return the work and the cost of each version's replicas. The version null stands for replicas that report none."""
    found = []
    for version, usage in usage_by_version(replicas, hardware).items():
        own = [each for each in replicas if each.address.version == version]
        ready = sum(each.state == "ready" for each in own)
        found.append({"version": version or None, "there": len(own), "ready": ready, "usage": _usage_as_json(usage)})
    return found


def _load(replicas: Iterable[Replica]) -> dict[str, Any]:
    """Load of the replicas that serve, summed or averaged over those with known statistics; null when there are none."""
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
    """Return the fraction of prompt tokens that the engines found in their prefix caches since they started, 0 to 1;
    None when unknown.
    """
    pairs = [(each.prefix_hits, each.prefix_queries) for each in known]
    reported = [(hits, queries) for hits, queries in pairs if hits is not None and queries is not None]
    queries = sum(queries for _, queries in reported)
    return _rounded(sum(hits for hits, _ in reported) / queries) if queries > 0 else None


def _state_problems(state: PoolState, desired: int | None) -> list[dict[str, str]]:
    match state:
        case "empty":
            wanted = "" if desired is None else f", though {desired} should be"
            text = f"there are no replicas{wanted}; requests go to the next target"
        case "down":
            text = "no replica can serve; requests go to the next target"
        case _:
            return []
    return [{"kind": "no_replicas" if state == "empty" else "none_ready", "source": "watch", "text": text}]


def _problem_as_json(problem: Problem) -> dict[str, str]:
    return {"kind": problem.kind, "source": problem.source, "text": problem.text}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _PLACES)
