"""Wiring of targets that are set aside for hard budgets: a worker tells the control plane, which tells all workers. Workers of
several hosts tell each other through Redis, where there is one.
"""

import contextlib
import time
from collections.abc import Callable
from typing import Any, Final

from gateway.link.connection import Connection
from gateway.link.hub import Hub
from gateway.link.link import Link
from gateway.link.worker_questions import SetAside
from proxy.plan.overruns import MOST_OVERRUNS, Overrun, Overruns
from proxy.shared.background_tasks import background, every
from proxy.shared.redis.scripts import script
from proxy.shared.redis.shared_state import ScriptRunner, SharedStateUnavailable

_KEY: Final = "overruns"
_SET_ASIDE: Final = script("set_aside")
_EVERY_S: Final = 2.0
"""As often as budgets are read: a host asks such a target that much longer."""
_LONGEST: Final = 300
"""Characters of what was found that are kept of other hosts' words."""


def share_overruns(hub: Hub, overruns: Overruns) -> None:
    """Keep what any process of this host found, and publish it to all workers, those included that come later."""

    def publish() -> None:
        # Whole, under one key: what is published stays, and must not grow with the names that callers think of.
        hub.publish(_KEY, SetAside(overruns.known))

    def hear(_from: Connection, message: SetAside) -> None:
        overruns.learn(message.overruns)
        publish()

    def tell(_target_id: str, _overrun: Overrun) -> None:
        publish()

    overruns.tell = tell
    hub.handlers.when_told(SetAside, hear)


def exchange_overruns(link: Link, overruns: Overruns) -> None:
    """Tell the control plane what this worker found, and learn what others did. Call it before the link starts."""

    def hear(_from: object, message: SetAside) -> None:
        overruns.learn(message.overruns)

    def tell(target_id: str, overrun: Overrun) -> None:
        link.tell(SetAside({target_id: overrun}))

    overruns.tell = tell
    link.handlers.when_told(SetAside, hear)


class OtherHostsOverruns:
    """The exchange of one process with those of other hosts. Nothing waits for it, and it may be lost: then each host finds out by itself."""

    def __init__(self, link: ScriptRunner, overruns: Overruns, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is that of `overruns`."""
        self._link = link
        self._overruns = overruns
        self._clock = clock
        self._shared: frozenset[str] = frozenset()
        """Targets that Redis had last; one that it lost is told again."""

    async def exchange(self) -> None:
        """Tell what Redis does not have, and learn what it has."""
        known, now = self._overruns.known, self._clock()
        news = [
            argument
            for target_id, overrun in known.items()
            if target_id not in self._shared
            for argument in (target_id, int(overrun.until - now) + 1, overrun.found)
        ]
        try:
            told = await self._link.call(_SET_ASIDE, (f"{self._link.prefix}set-aside",), (MOST_OVERRUNS, *news))
        except SharedStateUnavailable:
            return
        shared = _read(told, now)
        self._shared = frozenset(shared)
        self._overruns.learn(shared)
        for target_id in shared.keys() - known.keys():
            # For the control plane, which plans the lines of batches.
            self._overruns.tell(target_id, shared[target_id])


def _read(told: Any, now: float) -> dict[str, Overrun]:
    """Return the overruns in Redis' answer. Anybody who reaches Redis may write there, so what cannot be read is left out."""
    found: dict[str, Overrun] = {}
    for name, left, words in zip(told[::3], told[1::3], told[2::3], strict=True):
        with contextlib.suppress(UnicodeDecodeError, ValueError):
            found[name.decode()] = Overrun(now + int(left), words.decode()[:_LONGEST])
    return found


def exchange_with_other_hosts(link: ScriptRunner, overruns: Overruns, stack: contextlib.AsyncExitStack) -> None:
    """Exchange overruns with the workers of other hosts until the stack closes, over a link that is there for limits."""
    background(stack, every(_EVERY_S, OtherHostsOverruns(link, overruns).exchange))
