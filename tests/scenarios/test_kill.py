"""kill -9 of whole gateways under load: the books agree with what the upstream saw.

The upstream is a process of its own that writes down each request before it answers. Two gateways
share one database and one folder of journals; each is killed and started again, over and over, while
callers go on asking. Some kills hit a gateway that is still starting, and so perhaps recovering
another's journal; some hit one worker of several. `make soak-kill` kills more often than the suite does.
"""

import asyncio
import contextlib
import logging
import os
import random
import signal
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
import pytest
from pydantic import SecretStr

from cost.ledger.drain import unbooked_path
from cost.ledger.segments import boots, read_segment, segments_of
from gateway.configuration.environment import Environment
from gateway.database import make_engine
from proxy.parse.wires.chat.dialect import CHAT
from testing.scripted.log import LogLine
from tests.postgres import Postgres
from tests.processes import Oracle, Server, Site, make_site, oracle, start
from tests.proxy.exchanges import HeardExchange
from tests.running_gateway import PEPPER, gateway_at, model
from tests.scenarios.conftest import Upstream

_log: Final = logging.getLogger(__name__)

KILLS: Final = int(os.environ.get("WB_KILLS", "6"))
SEED: Final = int(os.environ.get("WB_SEED", "2026"))
CALLERS: Final = 32
HANGS_UP: Final = 0.15
ORPHANS_WITHIN_S: Final = 60.0
_OPEN: Final = (
    "entry = 'reserve' AND NOT EXISTS (SELECT 1 FROM ledger_entry AS c WHERE c.request_id = ledger_entry.request_id "
    "AND c.attempt = ledger_entry.attempt AND c.entry IN ('settle', 'void', 'expire'))"
)
SCRIPTS: Final = {
    "quick": "tokens-4",
    "steady": "tokens-12+every-10ms",
    "late": "slow-first-token-80ms+tokens-3",
    "cut": "tokens-8+every-10ms+cut-5",
    "broken": "error-500",
    "cached": "tokens-5+every-5ms+prompt-tokens-900+cached-tokens-512",
}


class Receipt(msgspec.Struct, frozen=True):
    """What one caller got, as far as it can tell."""

    request_id: str
    whole: bool


class Street(msgspec.Struct):
    """The gateways that may be asked right now, and what their callers got."""

    key: str
    urls: list[str] = []
    receipts: list[Receipt] = []
    closed: bool = False
    up_s: float = 0.0
    """How long gateways answered, together."""

    def closes(self, url: str) -> None:
        if url in self.urls:
            self.urls.remove(url)


async def _call_on(street: Street, chance: random.Random) -> None:
    """One caller: asks whoever is there, again and again, and takes every failure in its stride."""
    async with aiohttp.ClientSession(headers={"authorization": f"Bearer {street.key}"}) as session:
        while not street.closed:
            await asyncio.sleep(chance.uniform(0.0, 0.06))
            if street.urls:
                with contextlib.suppress(aiohttp.ClientError, ConnectionError):
                    await _ask(street, session, chance)


async def _ask(street: Street, session: aiohttp.ClientSession, chance: random.Random) -> None:
    stream = chance.random() < 0.5
    body = {
        "model": chance.choice([*SCRIPTS, "auto"]),
        "stream": stream,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
    }
    hangs_up_after = chance.randrange(8) if chance.random() < HANGS_UP else None
    async with session.post(f"{chance.choice(street.urls)}/v1/chat/completions", json=body) as reply:
        request_id = reply.headers["x-request-id"]
        whole = False
        try:
            read = [line async for line in _lines(reply, hangs_up_after)]
            done = b"data: [DONE]" in read if stream else bool(read)
            whole = reply.status == 200 and hangs_up_after is None and done
        finally:
            street.receipts.append(Receipt(request_id, whole))


async def _lines(reply: aiohttp.ClientResponse, at_most: int | None) -> AsyncIterator[bytes]:
    """The reply's lines; after so many of them the caller has had enough and closes."""
    count = 0
    async for line in reply.content:
        if at_most is not None and count >= at_most:
            reply.close()
            return
        count += 1
        yield line.strip()


async def _kill_over_and_over(site: Site, street: Street, lane: int, kills: int, chance: random.Random) -> None:
    for number in range(kills):
        server = start(site, f"gateway-{lane}-{number}")
        try:
            if chance.random() < 0.25:
                # While it starts: it may be recovering what its predecessor left.
                await asyncio.sleep(chance.uniform(0.05, 0.6))
            else:
                await _serve_until(server, street, chance.uniform(0.0, 0.4))
        finally:
            server.kill()
            street.closes(server.url)


async def _serve_until(server: Server, street: Street, moment_s: float) -> None:
    await server.listening()
    street.urls.append(server.url)
    await server.ready()
    await asyncio.sleep(moment_s)
    street.up_s += moment_s


async def _kill_workers(site: Site, street: Street, kills: int, chance: random.Random) -> None:
    """Two workers and a control plane, of which one dies now and then; the last kill takes them all."""
    server = start(site, "gateway-workers", "--workers", "2")
    try:
        await _serve_until(server, street, 0.2)
        for _ in range(kills - 1):
            with contextlib.suppress(ProcessLookupError, IndexError):
                os.kill(chance.choice(server.children()), signal.SIGKILL)
            pause_s = chance.uniform(0.1, 1.5)
            await asyncio.sleep(pause_s)
            street.up_s += pause_s
    finally:
        server.kill()
        street.closes(server.url)


async def _kill_under_load(site: Site, kills: int) -> Street:
    chance = random.Random(SEED)
    street = Street(site.key)
    callers = [asyncio.create_task(_call_on(street, random.Random(chance.random()))) for _ in range(CALLERS)]
    of_workers = min(5, kills // 5)
    first = (kills - of_workers) // 2
    async with asyncio.TaskGroup() as lanes:
        lanes.create_task(_kill_over_and_over(site, street, 0, first, random.Random(chance.random())))
        await _kill_workers(site, street, of_workers, chance)
        await _kill_over_and_over(site, street, 1, kills - of_workers - first, chance)
    street.closed = True
    await asyncio.gather(*callers)
    return street


async def _recover(site: Site) -> None:
    """One clean start and stop, after which no journal is left."""
    server = start(site, "gateway-last")
    try:
        await server.ready()
        async with asyncio.timeout(ORPHANS_WITHIN_S):
            while await site.rows(_OPEN):  # noqa: ASYNC110  The database tells nobody.
                await asyncio.sleep(0.2)
        assert await server.stop() == 0
    finally:
        server.kill()
    assert boots(site.journal) == []
    assert not unbooked_path(site.journal).exists()


def _check(seen: list[LogLine], rows: list[dict[str, Any]], receipts: Iterable[Receipt]) -> dict[str, int]:
    """The books against the upstream's own account. Returns what there was of each kind."""
    arrivals = Counter(line.request_id for line in seen if line.event == "arrived")
    reserves = {(row["request_id"], row["attempt"]): row for row in rows if row["entry"] == "reserve"}
    closings: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["entry"] != "reserve":
            closings[row["request_id"], row["attempt"]].append(row)

    booked = Counter(request_id for request_id, _ in reserves)
    assert {each: count for each, count in arrivals.items() if booked[each] < count} == {}
    assert reserves.keys() == closings.keys()
    assert {key: found for key, found in closings.items() if len(found) != 1} == {}
    assert len({(row["request_id"], row["attempt"], row["entry"]) for row in rows}) == len(rows)

    orphans = [row for row in rows if "orphaned" in row["flags"]]
    for row in orphans:
        assert (row["entry"], row["usage_source"]) == ("settle", "estimated")
        assert row["cost_nanousd"] <= reserves[row["request_id"], row["attempt"]]["cost_nanousd"]

    used = {line.request_id: line for line in seen if line.event == "ended" and line.completion_tokens}
    assert all(any(row["entry"] == "settle" for row in found) for found in _by_request(rows, used).values())
    whole = {receipt.request_id for receipt in receipts if receipt.whole}
    assert whole <= arrivals.keys()
    wrong = {
        request_id: found[-1]
        for request_id, found in _by_request(rows, whole & used.keys()).items()
        if (found[-1]["entry"], found[-1]["usage_source"], found[-1]["input_tokens"], found[-1]["output_tokens"])
        != ("settle", "upstream", used[request_id].prompt_tokens, used[request_id].completion_tokens)
    }
    assert wrong == {}
    return {
        "arrived": arrivals.total(),
        "attempts": len(reserves),
        "orphans": len(orphans),
        "whole": len(whole & used.keys()),
    }


def _by_request(rows: list[dict[str, Any]], wanted: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
    """The closing rows of these requests, in the order of their attempts."""
    found: dict[str, list[dict[str, Any]]] = {request_id: [] for request_id in wanted}
    for row in sorted(rows, key=lambda row: int(row["attempt"])):
        if row["entry"] != "reserve" and row["request_id"] in found:
            found[row["request_id"]].append(row)
    return found


async def _site(folder: Path, upstream: Oracle, database_url: str | None = None) -> Site:
    models = [model(name, [upstream.deployment(script)]) for name, script in SCRIPTS.items()]
    policy = {"fallbacks": {"broken": ["quick"]}}
    return await make_site(folder, models, database_url=database_url, policy=policy)


async def _story(folder: Path, kills: int, database_url: str | None = None) -> None:
    with oracle(folder) as upstream:
        site = await _site(folder, upstream, database_url)
        street = await _kill_under_load(site, kills)
        await _recover(site)
        seen = upstream.seen()
    found = _check(seen, await site.rows(), street.receipts)
    a_second = round(found["arrived"] / street.up_s)
    _log.info("%s", {"kills": kills, "answered": len(street.receipts), "a_second_while_up": a_second, **found})
    assert found["orphans"] > 0
    assert found["whole"] > kills


@pytest.mark.timeout(600)
async def test_kills_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    """Every request that the upstream saw is booked once and closed once, and whole answers to the token."""
    await _story(tmp_path, KILLS)


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_kills_with_a_database_that_outlives_the_gateway(tmp_path: Path, postgres: Postgres) -> None:
    """The same on PostgreSQL, which finishes or forgets what a dead gateway had begun."""
    await _story(tmp_path, 12, await postgres.database())


@pytest.mark.parametrize("stream", [True, False])
async def test_the_last_byte_of_an_answer_leaves_after_its_booking(
    tmp_path: Path, upstream: Upstream, stream: bool
) -> None:
    """What a kill finds unbooked, no caller has whole: the kernel has the settlement before the reply's end."""
    # The journal keeps what it gets.
    site = await make_site(tmp_path, [model("only", [upstream.deployment("ok")])], cost={"drain_interval_s": 60})
    environment = Environment(database_url=SecretStr(site.database_url), data_dir=tmp_path, pepper=SecretStr(PEPPER))
    body = msgspec.json.encode(
        {"model": "only", "stream": stream, "messages": [{"role": "user", "content": "hi"}]},
    )
    booked_by_then: list[str] = []

    def heard() -> None:
        if exchange.ended and not booked_by_then:
            paths = [path for boot_id in boots(site.journal) for path in segments_of(site.journal, boot_id)]
            booked_by_then.extend(entry.entry for path in paths for entry in read_segment(path) if entry)

    exchange = HeardExchange(body, [(b"authorization", f"Bearer {site.key}".encode())], heard=heard)
    engine = make_engine(site.database_url)
    async with gateway_at(site.config_path, environment, engine, site.key) as running:
        await running.live.line.serve(CHAT, exchange)
        # Its end waits for the next drain otherwise.
        await running.parts.finance.drain.drain_now()
    await engine.dispose()
    assert booked_by_then == ["reserve", "settle"]
