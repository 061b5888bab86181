"""How much of what a queue's targets carry this process may use.

Alone it is all. Several processes with Redis divide it by what each has to do, several times a second; without Redis, or
while it does not answer, each uses an equal part. What runs is never stopped: a part that shrinks does so as work ends.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from proxy.queues.fair_queue import FreeCapacity
from proxy.queues.queues_config import QueueConfig
from proxy.redis.scripts import script
from proxy.redis.shared_state import Link, ScriptRunner, SharedStateUnavailable

_DIVIDE: Final = script("divide")
_SETTLE_S: Final = 2.0
"""After Redis is back, how long a process asks for no more than an equal part: others that still work without it are
not counted there yet."""
_HEADROOM: Final = 1.25
"""More than is in flight is asked for, so that the next requests need not wait until it was divided again."""


class Record(msgspec.Struct, frozen=True):
    """What one process has and wants of a queue's capacity, in tokens."""

    demand: int
    held: int
    """It keeps this to itself, and has no more in flight but for one request larger than everything."""
    large: int = 0
    """Of the request that does not fit in its part, if there is one."""
    waited_ms: int = 0
    """Since when that waits."""


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """A queue of this process when its part is asked for."""

    in_flight: int
    wanted: int
    """In flight, waiting, or in flight a moment ago."""
    large: int
    waited_s: float


def parts(records: Mapping[str, Record], capacity: int) -> dict[str, int]:
    """The max-min fair parts of all holders; the sum is the capacity. The same as in divide.lua."""
    order = sorted(records, key=lambda holder: (records[holder].demand, holder))
    fair = _filled(order, records, capacity)
    first: str | None = None
    for holder in order:
        waited_ms = -1 if first is None else records[first].waited_ms
        if records[holder].large > fair[holder] and records[holder].waited_ms > waited_ms:
            first = holder
    if first is None:
        return fair
    large = min(records[first].large, capacity)
    others = [holder for holder in order if holder != first]
    return {first: large, **_filled(others, records, capacity - large)}


def _filled(order: Sequence[str], records: Mapping[str, Record], left: int) -> dict[str, int]:
    """Water is poured into vessels as large as the demands, and what overflows is spread evenly."""
    fair: dict[str, int] = {}
    for index, holder in enumerate(order):
        fair[holder] = min(records[holder].demand, left // (len(order) - index))
        left -= fair[holder]
    for index, holder in enumerate(order):
        fair[holder] += left // len(order) + (index < left % len(order))
    return fair


def divided(records: Mapping[str, Record], me: str, capacity: int, most: int) -> tuple[int, int]:
    """What `me` may have in flight from now on, and what is written down as taken. The same as in divide.lua."""
    held = records[me].held
    part = min(parts(records, capacity)[me], most)
    if part <= held:
        return part, held
    others = sum(record.held for holder, record in records.items() if holder != me)
    part = max(held, min(part, capacity - others))
    return part, part


class _Share:
    """Of one queue."""

    __slots__ = ("config", "is_given_up", "limit")

    def __init__(self, config: QueueConfig, limit: int) -> None:
        self.config = config
        self.limit = limit
        self.is_given_up = False
        """Its queue is no longer configured. One that comes back under the same name has a share of its own."""


class Capacity:
    """The parts of this process. Made before the link is started, so that it hears of its first connection."""

    def __init__(self, live: Callable[[], int], link: Link | None = None, *, clock: Callable[[], float]) -> None:
        """`live` is how many processes share, as known last."""
        self._live = live
        self._link = link
        self._clock = clock
        self._shares: dict[str, _Share] = {}
        self._use: Callable[[str], Use] = _nothing
        self._changed: Callable[[], None] = lambda: None
        self._by_demand = False
        self._settled_at = 0.0
        self._epoch = 0
        if link is not None:
            link.on_lost(self._lost)
            link.on_recovered(self._recovered)
            link.on_usable(self._usable)

    @property
    def by_demand(self) -> bool:
        """Whether asking again may give more."""
        return self._by_demand

    def watch(self, use: Callable[[str], Use], changed: Callable[[], None]) -> None:
        """`use` tells of a queue, by its name, when its part is asked for; `changed` hears that rooms are others now."""
        self._use = use
        self._changed = changed

    def adopt(self, configs: Mapping[str, QueueConfig]) -> None:
        """What is new begins with nothing where parts are given by demand; `beat` asks for it."""
        old = self._shares
        self._shares = {}
        for name, config in configs.items():
            known = old.get(name)
            if known is None:
                known = _Share(config, 0 if self._by_demand else self._equal(config))
            known.config = config
            known.limit = min(known.limit, config.tokens_in_flight) if self._by_demand else self._equal(config)
            self._shares[name] = known
        for name in old.keys() - configs.keys():
            self._leave(name, old[name])

    def room(self, name: str) -> FreeCapacity:
        """What the queue may have in flight here."""
        share = self._shares[name]
        whole = share.config.tokens_in_flight
        requests = share.config.requests_in_flight
        if requests is not None and share.limit < whole:
            requests = max(1, requests * share.limit // whole)
        # Nobody else has anything in flight when all is ours. Without Redis nobody could say so.
        alone = not self._by_demand or share.limit >= whole
        return FreeCapacity(share.limit, requests, alone=alone, usual=self._equal(share.config))

    async def beat(self) -> None:
        """Asks for the parts of all queues, in one moment and so in one round trip."""
        if not self._by_demand or self._link is None:
            self._equal_parts()
            return
        with contextlib.suppress(SharedStateUnavailable):
            await self._ask_all(self._link)
            self._changed()

    def _leave(self, name: str, share: _Share) -> None:
        """What is still in flight there ends uncounted; nothing is kept from the others for it."""
        share.is_given_up = True
        link = self._link
        if link is not None and self._by_demand:
            link.tell(_DIVIDE, _keys(link, name), (link.holder, share.config.tokens_in_flight, 0, 0, 0, 0, 0))

    def _equal(self, config: QueueConfig) -> int:
        return max(1, config.tokens_in_flight // max(1, self._live()))

    def _equal_parts(self) -> None:
        for share in self._shares.values():
            share.limit = self._equal(share.config)
        self._changed()

    def _lost(self) -> None:
        self._epoch += 1
        self._by_demand = False
        self._equal_parts()

    async def _recovered(self, link: ScriptRunner) -> None:
        """Nothing is started until it was said what is in flight already."""
        self._epoch += 1
        for name, share in self._shares.items():
            share.limit = min(share.limit, self._use(name).in_flight)
        self._changed()
        self._settled_at = self._clock() + _SETTLE_S
        try:
            await self._ask_all(link)
        except BaseException:
            self._equal_parts()
            raise
        self._changed()

    def _usable(self) -> None:
        self._by_demand = True

    async def _ask_all(self, link: ScriptRunner) -> None:
        asked = [self._ask(link, name, share, self._epoch) for name, share in self._shares.items()]
        for outcome in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _ask(self, link: ScriptRunner, name: str, share: _Share, epoch: int) -> None:
        # A part that shrinks is given back by asking once more, so that others need not wait for the next beat.
        if await self._asked(link, name, share, epoch) and not share.is_given_up:
            await self._asked(link, name, share, epoch)

    async def _asked(self, link: ScriptRunner, name: str, share: _Share, epoch: int) -> bool:
        """Whether there is something to give back. Nothing is taken from a link that was lost meanwhile."""
        use, whole = self._use(name), share.config.tokens_in_flight
        held = max(share.limit, use.in_flight)
        most = self._equal(share.config) if self._clock() < self._settled_at else whole
        record = (min(whole, math.ceil(use.wanted * _HEADROOM)), held, use.large, round(use.waited_s * 1000))
        limit = int(await link.call(_DIVIDE, _keys(link, name), (link.holder, whole, *record, most)))
        if epoch != self._epoch:
            return False
        share.limit = limit
        return max(limit, self._use(name).in_flight) < held


def _keys(link: ScriptRunner, name: str) -> tuple[str, str]:
    return f"{link.prefix}queue:{name}", f"{link.prefix}holders"


NOTHING: Final = Use(in_flight=0, wanted=0, large=0, waited_s=0.0)


def _nothing(name: str) -> Use:  # noqa: ARG001 - before somebody watches, nothing is in flight
    return NOTHING
