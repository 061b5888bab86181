"""Lookups of keys, many by one query: however many callers come at once with keys that nobody has seen yet, each gets an answer."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from accounts.store import StoredKey

KEYS_OF_A_QUERY: Final = 500
"""Most digests that one query asks for."""
_QUERIES_AT_ONCE: Final = 4
"""Few, so that most of a burst goes together; more than one, so that a connection that hangs does not hold up everybody."""


class KeySource(Protocol):
    """A store that looks up keys by their digests; AccountStore is one."""

    async def find_keys(self, digests: list[str]) -> list[StoredKey | None]:
        """Return the keys in the order of the digests; None for what is no key."""
        ...


class FoundKey(NamedTuple):
    """The store's answer on one key, and the time of asking: it was true then, not on arrival."""

    asked_at: float
    key: StoredKey | None


class _Wanted(NamedTuple):
    digests: Sequence[str]
    found: "asyncio.Future[FoundKey]"


class KeyLookups:
    """Lookups that share queries. Whoever comes while all queries run goes with the next one."""

    def __init__(self, store: KeySource, clock: Callable[[], float], *, patience_s: float) -> None:
        """`patience_s` is the timeout of a query."""
        self._store = store
        self._clock = clock
        self._patience_s = patience_s
        self._wanted: deque[_Wanted] = deque()
        self._running = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def find(self, digests: Sequence[str]) -> FoundKey:
        """Look up the key that has one of these digests; the first that is known counts. Raises what the store raises, or
        TimeoutError.
        """
        wanted = _Wanted(digests, asyncio.get_running_loop().create_future())
        self._wanted.append(wanted)
        if self._running < _QUERIES_AT_ONCE:
            self._running += 1
            task = asyncio.create_task(self._serve(), name="key-lookups")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await wanted.found

    async def _serve(self) -> None:
        """Ask for all who wait, part by part, until nobody does."""
        try:
            while part := self._next_part():
                await self._ask(part)
        finally:
            self._running -= 1

    async def _ask(self, part: Sequence[_Wanted]) -> None:
        asked_at = self._clock()
        digests = list(dict.fromkeys(digest for each in part for digest in each.digests))
        try:
            async with asyncio.timeout(self._patience_s):
                found = await self._store.find_keys(digests)
        except Exception as failure:  # noqa: BLE001  Whatever went wrong, those who wait are told.
            for each in part:
                if not each.found.done():
                    each.found.set_exception(failure)
            return
        known = dict(zip(digests, found, strict=True))
        for each in part:
            if not each.found.done():
                key = next((key for digest in each.digests if (key := known[digest]) is not None), None)
                each.found.set_result(FoundKey(asked_at, key))

    def _next_part(self) -> list[_Wanted]:
        part: list[_Wanted] = []
        size = 0
        while self._wanted and (not part or size + len(self._wanted[0].digests) <= KEYS_OF_A_QUERY):
            each = self._wanted.popleft()
            # Whoever gave up waiting is not asked for.
            if not each.found.done():
                part.append(each)
                size += len(each.digests)
        return part
