"""The stream of events: of all processes on one database one holds the lease, numbers what is new, and delivers to every sink."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from cost.events.delivery import Delivery, Timing
from cost.events.outbox import EventOutbox

_log: Final = logging.getLogger("weighbridge.events")
LEASE_S: Final = 20.0
_RENEW_S: Final = 5.0
_NUMBER_S: Final = 0.5
_FORGET_S: Final = 10.0
_SHOW_S: Final = 5.0


class EventStream:
    """The telling of events by one process, while it holds the lease."""

    def __init__(
        self, outbox: EventOutbox, deliveries: Sequence[Delivery], holder: str, timing: Timing, *, keep_us: int
    ) -> None:
        self._outbox = outbox
        self._deliveries = tuple(deliveries)
        self._holder = holder
        self._timing = timing
        self._keep_us = keep_us
        self._leading: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Take the lease whenever it is free, and tell events while it is held. Two that tell at once send twice and lose nothing."""
        try:
            while True:
                await self._look()
                await self._timing.sleep(_RENEW_S)
        finally:
            await self._stop()
            with contextlib.suppress(Exception):
                await self._outbox.release(self._holder)

    async def _look(self) -> None:
        try:
            held = await self._outbox.hold(self._holder, int(LEASE_S * 1_000_000))
            if held and self._leading is None:
                # Before anything is numbered: what a new sink begins with.
                for each in self._deliveries:
                    await self._outbox.place(each.name)
        except Exception as error:  # noqa: BLE001  The database may be away; what was told stays told.
            _log.warning("the lease of events could not be prolonged (%s)", type(error).__name__)
            held = False
        if not held:
            await self._stop()
        elif self._leading is None or self._leading.done():
            self._leading = asyncio.create_task(self._lead(), name="events")

    async def _stop(self) -> None:
        leading, self._leading = self._leading, None
        if leading is not None:
            leading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await leading
            for each in self._deliveries:
                each.rest()

    async def _lead(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            # Each sink by itself: a slow one delays no other.
            for each in self._deliveries:
                tasks.create_task(each.run(), name=f"events-{each.name}")
            tasks.create_task(self._number_forever(), name="events-number")
            tasks.create_task(self._forget_forever(), name="events-forget")
            tasks.create_task(self._show_forever(), name="events-show")

    async def _number_forever(self) -> None:
        while True:
            await self._timing.sleep(_NUMBER_S if not await self._tried(self._outbox.number) else 0)

    async def _forget_forever(self) -> None:
        while True:
            await self._timing.sleep(_FORGET_S if not await self._tried(self._forget) else 0)

    async def _show_forever(self) -> None:
        while True:
            await self._timing.sleep(_SHOW_S)
            for each in self._deliveries:
                each.show()

    async def _forget(self) -> int:
        return await self._outbox.forget([each.name for each in self._deliveries], self._keep_us)

    async def _tried(self, act: Callable[[], Awaitable[int]]) -> int:
        try:
            return await act()
        except Exception as error:  # noqa: BLE001  The next step tries again.
            _log.warning("the outbox of events did not answer (%s)", type(error).__name__)
            return 0
