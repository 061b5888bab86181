"""Responses that are made in the background, for their callers: queued, followed, cancelled.

Any process with the database can do each of it; the runner makes them.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from accounts.caller import Caller
from cost.times import HOUR_US, wall_us
from proxy.errors import BackgroundFull, BadRequest, Overloaded, ResponsesUnavailable
from proxy.http.exchange import COMMENT
from proxy.http.reply import Reply
from proxy.parse.wires.wire import Kept, Later
from proxy.responses.background.events import beyond
from proxy.responses.background.store import OPEN, BackgroundStore, Begun
from proxy.responses.background.tables import BackgroundEvents, BackgroundResponse
from proxy.responses.stored.sealing import Sealing
from proxy.responses.stored.stored_responses import StoredResponses
from proxy.responses.stored.stored_responses_config import ResponsesSection

Header = tuple[str, str]

_POLL_S: Final = 0.2
_LONGEST_POLL_S: Final = 1.0
"""The longest seconds between two polls of a stream that has no new events."""
_MOST_FOLLOWERS: Final = 256
"""The most callers of one process that follow at once, each of which polls the database."""
_QUIET_S: Final = 10.0
"""Seconds of silence after which a stream sends a comment, so that no proxy on its way takes it for dead."""
_ROWS: Final = 32
_PURGE_BATCH: Final = 200
_EVENTS_KEPT_US: Final = HOUR_US
"""The seconds for which a stream can be resumed after its end."""
_MOST_BYTES: Final = 64 * 1024 * 1024
_AWAY: Final = (SQLAlchemyError, OSError, TimeoutError)
_KEPT_HEADERS: Final = frozenset(
    {
        *(b"x-tier", b"x-priority", b"x-session-id", b"session_id", b"session-id", b"x-weighbridge-tag"),
        *(b"x-weighbridge-escalate", b"x-request-timeout-ms"),
    }
)
"""The headers that decide how a request is answered. None names its caller: that is its key's id."""


class QueuedRequest(msgspec.Struct, frozen=True):
    """A request that was queued."""

    headers: list[Header]
    body: msgspec.Raw


class BackgroundResponses:
    """The background responses of all teams, each sealed under its team's key."""

    def __init__(
        self,
        store: BackgroundStore,
        responses: StoredResponses,
        sealing: Sealing,
        section: Callable[[], ResponsesSection],
        now_us: Callable[[], int],
        max_followers: int = _MOST_FOLLOWERS,
    ) -> None:
        self.store = store
        self._responses = responses
        self._sealing = sealing
        self._section = section
        self._now_us = now_us
        self._max_followers = max_followers
        self._followers = 0
        self.news: Callable[[], object] = lambda: None
        """The callback for the moment when a response was queued here."""

    async def enqueue_and_reply(
        self,
        caller: Caller,
        later: Later,
        body: bytes,
        headers: Sequence[tuple[bytes, bytes]],
        reply: Reply,
        request_id: str,
    ) -> None:
        """Keep a request that is answered later; reply with what is queued, or with its events as long as they are read.

        Raises BackgroundFull, BadRequest, Overloaded or ResponsesUnavailable.
        """
        kept = later.queued(request_id, wall_us() // 1_000_000)
        await self.enqueue(caller, kept, headers, body, streams=later.streams)
        if not later.streams:
            await reply.whole(200, kept.told)
            return
        # One that may not be followed now is made all the same.
        following = self.follow(caller.team_id, kept.response_id)
        reply.begin_events()
        async for data in following:
            await reply.events(data)
        await reply.end()

    async def enqueue(
        self, caller: Caller, kept: Kept, headers: Sequence[tuple[bytes, bytes]], body: bytes, *, streams: bool
    ) -> None:
        """Queue a request. Raises BackgroundFull, BadRequest or ResponsesUnavailable."""
        section = self._section()
        if section.background_at_once == 0:
            raise BadRequest(
                "This gateway makes no responses in the background: leave out `background`, and stream what takes long.",
                param="background",
                code="unsupported_parameter",
            )
        told = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers if name in _KEPT_HEADERS]
        work = msgspec.json.encode(QueuedRequest(told, msgspec.Raw(body)))
        try:
            async with asyncio.timeout(section.timeout_s):
                record = await self._responses.row_of(caller.team_id, kept.response_id, kept.record)
                row = BackgroundResponse(
                    response_id=kept.response_id,
                    team_id=caller.team_id,
                    key_id=caller.key_id,
                    state="queued",
                    streams=streams,
                    generation=0,
                    failures=0,
                    events=0,
                    held_until_us=0,
                    pepper_id=self._sealing.pepper_id,
                    sealed=self._sealing.seal(caller.team_id, _work_of(kept.response_id), work),
                    created_us=self._now_us(),
                )
                most = section.max_background_per_team
                if not await self.store.add(row, record, most):
                    raise BackgroundFull(
                        f"Your team has {most} responses in the background that have not ended, its limit; wait for some, or "
                        "cancel them.",
                        retry_after_s=5.0,
                    )
        except _AWAY as error:
            raise _unavailable() from error
        self.news()

    async def work_of(self, begun: Begun) -> QueuedRequest:
        """Return the request of a response that was begun. Raises CannotOpen."""
        await self._sealing.ready()
        place = (begun.team_id, _work_of(begun.response_id), begun.pepper_id, begun.sealed)
        return msgspec.json.decode(self._sealing.open(*place, max_bytes=_MOST_BYTES), type=QueuedRequest)

    def events_of(self, begun: Begun, first: int, count: int, data: bytes) -> BackgroundEvents:
        """Return the row in which events are stored."""
        return BackgroundEvents(
            response_id=begun.response_id,
            first=first,
            count=count,
            pepper_id=self._sealing.pepper_id,
            sealed=self._sealing.seal(begun.team_id, _events_of(begun.response_id, first), data),
        )

    async def response(self, team_id: str, response_id: str) -> dict[str, Any]:
        """Return a kept response as it is now, also one that is whole. Raises ResponseNotFound or ResponsesUnavailable."""
        found: dict[str, Any] = msgspec.json.decode(await self._responses.find(team_id, response_id))["response"]
        if found["status"] not in OPEN:
            return found
        try:
            async with asyncio.timeout(self._section().timeout_s):
                standing = await self.store.standing(team_id, response_id)
        except _AWAY as error:
            raise _unavailable() from error
        if standing is not None and standing.state in OPEN:
            return {**found, "status": standing.state}
        # It ended between the two looks.
        ended: dict[str, Any] = msgspec.json.decode(await self._responses.find(team_id, response_id))["response"]
        return ended

    async def cancel(self, team_id: str, response_id: str) -> dict[str, Any]:
        """Cancel a response unless it had ended, and return it. Raises BadRequest for one that its caller waited for."""
        record = msgspec.json.decode(await self._responses.find(team_id, response_id))
        found: dict[str, Any] = record["response"]
        if not found.get("background"):
            raise BadRequest("Only a response with `background` can be cancelled, and this one was waited for.")
        if found["status"] not in OPEN:
            return found
        cancelled = {**found, "status": "cancelled"}
        row = await self._responses.row_of(team_id, response_id, msgspec.json.encode({**record, "response": cancelled}))
        try:
            async with asyncio.timeout(self._section().timeout_s):
                if await self.store.cancel(team_id, response_id, row):
                    return cancelled
        except _AWAY as error:
            raise _unavailable() from error
        return await self.response(team_id, response_id)

    async def forget(self, team_id: str, response_id: str) -> None:
        """Delete the state of a response beside its record. Raises ResponsesUnavailable."""
        try:
            async with asyncio.timeout(self._section().timeout_s):
                await self.store.forget(team_id, response_id)
        except _AWAY as error:
            raise _unavailable() from error

    async def check_followed(self, team_id: str, response_id: str) -> None:
        """Check that a response's events are kept. Raises BadRequest, and for an unknown response the errors of
        `find`.
        """
        await self._responses.find(team_id, response_id)
        try:
            async with asyncio.timeout(self._section().timeout_s):
                standing = await self.store.standing(team_id, response_id)
        except _AWAY as error:
            raise _unavailable() from error
        if standing is None or not standing.streams:
            raise BadRequest(
                "The events of this response are not kept: only one that was begun with `background` and `stream` can be "
                "followed, up to an hour after its end. Read it without `stream`.",
                param="stream",
            )

    def follow(self, team_id: str, response_id: str, after: int = -1) -> AsyncIterator[bytes]:
        """Yield its events beyond the number `after`, until the last. A database that is away for a while is waited
        for. Raises Overloaded where too many follow.
        """
        if self._followers >= self._max_followers:
            raise Overloaded(
                f"As many as {self._max_followers} callers follow responses in this process, its limit; look without `stream`, or "
                "again shortly.",
                retry_after_s=2.0,
            )
        return self._following(team_id, response_id, after)

    async def _following(self, team_id: str, response_id: str, after: int) -> AsyncIterator[bytes]:
        self._followers += 1
        try:
            async for data in self._events_beyond(team_id, response_id, after):
                yield data
        finally:
            self._followers -= 1

    async def _events_beyond(self, team_id: str, response_id: str, after: int) -> AsyncIterator[bytes]:
        quiet_s, wait_s = 0.0, _POLL_S
        await self._sealing.ready()
        while True:
            try:
                standing, rows = await self.store.events(team_id, response_id, after, _ROWS)
            except _AWAY:
                await asyncio.sleep(_QUIET_S / 2)
                continue
            for row in rows:
                place = (team_id, _events_of(response_id, row.first), row.pepper_id, row.sealed)
                data = beyond(self._sealing.open(*place, max_bytes=_MOST_BYTES), row.first, after)
                after, quiet_s, wait_s = row.first + row.count - 1, 0.0, _POLL_S
                yield data
            if rows:
                continue
            if standing.state not in OPEN:
                return
            await asyncio.sleep(wait_s)
            quiet_s += wait_s
            wait_s = min(_LONGEST_POLL_S, wait_s * 1.5)
            if quiet_s >= _QUIET_S:
                quiet_s = 0.0
                yield COMMENT

    async def purge(self) -> None:
        """Delete the responses that ended a while ago. Call it now and then."""
        while await self.store.purge(self._now_us() - _EVENTS_KEPT_US, _PURGE_BATCH) == _PURGE_BATCH:
            pass


def _work_of(response_id: str) -> str:
    return f"{response_id}/work"


def _events_of(response_id: str, first: int) -> str:
    return f"{response_id}/events/{first}"


def _unavailable() -> ResponsesUnavailable:
    return ResponsesUnavailable("Kept responses cannot be read right now; try again shortly.", retry_after_s=1.0)
