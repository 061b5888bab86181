"""Spare time: a thread of the lowest priority, with an event loop and connections to the database of its own.

The control plane does there what nobody waits for, so that it takes no processor from a worker that streams. Where processors are all
busy such a thread comes to nothing, and while it holds the interpreter or a transaction others wait for it: so it is asked first for
work that only computes, and given nothing for a while after that took far longer than its processor time.
"""

import asyncio
import contextlib
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Final, TypeVar

import uvloop
from sqlalchemy.ext.asyncio import AsyncEngine

_log: Final = logging.getLogger("weighbridge.spare_time")

NICENESS: Final = 19
"""The lowest priority there is. Nothing is ever raised, so no privilege is needed."""
LEAST_SHARE: Final = 0.125
"""Part of a processor that the thread must get. With less it would only hold up whoever waits for it."""
GRACE_S: Final = 0.15
"""Seconds that it may take beside that, over the last pieces of work together."""
_LAST: Final = 4
"""The number of those pieces."""
AGAIN_S: Final = 5.0
"""Seconds of rest after that."""
_CLOSE_S: Final = 5.0

T = TypeVar("T")


class LowPriorityThread:
    """A thread of the lowest priority, from `start` to `aclose`."""

    def __init__(self, make_engine: Callable[[], AsyncEngine], clock: Callable[[], float] = time.monotonic) -> None:
        """`make_engine` makes the thread's own engine; a database in memory has no second one."""
        self._make_engine = make_engine
        self._clock = clock
        self._again_at = 0.0
        self._over_s: deque[float] = deque(maxlen=_LAST)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._engine: AsyncEngine | None = None
        self._stopped: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    async def start(self) -> bool:
        """Start the thread. False where threads have no priority of their own, or none may be lowered: then there is no spare time."""
        if sys.platform != "linux":
            return False
        ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._live, args=(ready,), name="spare-time", daemon=True)
        self._thread.start()
        try:
            await asyncio.wrap_future(ready)
        except OSError as failure:
            _log.warning("the drain runs at the priority of the control plane: %s", os.strerror(failure.errno or 0))
            return False
        return True

    @property
    def has_time(self) -> bool:
        """False while it rests, because it got next to nothing of the processors or somebody waits."""
        is_alive = self._loop is not None and self._thread is not None and self._thread.is_alive()
        return is_alive and self._clock() >= self._again_at

    @property
    def engine(self) -> AsyncEngine:
        """The thread's own engine, for what `run` is given."""
        if self._engine is None:
            raise RuntimeError("the thread does not run")
        return self._engine

    def rest(self) -> None:
        """Leave the thread unused for a while: it might hold up somebody who waits."""
        self._over_s.clear()
        self._again_at = self._clock() + AGAIN_S

    async def compute(self, work: Callable[[], T]) -> T:
        """Run `work` in the thread and return its result. It waits for nothing, so its time tells whether there is time
        to spare.
        """

        async def timed() -> tuple[T, float]:
            used = time.thread_time()
            done = work()
            return done, time.thread_time() - used

        began = time.perf_counter()
        done, used_s = await self.run(timed)
        self._over_s.append(time.perf_counter() - began - used_s / LEAST_SHARE)
        if sum(self._over_s) > GRACE_S:
            self.rest()
        return done

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Await `work` in the thread's loop."""
        if self._loop is None:
            raise RuntimeError("the thread does not run")

        async def awaited() -> T:
            return await work()

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(awaited(), self._loop))

    async def aclose(self) -> None:
        """End the thread; what still runs in it is cancelled."""
        loop, self._loop = self._loop, None
        if loop is None or self._stopped is None or self._thread is None:
            return
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(self._stopped.set)
        await asyncio.to_thread(self._thread.join, _CLOSE_S)

    def _live(self, ready: "Future[None]") -> None:
        try:
            # Of this thread alone. Those that are started from it, one for each connection of SQLite, begin with the same.
            os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
        except OSError as failure:
            ready.set_exception(failure)
            return
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve(ready))
        except Exception as failure:
            if ready.done():
                raise
            ready.set_exception(failure)

    async def _serve(self, ready: "Future[None]") -> None:
        self._engine, self._stopped = self._make_engine(), asyncio.Event()
        self._loop = asyncio.get_running_loop()
        ready.set_result(None)
        await self._stopped.wait()
        await self._engine.dispose()


async def open_low_priority_thread(
    make_engine: Callable[[], AsyncEngine], stack: contextlib.AsyncExitStack
) -> LowPriorityThread | None:
    """Start a thread that ends with the stack; None where there is no spare time."""
    spare = LowPriorityThread(make_engine)
    stack.push_async_callback(spare.aclose)
    return spare if await spare.start() else None
