"""A limit for code that holds the event loop: a timer's signal interrupts it, in the main thread, where loops run.

It ends endless Python loops and blocking calls. What one long call of a C library does it cannot end, nor anything in another
thread.
"""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

_Found = TypeVar("_Found")


class TooLong(BaseException):
    """The code held the loop for too long. No Exception: plug-ins catch those."""


def bounded(act: Callable[[], _Found], limit_s: float) -> _Found:
    """Return what `act` returns. Raises TooLong once it has run for `limit_s` seconds. Calls within each other are not bounded apart."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        return act()
    armed = False

    def ring(_signal: int, _frame: FrameType | None) -> None:
        if armed:
            raise TooLong

    before = signal.signal(signal.SIGALRM, ring)
    timer = signal.setitimer(signal.ITIMER_REAL, limit_s, limit_s)
    try:
        try:
            armed = True
            return act()
        finally:
            armed = False
    finally:
        armed = False
        # Whoever had the timer has it again; what it was to wait is what was left.
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if before is None else before)
