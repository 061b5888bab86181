"""The overload guard: sheds requests when the process has more work than its core can do.

A single-threaded process that takes more than it can do serves nobody in time: everything waits for everything else.
Waiting shows as lateness of the event loop, or outside it: uvloop accepts connections one by one, so those beyond the
process's capacity wait in the kernel's queue, where nobody can answer them. A short wait means nothing, so the guard
starts only when it stays long. Then connections are accepted at full speed, so that every caller gets an answer, and as
many requests are let in at once as keep the loop a little late, which is busy and not more: a window that grows while
the loop is in time and shrinks while it is not, as TCP's does. A window, because nothing is let in while nothing gets
done, however rarely a loop that is very late can look at its clock.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from proxy.errors import ErrorReply, Overloaded
from proxy.http.exchange import Exchange

TICK_S: Final = 0.025
_REPORT_S: Final = 1.0
_SUSTAINED_S: Final = 1.0
_SUSTAINED_SAMPLES: Final = 3
"""Late samples in a row before the guard starts: a start, a garbage collection or one slow step delays the loop once.
"""
_QUIET_S: Final = 15.0
"""Seconds without refusal or lateness after which the guard stops and forgets its limit."""
_WAIT_S: Final = 0.5
"""The wait of new connections for acceptance beyond which the process counts as overloaded."""
_TARGET_S: Final = 0.004
"""The target length of a loop turn while guarding. An answer takes some 20 turns, a refusal about 5."""
_TURNS: Final = 4
_LEAST_WINDOW: Final = 32
"""Requests in flight that are always allowed: too few to cause overload, and a safeguard against a wrong measurement.
"""
_GROWTH_PER_S: Final = 0.5
_MOST_SHRINKING: Final = 0.7
_SHRINKING: Final = 0.1
_BATCH: Final = 0.25
"""The batch tier's share of the target turn length: batch is refused first, and alone where that is enough."""
_RETRY_AFTER_S: Final = 1.0
_RETRY_AFTER_MORE_S: Final = 4.0
_REMEMBERED: Final = 64


class InFlightWindow:
    """A limit of requests in flight that adapts to the event loop's lateness and the accept queue's wait."""

    __slots__ = (
        "_batch_limit",
        "_busy_at",
        "_late_samples",
        "_late_since",
        "_limit",
        "_previous_lag_s",
        "_seen_at",
        "guarding",
        "max_lag_s",
    )

    def __init__(self, max_lag_s: float) -> None:
        self.max_lag_s = max_lag_s
        self.guarding = False
        self._limit = self._batch_limit = 0.0
        self._late_since = 0.0
        self._late_samples = 0
        self._previous_lag_s = 0.0
        self._seen_at = 0.0
        self._busy_at = 0.0

    def observe(self, lag_s: float, in_flight: int, now: float, *, refused: bool, wait_s: float = 0.0) -> None:
        """Add one measurement: `lag_s` is the loop's lateness, or its turn length while guarding. `wait_s` is new
        connections' wait for acceptance; `refused` is True when any request was refused since the last one.
        """
        late = lag_s > self.max_lag_s or wait_s > _WAIT_S
        if refused or late:
            self._busy_at = now
        if self.max_lag_s <= 0 or now - self._busy_at > _QUIET_S:
            self.guarding = False
        elif not self.guarding:
            self._detect_overload(in_flight, now, late=late)
        else:
            # The smaller of two: a single pause is no reason to refuse anybody.
            late_s, elapsed_s = min(lag_s, self._previous_lag_s), now - self._seen_at
            self._limit = _steered(self._limit, late_s / _TARGET_S, in_flight, elapsed_s)
            self._batch_limit = _steered(self._batch_limit, late_s / (_TARGET_S * _BATCH), in_flight, elapsed_s)
        self._previous_lag_s = lag_s
        self._seen_at = now

    def holds(self, in_flight: int, *, batch: bool) -> bool:
        """Return True when one more request may be admitted."""
        return in_flight < _LEAST_WINDOW or in_flight < (self._batch_limit if batch else self._limit)

    def _detect_overload(self, in_flight: int, now: float, *, late: bool) -> None:
        if not late:
            self._late_samples = 0
            return
        if self._late_samples == 0:
            self._late_since = now
        self._late_samples += 1
        if self._late_samples >= _SUSTAINED_SAMPLES and now - self._late_since >= _SUSTAINED_S:
            self.guarding = True
            self._limit = self._batch_limit = in_flight
            self._late_samples = 0


def _steered(limit: float, lateness: float, in_flight: int, elapsed_s: float) -> float:
    """Return the next limit. `lateness` is relative to the target: above 1 the limit shrinks, otherwise it grows."""
    if lateness > 1.0:
        return min(limit, in_flight) * max(_MOST_SHRINKING, 1.0 - _SHRINKING * (lateness - 1.0))
    # Grow from the present number: the loop carries the requests in flight now, whatever the old limit.
    return max(limit, in_flight) * (1.0 + _GROWTH_PER_S * elapsed_s) + 1.0


class AcceptBacklog(Protocol):
    """The accept queue of the listening socket."""

    def wait_s(self, now: float) -> float:
        """Return the seconds that a new connection waits until it is accepted."""
        ...

    def open(self, *, wide: bool) -> None:
        """Accept many connections per loop turn, so that refusals can be sent (`wide`), or only some."""
        ...


class OverloadGuard:
    """The guard of one process: it admits or refuses new requests at the cost of a few comparisons each."""

    def __init__(
        self,
        *,
        max_lag_s: float,
        in_flight: Callable[[], int],
        clock: Callable[[], float],
        rng: random.Random,
        refused: Callable[[], None] = lambda: None,
        lag_seen: Callable[[float], None] = lambda _lag_s: None,
        own_time: Callable[[], float] = time.thread_time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        tick_s: float = TICK_S,
    ) -> None:
        """`tick_s` passes between two measurements; three in a row that are late begin the guarding."""
        self._window = InFlightWindow(max_lag_s)
        self._in_flight = in_flight
        self._clock = clock
        self._own_time = own_time
        self._rng = rng
        self._count_refusal = refused
        self._lag_seen = lag_seen
        self._sleep = sleep
        self._tick_s = tick_s
        self._refused = False
        self._refused_share = 0.0
        self._doors: list[AcceptBacklog] = []

    @property
    def guarding(self) -> bool:
        """True while some requests are refused."""
        return self._window.guarding

    @property
    def max_lag_s(self) -> float:
        return self._window.max_lag_s

    @max_lag_s.setter
    def max_lag_s(self, max_lag_s: float) -> None:
        self._window.max_lag_s = max_lag_s

    def watch(self, door: AcceptBacklog) -> None:
        """Include an accept queue in the measurements."""
        self._doors.append(door)

    def admits(self, *, batch: bool) -> bool:
        """Return True when a new request may proceed; a refusal is counted."""
        if not self._window.guarding:
            return True
        admitted = self._window.holds(self._in_flight(), batch=batch)
        self._refused_share += ((not admitted) - self._refused_share) / _REMEMBERED
        if not admitted:
            self._refused = True
            self._count_refusal()
        return admitted

    def refusal(self) -> Overloaded:
        """Build the refusal. Its retry time grows with the share of refusals and is jittered."""
        mean_s = _RETRY_AFTER_S + self._refused_share * _RETRY_AFTER_MORE_S
        return Overloaded(
            "This gateway process has more work than it can do at once; try again after the time that `retry-after` says.",
            retry_after_s=mean_s * self._rng.uniform(0.5, 1.5),
        )

    def refuse(self, exchange: Exchange, told: ErrorReply, request_id_header: tuple[bytes, bytes]) -> None:
        """Send the refusal without parsing anything of the request. The body may still be on its way."""
        exchange.respond(
            told.status, [(b"content-type", b"application/json"), request_id_header, *told.headers], told.body
        )

    def measured(self, lag_s: float, own_s: float, now: float) -> None:
        """Add one measurement: `lag_s` of lateness, of which `own_s` was spent computing. The smaller counts, as
        shedding does not help against busy neighbours. While guarding, both are those of one loop turn.
        """
        refused, self._refused = self._refused, False
        wait_s = max((door.wait_s(now) for door in self._doors), default=0.0)
        self._window.observe(min(lag_s, own_s), self._in_flight(), now, refused=refused, wait_s=wait_s)
        for door in self._doors:
            door.open(wide=self._window.guarding)

    async def follow(self) -> None:
        """Measure for ever. Reports the worst lateness about once a second."""
        worst_s = 0.0
        told_at = self._clock()
        while True:
            due_at, own_before = self._clock() + self._tick_s, self._own_time()
            await self._sleep(self._tick_s)
            now = self._clock()
            lag_s = max(0.0, now - due_at)
            if self._window.guarding:
                self.measured(*await self._measure_turn(), self._clock())
            else:
                self.measured(lag_s, self._own_time() - own_before, now)
            worst_s = max(worst_s, lag_s)
            if now - told_at >= _REPORT_S:
                self._lag_seen(worst_s)
                worst_s, told_at = 0.0, now

    async def _measure_turn(self) -> tuple[float, float]:
        """Return a loop turn's mean length and its computing time, in seconds. Measured over several turns, as timers
        are too coarse.
        """
        began, own_began = self._clock(), self._own_time()
        turns, took_s = 0, 0.0
        while turns < _TURNS and took_s < self._tick_s:
            await self._sleep(0)
            turns, took_s = turns + 1, self._clock() - began
        return took_s / turns, (self._own_time() - own_began) / turns
