"""Keeping of responses for their callers, and finding them again.

Keeping never fails a request: an answer that was paid for is given, and says `store: false` when it could not be kept.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from accounts.caller import Caller
from cost.times import wall_us
from proxy.errors import ResponseNotFound, ResponsesUnavailable
from proxy.stored_responses.sealing import CannotOpen, Sealing
from proxy.stored_responses.store import ResponseStore
from proxy.stored_responses.stored_responses_config import ResponsesSection
from proxy.stored_responses.tables import StoredResponse
from proxy.wires.wire import Kept

_log: Final = logging.getLogger("weighbridge.responses")

_DAY_US: Final = 86_400_000_000
_FRESH_US: Final = 60_000_000
"""How long what is known of a team's size holds."""
_MAX_TEAMS: Final = 10_000
_SPARE: Final = 0.9
"""A team that is full is cut down to this part, so that not every response trims."""
_INLINE_BYTES: Final = 64 * 1024
"""Larger records are compressed beside the loop."""
_PURGE_BATCH: Final = 500
_AWAY: Final = (SQLAlchemyError, OSError, TimeoutError)


class _Size(msgspec.Struct):
    taken: int
    read_us: int


class StoredResponses:
    """Responses of all teams, each under its own key."""

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
        """Keeps a response for the caller's team; False when it is too large or the database does not answer."""
        section = self._section()
        if section.keep_days == 0 or len(kept.record) > section.max_response_bytes:
            return False
        try:
            async with asyncio.timeout(section.timeout_s):
                await self._add(caller.team_id, kept, section)
        except _AWAY as error:
            _log.warning("a response could not be kept: %s", type(error).__name__)
            return False
        return True

    async def find(self, team_id: str, response_id: str) -> bytes:
        """The record. Raises ResponseNotFound or ResponsesUnavailable."""
        section = self._section()
        try:
            async with asyncio.timeout(section.timeout_s):
                row = await self._store.find(team_id, response_id, self._now_us())
        except _AWAY as error:
            raise _unavailable() from error
        if row is None:
            raise _not_found(response_id)
        try:
            # What was kept under a larger bound is still read.
            return self._sealing.open(team_id, response_id, *row, max_bytes=_MOST_BYTES)
        except CannotOpen as error:
            _log.error("a kept response cannot be opened: %s", error)
            raise _not_found(response_id) from error

    async def remove(self, team_id: str, response_id: str) -> None:
        """Raises ResponseNotFound or ResponsesUnavailable."""
        try:
            async with asyncio.timeout(self._section().timeout_s):
                there = await self._store.remove(team_id, response_id, self._now_us())
        except _AWAY as error:
            raise _unavailable() from error
        if not there:
            raise _not_found(response_id)

    async def purge(self) -> None:
        """Deletes what expired. Call it now and then."""
        while await self._store.purge(self._now_us(), _PURGE_BATCH) == _PURGE_BATCH:
            pass

    async def _add(self, team_id: str, kept: Kept, section: ResponsesSection) -> None:
        place = (team_id, kept.response_id, kept.record)
        if len(kept.record) > _INLINE_BYTES:
            sealed = await asyncio.to_thread(self._sealing.seal, *place)
        else:
            sealed = self._sealing.seal(*place)
        now_us = self._now_us()
        await self._store.add(
            StoredResponse(
                team_id=team_id,
                response_id=kept.response_id,
                pepper_id=self._sealing.pepper_id,
                sealed=sealed,
                size=len(sealed),
                created_us=now_us,
                expires_us=now_us + section.keep_days * _DAY_US,
            )
        )
        await self._bound(team_id, len(sealed), section.max_bytes_per_team, now_us)

    async def _bound(self, team_id: str, added: int, most: int, now_us: int) -> None:
        """Trims the team once it is over its size, of which this process reads the rest once a minute."""
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


def _not_found(response_id: str) -> ResponseNotFound:
    return ResponseNotFound(
        f"There is no response `{response_id[:80]}`: it was not kept (`store: false`), has expired, or is another team's."
    )


def _unavailable() -> ResponsesUnavailable:
    return ResponsesUnavailable("Kept responses cannot be read right now; try again shortly.", retry_after_s=1.0)
