"""PgBouncer before a server, for tests of poolers."""

import contextlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.postgres import _unprivileged_user
from tests.redis_server import quiet_port


@contextlib.contextmanager
def running_pgbouncer(server_port: int, *, sessions: int = 2) -> Iterator[int]:
    """Run PgBouncer in transaction mode with few server sessions, so that clients do change them; yield its port."""
    user = _unprivileged_user()
    folder = Path(tempfile.mkdtemp(prefix="weighbridge-pgbouncer-"))
    port = quiet_port()
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
