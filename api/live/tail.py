"""The live tail of decisions: one ledger query a second shared by all viewers, and none without viewers.

The ledger has the decisions of every process of the gateway, so a page may be connected to any of them.
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

from api.live.newest import EndedAttempt, newest

_log: Final = logging.getLogger("weighbridge.operations")

POLL_S: Final = 1.0
MOST_VIEWERS: Final = 32
PAGE: Final = 200
"""Decisions read by each poll. Further ones of that second are not shown, and viewers are told so."""
KEPT: Final = 500
"""Decisions remembered for connecting viewers; also the most that wait for one viewer."""
_SHOWN_AT_FIRST: Final = 50
_SEEN: Final = 20 * PAGE
_PATIENCE_S: Final = 5.0


class TooManyViewers(Exception):
    """The limit of concurrent viewers is reached."""


class TailBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Decisions that a viewer takes at once, oldest first."""

    decisions: tuple[EndedAttempt, ...]
    missed: int
    """Number of decisions dropped before these because the viewer was slow."""
    more: bool
    """True where a poll had more decisions than it reads."""


class Viewer:
    """One connection's buffer. When it is full, the oldest decisions are dropped and counted."""

    def __init__(self, decisions: Iterable[EndedAttempt]) -> None:
        self._waiting: deque[EndedAttempt] = deque(decisions, maxlen=KEPT)
        self._missed = 0
        self._more = False
        self._has_news = asyncio.Event()
        if self._waiting:
            self._has_news.set()

    def put(self, decisions: Sequence[EndedAttempt], *, more: bool) -> None:
        """Append decisions. Never waits."""
        self._missed += max(0, len(self._waiting) + len(decisions) - KEPT)
        self._waiting.extend(decisions)
        self._more = self._more or more
        self._has_news.set()

    async def take(self, timeout_s: float) -> TailBatch:
        """Return the decisions since the last call, waiting up to `timeout_s` for one; an empty batch on timeout."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._has_news.wait()
        taken = TailBatch(decisions=tuple(self._waiting), missed=self._missed, more=self._more)
        self._has_news.clear()
        self._waiting.clear()
        self._missed, self._more = 0, False
        return taken


class DecisionTail:
    """The poller of one process, shared by its viewers."""

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
        self._recent: deque[EndedAttempt] = deque(maxlen=KEPT)
        self._seen: OrderedDict[tuple[str, int, str], None] = OrderedDict()
        self._polling: asyncio.Task[None] | None = None
        self._polled_before = False
        """True while the previous poll was a moment ago, so that a full page means that there were more."""
        self.looks = 0
        """Number of ledger queries."""
        self.reachable = True
        """True if the last ledger query succeeded."""

    @property
    def viewers(self) -> int:
        return len(self._viewers)

    @contextlib.asynccontextmanager
    async def watching(self, last_id: str = "") -> AsyncIterator[Viewer]:
        """Yield a viewer, which first gets the decisions after `last_id`. Raises TooManyViewers."""
        if len(self._viewers) >= self._most_viewers:
            raise TooManyViewers(f"{self._most_viewers} watch already")
        if self._polling is None:
            self._polled_before = False
            await self._poll_safely()
        # Other viewers may have connected during the poll.
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
        """Stop polling."""
        polling, self._polling = self._polling, None
        if polling is not None:
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)

    async def poll(self) -> None:
        """Read the newest decisions once, and pass new ones to all viewers."""
        found = await newest(self._engine, self._page)
        self.looks += 1
        new = [each for each in reversed(found) if each.key not in self._seen]
        more = self._polled_before and len(new) == self._page
        self._polled_before = True
        for each in new:
            self._seen[each.key] = None
        while len(self._seen) > max(_SEEN, 2 * self._page):
            self._seen.popitem(last=False)
        self._recent.extend(new)
        if new:
            for viewer in self._viewers:
                viewer.put(new, more=more)

    async def _poll(self) -> None:
        while True:
            await self._sleep(self._poll_s)
            await self._poll_safely()

    async def _poll_safely(self) -> None:
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
        """Return the decisions after that of `last_id` in the order of reading: a decision may be booked later than a
        younger one.
        """
        kept = list(self._recent)
        for place, each in enumerate(kept):
            if event_id(each) == last_id:
                return kept[place + 1 :]
        at_us = _at_us(last_id)
        # The id is of another process, or older than what is kept.
        return kept[-_SHOWN_AT_FIRST:] if at_us is None else [each for each in kept if each.at_us > at_us]


def event_id(decision: EndedAttempt) -> str:
    """Return the id of a decision's event, valid at every process when a viewer reconnects."""
    return f"{decision.at_us}-{decision.attempt}-{decision.entry}-{decision.request_id}"


def _at_us(last_id: str) -> int | None:
    digits = last_id.partition("-")[0]
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) <= _MOST_DIGITS else None


_MOST_DIGITS: Final = 18
