"""The live tail of decisions: one look at the ledger a second for all who watch, and none while nobody does.

The ledger has what every process of the gateway decided, so it does not matter which of them a page is connected to.
"""

import asyncio
import contextlib
import logging
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Final

import msgspec
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from dashboards.live.newest import EndedAttempt, newest

_log: Final = logging.getLogger("weighbridge.operations")

POLL_S: Final = 1.0
MOST_VIEWERS: Final = 32
PAGE: Final = 200
"""Read at each look. What more there was in that second is not shown, and its viewers are told so."""
KEPT: Final = 500
"""Remembered for who connects, or connects again; and the most that waits for one viewer."""
_SHOWN_AT_FIRST: Final = 50
_SEEN: Final = 20 * PAGE
_PATIENCE_S: Final = 5.0


class TooManyViewers(Exception):
    """As many watch as may."""


class TailBatch(msgspec.Struct, frozen=True, kw_only=True):
    """What a viewer takes at once, oldest first."""

    decisions: tuple[EndedAttempt, ...]
    missed: int
    """Were dropped before these, because the viewer took nothing for long."""
    more: bool
    """There were more than a look reads."""


class Viewer:
    """One who watches. What it does not take in time is dropped, the oldest first, and counted."""

    def __init__(self, decisions: Iterable[EndedAttempt]) -> None:
        self._waiting: deque[EndedAttempt] = deque(decisions, maxlen=KEPT)
        self._missed = 0
        self._more = False
        self._stirred = asyncio.Event()
        if self._waiting:
            self._stirred.set()

    def put(self, decisions: Sequence[EndedAttempt], *, more: bool) -> None:
        """Never waits."""
        self._missed += max(0, len(self._waiting) + len(decisions) - KEPT)
        self._waiting.extend(decisions)
        self._more = self._more or more
        self._stirred.set()

    async def take(self, timeout_s: float) -> TailBatch:
        """What came since the last time, after a wait for it; nothing when the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._stirred.wait()
        taken = TailBatch(decisions=tuple(self._waiting), missed=self._missed, more=self._more)
        self._stirred.clear()
        self._waiting.clear()
        self._missed, self._more = 0, False
        return taken


class DecisionTail:
    """One poller of one process, shared by all its viewers."""

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        poll_s: float = POLL_S,
        most_viewers: int = MOST_VIEWERS,
        page: int = PAGE,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._engine = engine
        self._poll_s = poll_s
        self._most_viewers = most_viewers
        self._page = page
        self._sleep = sleep
        self._viewers: set[Viewer] = set()
        self._kept: deque[EndedAttempt] = deque(maxlen=KEPT)
        self._seen: OrderedDict[tuple[str, int, str], None] = OrderedDict()
        self._polling: asyncio.Task[None] | None = None
        self._fresh = False
        """Whether the look before this one was a moment ago, so that a full page means that there is more."""
        self.looks = 0
        """How often the ledger was asked."""
        self.reachable = True
        """Whether it answered the last time."""

    @property
    def viewers(self) -> int:
        return len(self._viewers)

    @contextlib.asynccontextmanager
    async def watching(self, last_id: str = "") -> AsyncIterator[Viewer]:
        """A viewer, which gets what came after the decision of that id first. Raises TooManyViewers."""
        if len(self._viewers) >= self._most_viewers:
            raise TooManyViewers(f"{self._most_viewers} watch already")
        if self._polling is None:
            self._fresh = False
            await self._look_safely()
        # Somebody else may have come while the ledger was asked.
        if len(self._viewers) >= self._most_viewers:
            raise TooManyViewers(f"{self._most_viewers} watch already")
        viewer = Viewer(self._after(last_id))
        self._viewers.add(viewer)
        if self._polling is None:
            self._polling = asyncio.get_running_loop().create_task(self._poll(), name="decision-tail")
        try:
            yield viewer
        finally:
            self._viewers.discard(viewer)
            if not self._viewers:
                await self.aclose()

    async def aclose(self) -> None:
        """Asks the ledger no more."""
        polling, self._polling = self._polling, None
        if polling is not None:
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)

    async def poll(self) -> None:
        """One look: what is new goes to all viewers."""
        found = await newest(self._engine, self._page)
        self.looks += 1
        new = [each for each in reversed(found) if each.key not in self._seen]
        more = self._fresh and len(new) == self._page
        self._fresh = True
        for each in new:
            self._seen[each.key] = None
        while len(self._seen) > max(_SEEN, 2 * self._page):
            self._seen.popitem(last=False)
        self._kept.extend(new)
        if new:
            for viewer in self._viewers:
                viewer.put(new, more=more)

    async def _poll(self) -> None:
        while True:
            await self._sleep(self._poll_s)
            await self._look_safely()

    async def _look_safely(self) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self.poll()
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            if self.reachable:
                # The driver's message may hold the address.
                _log.warning("the live tail cannot read the ledger: %s", type(error).__name__)
            self.reachable = False
        else:
            self.reachable = True

    def _after(self, last_id: str) -> list[EndedAttempt]:
        """In the order in which they were read: a decision may be booked later than a younger one."""
        kept = list(self._kept)
        for place, each in enumerate(kept):
            if event_id(each) == last_id:
                return kept[place + 1 :]
        at_us = _at_us(last_id)
        # It was seen at another process, or long ago.
        return kept[-_SHOWN_AT_FIRST:] if at_us is None else [each for each in kept if each.at_us > at_us]


def event_id(decision: EndedAttempt) -> str:
    """Names a decision to who connects again, at whatever process."""
    return f"{decision.at_us}-{decision.attempt}-{decision.entry}-{decision.request_id}"


def _at_us(last_id: str) -> int | None:
    digits = last_id.partition("-")[0]
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) <= _MOST_DIGITS else None


_MOST_DIGITS: Final = 18
