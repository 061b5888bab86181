"""The parts that compose.yaml starts, as processes here: from its configuration and an empty database to a first booked answer that Prometheus
has seen. Its containers of others were not run: their images are in registries.
"""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import asyncpg
import pytest
import yaml

from tests.deploy.test_compose import FOLDER, SECRETS, gateway_environment
from tests.nursery import nursery
from tests.postgres import Postgres
from tests.processes import Oracle, Server, oracle, until
from tests.redis_server import RedisServer

_RULES: Final = FOLDER.parents[1] / "dashboards" / "monitoring" / "prometheus" / "weighbridge.rules.yml"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@asynccontextmanager
async def parts(
    folder: Path, database: str, redis: str, upstream: Oracle, metrics: int
) -> AsyncIterator[tuple[Server, dict[str, str]]]:
    """The gateway with compose's configuration and variables; only hosts and ports are this machine's, and the provider's address the
    scripted upstream's. Yields it and its variables.
    """
    written = yaml.safe_load((FOLDER / "gateway.yaml").read_text())
    written["telemetry"]["metrics_listen"] = f"127.0.0.1:{metrics}"
    (one,) = written["providers"]["models"]
    written["providers"]["models"] = [
        {
            "provider": one["provider"],
            "model_id": one["model"],
            "known_as": one["model"],
            "deployments": [upstream.deployment("ok", api_key="env:OPENAI_API_KEY")],
        }
    ]
    (folder / "gateway.yaml").write_text(yaml.safe_dump(written))
    given = gateway_environment(dict.fromkeys(SECRETS, "s" * 64))
    ours = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environ = (
        ours
        | given
        | {
            "WEIGHBRIDGE_CONFIG": str(folder / "gateway.yaml"),
            "WEIGHBRIDGE_DATA_DIR": str(folder / "state"),
            "WEIGHBRIDGE_DATABASE_URL": database,
            "WEIGHBRIDGE_REDIS_URL": redis,
            "WEIGHBRIDGE_PORT": "0",
            "TMPDIR": str(folder),
        }
    )
    log = folder / "gateway.log"
    log.touch()
    server = Server(nursery().start(["serve"], environ=environ, cwd=folder, log=log), log)
    try:
        await server.ready()
        yield server, environ
    finally:
        server.kill()


@contextmanager
def prometheus(folder: Path, metrics: int) -> Iterator[str]:
    """A Prometheus with compose's configuration. Yields its address."""
    text = (FOLDER / "prometheus.yml").read_text()
    text = text.replace("/etc/prometheus/weighbridge.rules.yml", str(_RULES)).replace(
        "gateway:9464", f"127.0.0.1:{metrics}"
    )
    (folder / "prometheus.yml").write_text(text.replace("scrape_interval: 15s", "scrape_interval: 1s"))
    port = free_port()
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


async def answer(session: aiohttp.ClientSession, url: str) -> Any:
    """What Prometheus says, or None while it does not."""
    try:
        async with session.get(url) as reply:
            return json.loads(await reply.text())["data"] if reply.status == 200 else None
    except aiohttp.ClientError:
        return None


@pytest.mark.long
async def test_to_a_first_booked_answer(
    tmp_path: Path, postgres: Postgres, empty_redis: RedisServer, record_property: Any
) -> None:
    """A team, a key, a request: it is answered, booked in PostgreSQL, its limit is in Redis, and Prometheus has the figure."""
    began = time.monotonic()
    metrics = free_port()
    with oracle(tmp_path) as upstream:
        database = await postgres.empty_database()
        async with (
            parts(tmp_path, database, empty_redis.url, upstream, metrics) as (server, environ),
            aiohttp.ClientSession() as session,
        ):
            made = ""
            for command in (["teams", "create", "team_a"], ["keys", "create", "team_a"]):
                done = await asyncio.to_thread(nursery().run, command, environ=environ, cwd=tmp_path, timeout_s=60)
                assert done.returncode == 0, done.stderr
                made = done.stdout.split()[-1]
            asked = {"model": "auto", "messages": [{"role": "user", "content": "Say hello."}]}
            headers = {"authorization": f"Bearer {made}"}
            async with session.post(f"{server.base_url}/chat/completions", json=asked, headers=headers) as reply:
                assert reply.status == 200, await reply.text()
                assert reply.headers["x-weighbridge-target"] == "gpt-4o"

            await until(lambda: _is_booked(database))
            done = await asyncio.to_thread(
                nursery().run, ["ledger", "verify"], environ=environ, cwd=tmp_path, timeout_s=60
            )
            assert done.returncode == 0, done.stdout
            record_property("seconds to a first booked answer", round(time.monotonic() - began, 1))
            await _has_been_scraped(tmp_path, metrics, session)
            assert await server.stop() == 0


async def _is_booked(database: str) -> bool:
    connection = await asyncpg.connect(database)
    try:
        return bool(await connection.fetchval("SELECT count(*) FROM ledger_entry WHERE entry = 'settle'"))
    finally:
        await connection.close()


async def _has_been_scraped(folder: Path, metrics: int, session: aiohttp.ClientSession) -> None:
    if shutil.which("prometheus") is None:
        return
    with prometheus(folder, metrics) as url:

        async def has_it() -> bool:
            found = await answer(session, f"{url}/api/v1/query?query=sum(weighbridge_requests_total)")
            return bool(found and found["result"] and float(found["result"][0]["value"][1]) == 1)

        await until(has_it)
        rules = await answer(session, f"{url}/api/v1/rules")
        assert sum(len(group["rules"]) for group in rules["groups"]) > 10
