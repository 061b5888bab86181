"""kill -9 of the processes that answer a batch: every line once in the results, and every call of the upstream booked.

Two gateways share one database, one folder of files and one of journals. Each is killed and started again while the batch
runs, whether it was ready by then or not. `make soak-batch` has more lines and kills than the suite, and says how far it is.
"""

import asyncio
import logging
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
import openai
import pytest

from tests.postgres import Postgres
from tests.processes import Oracle, Server, Site, make_site, oracle, start
from tests.running_gateway import model
from tests.scenarios.test_batch import line, results, submit

_log: Final = logging.getLogger(__name__)
KILLS: Final = int(os.environ.get("WB_BATCH_KILLS", "4"))
LINES: Final = int(os.environ.get("WB_BATCH_LINES", "300"))
SEED: Final = int(os.environ.get("WB_SEED", "2026"))
_EVERY_MS: Final = max(30, 2_800 * KILLS // LINES)
_AT_ONCE: Final = 8 if LINES >= 60 * KILLS else 2
"""Milliseconds between the three tokens of an answer, and lines at once: so few that the batch outlasts the kills."""
_SLOWEST_START_S: Final = 60.0
"""A gateway that was not ready by then is killed as it is."""
_ENDED_WITHIN_S: Final = max(180.0, LINES * 0.5)
"""What is left after the last kill, on a machine that is much too busy."""
_WITHIN_S: Final = (KILLS // 2 + 2) * _SLOWEST_START_S + _ENDED_WITHIN_S
_TELL_EVERY_S: Final = 10.0
_DONE: Final = frozenset({"completed", "failed", "expired", "cancelled"})
_CLOSED: Final = ("settle", "void", "expire")
_HANDED: Final = 20
"""Lines of each batch that goes to a provider."""
_MOMENTS: Final = (
    ("handing over", "state = 'making'"),
    ("waiting", "state = 'running'"),
    ("fetching", "answered > 0"),
)
_LOOKS: Final = 4_000


class _Told(msgspec.Struct):
    """What happened on the way to the verdict."""

    kills: int = 0
    kills_too_late: int = 0
    """Those after the batch had ended."""
    unready: int = 0
    """Kills of gateways that did not say that they were ready in time."""
    slowest_start_s: float = 0.0


# Every look at a batch would be a line beside those that tell how far it is.
logging.getLogger("httpx").setLevel(logging.WARNING)


def _client(site: Site, server: Server) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key=site.key, base_url=server.base_url, max_retries=3)


async def _kill_over_and_over(
    site: Site, batch_id: str, kills: int, lane: int, chance: random.Random, told: _Told
) -> None:
    for number in range(kills):
        name = f"gateway-{lane}-{number}"
        server = start(site, name)
        began = time.monotonic()
        try:
            async with asyncio.timeout(_SLOWEST_START_S):
                await server.ready()
            told.slowest_start_s = max(told.slowest_start_s, time.monotonic() - began)
            await asyncio.sleep(chance.uniform(0.2, 1.0))
        except TimeoutError:
            told.unready += 1
            said = await asyncio.to_thread(server.log_path.read_text, errors="replace")
            _log.warning("%s was not ready in time; its log ends with:\n%s", name, said[-2_000:])
        finally:
            server.kill()
        told.kills += 1
        told.kills_too_late += (await _row(site, batch_id))["status"] in _DONE


async def _row(site: Site, batch_id: str) -> dict[str, Any]:
    (row,) = await site.select(f"SELECT status, completed, failed FROM batch WHERE batch_id = '{batch_id}'")  # noqa: S608
    return row


@asynccontextmanager
async def _telling(site: Site, batch_id: str, told: _Told) -> AsyncIterator[None]:
    """Says now and then how far it is."""

    async def tell() -> None:
        began = time.monotonic()
        while True:
            await asyncio.sleep(_TELL_EVERY_S)
            batch = await _row(site, batch_id)
            _log.info(
                "after %d s: %d of %d kills, the batch is %s, %d of %d lines answered",
                time.monotonic() - began,
                told.kills,
                KILLS,
                batch["status"],
                batch["completed"] + batch["failed"],
                LINES,
            )

    telling = asyncio.create_task(tell())
    try:
        yield
    finally:
        telling.cancel()
        with suppress(asyncio.CancelledError):
            await telling


async def _finished(site: Site, batch_id: str) -> tuple[Any, list[dict[str, Any]], list[dict[str, Any]]]:
    server = start(site, "gateway-last")
    try:
        await server.ready()
        async with _client(site, server) as caller, asyncio.timeout(_ENDED_WITHIN_S):
            batch = await caller.batches.retrieve(batch_id)
            while batch.status not in _DONE:
                await asyncio.sleep(0.2)
                batch = await caller.batches.retrieve(batch_id)
            output = await results(caller, batch.output_file_id)
            errors = await results(caller, batch.error_file_id)
        assert await server.stop() == 0
        return batch, output, errors
    finally:
        server.kill()


async def _submitted(site: Site, asked: list[dict[str, Any]]) -> str:
    server = start(site, "gateway-first")
    try:
        await server.ready()
        async with _client(site, server) as caller:
            return (await submit(caller, asked)).id
    finally:
        # Perhaps in the middle of its validation.
        server.kill()


async def _survived(
    site: Site, asked: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], _Told]:
    """The output and errors of a batch whose gateways were killed all the time: every line in one of the two, once and in order."""
    told = _Told()
    try:
        async with asyncio.timeout(_WITHIN_S):
            batch_id = await _submitted(site, asked)
            chance = random.Random(SEED)
            async with _telling(site, batch_id, told):
                async with asyncio.TaskGroup() as lanes:
                    for lane in range(2):
                        lane_chance = random.Random(chance.random())
                        lanes.create_task(_kill_over_and_over(site, batch_id, KILLS // 2, lane, lane_chance, told))
                batch, output, errors = await _finished(site, batch_id)
    except TimeoutError:
        pytest.fail(f"No verdict on lines and books: it was not over within {_WITHIN_S:.0f} s, after {told}.")
    assert batch.status == "completed"
    names = [each["custom_id"] for each in (*output, *errors)]
    assert Counter(names) == Counter(each["custom_id"] for each in asked)
    assert (batch.request_counts.completed, batch.request_counts.failed) == (len(output), len(errors))
    assert [each["custom_id"] for each in output] == sorted((each["custom_id"] for each in output), key=_number)
    return output, errors, told


async def _booked_once(site: Site, output: list[dict[str, Any]]) -> set[str]:
    """Each reservation is closed once, and each answer that was given settled once; returns the requests that were reserved."""
    rows = await site.rows()
    reserved = Counter((row["request_id"], row["attempt"]) for row in rows if row["entry"] == "reserve")
    closed = Counter((row["request_id"], row["attempt"]) for row in rows if row["entry"] in _CLOSED)
    assert set(reserved.values()) == {1}
    assert closed == reserved
    settled = Counter(
        row["request_id"] for row in rows if row["entry"] == "settle" and not row["flags"].count("orphaned")
    )
    assert all(settled[each["response"]["request_id"]] == 1 for each in output)
    return {request_id for request_id, _ in reserved}


async def _story(folder: Path, database_url: str | None = None) -> None:
    with oracle(folder) as upstream:
        models = [
            model("steady", [upstream.deployment(f"tokens-3+every-{_EVERY_MS}ms")]),
            model("broken", [upstream.deployment("error-400")]),
        ]
        batch_section = {"poll_s": 0.05, "lease_s": 1.0, "at_once": _AT_ONCE}
        site = await make_site(folder, models, database_url=database_url, batch=batch_section)
        asked = [line(f"c{number}", "broken" if number % 50 == 7 else "steady") for number in range(LINES)]
        output, errors, told = await _survived(site, asked)
        seen = Counter(each.request_id for each in upstream.seen() if each.event == "arrived")
    assert len(errors) == len([number for number in range(LINES) if number % 50 == 7])
    # No call without its booking.
    assert seen.keys() <= await _booked_once(site, output)
    assert seen.total() >= LINES
    repeated = seen.total() - LINES
    _log.info("kept: %d lines, %d calls, of which %d were repeats; %s", LINES, seen.total(), repeated, told)


async def _handed_story(folder: Path, database_url: str, api: str) -> None:
    """Lines that wait in a provider's batches while the gateways that hand them over and fetch them are killed."""
    script = "slow-first-token-700ms"
    prices = {"input": "2", "output": "10", "batch_discount": "0.5", "version": "test"}
    with oracle(folder) as upstream:
        deployment = upstream.deployment(script, batch_api=api)
        if api == "anthropic":
            deployment |= {"kind": "litellm", "upstream_model": f"anthropic/{script}", "api_key": "env:MADE_UP_KEY"}
        batch_section = {"poll_s": 0.05, "lease_s": 1.0, "at_once": 8, "providers": True, "provider_poll_s": 0.1}
        site = await make_site(
            folder,
            [model("bought", [deployment], prices=prices)],
            database_url=database_url,
            variables={"MADE_UP_KEY": "k"},
            batch=batch_section,
        )
        ids: list[str] = []
        hit: Counter[str] = Counter()
        async with asyncio.timeout(_WITHIN_S):
            for number in range(KILLS):
                hit[await _killed_while(site, number, ids)] += 1
                _log.info("%d of %d kills: %s", number + 1, KILLS, dict(hit))
            output = await _all_answered(site, ids)
        made = await _made_there(upstream, api)
        arrived = Counter(each.request_id for each in upstream.seen() if each.event == "arrived")
        paid = {each.request_id for each in upstream.seen() if each.event == "ended"}
    handed = await site.select("SELECT * FROM handed_batch")
    assert Counter(each["custom_id"] for each in output) == Counter(
        f"k{kill}-{number}" for kill in range(KILLS) for number in range(_HANDED)
    )
    # None was forgotten at the provider: what it has is ours, and nothing waits there.
    assert made <= {row["upstream_id"] for row in handed}
    assert max(arrived.values()) == 1
    await _booked_once(site, output)
    assert sum(row["answered"] + row["unneeded"] + row["estimated"] for row in handed) == len(paid)
    assert len(await site.rows("entry = 'settle'")) == len(paid) >= len(output)
    outcomes = dict(Counter(row["outcome"] for row in handed))
    _log.info("kept: %d lines, %d paid for, %s, killed while %s", len(output), len(paid), outcomes, dict(hit))


async def _killed_while(site: Site, number: int, ids: list[str]) -> str:
    """Gives a batch to a gateway, and kills it at one of the moments that matter; tells which."""
    moment, met = _MOMENTS[number % len(_MOMENTS)]
    server = start(site, f"gateway-{number}")
    try:
        await server.ready()
        async with _client(site, server) as caller:
            asked = [line(f"k{number}-{each}", "bought") for each in range(_HANDED)]
            ids.append((await submit(caller, asked, completion_window="background")).id)
        for _ in range(_LOOKS):
            if await site.select(f"SELECT 1 FROM handed_batch WHERE batch_id = '{ids[-1]}' AND {met}"):  # noqa: S608
                return moment
            await asyncio.sleep(0.002)
        return "nothing of it was seen"
    finally:
        server.kill()


async def _all_answered(site: Site, ids: list[str]) -> list[dict[str, Any]]:
    """The answers of all batches, once no provider's batch is open any more."""
    server = start(site, "gateway-last")
    try:
        await server.ready()
        async with _client(site, server) as caller:
            output: list[dict[str, Any]] = []
            for batch_id in ids:
                batch = await caller.batches.retrieve(batch_id)
                while batch.status not in _DONE:
                    await asyncio.sleep(0.2)
                    batch = await caller.batches.retrieve(batch_id)
                assert (batch.status, batch.error_file_id) == ("completed", None)
                output += await results(caller, batch.output_file_id)
            left = True
            while left:
                left = bool(await site.select("SELECT 1 FROM handed_batch WHERE state != 'ended'"))
                await asyncio.sleep(0.2)
        assert await server.stop() == 0
        return output
    finally:
        server.kill()


async def _made_there(upstream: Oracle, api: str) -> set[str]:
    """The ids of all batches that the provider has."""
    path = "batches" if api == "openai" else "messages/batches"
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{upstream.url}/{path}?limit=1000") as reply:
            page = await reply.json()
        assert not page["has_more"]
        async with session.get(f"{upstream.url}/files") as reply:
            assert (await reply.json())["data"] == []
    return {each["id"] for each in page["data"]}


def _number(custom_id: str) -> int:
    return int(custom_id[1:])


@pytest.mark.long
@pytest.mark.timeout(14_400)
async def test_kills_lose_no_line_and_answer_none_twice(tmp_path: Path) -> None:
    """On SQLite."""
    await _story(tmp_path)


@pytest.mark.long
@pytest.mark.timeout(14_400)
async def test_kills_on_a_database_that_outlives_them(tmp_path: Path, postgres: Postgres) -> None:
    """The same on PostgreSQL."""
    await _story(tmp_path, await postgres.database())


@pytest.mark.long
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("api", ["openai", "anthropic"])
async def test_kills_while_a_providers_batches_are_out(tmp_path: Path, database_url: str, api: str) -> None:
    """Every line is answered once and booked once, and no batch is forgotten there, on SQLite and on PostgreSQL."""
    await _handed_story(tmp_path, database_url, api)
