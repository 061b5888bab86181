"""An administrator's month, with real processes: backed up while it serves, killed, restored, upgraded when told to."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from cost.ledger.segments import boots
from gateway.database import make_engine
from gateway.schema import downgrade_with_backup
from tests.postgres import Backend
from tests.processes import WAIT_S, Oracle, Site, make_site, oracle, serving, start, until


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[Oracle]:
    with oracle(tmp_path) as running:
        yield running


@pytest.fixture
async def site(upstream: Oracle, database_url: str, tmp_path: Path) -> Site:
    model = {
        "model_id": "cheap",
        "provider": "acme",
        "max_context_tokens": 8_000,
        "prices": {"input": "1", "output": "1", "version": "test"},
        "deployments": [upstream.deployment("ok")],
    }
    return await make_site(tmp_path, [model], database_url=database_url)


class _Callers:
    """Callers that go on until they are stopped, and how many had an answer."""

    def __init__(self, site: Site, url: str) -> None:
        self.answered = 0
        self._key = site.key
        self._url = url
        self._tasks = [asyncio.create_task(self._call()) for _ in range(4)]

    async def _call(self) -> None:
        body = {"model": "cheap", "messages": [{"role": "user", "content": "hi"}]}
        headers = {"authorization": f"Bearer {self._key}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            while True:
                async with session.post(f"{self._url}/chat/completions", json=body) as reply:
                    await reply.read()
                    assert reply.status == 200, await reply.text()
                self.answered += 1

    async def until(self, count: int) -> None:
        await until(lambda: self.answered >= count)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        for ended in await asyncio.gather(*self._tasks, return_exceptions=True):
            assert isinstance(ended, asyncio.CancelledError), ended


async def test_a_backup_while_serving_and_a_restore_after_a_kill(site: Site, tmp_path: Path) -> None:
    """Every answered request is booked once: from the archive, or from the journals that are there."""
    archive = tmp_path / "backup.tar.gz"
    async with serving(site) as server:
        callers = _Callers(site, server.base_url)
        await callers.until(40)
        done = await site.run("backup", str(archive))
        assert done.returncode == 0, done.stderr
        refused = await site.run("restore", str(archive), "--replace")
        assert refused.returncode == 1
        assert "a gateway is running" in refused.stderr
        await callers.until(callers.answered + 40)
        await callers.stop()
        server.kill()
    restored = await site.run("restore", str(archive), "--replace")
    async with asyncio.timeout(WAIT_S):
        # Its workers notice that it is gone, and end.
        while "a gateway is running" in restored.stderr:
            restored = await site.run("restore", str(archive), "--replace")
    assert restored.returncode == 0, restored.stderr
    assert "the database as it was is kept in" in restored.stderr
    listed = await site.run("audit", "list", "--action", "database.restored", "--json")
    (entry,) = json.loads(listed.stdout)
    assert entry["after"]["replaced"].endswith(".tar.gz")
    dead = set(boots(site.journal))
    async with serving(site, "second"):
        await until(lambda: _all_settled(site, callers.answered))
        await until(lambda: dead.isdisjoint(boots(site.journal)))
    verified = await site.run("ledger", "verify", "--json")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert json.loads(verified.stdout)["missing"] == []


async def _all_settled(site: Site, least: int) -> bool:
    rows = await site.rows("entry = 'settle' AND status = 200")
    assert len({row["request_id"] for row in rows}) == len(rows)
    return len(rows) >= least


async def test_an_older_schema_is_upgraded_by_who_may(site: Site, backend: Backend, tmp_path: Path) -> None:
    """SQLite's after a copy; PostgreSQL's is refused in one line, until it is told to."""
    engine = make_engine(site.database_url)
    await downgrade_with_backup(engine, "0025", lambda _: None)
    await engine.dispose()
    for path in _kept(tmp_path):
        path.unlink()
    listed = await site.run("keys", "list")
    assert (listed.returncode, len(listed.stderr.splitlines())) == (1, 1)
    if backend == "postgresql":
        refused = start(site, "refused")
        assert await refused.ended() == 1
        assert "run `weighbridge database upgrade`" in refused.log
        assert "Traceback" not in refused.log
    async with serving(site, "gateway", *(["--migrate"] if backend == "postgresql" else [])) as server:
        assert "the database's schema was upgraded from 0025" in server.log
    assert len(_kept(tmp_path)) == (backend == "sqlite")
    assert (await site.run("keys", "list")).returncode == 0


def _kept(folder: Path) -> list[Path]:
    return list(folder.glob("weighbridge.schema-*.sqlite"))
