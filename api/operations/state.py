"""The state of targets and pools: the worst of callable, failing, slow and saturated, with its beginning. Pure.

`judge` alone decides. A target or pool is `ok` exactly where it has no problem, and each problem is (part of) an incident, so
that no page can call well what an incident is open on. What a page, `weighbridge top`, an API, a metric or an incident says
of a state is taken from here.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, cast

import msgspec

from api.incidents.kept import KeptIncident
from api.live.chance import is_beyond_chance
from api.live.recent import ENOUGH, FAILING, SLOWER
from cost.shown import percent
from proxy.settle.hurt.counting import SLOW_SHARE

Severity = Literal["bad", "warn"]
Kind = Literal[
    "down", "slow", "saturated", "errors", "spend", "flooding", "unreachable", "books", "drift", "configuration", "late"
]
TargetState = Literal[
    "ok", "recovering", "degraded", "unpriced", "slow", "saturated", "partly_failing", "failing", "down", "empty"
]
"""`recovering`: it is well, and its incident is not over yet. `degraded`: some of its deployments are not called. `partly_failing`:
a twentieth of its attempts fails, `failing`: a quarter, or those of the last minute. `down`: none of its deployments can be called;
`empty`: its pool has no replicas.
"""

_GRAVE: Final = 5
"""Times `FAILING` from which a target's failures are a severe problem."""
FULL: Final = 0.95
KV_FULL: Final = 0.95
_WORST_LAST: Final = (
    "ok", "scaled_to_zero", "asleep", "starting", "draining", "recovering", "degraded", "unpriced", "slow", "saturated",
    "partly_failing", "failing", "empty", "down",
)  # fmt: skip
_ILL: Final = frozenset({"errors", "slow", "saturated"})
"""Problems of a target that are its pool's, too."""
_NOBODY: Final = "requests that may not go to another model are refused"


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A fault of one place."""

    severity: Severity
    kind: Kind
    state: str
    """The state that it puts its place in."""
    text: str
    """The cause first, then what follows from it."""
    advice: str
    since_us: int | None = None
    """Time of its beginning, where that is known."""
    of: str = ""
    """The other place whose problem it is first, which the incident is told of; empty for one of its own."""


NOTHING_LASTS: Final[Mapping[str, Problem]] = {}
_STATES_OF: Final[Mapping[tuple[str, Severity], str]] = {
    ("down", "bad"): "down",
    ("errors", "bad"): "failing",
    ("errors", "warn"): "partly_failing",
    ("slow", "warn"): "slow",
    ("saturated", "warn"): "saturated",
}
"""The state that another host's word puts a place in."""


def judge(
    targets: Sequence[dict[str, Any]],
    pools: Sequence[dict[str, Any]],
    queues: Sequence[Mapping[str, Any]],
    patience_s: float,
    lasting: Mapping[str, Problem] = NOTHING_LASTS,
) -> None:
    """Add `problems_found` to the snapshots of all targets and pools, and set each one's `state` to that of its worst. What is wrong
    with a pool or a queue is wrong with the targets that it serves, and where these fail or are late their pool does. `lasting`
    has, by place, what stands for those in which nothing is found here, and of which an incident is open.
    """
    of_pools = {each["name"]: list(_pool_problems(each)) for each in pools}
    of_targets = {each["target_id"]: list(_target_problems(each, patience_s)) for each in targets}
    of_queues = {each["name"]: list(queue_problems(each)) for each in queues}
    waiting: dict[str, list[Problem]] = {}
    for queue in queues:
        for name in queue.get("targets", ()):
            waiting.setdefault(name, []).extend(_of(f"queue/{queue['name']}", of_queues[queue["name"]]))
    for target in targets:
        target_id, pool = target["target_id"], target["pool"]
        inherited = [] if pool is None else _of(f"pool/{pool}", of_pools.get(pool, ()))
        if target["state"] == "empty":
            # Without replicas, as decided or because they sleep, is no fault.
            target["state"] = next((each["state"] for each in pools if each["name"] == pool), "empty")
        found = [*of_targets[target_id], *inherited, *waiting.get(target_id, ())]
        _conclude(target, found or _lasting(f"target/{target_id}", lasting))
    for pool in pools:
        served = [each for each in targets if each["pool"] == pool["name"]]
        inherited = [
            found
            for each in served
            for found in _of(f"target/{each['target_id']}", of_targets[each["target_id"]])
            if found.kind in _ILL
        ]
        found = [*of_pools[pool["name"]], *inherited]
        _conclude(pool, found or _lasting(f"pool/{pool['name']}", lasting))


def lasting(kept: Iterable[KeptIncident], boot_id: str, now_us: int) -> dict[str, Problem]:
    """Return what stands for the places of open incidents where nothing is found: the word of another host that saw it just now, or
    that it is well again and the incident not over yet.
    """
    found: dict[str, Problem] = {}
    for each in kept:
        elsewhere = each.is_there(boot_id, now_us)
        severity: Severity = "bad" if elsewhere and each.severity == "bad" else "warn"
        problem = Problem(
            severity=severity,
            kind=cast(Kind, each.kind),
            state=_STATES_OF.get((each.kind, severity), "degraded") if elsewhere else "recovering",
            text=each.text
            if elsewhere
            else "nothing is wrong any more, and the incident closes when that lasts two minutes",
            advice=each.advice,
            since_us=each.opened_us,
            of=each.place,
        )
        found |= dict.fromkeys(each.places, problem)
    return found


def _lasting(place: str, lasting: Mapping[str, Problem]) -> list[Problem]:
    return [lasting[place]] if place in lasting else []


def worst(problems: Iterable[Problem]) -> Problem | None:
    """Return the gravest problem; None without one."""
    return max(problems, key=lambda each: (each.severity == "bad", _WORST_LAST.index(each.state)), default=None)


def tone_of(place: Mapping[str, Any]) -> Severity | None:
    """Return the severity of a judged target or pool; None where it has no problem."""
    found = worst(place["problems_found"])
    return None if found is None else found.severity


def _conclude(place: dict[str, Any], problems: list[Problem]) -> None:
    found = worst(problems)
    place["problems_found"] = problems
    if found is not None:
        place["state"] = found.state
    known = [each.since_us for each in problems if each.since_us is not None]
    place["since_us"] = min(known, default=None)


def _of(place: str, problems: Iterable[Problem]) -> list[Problem]:
    return [msgspec.structs.replace(each, of=place) for each in problems if not each.of]


def _target_problems(target: Mapping[str, Any], patience_s: float) -> Iterator[Problem]:
    state, run = target["state"], target["run"]
    advice = (
        "Its page has the last errors in the upstream's own words: a refused key or name is corrected in the configuration, "
        "an outage by the provider."
    )
    why = target["why"]
    # A pool without replicas is told as a pool.
    if state == "down":
        who = f"replica of the pool {target['pool']}" if target["pool"] else "deployment"
        text = f"{why}, so no {who} is called" if why else f"no {who} can be called"
        yield Problem(
            severity="bad",
            kind="down",
            state="down",
            text=f"{text}; {_NOBODY}",
            advice=advice,
            since_us=run["since_us"],
        )
    elif state == "failing":
        told = _run_text(target)
        text = f"{why}: {told}" if why else told
        since_us = run["since_us"] if run["failures"] else run["first_us"]
        yield Problem(severity="bad", kind="errors", state="failing", text=text, advice=advice, since_us=since_us)
    elif state == "degraded":
        yield _degraded(target, run)
    yield from _of_recent(target, advice, patience_s, is_told=state in {"down", "failing"})
    if not target["is_priced"]:
        yield Problem(
            severity="warn",
            kind="configuration",
            state="unpriced",
            text="it has no price now, so its cost is unknown and `auto` does not choose it",
            advice="Enter a price in the price book, or `prices` of the model in the configuration.",
        )


def _degraded(target: Mapping[str, Any], run: Mapping[str, Any]) -> Problem:
    ejected = sum(each["breaker"]["state"] != "closed" for each in target["deployments"])
    there = len(target["deployments"])
    text = (
        f"{ejected} of {there} deployments are not called"
        if ejected
        else f"{target['available']} of {there} replicas take work"
    )
    return Problem(
        severity="warn",
        kind="down",
        state="degraded",
        text=f"{target['why']}: {text}" if target["why"] else text,
        advice="A circuit closes by itself once a trial request succeeds; the page says which deployment it is.",
        since_us=run["since_us"],
    )


def _run_text(target: Mapping[str, Any]) -> str:
    run = target["run"]
    minute = f"{run['minute_failures']} of {run['minute_attempts']} attempts of the last minute failed"
    if not run["failures"]:
        return minute
    last = f"its last {run['failures']} attempts failed" if run["failures"] > 1 else "its last attempt failed"
    return f"{last}, and {minute}" if run["minute_attempts"] else f"{last}; none came in the last minute"


def _of_recent(target: Mapping[str, Any], advice: str, patience_s: float, *, is_told: bool) -> Iterator[Problem]:
    recent, why = target["recent"], target["why"]
    if recent["attempts"] < ENOUGH:
        return
    names = ("failed_share", "model_ttft_p50_s", "model_ttft_p95_s", "usual_model_ttft_p50_s")
    share, p50, p95, usual = (recent[name] for name in names)
    sure_p50, sure_p95 = recent["sure_ttft_p50_s"], recent["sure_ttft_p95_s"]
    first_us = target["run"]["first_us"]
    # Of a target that is down or failing one line is enough.
    if is_beyond_chance(recent["failed"], recent["attempts"], FAILING) and not is_told:
        text = f"{percent(share, 0)} of its last {recent['attempts']} attempts failed"
        grave = is_beyond_chance(recent["failed"], recent["attempts"], _GRAVE * FAILING)
        yield Problem(
            severity="bad" if grave else "warn",
            kind="errors",
            state="failing" if grave else "partly_failing",
            text=f"{why}: {text}" if why else text,
            advice=advice,
            since_us=first_us,
        )
    if is_beyond_chance(recent["turned_away"], recent["attempts"], FAILING) and not is_told:
        yield Problem(
            severity="warn",
            kind="saturated",
            state="saturated",
            text=f"{recent['turned_away']} of its last {recent['attempts']} attempts found no room there",
            advice="Ask the provider for a higher limit, or allow its teams another model beside it.",
            since_us=first_us,
        )
    advice = (
        "Compare with another model of the same capability; its weight (`routing_weight`) takes traffic away from it."
    )
    if sure_p95 is not None and sure_p95 >= SLOW_SHARE * patience_s:
        text = f"one request in twenty waits {p95:.1f} s or longer for the model's own first token, of the {patience_s:.0f} s that it may take"
    elif sure_p50 is not None and usual and sure_p50 >= SLOWER * usual:
        text = f"its own median first token takes {p50:.2f} s; at this time yesterday it took {usual:.2f} s"
    else:
        return
    yield Problem(severity="warn", kind="slow", state="slow", text=text, advice=advice)


def _pool_problems(pool: Mapping[str, Any]) -> Iterator[Problem]:
    state = pool["state"]
    advice = "The pool's page has each replica's state and last probe; start replicas, or mend what they stand on."
    is_out = state in {"down", "empty"}
    for each in pool["problems"]:
        yield Problem(
            severity="bad" if is_out else "warn",
            kind="down",
            state="degraded" if state == "ok" else state,
            text=each["text"],
            advice=advice,
        )
    if state == "degraded" and not pool["problems"]:
        ready, there = pool["counts"]["ready"], len(pool["replicas"])
        text = f"{ready} of {there} replicas take work"
        yield Problem(severity="warn", kind="down", state="degraded", text=text, advice=advice)
    if pool["kv_usage"] is not None and pool["kv_usage"] >= KV_FULL:
        waiting = pool.get("waiting") or 0
        wait = f"{waiting} requests wait in its engines" if waiting else "requests wait or lose their place"
        yield Problem(
            severity="warn",
            kind="saturated",
            state="saturated",
            text=f"its caches are {percent(pool['kv_usage'], 0)} full; {wait}",
            advice="Start more replicas, or let more of its work overflow to a paid provider.",
        )
    # Ranks of a process are counted apart, and ordered together.
    ready, desired = -(-pool["counts"]["ready"] // pool.get("ranks", 1)), pool["desired"]
    if desired is not None and ready < desired and not is_out:
        yield Problem(
            severity="warn",
            kind="saturated",
            state="degraded" if state == "ok" else state,
            text=f"{ready} of {desired} desired replicas are ready",
            advice=advice,
        )


def queue_problems(queue: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the problem of a queue that is full and in which requests wait."""
    used = queue["in_flight_tokens"] / queue["capacity_tokens"] if queue["capacity_tokens"] else 0.0
    if queue["waiting"] and used >= FULL:
        yield Problem(
            severity="warn",
            kind="saturated",
            state="saturated",
            text=f"{queue['waiting']} requests wait, about {queue['predicted_wait_s']:.1f} s for who comes now",
            advice="Start more replicas behind it, or let more of its work overflow to a paid provider.",
        )
