"""Starts: what is said is true, what waiting does not mend ends the process, and health is told throughout. Real processes."""

import asyncio
import contextlib
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.postgres import Postgres
from tests.processes import ROOT, Server, Site, make_site, oracle, serving, start, until
from tests.redis_server import RedisServer
from tests.running_gateway import model
from tests.scenarios.test_processes import ask, caller
from tests.toxic import toxic_proxy

_NOBODY = {"kind": "openai", "base_url": "http://127.0.0.1:9/v1"}


@contextlib.asynccontextmanager
async def _starting(site: Site, name: str = "gateway", *arguments: str) -> AsyncIterator[Server]:
    server = start(site, name, *arguments)
    try:
        await server.listening()
        yield server
    finally:
        server.kill()


async def _get(server: Server, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(server.url + path) as reply:
        return reply.status, await reply.text()


async def _told(server: Server, path: str, status: int, words: str) -> bool:
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
        found, text = await _get(server, path)
        return found == status and words in text
    return False


async def test_listening_is_said_when_it_is_true(tmp_path: Path) -> None:
    """Of two workers and the control plane all serve by then, and it is said once."""
    with oracle(tmp_path) as upstream:
        site = await make_site(tmp_path, [model("only", [upstream.deployment("ok")])])
        async with _starting(site, "gateway", "--workers", "2") as server, caller(server, site.key) as session:
            await until(lambda: "listening on" in server.log)
            for _ in range(8):
                assert (await _get(server, "/readyz"))[0] == 200
                assert (await _get(server, "/dashboard/sign-in"))[0] == 200
            assert (await ask(session, "only"))[0] == 200
            assert await server.stop() == 0
            assert server.log.count("listening on") == 1


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_what_a_child_finds_ends_the_whole(tmp_path: Path, postgres: Postgres, workers: str) -> None:
    """A file that is broken when the processes read it is one sentence, said once, and a status; "listening" is never said."""
    head, _, database = (await postgres.database()).rpartition("/")
    there = int(head.rpartition(":")[2])
    async with toxic_proxy(there) as proxy:
        url = f"postgresql://postgres@127.0.0.1:{proxy.port}/{database}"
        site = await make_site(tmp_path, [model("only", [_NOBODY])], database_url=url)
        proxy.lead_to(_unused_port())
        async with _starting(site, "gateway", "--workers", workers) as server:
            await until(lambda: "trying again until it is there" in server.log)
            site.config_path.write_text("server: {prot: 1}\n" + site.config_path.read_text())
            proxy.lead_to(there)
            assert await server.ended() == 1
    (said,) = [line for line in server.log.splitlines() if "server.prot" in line]
    assert said.startswith(f"weighbridge: {site.config_path}:1: server.prot: is not a known key")
    assert "listening on" not in server.log
    assert "Traceback" not in server.log


def _unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        return int(nobody.getsockname()[1])


async def test_a_folder_that_cannot_be_written_ends_the_start(tmp_path: Path) -> None:
    """Before anything is started, with the folder in the sentence."""
    (tmp_path / "file").touch()
    journal = {"journal_dir": str(tmp_path / "file" / "journal")}
    site = await make_site(tmp_path, [model("only", [_NOBODY])], cost=journal)
    server = start(site)
    try:
        assert await server.ended() == 1
    finally:
        server.kill()
    (said,) = server.log.splitlines()
    assert f"{tmp_path}/file/journal: Not a directory" in said


async def test_a_file_that_is_no_database_ends_the_start(tmp_path: Path) -> None:
    """The control plane finds it, and the sentence says what it is."""
    site = await make_site(tmp_path, [model("only", [_NOBODY])])
    (tmp_path / "other.sqlite").write_text("words " * 1_000)
    site = Site(site.folder, f"sqlite:///{tmp_path}/other.sqlite", site.key, {})
    server = start(site)
    try:
        assert await server.ended() == 1
    finally:
        server.kill()
    assert server.log.count("the database's file is no SQLite database") == 1
    assert "listening on" not in server.log


async def test_a_port_in_use_ends_the_start(tmp_path: Path) -> None:
    """With the address in the sentence."""
    site = await make_site(tmp_path, [model("only", [_NOBODY])])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = start(site, "gateway", "--port", str(port))
        try:
            assert await server.ended() == 1
        finally:
            server.kill()
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in server.log


@pytest.mark.parametrize(
    ("package", "extra", "sections"),
    [
        ("obstore", "s3", {"batch": {"s3": {"bucket": "files", "endpoint": "http://127.0.0.1:9"}}}),
        ("pyarrow", "s3", {"cost": {"archive": {"keep_months": 13, "to": "/srv/books"}}}),
        (
            "authlib",
            "sso",
            {
                "sign_in": {
                    "public_url": "https://w.example.com",
                    "providers": [{"name": "o", "label": "O", "issuer": "https://o.example.com", "client_id": "x"}],
                }
            },
        ),
    ],
)
async def test_a_missing_extra_is_found_by_check_and_start(
    tmp_path: Path, package: str, extra: str, sections: dict[str, Any]
) -> None:
    """Both name what installs it, and end with a status; nothing is started."""
    site = await make_site(tmp_path, [model("only", [_NOBODY])], **sections)
    for command in (["config", "check"], ["serve"]):
        done = await asyncio.to_thread(_without, package, command, site)
        assert done.returncode == 1
        assert f"pip install 'weighbridge[{extra}]'" in done.stderr
        assert f"{site.config_path}:" in done.stderr
        assert "starting at" not in done.stderr


def _without(package: str, command: list[str], site: Site) -> "subprocess.CompletedProcess[str]":
    """Runs a command in an interpreter that does not find the package."""
    script = (
        "import importlib.util as u, runpy, sys\n"
        "find = u.find_spec\n"
        f"u.find_spec = lambda name, *more: None if name == {package!r} else find(name, *more)\n"
        f"sys.argv = ['weighbridge', *{command!r}]\n"
        "runpy.run_module('gateway.cli', run_name='__main__')\n"
    )
    return subprocess.run(
        [sys.executable, "-c", script],
        env=site.environ() | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


async def test_a_database_that_is_away_is_waited_for(tmp_path: Path, postgres: Postgres) -> None:
    """Health is told meanwhile and readiness says what is waited for; once the database is there, the gateway serves."""
    head, _, database = (await postgres.database()).rpartition("/")
    there = int(head.rpartition(":")[2])
    async with toxic_proxy(there) as proxy:
        url = f"postgresql://postgres@127.0.0.1:{proxy.port}/{database}"
        with oracle(tmp_path) as upstream:
            site = await make_site(tmp_path, [model("only", [upstream.deployment("ok")])], database_url=url)
            proxy.lead_to(_unused_port())
            async with _starting(site) as server, caller(server, site.key) as session:
                await until(lambda: _told(server, "/healthz", 200, "ok"))
                await until(lambda: _told(server, "/readyz", 503, "the database takes no writes"))
                status, said, headers = await ask(session, "only")
                assert (status, '"code":"starting"' in said, "retry-after" in headers) == (503, True, True)
                assert "trying again until it is there" in server.log
                assert "listening on" not in server.log
                assert (await _get(server, "/healthz"))[0] == 200
                proxy.lead_to(there)
                await until(lambda: "listening on" in server.log)
                assert (await _get(server, "/readyz"))[0] == 200
                assert (await ask(session, "only"))[0] == 200
                assert await server.stop() == 0


async def test_a_control_plane_that_cannot_come_back_takes_nobody_with_it(tmp_path: Path) -> None:
    """Workers go on, health is told and readiness has the reason; it comes back when the file is mended. A lone worker that dies meanwhile ends the whole with the sentence."""
    with oracle(tmp_path) as upstream:
        site = await make_site(tmp_path, [model("only", [upstream.deployment("ok")])])
        async with serving(site) as server, caller(server, site.key) as session:
            assert (await ask(session, "only"))[0] == 200
            sound = site.config_path.read_text()
            site.config_path.write_text("server: {prot: 1}\n" + sound)
            control = server.control()
            assert control is not None
            os.kill(control, signal.SIGKILL)
            await until(lambda: "the control plane cannot serve" in server.log)
            assert "server.prot" in server.log
            assert (await ask(session, "only"))[0] == 200
            assert (await _get(server, "/healthz"))[0] == 200
            assert await _told(server, "/readyz", 200, "the control plane is away")
            site.config_path.write_text(sound)
            await until(lambda: _told(server, "/readyz", 200, '"control_plane":true'))
            site.config_path.write_text("server: {prot: 1}\n" + sound)
            (worker,) = server.workers()
            os.kill(worker, signal.SIGKILL)
            assert await server.ended() == 1
            assert f"weighbridge: {site.config_path}:1: server.prot" in server.log


async def test_a_pepper_that_was_emptied_is_found_by_check_and_start(tmp_path: Path) -> None:
    """Both name the file and what to do, and nothing is started."""
    site = await make_site(tmp_path, [model("only", [_NOBODY])], accounts={"pepper_file": "var/pepper"})
    (tmp_path / "pepper").touch()
    for command in (["config", "check"], ["serve"], ["keys", "list"]):
        done = await site.run(*command, WEIGHBRIDGE_PEPPER=None)
        assert done.returncode == 1
        assert f"{tmp_path}/pepper is empty" in done.stderr
        assert "Put the file back from a backup" in done.stderr


async def test_a_schema_of_a_newer_version_is_one_sentence(tmp_path: Path) -> None:
    """Also where the gateway is started on a socket that is bound already."""
    site = await make_site(tmp_path, [model("only", [_NOBODY])])
    with sqlite3.connect(tmp_path / "weighbridge.sqlite") as database:
        database.execute("UPDATE alembic_version SET version_num = '9999', serves_from = '9999'")
    status, said = await asyncio.to_thread(_on_a_socket, site)
    assert status == 1
    assert "the database has the schema 9999, of a newer version" in said
    assert "Traceback" not in said


def _on_a_socket(site: Site) -> tuple[int, str]:
    """Serves on an inherited socket, while its parent lives; returns its status and what it said."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        fd = listener.fileno()
        command = [sys.executable, "-m", "gateway.process.serve", "--fd", str(fd), "--config", str(site.config_path)]
        environ = site.environ() | {"PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(command, env=environ, pass_fds=[fd], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        with process:
            assert process.stderr is not None
            try:
                return process.wait(120), process.stderr.read().decode()
            finally:
                process.kill()


async def test_a_redis_that_is_away_at_the_start_is_not_waited_for(tmp_path: Path, empty_redis: RedisServer) -> None:
    """Callers are answered meanwhile, each process with its share of the limits; once it is there, the processes share."""
    empty_redis.kill()
    with oracle(tmp_path) as upstream:
        variables = {"WEIGHBRIDGE_REDIS_URL": empty_redis.url}
        site = await make_site(tmp_path, [model("only", [upstream.deployment("ok")])], variables=variables)
        async with _starting(site) as server, caller(server, site.key) as session:
            await until(lambda: "listening on" in server.log)
            assert (await _get(server, "/readyz"))[0] == 200
            assert (await ask(session, "only"))[0] == 200
            await until(lambda: "is not used" in server.log)
            assert "Traceback" not in server.log
            empty_redis.start()
            await until(lambda: f"redis at 127.0.0.1:{empty_redis.port} answers" in server.log)
            assert (await ask(session, "only"))[0] == 200
            assert await server.stop() == 0
