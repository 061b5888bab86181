"""Fetches a page once for all who ask for it at about the same time, such as the ranks behind one address."""

import asyncio
from collections.abc import Callable
from typing import Final

from selfhosted.engines.fetching import Fetch, Fetched

_MOST_PAGES: Final = 4_000
"""Two for each replica of a pool, and some of those that left it."""

_Key = tuple[str, float, int, bool]


def _heard(asked: asyncio.Task[Fetched]) -> None:
    """Take note of a failure that nobody waits for any more, which asyncio would report as forgotten."""
    if not asked.cancelled():
        asked.exception()


class SharedFetch:
    """A fetch whose answer counts for `fresh_s` from when it was asked for; a failure does, too."""

    def __init__(self, fetch: Fetch, fresh_s: float, clock: Callable[[], float]) -> None:
        self._fetch = fetch
        self._fresh_s = fresh_s
        self._clock = clock
        self._pages: dict[_Key, tuple[float, asyncio.Task[Fetched]]] = {}

    async def __call__(self, url: str, *, timeout_s: float, max_bytes: int, with_key: bool = True) -> Fetched:
        key, now = (url, timeout_s, max_bytes, with_key), self._clock()
        known = self._pages.pop(key, None)
        if known is None or known[1].cancelled() or (known[1].done() and now - known[0] >= self._fresh_s):
            asked = self._fetch(url, timeout_s=timeout_s, max_bytes=max_bytes, with_key=with_key)
            known = now, asyncio.ensure_future(asked)
            known[1].add_done_callback(_heard)
        # The newest is last, so the first is who left longest ago.
        self._pages[key] = known
        if len(self._pages) > _MOST_PAGES:
            self._pages.pop(next(iter(self._pages)))
        # Who asks may be cancelled without taking the answer from the others.
        return await asyncio.shield(known[1])
