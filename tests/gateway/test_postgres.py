"""PostgreSQL as everybody has it: addresses of hosts and frameworks, standbys, poolers."""

import asyncio
import contextlib
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine
from typer.testing import CliRunner

from gateway.cli import app
from gateway.database import WriteCheck, make_engine, migrate
from gateway.database_address import UnknownDatabase, check_address, read_address
from tests.pgbouncer import running_pgbouncer
from tests.postgres import Postgres, postgres_binaries, running_postgres
from tests.postgres_pair import PostgresPair, postgres_pair
from tests.selfhosted.discovery.authorities import ONE, TWO


@pytest.mark.parametrize(
    ("url", "dsn", "connect"),
    [
        # Heroku, Render, Fly.
        ("postgres://u:p@ec2-1.example.com:5432/d1", "postgresql://u:p@ec2-1.example.com:5432/d1", {}),
        # Neon, without what its driver has to have.
        (
            "postgresql://u:p@ep-x.example.com/neondb?sslmode=require",
            "postgresql://u:p@ep-x.example.com/neondb?sslmode=require",
            {},
        ),
        # Supabase's pooler, Prisma's way.
        (
            "postgresql://postgres.ref:p@pooler.example.com:6543/postgres?pgbouncer=true",
            "postgresql://postgres.ref:p@pooler.example.com:6543/postgres",
            {},
        ),
        # Amazon RDS with its bundle.
        (
            "postgresql://u:p@db.example.com/d?sslmode=verify-full&sslrootcert=/etc/ssl/rds.pem",
            "postgresql://u:p@db.example.com/d?sslmode=verify-full&sslrootcert=%2Fetc%2Fssl%2Frds.pem",
            {},
        ),
        # Azure, whose users had an @.
        (
            "postgresql://me%40server:p%23w@server.example.com:5432/d?sslmode=require&connect_timeout=10",
            "postgresql://me%40server:p%23w@server.example.com:5432/d?sslmode=require",
            {"timeout": 10.0},
        ),
        # SQLAlchemy's asyncpg spelling.
        ("postgresql+asyncpg://u@h/d?ssl=require", "postgresql://u@h/d?sslmode=require", {}),
        # libpq's several hosts.
        (
            "postgresql://u@h1:5432,h2:5433/d?target_session_attrs=primary",
            "postgresql://u@h1:5432,h2:5433/d",
            {"target_session_attrs": "primary"},
        ),
        (
            "postgresql://u@/d?host=h1:5432&host=h2:5433",
            "postgresql://u@h1:5432,h2:5433/d",
            {"target_session_attrs": "read-write"},
        ),
        ("postgresql://u@/d?host=h1,h2&port=6000,6001", "postgresql://u@h1:6000,h2:6001/d", {}),
        ("postgresql://u@[::1]:5432,[::2]/d", "postgresql://u@[::1]:5432,[::2]/d", {}),
        # Cloud SQL's socket.
        (
            "postgresql://u:p@/d?host=/cloudsql/project:region:db",
            "postgresql://u:p@%2Fcloudsql%2Fproject%3Aregion%3Adb/d",
            {},
        ),
        # JDBC's and libpq's further words.
        (
            "postgresql://u@h/d?application_name=router&keepalives_idle=30&options=-c%20search_path%3Dwb",
            "postgresql://u@h/d",
            {"server_settings": {"application_name": "router", "options": "-c search_path=wb"}},
        ),
    ],
)
def test_addresses_are_read_as_libpq_reads_them(url: str, dsn: str, connect: dict[str, Any]) -> None:
    """Those of hosts, frameworks and poolers, as their documents give them."""
    found = read_address(url)
    assert found.dsn == dsn
    assert {name: found.connect[name] for name in connect} == connect


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("postgresql://u:secret@h/d?sslmode=on", "`sslmode` of the database's address is one of disable"),
        ("postgresql://u:secret@h/d?channel_binding=require", "leave it out"),
        ("postgresql://u:secret@h/d?shema=x", "unknown parameter `shema`"),
        ("postgresql://u:secret@h:54a2/d", "is no port; several hosts are written"),
        ("postgresql://u@h:secret/d", "is no port"),
        ("postgresql://u:secret@[::1/d", "IPv6"),
        ("postgresql://u:se/secret@h/d", "%2F"),
        ("postgresql://u:se?secret=1@h/d", "%3F"),
        ("mysql://u:secret@h/d", "must be sqlite:///FILE"),
        ('"postgresql://u:secret@h/d"', "stands in quotation marks or spaces"),
        (" postgresql://u:secret@h/d", "stands in quotation marks or spaces"),
        ("sqlite://secret.sqlite", "must be sqlite:///FILE"),
        ("postgresql://u:secret@h/d?connect_timeout=soon", "`connect_timeout`"),
        ("postgresql://u:sec#ret@h/d", "%23"),
    ],
)
def test_what_cannot_be_read_is_told_without_the_password(url: str, told: str) -> None:
    """With what to write instead."""
    with pytest.raises(UnknownDatabase) as error:
        make_engine(url)
    assert told in str(error.value)
    assert "secret" not in str(error.value)


@pytest.fixture(scope="module")
def binaries() -> Path:
    """The folder of PostgreSQL's programs, with those that make a standby."""
    found = postgres_binaries()
    if found is None or not (found / "pg_basebackup").exists():
        pytest.skip("no PostgreSQL with pg_basebackup on this machine")
    return found


@pytest.fixture
def pair(binaries: Path) -> Iterator[PostgresPair]:
    """A primary and its standby."""
    with postgres_pair(binaries) as found:
        yield found


async def _write(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await connection.execute(text("INSERT INTO notes VALUES (1)"))


async def test_writes_go_on_after_a_switchover(pair: PostgresPair) -> None:
    """Within five seconds, at the promoted standby, with whichever host stands first."""
    first, second = pair.port, pair.standby_port
    engine = make_engine(f"postgresql://postgres@127.0.0.1:{second},127.0.0.1:{first}/postgres")
    check = WriteCheck(engine)
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE notes (n int)"))
    await _write(engine)
    assert await check.takes_writes()
    await pair.switch_over()
    await _write_again(engine, "the promotion")
    check = WriteCheck(engine)
    assert await check.takes_writes()
    await engine.dispose()


async def _write_again(engine: AsyncEngine, what: str) -> None:
    """As soon as a write goes through."""
    since = time.monotonic()
    while True:
        try:
            await _write(engine)
            break
        except (SQLAlchemyError, OSError):
            assert time.monotonic() < since + 90
            await asyncio.sleep(0.05)
    print(f"without writes after {what}: {time.monotonic() - since:.2f} s")  # noqa: T201


async def _notes(port: int) -> int:
    connection = await asyncpg.connect(f"postgresql://postgres@127.0.0.1:{port}/postgres")
    try:
        return int(await connection.fetchval("SELECT count(*) FROM notes"))
    finally:
        await connection.close()


@pytest.mark.long
@pytest.mark.parametrize("killed", [True, False], ids=["killed", "vanished"])
async def test_a_primary_that_was_replaced_gets_no_writes(
    pair: PostgresPair, caplog: pytest.LogCaptureFixture, killed: bool
) -> None:
    """It is killed, or hangs as one that nobody can reach; its standby is promoted; then it is back, takes writes, and stands first in the
    address (patroni #2188, canonical/postgresql-operator #1152, fly-apps/postgres-flex #55). A process that starts then finds the right one, too.
    """
    url = f"postgresql://postgres@127.0.0.1:{pair.port},127.0.0.1:{pair.standby_port}/postgres?command_timeout=3&connect_timeout=2"
    engine = make_engine(url)
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE notes (n int)"))
    await asyncio.gather(*(_write(engine) for _ in range(5)))
    await pair.has_copied()
    if not killed:
        pair.freeze()
    await asyncio.to_thread(pair.fail_over, kill=killed)
    await _write_again(engine, "a primary was killed" if killed else "a primary vanished")
    await asyncio.to_thread(pair.come_back, killed=killed)
    before = await _notes(pair.standby_port)
    # More than the pool keeps, so that connections are made; and those of a process that knows of nothing.
    await asyncio.gather(*(_write(engine) for _ in range(15)))
    fresh = make_engine(url)
    await _write(fresh)
    assert await _notes(pair.standby_port) == before
    assert await _notes(pair.port) >= before + 16
    assert "another one has taken its place" in caplog.text
    await asyncio.to_thread(pair.stop)
    for each in (engine, fresh):
        # Pings of what is pooled are lost first.
        with contextlib.suppress(SQLAlchemyError, OSError):
            await _write(each)
        with pytest.raises(OSError, match="was replaced by another one"):
            await _write(each)
        await each.dispose()


@pytest.mark.long
async def test_a_primary_that_is_back_before_anybody_asked_gets_no_writes(pair: PostgresPair) -> None:
    """A process that was idle all along knows of no other timeline; that the server started anew makes it ask the others."""
    url = f"postgresql://postgres@127.0.0.1:{pair.port},127.0.0.1:{pair.standby_port}/postgres?connect_timeout=2"
    idle = make_engine(url)
    async with idle.begin() as connection:
        await connection.execute(text("CREATE TABLE notes (n int)"))
    await _write(idle)
    await pair.has_copied()
    await asyncio.to_thread(pair.fail_over)
    await asyncio.to_thread(pair.come_back)
    await _write_again(idle, "both were back")
    assert (await _notes(pair.standby_port), await _notes(pair.port)) == (1, 2)
    await idle.dispose()


async def test_a_host_that_vanishes_is_noticed(postgres: Postgres) -> None:
    """The system asks after it (sandbox-quantum/switch PR 415: sixteen minutes without)."""
    engine = make_engine(await postgres.empty_database())
    async with engine.connect() as connection:
        raw = await connection.get_raw_connection()
        driver: Any = raw.driver_connection
        found = driver._transport.get_extra_info("socket")
        assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 15_000
    await engine.dispose()


async def test_a_standby_is_not_ready(pair: PostgresPair) -> None:
    """It answers, and every write would fail."""
    only = make_engine(f"postgresql://postgres@127.0.0.1:{pair.standby_port}/postgres")
    anyhow = make_engine(f"postgresql://postgres@127.0.0.1:{pair.standby_port}/postgres?target_session_attrs=any")
    for engine in (only, anyhow):
        assert not await WriteCheck(engine).takes_writes()
        await engine.dispose()


async def test_a_connection_that_became_read_only_is_dropped(postgres: Postgres) -> None:
    """As after a failover that left sessions read-only: the next transaction has a connection that can write."""
    engine = make_engine(await postgres.empty_database())
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE notes (n int)"))
    async with engine.connect() as connection:
        await connection.execute(text("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"))
        await connection.commit()
    with pytest.raises(DBAPIError) as error:
        await _write(engine)
    assert error.value.connection_invalidated
    await _write(engine)
    # And the look of readiness drops it, too, before anybody writes.
    async with engine.connect() as connection:
        await connection.execute(text("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"))
        await connection.commit()
    assert not await WriteCheck(engine).takes_writes()
    await _write(engine)
    await engine.dispose()


async def test_no_statement_is_compiled_unless_the_address_says_so(postgres: Postgres) -> None:
    """Also after a transaction of the session was undone."""
    url = await postgres.empty_database()
    for address, told in ((url, "off"), (f"{url}?options=-c%20jit%3Don", "on")):
        engine = make_engine(address)
        for _ in range(2):
            async with engine.connect() as connection:
                assert await connection.scalar(text("SHOW jit")) == told
                await connection.rollback()
        await engine.dispose()


@pytest.mark.skipif(not (shutil.which("pgbouncer") or Path("/usr/sbin/pgbouncer").exists()), reason="no PgBouncer here")
async def test_a_pooler_in_transaction_mode_serves(postgres: Postgres) -> None:
    """Migration, and forty transactions at once over two sessions of the server, again and again."""
    url = await postgres.empty_database()
    port = int(url.rpartition(":")[2].partition("/")[0])
    with running_pgbouncer(port) as pooled:
        engine = make_engine(f"postgresql://postgres@127.0.0.1:{pooled}/{url.rpartition('/')[2]}")
        await migrate(engine)
        async with engine.begin() as connection:
            await connection.execute(text("CREATE TABLE notes (n int)"))

        async def turn(number: int) -> None:
            async with engine.begin() as connection:
                await connection.execute(text("INSERT INTO notes VALUES (:n)"), {"n": number})
                await connection.execute(text("SELECT count(*) FROM notes WHERE n = :n"), {"n": number})

        for _ in range(5):
            await asyncio.gather(*map(turn, range(40)))
        async with engine.connect() as connection:
            assert (await connection.execute(text("SELECT count(*) FROM notes"))).scalar_one() == 200
        assert await WriteCheck(engine).takes_writes()
        await engine.dispose()


@pytest.fixture(scope="module")
def encrypted() -> Iterator[Postgres]:
    """A server whose certificate is for 127.0.0.1 and signed by an authority that nobody knows."""
    found = postgres_binaries()
    if found is None:
        pytest.skip("no PostgreSQL on this machine")
    with running_postgres(found, (ONE.certificate.encode(), ONE.key.encode())) as server:
        yield server


@pytest.fixture
def authorities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the server's own authority and another; the first is also all that this machine trusts."""
    for name, authority in (("right", ONE), ("wrong", TWO)):
        (tmp_path / f"{name}.pem").write_text(authority.certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "right.pem"))
    return tmp_path


_IS_ENCRYPTED = text("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")


@pytest.mark.parametrize(
    ("host", "tls", "encrypted_by"),
    [
        ("127.0.0.1", "sslmode=require", True),
        ("127.0.0.1", "ssl=true", True),
        ("127.0.0.1", "", True),
        ("127.0.0.1", "sslmode=disable", False),
        ("localhost", "sslmode=verify-ca&sslrootcert={}/right.pem", True),
        ("127.0.0.1", "sslmode=verify-full&sslrootcert={}/right.pem", True),
        ("127.0.0.1", "sslmode=verify-full&sslrootcert=system", True),
    ],
)
async def test_it_is_encrypted_as_the_address_says(
    encrypted: Postgres, authorities: Path, host: str, tls: str, encrypted_by: bool
) -> None:
    """Without a word, where the server can; and to a server that is known where the address asks for that."""
    url = encrypted.url("postgres").replace("127.0.0.1", host) + "?" + tls.format(authorities)
    check_address(url)
    engine = make_engine(url)
    async with engine.connect() as connection:
        assert (await connection.execute(_IS_ENCRYPTED)).scalar_one() is encrypted_by
    await engine.dispose()


@pytest.mark.parametrize(
    ("host", "tls", "told"),
    [
        ("127.0.0.1", "sslmode=verify-full&sslrootcert={}/wrong.pem", "the database's server cannot be trusted"),
        (
            "127.0.0.1",
            "sslmode=verify-ca&sslrootcert={}/wrong.pem",
            "does `sslrootcert` of its address name the authority",
        ),
        ("localhost", "sslmode=verify-full&sslrootcert={}/right.pem", "not valid for 'localhost'"),
        ("localhost", "sslmode=verify-full&sslrootcert=system", "not valid for 'localhost'"),
        ("127.0.0.1", "sslmode=verify-full&sslrootcert={}/none.pem", "the file that `sslrootcert` of"),
        ("127.0.0.1", "sslmode=verify-full", "needs `sslrootcert=FILE`, or `sslrootcert=system`"),
    ],
)
def test_a_server_that_cannot_be_trusted_is_refused_with_a_sentence(
    encrypted: Postgres, authorities: Path, monkeypatch: pytest.MonkeyPatch, host: str, tls: str, told: str
) -> None:
    """With what to write, and no traceback."""
    monkeypatch.setenv("HOME", str(authorities))
    url = encrypted.url("postgres").replace("127.0.0.1", host) + "?" + tls.format(authorities)
    monkeypatch.setenv("DATABASE_URL", url)
    said = CliRunner().invoke(app, ["teams", "list"])
    assert said.exit_code != 0
    assert told in said.stderr.replace("\n", " ")
    assert "Traceback" not in said.output


def test_what_the_server_says_of_connecting_is_told(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong name of the database or of the role is no riddle."""
    for url, told in (
        (postgres.url("nothing"), 'database "nothing" does not exist'),
        (postgres.url("postgres").replace("postgres@", "nobody:hunter2@"), 'role "nobody" does not exist'),
        (postgres.url("postgres") + "?sslmode=require", "rejected SSL upgrade"),
    ):
        monkeypatch.setenv("DATABASE_URL", url)
        said = CliRunner().invoke(app, ["teams", "list"])
        assert said.exit_code != 0
        assert told in said.stderr
        assert "hunter2" not in said.output
