"""Background loops: started with the process, cancelled with it, and surviving the failure of any one step."""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import Final

_log = logging.getLogger("weighbridge.app")

_TELL_EVERY_S: Final = 60.0
"""Seconds between two tracebacks of one loop: a step that fails ten times a second would fill the log."""


def background(stack: contextlib.AsyncExitStack, work: Awaitable[None]) -> None:
    """Start `work` as a task that is cancelled, and awaited, when the stack closes."""
    task = asyncio.ensure_future(work)

    async def stop() -> None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    stack.push_async_callback(stop)


async def every(
    interval_s: float, act: Callable[[], Awaitable[object]], *, clock: Callable[[], float] = time.monotonic
) -> None:
    """Call `act` after each interval, for ever. A step that fails does not end the loop; it is logged, once a minute
    at most.
    """
    told_at, untold = -math.inf, 0
    while True:
        await asyncio.sleep(interval_s)
        try:
            await act()
        except Exception:  # noqa: BLE001 - the loop must outlive any one step
            if clock() - told_at < _TELL_EVERY_S:
                untold += 1
                continue
            _log.exception("a background step failed, after %d that were not logged; the next one follows", untold)
            told_at, untold = clock(), 0
