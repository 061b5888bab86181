"""/dashboard/operations/pools: pools of self-hosted replicas, and draining of replicas."""

from collections.abc import Mapping
from typing import Annotated, Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Depends
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import Response

from api.fleet.drain import drain_replica, undrain_replica
from api.operations.snapshot import standing
from api.web.patience import patience
from api.web.reading import reading
from cost.fleet.earnings import EarningsReader, PoolEarnings
from cost.times import DAY_US, HOUR_US, wall_us
from dashboards.operations.overview_page import HOME, STATES, address_of, problem_lines
from dashboards.operations.scaling_charts import scaling_charts
from dashboards.ui.charts import Chart
from dashboards.ui.incident_words import sentence
from dashboards.ui.tables import Column, Table
from dashboards.web.access import allowed
from dashboards.web.view import PageRequest
from proxy.errors import FleetUnavailable, PoolCrowded, PoolNotFound, ReplicaNotFound, UsageUnavailable
from selfhosted.health.fleet_view import FleetView, WatchedPool
from selfhosted.registry.store import PoolFull
from selfhosted.scale.policy import steps_of
from selfhosted.scale.target import Targets

router: Final = APIRouter(include_in_schema=False)
_PATIENCE_S: Final = 3.0
_EARNED_DAYS: Final = 7

POOLS: Final = (
    Column("pool", "Pool", "link"),
    Column("state", "State", "badge", "The worst of callable, failing, slow and saturated"),
    Column("since_us", "Since", "time"),
    Column("ready", "Ready", "number"),
    Column("there", "Total", "number"),
    Column("desired", "Desired", "number", "What autoscaling decided last; unknown where nobody decides"),
    Column("running", "Running", "number", "Requests in the engines"),
    Column("waiting", "Waiting", "number", "Requests in the engines' own queues"),
    Column("kv", "Cache in use", "share", "The mean of the replicas' KV caches"),
    Column("hits", "Prefix hits", "share", "Prompt tokens found in the cache, since the engines started", usual=False),
    Column(
        "speed",
        "Tokens/s a GPU",
        "number",
        "Prompt and completion tokens in the last minute; unknown without cost.pools",
    ),
    Column("cost", "Cost per million tokens", "money", "At this throughput, idle replicas included"),
    Column("targets", "Serves", usual=False),
)
REPLICAS: Final = (
    Column("name", "Replica"),
    Column("version", "Version", note="Of its model, where it or its configuration says"),
    Column("state", "State", "badge"),
    Column("since", "For", "seconds", "How long it has been in this state"),
    Column("running", "Running", "number"),
    Column("waiting", "Waiting", "number"),
    Column("kv", "Cache in use", "share"),
    Column("hits", "Prefix hits", "share"),
    Column("speed", "Tokens/s", "number", "Prompt and completion tokens, a mean of the last minute"),
    Column("gpu", "GPU", "share", "The time in which a kernel ran on its GPUs, where a DCGM exporter tells"),
    Column(
        "preemptions",
        "Preempted",
        "number",
        "Requests that lost their cache to others, since the engine started",
        usual=False,
    ),
    Column("age", "Age", "seconds", "How old these statistics are", usual=False),
    Column("why", "Why"),
    Column("url", "Address", "code", usual=False),
)

VERSIONS: Final = (
    Column("version", "Version", note="— stands for replicas that say none"),
    Column("there", "Total", "number"),
    Column("ready", "Ready", "number"),
    Column("speed", "Tokens/s", "number", "Prompt and completion tokens, a mean of the last minute"),
    Column("each", "Tokens/s a GPU", "number"),
    Column("cost", "Cost per million tokens", "money", "At this throughput, the version's idle replicas included"),
    Column("mfu", "Model FLOPs utilisation", "share", "An estimate, without attention"),
    Column("gpu", "GPU", "share", "The time in which a kernel ran, where a DCGM exporter tells"),
    Column("memory", "GPU memory", "share", "By the same", usual=False),
    Column("preempted", "Preempted a second", "number", "Requests that lost their cache to others", usual=False),
)


@router.get(f"{HOME}/pools")
async def show_pools(view: Annotated[PageRequest, Depends(allowed("operations.read"))]) -> Response:
    """Show all pools with their problems."""
    told = (await standing(view.gateway, wall_us())).pools
    table = Table.of(
        POOLS,
        [_pool_row(each) for each in told["data"]],
        view.query,
        name="pools",
        caption="Pools",
        empty="There are no pools: engines of your own are set up under selfhosted.pools in the configuration.",
    )
    file = view.csv_asked("pools", table)
    if file is not None:
        return file
    context: dict[str, Any] = {
        "here": address_of(view),
        "pools": table,
        "problems": [(pool["name"], *line) for pool in told["data"] for line in problem_lines(pool)],
        "registry": told["registry"],
        "at_us": wall_us(),
    }
    if view.is_part:
        return view.part("operations/_pools.html", **context)
    return view.page("operations/pools.html", title="Pools", **context)


@router.get(f"{HOME}/pools/{{pool}}")
async def show_pool(view: Annotated[PageRequest, Depends(allowed("operations.read"))], pool: str) -> Response:
    """Show one pool's replicas."""
    _, watched = _pool(view, pool)
    told = next(each for each in (await standing(view.gateway, wall_us())).pools["data"] if each["name"] == pool)
    table = Table.of(
        REPLICAS,
        [_replica_row(each) for each in told["replicas"]],
        view.query,
        name="replicas",
        caption=f"Replicas of {pool}",
        sort="name",
        search=("name", "state", "url"),
        empty="No replica is known now; requests go to the next model.",
    )
    file = view.csv_asked(f"pool-{pool}", table)
    if file is not None:
        return file
    context: dict[str, Any] = {
        "here": address_of(view),
        "pool": told,
        "state": STATES[told["state"]],
        "problems": problem_lines(told),
        "replicas": table,
        "versions": _versions(view, told),
        "config": watched.config,
        "may_change": view.may("operations.change"),
        "at_us": wall_us(),
    }
    if view.is_part:
        return view.part("operations/_pool.html", **context)
    return view.page(
        "operations/pool.html",
        title=f"Pool {pool}",
        earned=await _earned(view, pool),
        earned_days=_EARNED_DAYS,
        scaled=[(part.name, await _scaled(view, part.name)) for part in watched.config.parts if part.scale is not None],
        **context,
    )


@router.post(f"{HOME}/pools/{{pool}}/replicas/{{name}}/drain")
async def drain(view: Annotated[PageRequest, Depends(allowed("operations.change"))], pool: str, name: str) -> Response:
    """Order a replica to take no new requests and finish its current ones. Every process follows within seconds."""
    found, watched = _pool(view, pool)
    known = {known for each in watched.discovery.addresses for known in (each.name, each.process)}
    if name not in known:
        raise ReplicaNotFound(f"The pool `{pool}` has no replica `{name[:64]}` now.", param="name")
    try:
        async with patience(_PATIENCE_S):
            new = await drain_replica(view.gateway.identity.audit, view.actor, pool, name, known=known)
    except PoolFull as error:
        raise PoolCrowded(sentence(str(error))) from error
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        raise _unavailable() from error
    await found.registry.refresh()
    told = f"{name} takes nothing new and finishes what it has." if new else f"{name} was drained already."
    return view.redirect(f"{HOME}/pools/{quote(pool, safe='')}", told=told)


@router.post(f"{HOME}/pools/{{pool}}/replicas/{{name}}/undrain")
async def undrain(
    view: Annotated[PageRequest, Depends(allowed("operations.change"))], pool: str, name: str
) -> Response:
    """Withdraw a drain order. A replica that reports itself as draining stays so."""
    found, _ = _pool(view, pool)
    try:
        async with patience(_PATIENCE_S):
            there = await undrain_replica(view.gateway.identity.audit, view.actor, pool, name[:64])
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        raise _unavailable() from error
    await found.registry.refresh()
    told = f"{name[:64]} takes work again." if there else f"{name[:64]} was not drained."
    return view.redirect(f"{HOME}/pools/{quote(pool, safe='')}", told=told)


async def _earned(view: PageRequest, pool: str) -> PoolEarnings | None:
    """Return the pool's earnings of the last days; None where it has no price, or the books cannot be read now."""
    sections = [each for each in view.gateway.finance.savings.pools if each.name == pool]
    now = wall_us()
    start_us = now - now % HOUR_US - _EARNED_DAYS * DAY_US
    if not sections:
        return None
    try:
        async with reading(view.gateway, on=True):
            return (await EarningsReader(view.gateway.database).read(sections, start_us, now, now))[0]
    except UsageUnavailable:
        return None


async def _scaled(view: PageRequest, part: str) -> list[Chart] | None:
    """Return how a part of the pool was scaled in the last day; None where the database cannot be read now."""
    try:
        async with patience(_PATIENCE_S):
            return scaling_charts(steps_of(await Targets(view.gateway.database).state(part)))
    except (SQLAlchemyError, OSError, TimeoutError):
        return None


def _versions(view: PageRequest, told: Mapping[str, Any]) -> Table | None:
    """Return the replicas' figures by version; None where no replica says its version."""
    rows = [
        {
            "version": each["version"],
            "there": each["there"],
            "ready": each["ready"],
            "speed": each["usage"]["tokens_per_s"],
            "each": each["usage"]["tokens_per_s_per_gpu"],
            "cost": each["usage"]["nanousd_per_million"],
            "mfu": each["usage"]["mfu"],
            "gpu": each["usage"]["gpu_utilisation"],
            "memory": each["usage"]["gpu_memory"],
            "preempted": each["usage"]["preemptions_per_s"],
        }
        for each in told["versions"]
    ]
    return Table.of(VERSIONS, rows, view.query, name="versions", caption="Versions") if rows else None


def _pool(view: PageRequest, pool: str) -> tuple[FleetView, WatchedPool]:
    found = view.gateway.views.fleet
    watched = None if found is None else found.pools.get(pool)
    if found is None or watched is None:
        raise PoolNotFound(f"There is no pool `{pool[:64]}`.", param="pool")
    return found, watched


def _unavailable() -> FleetUnavailable:
    return FleetUnavailable("The database does not answer; the fleet stays as it is, try again shortly.")


def _pool_row(pool: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "pool": pool["name"],
        "pool_href": f"{HOME}/pools/{quote(pool['name'], safe='')}",
        "state": STATES[pool["state"]],
        "since_us": pool["since_us"],
        "ready": pool["counts"]["ready"],
        "there": len(pool["replicas"]),
        "desired": pool["desired"],
        "running": pool["running"],
        "waiting": pool["waiting"],
        "kv": pool["kv_usage"],
        "hits": pool["prefix_hit_rate"],
        "speed": pool["usage"]["tokens_per_s_per_gpu"],
        "cost": pool["usage"]["nanousd_per_million"],
        "targets": ", ".join(pool["targets"]),
    }


def _replica_row(replica: Mapping[str, Any]) -> dict[str, Any]:
    stats = replica["stats"] or {}
    return {
        "name": replica["name"],
        "version": replica["version"],
        "state": STATES[replica["state"]],
        "why": sentence(replica["why"])
        if replica["why"]
        else "An operator drained it."
        if replica["drain_ordered"]
        else None,
        "since": replica["since_s"],
        "running": stats.get("running"),
        "waiting": stats.get("waiting"),
        "kv": stats.get("kv_usage"),
        "hits": stats.get("prefix_hit_rate"),
        "speed": stats.get("tokens_per_s"),
        "gpu": stats.get("gpu_utilisation"),
        "preemptions": stats.get("preemptions"),
        "age": stats.get("age_s"),
        "url": replica["url"],
        "drained": replica["drain_ordered"],
    }
