"""A PostgreSQL primary with a streaming standby, and PgBouncer before a server, for tests of switchovers and poolers."""

import contextlib
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.postgres import _executable_by, _free_port, _unprivileged_user, _wait_until_ready

_SETTINGS: Final = ("fsync=off", "listen_addresses=127.0.0.1", "unix_socket_directories=", "shared_buffers=16MB")
_STOP_S: Final = 20


class PostgresPair:
    """Two servers, of which the second follows the first until it is promoted."""

    def __init__(self, binaries: Path, folder: Path, user: str | None) -> None:
        self._binaries, self._folder, self._user = binaries, folder, user
        self.ports = (_free_port(), _free_port())
        self._servers: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start both; the standby is a base backup of the primary."""
        first, second = self._data(0), self._data(1)
        self._run("initdb", "-D", str(first), "-U", "postgres", "-A", "trust", "-E", "UTF8", "-N", "--locale=C")
        self._serve(0)
        self._run(
            "pg_basebackup",
            "-h",
            "127.0.0.1",
            "-p",
            str(self.ports[0]),
            "-U",
            "postgres",
            "-D",
            str(second),
            "-R",
            "-X",
            "stream",
            "-c",
            "fast",
        )
        self._serve(1)

    def switch_over(self) -> None:
        """Stop the primary, and promote the standby."""
        self._stop(self._servers[0])
        self._run("pg_ctl", "promote", "-D", str(self._data(1)), "-w")

    def stop(self) -> None:
        """Stop what runs."""
        for server in self._servers:
            self._stop(server)

    def _data(self, place: int) -> Path:
        return self._folder / f"data{place}"

    def _serve(self, place: int) -> None:
        settings = [word for each in _SETTINGS for word in ("-c", each)]
        command = [
            str(self._binaries / "postgres"),
            "-D",
            str(self._data(place)),
            "-p",
            str(self.ports[place]),
            *settings,
        ]
        log = self._folder / f"log{place}"
        with log.open("wb") as told:
            server = subprocess.Popen(command, user=self._user, cwd=self._folder, stdout=told, stderr=told)
        self._servers.append(server)
        _wait_until_ready(server, self._data(place) / "postmaster.pid", log)

    def _run(self, program: str, *words: str) -> None:
        subprocess.run(
            [str(self._binaries / program), *words], check=True, user=self._user, cwd=self._folder, capture_output=True
        )

    def _stop(self, server: subprocess.Popen[bytes]) -> None:
        if server.poll() is None:
            server.send_signal(signal.SIGINT)
            try:
                server.wait(timeout=_STOP_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


@contextlib.contextmanager
def running_pair(binaries: Path) -> Iterator[PostgresPair]:
    """Run a primary and its standby in a folder of their own, gone with everything at the end."""
    user = _unprivileged_user()
    folder = Path(tempfile.mkdtemp(prefix="weighbridge-pair-"))
    if user is not None:
        shutil.chown(folder, user)
    try:
        pair = PostgresPair(_executable_by(user, binaries, folder), folder, user)
        try:
            pair.start()
            yield pair
        finally:
            pair.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def running_pgbouncer(server_port: int, *, sessions: int = 2) -> Iterator[int]:
    """Run PgBouncer in transaction mode with few server sessions, so that clients do change them; yield its port."""
    user = _unprivileged_user()
    folder = Path(tempfile.mkdtemp(prefix="weighbridge-pgbouncer-"))
    port = _free_port()
    (folder / "users").write_text('"postgres" ""\n')
    (folder / "pgbouncer.ini").write_text(
        f"[databases]\n* = host=127.0.0.1 port={server_port}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = trust\n"
        f"auth_file = {folder}/users\npool_mode = transaction\ndefault_pool_size = {sessions}\nmax_client_conn = 200\n"
        "ignore_startup_parameters = extra_float_digits\n"
    )
    if user is not None:
        for each in (folder, *folder.iterdir()):
            shutil.chown(each, user)
    program = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
    log = folder / "log"
    with log.open("wb") as told:
        process = subprocess.Popen(
            [program, str(folder / "pgbouncer.ini")], user=user, cwd=folder, stdout=told, stderr=told
        )
    try:
        deadline = time.monotonic() + 30
        while b"process up" not in log.read_bytes():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        yield port
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)
