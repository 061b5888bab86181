"""Keys by their team and name, for callers whom somebody else vouches for and who bring no key of ours."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from accounts.caller import Caller
from accounts.errors import DirectoryUnavailable, KeyBlocked, UnknownKey
from accounts.store import StoredKey

FindNamed = Callable[[str, str], Awaitable[StoredKey | None]]
"""Looks up the newest working key of a team by its name."""
_MOST: Final = 10_000


class _Known(msgspec.Struct, frozen=True):
    key: StoredKey | None
    asked_at: float


class NamedKeys:
    """Callers by a key's team and name. Each answer of the store holds for `fresh_s`, and for `outage_s` while it does not answer."""

    def __init__(
        self,
        find: FindNamed,
        clock: Callable[[], float] = time.monotonic,
        *,
        wall_clock: Callable[[], float] = time.time,
        fresh_s: float = 2.0,
        outage_s: float = 60.0,
        lookup_timeout_s: float = 1.0,
    ) -> None:
        self._find = find
        self._clock = clock
        self._wall_clock = wall_clock
        self._fresh_s = fresh_s
        self._outage_s = outage_s
        self._lookup_timeout_s = lookup_timeout_s
        self._known: dict[tuple[str, str], _Known] = {}
        self._lookups: dict[tuple[str, str], asyncio.Task[_Known | None]] = {}

    async def caller(self, organisation_id: str, team_id: str, key_name: str) -> Caller:
        """Return the caller that a key stands for, never with more rights than a member's. Raises UnknownKey, KeyBlocked or DirectoryUnavailable."""
        named = team_id, key_name
        known = self._known.get(named)
        if known is None or self._clock() - known.asked_at >= self._fresh_s:
            known = await self._asked(named) or known
            if known is None or self._clock() - known.asked_at >= self._outage_s:
                raise DirectoryUnavailable("the key cannot be checked right now; try again shortly")
        key = known.key
        if key is None or key.organisation_id != organisation_id or key.role != "member" or self._is_over(key):
            # One sentence for all: whoever asks learns nothing of other organisations' teams.
            raise UnknownKey(
                "the caller is vouched for, but no working member's key has the team and name that were given"
            )
        if key.blocked:
            raise KeyBlocked("this caller's key or team is blocked for now; its administrators can unblock it")
        return key.caller

    def _is_over(self, key: StoredKey) -> bool:
        ended = key.expires_at is not None and self._wall_clock() >= key.expires_at.timestamp()
        return ended or key.revoked_at is not None

    async def _asked(self, named: tuple[str, str]) -> _Known | None:
        """Ask the store, once for all who wait for the same key; None when it does not answer."""
        lookup = self._lookups.get(named)
        if lookup is None:
            lookup = self._lookups[named] = asyncio.create_task(self._look_up(named), name="named-key")
            lookup.add_done_callback(lambda _: self._lookups.pop(named, None))
        return await asyncio.shield(lookup)

    async def _look_up(self, named: tuple[str, str]) -> _Known | None:
        asked_at = self._clock()
        try:
            async with asyncio.timeout(self._lookup_timeout_s):
                found = await self._find(*named)
        except Exception:  # noqa: BLE001 - whatever went wrong, the caller is not to blame
            return None
        self._known.pop(named, None)
        while len(self._known) >= _MOST:
            del self._known[next(iter(self._known))]
        self._known[named] = known = _Known(found, asked_at)
        return known
