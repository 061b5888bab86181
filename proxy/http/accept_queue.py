"""The listening socket's accept queue: its wait is measured for the overload guard, and many connections are accepted
at once.

uvloop accepts one connection per turn of the loop. Beside busy kept connections new ones hardly get in, and those
beyond the process's capacity wait in the kernel's queue, where nobody can answer them.
"""

import asyncio
import socket
import ssl
import struct
import sys
from collections.abc import Callable
from typing import Any, Final

_SOME: Final = 16
_MANY: Final = 128
"""Connections accepted per loop turn while shedding; _SOME keeps them few while serving, _MANY lets every caller get
a refusal.
"""
_RATE_OVER_S: Final = 0.25
_HANDSHAKE_S: Final = 10.0
_UNACKED: Final = struct.Struct("@I")
_UNACKED_AT: Final = 24
"""The offset in Linux's `struct tcp_info` of a listening socket's count of connections to be accepted."""
_TCP_INFO: Final = getattr(socket, "TCP_INFO", None) if sys.platform == "linux" else None


def waiting(listener: socket.socket) -> int:
    """Count connections waiting to be accepted by any process that shares the socket; 0 where the system does not
    tell.
    """
    if _TCP_INFO is None:
        return 0
    try:
        told = listener.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _UNACKED_AT + _UNACKED.size)
        count: int = _UNACKED.unpack_from(told, _UNACKED_AT)[0]
    except (OSError, struct.error):
        return 0
    return count


class AcceptWait:
    """Estimates a new connection's wait from the queue's length and the rate of acceptance."""

    __slots__ = ("_accepted", "_per_s", "_since")

    def __init__(self) -> None:
        self._since: float | None = None
        self._accepted = 0
        self._per_s = 0.0

    def seen(self, waiting: int, accepted: int, now: float) -> float:
        """Return the wait in seconds after a measurement; 0 until the rate was measured with a queue present."""
        if not waiting:
            self._since, self._per_s = None, 0.0
            return 0.0
        if self._since is None:
            self._since, self._accepted = now, accepted
        elapsed_s = now - self._since
        if elapsed_s >= _RATE_OVER_S:
            # With nobody accepted at all the wait is long, not endless.
            self._per_s = max(1.0, accepted - self._accepted) / elapsed_s
            self._since, self._accepted = now, accepted
        return waiting / self._per_s if self._per_s else 0.0


class AcceptQueue:
    """Accepts connections beside uvloop's server, which accepts one per turn. Closes like an asyncio server."""

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        accepted: Callable[[], int],
        sharing: int,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`sharing` is the number of processes on the socket; `accepted` returns how many this one accepted so far."""
        self._listener = listener.dup()
        self._make_protocol = make_protocol
        self._accepted = accepted
        self._sharing = sharing
        self._tls = tls
        self._wait = AcceptWait()
        self._loop = asyncio.get_running_loop()
        self._coming: set[asyncio.Task[Any]] = set()
        self._at_once = _SOME
        self._reading = False
        self._closed = False

    def wait_s(self, now: float) -> float:
        """Return the estimated seconds until a new connection is accepted."""
        if self._closed:
            return 0.0
        return self._wait.seen(waiting(self._listener), self._accepted() * self._sharing, now)

    def open(self, *, wide: bool) -> None:
        """Accept many or some connections per turn from now on. Called regularly, which also ends a pause."""
        if self._closed:
            return
        self._at_once = _MANY if wide else _SOME
        if not self._reading:
            self._loop.add_reader(self._listener, self._accept)
            self._reading = True

    async def empty(self) -> None:
        """Accept all connections that wait at this moment, many in each turn of the loop: closing the socket would
        reset them.
        """
        rounds = waiting(self._listener) // _MANY + 1
        self._at_once = _MANY
        for _ in range(rounds):
            if self._closed or not self._accept():
                return
            await asyncio.sleep(0)

    def close(self) -> None:
        if not self._closed:
            self._pause()
            self._closed = True
            self._listener.close()

    async def wait_closed(self) -> None:
        """Return at once: nothing is left to wait for."""

    def _pause(self) -> None:
        self._loop.remove_reader(self._listener)
        self._reading = False

    def _accept(self) -> bool:
        """Accept some connections. Return whether there may be more."""
        for _ in range(self._at_once):
            try:
                connection, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return False
            except OSError:
                # No file descriptor left, most likely. The server has its own way then; the guard opens again soon.
                self._pause()
                return False
            connection.setblocking(False)
            task = self._loop.create_task(self._welcome(connection))
            self._coming.add(task)
            task.add_done_callback(self._coming.discard)
        return True

    async def _welcome(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._make_protocol,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else _HANDSHAKE_S,
            )
        except OSError:
            # The client has closed the connection already, or has not come to terms with TLS.
            connection.close()
