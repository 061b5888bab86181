"""The life of a process that the supervisor started: its signals, its start, the message that it serves, and its end."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol, TypeVar

import uvloop

from proxy.http.server import HttpServer

_log: Final = logging.getLogger("weighbridge.serve")

_YOUNG_OBJECTS: Final = 20_000
"""New containers at which the collector looks at them. Some hundreds come with a request and most of them go with it: with Python's own
700 it would look at each request while all of its objects still live.
"""
FORCED: Final = 1
"""The exit status after a second signal."""

Opened = TypeVar("Opened")


def ignore_early_signals() -> None:
    """Ignore reload and replacement until somebody listens for them: they must not end this process; a stop must."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)


def live(
    opening: AbstractAsyncContextManager[Opened],
    serve: Callable[[Opened, "Signals"], Awaitable[None]],
    *,
    reload: Callable[[], None],
) -> int:
    """Open, serve until a signal, and close. Return the exit status.

    A stop during the start ends the start. `serve` returns when `Signals.stopped` is set and what ran has ended.
    """
    signals = Signals(reload)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_live(opening, serve, signals))
    return FORCED if signals.forced else 0


class Signals:
    """The signals that a process has received."""

    def __init__(self, reload: Callable[[], None]) -> None:
        self.stopped = asyncio.Event()
        """Set by SIGTERM and SIGINT."""
        self.forced = False
        """True after a second of those: the end is no longer waited for."""
        self.when_replaced: Callable[[], None] = lambda: None
        """Called at SIGUSR2: another process has taken this one's place."""
        self.when_forced: Callable[[], None] = lambda: os._exit(FORCED)
        self._reload = reload

    def listen(self) -> None:
        """Take the process's signals from now on."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop)
        loop.add_signal_handler(signal.SIGINT, self._stop)

    def listen_for_changes(self) -> None:
        """Take reloads and replacements, too; before everything is open there is nothing to change."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        loop.add_signal_handler(signal.SIGUSR2, lambda: self.when_replaced())  # noqa: PLW0108 - who serves sets it later

    def ignore_changes(self) -> None:
        """Ignore reloads from now on: the books are still to be closed, and a late one must not end the process before that."""
        loop = asyncio.get_running_loop()
        loop.remove_signal_handler(signal.SIGHUP)
        loop.remove_signal_handler(signal.SIGUSR2)
        ignore_early_signals()

    def _stop(self) -> None:
        if not self.stopped.is_set():
            self.stopped.set()
        elif not self.forced:
            self.forced = True
            _log.warning("stopping at once: a second signal came")
            self.when_forced()


async def _live(
    opening: AbstractAsyncContextManager[Opened],
    serve: Callable[[Opened, Signals], Awaitable[None]],
    signals: Signals,
) -> None:
    signals.listen()
    async with contextlib.AsyncExitStack() as stack:
        opened = await _unless(signals.stopped, stack.enter_async_context(opening))
        if opened is None:
            return
        # What the start made stays: the collector need not walk all of it again and again while serving.
        gc.collect()
        gc.freeze()
        gc.set_threshold(_YOUNG_OBJECTS)
        signals.listen_for_changes()
        stack.callback(signals.ignore_changes)
        await serve(opened, signals)


async def _unless(stopped: asyncio.Event, work: Awaitable[Opened]) -> Opened | None:
    """Return the work's result; None where the stop comes first, which cancels the work."""
    working: asyncio.Future[Opened] = asyncio.ensure_future(work)
    stopping: asyncio.Task[Any] = asyncio.create_task(stopped.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await working
        return None
    finally:
        stopping.cancel()


class Drains(Protocol):
    """A worker's plane, as far as its end goes."""

    def begin_leave(self) -> None:
        """Tell balancers to go elsewhere, and serve whoever still comes."""

    def begin_drain(self) -> None:
        """Refuse new work."""

    def cut_off(self) -> None:
        """End the requests that still run."""


async def until_stopped(
    server: HttpServer, plane: Drains, signals: Signals, drain_s: float, leave_s: float = 0
) -> None:
    """Serve until a stop or a replacement, and then until requests under way have ended, `drain_s` seconds at most. At a stop whoever
    comes in the first `leave_s` of them is served.
    """
    replaced = asyncio.Event()
    signals.when_replaced = replaced.set
    signals.when_forced = server.hurry
    stopping = asyncio.create_task(signals.stopped.wait())
    moving = asyncio.create_task(replaced.wait())
    await asyncio.wait({stopping, moving}, return_when=asyncio.FIRST_COMPLETED)
    until = server.now() + drain_s
    if not signals.stopped.is_set():
        stopping.add_done_callback(lambda _: server.stop_moving())
        await server.move(until)
    elif leave_s > 0:
        plane.begin_leave()
        await server.leave(leave_s)
    plane.begin_drain()

    def cut_off() -> bool:
        plane.cut_off()
        return True

    await server.stop(until, cut_off)
    for task in (stopping, moving):
        task.cancel()
