"""The books against the upstream's own account, over many requests with faults drawn at random.

`make soak-books` asks a hundred thousand times, the suite fewer. The upstream is a process of its own that writes down what
each call truly used. Where it also told that, the books have it to the token; where it did not, they have an estimate
that says so, and never a figure that could not be.
"""

import asyncio
import contextlib
import itertools
import json
import logging
import os
import random
from collections import Counter, defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from cost.prices import nanousd
from gateway.database import make_engine
from testing.scripted.log import LogLine
from tests.cost.ledger.verified import verify
from tests.postgres import Postgres
from tests.processes import Oracle, Server, Site, make_site, oracle, start
from tests.running_gateway import CHEAP_PRICES, model

_log: Final = logging.getLogger(__name__)

REQUESTS: Final = int(os.environ.get("WB_REQUESTS", "400"))
SEED: Final = int(os.environ.get("WB_SEED", "2026"))
CALLERS: Final = 32
HANGS_UP: Final = 0.05

TELLING: Final = {
    "quick": "tokens-4",
    "long": "tokens-30+prompt-tokens-2000",
    "cached": "tokens-5+prompt-tokens-900+cached-tokens-512",
    "broken": "error-500",
    "busy": "error-429",
    "malformed": "tokens-5+malformed-3",
    "late": "slow-first-token-800ms+tokens-3",
}
"""Bought targets, and their scripts. One of them breaks in the middle, one is too slow for its deadline."""
OWN: Final = {"own": "tokens-12+prompt-tokens-300", "own-cut": "tokens-12+prompt-tokens-300+cut-7"}
"""On vLLM's wire, which tells the usage so far on every chunk: exact also where the stream was cut."""
SILENT: Final = {"mute": "tokens-6+no-usage", "absurd": "tokens-6+absurd-usage", "cut": "tokens-20+cut-8"}
"""What they used, nobody says, or nobody in his right mind."""


def _models(upstream: Oracle) -> list[dict[str, Any]]:
    bought = {**TELLING, **SILENT}
    return [
        *(model(name, [upstream.deployment(script)]) for name, script in bought.items()),
        *(model(name, [upstream.deployment(script, kind="vllm")], prices=CHEAP_PRICES) for name, script in OWN.items()),
    ]


async def _ask(session: aiohttp.ClientSession, url: str, chance: random.Random) -> None:
    name = chance.choice([*TELLING, *OWN, *SILENT])
    body = {
        "model": name,
        "stream": chance.random() < 0.5,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
    }
    headers = {"x-weighbridge-tag": chance.choice(["search", "chat"])} if chance.random() < 0.5 else {}
    hangs_up_after = chance.randrange(6) if chance.random() < HANGS_UP else None
    with contextlib.suppress(aiohttp.ClientError, ConnectionError):
        async with session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as reply:
            count = 0
            async for _ in reply.content:
                count += 1
                if hangs_up_after is not None and count > hangs_up_after:
                    reply.close()
                    return


async def _ask_all(server: Server, site: Site, requests: int) -> None:
    left = iter(range(requests))
    chance = random.Random(SEED)

    async def caller(own: random.Random) -> None:
        async with aiohttp.ClientSession(headers={"authorization": f"Bearer {site.key}"}) as session:
            for number in left:
                await _ask(session, server.url, own)
                if number and number % 10_000 == 0:
                    _log.info("%d of %d asked", number, requests)

    await asyncio.gather(*(caller(random.Random(chance.random())) for _ in range(CALLERS)))


def _per_request(seen: list[LogLine]) -> dict[str, list[LogLine]]:
    """The calls that are over, by request, in the order of their end."""
    found: dict[str, list[LogLine]] = defaultdict(list)
    for line in seen:
        if line.event != "arrived":
            found[line.request_id].append(line)
    return found


def _check(seen: list[LogLine], rows: list[dict[str, Any]]) -> Counter[str]:
    """Every call of the upstream's own account is booked once, and to the token where it could be.

    On a slow machine an attempt may be given up after it was written to a connection and before the upstream read it. It
    is booked all the same, for we cannot know: at nothing, or at a guess that says why.
    """
    reserves = Counter(row["request_id"] for row in rows if row["entry"] == "reserve")
    closings: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: int(row["attempt"])):
        if row["entry"] != "reserve":
            closings[row["request_id"]].append(row)
    assert reserves == Counter({request_id: len(found) for request_id, found in closings.items()})
    arrived = Counter(line.request_id for line in seen if line.event == "arrived")
    assert {each: count for each, count in arrived.items() if reserves[each] < count} == {}
    kinds: Counter[str] = Counter()
    calls = _per_request(seen)
    for request_id, rows_of in closings.items():
        kinds += _match(calls.get(request_id, []), rows_of)
    return kinds


def _match(calls: list[LogLine], rows: list[dict[str, Any]]) -> Counter[str]:
    """How one request's calls were booked, in their order, and how what the upstream never read."""
    missed = len(rows) - len(calls)
    wrong: AssertionError | None = None
    for unseen in itertools.combinations([row for row in rows if _may_be_unseen(row)], missed):
        read = [row for row in rows if row not in unseen]
        try:
            return Counter([*map(_compare, calls, read), *["unseen"] * missed])
        except AssertionError as error:
            wrong = error
    raise wrong or AssertionError((calls, rows))


def _may_be_unseen(row: dict[str, Any]) -> bool:
    """Nothing came of it, and it costs nothing or is a guess at its prompt that tells how it ended."""
    if row["output_tokens"]:
        return False
    if row["entry"] == "void":
        return bool(row["cost_nanousd"] == 0)
    return row["usage_source"] == "estimated" and (
        "first_token_timeout" in row["flags"] or "caller_gone" in row["flags"]
    )


def _compare(call: LogLine, row: dict[str, Any]) -> str:
    """How one call was booked. Fails when it is not as it must be."""
    booked = (row["input_tokens"], row["output_tokens"])
    true = (call.prompt_tokens, call.completion_tokens)
    if row["entry"] == "void":
        # An error status, or a caller who was gone before anything was sent: no work, no tokens.
        assert call.completion_tokens == 0 or not call.stream, (call, row)
        assert row["cost_nanousd"] == 0
        return "void"
    assert row["entry"] == "settle"
    if row["usage_source"] == "upstream":
        if call.event == "ended" and "caller_gone" not in row["flags"]:
            assert booked == true, (call, row)
            return "exact"
        # Cut, or the caller hung up: what flowed to us was counted by the engine itself, and it may have made a few
        # more that never reached us, or even all that it was going to.
        assert row["input_tokens"] == call.prompt_tokens, (call, row)
        assert row["output_tokens"] <= call.completion_tokens, (call, row)
        return "exact so far"
    assert row["usage_source"] == "estimated"
    assert row["flags"] != "[]", row
    return "estimated"


@pytest.mark.timeout(120 + REQUESTS // 20)
async def test_the_books_equal_the_upstreams_own(tmp_path: Path, postgres: Postgres) -> None:
    """To the token where it told, flagged where it did not; the roll-ups and the usage API add up to the same money."""
    with oracle(tmp_path) as upstream:
        timeouts = {"first_token_interactive_s": 0.4, "total_s": 5}
        breaker = {"consecutive_failures": 1_000}
        site = await make_site(
            tmp_path,
            _models(upstream),
            database_url=await postgres.database(),
            providers={"timeouts": timeouts, "breaker": breaker},
            cost={"reference_target": "quick"},
        )
        server = start(site, "gateway", "--workers", "2")
        try:
            await server.ready()
            await _ask_all(server, site, REQUESTS)
            told = await _usage(server, site)
            assert await server.stop() == 0
        finally:
            server.kill()
        seen = upstream.seen()
    rows = await site.rows()
    kinds = _check(seen, rows)
    _log.info("%s", {"requests": REQUESTS, "calls": kinds.total(), **kinds})
    assert kinds["exact"] > REQUESTS // 5
    assert kinds["exact so far"] > 0
    assert kinds["estimated"] > 0
    booked = sum(row["cost_nanousd"] for row in rows if row["entry"] != "reserve")
    assert nanousd(told["cost_usd"]) == booked
    engine = make_engine(site.database_url)
    try:
        days = sorted(int(row["at_us"]) for row in rows)
        assert await verify(engine, days[0] - days[0] % 86_400_000_000, days[-1] + 86_400_000_000) == []
    finally:
        await engine.dispose()


async def _usage(server: Server, site: Site) -> dict[str, Any]:
    """Today's figures once every worker's journal has been drained."""
    before: Any = None
    for _ in range(100):
        async with (
            aiohttp.ClientSession(headers={"authorization": f"Bearer {site.key}"}) as session,
            session.get(f"{server.url}/v1/usage") as reply,
        ):
            assert reply.status == 200
            found: dict[str, Any] = json.loads(await reply.read(), parse_float=Decimal)
        if found == before:
            return found
        before = found
        await asyncio.sleep(0.5)
    raise AssertionError("the books never came to rest")
