"""The control plane counts the workers of all hosts and tells its own."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.link.hub import Hub
from gateway.link.link import Hello, Link
from gateway.link.worker_questions import VOCABULARY
from gateway.wiring.processes import count_workers, told_processes
from proxy.shared.redis.live_processes import LiveProcesses, ReportedProcesses
from tests.processes import until


@contextlib.asynccontextmanager
async def worker(path: Path, boot_id: str) -> AsyncIterator[ReportedProcesses]:
    link = Link(path, VOCABULARY)
    told = told_processes(link)
    link.start(Hello(boot_id, 1))
    try:
        yield told
    finally:
        await link.aclose()


async def test_workers_learn_how_many_they_are(engine: AsyncEngine) -> None:
    """Soon after each that comes or goes, those of another host included; before that nothing is known."""
    other_host = LiveProcesses(engine, lambda: ("far",))
    await other_host.refresh()
    with tempfile.TemporaryDirectory(prefix="wb-") as folder:
        path = Path(folder) / "link"
        async with contextlib.AsyncExitStack() as stack:
            hub = Hub(VOCABULARY)
            counted = await count_workers(engine, hub, stack)
            await hub.start(path)
            stack.push_async_callback(hub.aclose)
            async with worker(path, "one") as one:
                assert not one.known or one.live == 1
                await until(lambda: one.live == 2)
                async with worker(path, "two") as two:
                    await until(lambda: (one.live, two.live, two.known) == (3, 3, True))
                await until(lambda: one.live == 2)
            await until(lambda: counted.live == 1)
    await asyncio.sleep(0)


async def test_a_host_that_stops_takes_its_workers_back(engine: AsyncEngine) -> None:
    """Others need not wait for their rows to grow old."""
    other_host = LiveProcesses(engine, lambda: ("far",))
    with tempfile.TemporaryDirectory(prefix="wb-") as folder:
        path = Path(folder) / "link"
        async with contextlib.AsyncExitStack() as stack:
            hub = Hub(VOCABULARY)
            await hub.start(path)
            stack.push_async_callback(hub.aclose)
            await count_workers(engine, hub, stack)
            near = await stack.enter_async_context(worker(path, "near"))
            await until(lambda: near.known)

            async def is_seen() -> bool:
                await other_host.refresh()
                return other_host.live == 2

            await until(is_seen)
            await stack.aclose()
    await other_host.refresh()
    assert other_host.live == 1
