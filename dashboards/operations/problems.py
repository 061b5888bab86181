"""Problems that need an operator, from an operations snapshot, most severe first. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from cost.times import iso
from dashboards.live.recent import ENOUGH

Severity = Literal["bad", "warn"]
Kind = Literal["open", "slow", "full", "burning", "flooding", "away", "books", "configured"]

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


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to look into. `subject` names it, `text` says what is wrong and what follows from that."""

    severity: Severity
    kind: Kind
    subject: str
    text: str
    href: str


def problems(told: Mapping[str, Any]) -> list[Problem]:
    """All problems; `told` is the snapshot of `dashboards.operations.snapshot`."""
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
    return sorted(found, key=lambda each: each.severity != "bad")


def _of_targets(targets: Sequence[Mapping[str, Any]], patience_s: float) -> Iterator[Problem]:
    for target in targets:
        name, href = target["target_id"], f"{_PAGES}/targets/{target['target_id']}"
        # A pool without replicas is told as a pool.
        if target["state"] == "down":
            who = f"replica of the pool {target['pool']}" if target["pool"] else "deployment"
            why = f" ({target['why']})" if target["why"] else ""
            text = f"no {who} can be called{why}; its requests go to the next target"
            yield Problem(severity="bad", kind="open", subject=name, text=text, href=href)
        elif target["state"] == "failing":
            yield Problem(severity="bad", kind="burning", subject=name, text=_run_text(target), href=href)
        elif target["state"] == "degraded":
            ejected = sum(each["breaker"]["state"] != "closed" for each in target["deployments"])
            there = len(target["deployments"])
            text = (
                f"{ejected} of {there} deployments {'is' if ejected == 1 else 'are'} left alone by the breaker"
                if ejected
                else (f"{target['available']} of {there} replicas take work")
            )
            yield Problem(severity="warn", kind="open", subject=name, text=text, href=href)
        yield from _of_recent(name, href, target["recent"], patience_s, is_told=target["state"] in {"down", "failing"})
        if not target["is_priced"]:
            text = "it has no price now, so its cost is unknown and `auto` does not choose it"
            yield Problem(severity="warn", kind="configured", subject=name, text=text, href=href)


def _run_text(target: Mapping[str, Any]) -> str:
    """What fails, since when, how many teams it hit, and what to do."""
    run = target["run"]
    minute = f"{run['minute_failures']} of {run['minute_attempts']} attempts of the last minute failed"
    if not run["failures"]:
        return f"{minute}; look at its last errors"
    teams = f"{run['teams']} {'team' if run['teams'] == 1 else 'teams'}"
    since = iso(run["since_us"])
    return f"its last {run['failures']} attempts failed, since {since}, of {teams}; {minute}; look at its last errors"


def _of_recent(
    name: str, href: str, recent: Mapping[str, Any], patience_s: float, *, is_told: bool
) -> Iterator[Problem]:
    if recent["attempts"] < ENOUGH:
        return
    share, p50, p95, usual = (recent[key] for key in ("failed_share", "ttft_p50_s", "ttft_p95_s", "usual_ttft_p50_s"))
    # Of a target that is down or failing one line is enough.
    if share >= FAILING and not is_told:
        text = f"{share:.0%} of its last {recent['attempts']} attempts failed"
        yield Problem(
            severity="bad" if share >= _GRAVE * FAILING else "warn", kind="burning", subject=name, text=text, href=href
        )
    if recent["turned_away"] >= FAILING * recent["attempts"]:
        text = f"{recent['turned_away']} of its last {recent['attempts']} attempts found no room there"
        yield Problem(severity="warn", kind="full", subject=name, text=text, href=href)
    if p95 is not None and p95 >= PATIENCE_SHARE * patience_s:
        text = (
            f"one request in twenty waits {p95:.1f} s or longer for its first token, of {patience_s:.0f} s that it may"
        )
        yield Problem(severity="warn", kind="slow", subject=name, text=text, href=href)
    elif p50 is not None and usual and p50 >= SLOWER * usual:
        text = f"its median first token takes {p50:.2f} s; at this time yesterday it took {usual:.2f} s"
        yield Problem(severity="warn", kind="slow", subject=name, text=text, href=href)


def _of_pools(fleet: Mapping[str, Any]) -> Iterator[Problem]:
    if not fleet["registry"]["reachable"]:
        yield Problem(
            severity="warn",
            kind="away",
            subject="registry",
            text=str(fleet["registry"]["problem"]),
            href=f"{_PAGES}/pools",
        )
    for pool in fleet["data"]:
        href = f"{_PAGES}/pools/{pool['name']}"
        for each in pool["problems"]:
            severity: Severity = "bad" if pool["state"] in {"down", "empty"} else "warn"
            yield Problem(severity=severity, kind="open", subject=pool["name"], text=each["text"], href=href)
        if pool["kv_usage"] is not None and pool["kv_usage"] >= KV_FULL:
            text = f"its caches are {pool['kv_usage']:.0%} full; requests wait or lose their place"
            yield Problem(severity="warn", kind="full", subject=pool["name"], text=text, href=href)
        ready, desired = pool["counts"]["ready"], pool["desired"]
        if desired is not None and ready < desired and pool["state"] not in {"down", "empty"}:
            text = f"{ready} of {desired} desired replicas are ready"
            yield Problem(severity="warn", kind="full", subject=pool["name"], text=text, href=href)


def _of_queues(queues: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    for queue in queues:
        used = queue["in_flight_tokens"] / queue["capacity_tokens"] if queue["capacity_tokens"] else 0.0
        if queue["waiting"] and used >= FULL:
            text = f"{queue['waiting']} requests wait, about {queue['predicted_wait_s']:.1f} s for who comes now"
            yield Problem(severity="warn", kind="full", subject=queue["name"], text=text, href=f"{_PAGES}/queues")


def _of_stores(stores: Mapping[str, Any]) -> Iterator[Problem]:
    def store(severity: Severity, kind: Kind, subject: str, text: str) -> Problem:
        return Problem(severity=severity, kind=kind, subject=subject, text=text, href=f"{_PAGES}#stores")

    database, redis, journal = stores["database"], stores["redis"], stores["journal"]
    if not database["answers"]:
        text = "it does not answer; known keys are served and the journal keeps the books until it does"
        yield store("bad", "away", "database", text)
    elif database["took_s"] > DATABASE_SLOW_S:
        yield store("warn", "slow", "database", f"the smallest question took {database['took_s']:.2f} s")
    if redis["configured"] and not redis["answers"]:
        yield store("warn", "away", "redis", f"not used ({redis['problem']}); each process goes on with its share")
    if not journal["accepting"]:
        yield store("bad", "full", "journal", "it takes no more entries, so no request can be served")
    elif journal["oldest_s"] > JOURNAL_OLD_S:
        text = f"{journal['waiting']} entries wait for the database, the oldest for {journal['oldest_s']:.0f} s"
        yield store("warn", "full", "journal", text)
    if journal["unbooked"] or journal["settle_failures"]:
        text = f"{journal['unbooked'] + journal['settle_failures']} entries could not be booked; unbooked.log beside the journal has them"
        yield store("bad", "books", "ledger", text)
    check = stores["books_check"]
    if check["differences"]:
        text = f"{check['differences']} figures of the roll-ups differ from the ledger; `weighbridge ledger verify` lists them"
        yield store("bad", "books", "ledger", text)


def _of_process(process: Mapping[str, Any]) -> Iterator[Problem]:
    if process["draining"]:
        yield Problem(severity="warn", kind="open", subject="this process", text="it is stopping", href=_PAGES)
    if process["is_refusing"]:
        text = "it has more work than it can do and refuses some at the door, so that the others stay quick"
        yield Problem(severity="bad", kind="burning", subject="this process", text=text, href=_PAGES)
    elif process["in_flight"] >= FULL * process["max_in_flight"]:
        text = f"{process['in_flight']} of {process['max_in_flight']} requests are in flight"
        yield Problem(severity="bad", kind="full", subject="this process", text=text, href=_PAGES)


def _of_refusals(refusals: Mapping[str, Any]) -> Iterator[Problem]:
    """Teams that are refused often, each once: how often, for what mostly, and which key has most of it."""
    teams: dict[str, list[Mapping[str, Any]]] = {}
    for each in refusals["data"] or ():
        teams.setdefault(each["team_id"] or "", []).append(each)
    for team, found in sorted(teams.items(), key=lambda item: -sum(each["refusals"] for each in item[1])):
        total = sum(each["refusals"] for each in found)
        if total < FLOODING:
            continue
        first = max(found, key=lambda each: each["refusals"])
        key = f", {first['refusals']:,} of them to the key {first['key_id']}" if first["key_id"] else ""
        text = f"{total:,} requests were refused in ten minutes, mostly with {first['status']} {first['reason']}{key}"
        href = f"{_PAGES}#refused"
        yield Problem(severity="warn", kind="flooding", subject=team or "unknown callers", text=text, href=href)


def _of_spend(spend: Mapping[str, Any]) -> Iterator[Problem]:
    times = spend["times_usual"]
    if times is not None and times >= SPENDING and spend["spent_nanousd"] >= SPENDING_NANOUSD:
        text = f"this hour costs {times:.{0 if times >= _ROUGH else 1}f} times what it usually does by now"
        yield Problem(severity="warn", kind="burning", subject="spend", text=text, href=_PAGES)


def _of_classifier(classifier: Mapping[str, Any]) -> Iterator[Problem]:
    reason = classifier["fallback_reason"]
    if reason is not None:
        text = f"prompts are weighed by the plain rule: {reason}"
        yield Problem(severity="warn", kind="configured", subject="classifier", text=text, href=f"{_PAGES}/classifier")
    if classifier["drift"] == "drifted":
        text = "the prompts of the last day differ much from those of the weeks before"
        yield Problem(severity="warn", kind="slow", subject="classifier", text=text, href=f"{_PAGES}/classifier")
