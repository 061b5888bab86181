"""Division of a queue's capacity among processes.

One process has all of it. Several processes with Redis divide it, several times a second, by the teams whose work waits
in each; without Redis, or while it does not answer, each uses an equal part. Running work is never stopped: a part that
shrinks does so as work ends.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from proxy.admit.queues.fair_queue import FreeCapacity
from proxy.admit.queues.queues_config import QueueConfig
from proxy.shared.redis.scripts import script
from proxy.shared.redis.shared_state import Link, ScriptRunner, SharedStateUnavailable

_DIVIDE: Final = script("divide")
_SETTLE_S: Final = 2.0
"""Seconds after Redis returns in which a process asks for no more than an equal part, as others may still work
uncounted without Redis.
"""
HEADROOM: Final = 1.25
"""The factor by which the demand exceeds present use, so that the next requests need not wait for the next division."""
MOST_TEAMS: Final = 16
"""Teams that a process names when it asks for its part."""
REST: Final = "rest"
"""The name that stands for all teams that a process does not name."""
_SAME_MS: Final = 500
_MOST_DEMAND: Final = 16
"""Times the capacity, the most that a process asks for: as much as it may well have waiting."""


class TeamUse(msgspec.Struct, frozen=True, array_like=True):
    """The use of a queue in one process by one team."""

    team: str
    """A checksum of its id, the same in every process; `REST` for all teams that are not named."""
    weight: int
    """Its weight in fair sharing, in thousandths."""
    tokens: int
    """Its tokens in flight and waiting."""


class Record(msgspec.Struct, frozen=True):
    """One process's demand and holdings of a queue's capacity, in tokens."""

    demand: int
    held: int
    """Tokens that this process holds; it has no more in flight, save for one request larger than the whole capacity."""
    large: int = 0
    """Tokens of the waiting request that does not fit in this process's part; 0 for none."""
    since_ms: int = 0
    """The time at which that request began to wait, in milliseconds on the clock that all share."""
    whole: int = 0
    """The capacity of all as this process knows it; 0: it does not say."""
    teams: tuple[TeamUse, ...] = ()
    """The teams with the demand, the largest first. Without any it counts as the demand of one team that is in no
    other process.
    """


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """A queue's use in this process, at the moment its part is asked for."""

    in_flight: int
    wanted: int
    """Tokens in flight or waiting now, or in flight a moment ago."""
    large: int
    waited_s: float
    teams: tuple[TeamUse, ...] = ()


class Part(msgspec.Struct, frozen=True):
    """The part of a queue that a process is given."""

    limit: int
    """Tokens that it may have in flight from now on."""
    held: int
    """Tokens that are recorded as held by it."""
    whole: int
    """Tokens that all processes divide."""


def record_of(use: Use, whole: int, held: int, since_ms: int) -> Record:
    """Return the record with which a process asks that knows a capacity of `whole` tokens."""
    demand = min(_MOST_DEMAND * whole, math.ceil(use.wanted * HEADROOM))
    return Record(demand, held, use.large, since_ms, whole, use.teams)


def since(large: int, waited_ms: int, before_ms: int, now_ms: int) -> int:
    """Return the time, in milliseconds, at which a large request began to wait, where its process tells for how long
    it has waited, and `before_ms` is the time known so far; 0 without one. Mirrors divide.lua. A moment and no
    duration, as durations that were told at different times cannot be compared: each process would find its own the
    longest while it asks, and none would let go. Nearly the same moment is the same request, and keeps its place.
    """
    found = now_ms - waited_ms
    if not large:
        return 0
    return before_ms if abs(found - before_ms) <= _SAME_MS else found


def agreed(records: Mapping[str, Record], whole: int) -> int:
    """Return the capacity that is divided, in tokens: of the capacities that the processes know the middle one, of
    two the larger. Mirrors divide.lua. Each process sizes a queue by its own view of the replicas, so they differ a
    little. Were each to divide its own, their parts would not add up: a large request would wait for the difference
    for good.
    """
    known = sorted(each.whole or whole for each in records.values())
    return known[len(known) // 2]


def parts(records: Mapping[str, Record], capacity: int) -> dict[str, int]:
    """Return the parts of all holders, in tokens, which sum to the capacity. Mirrors divide.lua."""
    order = sorted(records, key=lambda holder: (records[holder].demand, holder))
    fair = _by_teams(order, records, capacity)
    first: str | None = None
    for holder in order:
        earliest = first is None or records[holder].since_ms < records[first].since_ms
        if records[holder].large > fair[holder] and earliest:
            first = holder
    if first is None:
        return fair
    large = min(records[first].large, capacity)
    others = [holder for holder in order if holder != first]
    return {first: large, **_by_teams(others, records, capacity - large)}


class _Team:
    """The demand of one team in all processes."""

    __slots__ = ("name", "tokens", "uses", "weight")

    def __init__(self, name: str) -> None:
        self.name = name
        self.weight = 1
        self.tokens = 0
        self.uses: list[tuple[str, int]] = []

    @property
    def key(self) -> tuple[int, str]:
        return self.tokens * 1000 // self.weight, self.name


def _by_teams(order: Sequence[str], records: Mapping[str, Record], left: int) -> dict[str, int]:
    """Divide as one queue would: between teams by their weights, max-min fair, and each team's part between the
    processes in which it waits, by its tokens there. The rest is spread evenly.
    """
    teams: dict[str, _Team] = {}
    for holder in order:
        for use in _scaled(holder, records[holder]):
            team = teams.setdefault(use.team, _Team(use.team))
            team.weight = max(team.weight, use.weight)
            team.tokens += use.tokens
            team.uses.append((holder, use.tokens))
    fair = dict.fromkeys(order, 0)
    spare, weights = left, sum(team.weight for team in teams.values())
    for team in sorted(teams.values(), key=lambda each: each.key):
        given = min(team.tokens, left * team.weight // weights)
        left -= given
        weights -= team.weight
        for holder, tokens in team.uses:
            share = given * tokens // team.tokens if team.tokens else 0
            fair[holder] += share
            spare -= share
    for index, holder in enumerate(order):
        fair[holder] += spare // len(order) + (index < spare % len(order))
    return fair


def _scaled(holder: str, record: Record) -> list[TeamUse]:
    """Return the record's teams with their tokens scaled to its demand, which exceeds present use by the headroom for
    coming requests.
    """
    tokens = sum(use.tokens for use in record.teams)
    if not tokens:
        return [TeamUse(holder, 1000, record.demand)]
    return [TeamUse(use.team, use.weight, use.tokens * record.demand // tokens) for use in record.teams]


def divided(records: Mapping[str, Record], me: str, capacity: int, most: int) -> Part:
    """Return the part of `me`, which knows of that capacity and wants no more than `most`. Mirrors divide.lua."""
    held, whole = records[me].held, agreed(records, capacity)
    part = min(parts(records, whole)[me], most)
    if part <= held:
        return Part(part, held, whole)
    others = sum(record.held for holder, record in records.items() if holder != me)
    part = max(held, min(part, whole - others))
    return Part(part, part, whole)


class _Share:
    """The part of one queue that belongs to this process."""

    __slots__ = ("config", "is_given_up", "limit", "whole")

    def __init__(self, config: QueueConfig, limit: int) -> None:
        self.config = config
        self.limit = limit
        self.whole = config.tokens_in_flight
        """Tokens that all processes divide, as Redis said last."""
        self.is_given_up = False
        """True once the queue is no longer configured; one added later under the same name gets a new share."""


class Capacity:
    """The parts of all queues that belong to this process. Must be made before the link is started."""

    def __init__(self, live: Callable[[], int], link: Link | None = None, *, clock: Callable[[], float]) -> None:
        """`live` returns the number of processes, as last counted."""
        self._live = live
        self._link = link
        self._clock = clock
        self._shares: dict[str, _Share] = {}
        self._use: Callable[[str], Use] = _no_use
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
        """True while Redis divides by demand, so that asking again may give more."""
        return self._by_demand

    def watch(self, use: Callable[[str], Use], changed: Callable[[], None]) -> None:
        """Register callbacks: `use(name)` reports a queue's use when its part is asked for; `changed()` follows
        changed parts.
        """
        self._use = use
        self._changed = changed

    def adopt(self, configs: Mapping[str, QueueConfig]) -> None:
        """Adopt a changed configuration. A new queue starts with nothing while Redis divides; `beat` asks for its
        part.
        """
        old = self._shares
        self._shares = {}
        for name, config in configs.items():
            known = old.get(name)
            if known is None:
                known = _Share(config, 0 if self._by_demand else self._equal(config))
            known.config = config
            if self._by_demand:
                known.limit = min(known.limit, config.tokens_in_flight)
            else:
                known.limit, known.whole = self._equal(config), config.tokens_in_flight
            self._shares[name] = known
        for name in old.keys() - configs.keys():
            self._release_part(name, old[name])

    def room(self, name: str) -> FreeCapacity:
        """Return the capacity that the queue may use here."""
        share = self._shares[name]
        whole = share.config.tokens_in_flight
        requests = share.config.requests_in_flight
        if requests is not None and share.limit < whole:
            requests = max(1, requests * share.limit // whole)
        # No other process has anything in flight when the whole capacity is ours. Without Redis that is not known.
        alone = not self._by_demand or share.limit >= min(whole, share.whole)
        return FreeCapacity(share.limit, requests, alone=alone, usual=self._equal(share.config))

    async def beat(self) -> None:
        """Ask for the parts of all queues concurrently, in one round trip."""
        if not self._by_demand or self._link is None:
            self._equal_parts()
            return
        with contextlib.suppress(SharedStateUnavailable):
            await self._refresh_parts(self._link)
            self._changed()

    def _release_part(self, name: str, share: _Share) -> None:
        """Release a removed queue's part. Requests still in flight there end uncounted."""
        share.is_given_up = True
        link = self._link
        if link is not None and self._by_demand:
            link.tell(_DIVIDE, _keys(link, name), (link.holder, share.config.tokens_in_flight, 0, 0, 0, 0, 0, ""))

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
        """Register the requests in flight under the new holder; nothing starts until then."""
        self._epoch += 1
        for name, share in self._shares.items():
            share.limit = min(share.limit, self._use(name).in_flight)
        self._changed()
        self._settled_at = self._clock() + _SETTLE_S
        try:
            await self._refresh_parts(link)
        except BaseException:
            self._equal_parts()
            raise
        self._changed()

    def _usable(self) -> None:
        self._by_demand = True

    async def _refresh_parts(self, link: ScriptRunner) -> None:
        asked = [self._refresh_part(link, name, share, self._epoch) for name, share in self._shares.items()]
        for outcome in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _refresh_part(self, link: ScriptRunner, name: str, share: _Share, epoch: int) -> None:
        # A part that shrinks is given back by asking once more, so that others need not wait for the next beat.
        if await self._request_part(link, name, share, epoch) and not share.is_given_up:
            await self._request_part(link, name, share, epoch)

    async def _request_part(self, link: ScriptRunner, name: str, share: _Share, epoch: int) -> bool:
        """Ask for one part. Return True when it shrank below the tokens held. The answer of a lost link is ignored."""
        use, whole = self._use(name), share.config.tokens_in_flight
        held = max(share.limit, use.in_flight)
        most = self._equal(share.config) if self._clock() < self._settled_at else whole
        asked = record_of(use, whole, held, 0)
        teams = ";".join(f"{each.team},{each.weight},{each.tokens}" for each in asked.teams)
        given: list[int] = await link.call(
            _DIVIDE,
            _keys(link, name),
            (link.holder, whole, asked.demand, held, asked.large, round(use.waited_s * 1000), most, teams),
        )
        if epoch != self._epoch:
            return False
        share.limit, share.whole = given
        return max(share.limit, self._use(name).in_flight) < held


def _keys(link: ScriptRunner, name: str) -> tuple[str, str, str]:
    return f"{link.prefix}queue:{name}", f"{link.prefix}holders", f"{link.prefix}queue:{name}:teams"


NOTHING: Final = Use(in_flight=0, wanted=0, large=0, waited_s=0.0)


def _no_use(name: str) -> Use:  # noqa: ARG001 - before somebody watches, nothing is in flight
    return NOTHING
