"""Months put into files by themselves: every six hours one process of all on a database has the turn, and has a child do it.

The child is `weighbridge ledger archive --keep-months`, so whatever becomes of it costs nobody who is served anything.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.ledger.archive_config import ArchiveConfig
from cost.ledger.shared_turn import Checked, SharedTurn, due
from cost.times import HOUR_US, wall_us

_log: Final = logging.getLogger(__name__)
_NAME: Final = "archive"
EVERY_US: Final = 6 * HOUR_US


class ArchiveRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a child came to."""

    archived: tuple[str, ...] = ()
    """The months that are in files now."""
    left: Mapping[str, str] = {}
    """Why not, by month."""


class ArchiveFailed(Exception):
    """The child did not tell what it came to; says how it ended."""


class ArchiveRounds:
    """The rounds of one process. `rule` is the configuration's, None where nothing is archived by itself; `run` starts the
    child and raises ArchiveFailed; `tell` is called with the shared state: months that should be in files and are not.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        rule: Callable[[], ArchiveConfig | None],
        run: Callable[[ArchiveConfig], Awaitable[ArchiveRun]],
        tell: Callable[[Checked], None],
        now_us: Callable[[], int] = wall_us,
    ) -> None:
        self._turn = SharedTurn(engine, _NAME)
        self._rule = rule
        self._run = run
        self._tell = tell
        self._now_us = now_us

    async def look(self) -> None:
        """Archive what is due, if it is this process's turn; then tell the state. Raises what the database raises."""
        rule = self._rule()
        if rule is None:
            self._tell(Checked())
            return
        known, now_us = await self._turn.known(), self._now_us()
        if due(known, now_us, EVERY_US) and await self._turn.take(known, now_us):
            await self._turn.finish(self._now_us() + 1, await self._months_left(rule))
            known = await self._turn.known()
        if known.done_us:
            self._tell(known)

    async def _months_left(self, rule: ArchiveConfig) -> int:
        try:
            ran = await self._run(rule)
        except ArchiveFailed as failure:
            _log.error("months could not be archived: %s", failure)
            return 1
        if ran.archived:
            _log.info("archived: %s", ", ".join(ran.archived))
        for month, why in ran.left.items():
            _log.warning("%s stays in the database: %s", month, why)
        return len(ran.left)
