"""Fair queueing: interactive before batch, teams by weight, and within a team by priority and age.

A pure data structure: every call that depends on time is told it, nothing waits and nothing is called back.

Inside a tier it is start-time fair queueing. Each team has a tag, in tokens by weight; the team with the lowest goes
next and its tag grows by the tokens that its request is expected to use. The tier's virtual time is the highest tag
that was served, and a team that comes back after a pause starts from it, so nobody saves up a claim while away. When a
request ends, the tag is corrected to the tokens used.
"""

import heapq
import math
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

import msgspec

from providers.wire import Priority
from proxy.admit.queues.queue_item import QueueItem
from proxy.admit.queues.queues_config import QueueConfig

_RECENT_S: Final = 60.0
"""Seconds for which a team counts as present, so that room is kept for its share."""
_LEAST_WEIGHT: Final = 1e-3
_PRIORITIES: Final[tuple[Priority, ...]] = (1, 0, -1)
_FRESH_FOR_AGED: Final = 4
"""Tokens of a team's interactive work served per token of its aged batch work while both wait. In one line, a night's
batch would block the team's interactive requests.
"""
_SPARE: Final = 64
_LATELY_S: Final = 10.0
"""The time constant of a team's recent rate: tokens sent this long ago count for a third."""

State = Literal["new", "waiting", "running", "gone"]


class FreeCapacity(msgspec.Struct, frozen=True):
    """The capacity that is available here now."""

    tokens: int
    requests: int | None = None
    alone: bool = True
    """True when a request larger than the capacity may run while nothing else does; otherwise it never could."""
    usual: int = 0
    """Tokens that can be expected in the long run, where the present part is smaller."""


class TeamTokens(NamedTuple):
    """A team's tokens in flight and waiting in one queue."""

    team_id: str
    weight: float
    tokens: int


class Entry:
    """A request in a queue, from before it waits until it has ended."""

    __slots__ = (
        "_aged",
        "arrived_at",
        "counted_from",
        "due_at",
        "flow",
        "number",
        "passed",
        "started_at",
        "state",
        "work",
    )

    def __init__(self, work: QueueItem, arrived_at: float, due_at: float) -> None:
        self.work = work
        self.arrived_at = arrived_at
        self.due_at = due_at
        """The latest start, on the queue's clock."""
        self.counted_from = arrived_at
        """The arrival time that ordering uses; later than the true one for batch work that was promoted."""
        self.started_at: float | None = None
        self.state: State = "new"
        self.passed = 0
        """Tokens of work that overtook this entry while it was first and did not fit."""
        self.number = 0
        """The arrival number, from 1, that identifies a waiting entry."""
        self.flow: _Flow | None = None
        self._aged = False

    @property
    def aged(self) -> bool:
        """True for batch work that has been promoted to interactive."""
        return self._aged

    def age(self, aging_s: float) -> None:
        self._aged = True
        self.counted_from = self.arrived_at + aging_s


class _Line:
    """Waiting entries of one team in one class, by priority and then by age."""

    __slots__ = ("by_priority", "tokens", "tokens_of")

    def __init__(self) -> None:
        # Ordered dictionaries, because entries leave from both ends and from the middle, each in constant time.
        self.by_priority: dict[Priority, OrderedDict[int, Entry]] = {each: OrderedDict() for each in _PRIORITIES}
        self.tokens_of: dict[Priority, int] = dict.fromkeys(_PRIORITIES, 0)
        self.tokens = 0

    def add(self, entry: Entry) -> None:
        self.by_priority[entry.work.priority][entry.number] = entry
        self.tokens_of[entry.work.priority] += entry.work.tokens
        self.tokens += entry.work.tokens

    def remove(self, entry: Entry) -> None:
        del self.by_priority[entry.work.priority][entry.number]
        self.tokens_of[entry.work.priority] -= entry.work.tokens
        self.tokens -= entry.work.tokens

    def head(self, aging_s: float) -> Entry | None:
        """Return the first entry, where one step of priority counts as `aging_s` seconds of age."""
        best: Entry | None = None
        best_key = 0.0
        for priority in _PRIORITIES:
            waiting = self.by_priority[priority]
            if waiting:
                entry = next(iter(waiting.values()))
                key = entry.counted_from - priority * aging_s
                if best is None or key < best_key:
                    best, best_key = entry, key
        return best

    @property
    def count(self) -> int:
        return sum(map(len, self.by_priority.values()))

    def newest(self, priority: Priority) -> Entry | None:
        waiting = self.by_priority[priority]
        return next(reversed(waiting.values())) if waiting else None


class _Flow:
    """The work of one team in one tier."""

    __slots__ = ("_sent", "_sent_at", "aged", "fresh", "lane", "owed_to_aged", "tag", "team", "waiting")

    def __init__(self, team: "_Team", lane: "_Lane") -> None:
        self.team = team
        self.lane = lane
        self.tag = lane.virtual
        """The start tag of the team's next request, in the tier's virtual time."""
        self.fresh = _Line()
        self.aged = _Line()
        self.waiting = 0
        self.owed_to_aged = 0.0
        self._sent = 0.0
        self._sent_at = 0.0

    def came(self, tokens: int, now: float) -> None:
        self._sent = self._sent * math.exp((self._sent_at - now) / _LATELY_S) + tokens
        self._sent_at = now

    def per_s(self, now: float) -> float:
        """Return the tokens per second that the team sent recently."""
        return self._sent * math.exp((self._sent_at - now) / _LATELY_S) / _LATELY_S

    @property
    def tokens(self) -> int:
        return self.fresh.tokens + self.aged.tokens

    def line(self, entry: Entry) -> _Line:
        return self.aged if entry.aged else self.fresh

    def head(self, aging_s: float) -> Entry:
        fresh, aged = self.fresh.head(aging_s), self.aged.head(aging_s)
        if fresh is None or (aged is not None and self.owed_to_aged >= aged.work.tokens):
            assert aged is not None  # noqa: S101  # Only flows that have something waiting are asked.
            return aged
        return fresh

    def served(self, entry: Entry) -> None:
        self.tag += entry.work.tokens / self.team.weight
        if entry.aged:
            self.owed_to_aged = max(0.0, self.owed_to_aged - entry.work.tokens)
        elif self.aged.tokens:
            self.owed_to_aged += entry.work.tokens / _FRESH_FOR_AGED


class _Team:
    """The work of one team in both tiers."""

    __slots__ = ("flows", "in_flight", "running", "seen_at", "team_id", "weight")

    def __init__(self, team_id: str, weight: float, lanes: "tuple[_Lane, _Lane]") -> None:
        self.team_id = team_id
        self.weight = weight
        self.seen_at = 0.0
        self.in_flight = 0
        """Tokens in flight."""
        self.running = 0
        self.flows = (_Flow(self, lanes[0]), _Flow(self, lanes[1]))

    @property
    def burden(self) -> float:
        """Tokens in flight and waiting, divided by the team's weight."""
        return (self.in_flight + self.flows[0].tokens + self.flows[1].tokens) / self.weight

    @property
    def idle(self) -> bool:
        return not (self.running or self.flows[0].waiting or self.flows[1].waiting)

    @property
    def caught_up(self) -> bool:
        """True when the team would start from the virtual time anyway, so that forgetting it loses nothing."""
        return all(flow.tag <= flow.lane.virtual for flow in self.flows)


class _Lane:
    """A tier: its virtual time and the teams with waiting work."""

    __slots__ = ("backlogged", "batch", "highest", "virtual")

    def __init__(self, *, batch: bool) -> None:
        self.batch = batch
        self.virtual = 0.0
        self.highest = 0.0
        """The highest tag given so far."""
        self.backlogged: dict[str, _Flow] = {}

    def next(self) -> _Flow | None:
        return min(self.backlogged.values(), key=_tag, default=None)


def _tag(flow: _Flow) -> float:
    return flow.tag


class CompetingTeam(msgspec.Struct, frozen=True):
    """Another team's effect on the wait of a request that has just come."""

    waiting: float
    per_s: float
    """Tokens per second that the team sends, by its recent rate."""
    most: float
    """The most of its tokens that fairness serves before the request."""


class WorkAhead(msgspec.Struct, frozen=True):
    """The work that is served before a request that has just come."""

    own: float
    """Tokens of the request's own team."""
    rivals: list[CompetingTeam]


class Backlog(msgspec.Struct, frozen=True):
    """The input of the fluid model of waiting."""

    short: float
    """Tokens that must end before the request would fit if it were first. Negative when there is room."""
    ahead: WorkAhead
    aged: WorkAhead | None
    """The work ahead once the request has been promoted; None for an interactive request."""


class FairQueue:
    """The waiting and running work of one queue."""

    def __init__(self, config: QueueConfig) -> None:
        self.config = config
        self.waiting = 0
        self.waiting_tokens = 0
        self.in_flight = 0
        self.in_flight_tokens = 0
        self.in_flight_batch = 0
        """Requests of the tier `batch` among those in flight."""
        self._lanes = (_Lane(batch=False), _Lane(batch=True))
        self._teams: OrderedDict[str, _Team] = OrderedDict()
        """Teams in the order in which they were last seen, latest last."""
        self._weights = 0.0
        # Heaps by time. What no longer waits stays in them until its time, or until it is more than what waits.
        self._unaged: list[tuple[float, int, Entry]] = []
        self._dues: list[tuple[float, int, Entry]] = []
        self._last_number = 0

    # Operations.

    def start_now(self, entry: Entry, now: float, room: FreeCapacity) -> bool:
        """Start the entry if there is room and nothing waits; otherwise return False, and it must join."""
        if self.waiting:
            return False
        flow = self._flow(entry.work, now)
        if not self._fits(entry.work, flow.team, room, batch=flow.lane.batch):
            return False
        flow.came(entry.work.tokens, now)
        flow.tag = max(flow.tag, flow.lane.virtual)
        entry.flow = flow
        self._run(entry, flow, now)
        return True

    def join(self, entry: Entry, now: float) -> None:
        """Add the entry to its line. The limits may be exceeded until `shed`, because `take` may start it at once."""
        flow = self._flow(entry.work, now)
        self._last_number += 1
        entry.number = self._last_number
        flow.came(entry.work.tokens, now)
        self._put(entry, flow)
        if entry.due_at < math.inf:
            self._dues = _compacted(self._dues, self.waiting)
            heapq.heappush(self._dues, (entry.due_at, entry.number, entry))
        if flow.lane.batch:
            self._unaged = _compacted(self._unaged, self.waiting)
            heapq.heappush(self._unaged, (entry.arrived_at, entry.number, entry))

    def shed(self, newcomer: Entry) -> tuple[Entry, ...]:
        """Remove entries beyond the limits, lowest first, and return them. When the newcomer is the lowest, only it
        is removed.
        """
        gone: list[Entry] = []
        while self._over_limits():
            victim = self._first_to_shed()
            if victim is None:
                break
            self._unlink(victim)
            if victim.number == newcomer.number:
                # The entries below it would not make enough room. Each was the newest of its line, so backwards restores it.
                for entry in reversed(gone):
                    assert entry.flow is not None  # noqa: S101  # It waited.
                    self._put(entry, entry.flow)
                newcomer.state = "gone"
                return (newcomer,)
            gone.append(victim)
        for entry in gone:
            entry.state = "gone"
        return tuple(gone)

    def take(self, now: float, room: FreeCapacity) -> Entry | None:
        """Start and return the next entry; None while nothing fits. The fair next may be too large for the room that
        is free. Were it passed over until the room happens to be there, a busy queue would never run it; were nothing
        allowed to pass, a gap would stay idle for as long as the room takes to gather. So others may pass it, as far
        as they fit, up to as many tokens as it has itself (or all that may be in flight, where that is less): at the
        worst that doubles its wait for room. Then the room is kept for it.
        """
        self._promote(now)
        first = self._first_flow()
        if first is None:
            return None
        entry = first.head(self.config.aging_s)
        if not self._fits(entry.work, first.team, room, batch=first.lane.batch):
            passing = self._overtaking(entry, room)
            if passing is None:
                return None
            if not self._may_overtake(passing, entry, room):
                entry.passed += passing.work.tokens
            entry = passing
        flow = entry.flow
        assert flow is not None  # noqa: S101  # It waits.
        self._unlink(entry)
        self._run(entry, flow, now)
        return entry

    def remove(self, entry: Entry) -> None:
        """Remove an entry whose caller is gone. No effect unless it waits."""
        if entry.state == "waiting":
            self._unlink(entry)
            entry.state = "gone"

    def finish(self, entry: Entry, used_tokens: int | None = None) -> None:
        """End a running entry and correct its team's tag by the tokens used. Only the first call counts."""
        if entry.state != "running":
            return
        entry.state = "gone"
        flow, tokens = entry.flow, entry.work.tokens
        assert flow is not None  # noqa: S101  # It ran.
        self.in_flight -= 1
        self.in_flight_batch -= entry.work.tier == "batch"
        self.in_flight_tokens -= tokens
        flow.team.running -= 1
        flow.team.in_flight -= tokens
        if used_tokens is not None:
            flow.tag += (used_tokens - tokens) / flow.team.weight
        if not (self.in_flight or self.waiting):
            # After a pause of the whole queue all teams start from one line again.
            for lane in self._lanes:
                lane.virtual = lane.highest

    def expired(self, now: float) -> list[Entry]:
        """Remove and return the entries that are past their latest start."""
        gone: list[Entry] = []
        while self._dues and (self._dues[0][0] < now or self._dues[0][2].state != "waiting"):
            entry = heapq.heappop(self._dues)[2]
            if entry.state == "waiting":
                self.remove(entry)
                gone.append(entry)
        return gone

    def next_due(self) -> float | None:
        """Return the next time at which `expired` has something to remove."""
        while self._dues and self._dues[0][2].state != "waiting":
            heapq.heappop(self._dues)
        return self._dues[0][0] if self._dues else None

    def everything(self) -> list[Entry]:
        """Remove and return all waiting entries, oldest first."""
        gone = sorted((entry for lane in self._lanes for entry in _all_of(lane)), key=_number)
        for entry in gone:
            self.remove(entry)
        return gone

    # Queries.

    @property
    def teams(self) -> int:
        """The number of teams remembered."""
        return len(self._teams)

    def uses(self) -> list[TeamTokens]:
        """Return the tokens in flight and waiting of each team that has any here."""
        found = []
        for team in self._teams.values():
            tokens = team.in_flight + team.flows[0].tokens + team.flows[1].tokens
            if tokens:
                found.append(TeamTokens(team.team_id, team.weight, tokens))
        return found

    @property
    def waiting_batch(self) -> int:
        """The number of waiting batch requests, promoted ones included."""
        interactive, batch = (lane.backlogged.values() for lane in self._lanes)
        return sum(flow.waiting for flow in batch) + sum(flow.aged.count for flow in interactive)

    def blocked(self, room: FreeCapacity) -> Entry | None:
        """Return the first entry when room must gather for it: it does not fit, and nothing may overtake it."""
        first = self._first_flow()
        if first is None:
            return None
        entry = first.head(self.config.aging_s)
        if self._fits(entry.work, first.team, room, batch=first.lane.batch):
            return None
        left = self._overtaking_left(entry, room)
        heads = [flow.head(self.config.aging_s) for lane in self._lanes for flow in lane.backlogged.values()]
        others = [each for each in heads if each.number != entry.number]
        passes = any(each.work.tokens <= left or self._may_overtake(each, entry, room) for each in others)
        return None if passes else entry

    def has_room(self, work: QueueItem, room: FreeCapacity) -> bool:
        """Return True when work that would come now would start at once."""
        return not self.waiting and self._fits(work, self._teams.get(work.team_id), room, batch=work.tier == "batch")

    def backlog(self, work: QueueItem, now: float, room: FreeCapacity) -> Backlog:
        """Return the work before a request that would come now."""
        batch = work.tier == "batch"
        limit = self._limit(work, self._teams.get(work.team_id), room, batch=batch)
        ahead = self._ahead(work, now, batch=batch)
        aged: WorkAhead | None = None
        if batch:
            aged = self._ahead(work, now, batch=False)
            first = (team.flows[0] for team in self._teams.values())
            ahead.rivals.extend(CompetingTeam(flow.tokens, flow.per_s(now), math.inf) for flow in first)
        # An item larger than the room runs alone, so it waits for all running work to end and no more.
        short = self.in_flight_tokens + min(work.tokens - limit, 0)
        if room.requests is not None and self.in_flight:
            short = max(short, (self.in_flight + 1 - room.requests) * self.in_flight_tokens / self.in_flight)
        return Backlog(short, ahead, aged)

    def reach(self, room: FreeCapacity) -> float:
        """Return the tokens in flight at full capacity, given the limits on tokens and, at the present mean size, on
        requests.
        """
        tokens = max(room.tokens, room.usual)
        if room.requests is None or not self.in_flight:
            return tokens
        return min(tokens, room.requests * self.in_flight_tokens / self.in_flight)

    def _ahead(self, work: QueueItem, now: float, *, batch: bool) -> WorkAhead:
        """Estimate the work ahead: teams are served side by side, by weight, up to the tag that this request would
        get.
        """
        virtual = self._lanes[batch].virtual
        team = self._teams.get(work.team_id)
        mine, tag = 0.0, virtual
        if team is not None:
            own = team.flows[batch]
            mine = float(sum(own.fresh.tokens_of[each] for each in _PRIORITIES if each >= work.priority))
            mine += min(own.aged.tokens, mine / _FRESH_FOR_AGED)
            tag = max(tag, own.tag) + mine / max(work.weight, _LEAST_WEIGHT)
        rivals: list[CompetingTeam] = []
        for other in self._teams.values():
            if other.team_id == work.team_id:
                continue
            flow = other.flows[batch]
            most = (tag - (flow.tag if flow.waiting else max(flow.tag, virtual))) * other.weight
            if most > 0:
                rivals.append(CompetingTeam(flow.tokens, flow.per_s(now), most))
        return WorkAhead(mine, rivals)

    # Bookkeeping.

    def _flow(self, work: QueueItem, now: float) -> _Flow:
        team = self._teams.get(work.team_id)
        weight = max(work.weight, _LEAST_WEIGHT)
        if team is None:
            team = self._teams[work.team_id] = _Team(work.team_id, weight, self._lanes)
            self._weights += weight
        else:
            self._teams.move_to_end(work.team_id)
            if team.weight != weight:
                self._weights += weight - team.weight
                team.weight = weight
        team.seen_at = now
        self._evict_idle(now)
        return team.flows[work.tier == "batch"]

    def _evict_idle(self, now: float) -> None:
        """Drop idle teams, looking at two per call at most so that no call pays for many."""
        for _ in range(2):
            team_id, team = next(iter(self._teams.items()))
            if team.seen_at + _RECENT_S > now:
                return
            if team.idle and team.caught_up:
                del self._teams[team_id]
                # Summed anew: a running difference would drift.
                self._weights = sum(each.weight for each in self._teams.values())
            else:
                team.seen_at = now
                self._teams.move_to_end(team_id)

    def _put(self, entry: Entry, flow: _Flow) -> None:
        if not flow.waiting:
            flow.tag = max(flow.tag, flow.lane.virtual)
            flow.lane.backlogged[flow.team.team_id] = flow
        flow.line(entry).add(entry)
        flow.waiting += 1
        entry.flow = flow
        entry.state = "waiting"
        self.waiting += 1
        self.waiting_tokens += entry.work.tokens

    def _unlink(self, entry: Entry) -> None:
        flow = entry.flow
        assert flow is not None  # noqa: S101  # It waits.
        line = flow.line(entry)
        line.remove(entry)
        flow.waiting -= 1
        if not flow.waiting:
            del flow.lane.backlogged[flow.team.team_id]
        if not flow.aged.tokens:
            flow.owed_to_aged = 0.0
        self.waiting -= 1
        self.waiting_tokens -= entry.work.tokens

    def _run(self, entry: Entry, flow: _Flow, now: float) -> None:
        lane = flow.lane
        lane.virtual = max(lane.virtual, flow.tag)
        flow.served(entry)
        lane.highest = max(lane.highest, flow.tag)
        entry.state = "running"
        entry.started_at = now
        self.in_flight += 1
        self.in_flight_batch += entry.work.tier == "batch"
        self.in_flight_tokens += entry.work.tokens
        flow.team.running += 1
        flow.team.in_flight += entry.work.tokens

    def _promote(self, now: float) -> None:
        """Move batch work that has waited for `aging_s` to its team's line in the interactive tier."""
        aging_s = self.config.aging_s
        while self._unaged and self._unaged[0][0] + aging_s <= now:
            entry = heapq.heappop(self._unaged)[2]
            if entry.state == "waiting":
                flow = entry.flow
                assert flow is not None  # noqa: S101  # It waits.
                self._unlink(entry)
                entry.age(aging_s)
                self._put(entry, flow.team.flows[0])

    def _first_flow(self) -> _Flow | None:
        return self._lanes[0].next() or self._lanes[1].next()

    def _overtaking(self, held: Entry, room: FreeCapacity) -> Entry | None:
        """Return the first entry by fairness that fits now and may overtake the held one."""
        left = self._overtaking_left(held, room)
        for lane in self._lanes:
            best: Entry | None = None
            best_tag = 0.0
            for flow in lane.backlogged.values():
                if best is not None and flow.tag >= best_tag:
                    continue
                entry = flow.head(self.config.aging_s)
                if entry.number == held.number or not self._fits(entry.work, flow.team, room, batch=flow.lane.batch):
                    continue
                if entry.work.tokens <= left or self._may_overtake(entry, held, room):
                    best, best_tag = entry, flow.tag
            if best is not None:
                return best
        return None

    def _may_overtake(self, entry: Entry, held: Entry, room: FreeCapacity) -> bool:
        """Return True when an entry may overtake a held one that is kept out by others' shares only, not by lack of
        room. Its team must not be far ahead of the held one's, as a share also counts past use.
        """
        flow, other = entry.flow, held.flow
        if flow is None or other is None or self.in_flight_tokens + held.work.tokens > room.tokens:
            return False
        return flow.tag <= other.tag + room.tokens // 4

    @staticmethod
    def _overtaking_left(held: Entry, room: FreeCapacity) -> int:
        return min(held.work.tokens, room.tokens) - held.passed

    def _fits(self, work: QueueItem, team: _Team | None, room: FreeCapacity, *, batch: bool) -> bool:
        if not self.in_flight:
            return room.alone or work.tokens <= room.tokens
        if room.requests is not None and self.in_flight >= room.requests:
            return False
        return self.in_flight_tokens + work.tokens <= self._limit(work, team, room, batch=batch)

    def _limit(self, work: QueueItem, team: _Team | None, room: FreeCapacity, *, batch: bool) -> float:
        """Return the tokens that may be in flight together with this work: less for batch, and for a team above its
        share. The reserve grows with the team's excess, up to twice its share. A step would hit teams that use just
        about all of theirs, and leave room unused.
        """
        weight = max(work.weight, _LEAST_WEIGHT)
        mine, weights = (0, self._weights + weight) if team is None else (team.in_flight, self._weights)
        share = room.tokens * weight / weights
        above = (mine + work.tokens) / share - 1 if share else 1.0
        kept = self.config.light_share * min(max(above, 0.0), 1.0)
        if batch:
            kept += self.config.interactive_share
        return room.tokens * (1 - kept)

    def _over_limits(self) -> bool:
        return self.waiting > self.config.max_waiting or self.waiting_tokens > self.config.most_waiting_tokens

    def _first_to_shed(self) -> Entry | None:
        """Return the entry to shed first: batch before interactive, low priority before the rest, then the least
        urgent and newest of the team furthest above its share. A high priority ranks only within its own team.
        """
        for lane in reversed(self._lanes):
            flows = lane.backlogged.values()
            low = [entry for flow in flows for entry in _newest(flow, -1)]
            found = low or [entry for flow in flows for entry in _least_urgent(flow)]
            if found:
                return max(found, key=_burden)
        return None


def _compacted(heap: list[tuple[float, int, Entry]], waiting: int) -> list[tuple[float, int, Entry]]:
    if len(heap) <= 2 * waiting + _SPARE:
        return heap
    kept = [each for each in heap if each[2].state == "waiting"]
    heapq.heapify(kept)
    return kept


def _newest(flow: _Flow, priority: Priority) -> Iterator[Entry]:
    for line in (flow.fresh, flow.aged):
        entry = line.newest(priority)
        if entry is not None:
            yield entry


def _least_urgent(flow: _Flow) -> list[Entry]:
    return next((found for each in reversed(_PRIORITIES) if (found := list(_newest(flow, each)))), [])


def _burden(entry: Entry) -> tuple[float, int]:
    assert entry.flow is not None  # noqa: S101  # It waits.
    return entry.flow.team.burden, entry.number


def _all_of(lane: _Lane) -> Iterator[Entry]:
    for flow in lane.backlogged.values():
        for line in (flow.fresh, flow.aged):
            for waiting in line.by_priority.values():
                yield from waiting.values()


def _number(entry: Entry) -> int:
    return entry.number
