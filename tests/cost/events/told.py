"""A sink in memory and a delivery to it, by a clock that the test moves."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.events.delivery import Delivery, Timing
from cost.events.event import encoder
from cost.events.event_metrics import EventMetrics
from cost.events.outbox import EventOutbox
from cost.events.sink import Batch, BatchRefused, SinkLimits
from cost.ledger.store import LedgerStore

NOON_US = 1_775_390_400_000_000


class Clock:
    """A wall clock."""

    def __init__(self) -> None:
        self.now_us = NOON_US

    def __call__(self) -> int:
        return self.now_us

    def pass_s(self, seconds: float) -> None:
        self.now_us += int(seconds * 1_000_000)


class KeptSink:
    """It keeps ids, and refuses those that are named."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.sequences: list[int] = []
        self.refuses: set[str] = set()
        self.tries = 0
        self.failing: Callable[[], None] = lambda: None
        """Called before a batch is taken."""
        self.taken: Callable[[], None] = lambda: None
        """Called after it."""

    async def send(self, batch: Batch) -> None:
        self.tries += 1
        self.failing()
        ids = [each.entry.request_id for each in batch.events]
        if self.refuses.intersection(ids):
            raise BatchRefused("status 422")
        self.batches.append(ids)
        self.sequences += [each.sequence for each in batch.events]
        self.taken()

    async def aclose(self) -> None:
        """Nothing is open."""

    @property
    def ids(self) -> list[str]:
        return [each for batch in self.batches for each in batch]


class Telling:
    """A ledger whose events are told."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self.clock = Clock()
        self.store = LedgerStore(engine, self.clock)
        self.outbox = EventOutbox(engine, self.clock)
        self.registry = CollectorRegistry()
        self.metrics = EventMetrics(self.registry)
        self.nap: Callable[[float], Awaitable[None]] = asyncio.sleep

    @property
    def timing(self) -> Timing:
        return Timing(self.clock, self.nap, lambda: 0.0)

    def delivery(self, sink: Any, name: str = "lake", **limits: Any) -> Delivery:
        usual = {"events": 10, "size": 1 << 20, "gather_s": 0.0} | limits
        return Delivery(
            name, sink, SinkLimits(**usual), self.outbox, encoder("here"), self.metrics, self.timing, timeout_s=5
        )

    def counted(self, result: str, name: str = "lake") -> float:
        return self.registry.get_sample_value("weighbridge_events_total", {"sink": name, "result": result}) or 0

    def lag(self, name: str = "lake") -> float | None:
        return self.registry.get_sample_value("weighbridge_event_lag_seconds", {"sink": name})


@contextlib.contextmanager
def raising(sink: KeptSink, error: BaseException) -> Iterator[None]:
    """While it lasts, the sink takes nothing."""

    def fail() -> None:
        raise error

    sink.failing = fail
    yield
    sink.failing = lambda: None
