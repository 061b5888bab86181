"""Held replies: reads a reply to its end before any of it is sent, so that it can be judged.

Bounded in bytes and in time: when a bound is reached the stream goes on as if it had never been held.
"""

import asyncio

from providers.upstream import Impatient, UpstreamStream
from providers.wire import Event
from proxy.dispatch.attempt import Attempt
from proxy.plan.routed_request import Hold


async def hold(stream: UpstreamStream, attempt: Attempt, events: list[Event], limits: Hold) -> "HeldStream":
    """Read further events into `events` until the end or a limit. Raises the upstream's errors."""
    held = HeldStream(stream, attempt, events, limits)
    try:
        await held.fill()
    except BaseException:
        await held.stop()
        raise
    return held


class HeldStream:
    """An upstream stream after holding: it yields the events that were not held yet; nothing when it is `whole`."""

    def __init__(self, stream: UpstreamStream, attempt: Attempt, events: list[Event], limits: Hold) -> None:
        self.whole = False
        self._stream = stream
        self._attempt = attempt
        self._events = events
        self._limits = limits
        self._released = False
        self._late: list[Event] | None = None
        self._reading: asyncio.Task[None] | None = None

    async def fill(self) -> None:
        """Read until the end or a limit. The time limit applies to streams only."""
        if not self._attempt.routed.request.stream:
            await self._read_on()
            return
        # A read that is under way when the time is up is left to finish: cancelling could lose what it read.
        self._reading = asyncio.ensure_future(self._read_on())
        await asyncio.wait({self._reading}, timeout=self._limits.max_s)
        self._released = True
        if self._reading.done():
            self._reading.result()

    async def _read_on(self) -> None:
        size = sum(len(event.payload) for event in self._events)
        while size <= self._limits.max_bytes or not self._attempt.routed.request.stream:
            batch = await self._stream.read()
            if batch is None:
                self.whole = not self._released
                return
            if self._released:
                self._late = batch
                return
            self._attempt.observe(batch)
            self._events += batch
            size += sum(len(event.payload) for event in batch)

    @property
    def ended(self) -> bool:
        return self.whole or (self._reading is None and self._late is None and self._stream.ended)

    async def read(self) -> list[Event] | None:
        if self.whole:
            return None
        if self._reading is not None:
            reading, self._reading = self._reading, None
            try:
                await reading
            except asyncio.CancelledError:
                self._reading = reading
                raise
            late, self._late = self._late, None
            if late is not None:
                return late
        return await self._stream.read()

    def limit_silence(self, idle_s: float) -> None:
        if isinstance(self._stream, Impatient):
            self._stream.limit_silence(idle_s)

    def unread(self) -> list[Event]:
        late, self._late = self._late, None
        return [*(late or ()), *(() if self._reading is not None else self._stream.unread())]

    async def stop(self) -> None:
        """Cancel a read that is still running."""
        if self._reading is not None:
            self._reading.cancel()
            # Waiting for it also takes note of its failure, which nobody asks for any more.
            await asyncio.wait({self._reading})
            if not self._reading.cancelled():
                self._reading.exception()

    async def aclose(self) -> None:
        try:
            await self.stop()
        finally:
            # The closing task may be cancelled a second time.
            await self._stream.aclose()
