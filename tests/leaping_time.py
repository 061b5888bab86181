"""A clock that leaps: where a test only waits for timers, the next one is due at once.

So a patience of 50 ms is exactly that, however slow the machine is, and costs nothing. It is for tests whose loop waits for
nothing but timers: to one that waits for a socket or a thread, time would seem to fly.
"""

import asyncio
from typing import Any

import pytest


@pytest.fixture
async def leaping_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's own loop, until its end."""
    loop: Any = asyncio.get_running_loop()
    selector = loop._selector
    look = selector.select
    leapt_s = 0.0
    stands_at = loop.time()

    def select(timeout: float | None = None) -> Any:
        nonlocal leapt_s
        if timeout is None:
            return look(None)
        found = look(0)
        if not found:
            leapt_s += max(0.0, timeout)
        return found

    monkeypatch.setattr(selector, "select", select)
    monkeypatch.setattr(loop, "time", lambda: stands_at + leapt_s)
