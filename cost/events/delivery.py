"""Delivery to one sink: reads on from its place, sends, and moves the place once the sink has acknowledged.

Killed between the two, the same events go again. A batch that is refused is halved until it is known what the sink will not have; that is
set aside if the sink takes others, since one event must not hold up all that follow. A sink that takes nothing has a fault of its own, and
everything waits.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from cost.events.event import Event
from cost.events.event_metrics import EventMetrics
from cost.events.outbox import Ahead, EventOutbox
from cost.events.sink import Batch, BatchRefused, Sink, SinkFailed, SinkLimits, batches

_log: Final = logging.getLogger("weighbridge.events")
IDLE_S: Final = 1.0
FIRST_BACKOFF_S: Final = 1.0
LONGEST_BACKOFF_S: Final = 300.0
_LONGEST_RETRY_AFTER_S: Final = 3_600.0
_JITTER: Final = 0.2
_READ_AT_ONCE: Final = 1_000
_ENCODED_AT_ONCE: Final = 250
_REFUSED_IN_A_ROW: Final = 3
"""Single events that a sink refuses before any other is taken, from which on it is the sink that is at fault."""
_TOLD: Final = 5
_GROWTH: Final = 8
"""A batch that was acknowledged lets the next be larger by one part in so many, up to what the sink takes."""


class Timing(NamedTuple):
    """Clock and chance, for tests to replace."""

    now_us: Callable[[], int]
    sleep: Callable[[float], Awaitable[object]]
    jitter: Callable[[], float]


class Delivery:
    """The delivery to one sink, by the process that tells events."""

    def __init__(
        self,
        name: str,
        sink: Sink,
        limits: SinkLimits,
        outbox: EventOutbox,
        encode: Callable[[Event], bytes],
        metrics: EventMetrics,
        timing: Timing,
        timeout_s: float,
    ) -> None:
        self.name = name
        self._sink = sink
        self._limits = limits
        self._outbox = outbox
        self._encode = encode
        self._metrics = metrics
        self._timing = timing
        self._timeout_s = timeout_s
        self._failures = 0
        self._most = limits.events
        self._oldest_us: int | None = None
        """When the first event that waits was written, as of the last look."""

    async def run(self) -> None:
        """Deliver for ever."""
        while True:
            await self._timing.sleep(await self.step())

    async def step(self) -> float:
        """Send what waits, up to a portion; return the seconds until the next step. It raises nothing but its cancellation."""
        try:
            sent = await self._step()
        except SinkFailed as failure:
            return self._back_off(str(failure), failure.retry_after_s)
        except Exception as error:  # noqa: BLE001  Neither a sink nor a database that is away may end the delivery.
            return self._back_off(type(error).__name__, None)
        self._failures = 0
        return 0.0 if sent else IDLE_S

    def show(self) -> None:
        """Show the lag as it is by now: a send may last for minutes, and so may the pause after it."""
        self._metrics.set_lag(self.name, self._age_s(self._oldest_us))

    def rest(self) -> None:
        """Show no lag: another process tells this sink now."""
        self._show(None)

    async def _step(self) -> bool:
        place = await self._outbox.place(self.name)
        ahead = await self._outbox.ahead(place)
        self._show(ahead.oldest_us)
        if ahead.last == place or self._gathers(ahead, place):
            return False
        found = await self._outbox.after(place, max(_READ_AT_ONCE, self._limits.events))
        for batch in batches(found.events, await self._encoded(found.events), self._limits._replace(events=self._most)):
            await self._deliver(batch)
            self._most = min(self._limits.events, self._most + 1 + self._most // _GROWTH)
            place = await self._pass(place, batch.events[-1].sequence, len(batch.events))
        if place < found.last:
            await self._pass(place, found.last, 0)
        self._show(None)
        return True

    def _gathers(self, ahead: Ahead, place: int) -> bool:
        if not self._limits.gather_s or ahead.last - place >= self._limits.events:
            return False
        return self._age_s(ahead.oldest_us) < self._limits.gather_s

    async def _encoded(self, events: Sequence[Event]) -> list[bytes]:
        made: list[bytes] = []
        for first in range(0, len(events), _ENCODED_AT_ONCE):
            made += map(self._encode, events[first : first + _ENCODED_AT_ONCE])
            # Pages are served by the same loop.
            await asyncio.sleep(0)
        return made

    async def _pass(self, before: int, upto: int, events: int) -> int:
        """Move the place; numbers that were passed without an event are lost, which is counted once, here."""
        if not await self._outbox.move(self.name, before, upto):
            raise SinkFailed("another process tells this sink, too")
        if lost := upto - before - events:
            self._metrics.count(self.name, "dropped", lost)
            _log.error("%d events up to number %d are lost to sink %s", lost, upto, self.name)
        return upto

    async def _deliver(self, batch: Batch) -> None:
        """Send a batch; what alone is refused while others are taken is set aside. Raises SinkFailed where nothing is taken."""
        refused: list[Event] = []
        taken, is_well = 0, False
        left = [batch]
        while left:
            part = left.pop()
            try:
                await self._send(part)
            except BatchRefused:
                if len(part.events) > 1:
                    left.extend(reversed(part.parts()))
                    continue
                refused += part.events
                if not taken and not is_well and len(refused) >= _REFUSED_IN_A_ROW:
                    # Are these at fault, or is the sink? It is asked to take the last one, which may come to it twice.
                    await self._send(Batch(batch.events[-1:], batch.encoded[-1:]))
                    is_well = True
            else:
                taken += len(part.events)
        if refused and not taken:
            # There may be one refused event, and no other to know the sink by.
            raise SinkFailed("it refuses every event that waits")
        self._metrics.count(self.name, "sent", taken)
        self._metrics.count(self.name, "refused", len(refused))
        if refused:
            told = ", ".join(each.id for each in refused[:_TOLD])
            _log.error("sink %s takes others, and refuses %d events: %s", self.name, len(refused), told)

    async def _send(self, batch: Batch) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._sink.send(batch)
        except TimeoutError:
            # It may be away, or slow: the same batch again would come to it for ever.
            self._most = max(1, len(batch.events) // 2)
            raise SinkFailed("no answer in time") from None

    def _back_off(self, told: str, retry_after_s: float | None) -> float:
        self._metrics.failed(self.name)
        self._failures += 1
        wait_s = min(FIRST_BACKOFF_S * math.pow(2, min(self._failures - 1, 16)), LONGEST_BACKOFF_S)
        wait_s *= 1 + _JITTER * self._timing.jitter()
        if retry_after_s is not None:
            wait_s = max(wait_s, min(retry_after_s, _LONGEST_RETRY_AFTER_S))
        _log.warning("sink %s did not take events (%s); again in %.0f s", self.name, told, wait_s)
        return wait_s

    def _show(self, oldest_us: int | None) -> None:
        self._oldest_us = oldest_us
        self.show()

    def _age_s(self, written_us: int | None) -> float:
        return 0.0 if written_us is None else (self._timing.now_us() - written_us) / 1_000_000
