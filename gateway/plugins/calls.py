"""Calls of one plug-in: each has a deadline, and one that was late three times in a row, one after another, is taken out for a while.

Late is what is not done in time, and what holds the event loop. What a plug-in raises is its failure and says nothing of time,
a TimeoutError of its own included.
"""

import asyncio
import functools
import logging
import math
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

from gateway.plugins.alarm import TooLong, bounded

_log: Final = logging.getLogger("weighbridge.plugins")

CallResult = Literal["ok", "late", "failed", "out"]
MOST_LATE: Final = 3
OUT_S: Final = 60.0
"""Seconds after which one call is tried again."""
_LONGEST_STEP_S: Final = 0.1
"""Seconds for which a coroutine may hold the event loop."""
_TELL_EVERY_S: Final = 60.0
_Found = TypeVar("_Found")


class NoAnswer(Exception):
    """A plug-in gave no answer: it was late, failed, or is taken out. The message names it and what happened."""

    def __init__(self, plugin: str, result: CallResult, why: str) -> None:
        super().__init__(f"the plug-in {plugin} {why}")
        self.plugin = plugin
        self.result = result


class CallObserver(Protocol):
    """Told of calls; PluginMetrics is one."""

    def called(self, plugin: str, result: CallResult, took_s: float) -> None: ...
    def set_out(self, plugin: str, *, out: bool) -> None: ...


class Calls:
    """The calls of one plug-in in one process."""

    def __init__(
        self, name: str, deadline_s: float, observer: CallObserver, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = name
        self._deadline_s = deadline_s
        self._observer = observer
        self._clock = clock
        self._late_in_a_row = 0
        self._late_until = -math.inf
        """When the last late call that counts was given up."""
        self._again_at: float | None = None
        self._told_at = -_TELL_EVERY_S
        observer.set_out(name, out=False)

    @property
    def is_out(self) -> bool:
        """True from the third late call in a row until one is in time again."""
        return self._again_at is not None

    async def ask(self, call: Callable[[], Awaitable[_Found]]) -> _Found:
        """Return what a coroutine of the plug-in returns. Raises NoAnswer."""
        started = self._begin()
        # A task of its own: whoever does not listen to its cancellation keeps nobody waiting.
        task = asyncio.ensure_future(_stepped(call, min(self._deadline_s, _LONGEST_STEP_S)))
        try:
            await asyncio.wait({task}, timeout=self._deadline_s)
        finally:
            if not task.done():
                task.cancel()
                task.add_done_callback(_ignore)
        if not task.done():
            raise self._late(started)
        return self._answer(task.result, started)

    def ask_now(self, act: Callable[[], _Found]) -> _Found:
        """Return what a plain function of the plug-in returns. Raises NoAnswer."""
        started = self._begin()
        return self._answer(lambda: bounded(act, self._deadline_s), started)

    def _answer(self, result: Callable[[], _Found], started: float) -> _Found:
        try:
            found = result()
        except TooLong:
            raise self._late(started) from None
        except asyncio.CancelledError:
            raise self._failed(started, "CancelledError") from None
        except Exception as error:
            raise self._failed(started, type(error).__name__) from error
        self._was_in_time()
        self._observer.called(self.name, "ok", self._clock() - started)
        return found

    def _was_in_time(self) -> None:
        self._late_in_a_row = 0
        if self._again_at is not None:
            self._again_at = None
            self._observer.set_out(self.name, out=False)
            _log.warning("the plug-in %s answers in time again", self.name)

    def _begin(self) -> float:
        now = self._clock()
        if self._again_at is not None:
            if now < self._again_at:
                self._observer.called(self.name, "out", 0.0)
                raise NoAnswer(self.name, "out", "was late three times in a row and is taken out")
            # One call is tried; until it answered nobody else is.
            self._again_at = now + OUT_S
        return now

    def _late(self, started: float) -> NoAnswer:
        now = self._clock()
        self._observer.called(self.name, "late", now - started)
        if started >= self._late_until:
            # Many that wait at once for one that has stalled are late once.
            self._late_in_a_row += 1
            self._late_until = now
        if self._late_in_a_row >= MOST_LATE:
            if self._again_at is None:
                _log.error(
                    "the plug-in %s was late %d times in a row (deadline %g s) and is taken out; it is tried again every %g s",
                    self.name,
                    MOST_LATE,
                    self._deadline_s,
                    OUT_S,
                )
            self._again_at = now + OUT_S
            self._observer.set_out(self.name, out=True)
        return NoAnswer(self.name, "late", f"did not answer within {self._deadline_s:g} s")

    def _failed(self, started: float, error: str) -> NoAnswer:
        now = self._clock()
        self._observer.called(self.name, "failed", now - started)
        self._was_in_time()
        if now - self._told_at >= _TELL_EVERY_S:
            self._told_at = now
            # Its words may be a caller's.
            _log.warning("the plug-in %s failed (%s)", self.name, error)
        return NoAnswer(self.name, "failed", "failed")


def _ignore(task: "asyncio.Future[Any]") -> None:
    """Take note of how an abandoned call ended, so that nobody warns of it."""
    if not task.cancelled():
        task.exception()


async def _stepped(call: Callable[[], Awaitable[_Found]], longest_s: float) -> _Found:
    return await _Steps(bounded(call, longest_s), longest_s)


class _Steps(Generic[_Found]):
    """An awaitable whose every step is bounded."""

    def __init__(self, work: Awaitable[_Found], longest_s: float) -> None:
        self._work = work.__await__()
        self._longest_s = longest_s

    def __await__(self) -> Generator[Any, Any, _Found]:
        step: Callable[[], Any] = functools.partial(self._work.send, None)
        while True:
            try:
                waits = bounded(step, self._longest_s)
            except StopIteration as end:
                found: _Found = end.value
                return found
            try:
                step = functools.partial(self._work.send, (yield waits))
            except BaseException as error:  # noqa: BLE001 - it is the coroutine's own
                step = functools.partial(self._work.throw, error)
