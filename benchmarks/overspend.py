"""How far hard budgets are passed where one answer in ten ignores its bound or lies about its usage.

    python -m benchmarks.overspend [--quick] [--json build/overspend.json]

Each of 250 teams has a hard budget that is worth about 20 of its 30 calls. All calls are made at once, as far as 500 connections go, on two workers,
with SQLite and with PostgreSQL. What the upstream truly read and wrote (`benchmarks.lying_upstream`) is set against each limit. A target that
broke its bound is set aside, so calls name one of many.
"""

import asyncio
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import aiohttp
import msgspec

from benchmarks import figures, load_test
from benchmarks.clients import REQUEST_TIMEOUT_S, add_teams, maybe_postgres, own_folder
from benchmarks.load_test import Stage
from benchmarks.lying_upstream import PRICES
from benchmarks.processes import free_port
from cost.budgets.budget import Budget
from cost.budgets.store import BudgetStore
from gateway.database import make_engine
from tests.postgres import Postgres
from tests.processes import Site, make_site, serving
from tests.running_gateway import DEAR_PRICES, model

WORKERS: Final = 2
CALLS: Final = 30
WORTH: Final = 20
"""Honest calls of average length that a budget pays for."""
_MAX_TOKENS: Final = 100
_QUESTION: Final = (
    "asks, in its call {call}, when the ferry to the northern islands leaves, and whether bicycles are let on it, and dogs, "
    "and what it would come to for two grown people and a child that is not yet seven."
)
_ASIDE: Final = b"set aside"
"""In the message to a caller whose target was found to break its bound."""
_CODE: Final = re.compile(rb'"code": ?"(\w+)"')
_TRIES: Final = 30
_AGAIN_S: Final = 0.5
"""A 503 is asked again, as clients do: of 250 keys that nobody has asked for, some wait for the database."""
_SETTLED_WITHIN_S: Final = 60.0
_TELL_S: Final = 5.0
_BAR: Final = 50
_STEPS: Final = (0.5, 0.9, 1.0, 1.05, 1.25, 1.5, 2.0, 3.0)


class Size(msgspec.Struct, frozen=True, kw_only=True):
    teams: int
    targets: int
    at_once: int


FULL: Final = Size(teams=250, targets=400, at_once=500)
QUICK: Final = Size(teams=25, targets=20, at_once=100)


def prompt_of(team_id: str, call: int) -> str:
    return f"{team_id} {_QUESTION.format(call=call)}"


def limit_nanousd() -> int:
    """Return what a budget is worth: answers are a fifth of their limit long at least, so 60 % on average."""
    honest = len(prompt_of("team_100", 10)) // 4 * PRICES["input"] + _MAX_TOKENS * 6 // 10 * PRICES["output"]
    return WORTH * honest


async def _budgets(site: Site, team_ids: Sequence[str], limit: int) -> None:
    engine = make_engine(site.database_url)
    try:
        store = BudgetStore(engine)
        for team_id in team_ids:
            await store.put(
                Budget(
                    budget_id=f"bud_{team_id}",
                    organisation_id="default",
                    scope="team",
                    scope_id=team_id,
                    period="month",
                    kind="hard",
                    limit_nanousd=limit,
                )
            )
    finally:
        await engine.dispose()


async def _call(session: aiohttp.ClientSession, url: str, key: str, body: dict[str, Any]) -> str:
    try:
        async with session.post(url, json=body, headers={"authorization": f"Bearer {key}"}) as reply:
            read = await reply.read()
            if reply.status in {200, 402}:
                return str(reply.status)
            if _ASIDE in read:
                return _ASIDE.decode()
            found = _CODE.search(read)
            return f"{reply.status} {found[1].decode() if found else ''}"
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        return type(error).__name__


async def _all_calls(stage: Stage, name: str, url: str, keys: dict[str, str], size: Size) -> Counter[str]:
    """Make every call, in a drawn order; return how they ended."""
    chance = random.Random(2026)
    calls = [(team_id, number) for team_id in keys for number in range(CALLS)]
    chance.shuffle(calls)
    waiting = [
        (
            keys[team_id],
            {
                "model": f"model-{chance.randrange(size.targets)}",
                "max_tokens": _MAX_TOKENS,
                "stream": chance.random() < 0.5,
                "messages": [{"role": "user", "content": prompt_of(team_id, number)}],
            },
        )
        for team_id, number in calls
    ]
    statuses: Counter[str] = Counter()
    again: Counter[str] = Counter()
    timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:

        async def one_caller() -> None:
            while waiting:
                key, body = waiting.pop()
                ended = await _call(session, f"{url}/v1/chat/completions", key, body)
                for _ in range(_TRIES):
                    if not ended.startswith("503"):
                        break
                    again[ended] += 1
                    await asyncio.sleep(_AGAIN_S)
                    ended = await _call(session, f"{url}/v1/chat/completions", key, body)
                statuses[ended] += 1

        async def tell() -> None:
            while True:
                await asyncio.sleep(_TELL_S)
                stage.say(f"{name}: {statuses.total():,} of {len(calls):,} calls, {dict(statuses)}")

        telling = asyncio.create_task(tell())
        try:
            await asyncio.gather(*(one_caller() for _ in range(size.at_once)))
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)
    stage.say(f"{name}: asked again after {dict(again)}")
    return statuses


async def _booked(site: Site) -> list[dict[str, Any]]:
    """Return what is booked and disputed by team, once no attempt is open any more."""
    give_up_at = time.monotonic() + _SETTLED_WITHIN_S
    while True:
        open_now = await site.select(
            "SELECT (SELECT count(*) FROM ledger_entry WHERE entry = 'reserve')"
            " - (SELECT count(*) FROM ledger_entry WHERE entry <> 'reserve') AS open"
        )
        if int(open_now[0]["open"]) == 0 or time.monotonic() > give_up_at:
            break
        await asyncio.sleep(0.5)
    return await site.select(
        "SELECT team_id, sum(cost_nanousd) AS booked, sum(disputed_nanousd) AS disputed"
        " FROM ledger_entry WHERE entry = 'settle' GROUP BY team_id"
    )


async def play(stage: Stage, size: Size, name: str, postgres: Postgres | None) -> dict[str, Any]:
    """Play one round on an upstream, gateways and a database of its own."""
    folder, port = own_folder(stage.folder, name), free_port()
    upstream = stage.python(f"upstream-{name}", "benchmarks.lying_upstream", "--port", str(port))
    upstream.wait_ready(f"http://127.0.0.1:{port}/account")
    address = {"kind": "openai", "base_url": f"http://127.0.0.1:{port}/v1"}
    site = await make_site(
        folder,
        [
            model(f"model-{n}", [{"name": "main", "upstream_model": f"model-{n}", **address}], prices=dict(DEAR_PRICES))
            for n in range(size.targets)
        ],
        database_url=await postgres.database() if postgres else None,
        # A busy machine is no overloaded gateway, and no database that does not answer.
        server={"max_lag_s": 0},
        cost={"budgets": {"patience_s": 30}},
        accounts={"lookup_timeout_s": 30},
        deadlines={"interactive": {"answer_s": 60}},
    )
    team_ids, limit = [f"team_{number}" for number in range(size.teams)], limit_nanousd()
    keys = dict(zip(team_ids, await add_teams(site, team_ids), strict=True))
    await _budgets(site, team_ids, limit)
    async with serving(site, "gateway", "--workers", str(WORKERS)) as server:
        stage.say(f"{name}: {size.teams} teams with ${limit / 1e9:.4f} each; {WORKERS} workers are ready")
        began = time.monotonic()
        statuses = await _all_calls(stage, name, server.url, keys, size)
        seconds = time.monotonic() - began
        rows = await _booked(site)
        aside = server.log.count("is set aside for hard budgets for a day: it")
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/account") as reply,
    ):
        account = await reply.json()
    upstream.stop()
    odd = sum(count for status, count in statuses.items() if status not in {"200", "402", "set aside"})
    if odd:
        stage.problems.append(f"{name}: {odd} calls ended oddly: {dict(statuses)}")
    return {
        "limit_nanousd": limit,
        "calls": statuses.total(),
        "statuses": dict(statuses),
        "answers": account["answers"],
        "seconds": seconds,
        "set_aside": aside,
        "ratios": sorted(account["true"].get(team_id, 0) / limit for team_id in team_ids),
        "most_else": max(
            (true / limit for team_id, true in account["true"].items() if not account["broke"].get(team_id)), default=0
        ),
        "true_nanousd": sum(account["true"].values()),
        "booked_nanousd": sum(int(row["booked"] or 0) for row in rows),
        "disputed_nanousd": sum(int(row["disputed"] or 0) for row in rows),
    }


def measure(stage: Stage) -> dict[str, Any]:
    size = QUICK if stage.quick else FULL

    async def both() -> dict[str, Any]:
        rounds = {"sqlite": await play(stage, size, "sqlite", None)}
        with maybe_postgres() as postgres:
            if postgres is not None:
                rounds["postgresql"] = await play(stage, size, "postgresql", postgres)
        return {"workers": WORKERS, "teams": size.teams, "targets": size.targets, "rounds": rounds}

    return asyncio.run(both())


def histogram(ratios: Sequence[float]) -> str:
    """Return how many budgets ended in which share of their limit, a line each."""
    lines = []
    for above, up_to in zip((-1.0, *_STEPS), (*_STEPS, float("inf")), strict=True):
        count = sum(above < ratio <= up_to for ratio in ratios)
        label = f"up to {up_to:.2f}" if up_to < float("inf") else f"above {above:.2f}"
        lines.append(f"  {label:>10}  {count:>4}  {'#' * -(-count * _BAR // max(1, len(ratios)))}".rstrip())
    return "\n".join(lines)


def show(report: dict[str, Any]) -> None:
    rounds: dict[str, dict[str, Any]] = report["rounds"]
    heads = [
        "",
        "calls",
        "answered",
        "lying",
        "p50",
        "p99",
        "max",
        "max, else",
        "true, $",
        "booked, $",
        "disputed, $",
        "set aside",
    ]
    rows = [
        [
            name,
            f"{found['calls']:,}",
            f"{found['statuses'].get('200', 0):,}",
            figures.share(1 - found["answers"].get("honest", 0) / max(1, sum(found["answers"].values()))),
            *(figures.number(figures.percentile(found["ratios"], share)) for share in (0.5, 0.99, 1.0)),
            figures.number(found["most_else"]),
            *(figures.number(found[f"{kind}_nanousd"] / 1e9, 4) for kind in ("true", "booked", "disputed")),
            str(found["set_aside"]),
        ]
        for name, found in rounds.items()
    ]
    print(figures.table(heads, rows))
    for name, found in rounds.items():
        print(f"\n{name}: budgets by true cost ÷ limit\n{histogram(found['ratios'])}")
    print("\nmax, else: among teams with no answer that was written to its end beyond its limit")
    print("set aside: times that a process found a target to break its bound")


if __name__ == "__main__":
    sys.exit(load_test.run("overspend", __doc__, measure, show))
