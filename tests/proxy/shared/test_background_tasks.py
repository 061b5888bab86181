"""Background loops: they outlive their steps, and their failures do not fill the log."""

import asyncio
import contextlib
import logging

import pytest

from proxy.shared.background_tasks import background, every


async def test_a_step_that_always_fails_is_told_of_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """Its loop goes on, and the next line says how many were left out."""
    now_s, steps = 0.0, 0
    enough = asyncio.Event()

    async def fail() -> None:
        nonlocal now_s, steps
        steps += 1
        if steps == 50:
            now_s = 60.0
        elif steps == 51:
            enough.set()
        raise ValueError

    with caplog.at_level(logging.ERROR):
        async with contextlib.AsyncExitStack() as stack:
            background(stack, every(0, fail, clock=lambda: now_s))
            await enough.wait()
    told = [record.getMessage() for record in caplog.records if record.name == "weighbridge.app"]
    assert len(told) == 2
    assert "after 0 that" in told[0]
    assert "after 48 that" in told[1]
