"""Hourly verification of the roll-ups; of all processes on one database one runs it."""

import logging
import time
from collections.abc import Callable
from typing import Final

from sqlalchemy.ext.asyncio import AsyncEngine

from cost.ledger.shared_turn import Checked, SharedTurn, due
from cost.ledger.verify import Verification, check
from cost.times import DAY_US

_log: Final = logging.getLogger(__name__)
_NAME: Final = "roll-ups"
_DAYS_BEFORE: Final = 1


class LedgerWatch:
    """The check, run when it is due. `tell` is called with the shared state after each look."""

    def __init__(
        self, engine: AsyncEngine, tell: Callable[[Checked], None], clock: Callable[[], float] = time.time
    ) -> None:
        self._engine = engine
        self._turn = SharedTurn(engine, _NAME)
        self._tell = tell
        self._clock = clock

    async def check_due(self) -> None:
        """Check yesterday and today if that is due and no other process does it; then tell the state."""
        known = await self._turn.known()
        if due(known, now_us := self._now_us()) and await self._turn.take(known, now_us):
            today_us = now_us - now_us % DAY_US
            found = await check(self._engine, today_us - _DAYS_BEFORE * DAY_US, now_us + 1, now_us=now_us)
            await self._turn.finish(self._now_us(), found.differences)
            _log_findings(found)
            known = await self._turn.known()
        if known.done_us:
            self._tell(known)

    def _now_us(self) -> int:
        return int(self._clock() * 1_000_000)


def _log_findings(found: Verification) -> None:
    if found.told:
        first = found.told[0]
        _log.error(
            "the books do not agree: %d figures differ, the first is %s of %s: %d instead of %d; "
            "`weighbridge ledger verify` lists them",
            found.differences,
            first.column,
            first.table,
            first.found,
            first.expected,
        )
    if found.open_reserves:
        _log.warning("%d reserves are open for longer than an hour", found.open_reserves)
