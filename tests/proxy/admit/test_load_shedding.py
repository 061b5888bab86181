"""The guard of the process: a simulated event loop that is given more than it can do."""

import asyncio
import heapq
import json
import random
from collections import deque
from collections.abc import Callable

import pytest

from proxy.admit.load_shedding import InFlightWindow, OverloadGuard
from proxy.errors import error_reply
from proxy.http.accept_queue import AcceptWait
from tests.proxy.exchanges import HeardExchange

_TICK_S = 0.025
_MAX_LAG_S = 0.25
_COST_S = 0.002
_CAPACITY = 1 / _COST_S
_REFUSAL_S = _COST_S / 20
_STEPS = 20
"""As many turns of the loop as a request takes in truth."""
_AT_ONCE = {False: 16, True: 128}
_USELESS_S = 1.0


class Loop:
    """An event loop in simulated time: what is ready runs in turns, and so many new connections are accepted in each.

    A request is a few steps that together cost `_COST_S`; before the last it waits for its upstream.
    """

    def __init__(
        self, upstream_s: float, *, batch: float = 0.0, max_lag_s: float = _MAX_LAG_S, at_once: int | None = None
    ) -> None:
        self.now = 0.0
        self.in_flight = 0
        self.offered = 0.0
        self.answers: list[tuple[float, float]] = []
        self.refusals: list[tuple[float, float]] = []
        self.lags: list[tuple[float, float]] = []
        self.come: dict[bool, int] = {False: 0, True: 0}
        self.let_in: dict[bool, int] = {False: 0, True: 0}
        self._own_s = 0.0
        self._upstream_s = upstream_s
        self._batch = batch
        self._rng = random.Random(1)
        self._waiting: list[tuple[float, int, float, int]] = []
        self._count = 0
        self._next_at = 0.0
        self._tick_at = _TICK_S
        self._own_at_tick = 0.0
        self._outside: deque[float] = deque()
        self._accepted = 0
        self._wait = AcceptWait()
        self._at_once = at_once or _AT_ONCE[False]
        self._steady = at_once is not None
        self.guard = OverloadGuard(
            max_lag_s=max_lag_s, in_flight=lambda: self.in_flight, clock=lambda: self.now, rng=self._rng
        )
        self.guard.watch(self)

    def wait_s(self, now: float) -> float:
        """The door's: how long new connections wait."""
        return 0.0 if self._steady else self._wait.seen(len(self._outside), self._accepted, now)

    def open(self, *, wide: bool) -> None:
        """The door's: how many come in at once."""
        if not self._steady:
            self._at_once = _AT_ONCE[wide]

    def run(self, until: float, offered: float) -> None:
        """Turns of the loop until then, with so many arrivals a second."""
        self.offered = offered
        while self.now < until:
            if not self._waiting or self._waiting[0][0] > self.now:
                first = self._waiting[0][0] if self._waiting else until
                comes_at = self.now if self._outside else self._next_at
                self.now = max(self.now, min(first, comes_at, self._tick_at))
            self._turn()

    def burst(self, count: int) -> None:
        """So many connections at once."""
        self._outside += [self.now] * count

    def pause(self, seconds: float) -> None:
        """One slow step."""
        self._spend(seconds)

    def _turn(self) -> None:
        while self._next_at <= self.now:
            self._outside.append(self._next_at)
            self._next_at += self._rng.expovariate(self.offered)
        arrived = [self._outside.popleft() for _ in range(min(len(self._outside), self._at_once))]
        self._accepted += len(arrived)
        ready = []
        while self._waiting and self._waiting[0][0] <= self.now:
            ready.append(heapq.heappop(self._waiting))
        if self._tick_at <= self.now:
            self._measure()
        for at in arrived:
            self._arrive(at)
        for _, _, at, left in ready:
            self._step(at, left)

    def _measure(self) -> None:
        lag_s = self.now - self._tick_at
        self.lags.append((self.now, lag_s))
        self.guard.measured(lag_s, self._own_s - self._own_at_tick, self.now)
        self._own_at_tick = self._own_s
        self._tick_at = self.now + _TICK_S

    def _arrive(self, at: float) -> None:
        batch = self._rng.random() < self._batch
        self.come[batch] += 1
        if not self.guard.admits(batch=batch):
            self._spend(_REFUSAL_S)
            self.refusals.append((self.now, self.now - at))
            return
        self.let_in[batch] += 1
        self.in_flight += 1
        self._step(at, _STEPS)

    def _step(self, at: float, left: int) -> None:
        self._spend(_COST_S / _STEPS)
        if left == 1:
            self.in_flight -= 1
            self.answers.append((self.now, self.now - at))
            return
        self._count += 1
        wait_s = self._upstream_s if left == 2 else 0.0
        heapq.heappush(self._waiting, (self.now + wait_s, self._count, at, left - 1))

    def _spend(self, seconds: float) -> None:
        self._own_s += seconds
        self.now += seconds

    def goodput(self, start: float, end: float) -> float:
        """Answers a second that were not too late."""
        return sum(start <= at < end and took < _USELESS_S for at, took in self.answers) / (end - start)


def _quantile(values: list[tuple[float, float]], start: float, share: float) -> float:
    found = sorted(value for at, value in values if at >= start)
    return found[int(share * (len(found) - 1))]


@pytest.mark.parametrize("upstream_s", [0.02, 0.5])
@pytest.mark.parametrize("times", [1.3, 2.0, 4.0])
def test_what_is_let_in_is_served_in_time_whatever_is_offered(times: float, upstream_s: float) -> None:
    """At twice the capacity 9 in 10 of what can be served is served in time, and refusals take under 50 ms."""
    loop = Loop(upstream_s)
    loop.run(25, times * _CAPACITY)
    refusing = (times - 1) / times * _REFUSAL_S * times * _CAPACITY
    assert loop.goodput(15, 25) >= 0.92 * _CAPACITY * (1 - refusing)
    assert loop.goodput(15, 25) >= 0.9 * _CAPACITY or times > 2
    assert _quantile(loop.refusals, 15, 0.5) < 0.05
    assert _quantile(loop.lags, 15, 0.99) < 0.1


def test_callers_on_kept_connections_overload_it_from_inside() -> None:
    """Nobody waits outside, so the late loop alone tells; then it is the same."""
    loop = Loop(0.02, at_once=10_000)
    loop.run(40, 2 * _CAPACITY)
    assert loop.goodput(30, 40) >= 0.9 * _CAPACITY
    assert _quantile(loop.refusals, 30, 0.99) < 0.05


def test_those_outside_are_told_before_they_have_waited_for_seconds() -> None:
    """New connections wait for a second or so when an overload begins, while the loop itself is in time."""
    loop = Loop(0.02)
    loop.run(5, 0.5 * _CAPACITY)
    loop.run(20, 2 * _CAPACITY)
    assert max(took for _, took in loop.answers) < 2.5
    assert max(took for _, took in loop.refusals) < 2.5
    assert loop.goodput(5, 20) >= 0.8 * _CAPACITY


def test_a_burst_of_new_connections_is_served() -> None:
    """As many at once as half a second's work are no overload, nor is a second's work spread over that second."""
    loop = Loop(0.02)
    loop.run(5, 0.2 * _CAPACITY)
    loop.burst(round(0.5 * _CAPACITY))
    loop.run(10, 0.2 * _CAPACITY)
    loop.run(11, 1.4 * _CAPACITY)
    loop.run(15, 0.2 * _CAPACITY)
    assert not loop.refusals


def test_without_the_guard_everything_melts() -> None:
    """The same load with the guard turned off serves nobody in time, so the test above says something."""
    loop = Loop(0.02, max_lag_s=0)
    loop.run(12, 2 * _CAPACITY)
    assert loop.goodput(6, 12) == 0
    assert not loop.refusals


def test_when_the_load_is_gone_so_is_the_guard() -> None:
    """Within seconds nothing is refused any more and answers are as quick as ever."""
    loop = Loop(0.02)
    loop.run(15, 2 * _CAPACITY)
    loop.run(60, 0.7 * _CAPACITY)
    assert not [at for at, _ in loop.refusals if at > 18]
    assert _quantile(loop.answers, 18, 0.99) < 0.1
    assert loop.goodput(18, 60) >= 0.65 * _CAPACITY


def test_batch_goes_first() -> None:
    """Interactive requests alone fit, so hardly any of them is refused while batch is."""
    loop = Loop(0.02, batch=0.6)
    loop.run(10, 2 * _CAPACITY)
    loop.come, loop.let_in = {False: 0, True: 0}, {False: 0, True: 0}
    loop.run(25, 2 * _CAPACITY)
    assert loop.let_in[False] >= 0.96 * loop.come[False]
    assert loop.let_in[True] <= 0.35 * loop.come[True]
    assert loop.goodput(15, 25) >= 0.9 * _CAPACITY


def test_busy_is_not_overloaded() -> None:
    """At 9 tenths of the capacity, with a slow step of 2 seconds now and then, nobody is refused."""
    loop = Loop(0.02)
    for end in range(5, 30, 5):
        loop.run(end, 0.9 * _CAPACITY)
        loop.pause(0.4)
        loop.run(end + 0.01, 0.9 * _CAPACITY)
    loop.pause(2.0)
    loop.run(35, 0.3 * _CAPACITY)
    assert not loop.refusals


def test_a_long_start_refuses_nobody() -> None:
    """Steps of seconds each with nothing in flight: the first requests come in."""
    loop = Loop(0.02)
    for _ in range(5):
        loop.pause(1.5)
        loop.run(loop.now + 0.05, 20)
    loop.run(loop.now + 2, 20)
    assert not loop.refusals


def test_neighbours_on_the_machine_are_no_overload() -> None:
    """A process that is given a tenth of a core is late all the time; with little to do it refuses nothing."""
    window = InFlightWindow(_MAX_LAG_S)
    guard = OverloadGuard(max_lag_s=_MAX_LAG_S, in_flight=lambda: 500, clock=lambda: 0.0, rng=random.Random(1))
    for step in range(100):
        guard.measured(0.5, 0.02, step * 0.5)
        window.observe(0.5, 500, step * 0.5, refused=False)
    assert guard.admits(batch=False)
    assert window.guarding


def test_a_few_requests_always_come_in() -> None:
    """However late the loop is, 31 in flight leave room for one more; 33 do not."""
    window = InFlightWindow(_MAX_LAG_S)
    for step in range(100):
        window.observe(5.0, 33, step * 5.0, refused=True)
    assert window.guarding
    assert [window.holds(count, batch=False) for count in (0, 31, 33)] == [True, True, False]
    assert not window.holds(32, batch=True)


def test_it_can_be_turned_off_while_it_refuses() -> None:
    """A reload that sets 0 opens the door with the next measurement."""
    guard = OverloadGuard(max_lag_s=_MAX_LAG_S, in_flight=lambda: 500, clock=lambda: 0.0, rng=random.Random(1))
    for step in range(20):
        guard.measured(1.0, 1.0, step * 1.0)
    assert not guard.admits(batch=False)
    guard.max_lag_s = 0.0
    guard.measured(1.0, 1.0, 21.0)
    assert guard.admits(batch=False)


def test_the_refused_do_not_come_back_together() -> None:
    """503 with both headers, spread over time, later when most are refused; each is counted."""
    counted: list[None] = []
    guard = OverloadGuard(
        max_lag_s=_MAX_LAG_S,
        in_flight=lambda: 500,
        clock=lambda: 0.0,
        rng=random.Random(1),
        refused=lambda: counted.append(None),
    )
    few = [guard.refusal().retry_after_s or 0.0 for _ in range(200)]
    for step in range(20):
        guard.measured(1.0, 1.0, step * 1.0)
    assert not any(guard.admits(batch=False) for _ in range(300))
    many = [guard.refusal().retry_after_s or 0.0 for _ in range(200)]
    assert 0.5 <= min(few) < 0.6
    assert 1.4 < max(few) <= 1.5
    assert sum(many) > 4 * sum(few)
    assert len(set(many)) == 200
    assert len(counted) == 300


async def test_a_refusal_is_a_whole_reply() -> None:
    """What `refuse` writes is the same 503 as everywhere, with the request's id."""
    exchange = HeardExchange()
    guard = OverloadGuard(max_lag_s=1.0, in_flight=lambda: 0, clock=lambda: 0.0, rng=random.Random(1))
    guard.refuse(exchange, error_reply(guard.refusal()), (b"x-request-id", b"req_1"))
    start, body = exchange.messages
    headers = dict(start["headers"])
    assert start["status"] == 503
    assert headers[b"x-request-id"] == b"req_1"
    assert int(headers[b"retry-after-ms"]) >= 500
    assert json.loads(body["body"])["error"]["code"] == "overloaded"


async def test_following_measures_how_late_the_loop_wakes() -> None:
    """A sleep that takes longer than asked is the lag, told once a second as the worst of it."""
    now = 0.0
    naps = [0.025] * 30 + [0.425] + [0.025] * 30
    told: list[float] = []

    async def sleep(_seconds: float) -> None:
        nonlocal now
        if not naps:
            raise asyncio.CancelledError
        now += naps.pop()

    clock: Callable[[], float] = lambda: now  # noqa: E731 - it reads a variable of here
    guard = OverloadGuard(
        max_lag_s=1.0,
        in_flight=lambda: 0,
        clock=clock,
        own_time=clock,
        rng=random.Random(1),
        lag_seen=told.append,
        sleep=sleep,
    )
    with pytest.raises(asyncio.CancelledError):
        await guard.follow()
    assert told == [pytest.approx(0.4)]
