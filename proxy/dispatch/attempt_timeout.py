"""Time-outs of attempts that may be extended when they are due, on one timer of the event loop."""

import asyncio
import math
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

from settings.loop_turns import after_reading

_LEAST_S: Final = 0.001

LongerS = Callable[[], float | None]


class AttemptTimeout:
    """A limit on the time that its task waits within a `with`, which then raises TimeoutError. It is an
    `asyncio.timeout` that costs no timer of its own: see `AttemptTimeouts`.
    """

    __slots__ = ("_among", "_cancelling", "_longer_s", "_loop", "_over", "_task", "due_at", "expired")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        due_at: float = math.inf,
        among: set["AttemptTimeout"] | None = None,
        longer_s: LongerS | None = None,
    ) -> None:
        """Without `due_at` only `expire` ends it. It is taken out of `among` at its end."""
        task: asyncio.Task[Any] | None = asyncio.current_task(loop)
        assert task is not None  # noqa: S101  Whoever waits is a task.
        self._loop = loop
        self._among = among
        self._longer_s = longer_s
        self._task = task
        self._cancelling = task.cancelling()
        self.due_at = due_at
        """The time at which it is due, on the loop's clock, in seconds."""
        self.expired = False
        self._over = False
        if among is not None:
            among.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        if self._among is not None:
            self._among.discard(self)
        if self.expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            # Nobody else cancelled it.
            raise TimeoutError from error

    def expire(self) -> None:
        """End it in the loop's next turn. No effect when it is over by then."""
        self._loop.call_soon(self.expire_now)

    def end_or_extend(self, now: float) -> None:
        """End it when it is due, unless it is to be waited for longer."""
        longer_s = 0.0 if self._longer_s is None else self._longer_s()
        if longer_s is not None and longer_s < _LEAST_S:
            self.expire_now()
        else:
            self.due_at = math.inf if longer_s is None else now + longer_s

    def expire_now(self) -> None:
        """End it; never called by its own task."""
        if not (self._over or self.expired):
            self.expired = True
            self._task.cancel()


class AttemptTimeouts:
    """The one timer for all attempts of an event loop. Nearly all are over long before they are due, and a new one is
    seldom due before the waiting ones.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[AttemptTimeout] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._looks_at = math.inf

    def within(self, limit_s: float | None, longer_s: LongerS | None = None) -> AttemptTimeout:
        """Return the time-out of the present task, from now on; None is without limit. When it is due, `longer_s`
        returns the seconds that it has left: none below a millisecond, and None for no limit.
        """
        # Asked for once: until Python 3.12 each answer takes a system call.
        loop = self._loop = self._loop or asyncio.get_running_loop()
        if limit_s is None:
            return AttemptTimeout(loop)
        due_at = loop.time() + limit_s
        if due_at < self._looks_at:
            self._look_at(loop, due_at)
        return AttemptTimeout(loop, due_at, self._waiting, longer_s)

    def _look_at(self, loop: asyncio.AbstractEventLoop, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._looks_at = when
        self._timer = loop.call_at(when, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer, self._looks_at = None, math.inf
        # Whoever stood still, and has the first token to read, is not late.
        after_reading(loop, self._end_due)

    def _end_due(self) -> None:
        loop = self._loop
        assert loop is not None  # noqa: S101  It looked.
        now = loop.time()
        again = math.inf
        for each in self._waiting:
            if each.due_at <= now:
                each.end_or_extend(now)
            if now < each.due_at < again:
                again = each.due_at
        if again < math.inf:
            self._look_at(loop, again)
