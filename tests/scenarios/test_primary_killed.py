"""PostgreSQL's primary is killed (-9, all its processes) under the load of two gateways, and its standby is promoted: the books after it.

Cases of others: an outage in the middle of a batch that loses it for good (LiteLLM PR 37387), pools that stay at the server that was
replaced (gpustack #6105, npgsql/efcore.pg #1306), two servers that take writes (canonical/postgresql-operator #1152), commits that wait
for a standby that never answers (multigres PR 1068).
"""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import aiohttp
import asyncpg
import pytest

from cost.ledger.journal_places import read_places
from cost.ledger.segments import boots, read_drained
from gateway.database import make_engine
from tests.postgres import postgres_binaries
from tests.postgres_pair import PostgresPair, postgres_pair
from tests.processes import Oracle, Site, make_site, oracle, until
from tests.running_gateway import model
from tests.scenarios.test_two_hosts import Host

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

_ENOUGH: Final = 60
"""Answers of a host between two steps."""


@pytest.fixture
def pair(request: pytest.FixtureRequest) -> Iterator[PostgresPair]:
    """A primary and its standby, which it waits for where the test says so."""
    binaries = postgres_binaries()
    if binaries is None or not (binaries / "pg_basebackup").exists():
        pytest.skip("no PostgreSQL with pg_basebackup on this machine")
    with postgres_pair(binaries, synchronous=request.param == "synchronous") as found:
        yield found


class _Callers:
    """Callers of one host that ask until they are stopped, and whom it answered."""

    def __init__(self, host: Host, key: str) -> None:
        self.answered: list[str] = []
        self._url = host.server.base_url
        self._key = key
        self._tasks = [asyncio.create_task(self._ask_on()) for _ in range(3)]

    async def _ask_on(self) -> None:
        body = {"model": "cheap", "messages": [{"role": "user", "content": "hi"}]}
        async with aiohttp.ClientSession(headers={"authorization": f"Bearer {self._key}"}) as session:
            while True:
                async with session.post(f"{self._url}/chat/completions", json=body) as reply:
                    assert reply.status == 200, await reply.text()
                    await reply.read()
                self.answered.append(reply.headers["x-request-id"])

    async def more(self) -> None:
        """Returns after some more answers; an error of a caller is raised."""
        least = len(self.answered) + _ENOUGH
        while len(self.answered) < least:
            for task in self._tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.05)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        for ended in await asyncio.gather(*self._tasks, return_exceptions=True):
            assert isinstance(ended, asyncio.CancelledError), ended


async def _hosts(folder: Path, pair: PostgresPair, upstream: Oracle) -> list[Host]:
    name = (await pair.server().database()).rpartition("/")[2]
    url = f"postgresql://postgres@127.0.0.1:{pair.port},127.0.0.1:{pair.standby_port}/{name}"
    models = [model("cheap", [upstream.deployment("tokens-4")])]
    for each in ("one", "two"):
        (folder / each).mkdir()
    one = await make_site(folder / "one", models, database_url=url)
    two = Site(folder / "two", url, one.key, {})
    two.configure(models)
    hosts = [Host(one), Host(two)]
    await asyncio.gather(*(host.server.ready() for host in hosts))
    return hosts


async def _settled(site: Site) -> Counter[str]:
    try:
        rows = await site.rows("entry = 'settle'")
    except (OSError, asyncpg.PostgresError):
        return Counter()
    return Counter(row["request_id"] for row in rows)


async def _are_booked(site: Site, callers: list[_Callers]) -> bool:
    settled = await _settled(site)
    return all(settled[each] == 1 for of_host in callers for each in of_host.answered)


async def _verified(host: Host) -> None:
    done = await host.site.run("ledger", "verify", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["missing"] == []


@pytest.mark.parametrize("pair", ["asynchronous"], indirect=True)
async def test_what_a_standby_that_was_behind_lacks_is_booked_again(tmp_path: Path, pair: PostgresPair) -> None:
    """By the journals of both hosts: of the one that goes on, and of the one that nobody asks any more; each answer once."""
    with oracle(tmp_path) as upstream:
        one, two = hosts = await _hosts(tmp_path, pair, upstream)
        try:
            callers = [_Callers(host, one.site.key) for host in hosts]
            await asyncio.gather(*(each.more() for each in callers))
            await pair.is_followed()
            pair.hold_back()
            await asyncio.gather(*(each.more() for each in callers))
            await callers[1].stop()
            await until(lambda: _are_booked(two.site, callers[1:]))
            await asyncio.to_thread(pair.fail_over)
            lacking = set(callers[1].answered) - set(await _settled(one.site))
            # Else the standby was not behind.
            assert lacking
            await callers[0].more()
            await callers[0].stop()
            await until(lambda: _are_booked(one.site, callers))
            for host in hosts:
                await _verified(host)
                assert await host.server.stop() == 0
                assert boots(host.site.journal) == []
            assert {*(await _settled(one.site)).values()} == {1}
            print(f"{len(lacking)} answers of the idle host were booked again")  # noqa: T201
        finally:
            for host in hosts:
                host.kill()


@pytest.mark.parametrize("pair", ["synchronous"], indirect=True)
async def test_a_synchronous_standby_lacks_nothing_that_a_journal_was_told_of(
    tmp_path: Path, pair: PostgresPair
) -> None:
    """So nothing depends on the journals' files; each answer is booked once."""
    with oracle(tmp_path) as upstream:
        one, _two = hosts = await _hosts(tmp_path, pair, upstream)
        try:
            callers = [_Callers(host, one.site.key) for host in hosts]
            await asyncio.gather(*(each.more() for each in callers))
            told = {
                boot_id: read_drained(host.site.journal, boot_id)
                for host in hosts
                for boot_id in boots(host.site.journal)
            }
            await asyncio.to_thread(pair.fail_over)
            engine = make_engine(one.site.database_url)
            places = await read_places(engine)
            await engine.dispose()
            for boot_id, place in told.items():
                if place is not None and place.total:
                    assert places[boot_id].place >= place.place
            await asyncio.gather(*(each.more() for each in callers))
            for each in callers:
                await each.stop()
            await until(lambda: _are_booked(one.site, callers))
            for host in hosts:
                await _verified(host)
                assert await host.server.stop() == 0
            assert {*(await _settled(one.site)).values()} == {1}
        finally:
            for host in hosts:
                host.kill()


@pytest.mark.parametrize("pair", ["synchronous"], indirect=True)
async def test_a_synchronous_standby_that_is_away_holds_up_no_caller(tmp_path: Path, pair: PostgresPair) -> None:
    """No commit returns meanwhile: known keys are served, entries wait in the journals, and are booked once it is back."""
    with oracle(tmp_path) as upstream:
        hosts = await _hosts(tmp_path, pair, upstream)
        try:
            callers = [_Callers(host, hosts[0].site.key) for host in hosts]
            await asyncio.gather(*(each.more() for each in callers))
            pair.freeze_standby()
            await asyncio.gather(*(each.more() for each in callers))
            pair.come_back(killed=False)
            for each in callers:
                await each.stop()
            await until(lambda: _are_booked(hosts[0].site, callers))
            assert {*(await _settled(hosts[0].site)).values()} == {1}
        finally:
            for host in hosts:
                host.kill()
