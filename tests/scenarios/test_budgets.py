"""A hard budget before whole gateways: two processes, faults, and a kill -9 in the middle.

What the upstream truly did is priced from its own account, so that nothing that the books might have missed counts less.
Nobody hangs up here: what an upstream still makes for a caller who is gone, nobody ever tells.
"""

import asyncio
import contextlib
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from decimal import Decimal
from pathlib import Path
from typing import Final

import aiohttp
import msgspec
import pytest
from aiohttp import web
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.budgets.budget import Budget
from cost.budgets.store import BudgetStore
from cost.prices import nanousd
from gateway.database import make_engine
from testing.scripted.upstream import completion, script_named
from tests.cost.ledger.verified import verify
from tests.postgres import Postgres
from tests.processes import Oracle, Server, make_site, oracle, start, until
from tests.running_gateway import DEAR_PRICES, model, running_gateway

LIMIT_USD: Final = Decimal("0.03")
SCRIPTS: Final = {
    "quick": "tokens-20+prompt-tokens-10",
    "steady": "tokens-30+every-10ms+prompt-tokens-10",
    "cut": "tokens-20+every-5ms+cut-9+prompt-tokens-10",
    "broken": "error-500",
    "mute": "tokens-16+no-usage+prompt-tokens-10",
}
MAX_TOKENS: Final = 30
CALLERS: Final = 24
DAY_US: Final = 86_400_000_000
_ANSWER: Final = script_named("tokens-5+prompt-tokens-10")


async def _call_on(urls: list[str], key: str, chance: random.Random, statuses: Counter[int]) -> None:
    """Asks until a budget refuses three times in a row; whatever else happens is taken in its stride."""
    refused = 0
    async with aiohttp.ClientSession(headers={"authorization": f"Bearer {key}"}) as session:
        while refused < 3:
            if not urls:
                await asyncio.sleep(0.02)
                continue
            body = {
                "model": chance.choice([*SCRIPTS, "auto"]),
                "stream": chance.random() < 0.5,
                "max_tokens": MAX_TOKENS,
                "messages": [{"role": "user", "content": "What is the capital of France?"}],
            }
            with contextlib.suppress(aiohttp.ClientError, ConnectionError):
                async with session.post(f"{chance.choice(urls)}/v1/chat/completions", json=body) as reply:
                    statuses[reply.status] += 1
                    refused = refused + 1 if reply.status == 402 else 0
                    await reply.read()


def _used_nanousd(upstream: Oracle) -> int:
    """What the upstream's own account comes to. What failed before its first token is not charged."""
    prices = {name: nanousd(DEAR_PRICES[name]) for name in ("input", "output")}
    ended = (line for line in upstream.seen() if line.event != "arrived" and line.completion_tokens)
    tokens = [(line.prompt_tokens, line.completion_tokens) for line in ended]
    return sum(prompt * prices["input"] + answer * prices["output"] for prompt, answer in tokens) // 1_000_000


async def _budget(engine: AsyncEngine) -> tuple[int, int]:
    """What is spent of it, and what is held."""
    async with engine.connect() as connection:
        spent = await connection.exec_driver_sql("SELECT sum(spent_nanousd) FROM spend_day WHERE scope = 'team'")
        held = await connection.exec_driver_sql("SELECT sum(granted_nanousd) FROM budget_grant")
        return int(spent.scalar() or 0), int(held.scalar() or 0)


@pytest.mark.long
@pytest.mark.timeout(180)
async def test_a_hard_budget_outlives_a_kill(tmp_path: Path, postgres: Postgres) -> None:
    """Nothing is overrun, by the books or by the upstream's own account; in the end nothing is held for the dead."""
    limit = nanousd(LIMIT_USD)
    chance = random.Random(2026)
    with oracle(tmp_path) as upstream:
        models = [model(name, [upstream.deployment(script)], max_output_tokens=100) for name, script in SCRIPTS.items()]
        site = await make_site(
            tmp_path,
            models,
            database_url=await postgres.database(),
            providers={"breaker": {"consecutive_failures": 1_000}},
            cost={"budgets": {"poll_s": 0.3}},
        )
        made = await site.run(
            "budgets", "set", "team", "team_a", "--period", "month", "--limit", str(LIMIT_USD), "--hard"
        )
        assert made.returncode == 0, made.stderr
        servers: list[Server] = [start(site, f"gateway-{number}") for number in range(2)]
        engine = make_engine(site.database_url)
        try:
            for server in servers:
                await server.ready()
            urls = [server.url for server in servers]
            statuses: Counter[int] = Counter()
            callers = [
                asyncio.create_task(_call_on(urls, site.key, random.Random(chance.random()), statuses))
                for _ in range(CALLERS)
            ]
            await until(lambda: statuses[200] > 30)
            urls.remove(servers[0].url)
            servers[0].kill()
            servers.append(start(site, "gateway-2"))
            await servers[-1].ready()
            urls.append(servers[-1].url)
            await asyncio.gather(*callers)
            assert _used_nanousd(upstream) <= limit

            async def at_rest() -> bool:
                return (await _budget(engine))[1] == 0

            await until(at_rest)
            # Alone now, so nobody else holds anything: what is left can be spent to the last request that fits.
            await _call_on(urls, site.key, random.Random(1), statuses)
            await until(at_rest)
            spent, _ = await _budget(engine)
            # What did not fit any more is less than the most that one request may cost.
            assert limit - 2_000_000 < spent <= limit
            assert _used_nanousd(upstream) <= spent
        finally:
            for server in servers:
                server.kill()
            await engine.dispose()
    rows = await site.rows()
    engine = make_engine(site.database_url)
    try:
        start_us = int(rows[0]["at_us"]) // DAY_US * DAY_US
        assert await verify(engine, start_us, start_us + 2 * DAY_US) == []
    finally:
        await engine.dispose()


@contextlib.asynccontextmanager
async def _answering_after(moment: asyncio.Event) -> AsyncIterator[str]:
    """The address of an upstream that answers nobody before this moment."""

    async def chat(_request: web.Request) -> web.Response:
        await moment.wait()
        return web.Response(body=completion(_ANSWER, "slow", ""), content_type="application/json")

    async with _serving(chat) as address:
        yield address


@contextlib.asynccontextmanager
async def _serving(chat: Callable[[web.Request], Awaitable[web.Response]]) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=1_024).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


@pytest.mark.timeout(180)
async def test_of_a_thousand_at_once_exactly_as_many_pass_as_fit(tmp_path: Path) -> None:
    """All ask before the first is answered: each that is served was held, each other got 402, and nothing is overrun."""
    all_asked = asyncio.Event()
    timeouts = {"first_token_interactive_s": 60}
    async with (
        _answering_after(all_asked) as address,
        running_gateway(
            tmp_path,
            [model("slow", [{"name": "main", "kind": "openai", "base_url": address, "upstream_model": "slow"}])],
            providers={"timeouts": timeouts},
        ) as gateway,
    ):
        limit = nanousd(Decimal("0.0500001"))
        budget = Budget(
            budget_id="b",
            organisation_id="default",
            scope="team",
            scope_id="team_a",
            period="month",
            kind="hard",
            limit_nanousd=limit,
        )
        await BudgetStore(gateway.engine).put(budget)
        holds = gateway.data.holds
        await holds.poll()
        body = {"model": "slow", "max_tokens": 50, "messages": [{"role": "user", "content": "What is a weighbridge?"}]}
        headers = {"authorization": f"Bearer {gateway.key}"}
        connector = aiohttp.TCPConnector(limit=0)

        async with aiohttp.ClientSession(headers=headers, connector=connector) as session:

            async def ask() -> int:
                async with session.post(f"{gateway.base_url}/chat/completions", json=body) as reply:
                    await reply.read()
                    return reply.status

            asking = [asyncio.ensure_future(ask()) for _ in range(1_000)]
            await until(lambda: len(holds._open) + sum(each.done() for each in asking) == 1_000)
            amounts = {hold.amount_nanousd for hold in holds._open.values()}
            assert len(amounts) == 1
            fit = limit // amounts.pop()
            assert len(holds._open) == fit
            all_asked.set()
            statuses = Counter(await asyncio.gather(*asking))
        assert statuses == {200: fit, 402: 1_000 - fit}
        rows = await gateway.rows("entry = 'settle'")
        assert len(rows) == fit
        assert sum(row["cost_nanousd"] for row in rows) <= limit
        assert holds._open == {}


@pytest.mark.timeout(120)
async def test_what_the_rest_of_a_budget_pays_for_is_asked_for(tmp_path: Path) -> None:
    """No caller's `max_tokens`, and no room for the longest answer: the upstream gets what fits, the caller is told, and what is
    too little is refused with the size that would fit.
    """
    asked: list[dict[str, object]] = []

    async def chat(request: web.Request) -> web.Response:
        asked.append(await request.json())
        return web.Response(body=completion(_ANSWER, "slow", ""), content_type="application/json")

    async with _serving(chat) as address:
        deployment = {"name": "main", "kind": "openai", "base_url": address, "upstream_model": "slow"}
        async with running_gateway(tmp_path, [model("slow", [deployment], max_output_tokens=30_000)]) as gateway:
            store, holds = BudgetStore(gateway.engine), gateway.data.holds
            budget = Budget(
                budget_id="b",
                organisation_id="default",
                scope="team",
                scope_id="team_a",
                period="month",
                kind="hard",
                limit_nanousd=nanousd(Decimal("0.10")),
            )
            body = {"model": "slow", "messages": [{"role": "user", "content": "What is a weighbridge?"}]}
            async with aiohttp.ClientSession(headers={"authorization": f"Bearer {gateway.key}"}) as session:

                async def ask(limit: str, **more: object) -> tuple[int, str | None, str]:
                    await store.put(msgspec.structs.replace(budget, limit_nanousd=nanousd(Decimal(limit))))
                    await holds.poll()
                    async with session.post(f"{gateway.base_url}/chat/completions", json={**body, **more}) as reply:
                        text = await reply.text()
                        return reply.status, reply.headers.get("x-weighbridge-budget-max-tokens"), text

                status, most, _ = await ask("0.10")
                assert (status, asked[-1]["max_tokens"]) == (200, int(most or 0))
                assert 256 <= int(most or 0) < 30_000
                # What the caller asks for is cut alike, and left alone where it fits.
                status, most, _ = await ask("0.10", max_tokens=20_000)
                assert (status, asked[-1]["max_tokens"]) == (200, int(most or 0))
                assert (await ask("0.10", max_tokens=300))[:2] == (200, None)
                assert asked[-1]["max_tokens"] == 300
                seen = len(asked)
                status, _, text = await ask("0.0020")
                fits = int(re.findall(r"at most (\d+) tokens", text)[0])
                assert (status, 0 < fits < 256) == (402, True)
                status, _, text = await ask("0.00035")
                assert (status, "does not pay for the prompt" in text) == (402, True)
                assert len(asked) == seen
                assert (await ask("0.0020", max_tokens=fits))[:2] == (200, None)
            rows = await gateway.rows("entry = 'settle'")
            assert len(rows) == 4
