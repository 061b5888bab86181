"""A queue before machines whose time is simulated: nothing here waits, and the same seed gives the same course."""

import heapq
import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator

import msgspec

from proxy.admit.queues.fair_queue import FreeCapacity
from proxy.admit.queues.queue_item import NoRoom, QueueItem
from proxy.admit.queues.queues import Place, Queue, QueueObserver
from proxy.admit.queues.queues_config import QueueConfig
from proxy.errors import Refused


class Request(msgspec.Struct, kw_only=True):
    """One that comes, and what became of it."""

    at: float
    work: QueueItem
    stay_s: float
    """How long it runs, once it was started."""
    used: int | None = None
    """What it truly uses; None is what was expected."""
    leaves_at: float | None = None
    """Its caller hangs up, unless it runs by then."""
    predicted_s: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    refused: NoRoom | None = None
    refused_at: float | None = None

    @property
    def waited_s(self) -> float:
        assert self.started_at is not None
        return self.started_at - self.at

    @property
    def latency_s(self) -> float:
        assert self.ended_at is not None
        return self.ended_at - self.at


class _Seat(Place):
    __slots__ = ("request", "world")

    def wake(self, refused: Refused | None) -> None:
        self.world.woken(self, refused)

    world: "World"
    request: Request


class _Timer:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class World:
    """One queue of one process, its requests and its clock."""

    def __init__(self, config: QueueConfig) -> None:
        self.now = 0.0
        self.most_in_flight = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.queue = Queue(
            "own",
            config,
            FreeCapacity(config.tokens_in_flight, config.requests_in_flight),
            clock=lambda: self.now,
            observer=QueueObserver(),
            jitter=lambda: 0.0,
            alarm=self._alarm,
            starved=lambda: None,
        )

    def run(self, requests: Iterable[Request], *, until: float = math.inf) -> None:
        for request in requests:
            self._later(request.at, lambda request=request: self._come(request))  # type: ignore[misc]
        while self._events and self._events[0][0] <= until:
            self.now, _, event = heapq.heappop(self._events)
            event()

    def woken(self, seat: _Seat, refused: Refused | None) -> None:
        if refused is None:
            self._start(seat)
        else:
            assert isinstance(refused, NoRoom)
            seat.request.refused, seat.request.refused_at = refused, self.now

    def _come(self, request: Request) -> None:
        seat = _Seat(self.queue, request.work, self.now)
        seat.world, seat.request = self, request
        try:
            if self.queue.begin(seat):
                self._start(seat)
                return
            request.predicted_s = self.queue.state(request.work).predicted_wait_s
            self.queue.join(seat)
        except NoRoom as refused:
            request.refused, request.refused_at = refused, self.now
            return
        if request.leaves_at is not None and seat.state == "waiting":
            self._later(request.leaves_at, lambda: self.queue.leave(seat) if seat.state == "waiting" else None)

    def _start(self, seat: _Seat) -> None:
        request = seat.request
        assert request.started_at is None
        request.started_at = self.now
        self.most_in_flight = max(self.most_in_flight, self.queue.fair.in_flight_tokens)
        self._later(self.now + request.stay_s, lambda: self._end(seat))

    def _end(self, seat: _Seat) -> None:
        seat.request.ended_at = self.now
        seat.release(seat.request.used)

    def _later(self, at: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at, next(self._numbers), event))

    def _alarm(self, delay_s: float, callback: Callable[[], None]) -> _Timer:
        timer = _Timer()
        self._later(self.now + delay_s, lambda: None if timer.cancelled else callback())
        return timer


MEAN_TOKENS = 1_000.0
MEAN_STAY_S = 2.0
_SPREAD = 0.5


def lognormal(rng: random.Random, mean: float) -> float:
    return rng.lognormvariate(math.log(mean) - _SPREAD**2 / 2, _SPREAD)


def stream(
    rng: random.Random,
    team_id: str,
    tokens_per_s: float,
    *,
    until: float,
    weight: float = 1.0,
    tier: str = "interactive",
    priority: int = 0,
    patience_s: float = math.inf,
) -> Iterator[Request]:
    """Requests of one team at random moments, `tokens_per_s` in the mean, of random sizes that run for random times."""
    at = 0.0
    while True:
        at += rng.expovariate(tokens_per_s / MEAN_TOKENS)
        if at > until:
            return
        work = QueueItem(
            team_id=team_id,
            weight=weight,
            tier=tier,  # type: ignore[arg-type]
            priority=priority,  # type: ignore[arg-type]
            tokens=max(1, round(lognormal(rng, MEAN_TOKENS))),
            start_by=at + patience_s,
        )
        yield Request(at=at, work=work, stay_s=lognormal(rng, MEAN_STAY_S))


def rate_of(config: QueueConfig) -> float:
    """Tokens a second that go through when all of it is used."""
    return config.tokens_in_flight / MEAN_STAY_S


def quantile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
