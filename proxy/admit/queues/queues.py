"""Queues before our own targets: admits, delays or refuses requests by the targets' capacity.

A request that fits starts without waiting for anything. A waiting one waits on a future; nothing runs for it until its
turn.
"""

import asyncio
import contextlib
import heapq
import logging
import random
import zlib
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from proxy.admit.queues.capacity import MOST_TEAMS, NOTHING, REST, Capacity, TeamUse, Use
from proxy.admit.queues.fair_queue import Entry, FairQueue, FreeCapacity, TeamTokens
from proxy.admit.queues.queue_item import NoRoom, QueueItem, QueuePermit, QueueSnapshot, QueueState, QueueWait, Why
from proxy.admit.queues.queues_config import QueueConfig, queue_of_target
from proxy.admit.queues.waiting import DrainRate, predicted_wait_s
from proxy.errors import Draining, Refused

_log: Final = logging.getLogger(__name__)
BEAT_S: Final = 0.25
_SOONEST_S: Final = 0.05
"""The least seconds between two beats, when room that other processes may have released is wanted at once."""
_GRACE_S: Final = 0.001
"""The delay added to timers, as one that fires early would find nothing due."""
_RETRY_LEAST_S: Final = 0.25
_RETRY_MOST_S: Final = 60.0
_FOR_THE_PATIENT: Final = (
    " `x-request-timeout-ms` tells that you can wait longer; work that nobody waits for is sent with `x-tier: batch`."
)
_ANYBODY: Final = QueueItem(team_id="", weight=1.0, tier="interactive", priority=0, tokens=1, start_by=float("inf"))


class Handle(Protocol):
    """A timer that can be cancelled."""

    def cancel(self) -> None: ...


Alarm = Callable[[float, Callable[[], None]], Handle]
"""The function that schedules a callback after a delay in seconds."""


ShutFor = Callable[[QueueConfig], float | None]
"""Seconds until the targets behind a queue take any request, as far as known; None while they do."""


class QueueObserver:
    """A receiver of the queues' counts and states; this base class ignores them. Queue names are configured, so they
    are few.
    """

    def set_queue(self, state: QueueState) -> None: ...

    def observe_queue_wait(self, queue: str, tier: str, seconds: float) -> None: ...

    def count_queue_refusal(self, queue: str, why: Why) -> None: ...

    def forget_queue(self, queue: str) -> None: ...


class _NoQueue:
    """The permit of a request for a target without a queue."""

    @property
    def waited_s(self) -> float:
        return 0.0

    def release(self, used_tokens: int | None = None) -> None:
        pass


NO_QUEUE: Final[QueuePermit] = _NoQueue()


class Place(Entry):
    """A request's place in one queue, and its permit once it runs."""

    __slots__ = ("future", "queue")

    def __init__(self, queue: "Queue", work: QueueItem, now: float) -> None:
        super().__init__(work, now, min(work.start_by, now + queue.config.max_wait_s.of(work.tier)))
        self.queue = queue
        self.future: asyncio.Future[Refused | None] | None = None

    @property
    def waited_s(self) -> float:
        return 0.0 if self.started_at is None else self.started_at - self.arrived_at

    def release(self, used_tokens: int | None = None) -> None:
        """End the running request. Only the first call counts."""
        if self.state == "running":
            self.queue.ended(self, used_tokens)

    def wake(self, refused: Refused | None) -> None:
        """Resolve the wait: the turn has come (None), or the request was refused."""
        if self.future is not None and not self.future.done():
            # As a result: an error that a cancelled caller never looks at would be logged as lost.
            self.future.set_result(refused)


class Queue:
    """A queue that decides on every event, and wakes the requests concerned."""

    def __init__(
        self,
        name: str,
        config: QueueConfig,
        room: FreeCapacity,
        *,
        clock: Callable[[], float],
        observer: QueueObserver,
        jitter: Callable[[], float],
        alarm: Alarm,
        starved: Callable[[], None],
        shut_s: ShutFor = lambda _config: None,
    ) -> None:
        self.name = name
        self.room = room
        self.fair = FairQueue(config)
        self.rate = DrainRate(clock())
        self._clock = clock
        self._observer = observer
        self._jitter = jitter
        self._alarm = alarm
        self._starved = starved
        self._shut_s = shut_s
        self._timer: Handle | None = None
        self._timer_at = float("inf")
        self._peak = 0
        self._blocked = 0
        """The arrival number of the entry that room gathers for; 0 for none."""
        self._blocked_at = 0.0

    @property
    def config(self) -> QueueConfig:
        return self.fair.config

    def begin(self, place: Place) -> bool:
        """Try to start the request at once. Raises NoRoom when its latest start has passed."""
        if place.due_at < place.arrived_at:
            raise self._no_room("late", place.work)
        if self._shut_s(self.config) is not None:
            return False
        if not self.fair.start_now(place, place.arrived_at, self.room):
            return False
        self._started(place)
        return True

    def join(self, place: Place) -> None:
        """Add the request to the line, where it may start at once. Raises NoRoom, after which it has left no trace."""
        now = place.arrived_at
        self._advance(now)
        wait_s = self._predicted_s(place.work)
        self.fair.join(place, now)
        self._start_next(now)
        if place.state == "running":
            return
        why: Why | None = None
        if now + wait_s > place.due_at:
            self.fair.remove(place)
            why = "late"
        for entry in self.fair.shed(place):
            if entry.number == place.number:
                why = "full"
            else:
                self._refuse(entry, "shed")
        # The others may have waited behind the one that left.
        self._start_next(now)
        self._set_timer(now)
        if why is not None:
            raise self._no_room(why, place.work, wait_s)

    def try_start(self, place: Place) -> None:
        """Start the request if that is possible without waiting. Raises NoRoom otherwise."""
        if self.begin(place):
            return
        self._advance(place.arrived_at)
        self.fair.join(place, place.arrived_at)
        self._start_next(place.arrived_at)
        if place.state != "running":
            self.fair.remove(place)
            self._start_next(place.arrived_at)
            raise self._no_room("full", place.work)

    def ended(self, place: Entry, used_tokens: int | None) -> None:
        """End a running request."""
        now = self._clock()
        self._advance(now)
        if place.started_at is not None:
            self.rate.ended(place.work.tokens, now - place.started_at, busy=self.fair.waiting > 0)
        self.fair.finish(place, used_tokens)
        self._start_next(now)

    def leave(self, place: Entry) -> None:
        """Remove a request whose caller is gone, whether it waits or has just been started."""
        now = self._clock()
        self._advance(now)
        self.fair.remove(place)
        self.fair.finish(place, 0)
        # The others may have waited behind it.
        self._start_next(now)

    def tick(self) -> None:
        """Re-evaluate the queue after time has passed or the capacity changed."""
        now = self._clock()
        self._advance(now)
        self._start_next(now)
        self._set_timer(now)

    def expected(self, work: QueueItem) -> QueueWait:
        """Return the expected wait of work that would come now. The usual case, room at once, takes no prediction."""
        is_open = self._shut_s(self.config) is None
        wait_s = 0.0 if is_open and self.fair.has_room(work, self.room) else self._predicted_s(work)
        return QueueWait(wait_s, self.config.max_wait_s.of(work.tier))

    def use(self) -> Use:
        """Return the present need and, decaying over calls, the recent peak."""
        fair = self.fair
        wanted = max(fair.in_flight_tokens + fair.waiting_tokens, self._peak)
        self._peak = max(fair.in_flight_tokens, self._peak // 2)
        blocked = fair.blocked(self.room) if fair.waiting else None
        number = 0 if blocked is None else blocked.number
        if number != self._blocked:
            self._blocked, self._blocked_at = number, self._clock()
        if blocked is None or blocked.work.tokens <= self.room.tokens:
            large, waited_s = 0, 0.0
        else:
            large, waited_s = blocked.work.tokens, self._clock() - self._blocked_at
        teams = _named(fair.uses())
        return Use(in_flight=fair.in_flight_tokens, wanted=wanted, large=large, waited_s=waited_s, teams=teams)

    def state(self, work: QueueItem | None, wait_s: float | None = None) -> QueueState:
        fair = self.fair
        return QueueState(
            name=self.name,
            waiting=fair.waiting,
            waiting_tokens=fair.waiting_tokens,
            in_flight=fair.in_flight,
            in_flight_tokens=fair.in_flight_tokens,
            capacity_tokens=self.room.tokens,
            predicted_wait_s=self._predicted_s(work or _ANYBODY) if wait_s is None else wait_s,
        )

    def snapshot(self, *, by_demand: bool) -> QueueSnapshot:
        return QueueSnapshot(
            state=self.state(None),
            whole_capacity_tokens=self.config.tokens_in_flight,
            whole_capacity_requests=self.config.requests_in_flight,
            by_demand=by_demand,
            waiting_interactive=self.fair.waiting - self.fair.waiting_batch,
            waiting_batch=self.fair.waiting_batch,
            in_flight_batch=self.fair.in_flight_batch,
            drain_tokens_per_s=self._drain_per_s(),
        )

    def waited_s(self, place: Place) -> float:
        """Return the seconds of a wait that is over. One that ended in no start is observed here, the others when they start."""
        if place.started_at is not None:
            return place.waited_s
        waited_s = self._clock() - place.arrived_at
        self._observer.observe_queue_wait(self.name, place.work.tier, waited_s)
        return waited_s

    def refuse_all(self, refused: Callable[[], Refused]) -> None:
        for entry in self._close():
            entry.state = "gone"
            _wake(entry, refused())

    def let_all_go(self) -> None:
        """Start everything that waits, because the queue is no longer configured."""
        now = self._clock()
        for entry in self._close():
            entry.started_at = now
            self._observer.observe_queue_wait(self.name, entry.work.tier, now - entry.arrived_at)
            _wake(entry, None)

    def _close(self) -> list[Entry]:
        if self._timer is not None:
            self._timer.cancel()
        return self.fair.everything()

    def _advance(self, now: float) -> None:
        """Bring the measured rate up to now and expire overdue entries, before anything changes."""
        self.rate.advance(now, busy=self.fair.waiting > 0)
        for entry in self.fair.expired(now):
            self._refuse(entry, "expired")

    def _start_next(self, now: float) -> None:
        fair = self.fair
        if fair.waiting and self._shut_s(self.config) is not None:
            return
        while fair.waiting:
            entry = fair.take(now, self.room)
            if entry is None:
                if self.room.tokens < fair.config.tokens_in_flight:
                    self._starved()
                return
            self._started(entry)
            _wake(entry, None)

    def _started(self, entry: Entry) -> None:
        self._peak = max(self._peak, self.fair.in_flight_tokens)
        waited_s = 0.0 if entry.started_at is None else entry.started_at - entry.arrived_at
        self._observer.observe_queue_wait(self.name, entry.work.tier, waited_s)

    def _refuse(self, entry: Entry, why: Why) -> None:
        _wake(entry, self._no_room(why, entry.work))

    def _set_timer(self, now: float) -> None:
        """Set the one timer to the earliest latest start."""
        due_at = self.fair.next_due()
        if due_at is None or due_at >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due_at
        self._timer = self._alarm(max(0.0, due_at - now) + _GRACE_S, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_at = float("inf")
        self.tick()

    def _predicted_s(self, work: QueueItem) -> float:
        backlog = self.fair.backlog(work, self._clock(), self.room)
        shut_s = self._shut_s(self.config) or 0.0
        return shut_s + predicted_wait_s(backlog, self._drain_per_s(), self.config.aging_s)

    def _drain_per_s(self) -> float:
        return self.rate.per_s(self.fair.reach(self.room))

    def _no_room(self, why: Why, work: QueueItem, wait_s: float | None = None) -> NoRoom:
        self._observer.count_queue_refusal(self.name, why)
        state = self.state(work, wait_s)
        # Spread out, so that those who were refused together do not come back together.
        again_s = min(max(state.predicted_wait_s, _RETRY_LEAST_S), _RETRY_MOST_S) * (1 + self._jitter() / 2)
        return NoRoom(_refusal_message(why, state, again_s, work), why, state, retry_after_s=again_s)


def _named(uses: list[TeamTokens]) -> tuple[TeamUse, ...]:
    """Return the teams with the most tokens, by checksums of their ids, and the rest as one."""
    largest = heapq.nlargest(MOST_TEAMS, uses, key=lambda use: use.tokens)
    named = [
        TeamUse(f"{zlib.crc32(use.team_id.encode()):08x}", max(1, round(use.weight * 1000)), use.tokens)
        for use in largest
    ]
    if len(uses) > MOST_TEAMS:
        tokens = sum(use.tokens for use in uses) - sum(use.tokens for use in largest)
        weight = sum(use.weight for use in uses) - sum(use.weight for use in largest)
        named.append(TeamUse(REST, max(1, round(weight * 1000)), tokens))
    return tuple(named)


def _wake(entry: Entry, refused: Refused | None) -> None:
    if isinstance(entry, Place):
        entry.wake(refused)


def _refusal_message(why: Why, state: QueueState, again_s: float, work: QueueItem) -> str:
    again = f"Try again in {again_s:.1f} s, or name another model."
    match why:
        case "full":
            return f"The queue `{state.name}` is full: {state.waiting} requests wait here. {again}"
        case "late":
            return (
                f"The wait in the queue `{state.name}` would be about {state.predicted_wait_s:.1f} s, longer than this request "
                f"may wait. {again}{_FOR_THE_PATIENT if work.tier == 'interactive' else ''}"
            )
        case "shed":
            return f"The queue `{state.name}` is full, and more urgent requests needed this one's place. {again}"
        case "expired":
            return f"This request waited in the queue `{state.name}` for as long as it may, and there was no room yet. {again}"


class Queues:
    """All queues of this process."""

    def __init__(
        self,
        configs: Mapping[str, QueueConfig],
        capacity: Capacity,
        clock: Callable[[], float],
        *,
        observer: QueueObserver | None = None,
        jitter: Callable[[], float] = random.random,
        alarm: Alarm | None = None,
        shut_s: ShutFor = lambda _config: None,
    ) -> None:
        self._shut_s = shut_s
        self._capacity = capacity
        self._clock = clock
        self._observer = observer or QueueObserver()
        self._jitter = jitter
        self._alarm = alarm or _loop_alarm
        self._queues: dict[str, Queue] = {}
        self._by_target: dict[str, Queue] = {}
        self._beat_requested = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        capacity.watch(self._use, self._apply_capacity)
        self.adopt(configs)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._queues)

    @property
    def waiting(self) -> int:
        """Requests that wait in this process, in all queues."""
        return sum(queue.fair.waiting for queue in self._queues.values())

    def queue_of(self, target_id: str) -> str | None:
        """Return the name of the queue before a target; None without one."""
        queue = self._by_target.get(target_id)
        return None if queue is None else queue.name

    async def start(self) -> None:
        """Start the regular division of capacity. Without it this process keeps its initial part."""
        await self.beat()
        self._running = asyncio.get_running_loop().create_task(self._run())

    async def aclose(self) -> None:
        """Stop, and refuse waiting requests. Work that should be served first must be awaited before."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
            self._running = None
        for queue in self._queues.values():
            queue.refuse_all(_stopping)

    async def enter(
        self, target_id: str, work: QueueItem, on_wait: Callable[[float], None] | None = None
    ) -> QueuePermit:
        """Wait for a permit. Raises NoRoom. A caller that is cancelled leaves no trace but its wait.

        `on_wait` is called with the seconds of a wait however that ended: in a permit, a refusal or a cancellation.
        """
        queue = self._by_target.get(target_id)
        if queue is None:
            return NO_QUEUE
        place = Place(queue, work, self._clock())
        if queue.begin(place):
            return place
        queue.join(place)
        if place.state == "running":
            return place
        place.future = asyncio.get_running_loop().create_future()
        try:
            refused = await place.future
        except BaseException:
            place.queue.leave(place)
            raise
        finally:
            waited_s = place.queue.waited_s(place)
            if on_wait is not None:
                on_wait(waited_s)
        if refused is not None:
            raise refused
        return place

    def try_enter(self, target_id: str, work: QueueItem) -> QueuePermit:
        """Return a permit without waiting. Raises NoRoom."""
        queue = self._by_target.get(target_id)
        if queue is None:
            return NO_QUEUE
        place = Place(queue, work, self._clock())
        queue.try_start(place)
        return place

    def expected(self, target_id: str, work: QueueItem) -> QueueWait | None:
        """Return the expected wait of work that would come now, and the longest that it may wait; None without a
        queue.
        """
        queue = self._by_target.get(target_id)
        return None if queue is None else queue.expected(work)

    def state(self, name: str, work: QueueItem | None = None) -> QueueState:
        """Return the queue's state in this process, with the predicted wait of `work` or, without it, of a minimal
        interactive request. Raises KeyError.
        """
        return self._queues[name].state(work)

    def snapshot(self, name: str) -> QueueSnapshot:
        """Return a snapshot of the queue in this process. Raises KeyError."""
        return self._queues[name].snapshot(by_demand=self._capacity.by_demand)

    def adopt(self, configs: Mapping[str, QueueConfig]) -> None:
        """Adopt a changed configuration. Running work stays counted in the queue where it started."""
        self._capacity.adopt(configs)
        old = self._queues
        self._queues = {name: self._adopted(name, config, old.get(name)) for name, config in configs.items()}
        self._by_target = {target: self._queues[name] for target, name in queue_of_target(configs).items()}
        for name in old.keys() - configs.keys():
            old[name].let_all_go()
            self._observer.forget_queue(name)
        self._apply_capacity()
        # Ask at once for the parts of new or enlarged queues.
        self._beat_requested.set()

    async def beat(self) -> None:
        """Ask for this process's parts of the capacity, and report the queues' states."""
        await self._capacity.beat()
        for queue in self._queues.values():
            self._observer.set_queue(queue.state(None))

    def _adopted(self, name: str, config: QueueConfig, known: Queue | None) -> Queue:
        if known is not None:
            known.fair.config = config
            return known
        return Queue(
            name,
            config,
            self._capacity.room(name),
            clock=self._clock,
            observer=self._observer,
            jitter=self._jitter,
            alarm=self._alarm,
            starved=self._request_beat,
            shut_s=self._shut_s,
        )

    def _apply_capacity(self) -> None:
        for name, queue in self._queues.items():
            queue.room = self._capacity.room(name)
            queue.tick()

    def _use(self, name: str) -> Use:
        queue = self._queues.get(name)
        return NOTHING if queue is None else queue.use()

    def _request_beat(self) -> None:
        if self._capacity.by_demand:
            self._beat_requested.set()

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                # Without a queue there is nothing to divide.
                async with asyncio.timeout(BEAT_S if self._queues else None):
                    await self._beat_requested.wait()
            self._beat_requested.clear()
            try:
                await self.beat()
            except Exception:  # noqa: BLE001 - without beats this process would be left with too little for good
                _log.exception("the capacity of the queues could not be divided")
            await asyncio.sleep(_SOONEST_S)


def _stopping() -> Refused:
    return Draining("The gateway is stopping; send the request again.")


def _loop_alarm(delay_s: float, callback: Callable[[], None]) -> Handle:
    return asyncio.get_running_loop().call_later(delay_s, callback)
