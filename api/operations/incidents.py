"""Incidents that need an operator, from an operations snapshot, gravest first: one outage is one of them.

Each says its cause first, where, since when, whom it hurt, and what to do. What follows from something else that is wrong (a
target without replicas, a queue before it, a journal behind a database that is away) is told with its cause.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from api.incidents.kept import KeptIncident, Share, more
from api.operations.state import FULL, Kind, Problem, Severity, queue_problems
from cost.times import HOUR_US, MINUTE_US, iso
from proxy.errors import Overloaded, code_of
from proxy.settle.hurt.store import HurtSum

SPENDING: Final = 2.0
"""Multiple of the hour's usual cost that is a problem,"""
SPENDING_NANOUSD: Final = 10_000_000_000
"""if the hour's cost is at least this, in nano-dollars."""
_ROUGH: Final = 10
FLOODING: Final = 100
"""Refusals of a team in ten minutes that make it a problem."""
_GRAVE_SHARE: Final = 0.25
"""Share of a batch's answers that failed from which it is severe."""
JOURNAL_OLD_S: Final = 10.0
DATABASE_SLOW_S: Final = 0.25
_PAGES: Final = "/dashboard/operations"
_DATABASE: Final = "database"
_FEWEST_OF_PROVIDER: Final = 2
_NOBODY_KNOWN: Final = ""


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to look into."""

    severity: Severity
    kind: Kind
    subject: str
    """The place: a target, pool, provider, queue, team, or a part of the gateway."""
    text: str
    """The cause, and its consequences."""
    advice: str
    """The remedy."""
    href: str
    since_us: int | None = None
    """Time of its beginning, or of its first observation, in microseconds since 1970."""
    hurt: tuple[Share, ...] = ()
    """Everybody whom it hurt, by team and model, those with most first."""
    keys: int | None = None
    """The API keys of these requests, where they are known."""
    also: tuple[str, ...] = ()
    """Consequences, and other faults of the same place: a line each, beginning with the place."""
    place: str = ""
    """The root's place, such as `target/small`."""
    places: tuple[str, ...] = ()
    """All places at fault, of which one is enough to recognise the incident in the next reading."""
    targets: tuple[str, ...] = ()
    """The targets whose faults hurt requests."""

    @property
    def is_counted(self) -> bool:
        """True where whom it hurts is known."""
        return bool(self.hurt or self.targets)

    @property
    def requests(self) -> int | None:
        """The requests that it hurt; None where nobody counts."""
        return sum(each.requests for each in self.hurt) if self.is_counted else None

    @property
    def refused(self) -> int | None:
        """Those whose callers were told an error; None where nobody counts."""
        return sum(each.refused for each in self.hurt) if self.is_counted else None

    @property
    def teams(self) -> int | None:
        """The teams whose requests these were; None where nobody counts."""
        return len({each.team_id for each in self.hurt if each.team_id}) if self.is_counted else None


def told_incident(incident: Incident, kept: KeptIncident | None = None) -> dict[str, Any]:
    """Return an incident that is there now as plain values. `kept` is what the history has of it: no number becomes less."""
    since_us = incident.since_us
    numbers = {name: getattr(incident, name) for name in _NUMBERS}
    if kept is not None:
        numbers = {name: more(number, getattr(kept, name)) for name, number in numbers.items()}
    told = {name: getattr(incident, name) for name in _WORDS}
    return {
        "incident_id": None if kept is None else kept.incident_id,
        "state": "open",
        **told,
        **numbers,
        "since_us": since_us,
        "since": None if since_us is None else iso(since_us),
        "seen_us": None,
        "closed_us": None,
    }


def told_kept(kept: KeptIncident, *, is_over: bool = False) -> dict[str, Any]:
    """Return an incident of the history as plain values. `is_over`: an open one that closes if nothing is wrong for two minutes."""
    return {
        "incident_id": kept.incident_id,
        "state": "closed" if not kept.is_open else "recovering" if is_over else "open",
        **{name: getattr(kept, name) for name in _WORDS},
        **{name: getattr(kept, name) for name in _NUMBERS},
        "since_us": kept.opened_us,
        "since": iso(kept.opened_us),
        "seen_us": kept.seen_us,
        "closed_us": kept.closed_us or None,
    }


_WORDS: Final = ("severity", "kind", "subject", "text", "advice", "href", "also", "targets")
_NUMBERS: Final = ("requests", "refused", "teams", "keys")


def counted(incident: Incident, rows: Iterable[HurtSum], since_us: int) -> Incident:
    """Return the incident with all whom its targets hurt since the minute of its beginning. Each request is in one row, whatever
    number of targets it tried.
    """
    if not incident.targets:
        return incident
    is_named = set(incident.targets).__contains__
    beginnings = tuple(each[:-1] for each in incident.targets if each.endswith("*"))
    hurt: dict[tuple[str, str, str], list[int]] = {}
    keys: set[str] = set()
    for row in rows:
        at_fault = any(is_named(each) or each.startswith(beginnings) for each in row.targets)
        if row.start_us + _minute_of(row) <= since_us or not at_fault:
            continue
        found = hurt.setdefault((row.organisation_id, row.team_id, row.model), [0, 0])
        found[0] += row.requests
        found[1] += row.requests if row.fate == "refused" else 0
        keys.add(row.key_id)
    for share in incident.hurt:
        # What was counted otherwise may be the same requests.
        found = hurt.setdefault((share.organisation_id, share.team_id, share.model), [0, 0])
        found[0], found[1] = max(found[0], share.requests), max(found[1], share.refused)
    return msgspec.structs.replace(incident, hurt=_shares(hurt), keys=len(keys - {_NOBODY_KNOWN}) or None)


class _Found(msgspec.Struct, frozen=True, kw_only=True):
    """A problem before grouping: what it is about, and what may be its cause if that has a problem too."""

    incident: Incident
    about: str
    causes: tuple[str, ...] = ()


def incidents(told: Mapping[str, Any]) -> list[Incident]:
    """Return all incidents; `told` is the snapshot of `api.operations.snapshot`, its targets and pools judged. Pure."""
    found = [
        *_of_stores(told["stores"]),
        *_of_targets(told["targets"]),
        *_of_pools(told["pools"]),
        *_of_queues(told["queues"]),
        *_of_process(told["process"], told["refusals"]["data"] or ()),
        *_of_refusals(told["refusals"]),
        *_of_batches(told["batches"]),
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
        merged = _merged(first.incident, [each.incident for each in members if each is not first])
        yield msgspec.structs.replace(
            merged, place=about, places=tuple(dict.fromkeys((about, *(each.about for each in members))))
        )


def _merged(first: Incident, others: Sequence[Incident]) -> Incident:
    """Return the first with what the others add. Whom they hurt together is counted by their targets, not summed."""
    every = (first, *others)
    began = [each.since_us for each in every if each.since_us is not None]
    hurt: dict[tuple[str, str, str], list[int]] = {}
    for each in every:
        for share in each.hurt:
            found = hurt.setdefault((share.organisation_id, share.team_id, share.model), [0, 0])
            found[0], found[1] = max(found[0], share.requests), max(found[1], share.refused)
    return msgspec.structs.replace(
        first,
        severity="bad" if any(each.severity == "bad" for each in every) else "warn",
        since_us=min(began, default=None),
        hurt=_shares(hurt),
        targets=tuple(sorted({name for each in every for name in each.targets})),
        also=tuple(dict.fromkeys(f"{each.subject}: {each.text}" for each in others)),
    )


def _shares(hurt: Mapping[tuple[str, str, str], Sequence[int]]) -> tuple[Share, ...]:
    """Return the shares of these requests and refusals."""
    found = [
        Share(organisation_id=organisation_id, team_id=team_id, model=model, requests=requests, refused=refused)
        for (organisation_id, team_id, model), (requests, refused) in hurt.items()
    ]
    return tuple(sorted(found, key=lambda each: (-each.requests, each.organisation_id, each.team_id, each.model)))


def _minute_of(row: HurtSum) -> int:
    """Return the length of the row's time in microseconds, at most: an hour is told from its beginning."""
    return MINUTE_US if row.is_minute else HOUR_US


def _as_incident(problem: Problem, subject: str, href: str, targets: tuple[str, ...] = ()) -> Incident:
    return Incident(
        severity=problem.severity,
        kind=problem.kind,
        subject=subject,
        text=problem.text,
        advice=problem.advice,
        href=href,
        since_us=problem.since_us,
        targets=targets,
    )


def _own(place: Mapping[str, Any]) -> Iterator[Problem]:
    return (each for each in place["problems_found"] if not each.of)


def _of_targets(targets: Sequence[Mapping[str, Any]]) -> Iterator[_Found]:
    for target in targets:
        name = target["target_id"]
        causes = (f"pool/{target['pool']}",) if target["pool"] else (f"provider/{target['provider']}",)
        for each in _own(target):
            incident = _as_incident(each, name, f"{_PAGES}/targets/{name}", (name,))
            if each.kind == "slow":
                incident = msgspec.structs.replace(incident, hurt=_late(target))
            yield _Found(incident=incident, about=f"target/{name}", causes=causes)


def _late(target: Mapping[str, Any]) -> tuple[Share, ...]:
    return _shares(
        {(organisation_id, team_id, model): (count, 0) for organisation_id, team_id, model, count in target["late"]}
    )


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
        causes = list(dict.fromkeys(each["why"] for each in hit if each["why"]))
        fail = f"all of its {len(hit)} models that are asked fail"
        yield _Found(
            incident=Incident(
                severity="bad",
                kind="down",
                subject=provider,
                text=f"{causes[0]}: {fail}" if causes else fail,
                advice="Look at the provider's status page, and at its key in the configuration; requests go to models of "
                "others where a team may use them.",
                href=f"{_PAGES}/targets",
                targets=tuple(each["target_id"] for each in hit),
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
        for each in _own(pool):
            incident = _as_incident(each, pool["name"], f"{_PAGES}/pools/{pool['name']}", tuple(pool["targets"]))
            yield _Found(incident=incident, about=f"pool/{pool['name']}")


def _of_queues(queues: Sequence[Mapping[str, Any]]) -> Iterator[_Found]:
    for queue in queues:
        targets = tuple(queue.get("targets", ()))
        causes = tuple(f"target/{name}" for name in targets)
        for each in queue_problems(queue):
            incident = _as_incident(each, queue["name"], f"{_PAGES}/queues", targets)
            yield _Found(incident=incident, about=f"queue/{queue['name']}", causes=causes)


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
        yield found("warn", "slow", _DATABASE, f"the smallest query took {database['took_s']:.2f} s", mend)
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


def _of_process(process: Mapping[str, Any], refusals: Sequence[Mapping[str, Any]]) -> Iterator[_Found]:
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
        shed = [each for each in refusals if each["reason"] == code_of(Overloaded)]
        shown.append(replace(base, text=text, hurt=_refused(shed)))
    elif process["in_flight"] >= FULL * process["max_in_flight"]:
        text = f"{process['in_flight']} of {process['max_in_flight']} requests are in flight"
        shown.append(replace(base, text=text))
    for each in shown:
        yield _Found(incident=each, about="process")


_PACE: Final = "Ask the key's owner to slow down as `retry-after` says, or raise the limit that the reason names."
_ADVICE: Final[Mapping[int, str]] = {
    429: _PACE,
    503: _PACE,
    402: "Raise the budget, or tell the key's owner when it renews.",
}
"""What to do about a flood, by the status of most of its refusals."""
_ADVICE_OTHERWISE: Final = "The requests themselves are wrong: the error that their sender gets names what to change."


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
            advice=_ADVICE.get(first["status"], _ADVICE_OTHERWISE),
            href=f"{_PAGES}#refused",
            hurt=_refused(found),
        )
        yield _Found(incident=flood, about=f"team/{team}")


def _refused(refusals: Iterable[Mapping[str, Any]]) -> tuple[Share, ...]:
    hurt: dict[tuple[str, str, str], list[int]] = {}
    for each in refusals:
        found = hurt.setdefault(
            (each.get("organisation_id") or "", each["team_id"] or "", each.get("model") or ""), [0, 0]
        )
        found[0] += each["refusals"]
        found[1] += each["refusals"]
    return _shares(hurt)


def _of_batches(batches: Sequence[Mapping[str, Any]]) -> Iterator[_Found]:
    """Yield each batch that missed its guarantee or will miss it, or whose lines fail; its model's outage is the cause of both."""
    for each in batches:
        lines, missed = _lines(each["total"]), each["expired"]
        guarantee = f"its guarantee of {each['window']}"
        if missed:
            text = f"it missed {guarantee}: {missed:,} of its {lines} expired without an answer"
            advice = "Its caller sends them again, from the error file; more replicas, or a paid model beside them, hold the guarantee."
        elif each["late"]:
            text = (
                f"it will miss {guarantee}: at the speed of the last batches {each['late']:,} of its {lines} are not answered in "
                f"time, the last one {each['late_s'] / 3_600:.1f} h late"
            )
            advice = "Start more replicas for its model, allow its team a paid one, or take back batches that are due earlier."
        else:
            text = f"{each['failed']:,} of the {each['done']:,} lines that it has answers to failed, and not for what they ask"
            advice = "Its page has the failed lines with their errors; they fail like requests to the same model."
        if each["failed"] and (missed or each["late"]):
            text += f"; {each['failed']:,} lines failed"
        hit = missed + each["late"] + each["failed"]
        share = (each["organisation_id"], each["team_id"], each["model"])
        grave = missed or each["failed"] >= _GRAVE_SHARE * each["done"] > 0
        yield _Found(
            incident=Incident(
                severity="bad" if grave else "warn",
                kind="late" if missed or each["late"] else "errors",
                subject=f"batch {each['batch_id']}",
                text=text,
                advice=advice,
                href=f"/dashboard/teams/{each['team_id']}/batches/{each['batch_id']}",
                since_us=each["since_us"],
                hurt=_shares({share: (hit, missed + each["failed"])}),
            ),
            about=f"batch/{each['batch_id']}",
            causes=(f"target/{each['model']}",),
        )


def _lines(total: int) -> str:
    """Return `1 line`, `2,000 lines`."""
    return f"{total:,} line{'' if total == 1 else 's'}"


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
