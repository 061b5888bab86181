"""A real HAProxy with the configuration that is shipped, as a process that tests may reload and kill."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.redis_server import quiet_port

SHIPPED: Final = Path(__file__).parents[1] / "deploy" / "haproxy.cfg"
_LOG: Final = "haproxy.log"
_SOCKET: Final = "admin.sock"
_ANSWERS_WITHIN_S: Final = 20.0
_POLL_S: Final = 0.02


def haproxy_binary() -> str:
    """The program. Debian has it in a folder that is root's alone in PATH; a test is skipped without it."""
    found = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        assert not os.environ.get("CI"), "haproxy is missing: .ci/packages installs it"
        pytest.skip("haproxy is not there; Debian's package has this name")
    return found


class HaProxy:
    """See `running_haproxy`."""

    def __init__(self, port: int, process: "subprocess.Popen[bytes]", folder: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.process = process
        self.log_path = folder / _LOG
        self._socket_path = folder / _SOCKET

    def reload(self) -> None:
        """As `systemctl reload haproxy` does it. Returns once the new worker runs."""
        before = self.log_path.read_text().count("Loading success")
        self.process.send_signal(signal.SIGUSR2)
        deadline = time.monotonic() + _ANSWERS_WITHIN_S
        while self.log_path.read_text().count("Loading success") == before:
            assert time.monotonic() < deadline, self.log_path.read_text()[-2_000:]
            time.sleep(_POLL_S)

    def up(self) -> set[str]:
        """The gateways that it sends requests to."""
        with socket.socket(socket.AF_UNIX) as asking:
            try:
                asking.connect(str(self._socket_path))
            except OSError:
                # It starts, or reloads.
                return set()
            asking.sendall(b"show stat\n")
            with asking.makefile() as told:
                rows = [line.split(",") for line in told]
        state = rows[0].index("status") if rows else 0
        return {row[1] for row in rows if row[0] == "gateways" and row[1] != "BACKEND" and row[state].startswith("UP")}

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(_ANSWERS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def written(folder: Path, port: int, hosts: Sequence[int]) -> Path:
    """The shipped file with addresses of this machine and as many connections as a test may have; nothing else is changed."""
    addresses = {
        ":8080  ": f"127.0.0.1:{port}  ",
        "40000\n": "2000\n",
        "/run/haproxy/admin.sock": str(folder / _SOCKET),
    }
    addresses |= {f"10.0.0.1{number}:8080": f"127.0.0.1:{host}" for number, host in enumerate(hosts, 1)}
    text = SHIPPED.read_text()
    for theirs, ours in addresses.items():
        assert theirs in text, theirs
        text = text.replace(f" {theirs}", f" {ours}")
    path = folder / "haproxy.cfg"
    path.write_text(text)
    return path


@contextlib.contextmanager
def running_haproxy(folder: Path, hosts: Sequence[int]) -> Iterator[HaProxy]:
    """Before gateways on these ports of this machine."""
    port = quiet_port()
    path = written(folder, port, hosts)
    with (folder / _LOG).open("wb") as out:
        process = subprocess.Popen([haproxy_binary(), "-W", "-f", str(path)], stdout=out, stderr=out)
    made = HaProxy(port, process, folder)
    try:
        yield made
    finally:
        made.stop()
