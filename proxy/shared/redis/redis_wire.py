"""One Redis connection shared by many callers: calls of one loop turn leave together, replies come in order.

A call waits neither for a batch to fill nor for the batch before: pending calls are sent while few bytes are in
transit. A caller waits for a future of its own, so one that is cancelled leaves the connection as it is. A reply that
is late or out of order ends the whole connection; nothing is ever read from a connection that may be out of step.

This module imports redis, which takes a while; only a process with a Redis configured does.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, cast

import hiredis
import redis
from redis.asyncio.connection import Connection, parse_url
from redis.exceptions import RedisError, ResponseError

from proxy.shared.redis.redis_breaker import RedisBreaker
from proxy.shared.redis.redis_config import RedisSection
from proxy.shared.redis.scripts import Script
from proxy.shared.redis.shared_state import Argument, FailureKind, LinkObserver, SharedStateUnavailable

_log: Final = logging.getLogger(__name__)

# Redis runs a script in some ten microseconds, so this much is answered within a few milliseconds.
_MOST_SENT: Final = 256
_MOST_CALLS: Final = 8_192
# Messages without a reply may pile up for longer: they give back the tokens that callers have taken.
_MOST_WAITING: Final = 65_536
_CHECK_EVERY_S: Final = 0.01
_SILENCE_S: Final = 10.0
# One turn to hear of what has come in, one to put it together, and one to read it.
_TURNS: Final = 3
# hiredis's stub allows a single word only.
_pack: Final = cast("Callable[[tuple[Argument, ...]], bytes]", hiredis.pack_command)
_GONE: Final = frozenset({"NOSCRIPT", "NOHOLDER"})
_ELSEWHERE: Final = {
    "READONLY": "it is a replica, or became one",
    "MOVED": "another node of its cluster has the keys; a cluster's address begins with redis+cluster://",
    "ASK": "another node of its cluster takes the keys over",
    "CLUSTERDOWN": "its cluster does not serve",
    "MASTERDOWN": "it has lost its primary",
}
"""Refusals by a server that takes no writes of ours, however often it is asked."""
_OWN_FAULT: Final = "ERR"
_WRITER: Final = "_writer"
"""The redis-py attribute that holds a connection's stream writer; None while it has none."""


class _Connection(Protocol):
    """The used part of redis-py's connection."""

    async def connect(self) -> None: ...

    async def read_response(self) -> Any: ...

    async def disconnect(self, nowait: bool = False) -> None: ...


class Connected:
    """An established connection. redis-py does the handshake, authentication, TLS and reading. It does nothing by
    itself: no retry, no health check, no message about its library, and no reconnection, so bytes written never reach
    another connection than the one that replies are read from.
    """

    def __init__(self, connection: _Connection, writer: asyncio.StreamWriter) -> None:
        self._connection = connection
        self._writer = writer

    @property
    def broken(self) -> bool:
        return self._writer.is_closing()

    def write(self, commands: bytes) -> None:
        """Write without waiting; the caller bounds the bytes in transit."""
        self._writer.write(commands)

    async def read(self) -> Any:
        """Return the next reply. Raises RedisError or OSError; only after a ResponseError is the connection usable."""
        return await self._connection.read_response()

    async def ask(self, *words: str) -> Any:
        """Send one command and return its reply. Raises as `read`. Only while nobody else uses the connection."""
        self.write(_pack(words))
        return await self.read()

    async def ping(self) -> None:
        await self.ask("PING")

    def abort(self) -> None:
        """Close at once and drop unsent bytes, as a hanging server would never let them drain."""
        self._writer.transport.abort()

    async def aclose(self) -> None:
        self.abort()
        await self._connection.disconnect(nowait=True)


def check_library(kind: Callable[[], object] = Connection) -> None:
    """Check that the installed library's connections work as `connect` needs. Raises RuntimeError when they do not. A
    connection's stream writer is not public, and the public way of sending is a coroutine that would also reconnect.
    Without this check an incompatible library would look like an unreachable Redis.
    """
    if not hasattr(kind(), _WRITER):
        raise RuntimeError(
            f"The installed redis {redis.__version__} keeps its connections in another way than the ones that this was made "
            "for: install the version that requirements/base.txt names, or one that pyproject.toml allows."
        )


async def connect(url: str, connect_timeout_s: float) -> Connected:
    """Open a connection. Raises RedisError, OSError or TimeoutError, and then leaves nothing open."""
    options: dict[str, Any] = dict(parse_url(url))
    # The kind is told by the address: plain, TLS, or a socket of this machine.
    kind: Callable[..., _Connection] = options.pop("connection_class", Connection)
    connection = kind(
        **options,
        protocol=2,
        socket_timeout=None,
        socket_connect_timeout=connect_timeout_s,
        health_check_interval=0,
        driver_info=None,
    )
    try:
        await connection.connect()
    except BaseException:
        await connection.disconnect(nowait=True)
        raise
    # Its own way of sending would make a broken connection anew.
    writer: asyncio.StreamWriter | None = getattr(connection, _WRITER)
    if writer is None:
        raise ConnectionResetError("the connection broke at once")
    return Connected(connection, writer)


class _Command:
    """One command, from being requested until its reply."""

    __slots__ = ("asked", "future", "packed", "script", "sent", "slow", "unwanted")

    def __init__(
        self,
        script: Script | None,
        packed: bytes,
        asked: float,
        future: "asyncio.Future[Any] | None",
        unwanted: Callable[[Any], None] | None,
    ) -> None:
        self.script = script
        self.packed = packed
        self.asked = asked
        self.sent = asked
        self.future = future
        self.unwanted = unwanted
        self.slow = False


class Wire:
    """A carrier of calls over one connection until it is closed; it never reconnects."""

    def __init__(
        self,
        connection: Connected,
        holder: str,
        section: RedisSection,
        breaker: RedisBreaker,
        observer: LinkObserver,
        *,
        on_closed: Callable[["Wire", FailureKind], None],
    ) -> None:
        self.holder = holder
        self.prefix = section.prefix
        self._connection = connection
        self._breaker = breaker
        self._observer = observer
        self._on_closed = on_closed
        self._reply_s = section.reply_s
        self._timeout_s = section.timeout_s
        self._unsent_s = section.timeout_s - section.reply_s
        self._slow_s = section.slow_s
        self._first_check_s = min(self._unsent_s, self._slow_s)
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.time
        self._outbox: deque[_Command] = deque()
        self._under_way: deque[_Command] = deque()
        self._loaded: set[str] = set()
        self._to_flush = False
        self._silent_until = -math.inf
        self._timer: asyncio.TimerHandle | None = None
        self.ended: asyncio.Future[FailureKind] = self._loop.create_future()
        self._reading = self._loop.create_task(self._read())

    @property
    def closed(self) -> bool:
        return self.ended.done()

    async def call(
        self,
        script: Script,
        keys: Sequence[str | bytes],
        args: Sequence[Argument],
        *,
        unwanted: Callable[[Any], None] | None = None,
    ) -> Any:
        if self.closed:
            raise SharedStateUnavailable("lost")
        if len(self._outbox) >= _MOST_CALLS:
            self._observer.count_redis_failure("busy")
            raise SharedStateUnavailable("busy")
        future: asyncio.Future[Any] = self._loop.create_future()
        self._submit(_Command(script, _packed(script, keys, args), self._clock(), future, unwanted))
        try:
            return await future
        except asyncio.CancelledError:
            # The reply came in the same turn of the loop, so nobody else will give it back.
            if unwanted is not None and future.done() and not future.cancelled() and future.exception() is None:
                _give_back(unwanted, future.result())
            raise

    def tell(self, script: Script, keys: Sequence[str | bytes], args: Sequence[Argument]) -> bool:
        if not self.closed and len(self._outbox) >= _MOST_WAITING:
            # Whatever is told gives something back, or corrects it; a new holder does so for all that this one has.
            self.close("busy")
        if self.closed:
            self._observer.count_redis_failure("dropped")
            return False
        self._submit(_Command(script, _packed(script, keys, args), self._clock(), None, None))
        return True

    def _submit(self, entry: _Command) -> None:
        self._outbox.append(entry)
        self._flush_soon()
        if self._timer is None:
            self._timer = self._loop.call_later(self._first_check_s, self._check_timeouts)

    def _flush_soon(self) -> None:
        """Schedule a flush for the next turn of the loop, so that all calls of this turn leave together."""
        if not self._to_flush:
            self._to_flush = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._to_flush = False
        if self.closed:
            return
        if self._connection.broken:
            self.close("lost")
            return
        batch = self._next_batch()
        if batch:
            self._connection.write(b"".join(batch))

    def _next_batch(self) -> list[bytes]:
        now = self._clock()
        batch: list[bytes] = []
        while self._outbox and len(self._under_way) < _MOST_SENT:
            entry = self._outbox.popleft()
            if entry.future is not None and entry.future.done():
                # Its caller has gone, and it was never sent.
                continue
            if entry.script is not None and entry.script.sha not in self._loaded:
                self._loaded.add(entry.script.sha)
                load = _pack(("SCRIPT", "LOAD", entry.script.text))
                self._send(_Command(None, load, now, None, None), now, batch)
            self._send(entry, now, batch)
        return batch

    def _send(self, entry: _Command, now: float, batch: list[bytes]) -> None:
        entry.sent = now
        self._under_way.append(entry)
        batch.append(entry.packed)

    async def _read(self) -> None:
        while True:
            try:
                reply = await self._connection.read()
            except ResponseError as error:
                reply = error
            except (RedisError, OSError):
                self.close("lost")
                return
            if not self._under_way:
                self.close("lost")
                return
            self._on_reply(self._under_way.popleft(), reply)
            if self.closed:
                return

    def _on_reply(self, entry: _Command, reply: Any) -> None:
        took_s = self._clock() - entry.sent
        self._observer.observe_redis_call(took_s)
        if isinstance(reply, ResponseError):
            self._refused(entry, reply)
        else:
            if took_s < self._slow_s:
                self._breaker.answered()
            _resolve(entry, reply)
        if self._outbox:
            self._flush_soon()

    def _refused(self, entry: _Command, error: ResponseError) -> None:
        first = str(error).partition(" ")[0]
        code = error.status_code or first
        # A script's error of one word arrives as `ERR` and that word.
        if code in _GONE or first in _GONE:
            # Redis was started anew, or has taken us for dead: nothing that we know of it holds any more.
            _log.warning("redis has forgotten this process (%s)", first if first in _GONE else code)
            _fail(entry, "lost")
            self.close("lost")
            return
        if code in _ELSEWHERE:
            _log.warning("redis answers %s: %s", code, _ELSEWHERE[code])
            _fail(entry, "lost")
            self.close("lost")
            return
        self._log_refusal(entry, error)
        self._observer.count_redis_failure("error")
        _fail(entry, "error")
        # A command may be wrong by itself; anything else, such as being out of memory, is the server's state.
        if entry.script is None or (code != _OWN_FAULT and self._breaker.failed()):
            self.close("error")

    def _log_refusal(self, entry: _Command, error: ResponseError) -> None:
        """Log an error at most once per _SILENCE_S, as there may be thousands a second."""
        if self._clock() >= self._silent_until:
            self._silent_until = self._clock() + _SILENCE_S
            name = "SCRIPT LOAD" if entry.script is None else entry.script.name
            _log.error("redis refused %s: %s", name, str(error)[:200])

    def _check_timeouts(self, turns: int = _TURNS) -> None:
        """Check for calls that have waited too long. Let the loop read the replies that have arrived first, as the
        delay may be our own.
        """
        if self.closed:
            return
        if turns:
            self._timer = None
            self._loop.call_soon(self._check_timeouts, turns - 1)
            return
        now = self._clock()
        if self._under_way and now >= self._deadline(self._under_way[0]):
            self.close("late")
            return
        slow = [entry for entry in self._under_way if not entry.slow and now - entry.sent >= self._slow_s]
        for entry in slow:
            entry.slow = True
            self._observer.count_redis_failure("slow")
        # Many calls wait for one slow moment; it counts once.
        if slow and self._breaker.failed():
            self.close("slow")
            return
        self._give_up_unsent(now)
        if self._timer is None and (self._under_way or self._outbox):
            self._timer = self._loop.call_later(self._until_next_check_s(now), self._check_timeouts)

    def _give_up_unsent(self, now: float) -> None:
        """Fail calls that could not be sent in time. Redis has not seen them."""
        before = now - self._unsent_s
        if not self._outbox or self._outbox[0].asked > before:
            return
        kept: deque[_Command] = deque()
        for entry in self._outbox:
            if entry.future is None or entry.asked > before:
                kept.append(entry)
            elif not entry.future.done():
                self._observer.count_redis_failure("busy")
                _fail(entry, "busy")
        self._outbox = kept

    def _deadline(self, entry: _Command) -> float:
        """Return the time by which the reply must come. A message may wait in the outbox for longer, and then Redis
        still has its time.
        """
        return max(entry.asked + self._timeout_s, entry.sent + self._reply_s)

    def _until_next_check_s(self, now: float) -> float:
        if self._outbox or not self._under_way:
            return _CHECK_EVERY_S
        oldest = self._under_way[0]
        if oldest.slow:
            return min(_CHECK_EVERY_S, self._deadline(oldest) - now)
        return max(_CHECK_EVERY_S, oldest.sent + self._slow_s - now)

    def close(self, kind: FailureKind) -> None:
        """Close at once: fail every waiting call and drop unsent messages."""
        if self.closed:
            return
        self.ended.set_result(kind)
        if self._timer is not None:
            self._timer.cancel()
        waiting = [*self._under_way, *self._outbox]
        self._under_way.clear()
        self._outbox.clear()
        self._on_closed(self, kind)
        for entry in waiting:
            if entry.future is not None:
                self._observer.count_redis_failure(kind)
                _fail(entry, kind)
            elif entry.script is not None:
                self._observer.count_redis_failure("dropped")

    async def aclose(self) -> None:
        """Close the wire if necessary, and wait until its tasks have ended."""
        self.close("lost")
        self._connection.abort()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self._connection.aclose()


def _packed(script: Script, keys: Sequence[str | bytes], args: Sequence[Argument]) -> bytes:
    return _pack(("EVALSHA", script.sha, len(keys), *keys, *args))


def _resolve(entry: _Command, reply: Any) -> None:
    if entry.future is None:
        return
    if not entry.future.done():
        entry.future.set_result(reply)
    elif entry.unwanted is not None and entry.future.cancelled():
        _give_back(entry.unwanted, reply)


def _fail(entry: _Command, kind: FailureKind) -> None:
    if entry.future is not None and not entry.future.done():
        entry.future.set_exception(SharedStateUnavailable(kind))


def _give_back(unwanted: Callable[[Any], None], reply: Any) -> None:
    try:
        unwanted(reply)
    except Exception:  # noqa: BLE001 - the reply is for others too, and they must be served
        _log.exception("what a cancelled caller had taken was not given back")
