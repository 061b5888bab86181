"""The HTTP server of one process: accepts connections, gives each request to its route, and ends in order."""

import asyncio
import logging
import socket
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from email.utils import formatdate
from pathlib import Path
from typing import Final

from providers.held_bytes import HeldBytes
from proxy.errors import Draining, MethodNotAllowed, Refused, error_reply
from proxy.http import content_coding
from proxy.http.accept_queue import AcceptQueue
from proxy.http.connection import Connection, ConnectionLimits
from proxy.http.cors import Cors
from proxy.http.exchange import CallerGone, Exchange
from proxy.http.request_id import REQUEST_ID_HEADER, new_request_id


class TlsInvalid(Exception):
    """The certificate and its key cannot be used; the message says why."""


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Read a certificate chain and its private key, both as PEM. Raises TlsInvalid."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise TlsInvalid(f"cannot use {certificate} with {key}: {error}") from error
    return context


Route = Callable[[Exchange], Awaitable[None]]
Routes = Mapping[str, Mapping[str, Route]]
"""The methods of each path, and the route that answers each."""

_log: Final = logging.getLogger("weighbridge.http")

BACKLOG: Final = 8192
TICK_S: Final = 1.0
_TELL_S: Final = 0.5
"""Seconds for which a stopping server still accepts, and tells balancers and kept connections to leave: a closed
socket tells them nothing. Connections that come meanwhile get as long again to send a request.
"""
_MOVE_S: Final = 2.0
"""Seconds for which a replaced server keeps idle connections; each next reply tells them to leave."""
_CUT_OFF_S: Final = 2.0
"""Seconds after the drain for the last bytes of requests that are cut off."""
_POLL_S: Final = 0.05
_BEGUN_A_TURN: Final = 4
"""The most requests that begin in one turn of the loop among streams, or half of those that wait, if that is more. A
burst of requests would fill a turn for many milliseconds, in which no stream is passed on and no upstream hears of
any of them. Whole answers are made faster many at once.
"""


class HttpServer:
    """An HTTP/1.1 server on listening sockets. Paths in `routes` are answered there, all others by `otherwise`."""

    def __init__(
        self,
        routes: Routes,
        otherwise: Route,
        limits: ConnectionLimits | None = None,
        *,
        cors_origins: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits or ConnectionLimits()
        """The limits in force. They may be replaced; open connections follow at their next step."""
        self.held = HeldBytes(self.limits.max_bodies_bytes)
        self.now = clock
        self.leaving = False
        self.accepted = 0
        """Connections accepted so far."""
        self.connections: set[Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        """The requests that are being answered."""
        self._routes = routes
        self._otherwise = otherwise
        self._cors = Cors(cors_origins) if cors_origins else None
        self._half_closed: set[Connection] = set()
        self._waiting: deque[Exchange] = deque()
        """Requests that begin in the next turns of the loop."""
        self._streams = False
        """True when the reply that ended last was a stream of events, so that others are under way."""
        self._not_http = 0
        self._common = b""
        self._dated_at = 0
        self._doors: list[asyncio.Server | AcceptQueue] = []
        self._queues: list[AcceptQueue] = []
        self._ticking: asyncio.Task[None] | None = None
        self._hurried = False
        self._stop_asked = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    # Opening and closing.

    async def listen(
        self,
        listener: socket.socket,
        *,
        tls: ssl.SSLContext | None = None,
        sharing: int = 1,
        watch: Callable[[AcceptQueue], None] | None = None,
        tick_s: float = TICK_S,
    ) -> None:
        """Accept connections from a listening socket, which is closed with the doors, and keep time for all of them.
        `watch` is given the socket's accept queue; `sharing` is the number of processes that accept from it.
        """
        # The loop calls `listen` again, which must not shrink the backlog.
        door = await self._loop.create_server(
            self._connection,
            sock=listener,
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else self.limits.head_timeout_s,
            backlog=BACKLOG,
        )
        queue = AcceptQueue(listener, self._connection, lambda: self.accepted, sharing, tls)
        self._doors += (door, queue)
        self._queues.append(queue)
        if watch is not None:
            watch(queue)
        if self._ticking is None:
            self._ticking = self._loop.create_task(self._keep_time(tick_s))

    def close_doors(self) -> None:
        """Accept no more connections."""
        for door in self._doors:
            door.close()
        self._doors.clear()
        self._queues.clear()

    async def aclose(self) -> None:
        """End at once: requests under way are cancelled, and their callers told as far as possible."""
        self.close_doors()
        self._waiting.clear()
        tasks = tuple(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in tuple(self.connections):
            connection.close()
        # Written bytes leave in the next turn.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for connection in tuple(self.connections):
            connection.abort()
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.wait({self._ticking})
        # A lost connection is told in the loop's next turn.
        await asyncio.sleep(0)

    def hurry(self) -> None:
        """End any waiting for requests and callers."""
        self._hurried = True

    def stop_moving(self) -> None:
        """Ask a server that is being replaced to stop now."""
        self._stop_asked.set()

    async def stop(self, until: float, cut_off: Callable[[], bool]) -> None:
        """End in order: tell all callers, close once nobody waits to be accepted, wait until the time `until` for
        requests under way, and then call `cut_off`, which tells them why they end and returns whether it could.
        Requests that outlast even that are cancelled.
        """
        self.leaving = True
        earlier = tuple(self.connections)
        await self._wait(_TELL_S, lambda: False)
        for queue in self._queues:
            await queue.empty()
        self.close_doors()
        for connection in earlier:
            connection.leave()
        await self._wait(_TELL_S, self._is_done)
        for connection in tuple(self.connections):
            connection.leave()
        await self._wait(until - self.now(), self._is_done)
        if self.tasks and not self._hurried:
            _log.warning("%d requests still ran at the end and are cut off", len(self.tasks))
            if not cut_off():
                for task in tuple(self.tasks):
                    task.cancel()
        await self._wait(_CUT_OFF_S, self._is_done)

    async def leave(self, seconds: float) -> None:
        """Serve on for so long, telling each connection with its next reply to go elsewhere; `stop` must follow."""
        self.leaving = True
        await self._wait(seconds, lambda: False)

    async def move(self, until: float) -> None:
        """Hand over to others on the same sockets: nobody is refused, each connection has one more reply at most.
        Return when all have gone, after half the time `until`, or at `stop_moving`; `stop` must follow.
        """
        self.close_doors()
        self.leaving = True
        left_s = until - self.now()
        await self._wait(min(_MOVE_S, left_s / 4), self._is_moved)
        for connection in tuple(self.connections):
            connection.leave()
        await self._wait(left_s / 2, self._is_moved)

    def _is_done(self) -> bool:
        return not self.tasks and not self.connections

    def _is_moved(self) -> bool:
        return self._stop_asked.is_set() or not self.connections

    async def _wait(self, seconds: float, enough: Callable[[], bool]) -> None:
        ends_at = self.now() + seconds
        while not self._hurried and not enough() and self.now() < ends_at:  # noqa: ASYNC110 - what it waits for is counted, not told
            await asyncio.sleep(_POLL_S)

    # Time.

    async def _keep_time(self, tick_s: float) -> None:
        while True:
            await asyncio.sleep(tick_s)
            try:
                self.tick()
            except Exception as error:  # noqa: BLE001 - every limit in seconds hangs on this loop
                _log.error("a look at the connections failed: %s", type(error).__name__, exc_info=error)

    def tick(self) -> None:
        """Look at all connections, which costs less than a timer for each of them."""
        now = self.now()
        for connection in [connection for connection in self.connections if connection.due_at <= now]:
            connection.overdue(now)
        if self._half_closed:
            self._half_closed = {each for each in self._half_closed if each.look_for_caller()}
        if self._not_http:
            _log.warning("%d times something came that is no HTTP request", self._not_http)
            self._not_http = 0

    # The connections' side.

    def _connection(self) -> Connection:
        return Connection(self, self._loop)

    def register(self, connection: Connection) -> bool:
        """Register a new connection. Return False when there are too many."""
        self.accepted += 1
        if len(self.connections) >= self.limits.max_connections:
            return False
        self.connections.add(connection)
        return True

    def unregister(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._half_closed.discard(connection)

    def half_closed(self, connection: Connection) -> None:
        """Note that a connection's caller sends no more: it may be gone, or wait for its answer."""
        self._half_closed.add(connection)

    def not_http(self) -> None:
        """Count bytes that are no HTTP request."""
        self._not_http += 1

    def common_fields(self, exchange: Exchange | None) -> bytes:
        """Return `date`, and the fields that a browser needs."""
        seconds = int(time.time())
        if seconds != self._dated_at:
            self._dated_at = seconds
            self._common = f"date: {formatdate(seconds, usegmt=True)}\r\n".encode()
        if self._cors is not None and exchange is not None:
            return self._common + self._cors.fields(exchange)
        return self._common

    def dispatch(self, exchange: Exchange) -> None:
        """Begin to answer, in a task of its own; among streams, some in each of the next turns."""
        if not self._streams and not self._waiting:
            self._begin(exchange)
            return
        self._waiting.append(exchange)
        if len(self._waiting) == 1:
            self._loop.call_soon(self._begin_some)

    def _begin_some(self) -> None:
        waiting = len(self._waiting)
        # Thousands of streams make long turns, in which more come than a few.
        for _ in range(min(waiting, max(_BEGUN_A_TURN, waiting // 2))):
            self._begin(self._waiting.popleft())
        if self._waiting:
            self._loop.call_soon(self._begin_some)

    def _begin(self, exchange: Exchange) -> None:
        # Refusals, too: thousands that were sent ahead must not be answered in one turn of the loop.
        # With a name, as one would be made for each.
        exchange.task = asyncio.Task(self._answer(exchange), loop=self._loop, name="request")
        self.tasks.add(exchange.task)

    def serve_instead(self, routes: Routes, otherwise: Route) -> None:
        """Answer requests that begin from now on by these routes."""
        self._routes, self._otherwise = routes, otherwise

    def route_of(self, exchange: Exchange) -> Route:
        """Return the route that answers a request. Raises UnsupportedEncoding or MethodNotAllowed."""
        if exchange.is_encoded and not (exchange.path in self._routes and content_coding.is_read(exchange.coding)):
            raise content_coding.unsupported(exchange.coding)
        if self._cors is not None and self._cors.is_preflight(exchange):
            return self._cors.answer_preflight
        methods = self._routes.get(exchange.path)
        if methods is None:
            return self._otherwise
        route = methods.get(exchange.method)
        if route is None:
            raise MethodNotAllowed(", ".join(methods))
        return route

    async def _answer(self, exchange: Exchange) -> None:
        try:
            await self.route_of(exchange)(exchange)
            if not exchange.ended and exchange.gone is None:
                _log.error("a request was not answered to its end")
                exchange.abort()
        except asyncio.CancelledError:
            refuse(exchange, Draining("This gateway process had to stop before the request was answered."))
        except CallerGone:
            exchange.abort()
        except Refused as refused:
            refuse(exchange, refused)
        except Exception as error:  # noqa: BLE001 - every failure is told to the caller
            # The traceback names code, never the request's content.
            _log.error("a request failed unexpectedly: %s", type(error).__name__, exc_info=error)
            refuse(exchange, error)
        finally:
            exchange.release()
            self._streams = bool(exchange.probe)
            assert exchange.task is not None  # noqa: S101 - It was set before this coroutine ran.
            self.tasks.discard(exchange.task)


def refuse(exchange: Exchange, error: Exception) -> None:
    """Answer with an error, or cut a reply that has begun and not ended."""
    if exchange.started:
        exchange.abort()
        return
    told = error_reply(error)
    headers = ((b"content-type", b"application/json"), (REQUEST_ID_HEADER, new_request_id().encode()), *told.headers)
    exchange.respond(told.status, headers, told.body)
