"""A shared cache of one document fetched from a provider."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from accounts.openid.openid_errors import ProviderFailed

KEPT_S: Final = 3_600.0
FAILED_S: Final = 5.0
"""Seconds for which a failed fetch is not repeated, however many people press the button."""

T = TypeVar("T")


class CachedFetch(Generic[T]):
    """A value loaded on demand by one caller at a time. It is kept for an hour; a failure for some seconds."""

    def __init__(self, load: Callable[[], Awaitable[T]], label: str, clock: Callable[[], float]) -> None:
        self._load = load
        self._label = label
        self._clock = clock
        self._lock = asyncio.Lock()
        self._kept: tuple[float, T] | None = None
        self._failed: tuple[float, ProviderFailed] | None = None

    async def now(self) -> T:
        """Return the cached value, loaded if needed. Raises ProviderFailed."""
        async with self._lock:
            if self._kept is not None and self._clock() - self._kept[0] < KEPT_S:
                return self._kept[1]
            return await self._reload()

    async def anew(self) -> T:
        """Return the value loaded now, whatever is cached. Raises ProviderFailed."""
        async with self._lock:
            return await self._reload()

    async def _reload(self) -> T:
        if self._failed is not None and self._clock() - self._failed[0] < FAILED_S:
            before = self._failed[1]
            raise ProviderFailed(before.reason, self._label, late=before.late) from before
        try:
            found = await self._load()
        except ProviderFailed as failure:
            self._failed = (self._clock(), failure)
            raise
        self._kept = (self._clock(), found)
        return found
