"""The watch over all budgets of the database: warnings when they fill, and grants of processes that are dead.

One process of a host does this for all of them, while holds (`cost.budgets.budget_reservations`) are each process's own.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from cost.budgets.budget import BudgetStatus
from cost.budgets.grants import Grants
from cost.times import wall_us

_log: Final = logging.getLogger(__name__)

_FORGET_S: Final = 300.0
_DEAD_AFTER_US: Final = 3_600_000_000
_GONE_AFTER_US: Final = 600_000_000
_DATABASE_FAILS: Final = (SQLAlchemyError, OSError, TimeoutError)

Teller = Callable[[Sequence[BudgetStatus]], Awaitable[None]]


class BudgetWatch:
    """A periodic reader of every budget's standing; `tell` is given all of them."""

    def __init__(
        self,
        grants: Grants,
        living: Callable[[], Collection[str]],
        tell: Teller,
        *,
        poll_s: float = 2.0,
        patience_s: float = 10.0,
        now_us: Callable[[], int] = wall_us,
    ) -> None:
        """`living` returns the boot ids of the processes that are known to live."""
        self._grants = grants
        self._living = living
        self._tell = tell
        self._poll_s = poll_s
        self._patience_s = patience_s
        self._now_us = now_us
        self._dead_since_us: dict[str, int] = {}
        self.failures = 0
        """Times that the database failed or did not answer in time."""

    async def run(self) -> None:
        """Look after the budgets, for ever. No failure ends the loop."""
        clock = asyncio.get_running_loop().time
        forget_at = clock() + _FORGET_S
        while True:
            began = clock()
            await self._run_duty(self.report)
            if began >= forget_at:
                forget_at = began + _FORGET_S
                await self._run_duty(self.forget_dead)
            # A slow database is asked less often.
            await asyncio.sleep(max(self._poll_s, 5 * (clock() - began)))

    async def report(self) -> None:
        """Tell every budget's standing. Raises what the database raises."""
        await self._tell(await self._grants.standings(self._now_us()))

    async def forget_dead(self) -> None:
        """Delete the grants of processes that are dead or unknown and have no open reserve.

        Dead is not seen for an hour. Each gets ten minutes from when that is noticed: after a long outage of the
        database all look dead, and whoever comes back first must not take what the others hold for attempts that the
        database has never heard of.
        """
        now_us = self._now_us()
        dead, unknown = await self._grants.closed_boots(now_us - _DEAD_AFTER_US)
        living = set(self._living())
        if not living.isdisjoint(unknown):
            # Those that live here are not in the table `boot` either, so nothing records which processes live.
            unknown = []
        gone = [each for each in (*dead, *unknown) if each not in living]
        self._dead_since_us = {each: self._dead_since_us.get(each, now_us) for each in gone}
        for boot_id, since_us in self._dead_since_us.items():
            if now_us - since_us > _GONE_AFTER_US:
                await self._grants.forget_boot(boot_id)

    async def _run_duty(self, duty: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(self._patience_s):
                await duty()
        except _DATABASE_FAILS as failure:
            self.failures += 1
            _log.warning("budgets: the database does not answer: %s", type(failure).__name__)
        except Exception:  # noqa: BLE001  Without this loop nobody would hear of a full budget any more.
            _log.exception("looking after the budgets failed")
