"""The effect of a sick Redis on callers: killed, frozen, slowed and cut off under steady load, and absent from the start.

python -m benchmarks.redis_faults [--quick] [--json build/redis_faults.json]

One team without limits asks at a steady rate: its waiting is measured and none of its requests may fail. Another asks more than
its limit allows: what is let through while Redis is away is held against what the limit allows in that time. Redis is
killed and frozen directly; the slow wires and the black hole are a proxy in between. See docs/benchmarks.md.
"""

import asyncio
import contextlib
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from benchmarks import figures, load_test
from benchmarks.clients import (
    LOCAL_METRIC,
    UP_METRIC,
    Asked,
    Pacer,
    add_team,
    ask,
    caller,
    chat,
    maybe_postgres,
    metrics,
    own_folder,
    set_limit,
)
from benchmarks.load_test import Stage
from tests.postgres import Postgres
from tests.processes import Server, Site, make_site, oracle, serving
from tests.redis_server import RedisServer, running_redis
from tests.running_gateway import model
from tests.toxic import ToxicProxy, toxic_proxy

GATEWAYS: Final = 2
STEADY_PER_S: Final = 60.0
LIMIT_PER_MINUTE: Final = 600
LIMIT_BURST: Final = 20
GREEDY_PER_S: Final = 3 * LIMIT_PER_MINUTE / 60
AIM_P99_MS: Final = 50.0
_LOOK_S: Final = 0.05
_ASKED_WITHOUT: Final = 50
_MENDED_WITHIN_S: Final = 30.0
_SETTLE_S: Final = 3.0
"""Seconds after the breakers have closed in which workers still report to Redis the tokens that they took alone."""


class Size(msgspec.Struct, frozen=True, kw_only=True):
    calm_s: float
    fault_s: float


FULL: Final = Size(calm_s=15.0, fault_s=15.0)
QUICK: Final = Size(calm_s=4.0, fault_s=5.0)


class Fault(msgspec.Struct, frozen=True):
    """Something that befalls Redis, and how it ends."""

    name: str
    begin: Callable[[], object]
    end: Callable[[], object]


def direct_faults(redis: RedisServer) -> list[Fault]:
    return [
        Fault("killed", redis.kill, redis.start),
        Fault("frozen", redis.freeze, redis.thaw),
    ]


def wire_faults(wire: ToxicProxy) -> list[Fault]:
    slow = [
        Fault(f"slowed by {ms} ms", lambda ms=ms: wire.slow(ms / 1000, ms / 5000), wire.calm)  # type: ignore[misc]
        for ms in (30, 80, 500)
    ]
    return [*slow, Fault("in a black hole", wire.swallow, wire.calm), Fault("cut off", wire.reset, wire.calm)]


class Gate(msgspec.Struct):
    """One gateway and what its metrics told of its link to Redis."""

    server: Server
    session: aiohttp.ClientSession
    local: float = 0.0

    async def up(self) -> bool:
        found = await metrics(self.session, self.server)
        self.local = found.get(LOCAL_METRIC, 0.0)
        return found.get(UP_METRIC, 0.0) > 0


class Times(msgspec.Struct, frozen=True):
    """Moments of one fault. None where a breaker never opened, or not yet closed."""

    calm_at: float
    begun_at: float
    opened_at: float | None
    mended_at: float
    closed_at: float | None


async def befall(stage: Stage, size: Size, fault: Fault, gates: Sequence[Gate]) -> Times:
    """Let a fault befall: calm, the fault, its end, and the recovery."""
    calm_at = time.monotonic()
    await asyncio.sleep(size.calm_s)
    stage.say(f"Redis is {fault.name}")
    begun_at = time.monotonic()
    await asyncio.to_thread(fault.begin)
    opened_at = await _until(gates, up=False, give_up_at=begun_at + size.fault_s)
    await asyncio.sleep(max(0.0, begun_at + size.fault_s - time.monotonic()))
    mended_at = time.monotonic()
    await asyncio.to_thread(fault.end)
    closed_at = await _until(gates, up=True, give_up_at=mended_at + _MENDED_WITHIN_S)
    if closed_at is None:
        stage.problems.append(
            f"{fault.name}: a gateway does not use Redis again {_MENDED_WITHIN_S:.0f} s after its return"
        )
    await asyncio.sleep(_SETTLE_S)
    return Times(calm_at, begun_at, opened_at, mended_at, closed_at)


async def _until(gates: Sequence[Gate], *, up: bool, give_up_at: float) -> float | None:
    """Return the time at which the last of the gateways was first seen so."""
    waiting = list(gates)
    while waiting:
        for gate in list(waiting):
            if await gate.up() == up:
                waiting.remove(gate)
        if not waiting:
            return time.monotonic()
        if time.monotonic() >= give_up_at:
            return None
        await asyncio.sleep(_LOOK_S)
    return None


def judge(times: Times, steady: Sequence[Asked], greedy: Sequence[Asked]) -> dict[str, Any]:
    """Judge the figures of one fault."""
    end_at = times.closed_at or times.mended_at
    calm = _latencies(steady, times.calm_at, times.begun_at)
    # Requests that were under way when the breakers opened waited before that.
    spoilt_at = times.begun_at if times.opened_at is None else times.opened_at
    spoilt = _latencies(steady, spoilt_at, times.mended_at)
    between = _latencies(steady, times.begun_at, spoilt_at)
    p50, p99 = (figures.percentile(calm, share) / 1000 for share in (0.5, 0.99))
    failed = Counter(
        str(each.status or each.trouble) for each in steady if each.status != 200 and each.over_at >= times.begun_at
    )
    passed = sum(each.status == 200 and times.begun_at <= each.sent_at < end_at for each in greedy)
    allowed = LIMIT_PER_MINUTE / 60 * (end_at - times.begun_at)
    return {
        "calm": {"count": len(calm), "p50_ms": p50, "p99_ms": p99},
        "until_open": figures.quantiles_ms(between),
        "during": figures.quantiles_ms(spoilt),
        "added_p50_ms": figures.percentile(spoilt, 0.5) / 1000 - p50,
        "added_p99_ms": figures.percentile(spoilt, 0.99) / 1000 - p99,
        "failed": dict(failed),
        "opened_s": None if times.opened_at is None else times.opened_at - times.begun_at,
        "closed_s": None if times.closed_at is None or times.opened_at is None else times.closed_at - times.mended_at,
        "admitted": passed,
        "allowed": allowed,
        "admitted_over_allowed": passed / allowed,
        "within_a_burst": passed <= allowed + LIMIT_BURST,
    }


def _latencies(record: Sequence[Asked], begin: float, end: float) -> list[float]:
    return [each.latency_us for each in record if each.status == 200 and begin <= each.sent_at < end]


class Load(msgspec.Struct, frozen=True):
    """The two teams, at every gateway in turn."""

    steady: Pacer[Asked]
    greedy: Pacer[Asked]


def since(pacer: Pacer[Asked], begin: float) -> list[Asked]:
    return [each for each in pacer.record if each.sent_at >= begin]


@contextlib.asynccontextmanager
async def load(servers: Sequence[Server], steady_key: str, greedy_key: str) -> AsyncIterator[Load]:
    """Run the load until the block ends."""
    urls = [server.url for server in servers]
    body = chat("ok")
    async with caller(steady_key) as steady, caller(greedy_key) as greedy:
        made = Load(
            Pacer(urls, lambda gate, url: ask(steady, gate, url, body), STEADY_PER_S),
            Pacer(urls, lambda gate, url: ask(greedy, gate, url, body), GREEDY_PER_S),
        )
        running = [asyncio.create_task(pacer.run()) for pacer in (made.steady, made.greedy)]
        try:
            yield made
        finally:
            for pacer in (made.steady, made.greedy):
                pacer.stop()
            await asyncio.gather(*running)


class Town(msgspec.Struct, frozen=True):
    """A site with its two teams, on one Redis."""

    site: Site
    greedy_key: str


async def make_town(folder: Path, upstream_url: dict[str, Any], redis_url: str, postgres: Postgres | None) -> Town:
    site = await make_site(
        folder,
        [model("ok", [upstream_url])],
        database_url=await postgres.database() if postgres else None,
        variables={"WEIGHBRIDGE_REDIS_URL": redis_url},
        # Limits that are never reached are still asked for with every request.
        limits={"team": {"requests_per_minute": 1_000_000, "tokens_per_minute": 1_000_000_000}},
        cost={"drain_interval_s": 0.5},
    )
    greedy_key = await add_team(site, "team_greedy")
    await set_limit(site, "team", "team_greedy", requests_per_minute=LIMIT_PER_MINUTE, request_burst=LIMIT_BURST)
    return Town(site, greedy_key)


async def play(stage: Stage, size: Size, town: Town, faults: Sequence[Fault]) -> dict[str, Any]:
    """Play each of the faults in turn, under one load that never stops."""
    found: dict[str, Any] = {}
    async with contextlib.AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(serving(town.site, f"gateway-{number}")) for number in range(GATEWAYS)
        ]
        gates = [Gate(server, await stack.enter_async_context(caller(""))) for server in servers]
        if await _until(gates, up=True, give_up_at=time.monotonic() + _MENDED_WITHIN_S) is None:
            raise RuntimeError("the gateways do not use Redis")
        running = await stack.enter_async_context(load(servers, town.site.key, town.greedy_key))
        await asyncio.sleep(_SETTLE_S)
        for fault in faults:
            times = await befall(stage, size, fault, gates)
            one = judge(times, since(running.steady, times.calm_at), since(running.greedy, times.calm_at))
            found[fault.name] = one
            stage.problems += [
                f"{fault.name}: {count} steady requests: {what}" for what, count in one["failed"].items()
            ]
            stage.say(_told(fault.name, one))
    for what, pacer in (("steady", running.steady), ("greedy", running.greedy)):
        stage.problems += [f"{what}: {pacer.skipped} requests were not sent"] if pacer.skipped else []
    odd = Counter(each.status or each.trouble for each in running.greedy.record if each.status not in {200, 429})
    stage.problems += [f"greedy: {count} requests: {status}" for status, count in odd.items()]
    return found


def _told(name: str, one: dict[str, Any]) -> str:
    opened = "never" if one["opened_s"] is None else f"after {one['opened_s']:.2f} s"
    closed = "" if one["closed_s"] is None else f", closed {one['closed_s']:.2f} s after its end"
    return (
        f"{name}: breakers opened {opened}{closed}; added p99 {one['added_p99_ms']:.1f} ms; "
        f"{one['admitted_over_allowed']:.2f} of the limit let through"
    )


async def start_without(town: Town, redis: RedisServer) -> dict[str, Any]:
    """Start a gateway with Redis, and one without it, which serves and finds it later."""
    with_s = await _start_s(town, "gateway-with")
    redis.kill()
    began = time.monotonic()
    async with serving(town.site, "gateway-late") as server, caller(town.site.key) as session:
        without_s = time.monotonic() - began
        record = [await ask(session, 0, server.url, chat("ok")) for _ in range(_ASKED_WITHOUT)]
        gate = Gate(server, session)
        found_it = await gate.up()
        await asyncio.to_thread(redis.start)
        came_at = time.monotonic()
        closed_at = await _until([gate], up=True, give_up_at=came_at + _MENDED_WITHIN_S)
    return {
        "with_s": with_s,
        "without_s": without_s,
        "asked": len(record),
        "answered": sum(each.status == 200 for each in record),
        "up_without": found_it,
        "found_s": None if closed_at is None else closed_at - came_at,
    }


async def _start_s(town: Town, name: str) -> float:
    began = time.monotonic()
    async with serving(town.site, name):
        return time.monotonic() - began


def measure(stage: Stage) -> dict[str, Any]:
    size = QUICK if stage.quick else FULL

    async def everything() -> dict[str, Any]:
        with maybe_postgres() as postgres, oracle(stage.folder) as upstream, running_redis() as redis:
            deployment = upstream.deployment("ok")
            town = await make_town(own_folder(stage.folder, "direct"), deployment, redis.url, postgres)
            faults = await play(stage, size, town, direct_faults(redis))
            starts = await start_without(town, redis)
            redis.empty()
            async with toxic_proxy(redis.port) as wire:
                town = await make_town(own_folder(stage.folder, "wire"), deployment, wire.url, postgres)
                faults |= await play(stage, size, town, wire_faults(wire))
            return {
                "gateways": GATEWAYS,
                "database": "postgresql" if postgres else "sqlite",
                "steady_per_s": STEADY_PER_S,
                "limit_per_minute": LIMIT_PER_MINUTE,
                "limit_burst": LIMIT_BURST,
                "faults": faults,
                "start": starts,
            }

    report = asyncio.run(everything())
    start = report["start"]
    if start["answered"] != start["asked"] or start["up_without"] or start["found_s"] is None:
        stage.problems.append(f"a start without Redis went wrong: {start}")
    return report


def show(report: dict[str, Any]) -> None:
    heads = [
        "Redis is",
        "opened, s",
        "closed, s",
        "calm p50, ms",
        "p99",
        "until open p99",
        "added p50",
        "added p99",
        "failed",
        "let through",
    ]
    rows = [
        [
            name,
            figures.number(one["opened_s"]),
            figures.number(one["closed_s"]),
            *(figures.number(one["calm"][key], 1) for key in ("p50_ms", "p99_ms")),
            figures.number(one["until_open"]["p99_ms"] if one["until_open"]["count"] else None, 1),
            *(figures.number(one[key], 1) for key in ("added_p50_ms", "added_p99_ms")),
            str(sum(one["failed"].values())),
            figures.share(one["admitted_over_allowed"]),
        ]
        for name, one in report["faults"].items()
    ]
    print(figures.table(heads, rows))
    print(
        "\nopened: until the last gateway's breaker was seen open; closed: the same, from the end of the fault"
        f"\nadded: over the calm time before it, once the breaker is open (aim: p99 at most {AIM_P99_MS:.0f} ms)"
        "\nlet through: of what the limit allows from the fault's beginning until the breakers closed\n"
    )
    start = report["start"]
    print(
        f"a start with Redis {start['with_s']:.1f} s, without it {start['without_s']:.1f} s; of {start['asked']} requests there "
        f"{start['answered']} were answered; Redis was in use {figures.number(start['found_s'])} s after it came"
    )


if __name__ == "__main__":
    sys.exit(load_test.run("redis_faults", __doc__, measure, show))
