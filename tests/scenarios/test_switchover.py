"""A switchover of PostgreSQL under a whole gateway: two workers, a control plane, journals, pages of the fleet's keys."""

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.postgres import postgres_binaries
from tests.postgres_pair import PostgresPair, postgres_pair
from tests.processes import make_site, oracle, start, until
from tests.running_gateway import model

pytestmark = pytest.mark.long


@pytest.fixture
def pair() -> Iterator[PostgresPair]:
    """A primary and its standby."""
    binaries = postgres_binaries()
    if binaries is None or not (binaries / "pg_basebackup").exists():
        pytest.skip("no PostgreSQL with pg_basebackup on this machine")
    with postgres_pair(binaries) as found:
        yield found


async def test_what_is_answered_during_a_switchover_is_booked(tmp_path: Path, pair: PostgresPair) -> None:
    """Callers are answered all along, the gateway is ready again by itself, and each answer is in the new primary's ledger."""
    name = (await pair.server().database()).rpartition("/")[2]
    url = f"postgresql://postgres@127.0.0.1:{pair.port},127.0.0.1:{pair.standby_port}/{name}"
    with oracle(tmp_path) as upstream:
        site = await make_site(tmp_path, [model("cheap", [upstream.deployment("tokens-4")])], database_url=url)
        server = start(site, "gateway", "--workers", "2")
        try:
            await server.ready()
            async with openai.AsyncOpenAI(api_key=site.key, base_url=server.base_url, max_retries=0) as ask:
                answered = 0
                for _ in range(20):
                    await ask.chat.completions.create(model="cheap", messages=[{"role": "user", "content": "Hello."}])
                    answered += 1
                await pair.switch_over()
                since = time.monotonic()
                for _ in range(20):
                    await ask.chat.completions.create(model="cheap", messages=[{"role": "user", "content": "Hello."}])
                    answered += 1

                async def booked() -> bool:
                    try:
                        return len(await site.rows("entry = 'settle'")) == answered
                    except OSError:
                        return False

                await until(booked)
                print(f"all is booked {time.monotonic() - since:.2f} s after the promotion")  # noqa: T201

                async def is_ready() -> bool:
                    async with httpx.AsyncClient() as client:
                        return (await client.get(f"{server.url}/readyz")).status_code == 200

                await until(is_ready)
        finally:
            server.kill()
