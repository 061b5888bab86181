"""Wiring of counts: the control plane asks its workers what they counted by minute, and keeps it."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from api.web.gateway import Views
from cost.times import wall_us
from gateway.link.hub import Hub
from gateway.link.worker_questions import CountsTold, ReadCounts
from proxy.settle.findings.counting import FindingsTold
from proxy.settle.findings.store import FindingStore
from proxy.settle.refusals.store import RefusalStore
from proxy.settle.traffic.counting import TrafficTold
from proxy.settle.traffic.store import TrafficStore
from proxy.shared.background_tasks import background, every

_ASK_S: Final = 1.0
_ROLL_UP_S: Final = 300.0
_MOST_LEFT: Final = 64
_LAST_S: Final = 5.0
_log: Final = logging.getLogger("weighbridge.counts")


class CountKeeper:
    """The store of what this host's workers counted."""

    def __init__(self, hub: Hub, refusals: RefusalStore, traffic: TrafficStore, findings: FindingStore) -> None:
        self._hub = hub
        self._refusals = refusals
        self._traffic = traffic
        self._findings = findings
        self._marks: dict[str, tuple[int, int, int]] = {}
        self._left: list[CountsTold] = []
        hub.handlers.when_told(CountsTold, self._hear)
        hub.went.append(self._forget)

    def _forget(self, boot_id: str) -> None:
        self._marks.pop(boot_id, None)

    def _hear(self, _from: Any, told: CountsTold) -> None:
        """Keep a worker's last counts, which it tells unasked when it ends."""
        if len(self._left) < _MOST_LEFT:
            self._left.append(told)

    async def keep(self) -> None:
        """Ask all workers once. What could not be kept is asked for again, and keeping it twice changes nothing."""
        while self._left:
            await self._keep(self._left[0])
            del self._left[0]
        for boot_id, told in (await self._hub.ask_all(ReadCounts(dict(self._marks)))).items():
            await self._keep(told)
            self._marks[boot_id] = told.marks

    async def _keep(self, told: CountsTold) -> None:
        await self._refusals.keep(told.refusals)
        await self._traffic.keep(told.traffic)
        await self._findings.keep(told.findings)


def keep_counts(
    hub: Hub,
    views: Views,
    own: Callable[[tuple[int, int]], tuple[TrafficTold, FindingsTold]],
    stack: contextlib.AsyncExitStack,
) -> None:
    """Keep refusals, traffic and what the guard found while the control plane runs, and the last counts at its end. `own` returns
    traffic and findings of the control plane's own pipeline since two marks: batches are answered there.
    """
    own_marks = 0, 0
    refusals, traffic, findings = views.refusals, views.traffic, views.findings

    async def keep_own() -> None:
        nonlocal own_marks
        told = own(own_marks)
        await traffic.keep(told[0])
        await findings.keep(told[1])
        own_marks = told[0].mark, told[1].mark

    async def roll_up() -> None:
        now_us = wall_us()
        await refusals.roll_up(now_us)
        await traffic.roll_up(now_us)
        await findings.roll_up(now_us)

    keeper = CountKeeper(hub, refusals, traffic, findings)

    async def keep_all() -> None:
        await keep_own()
        await keeper.keep()

    stack.push_async_callback(_keep_last, keep_all)
    background(stack, every(_ASK_S, keep_all))
    background(stack, every(_ROLL_UP_S, roll_up))


async def _keep_last(keep: Callable[[], Awaitable[None]]) -> None:
    """Keep the last counts, if the database takes them: an end must not fail, or wait, for counts."""
    try:
        async with asyncio.timeout(_LAST_S):
            await keep()
    except Exception as failure:  # noqa: BLE001 - whatever the database says, the process ends
        _log.warning("the last counts were not kept: %s", type(failure).__name__)
