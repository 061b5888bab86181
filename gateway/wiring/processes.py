"""Wiring of the count of serving processes: the control plane counts, and tells its workers."""

import asyncio
import contextlib
from typing import Final

from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.link.hub import Hub
from gateway.link.link import Link
from gateway.link.worker_questions import ProcessesCounted
from proxy.shared.background_tasks import background
from proxy.shared.redis.live_processes import SHOW_S, LiveProcesses, ReportedProcesses

_KEY: Final = "processes"


async def count_workers(engine: AsyncEngine, hub: Hub, stack: contextlib.AsyncExitStack) -> LiveProcesses:
    """Show this host's workers in the database, count those of all hosts, and tell each worker."""
    counted = LiveProcesses(engine, lambda: hub.workers)
    changed = asyncio.Event()
    gone: set[str] = set()

    async def look() -> None:
        for boot_id in tuple(gone):
            await counted.withdraw(boot_id)
            gone.discard(boot_id)
        await counted.refresh()
        hub.publish(_KEY, ProcessesCounted(counted.live))

    async def follow() -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SHOW_S):
                    await changed.wait()
            changed.clear()
            await look()

    def went(boot_id: str) -> None:
        gone.add(boot_id)
        changed.set()

    async def withdraw_all() -> None:
        for boot_id in (*hub.workers, *gone):
            await counted.withdraw(boot_id)

    hub.came.append(lambda _boot_id: changed.set())
    hub.went.append(went)
    await look()
    stack.push_async_callback(withdraw_all)
    background(stack, follow())
    return counted


def told_processes(link: Link) -> ReportedProcesses:
    """Return the count as a worker is told of it."""
    told = ReportedProcesses()

    def hear(_from: object, message: ProcessesCounted) -> None:
        told.live, told.known = message.live, True

    link.handlers.when_told(ProcessesCounted, hear)
    return told
