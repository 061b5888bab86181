"""Two real PostgreSQL servers, a primary and its standby, for what happens when one is restarted or gives way to the other."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import asyncpg

from tests.children import children_of
from tests.postgres import _SETTINGS, Postgres, _executable_by, _unprivileged_user, _wait_until_ready
from tests.redis_server import quiet_port

_STOP_WITHIN_S: Final = 60.0
_POLL_S: Final = 0.02
_FOLLOWED: Final = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"
_COPIED: Final = f"{_FOLLOWED} AND replay_lsn >= pg_current_wal_insert_lsn()"
_REPLICATION: Final = (
    ("wal_level", "replica"),
    ("max_wal_senders", "4"),
    ("hot_standby", "on"),
    ("wal_retrieve_retry_interval", "100ms"),
)
# Of a primary alone: one that is promoted has nobody to wait for.
_SYNCHRONOUS: Final = (("synchronous_commit", "on"), ("synchronous_standby_names", "*"))


class _Server:
    """One of them, whose port stays the same."""

    def __init__(self, binaries: Path, data: Path, user: str | None, *, waits: bool = False) -> None:
        """`waits`: a commit returns once a standby has it."""
        self._waits = waits
        self.port = quiet_port()
        self.pid = 0
        self._binaries = binaries
        self._data = data
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        settings = (*_SETTINGS, *_REPLICATION, *(_SYNCHRONOUS if self._waits else ()))
        options = [word for name, value in settings for word in ("-c", f"{name}={value}")]
        command = [str(self._binaries / "postgres"), "-D", str(self._data), "-p", str(self.port), *options]
        log = self._data.with_suffix(".log")
        with log.open("ab") as written:
            self._process = subprocess.Popen(command, user=self._user, cwd="/", stdout=written, stderr=written)
        self.pid = self._process.pid
        _wait_until_ready(self._process, self._data / "postmaster.pid", log)

    def stop(self) -> None:
        """A fast shutdown: clients are cut off, and a standby gets all that was written. Nothing happens to one that is stopped."""
        if self._process is None:
            return
        self.thaw()
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(_STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def kill(self) -> None:
        """Kill -9 of all of its processes, as a machine that loses its power."""
        assert self._process is not None
        for pid in self._pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._process = None
        # The next start's is waited for.
        (self._data / "postmaster.pid").unlink()

    def freeze(self) -> None:
        """SIGSTOP: the system accepts connections for it, and nothing is answered until `thaw`."""
        for pid in self._pids():
            os.kill(pid, signal.SIGSTOP)

    def hold_back(self) -> None:
        """From now on its standby is sent nothing."""
        for pid in children_of(self.pid):
            if b"walsender" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in self._pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _pids(self) -> list[int]:
        return [self.pid, *children_of(self.pid)]

    def copy_of(self, primary: "_Server") -> None:
        """Becomes a standby of the primary, which runs."""
        source = ["-h", "127.0.0.1", "-p", str(primary.port), "-U", "postgres"]
        self._run("pg_basebackup", *source, "-D", str(self._data), "-R", "-X", "stream", "-c", "fast")

    def promote(self) -> None:
        """Returns once it takes writes."""
        self._run("pg_ctl", "promote", "-w", "-D", str(self._data))

    def make(self) -> None:
        """An empty cluster."""
        self._run("initdb", "-D", str(self._data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "-N", "--locale=C")

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._binaries / program), *arguments]
        done = subprocess.run(command, check=False, user=self._user, cwd="/", capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed\n{done.stderr[-2000:]}")


class PostgresPair:
    """See `postgres_pair`."""

    def __init__(self, primary: _Server, standby: _Server) -> None:
        self._primary = primary
        self._standby = standby

    @property
    def port(self) -> int:
        """Of the server that takes writes now."""
        return self._primary.port

    @property
    def standby_port(self) -> int:
        """Of the one that follows it, or was replaced by it."""
        return self._standby.port

    def server(self) -> Postgres:
        """That one, for the making of databases."""
        return Postgres(self._primary.port, self._primary.pid)

    def stop(self) -> None:
        self._primary.stop()

    def start(self) -> None:
        self._primary.start()

    def hold_back(self) -> None:
        """The standby is sent nothing more of what the primary writes, for as long as that lives."""
        self._primary.hold_back()

    def freeze(self) -> None:
        """The primary, until the standby is promoted and the old one is thawed."""
        self._primary.freeze()

    def freeze_standby(self) -> None:
        """The standby, until it comes back."""
        self._standby.freeze()

    def fail_over(self, *, kill: bool = True) -> None:
        """The primary is killed, or is cut off already, and the standby is promoted with what it has."""
        if kill:
            self._primary.kill()
        self._standby.promote()
        self._primary, self._standby = self._standby, self._primary

    def come_back(self, *, killed: bool = True) -> None:
        """The one that was replaced runs again as it was: a second server that takes writes."""
        if killed:
            self._standby.start()
        else:
            self._standby.thaw()

    async def is_followed(self) -> None:
        """Wait until the standby gets what the primary writes."""
        await self._becomes(_FOLLOWED)

    async def has_copied(self) -> None:
        """Wait until the standby has all that the primary has."""
        await self._becomes(_COPIED)

    async def _becomes(self, asked: str) -> None:
        connection = await asyncpg.connect(self.server().url("postgres"))
        try:
            async with asyncio.timeout(_STOP_WITHIN_S):
                while not await connection.fetchval(asked):  # noqa: ASYNC110 - a server tells of no events
                    await asyncio.sleep(_POLL_S)
        finally:
            await connection.close()

    async def switch_over(self) -> None:
        """The primary stops and the standby, which has all of it, is promoted: from then on `port` is the other one, and there is
        no standby.
        """
        # Before it ends a primary sends everything to a standby, if that follows it already.
        await self.is_followed()
        await asyncio.to_thread(self._primary.stop)
        await asyncio.to_thread(self._standby.promote)
        self._primary, self._standby = self._standby, self._primary


@contextlib.contextmanager
def postgres_pair(binaries: Path, *, synchronous: bool = False) -> Iterator[PostgresPair]:
    """A primary and a standby that follows it, gone at the end of the block. `synchronous`: the primary waits for it."""
    user = _unprivileged_user()
    folder = Path(tempfile.mkdtemp(prefix="weighbridge-postgres-"))
    if user is not None:
        shutil.chown(folder, user)
    servers: list[_Server] = []
    try:
        usable = _executable_by(user, binaries, folder)
        primary, standby = (
            _Server(usable, folder / "primary", user, waits=synchronous),
            _Server(usable, folder / "standby", user),
        )
        servers += [primary, standby]
        primary.make()
        primary.start()
        standby.copy_of(primary)
        standby.start()
        yield PostgresPair(primary, standby)
    finally:
        for server in servers:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)
