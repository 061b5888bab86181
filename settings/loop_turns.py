"""What a timer that is due must not overtake: bytes that have come, and tasks that are to read them."""

import asyncio
from collections.abc import Callable
from typing import Final

_TURNS: Final = 3
"""A turn in which the loop looks at its sockets, one in which tasks read what came, and one more, as uvloop looks at timers before sockets."""


def after_reading(loop: asyncio.AbstractEventLoop, call: Callable[[], object], turns: int = _TURNS) -> None:
    """Call `call` once what has come by now was read.

    After a standstill (a paused machine, a stopped process) a timer is due at once, and what came meanwhile in time is still
    unread: uvloop asks its timers first, asyncio's own loop reads, and lets tasks know only after the timers.
    """
    if turns:
        loop.call_soon(after_reading, loop, call, turns - 1)
    else:
        call()
