"""Where sealed answers are kept: in Redis where there is one, else in this process. Neither ever fails; what is not there is asked anew."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, Protocol

from proxy.shared.redis.scripts import script
from proxy.shared.redis.shared_state import ScriptRunner, SharedStateUnavailable

_GET: Final = script("cache_get")
_PUT: Final = script("cache_put")
_ENTRY_BYTES: Final = 256
"""Bytes that an entry takes in this process beside its own."""


class AnswerStore(Protocol):
    """A place for sealed answers, by name."""

    async def get(self, name: str) -> bytes | None:
        """Return the answer; None where there is none, or none was found in time."""
        ...

    async def put(self, name: str, sealed: bytes, ttl_s: int) -> None:
        """Keep the answer for so long at most."""
        ...


class StoreObserver:
    """A receiver of a store's counts; this base class ignores them."""

    def set_bytes(self, held: int) -> None: ...

    def count_evicted(self) -> None: ...


class LocalStore:
    """A bounded store in this process. What was used longest ago goes first."""

    def __init__(self, max_bytes: int, clock: Callable[[], float], observer: StoreObserver | None = None) -> None:
        self.held = 0
        """Bytes of all entries."""
        self._max_bytes = max_bytes
        self._clock = clock
        self._observer = observer or StoreObserver()
        self._entries: OrderedDict[str, tuple[bytes, float]] = OrderedDict()

    async def get(self, name: str) -> bytes | None:
        found = self._entries.get(name)
        if found is None:
            return None
        if self._clock() >= found[1]:
            self._drop(name)
            return None
        self._entries.move_to_end(name)
        return found[0]

    async def put(self, name: str, sealed: bytes, ttl_s: int) -> None:
        if len(sealed) + _ENTRY_BYTES > self._max_bytes:
            return
        if name in self._entries:
            self._drop(name)
        self._entries[name] = sealed, self._clock() + ttl_s
        self.held += len(sealed) + _ENTRY_BYTES
        while self.held > self._max_bytes:
            self._drop(next(iter(self._entries)))
            self._observer.count_evicted()
        self._observer.set_bytes(self.held)

    def _drop(self, name: str) -> None:
        sealed, _ = self._entries.pop(name)
        self.held -= len(sealed) + _ENTRY_BYTES
        self._observer.set_bytes(self.held)


class RedisStore:
    """A store that all processes share. Redis itself forgets what is too old; a full one takes nothing new."""

    def __init__(self, link: ScriptRunner, max_bytes: int, window_s: int, now_us: Callable[[], int]) -> None:
        """`window_s` is the longest time that an entry is kept: what was written in the last two of these is all there can be."""
        self._link = link
        self._max_bytes = max_bytes
        self._window_s = window_s
        self._now_us = now_us

    async def get(self, name: str) -> bytes | None:
        try:
            found: Any = await self._link.call(_GET, (self._key(name),), ())
        except SharedStateUnavailable:
            return None
        return found if isinstance(found, bytes) else None

    async def put(self, name: str, sealed: bytes, ttl_s: int) -> None:
        window = self._now_us() // (1_000_000 * self._window_s)
        keys = (self._key(name), self._key(f"bytes:{window}"), self._key(f"bytes:{window - 1}"))
        try:
            await self._link.call(_PUT, keys, (sealed, ttl_s, self._max_bytes, 2 * self._window_s))
        except SharedStateUnavailable:
            # Nobody has to be told: the next one is answered anew.
            return

    def _key(self, name: str) -> str:
        return f"{self._link.prefix}answer:{name}"
