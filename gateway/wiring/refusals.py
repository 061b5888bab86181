"""Wiring of refusals: the control plane asks its workers what they counted, and keeps it."""

import contextlib
from typing import Any, Final

from cost.times import wall_us
from gateway.link.hub import Hub
from gateway.link.reports import ReadRefusals
from proxy.background import background, every
from proxy.refusals.counting import RefusalsTold
from proxy.refusals.store import RefusalStore

_ASK_S: Final = 1.0
_ROLL_UP_S: Final = 300.0
_MOST_LEFT: Final = 64


class RefusalKeeper:
    """Keeps what this host's workers counted."""

    def __init__(self, hub: Hub, store: RefusalStore) -> None:
        self._hub = hub
        self._store = store
        self._marks: dict[str, int] = {}
        self._left: list[RefusalsTold] = []
        hub.handlers.when_told(RefusalsTold, self._hear)
        hub.went.append(self._forget)

    def _forget(self, boot_id: str) -> None:
        self._marks.pop(boot_id, None)

    def _hear(self, _from: Any, told: RefusalsTold) -> None:
        """A worker that ends tells its last counts unasked."""
        if len(self._left) < _MOST_LEFT:
            self._left.append(told)

    async def keep(self) -> None:
        """Asks all workers once. What could not be kept is asked for again."""
        while self._left:
            await self._store.keep(self._left[0])
            del self._left[0]
        for boot_id, told in (await self._hub.ask_all(ReadRefusals(dict(self._marks)))).items():
            await self._store.keep(told)
            self._marks[boot_id] = told.mark


def keep_refusals(hub: Hub, store: RefusalStore, stack: contextlib.AsyncExitStack) -> RefusalKeeper:
    """Keeps refusals while the control plane runs; what was told last is kept when it ends."""
    keeper = RefusalKeeper(hub, store)

    async def roll_up() -> None:
        await store.roll_up(wall_us())

    stack.push_async_callback(keeper.keep)
    background(stack, every(_ASK_S, keeper.keep))
    background(stack, every(_ROLL_UP_S, roll_up))
    return keeper
