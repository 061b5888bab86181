"""Authentication of presented keys, with a short-lived cache.

The database's answer is cached for `fresh_s`, so a revoked key is refused everywhere soon after. Keys in use are read
again in the background before that, many at once, so no caller waits for it. When the database does not answer, a key
that it called valid less than `outage_s` ago is still accepted, and an outage never makes a key look unknown.
"""

import asyncio
import hashlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import msgspec

from accounts.caller import Caller
from accounts.errors import DirectoryUnavailable, KeyBlocked, UnknownKey
from accounts.key_lookups import KEYS_OF_A_QUERY, FoundKey, KeyLookups, KeySource
from accounts.keys import (
    INCORRECT,
    KEY_CHARS,
    MOST_IMPORTED_CHARS,
    Pepper,
    digest_presented,
    may_be_imported,
    parse_key,
    usable_peppers,
)
from accounts.store import StoredKey

_log: Final = logging.getLogger(__name__)

_UNKNOWN: Final = f"{INCORRECT}: it is unknown, revoked or expired"
_BLOCKED: Final = "this API key is blocked for now; its team's administrators can unblock it"
_TEAM_BLOCKED: Final = "this API key's team is blocked for now; the organisation's administrators can unblock it"
_UNAVAILABLE: Final = "the key cannot be checked right now; try again shortly"
_OVERLOADED: Final = "too many keys are being checked at once; try again shortly"
_STRANGERS_PATIENCE: Final = 5
"""A key that is not known yet has no earlier answer to fall back on, so the store is waited for so many times as long: a worker that has
just started, and a database that comes back in a moment, cost a caller a wait and not the answer.
"""


FindKeys = Callable[[list[str]], Awaitable[list[StoredKey | None]]]
"""Looks up many keys by their digests; the answers are in the same order, None for what is no key."""


class _CachedCaller(msgspec.Struct):
    """A cached valid caller; all moments are seconds on the monotonic clock."""

    caller: Caller
    stored_digest: str
    trusted_until: float
    confirmed_at: float
    expires_at: float | None
    used_at: float


_Value = TypeVar("_Value")
_LookupResult = Caller | UnknownKey | DirectoryUnavailable


class Directory:
    """Authenticates presented keys. Its caches of valid and of unknown keys hold `max_entries` each."""

    def __init__(
        self,
        store: KeySource,
        peppers: Sequence[Pepper],
        clock: Callable[[], float] = time.monotonic,
        *,
        wall_clock: Callable[[], float] = time.time,
        fresh_s: float = 2.0,
        outage_s: float = 60.0,
        lookup_timeout_s: float = 1.0,
        unknown_s: float = 1.0,
        recheck_s: float = 1.0,
        max_entries: int = 10_000,
        max_waiting: int = 10_000,
        imported_keys: bool = False,
    ) -> None:
        """With `imported_keys`, keys of other gateways are looked up, too; else what has not our form asks nobody."""
        self._peppers = usable_peppers(tuple(peppers))
        # The memory's own key, so that what it holds is of no use elsewhere. Its digests are full-length and
        # cover the whole key; BLAKE2's keyed mode is a MAC by itself and costs a tenth of an HMAC here. A key is short, and
        # BLAKE2s takes the smaller blocks.
        self._cache_secret = secrets.token_bytes(hashlib.blake2s.MAX_KEY_SIZE)
        self._clock = clock
        self._wall_clock = wall_clock
        self._fresh_s = fresh_s
        self._outage_s = outage_s
        self._lookup_timeout_s = lookup_timeout_s
        self._unknown_s = unknown_s
        self._recheck_s = recheck_s
        self._max_entries = max_entries
        self._max_waiting = max_waiting
        self._imported_keys = imported_keys
        self._lengths = range(MOST_IMPORTED_CHARS + 1) if imported_keys else range(KEY_CHARS, KEY_CHARS + 1)
        # Anybody can send keys that nobody knows; however many come, a known key is read anew beside them.
        self._known_keys = KeyLookups(store, clock, patience_s=lookup_timeout_s)
        self._new_keys = KeyLookups(store, clock, patience_s=lookup_timeout_s * _STRANGERS_PATIENCE)
        # Both dicts are ordered by their last reading: a key in use is read anew every `fresh_s`
        # and moves to the end, so dropping from the front drops what was not used lately, and a
        # hit costs no reordering.
        self._known: dict[bytes, _CachedCaller] = {}
        self._unknown_until: dict[bytes, tuple[float, UnknownKey]] = {}
        self._lookups: dict[bytes, asyncio.Task[_LookupResult]] = {}
        # While set, whoever is known does not wait for a store that has just failed to answer.
        self._is_silent = False

    def lookup_fresh(self, presented: str) -> Caller | None:
        """Return the caller from the cache, without waiting; None when `authenticate` has to be asked."""
        if len(presented) not in self._lengths or not presented.isascii():
            return None
        known = self._known.get(self._cache_key(presented))
        if known is None:
            return None
        now = self._clock()
        if now >= known.trusted_until:
            return None
        known.used_at = now
        return known.caller

    async def refresh(self, find_keys: FindKeys, *, at_once: int = KEYS_OF_A_QUERY) -> None:
        """Read the keys in use again; to be called a few times within `fresh_s`. Never raises.

        In use is what was presented within `outage_s`. While the store does not answer, known keys wait for nothing.
        """
        now = self._clock()
        used = [(key, each) for key, each in self._known.items() if now - each.used_at < self._outage_s]
        for start in range(0, len(used), at_once):
            part = used[start : start + at_once]
            asked_at = self._clock()
            try:
                async with asyncio.timeout(self._lookup_timeout_s):
                    found = await find_keys([each.stored_digest for _, each in part])
            except Exception as failure:  # noqa: BLE001  Whatever went wrong, the keys are not to blame.
                if not self._is_silent:
                    _log.warning("the key store does not answer: %s", type(failure).__name__)
                self._is_silent = True
                return
            self._is_silent = False
            for (key, before), stored in zip(part, found, strict=True):
                self._renew(key, before, stored, asked_at)

    def _renew(self, key: bytes, before: _CachedCaller, stored: StoredKey | None, asked_at: float) -> None:
        """Take a refreshed key over, unless a newer answer is known already."""
        known = self._known.get(key)
        if known is None or known.confirmed_at > asked_at:
            return
        used_at = known.used_at
        if isinstance(self._evaluate(key, stored, asked_at), Caller):
            self._known[key].used_at = max(used_at, before.used_at)

    async def authenticate(self, presented: str) -> Caller:
        """Return the key's caller. Raises MalformedKey, UnknownKey or DirectoryUnavailable."""
        caller = self.lookup_fresh(presented)
        if caller is not None:
            return caller
        if not (self._imported_keys and may_be_imported(presented)):
            parse_key(presented)
        digest = self._cache_key(presented)
        until, why = self._unknown_until.get(digest, (0.0, None))
        if why is not None and self._clock() < until:
            raise type(why)(*why.args)
        if self._is_silent and isinstance(known := self._fall_back_to_cache(digest, _UNAVAILABLE), Caller):
            return known
        lookup = self._join_lookup(digest, presented)
        # A caller that hangs up must not take the reading away from those who wait for it too.
        verdict = self._fall_back_to_cache(digest, _OVERLOADED) if lookup is None else await asyncio.shield(lookup)
        if isinstance(verdict, Caller):
            return verdict
        # The verdict may be shared by several callers, so each raises an error of its own.
        raise type(verdict)(*verdict.args)

    async def aclose(self) -> None:
        """Wait for the lookups in progress."""
        await asyncio.gather(*self._lookups.values())

    def _cache_key(self, presented: str) -> bytes:
        return hashlib.blake2s(presented.encode(), key=self._cache_secret, digest_size=32).digest()

    def _join_lookup(self, digest: bytes, presented: str) -> asyncio.Task[_LookupResult] | None:
        """Return the lookup of this key, joined or begun now; None for a new key when too many are in progress."""
        lookup = self._lookups.get(digest)
        if lookup is not None:
            return lookup
        if len(self._lookups) >= self._max_waiting and digest not in self._known:
            return None
        lookup = asyncio.create_task(self._fetch(digest, presented), name="directory-lookup")
        self._lookups[digest] = lookup
        lookup.add_done_callback(lambda _: self._lookups.pop(digest, None))
        return lookup

    async def _fetch(self, digest: bytes, presented: str) -> _LookupResult:
        is_stranger = digest not in self._known
        try:
            async with asyncio.timeout(self._lookup_timeout_s * (_STRANGERS_PATIENCE if is_stranger else 1)):
                found = await self._ask_store(presented, again=is_stranger)
        except Exception as failure:  # noqa: BLE001  Whatever went wrong, the key is not to blame.
            _log.warning("the key store did not answer: %s", type(failure).__name__)
            return self._fall_back_to_cache(digest, _UNAVAILABLE)
        return self._evaluate(digest, found.key, found.asked_at)

    async def _ask_store(self, presented: str, *, again: bool) -> FoundKey:
        """Return the store's answer on a key. With `again`, as for a new key, a store that fails is asked until it answers."""
        digests = [digest_presented(presented, pepper).hex() for pepper in self._peppers]
        if not again:
            return await self._known_keys.find(digests)
        while True:
            try:
                return await self._new_keys.find(digests)
            except Exception:  # noqa: BLE001  Whatever went wrong: the caller's patience ends it.
                await asyncio.sleep(self._lookup_timeout_s / 4)

    def _evaluate(self, digest: bytes, stored: StoredKey | None, asked_at: float) -> _LookupResult:
        expires_at = self._expiry(stored)
        now = self._clock()
        self._known.pop(digest, None)
        if stored is None or stored.revoked_at is not None or (expires_at is not None and now >= expires_at):
            return self._refuse(digest, UnknownKey(_UNKNOWN))
        if stored.blocked:
            return self._refuse(digest, KeyBlocked(_BLOCKED if stored.team_blocked_at is None else _TEAM_BLOCKED))
        caller = stored.caller
        trusted_until = _earlier(asked_at + self._fresh_s, expires_at)
        known = _CachedCaller(caller, stored.digest, trusted_until, asked_at, expires_at, now)
        _put(self._known, digest, known, self._max_entries)
        return caller

    def _refuse(self, digest: bytes, why: UnknownKey) -> UnknownKey:
        """Remember for a moment why a key is refused, and return it."""
        _put(self._unknown_until, digest, (self._clock() + self._unknown_s, why), self._max_entries)
        return why

    def _fall_back_to_cache(self, digest: bytes, otherwise: str) -> _LookupResult:
        """Return the cached caller for a key that cannot be looked up now, or DirectoryUnavailable with the text `otherwise`."""
        now = self._clock()
        known = self._known.get(digest)
        if known is None or now >= _earlier(known.confirmed_at + self._outage_s, known.expires_at):
            return DirectoryUnavailable(otherwise)
        # The database is not asked again for a moment, so that a hanging one does not slow every request.
        until = min(now + self._recheck_s, known.confirmed_at + self._outage_s)
        known.trusted_until = _earlier(until, known.expires_at)
        known.used_at = now
        return known.caller

    def _expiry(self, stored: StoredKey | None) -> float | None:
        """Return the key's expiry on the monotonic clock; None when it has none."""
        if stored is None or stored.expires_at is None:
            return None
        return self._clock() + stored.expires_at.timestamp() - self._wall_clock()


def _earlier(moment: float, other: float | None) -> float:
    return moment if other is None else min(moment, other)


def _put(memory: dict[bytes, _Value], digest: bytes, value: _Value, limit: int) -> None:
    """Store a value as the newest, dropping the oldest beyond `limit`."""
    memory.pop(digest, None)
    while len(memory) >= limit:
        del memory[next(iter(memory))]
    memory[digest] = value
