"""One team's limit across two gateways of four workers each: never above it in any window, and nearly all of it used.

    python -m benchmarks.shared_limit [--quick] [--json build/shared_limit.json]

Callers ask three times as much as the limit allows. Every request that was let through is known with the moment it was sent
and the moment its answer began; it was let through in between. So a window that certainly let through more than the burst and
what flowed in meanwhile proves that the limit was broken, whatever the clocks did. The same is done without Redis, where each
worker enforces its share. See docs/benchmarks.md.
"""

import asyncio
import contextlib
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks import figures, load_test
from benchmarks.clients import (
    LOCAL_METRIC,
    Asked,
    Pacer,
    add_team,
    agree,
    ask,
    caller,
    chat,
    maybe_postgres,
    metrics,
    own_folder,
)
from benchmarks.load_test import Stage
from benchmarks.windows import Admitted, Bound, busiest, most_over, used_share
from proxy.parse.chat_request import input_tokens, parse_chat, prompt_of
from proxy.parse.headers import RequestHeaders
from tests.postgres import Postgres
from tests.processes import Oracle, Server, Site, make_site, oracle, serving
from tests.redis_server import running_redis
from tests.running_gateway import model

GATEWAYS: Final = 2
WORKERS: Final = 4
OFFERED: Final = 3.0
"""Times the limit."""
AIM: Final = 0.98
_ANSWER_TOKENS: Final = 20
_PROMPT_TOKENS: Final = 20
_MAX_TOKENS: Final = 80
_TEAM: Final = "team_a"
_SETTLED_WITHIN_S: Final = 0.5
"""Seconds after an answer's end within which its settlement has reached the bucket; a longer time would only forgive
more.
"""


class Size(msgspec.Struct, frozen=True, kw_only=True):
    seconds: float
    requests_per_minute: int
    request_burst: int


FULL: Final = Size(seconds=120.0, requests_per_minute=3_000, request_burst=300)
QUICK: Final = Size(seconds=20.0, requests_per_minute=3_000, request_burst=200)


class Round(msgspec.Struct, frozen=True):
    """One limit and whether the workers share it by way of Redis."""

    name: str
    kind: str
    with_redis: bool


ROUNDS: Final = (
    Round("requests/minute, one Redis", "requests", with_redis=True),
    Round("tokens/minute, one Redis", "tokens", with_redis=True),
    Round("requests/minute, no Redis", "requests", with_redis=False),
)


def bound_of(kind: str, size: Size) -> Bound:
    """Return a limit of tokens that lets through as many requests, so that both rounds ask equally much of the machine."""
    tokens = _PROMPT_TOKENS + _ANSWER_TOKENS if kind == "tokens" else 1
    return Bound(per_s=size.requests_per_minute * tokens / 60, burst=size.request_burst * tokens)


def limits_of(kind: str, bound: Bound) -> dict[str, int]:
    one = kind.removesuffix("s")
    return {f"{kind}_per_minute": round(bound.per_s * 60), f"{one}_burst": round(bound.burst)}


def body_of(kind: str) -> bytes:
    return chat("script", **({"max_tokens": _MAX_TOKENS} if kind == "tokens" else {}))


def taken_tokens(body: bytes) -> int:
    """Return the tokens that a request takes before its answer is known: the estimate of its prompt and the most it may answer."""
    request = parse_chat(body, RequestHeaders())
    return input_tokens(request, prompt_of(request)) + (request.max_output_tokens or 0)


def admitted_of(record: Sequence[Asked], kind: str, taken: int) -> list[Admitted]:
    return [
        Admitted(
            sent_at=each.sent_at,
            answered_at=each.answered_at,
            used=each.tokens if kind == "tokens" else 1,
            refunded=max(0, taken - each.tokens) if kind == "tokens" else 0,
            over_at=each.over_at + _SETTLED_WITHIN_S,
        )
        for each in record
        if each.status == 200
    ]


def judge(record: Sequence[Asked], kind: str, bound: Bound, taken: int) -> dict[str, Any]:
    """Return the figures of one round."""
    admitted = admitted_of(record, kind, taken)
    seconds = max(each.sent_at for each in record) - min(each.sent_at for each in record)
    over = most_over(admitted, bound)
    return {
        "kind": kind,
        "per_minute": bound.per_s * 60,
        "burst": bound.burst,
        "seconds": seconds,
        "offered": len(record),
        "admitted": len(admitted),
        "used": sum(each.used for each in admitted),
        "used_share": used_share(admitted, bound, seconds),
        "over": over,
        "held": over <= 0,
        "busiest": {str(w): busiest(admitted, w) / bound.allows(w) for w in (1, 10, 60) if w <= seconds},
        "statuses": {str(status): count for status, count in Counter(each.status for each in record).items()},
        "unsure_p99_ms": figures.percentile([each.answered_at - each.sent_at for each in admitted], 0.99) * 1000,
        "refused": figures.quantiles_ms([each.latency_us for each in record if each.status == 429]),
    }


def problems_of(found: Mapping[str, Any], seen: Counter[str], skipped: int) -> list[str]:
    """Return the reasons why the run is worthless, and faults of what it tests."""
    told = [
        f"{count} replies with status {status}"
        for status, count in found["statuses"].items()
        if status not in {"200", "429"}
    ]
    if not found["held"]:
        told.append(f"a window let through {found['over']:,.1f} more than the limit allows")
    if seen["arrived"] != found["admitted"]:
        told.append(f"{seen['arrived']} requests reached the upstream and {found['admitted']} were answered")
    if skipped:
        told.append(f"{skipped} requests were not sent because too many were under way")
    return told


async def play(stage: Stage, size: Size, one: Round, postgres: Postgres | None) -> dict[str, Any]:
    """Play one round on gateways, a database and a Redis of its own."""
    folder = own_folder(stage.folder, f"{one.kind}-{one.with_redis}")
    bound = bound_of(one.kind, size)
    async with contextlib.AsyncExitStack() as stack:
        upstream = stack.enter_context(oracle(folder))
        variables = {}
        if one.with_redis:
            variables["WEIGHBRIDGE_REDIS_URL"] = stack.enter_context(running_redis()).url
        site = await _site(folder, upstream, postgres, variables, {"team": limits_of(one.kind, bound)})
        warm_key = await add_team(site, "team_warm")
        servers = await _gateways(stack, site)
        await _warm(servers, warm_key, body_of(one.kind))
        urls = [server.url for server in servers]
        await agree(urls, warm_key, "shared" if one.with_redis else "share", GATEWAYS * WORKERS)
        local_before = await _local(servers)
        stage.say(f"{one.name}: {GATEWAYS} gateways of {WORKERS} workers are ready")
        before = len(upstream.seen())
        pacer = await _offer(stage, size, one, servers, site.key)
        seen = Counter(str(line.event) for line in upstream.seen()[before:])
        local = await _local(servers) - local_before
    taken = taken_tokens(body_of(one.kind))
    found = judge(pacer.record, one.kind, bound, taken) | {"decided_locally": local}
    stage.problems += [f"{one.name}: {problem}" for problem in problems_of(found, seen, pacer.skipped)]
    stage.say(f"{one.name}: {found['used_share']:.1%} used, the worst window less its bound: {found['over']:,.1f}")
    return found


async def _local(servers: Sequence[Server]) -> float:
    """Count the decisions by a worker's own share so far: with a Redis in time, none."""
    async with caller("") as session:
        return sum([(await metrics(session, server)).get(LOCAL_METRIC, 0.0) for server in servers])


async def _site(
    folder: Path, upstream: Oracle, postgres: Postgres | None, variables: dict[str, str], limits: dict[str, Any]
) -> Site:
    script = f"prompt-tokens-{_PROMPT_TOKENS}+tokens-{_ANSWER_TOKENS}"
    return await make_site(
        folder,
        [model("script", [upstream.deployment(script)])],
        database_url=await postgres.database() if postgres else None,
        variables=variables,
        limits=limits,
        # On a machine with few cores a worker may have to wait; what is tested here is the limit.
        server={"max_lag_s": 0},
        cost={"drain_interval_s": 0.5},
    )


async def _gateways(stack: contextlib.AsyncExitStack, site: Site) -> list[Server]:
    starting = [serving(site, f"gateway-{number}", "--workers", str(WORKERS)) for number in range(GATEWAYS)]
    return [await stack.enter_async_context(each) for each in starting]


async def _warm(servers: Sequence[Server], key: str, body: bytes) -> None:
    """Warm up with another team's requests, which draw from a bucket of their own."""
    async with caller(key, keep_alive=False) as session:
        for server in servers:
            await asyncio.gather(*(ask(session, 0, server.url, body) for _ in range(8 * WORKERS)))


async def _offer(stage: Stage, size: Size, one: Round, servers: Sequence[Server], key: str) -> Pacer[Asked]:
    body = body_of(one.kind)
    # A connection for each request: kept ones stay with the worker that took them, and some workers would get none.
    async with caller(key, keep_alive=False) as session:
        pacer = Pacer(
            [server.url for server in servers],
            lambda gate, url: ask(session, gate, url, body),
            OFFERED * size.requests_per_minute / 60,
        )
        telling = asyncio.create_task(_tell(stage, one, pacer))
        try:
            await pacer.run(size.seconds)
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)
    return pacer


async def _tell(stage: Stage, one: Round, pacer: Pacer[Asked]) -> None:
    while True:
        await asyncio.sleep(10)
        count = Counter(each.status for each in pacer.record)
        stage.say(f"{one.name}: {time.monotonic() - pacer.began_at:.0f} s, {dict(count)}")


def measure(stage: Stage) -> dict[str, Any]:
    size = QUICK if stage.quick else FULL

    async def all_rounds() -> dict[str, Any]:
        with maybe_postgres() as postgres:
            database = "postgresql" if postgres else "sqlite"
            found = {one.name: await play(stage, size, one, postgres) for one in ROUNDS}
        return {"gateways": GATEWAYS, "workers": WORKERS, "database": database, "rounds": found}

    return asyncio.run(all_rounds())


def show(report: dict[str, Any]) -> None:
    rounds: dict[str, dict[str, Any]] = report["rounds"]
    heads = [
        "",
        "asked",
        "admitted",
        "used",
        "worst window",
        "busiest 1 s",
        "10 s",
        "60 s",
        "by share",
        "refused p50, ms",
        "p99",
    ]
    rows = [
        [
            name,
            f"{found['offered']:,}",
            f"{found['admitted']:,}",
            figures.share(found["used_share"]),
            figures.number(found["over"], 1),
            *(figures.share(found["busiest"].get(seconds)) for seconds in ("1", "10", "60")),
            f"{found['decided_locally']:,.0f}",
            figures.number(found["refused"]["p50_ms"], 1),
            figures.number(found["refused"]["p99_ms"], 1),
        ]
        for name, found in rounds.items()
    ]
    print(figures.table(heads, rows))
    print(
        f"\nused: of the burst and what flowed in while callers asked (aim: at least {AIM:.0%} with Redis)"
        "\nworst window: what it certainly let through less its bound (aim: not above 0)"
        "\nbusiest: the most that a window of that length let through, of its bound"
        "\nby share: decisions that a worker took alone because Redis was not there in time"
    )


if __name__ == "__main__":
    sys.exit(load_test.run("shared_limit", __doc__, measure, show))
