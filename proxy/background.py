"""Background loops: started with the process, cancelled with it, and surviving the failure of any one step."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

_log = logging.getLogger("weighbridge.app")


def background(stack: contextlib.AsyncExitStack, work: Awaitable[None]) -> None:
    """Starts `work` as a task that is cancelled, and awaited, when the stack closes."""
    task = asyncio.ensure_future(work)

    async def stop() -> None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    stack.push_async_callback(stop)


async def every(interval_s: float, act: Callable[[], Awaitable[object]]) -> None:
    """Calls `act` after each interval, for ever. A step that fails is logged and does not end the loop."""
    while True:
        await asyncio.sleep(interval_s)
        try:
            await act()
        except Exception:  # noqa: BLE001 - the loop must outlive any one step
            _log.exception("a background step failed; the next one follows")
