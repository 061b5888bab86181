"""Keeping of responses and conversations for their callers, and finding them again.

Keeping never fails a request: an answer that was paid for is given, and says `store: false` when it could not be kept.
"""

import asyncio
import functools
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from accounts.caller import Caller
from cost.times import wall_us
from proxy.errors import BadRequest, BodyTooLarge, ConversationNotFound, Refused, ResponseNotFound, ResponsesUnavailable
from proxy.parse.wires.wire import Change, Continuing, Kept, Memory, Read
from proxy.responses.stored.sealing import CannotOpen, Sealing
from proxy.responses.stored.store import ResponseStore
from proxy.responses.stored.stored_responses_config import ResponsesSection
from proxy.responses.stored.tables import StoredResponse

_log: Final = logging.getLogger("weighbridge.responses")

CONVERSATION: Final = "conv_"
"""The beginning of a conversation's id."""
_DAY_US: Final = 86_400_000_000
_FRESH_US: Final = 60_000_000
"""The seconds for which a known size of a team holds."""
_MAX_TEAMS: Final = 10_000
_SPARE: Final = 0.9
"""A team that is full is cut down to this part, so that not every response trims."""
_INLINE_BYTES: Final = 64 * 1024
"""Larger records are compressed beside the loop."""
_PURGE_BATCH: Final = 500
_CHANGES: Final = 16
"""The number of tries of a change that others come before."""
_AWAY: Final = (SQLAlchemyError, OSError, TimeoutError)


class _Size(msgspec.Struct):
    taken: int
    read_us: int


class StoredResponses:
    """Responses and conversations of all teams, each under its own key."""

    def __init__(
        self,
        store: ResponseStore,
        sealing: Sealing,
        section: Callable[[], ResponsesSection],
        now_us: Callable[[], int] = wall_us,
    ) -> None:
        self._store = store
        self._sealing = sealing
        self._section = section
        self._now_us = now_us
        self._sizes: OrderedDict[str, _Size] = OrderedDict()

    async def keep(self, caller: Caller, kept: Kept) -> bool:
        """Keep a response, and its addition to a conversation: both, or neither. Return False when something is too
        large, the conversation is gone, or the database does not answer.
        """
        section = self._section()
        if section.keep_days == 0 or len(kept.record) > section.max_response_bytes:
            return False
        try:
            async with asyncio.timeout(section.timeout_s):
                added = (
                    await self._row(caller.team_id, kept.response_id, kept.record, section) if kept.is_stored else None
                )
                if kept.turn is None:
                    await self._store.write(added)
                else:
                    await self._change(caller.team_id, kept.turn, added)
                if added is not None:
                    await self._bound(caller.team_id, added.size, section.max_bytes_per_team)
        except _AWAY as error:
            _log.warning("a response could not be kept: %s", type(error).__name__)
            return False
        except Refused as error:
            _log.info("a response could not be kept: %s", type(error).__name__)
            return False
        return True

    async def add(self, team_id: str, name: str, record: bytes) -> None:
        """Keep a record whose caller waits for it alone. Raises BadRequest or ResponsesUnavailable."""
        section = self._section()
        try:
            async with asyncio.timeout(section.timeout_s):
                added = await self.row_of(team_id, name, record)
                await self._store.write(added)
                await self._bound(team_id, added.size, section.max_bytes_per_team)
        except _AWAY as error:
            raise _unavailable() from error

    async def change(self, team_id: str, change: Change) -> bytes:
        """Change a record and return it. Raises the errors of `find`, and those of the change."""
        section = self._section()
        try:
            async with asyncio.timeout(section.timeout_s):
                return await self._change(team_id, change)
        except _AWAY as error:
            raise _unavailable() from error

    async def find(self, team_id: str, response_id: str) -> bytes:
        """Return the record. Raises ResponseNotFound, ConversationNotFound or ResponsesUnavailable."""
        try:
            async with asyncio.timeout(self._section().timeout_s):
                record, _ = await self._found(team_id, response_id)
        except _AWAY as error:
            raise _unavailable() from error
        return record

    async def body_with_earlier(
        self,
        team_id: str,
        body: bytes,
        continuing: Continuing,
        read: Read,
        *,
        most_bytes: int,
        memory: Memory | None,
    ) -> bytes:
        """Return the body with all earlier turns in it.

        `memory` is what its connection remembers of the answers that it goes on from or refers to. `read` is called with the
        longest of them, by which it decides where the body is made.
        Raises BadRequest, BodyTooLarge or ResponsesUnavailable.
        """
        names = await read(body, functools.partial(continuing.names, body))
        if not names:
            # Most go on from nothing.
            return body
        records = {}
        try:
            for name in names:
                remembered = None if memory is None else memory.find(name)
                records[name] = await self.find(team_id, name) if remembered is None else remembered
        except ResponseNotFound as error:
            raise BadRequest(
                f"{error.message} Send the whole conversation as `input`.",
                param="previous_response_id",
                code="previous_response_not_found",
            ) from error
        whole = await read(max((body, *records.values()), key=len), lambda: continuing.continued(body, records))
        if len(whole) > most_bytes:
            raise BodyTooLarge(
                f"The conversation that this request goes on from has become larger than {most_bytes} bytes, the limit of "
                "this gateway: begin a new one with a shorter `input`."
            )
        return whole

    async def remove(self, team_id: str, response_id: str) -> None:
        """Delete a record. Raises ResponseNotFound, ConversationNotFound or ResponsesUnavailable."""
        try:
            async with asyncio.timeout(self._section().timeout_s):
                there = await self._store.remove(team_id, response_id, self._now_us())
        except _AWAY as error:
            raise _unavailable() from error
        if not there:
            raise _not_found(response_id)

    async def purge(self) -> None:
        """Delete expired records. Call it now and then."""
        while await self._store.purge(self._now_us(), _PURGE_BATCH) == _PURGE_BATCH:
            pass

    async def _found(self, team_id: str, name: str) -> tuple[bytes, int]:
        """Return the record and its version."""
        found = await self._store.find(team_id, name, self._now_us())
        if found is None:
            raise _not_found(name)
        await self._sealing.ready()
        try:
            # Records that were kept under a larger bound are still read.
            record = self._sealing.open(team_id, name, found.pepper_id, found.sealed, max_bytes=_MOST_BYTES)
        except CannotOpen as error:
            _log.error("a kept response cannot be opened: %s", error)
            raise _not_found(name) from error
        return record, found.version

    async def row_of(self, team_id: str, name: str, record: bytes) -> StoredResponse:
        """Return a record as it is stored, for the caller to write. Raises BadRequest for one that is too large, or
        where nothing is kept.
        """
        section = self._section()
        if section.keep_days == 0:
            raise BadRequest("This gateway keeps nothing: `responses.keep_days` is 0.", code="keeps_nothing")
        _check_size(record, section)
        return await self._row(team_id, name, record, section)

    async def changed_row(self, team_id: str, change: Change) -> tuple[StoredResponse, bytes]:
        """Return a changed record, as it is stored and as it is, for the caller to write. Raises the errors of
        `find`, and those of the change.
        """
        before, version = await self._found(team_id, change.name)
        record = change.edit(before)
        row = await self.row_of(team_id, change.name, record)
        row.version = version + 1
        return row, record

    async def _change(self, team_id: str, change: Change, added: StoredResponse | None = None) -> bytes:
        """Change a record, and add a row with it. The second of two changes reads anew, so no turn is lost."""
        for _ in range(_CHANGES):
            row, record = await self.changed_row(team_id, change)
            if await self._store.write(added, row):
                return record
        raise ResponsesUnavailable("This conversation is being changed by too many at once.", retry_after_s=1.0)

    async def _row(self, team_id: str, name: str, record: bytes, section: ResponsesSection) -> StoredResponse:
        place = (team_id, name, record)
        await self._sealing.ready()
        if len(record) > _INLINE_BYTES:
            sealed = await asyncio.to_thread(self._sealing.seal, *place)
        else:
            sealed = self._sealing.seal(*place)
        now_us = self._now_us()
        return StoredResponse(
            team_id=team_id,
            response_id=name,
            pepper_id=self._sealing.pepper_id,
            sealed=sealed,
            size=len(sealed),
            created_us=now_us,
            expires_us=now_us + section.keep_days * _DAY_US,
        )

    async def _bound(self, team_id: str, added: int, most: int) -> None:
        """Trim the team once it is over its size, of which this process reads the rest once a minute."""
        now_us = self._now_us()
        known = self._sizes.get(team_id)
        if known is None or now_us - known.read_us > _FRESH_US:
            known = self._sizes[team_id] = _Size(await self._store.size(team_id), now_us)
        else:
            known.taken += added
        self._sizes.move_to_end(team_id)
        if len(self._sizes) > _MAX_TEAMS:
            self._sizes.popitem(last=False)
        if known.taken > most:
            del self._sizes[team_id]
            await self._store.trim(team_id, int(most * _SPARE))


_MOST_BYTES: Final = 64 * 1024 * 1024


def _check_size(record: bytes, section: ResponsesSection) -> None:
    if len(record) > section.max_response_bytes:
        raise BadRequest(
            f"This would be larger than {section.max_response_bytes} bytes, the limit of what is kept; begin a new one.",
            code="too_large_to_keep",
        )


def _not_found(name: str) -> ResponseNotFound | ConversationNotFound:
    if name.startswith(CONVERSATION):
        return ConversationNotFound(
            f"There is no conversation `{name[:80]}`: it was deleted, has expired, or is another team's."
        )
    return ResponseNotFound(
        f"There is no response `{name[:80]}`: it was not kept (`store: false`), has expired, or is another team's."
    )


def _unavailable() -> ResponsesUnavailable:
    return ResponsesUnavailable("Kept responses cannot be read right now; try again shortly.", retry_after_s=1.0)
