"""kill -9 of the processes that answer a batch: every line once in the results, and every call of the upstream booked.

Two gateways share one database, one folder of files and one of journals. Each is killed and started again while the batch
runs. `make soak-batch` has more lines and kills than the suite.
"""

import asyncio
import logging
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any, Final

import openai
import pytest

from tests.postgres import Postgres
from tests.processes import Server, Site, make_site, oracle, start
from tests.running_gateway import model
from tests.scenarios.test_batch import line, results, submit

_log: Final = logging.getLogger(__name__)
KILLS: Final = int(os.environ.get("WB_BATCH_KILLS", "4"))
LINES: Final = int(os.environ.get("WB_BATCH_LINES", "300"))
SEED: Final = int(os.environ.get("WB_SEED", "2026"))
_ENDED_WITHIN_S: Final = max(120.0, LINES * 0.5)
"""What is left after the last kill, on a machine that is much too busy."""
_DONE: Final = frozenset({"completed", "failed", "expired", "cancelled"})
_CLOSED: Final = ("settle", "void", "expire")


def _client(site: Site, server: Server) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key=site.key, base_url=server.base_url, max_retries=3)


async def _kill_over_and_over(site: Site, kills: int, lane: int, chance: random.Random) -> None:
    for number in range(kills):
        server = start(site, f"gateway-{lane}-{number}")
        try:
            await _ready(server)
            await asyncio.sleep(chance.uniform(0.2, 1.0))
        finally:
            server.kill()


async def _ready(server: Server) -> None:
    """Waits for it. Where that lasts too long, what it said last tells a slow machine from a gateway that is stuck."""
    try:
        await server.ready()
    except (AssertionError, TimeoutError):
        said = await asyncio.to_thread(server.log_path.read_text, errors="replace")
        pytest.fail(
            f"No verdict on lines and books: a gateway was not ready in time. Its log ends with:\n{said[-4_000:]}"
        )


async def _finished(site: Site, batch_id: str) -> tuple[Any, list[dict[str, Any]], list[dict[str, Any]]]:
    server = start(site, "gateway-last")
    try:
        await _ready(server)
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


async def _submitted(site: Site) -> str:
    server = start(site, "gateway-first")
    try:
        await _ready(server)
        async with _client(site, server) as caller:
            asked = [line(f"c{number}", "broken" if number % 50 == 7 else "steady") for number in range(LINES)]
            return (await submit(caller, asked)).id
    finally:
        # Perhaps in the middle of its validation.
        server.kill()


async def _story(folder: Path, database_url: str | None = None) -> None:
    with oracle(folder) as upstream:
        models = [
            model("steady", [upstream.deployment("tokens-3+every-30ms")]),
            model("broken", [upstream.deployment("error-400")]),
        ]
        batch_section = {"poll_s": 0.05, "lease_s": 1.0, "at_once": 8}
        site = await make_site(folder, models, database_url=database_url, batch=batch_section)
        batch_id = await _submitted(site)
        chance = random.Random(SEED)
        async with asyncio.TaskGroup() as lanes:
            for lane in range(2):
                lanes.create_task(_kill_over_and_over(site, KILLS // 2, lane, random.Random(chance.random())))
        batch, output, errors = await _finished(site, batch_id)
        seen = Counter(each.request_id for each in upstream.seen() if each.event == "arrived")
    rows = await site.rows()
    assert batch.status == "completed"
    told = [each["custom_id"] for each in (*output, *errors)]
    assert Counter(told) == Counter(f"c{number}" for number in range(LINES))
    assert (batch.request_counts.completed, batch.request_counts.failed) == (len(output), len(errors))
    assert len(errors) == len([number for number in range(LINES) if number % 50 == 7])
    # In the order of the input.
    assert [each["custom_id"] for each in output] == sorted((each["custom_id"] for each in output), key=_number)
    reserved = Counter((row["request_id"], row["attempt"]) for row in rows if row["entry"] == "reserve")
    closed = Counter((row["request_id"], row["attempt"]) for row in rows if row["entry"] in _CLOSED)
    # No call without its booking, and each booking closed once.
    assert seen.keys() <= {request_id for request_id, _ in reserved}
    assert set(reserved.values()) == {1}
    assert closed == reserved
    # The answer that was given was settled once, as the upstream counted it.
    settled = Counter(
        row["request_id"] for row in rows if row["entry"] == "settle" and not row["flags"].count("orphaned")
    )
    assert all(settled[each["response"]["request_id"]] == 1 for each in output)
    assert seen.total() >= LINES
    _log.info("%s", {"lines": LINES, "kills": KILLS, "calls": seen.total(), "repeated calls": seen.total() - LINES})


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
