"""Which PostgreSQL server of an address may be written: no primary whose place another one has taken.

A primary that was killed and replaced, and then starts again as it was, takes writes as its successor does; whoever is named first in the
address would get them. Each promotion begins a new timeline, so the one with the higher number is the successor. What is not seen is a
primary whose successor cannot be reached from here: to stop that one is the matter of whoever promotes (Patroni, a managed service).
"""

import asyncio
import contextlib
import logging
import socket
import uuid
from collections.abc import Sequence
from typing import Any, Final

import asyncpg
import msgspec

from gateway.database_address import PostgresAddress

_log: Final = logging.getLogger(__name__)
_TOLD: Final = """
    SELECT system_identifier::text AS cluster, pg_walfile_name(pg_current_wal_lsn()) AS file,
        extract(epoch FROM pg_postmaster_start_time())::text AS started FROM pg_control_system()
"""
_TIMELINE_DIGITS: Final = 8
"""Hexadecimal ones, at the beginning of the name of a file of the log."""
_WRITABLE: Final = frozenset({"read-write", "primary"})
_NOT_THERE: Final = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
_OTHERS_S: Final = 1.0
"""How much longer the other hosts may take, once one takes writes."""
_NOTICED: Final[tuple[tuple[int, int, int], ...]] = tuple(
    (level, option, value)
    for level, name, value in (
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 10),
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 5),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
        # Milliseconds that what was sent may wait for its acknowledgement; Linux alone has it.
        (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", 15_000),
    )
    if (option := getattr(socket, name, None)) is not None
)
"""A host that vanished without a word is noticed in less than half a minute, not after the quarter of an hour of the system's own."""


class ReplacedPrimary(ConnectionError):
    """The server takes writes, and another one has taken its place."""


class _Primary(msgspec.Struct, frozen=True):
    """What a server that takes writes tells of itself."""

    cluster: str
    timeline: int
    started: str
    """When; one that was replaced while nothing was asked of it here has the same timeline as before, and started anew."""


_SILENT: Final = _Primary("", 0, "")
"""Of a service that keeps such facts to itself."""


class _Found(msgspec.Struct, frozen=True):
    """A connection to a server that takes writes."""

    dsn: str
    connection: Any
    told: _Primary


class PrimaryFinder:
    """Connects to the server of an address that takes writes, and remembers where that was and the newest timeline of its cluster."""

    def __init__(self, address: PostgresAddress) -> None:
        self._address = address
        self._at: str | None = None
        self._newest: _Primary | None = None

    async def connect(self) -> Any:
        """Return the driver's connection. Raises ReplacedPrimary, or as the driver does."""
        if self._address.connect["target_session_attrs"] not in _WRITABLE:
            return await asyncpg.connect(self._address.dsn, **self._address.connect)
        if self._at is not None:
            # It may be gone, be a standby now, or run anew: then all are asked.
            with contextlib.suppress(*_NOT_THERE):
                found = await self._open(self._at)
                if found.told == self._newest:
                    return self._take(found)
                found.connection.terminate()
        return self._take(await self._newest_of(self._address.dsns or (self._address.dsn,)))

    def _take(self, found: _Found) -> Any:
        self._at, self._newest = found.dsn, found.told
        return found.connection

    def _is_old(self, told: _Primary) -> bool:
        newest = self._newest
        return newest is not None and told.cluster == newest.cluster and told.timeline < newest.timeline

    async def _newest_of(self, dsns: Sequence[str]) -> _Found:
        """Return the newest of those that take writes, and close connections to the others."""
        found = await self._all_of(dsns)
        newest = max(found, key=lambda each: each.told.timeline if each.told.cluster == found[0].told.cluster else -1)
        for each in found:
            if each is not newest:
                each.connection.terminate()
            if each.told.timeline < newest.told.timeline or self._is_old(each.told):
                _log.warning(
                    "a server of the database takes writes (timeline %d), but another one has taken its place: stop it, and make it a "
                    "standby of that one",
                    each.told.timeline,
                )
        if self._is_old(newest.told):
            newest.connection.terminate()
            raise ReplacedPrimary(
                "the database's server was replaced by another one, which does not answer; restart the gateway if it is the right one"
            )
        return newest

    async def _all_of(self, dsns: Sequence[str]) -> list[_Found]:
        """Return those that take writes, one at least. All are asked at once, each for as long as a connect may take: the driver has one
        time for all of them, which a host that vanished uses up.
        """
        tasks = [asyncio.ensure_future(self._open(dsn)) for dsn in dsns]
        try:
            waiting: set[asyncio.Future[_Found]] = set(tasks)
            while waiting:
                # Once there is one, the others have a moment to tell that they are newer.
                moment_s = _OTHERS_S if _opened(tasks) else None
                done, waiting = await asyncio.wait(waiting, timeout=moment_s, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
        except BaseException:
            for each in _opened(tasks):
                each.connection.terminate()
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        found = _opened(tasks)
        if not found:
            raise _most_telling([each.exception() for each in tasks if not each.cancelled()])
        return found

    async def _open(self, dsn: str) -> _Found:
        connection = await asyncpg.connect(dsn, **self._address.connect)
        carrier = getattr(connection, "_transport", None)
        opened = None if carrier is None else carrier.get_extra_info("socket")
        if opened is not None and opened.family in {socket.AF_INET, socket.AF_INET6}:
            for level, option, value in _NOTICED:
                with contextlib.suppress(OSError):
                    opened.setsockopt(level, option, value)
        try:
            return _Found(dsn, connection, await _told(connection))
        except BaseException:
            connection.terminate()
            raise


def _opened(tasks: "Sequence[asyncio.Future[_Found]]") -> list[_Found]:
    return [each.result() for each in tasks if each.done() and not each.cancelled() and each.exception() is None]


def _most_telling(errors: Sequence[BaseException | None]) -> BaseException:
    """Return the error that says most of why nobody takes writes: a refusal, else that all are standbys, else one who is not there."""
    told = [each for each in errors if each is not None]
    for kinds in (OSError, asyncpg.InternalClientError):
        if others := [each for each in told if not isinstance(each, kinds)]:
            told = others
    return told[-1]


async def _told(connection: Any) -> _Primary:
    try:
        # In one transaction and under a name of its own, for poolers that give each transaction another session.
        async with connection.transaction():
            asking = await connection.prepare(_TOLD, name=f"weighbridge_{uuid.uuid4().hex}")
            row = await asking.fetchrow()
    except asyncpg.PostgresError:
        return _SILENT
    return _Primary(row["cluster"], int(row["file"][:_TIMELINE_DIGITS], 16), row["started"])
