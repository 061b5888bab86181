"""The process's link to the shared Redis: one connection behind a circuit breaker.

While the breaker is open every call fails at once, and each process goes on with its share of the limits. In the
background Redis is tried until it answers fast several times in a row. Then this process registers as a new *holder*
and sends the decisions that it made without Redis, and only after that calls are let through again.

Each connection is a holder of its own. A holder's counts are given back when it leaves, when its process registers
anew, or when it was not seen for long; and scripts do nothing for one that is not registered. So commands that Redis
executes late, from a connection that was given up long ago, change no holder's counts.

Where the address is of Sentinels or of a cluster, they are asked for the primary before each connection, and every few seconds whether it is
that one still (`redis_primary.py`): who was cut off together with an old primary leaves it as soon as they can be asked.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from proxy.shared.redis.redis_address import Node, read_address
from proxy.shared.redis.redis_breaker import RedisBreaker
from proxy.shared.redis.redis_config import RedisSection
from proxy.shared.redis.scripts import Script, script
from proxy.shared.redis.shared_state import (
    Argument,
    FailureKind,
    LinkObserver,
    Recovered,
    SharedStateUnavailable,
)

if TYPE_CHECKING:
    from proxy.shared.redis.redis_primary import RedisPrimary
    from proxy.shared.redis.redis_wire import Connected, Wire

__all__ = ["RedisLink", "SharedStateUnavailable"]

_log: Final = logging.getLogger(__name__)
_HOLDERS: Final = script("holders")
_PINGS: Final = 3
_TURNS: Final = 3
_HANDOVER_S: Final = 2.0
HEARTBEAT_S: Final = 1.0
LOST_AFTER_S: Final = 5.0
_LOOK_S: Final = 3.0
"""How often it is asked whether another server is the primary."""


class RedisLink:
    """The link to Redis; see the module. Callbacks must be registered before `start`."""

    def __init__(
        self,
        url: str,
        section: RedisSection,
        boot_id: str,
        *,
        observer: LinkObserver | None = None,
        clock: Callable[[], float] = time.monotonic,
        heartbeat_s: float = HEARTBEAT_S,
        lost_after_s: float = LOST_AFTER_S,
    ) -> None:
        try:
            self._address = read_address(url)
        except ValueError as problem:
            raise ValueError(f"the address of Redis {problem}") from None
        self._primary: RedisPrimary | None = None
        self._at: Node | None = None
        self._used: Node | None = None
        """The primary that calls went to last."""
        self._looked_at = 0.0
        self._section = section
        self._boot_id = boot_id
        self._observer = observer or LinkObserver()
        self._clock = clock
        self._heartbeat_s = heartbeat_s
        self._lost_after_ms = round(lost_after_s * 1000)
        self._breaker = RedisBreaker(section.failures, section.probe_s)
        self._lost: list[Callable[[], None]] = []
        self._recovered: list[Recovered] = []
        self._usable: list[Callable[[], None]] = []
        self._wire: Wire | None = None
        self._made: Wire | None = None
        self._number = 0
        self._live = 1
        self._holder = ""
        self._logged_down = False
        self.problem = ""
        """The reason Redis is not used now; empty while it is."""
        self._tried = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    @property
    def healthy(self) -> bool:
        """True while calls are let through."""
        return self._wire is not None

    @property
    def holder(self) -> str:
        """The id of this process's present connection in Redis; empty before the first one."""
        return self._holder

    @property
    def live(self) -> int:
        """The processes seen at the last heartbeat, this one included."""
        return self._live

    @property
    def prefix(self) -> str:
        return self._section.prefix

    @property
    def place(self) -> str:
        """The address without user and password."""
        return self._address.place

    def on_lost(self, callback: Callable[[], None]) -> None:
        """Register a callback for the moment calls are no longer let through."""
        self._lost.append(callback)

    def on_recovered(self, callback: Recovered) -> None:
        """Register a callback that is awaited with the new connection before calls are let through again."""
        self._recovered.append(callback)

    def on_usable(self, callback: Callable[[], None]) -> None:
        """Register a callback for the moment calls are let through, before anything else runs."""
        self._usable.append(callback)

    async def start(self) -> None:
        """Try to connect once, then in the background. An unreachable Redis is no error. Raises RuntimeError when the
        installed redis library is not supported.
        """
        # Only a process with a Redis pays for this import, and it is not a part of the time that Redis has.
        from proxy.shared.redis.redis_primary import RedisPrimary  # noqa: PLC0415
        from proxy.shared.redis.redis_wire import check_library  # noqa: PLC0415

        check_library()
        self._primary = RedisPrimary(self._address, self.prefix)
        self._running = asyncio.get_running_loop().create_task(self._run())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._section.connect_timeout_s):
                await self._tried.wait()

    async def aclose(self) -> None:
        """Unregister this process's holder, with a short time-out, and close the connection."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        wire, self._wire = self._wire, None
        if wire is not None:
            try:
                async with asyncio.timeout(self._section.connect_timeout_s):
                    await self._ask_holders(wire, "leave")
            except (SharedStateUnavailable, TimeoutError):
                _log.info("redis was not told that this process stops; others will notice")
            self._observer.set_redis_up(up=False)
        if self._made is not None:
            await self._made.aclose()

    async def call(
        self,
        script: Script,
        keys: Sequence[str | bytes],
        args: Sequence[Argument],
        *,
        unwanted: Callable[[Any], None] | None = None,
    ) -> Any:
        """Run a script; see `ScriptRunner.call`."""
        if self._wire is None:
            raise SharedStateUnavailable("open")
        return await self._wire.call(script, keys, args, unwanted=unwanted)

    def tell(self, script: Script, keys: Sequence[str | bytes], args: Sequence[Argument]) -> bool:
        """Send a script without waiting; see `ScriptRunner.tell`."""
        if self._wire is None:
            self._observer.count_redis_failure("dropped")
            return False
        return self._wire.tell(script, keys, args)

    async def _run(self) -> None:
        self._observer.set_redis_up(up=False)
        while True:
            wait_s = self._section.probe_s
            try:
                wire = await self._open_wire()
                self._tried.set()
                if wire is not None:
                    await self._send_heartbeats(wire)
                    wait_s = self._breaker.open(self._clock())
                    await wire.aclose()
            except Exception:  # noqa: BLE001 - whatever it was, Redis is tried again
                _log.exception("the link to redis failed unexpectedly")
                if self._made is not None:
                    await self._made.aclose()
            await asyncio.sleep(wait_s)

    async def _send_heartbeats(self, wire: "Wire") -> None:
        """Send heartbeats until the wire is closed."""
        while not wire.closed:
            await asyncio.wait({wire.ended}, timeout=self._heartbeat_s)
            if not wire.closed:
                try:
                    await self._ask_holders(wire, "refresh")
                except SharedStateUnavailable:
                    # If that is the end of the wire, the wire knows.
                    continue
                if await self._has_moved():
                    wire.close("lost")

    async def _has_moved(self) -> bool:
        """Ask, now and then, whether another server is the primary; who cannot be asked says nothing."""
        from redis.exceptions import RedisError  # noqa: PLC0415 - see start

        now = self._clock()
        if self._primary is None or self._at is None or now - self._looked_at < _LOOK_S:
            return False
        self._looked_at = now
        try:
            # No longer than a heartbeat may be late: others would take this process for dead.
            named = await self._primary.find(min(self._section.connect_timeout_s, self._heartbeat_s))
        except (RedisError, OSError):
            return False
        if named == self._at:
            return False
        _log.info("redis at %s: %s is left, as %s is the primary", self.place, self._at, named)
        return True

    async def _ask_holders(self, wire: "Wire", act: str) -> None:
        boot_id, _, number = wire.holder.rpartition(":")
        args = (act, self.prefix, boot_id, number, self._lost_after_ms, "")
        self._live = max(1, int(await wire.call(_HOLDERS, (f"{self.prefix}holders",), args)))

    async def _open_wire(self) -> "Wire | None":
        """Connect, and return a wire that is open to all callers, or None."""
        from redis.exceptions import RedisError  # noqa: PLC0415 - see start

        try:
            connection = await self._connect()
        except (RedisError, OSError, TimeoutError) as error:
            # redis-py's messages tell host and port, never the password.
            self._log_down(f"{type(error).__name__}: {error}")
            return None
        return await self._open(connection)

    async def _connect(self) -> "Connected":
        from proxy.shared.redis.redis_wire import connect  # noqa: PLC0415 - see start

        assert self._primary is not None  # noqa: S101 - set at the start
        limit_s = self._section.connect_timeout_s
        self._at = await self._primary.find(limit_s)
        self._looked_at = self._clock()
        async with asyncio.timeout(limit_s):
            connection = await connect(self._address.url_of(self._at), limit_s)
            try:
                await self._primary.check(connection)
                for _ in range(_PINGS):
                    await self._ping(connection)
            except BaseException:
                await connection.aclose()
                raise
        return connection

    async def _ping(self, connection: "Connected") -> None:
        """Send a PING. Raises TimeoutError when the reply is slow, not counting the event loop's own delay."""
        begun = self._clock()
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        turns_s = self._clock() - begun
        await connection.ping()
        took_s = self._clock() - begun - 2 * turns_s
        if took_s > self._section.slow_s:
            raise TimeoutError(f"a PING took {took_s:.3f} s")

    async def _open(self, connection: "Connected") -> "Wire | None":
        from proxy.shared.redis.redis_wire import Wire  # noqa: PLC0415 - see start

        self._number += 1
        holder = f"{self._boot_id}:{self._number}"
        wire = self._made = Wire(
            connection, holder, self._section, self._breaker, self._observer, on_closed=self._on_closed
        )
        try:
            async with asyncio.timeout(_HANDOVER_S):
                await self._ask_holders(wire, "register")
                await self._hand_over(wire, holder)
        except (SharedStateUnavailable, TimeoutError) as error:
            self._log_down(f"{type(error).__name__}: {error}")
        if self._wire is wire:
            return wire
        await wire.aclose()
        return None

    async def _hand_over(self, wire: "Wire", holder: str) -> None:
        for recovered in self._recovered:
            await _guarded(recovered(wire))
        if wire.closed:
            raise SharedStateUnavailable("lost")
        self._breaker.close(self._clock())
        self._holder = holder
        self._wire = wire
        self._logged_down = False
        self.problem = ""
        self._observer.set_redis_up(up=True)
        for usable in self._usable:
            _run_guarded(usable)
        _log.info("redis at %s answers%s", self.place, "" if self._at is None else f"; its primary is {self._at}")
        if self._used not in {None, self._at}:
            _log.warning("redis at %s has another primary: %s, no longer %s", self.place, self._at, self._used)
            self._observer.count_primary_change()
        self._used = self._at

    def _on_closed(self, wire: "Wire", kind: FailureKind) -> None:
        if self._wire is not wire:
            return
        self._wire = None
        self._observer.set_redis_up(up=False)
        self._log_down(kind)
        for lost in self._lost:
            _run_guarded(lost)

    def _log_down(self, why: str) -> None:
        """Record the reason for which Redis is unusable; log it once per outage, not at every try."""
        self.problem = why
        if not self._logged_down:
            self._logged_down = True
            _log.warning("redis at %s is not used (%s); this process goes on with its share", self.place, why)


async def _guarded(work: Awaitable[None]) -> None:
    """Await a recovery callback. Any fault of it becomes SharedStateUnavailable, which keeps the link closed."""
    try:
        await work
    except (SharedStateUnavailable, TimeoutError):
        raise
    except Exception as error:
        _log.exception("redis answers, but what was decided without it could not be told to it")
        raise SharedStateUnavailable("error") from error


def _run_guarded(callback: Callable[[], None]) -> None:
    try:
        callback()
    except Exception:  # noqa: BLE001 - the others must be told, and the link must go on
        _log.exception("a change of the link to redis was not taken up")
