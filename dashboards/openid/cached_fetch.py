"""Something that a provider was asked for once, for everybody."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from dashboards.openid.openid_errors import ProviderFailed

KEPT_S: Final = 3_600.0
FAILED_S: Final = 5.0
"""A provider that just failed is not asked again by everybody who presses the button."""

T = TypeVar("T")


class CachedFetch(Generic[T]):
    """Asked for when it is needed, by one caller at a time; kept for an hour, a failure for some seconds."""

    def __init__(self, load: Callable[[], Awaitable[T]], label: str, clock: Callable[[], float]) -> None:
        self._load = load
        self._label = label
        self._clock = clock
        self._lock = asyncio.Lock()
        self._kept: tuple[float, T] | None = None
        self._failed: tuple[float, ProviderFailed] | None = None

    async def now(self) -> T:
        """Raises ProviderFailed."""
        async with self._lock:
            if self._kept is not None and self._clock() - self._kept[0] < KEPT_S:
                return self._kept[1]
            return await self._loaded()

    async def anew(self) -> T:
        """As it is at this moment, however young the kept one is. Raises ProviderFailed."""
        async with self._lock:
            return await self._loaded()

    async def _loaded(self) -> T:
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
