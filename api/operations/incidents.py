"""Incidents that need an operator, from an operations snapshot, gravest first: one outage is one of them.

Each says what is wrong, where, since when, how many requests and teams it hit, and what to do. What follows from
something else that is wrong (a target without replicas, a queue before it, a journal behind a database that is away) is
told with its cause.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from api.live.recent import ENOUGH

Severity = Literal["bad", "warn"]
Kind = Literal[
    "down", "slow", "saturated", "errors", "spend", "flooding", "unreachable", "books", "drift", "configuration"
]

FAILING: Final = 0.05
"""Share of failed attempts that makes a target a problem; above five times that, a severe one."""
SLOWER: Final = 2.0
"""Multiple of the median TTFT of a day ago that is slow."""
PATIENCE_SHARE: Final = 0.5
"""Share of the first-token timeout: when the p95 exceeds it, a twentieth of the requests is close to failing."""
FULL: Final = 0.95
KV_FULL: Final = 0.95
SPENDING: Final = 2.0
"""Multiple of the hour's usual cost that is a problem,"""
SPENDING_NANOUSD: Final = 10_000_000_000
"""if the hour's cost is at least this, in nano-dollars."""
_ROUGH: Final = 10
FLOODING: Final = 100
"""Refusals of a team in ten minutes that make it a problem."""
JOURNAL_OLD_S: Final = 10.0
DATABASE_SLOW_S: Final = 0.25
_GRAVE: Final = 5
_PAGES: Final = "/dashboard/operations"
_DATABASE: Final = "database"
_FEWEST_OF_PROVIDER: Final = 2


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to look into."""

    severity: Severity
    kind: Kind
    subject: str
    """The place: a target, pool, provider, queue, team, or a part of the gateway."""
    text: str
    """The fault, and its consequences."""
    advice: str
    """The remedy."""
    href: str
    since_us: int | None = None
    """Time of its beginning, or of its first observation, in microseconds since 1970."""
    requests: int | None = None
    """Requests that it hit in the last minutes; None where nobody counts."""
    teams: int | None = None
    """The teams that these were of, or the fewest that they can be of."""
    also: tuple[str, ...] = ()
    """Consequences, and other faults of the same place: a line each, beginning with the place."""

    @property
    def key(self) -> tuple[str, str]:
        """The key by which an incident is recognised in the next reading."""
        return (self.kind, self.subject)


class _Found(msgspec.Struct, frozen=True, kw_only=True):
    """A problem before grouping: what it is about, and what may be its cause if that has a problem too."""

    incident: Incident
    about: str
    causes: tuple[str, ...] = ()


def incidents(told: Mapping[str, Any]) -> list[Incident]:
    """Return all incidents; `told` is the snapshot of `api.operations.snapshot`. Pure."""
    found = [
        *_of_stores(told["stores"]),
        *_of_targets(told["targets"], told["patience_s"]),
        *_of_pools(told["pools"]),
        *_of_queues(told["queues"]),
        *_of_process(told["process"]),
        *_of_refusals(told["refusals"]),
        *_of_spend(told["spend"]),
        *_of_classifier(told["classifier"]),
    ]
    found += _of_providers(found, told["targets"])
    return sorted(_grouped(found), key=lambda each: each.severity != "bad")


def _grouped(found: Sequence[_Found]) -> Iterator[Incident]:
    """Return one incident for each root: the gravest problem of a place, with what else is wrong there and what
    follows.
    """
    there = {each.about for each in found}

    def root(each: _Found) -> str:
        about, seen = each.about, {each.about}
        causes = each.causes
        while cause := next((name for name in causes if name in there and name not in seen), None):
            seen.add(cause)
            about = cause
            causes = next(other.causes for other in found if other.about == cause)
        return about

    groups: dict[str, list[_Found]] = {}
    for each in found:
        groups.setdefault(root(each), []).append(each)
    for about, members in groups.items():
        first = min(members, key=lambda each: (each.about != about, each.incident.severity != "bad"))
        yield _merged(first.incident, [each.incident for each in members if each is not first])


def _merged(first: Incident, others: Sequence[Incident]) -> Incident:
    if not others:
        return first
    every = (first, *others)
    began = [each.since_us for each in every if each.since_us is not None]
    hit = [each.requests for each in every if each.requests is not None]
    teams = [each.teams for each in every if each.teams is not None]
    return msgspec.structs.replace(
        first,
        severity="bad" if any(each.severity == "bad" for each in every) else "warn",
        since_us=min(began, default=None),
        # What waits before a target is not what failed there, so the larger count is told and not their sum.
        requests=max(hit, default=None),
        teams=max(teams, default=None),
        also=tuple(dict.fromkeys(f"{each.subject}: {each.text}" for each in others)),
    )


def _of_targets(targets: Sequence[Mapping[str, Any]], patience_s: float) -> Iterator[_Found]:
    for target in targets:
        name, href = target["target_id"], f"{_PAGES}/targets/{target['target_id']}"
        recent, run = target["recent"], target["run"]
        causes = (f"pool/{target['pool']}",) if target["pool"] else (f"provider/{target['provider']}",)
        base = Incident(
            severity="bad",
            kind="down",
            subject=name,
            text="",
            advice="Its page has the last errors in the upstream's own words: a refused key or name is mended in the "
            "configuration, an outage by the provider.",
            href=href,
            since_us=run["since_us"],
            requests=recent["failed"] + recent["turned_away"] if recent["attempts"] else None,
            teams=run["teams"] or None,
        )
        for each in _target_problems(target, base, patience_s):
            yield _Found(incident=each, about=f"target/{name}", causes=causes)


def _target_problems(target: Mapping[str, Any], base: Incident, patience_s: float) -> Iterator[Incident]:
    replace = msgspec.structs.replace
    # A pool without replicas is told as a pool.
    if target["state"] == "down":
        who = f"replica of the pool {target['pool']}" if target["pool"] else "deployment"
        why = f" ({target['why']})" if target["why"] else ""
        yield replace(base, text=f"no {who} can be called{why}; its requests go to the next model")
    elif target["state"] == "failing":
        yield replace(base, kind="errors", text=_run_text(target))
    elif target["state"] == "degraded":
        ejected = sum(each["breaker"]["state"] != "closed" for each in target["deployments"])
        there = len(target["deployments"])
        text = (
            f"the circuits of {ejected} of {there} deployments are open"
            if ejected
            else (f"{target['available']} of {there} replicas take work")
        )
        advice = "A circuit closes by itself once a trial request succeeds; the page says which deployment it is."
        yield replace(base, severity="warn", text=text, advice=advice)
    yield from _of_recent(target["recent"], base, patience_s, is_told=target["state"] in {"down", "failing"})
    if not target["is_priced"]:
        yield replace(
            base,
            severity="warn",
            kind="configuration",
            text="it has no price now, so its cost is unknown and `auto` does not choose it",
            advice="Enter a price in the price book, or `prices` of the model in the configuration.",
            since_us=None,
            requests=None,
            teams=None,
        )


def _run_text(target: Mapping[str, Any]) -> str:
    run = target["run"]
    minute = f"{run['minute_failures']} of {run['minute_attempts']} attempts of the last minute failed"
    return f"its last {run['failures']} attempts failed; {minute}" if run["failures"] else minute


def _of_recent(recent: Mapping[str, Any], base: Incident, patience_s: float, *, is_told: bool) -> Iterator[Incident]:
    if recent["attempts"] < ENOUGH:
        return
    replace = msgspec.structs.replace
    names = ("failed_share", "model_ttft_p50_s", "model_ttft_p95_s", "usual_model_ttft_p50_s")
    share, p50, p95, usual = (recent[name] for name in names)
    # Of a target that is down or failing one line is enough.
    if share >= FAILING and not is_told:
        text = f"{share:.0%} of its last {recent['attempts']} attempts failed"
        grave = share >= _GRAVE * FAILING
        yield replace(base, severity="bad" if grave else "warn", kind="errors", text=text, requests=recent["failed"])
    if recent["turned_away"] >= FAILING * recent["attempts"] and not is_told:
        text = f"{recent['turned_away']} of its last {recent['attempts']} attempts found no room there"
        advice = "Ask the provider for a higher limit, or allow its teams another model beside it."
        hit = recent["turned_away"]
        yield replace(base, severity="warn", kind="saturated", text=text, advice=advice, requests=hit)
    slow = replace(base, severity="warn", kind="slow", requests=None, teams=None, since_us=None)
    advice = (
        "Compare with another model of the same capability; its weight (`routing_weight`) takes traffic away from it."
    )
    if p95 is not None and p95 >= PATIENCE_SHARE * patience_s:
        text = f"the p95 of its own time to the first token is {p95:.1f} s, of {patience_s:.0f} s that it may take"
        yield replace(slow, text=text, advice=advice)
    elif p50 is not None and usual and p50 >= SLOWER * usual:
        text = f"its own median first token takes {p50:.2f} s; at this time yesterday it took {usual:.2f} s"
        yield replace(slow, text=text, advice=advice)


def _of_providers(found: Sequence[_Found], targets: Sequence[Mapping[str, Any]]) -> Iterator[_Found]:
    """Yield a provider of whose several targets each one that is asked fails: its outage, not one of each target."""
    bad = {each.about for each in found if each.incident.severity == "bad" and each.incident.kind in {"down", "errors"}}
    by_provider: dict[str, list[Mapping[str, Any]]] = {}
    for target in targets:
        if not target["pool"] and (target["recent"]["attempts"] or f"target/{target['target_id']}" in bad):
            by_provider.setdefault(target["provider"], []).append(target)
    for provider, asked in by_provider.items():
        hit = [each for each in asked if f"target/{each['target_id']}" in bad]
        if len(hit) < _FEWEST_OF_PROVIDER or len(hit) < len(asked):
            continue
        yield _Found(
            incident=Incident(
                severity="bad",
                kind="down",
                subject=provider,
                text=f"all of its {len(hit)} models that are asked fail",
                advice="Look at the provider's status page, and at its key in the configuration; requests go to models of "
                "others where a team may use them.",
                href=f"{_PAGES}/targets",
                requests=sum(each["recent"]["failed"] + each["recent"]["turned_away"] for each in hit) or None,
            ),
            about=f"provider/{provider}",
        )


def _of_pools(fleet: Mapping[str, Any]) -> Iterator[_Found]:
    if not fleet["registry"]["reachable"]:
        away = Incident(
            severity="warn",
            kind="unreachable",
            subject="registry",
            text=str(fleet["registry"]["problem"]),
            advice="Pools go on with the replicas that were known last; mend what the registry stands on.",
            href=f"{_PAGES}/pools",
        )
        yield _Found(incident=away, about="registry", causes=(_DATABASE,))
    for pool in fleet["data"]:
        for each in _pool_problems(pool):
            yield _Found(incident=each, about=f"pool/{pool['name']}")


def _pool_problems(pool: Mapping[str, Any]) -> Iterator[Incident]:
    base = Incident(
        severity="bad" if pool["state"] in {"down", "empty"} else "warn",
        kind="down",
        subject=pool["name"],
        text="",
        advice="The pool's page has each replica's state and last probe; start replicas, or mend what they stand on.",
        href=f"{_PAGES}/pools/{pool['name']}",
    )
    replace = msgspec.structs.replace
    for each in pool["problems"]:
        yield replace(base, text=each["text"])
    more = "Start more replicas, or let more of its work overflow to a paid provider."
    if pool["kv_usage"] is not None and pool["kv_usage"] >= KV_FULL:
        text = f"its caches are {pool['kv_usage']:.0%} full; requests wait or lose their place"
        yield replace(base, severity="warn", kind="saturated", text=text, advice=more)
    ready, desired = pool["counts"]["ready"], pool["desired"]
    if desired is not None and ready < desired and pool["state"] not in {"down", "empty"}:
        text = f"{ready} of {desired} desired replicas are ready"
        yield replace(base, severity="warn", kind="saturated", text=text)


def _of_queues(queues: Sequence[Mapping[str, Any]]) -> Iterator[_Found]:
    for queue in queues:
        used = queue["in_flight_tokens"] / queue["capacity_tokens"] if queue["capacity_tokens"] else 0.0
        if queue["waiting"] and used >= FULL:
            waits = Incident(
                severity="warn",
                kind="saturated",
                subject=queue["name"],
                text=f"{queue['waiting']} requests wait, about {queue['predicted_wait_s']:.1f} s for who comes now",
                advice="Start more replicas behind it, or let more of its work overflow to a paid provider.",
                href=f"{_PAGES}/queues",
                requests=queue["waiting"],
            )
            causes = tuple(f"target/{name}" for name in queue.get("targets", ()))
            yield _Found(incident=waits, about=f"queue/{queue['name']}", causes=causes)


def _of_stores(stores: Mapping[str, Any]) -> Iterator[_Found]:
    def found(
        severity: Severity, kind: Kind, subject: str, text: str, advice: str, causes: tuple[str, ...] = ()
    ) -> _Found:
        incident = Incident(
            severity=severity, kind=kind, subject=subject, text=text, advice=advice, href=f"{_PAGES}#stores"
        )
        return _Found(incident=incident, about=subject, causes=causes)

    database, redis, journal = stores["database"], stores["redis"], stores["journal"]
    mend = "Look at the database's own log and at the network to it; nothing is lost while the journal has room."
    if not database["answers"]:
        text = "it does not answer; known keys are served and the journal keeps the books until it does"
        yield found("bad", "unreachable", _DATABASE, text, mend)
    elif database["took_s"] > DATABASE_SLOW_S:
        yield found("warn", "slow", _DATABASE, f"the smallest question took {database['took_s']:.2f} s", mend)
    if redis["configured"] and not redis["answers"]:
        text = f"not used ({redis['problem']}); each process goes on with its share"
        yield found("warn", "unreachable", "redis", text, "Look at the Redis server and at the network to it.")
    if not journal["accepting"]:
        text = "it takes no more entries, so no request can be served"
        yield found(
            "bad", "saturated", "journal", text, "Make room on its disk, or let the database answer.", (_DATABASE,)
        )
    elif journal["oldest_s"] > JOURNAL_OLD_S:
        text = f"{journal['waiting']} entries wait for the database, the oldest for {journal['oldest_s']:.0f} s"
        yield found("warn", "saturated", "journal", text, mend, (_DATABASE,))
    unbooked = journal["unbooked"] + journal["settle_failures"]
    if unbooked:
        text = f"{unbooked} entries could not be booked; unbooked.log beside the journal has them"
        advice = "Read in unbooked.log why the database refused each; the gateway goes on."
        yield found("bad", "books", "ledger", text, advice)
    if stores["keys"]["unverified"] is not None:
        text, _, advice = stores["keys"]["unverified"].partition(". ")
        yield found("bad", "configuration", "keys", text, f"{advice}.")
    check = stores["books_check"]
    if check["differences"]:
        text = f"{check['differences']} figures of the roll-ups differ from the ledger"
        advice = "`weighbridge ledger verify` lists them, and `weighbridge ledger rebuild` makes the roll-ups anew."
        yield found("bad", "books", "ledger", text, advice)


def _of_process(process: Mapping[str, Any]) -> Iterator[_Found]:
    base = Incident(
        severity="bad",
        kind="saturated",
        subject="this host",
        text="",
        advice="Add workers or a host, or lower the limits of the team that has most (see Refused).",
        href=_PAGES,
    )
    replace = msgspec.structs.replace
    shown: list[Incident] = []
    if process["draining"]:
        advice = "Nothing, if somebody stops it on purpose; what it has is finished first."
        shown.append(replace(base, severity="warn", kind="down", text="it is stopping", advice=advice))
    if process["is_refusing"]:
        text = "it has more work than it can do and refuses some at the door, so that the others stay quick"
        shown.append(replace(base, text=text))
    elif process["in_flight"] >= FULL * process["max_in_flight"]:
        text = f"{process['in_flight']} of {process['max_in_flight']} requests are in flight"
        shown.append(replace(base, text=text))
    for each in shown:
        yield _Found(incident=each, about="process")


def _of_refusals(refusals: Mapping[str, Any]) -> Iterator[_Found]:
    """Return the teams that are refused often, each once: how often, for what mostly, and which key has most of it."""
    teams: dict[str, list[Mapping[str, Any]]] = {}
    for each in refusals["data"] or ():
        teams.setdefault(each["team_id"] or "", []).append(each)
    for team, found in sorted(teams.items(), key=lambda item: -sum(each["refusals"] for each in item[1])):
        total = sum(each["refusals"] for each in found)
        if total < FLOODING:
            continue
        first = max(found, key=lambda each: each["refusals"])
        key = f", {first['refusals']:,} of them to the key {first['key_id']}" if first["key_id"] else ""
        flood = Incident(
            severity="warn",
            kind="flooding",
            subject=team or "unknown callers",
            text=f"{total:,} requests were refused in ten minutes, mostly with {first['status']} {first['reason']}{key}",
            advice="Ask the key's owner to slow down as `retry-after` says, or raise the limit that the reason names.",
            href=f"{_PAGES}#refused",
            requests=total,
            teams=1 if team else None,
        )
        yield _Found(incident=flood, about=f"team/{team}")


def _of_spend(spend: Mapping[str, Any]) -> Iterator[_Found]:
    times = spend["times_usual"]
    if times is not None and times >= SPENDING and spend["spent_nanousd"] >= SPENDING_NANOUSD:
        dear = Incident(
            severity="warn",
            kind="spend",
            subject="spend",
            text=f"this hour costs {times:.{0 if times >= _ROUGH else 1}f} times what it usually does by now",
            advice="The teams' pages say whose it is; a budget or an alert of theirs holds it.",
            href=_PAGES,
        )
        yield _Found(incident=dear, about="spend")


def _of_classifier(classifier: Mapping[str, Any]) -> Iterator[_Found]:
    base = Incident(
        severity="warn",
        kind="configuration",
        subject="classifier",
        text=f"prompts are classified by the plain rule: {classifier['fallback_reason']}",
        advice="Mend what the reason names, in the section `classifier` of the configuration; or leave it off on purpose.",
        href=f"{_PAGES}/classifier",
    )
    if classifier["fallback_reason"] is not None:
        yield _Found(incident=base, about="classifier")
    if classifier["drift"] == "drifted":
        drifted = msgspec.structs.replace(
            base,
            kind="drift",
            text="the prompts of the last day differ much from those of the weeks before",
            advice="Look at the drift's chart, and recalibrate with verdicts on newer answers.",
        )
        yield _Found(incident=drifted, about="classifier")
