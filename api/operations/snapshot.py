"""The operations snapshot of one host, for the operators' pages, GET /v1/operations and `weighbridge top`."""

import asyncio
import time
from collections.abc import Hashable
from importlib import metadata
from typing import Any, Final, NamedTuple

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from api.incidents.kept import matching
from api.limits.routes import queue_as_json as told_queue
from api.live.recent import MOST, WINDOW_US, Recent, Spend, summed
from api.live.workers import WorkersNow
from api.operations import stores
from api.operations.batches import ill_batches
from api.operations.incidents import Incident, counted, incidents, told_incident, told_kept
from api.operations.refusals import refusals_snapshot
from api.operations.state import judge, lasting
from api.operations.targets import figures_snapshot, target_snapshots
from api.web.gateway import Gateway, Settings
from classifier.onnx_classifier import OnnxClassifier
from cost.times import iso, wall_us
from providers.target import Tier
from selfhosted.health.fleet_view import fleet_as_json as told_fleet

PATIENCE_S: Final = 2.0
TIERS: Final[tuple[Tier, ...]] = ("interactive", "batch")
NO_FLEET: Final[dict[str, Any]] = {"object": "list", "data": [], "registry": {"reachable": True, "problem": None}}
_DATABASE_FAILS: Final = (SQLAlchemyError, OSError, TimeoutError)


class Standing(NamedTuple):
    """Targets, pools and queues with their states, and the figures that these follow from."""

    recent: Recent
    workers: WorkersNow
    targets: list[dict[str, Any]]
    pools: dict[str, Any]
    queues: list[dict[str, Any]]


async def standing(gateway: Gateway, now_us: int) -> Standing:
    """Return how everything stands that serves requests, each with its state and since when."""
    recent, workers = await read_recent(gateway, now_us), await gateway.views.workers.now()
    views, rules = gateway.views.operations, gateway.rules()
    targets = target_snapshots(rules.catalog, workers, gateway.ready, recent, now_us, gateway.refused_parameters())
    pools, lines = fleet(gateway), queues(workers)
    await views.history.read(now_us)
    kept = views.history.open
    patience_s = rules.timeouts.first_token_s("interactive")
    judge(targets, pools["data"], lines, patience_s, lasting(kept, gateway.boot_id, now_us))
    places = {
        **{f"target/{each['target_id']}": each for each in targets},
        **{f"pool/{each['name']}": each for each in pools["data"]},
    }
    unwell: dict[Hashable, int | None] = {
        name: each["since_us"] for name, each in places.items() if each["problems_found"]
    }
    seen = views.unwell.dated(unwell, now_us)
    for name, each in places.items():
        opened = [one.opened_us for one in matching((name,), kept)]
        each["since_us"] = min(seen[name], *opened) if name in seen and opened else seen.get(name)
    return Standing(recent, workers, targets, pools, lines)


async def fleet_now(gateway: Gateway) -> dict[str, Any]:
    """Return all pools with their replicas and their states, as plain values."""
    pools = (await standing(gateway, wall_us())).pools
    for each in pools["data"]:
        plain_problems(each)
    return pools


def plain_problems(place: dict[str, Any]) -> None:
    """Make the problems that were found of a target or pool plain values."""
    place["problems_found"] = [msgspec.to_builtins(each) for each in place["problems_found"]]


async def operations_snapshot(gateway: Gateway) -> dict[str, Any]:
    """Return the snapshot as plain values, incidents included. It works without the database; values from there are then None."""
    told, _ = await look(gateway, wall_us())
    return told


async def look(gateway: Gateway, now_us: int) -> tuple[dict[str, Any], list[Incident]]:
    """Return the snapshot, and the incidents that it has: what is wrong now, dated and with all whom it hurt."""
    now, spend = await standing(gateway, now_us), await _read_spend(gateway)
    recent, workers = now.recent, now.workers
    told: dict[str, Any] = {
        "object": "operations",
        "at": iso(now_us),
        "at_us": now_us,
        "incidents": [],
        "process": process_snapshot(gateway, workers),
        "patience_s": gateway.rules().timeouts.first_token_s("interactive"),
        "recent": recent_snapshot(recent),
        "refusals": await refusals_snapshot(gateway, now_us),
        "targets": now.targets,
        "pools": now.pools,
        "queues": now.queues,
        "tiers": tier_snapshots(gateway.config(), recent),
        "stores": await stores_snapshot(gateway, workers, now_us),
        "batches": await ill_batches(gateway.jobs.batch),
        "spend": spend_snapshot(spend),
        "classifier": await classifier_snapshot(gateway, workers),
    }
    found = await _dated_and_counted(gateway, incidents(told), now_us)
    told["incidents"] = _told_incidents(gateway, found, now_us)
    for each in (*told["targets"], *told["pools"]["data"]):
        plain_problems(each)
    return told, found


async def _dated_and_counted(gateway: Gateway, found: list[Incident], now_us: int) -> list[Incident]:
    """Return the incidents with their beginnings, by the history where it has them, and everybody whom they hurt since."""
    views = gateway.views.operations
    seen = views.first_seen.dated({each.place: each.since_us for each in found}, now_us)
    dated: list[Incident] = []
    for each in found:
        opened = [one.opened_us for one in matching(each.places, views.history.current)]
        dated.append(msgspec.structs.replace(each, since_us=min(seen[each.place], *opened, now_us)))
    began = [each.since_us or now_us for each in dated if each.targets]
    if not began:
        return dated
    try:
        async with asyncio.timeout(PATIENCE_S), gateway.finance.reads:
            rows = await gateway.views.refusals.hurt.read(min(began))
    except _DATABASE_FAILS:
        return dated
    return [counted(each, rows, each.since_us or now_us) for each in dated]


def _told_incidents(gateway: Gateway, found: list[Incident], now_us: int) -> list[dict[str, Any]]:
    """Return all that are open as plain values: those that are there now, then those that are over if it stays so."""
    current = gateway.views.operations.history.current
    told, matched = [], set[str]()
    for each in found:
        kept = matching(each.places, current)
        matched |= {one.incident_id for one in kept}
        told.append(told_incident(each, kept[0] if kept else None))
    told += [
        told_kept(one, is_over=not one.is_there(gateway.boot_id, now_us))
        for one in gateway.views.operations.history.open
        if one.incident_id not in matched
    ]
    return sorted(told, key=lambda each: (each["state"] != "open", each["severity"] != "bad"))


async def read_recent(gateway: Gateway, now_us: int) -> Recent:
    """Return figures of the last minutes; empty ones while the ledger cannot be read."""
    try:
        async with asyncio.timeout(PATIENCE_S), gateway.finance.reads:
            return await gateway.views.operations.recent.recent()
    except _DATABASE_FAILS:
        return summed((), now_us)


async def _read_spend(gateway: Gateway) -> Spend | None:
    try:
        async with asyncio.timeout(PATIENCE_S), gateway.finance.reads:
            return await gateway.views.operations.recent.spend()
    except _DATABASE_FAILS:
        return None


def process_snapshot(gateway: Gateway, workers: WorkersNow) -> dict[str, Any]:
    """Return the workers of this host, together."""
    return {
        "boot_id": gateway.boot_id,
        "version": metadata.version("weighbridge"),
        "workers": len(workers.reports),
        "draining": workers.draining,
        "in_flight": workers.in_flight,
        "max_in_flight": workers.max_in_flight,
        "is_refusing": workers.is_refusing,
        "live_processes": workers.live,
        "limits": workers.limits_mode,
        "watching_decisions": gateway.views.operations.tail.viewers,
    }


def recent_snapshot(recent: Recent) -> dict[str, Any]:
    """Return figures of all processes' attempts of the last minutes."""
    return {
        "since": iso(recent.since_us),
        "since_us": recent.since_us,
        "window_s": WINDOW_US // 1_000_000,
        "is_whole_window": recent.whole,
        "most_attempts": MOST,
        **figures_snapshot(recent.all),
    }


def tier_snapshots(config: Settings, recent: Recent) -> list[dict[str, Any]]:
    """Return the interactive and batch tiers with their deadlines and measured times to the first token."""
    timeouts = config.providers.timeouts
    return [
        {
            "tier": tier,
            "queue_s": config.deadlines.of(tier).first_token_s,
            "answer_s": config.deadlines.of(tier).answer_s,
            "first_token_s": timeouts.first_token_s(tier),
            **figures_snapshot(recent.by_tier.get(tier)),
        }
        for tier in TIERS
    ]


def fleet(gateway: Gateway) -> dict[str, Any]:
    """Return the self-hosted fleet, as GET /v1/fleet returns it."""
    return NO_FLEET if gateway.views.fleet is None else told_fleet(gateway.views.fleet, time.monotonic())


def queues(workers: WorkersNow) -> list[dict[str, Any]]:
    """Return the queues, as GET /v1/queues returns them."""
    return [told_queue(each) for each in workers.queues]


async def stores_snapshot(gateway: Gateway, workers: WorkersNow, now_us: int) -> dict[str, Any]:
    """Return the state of database, Redis and journal, and what the database knows of processes, checks and messages."""
    told: dict[str, Any] = {
        "database": await stores.database(gateway.database),
        "redis": stores.redis(workers.redis),
        "journal": stores.journal(workers, gateway.finance.drain),
        "processes": [],
        "books_check": {"done_us": None, "differences": None},
        "webhooks": {"waiting": None, "oldest_us": None},
        "keys": {"unverified": None},
    }
    if told["database"]["answers"]:
        try:
            async with asyncio.timeout(PATIENCE_S):
                told |= await stores.in_database(gateway.database, gateway.boot_id, now_us)
                told["keys"] = await stores.keys(gateway.database, gateway.identity.peppers)
        except _DATABASE_FAILS as error:
            told["database"] |= {"answers": False, "problem": type(error).__name__}
    return told


def spend_snapshot(spend: Spend | None) -> dict[str, Any]:
    """Return the hour's cost beside the usual cost by now. Nano-dollars."""
    if spend is None:
        return {"hour_us": None, "spent_nanousd": None, "usual_nanousd": None, "times_usual": None}
    usual = spend.usual_nanousd
    times = spend.spent_nanousd / usual if usual else None
    return {
        "hour_us": spend.hour_us,
        "spent_nanousd": spend.spent_nanousd,
        "usual_nanousd": usual,
        "times_usual": None if times is None else round(times, 2),
    }


async def classifier_snapshot(gateway: Gateway, workers: WorkersNow) -> dict[str, Any]:
    """Return the classifier in use, its artifact and tuning, and drift as last computed."""
    classifier, known = gateway.classifier, gateway.views.operations.drift.known
    told: dict[str, Any] = {
        "in_use": "trained model" if classifier.fallback_reason is None else "plain rule",
        "fallback_reason": classifier.fallback_reason,
        "artifact": None,
        "weighed_by_rule": None,
        "tuning": None,
        "drift": "unknown" if known is None else known.verdict,
    }
    if isinstance(classifier, OnnxClassifier):
        told |= {
            "artifact": classifier.artifact,
            "weighed_by_rule": workers.scored_by_rule,
        }
    try:
        async with asyncio.timeout(stores.PATIENCE_S):
            told["tuning"] = await gateway.learning.active_version()
    except _DATABASE_FAILS:
        pass
    return told
