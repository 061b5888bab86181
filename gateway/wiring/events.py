"""Wiring of events: the stream over the configured sinks, in the control plane."""

import asyncio
import contextlib
import random

from sqlalchemy.ext.asyncio import AsyncEngine

from cost.events.delivery import Delivery, Timing
from cost.events.event_metrics import EventMetrics
from cost.events.outbox import EventOutbox
from cost.events.stream import EventStream
from cost.times import DAY_US, wall_us
from gateway.configuration.environment import resolve_secret
from gateway.configuration.events_config import EventsSection
from gateway.events.sinks import open_sink
from providers.connections.forward_proxy import ForwardProxy
from proxy.shared.background_tasks import background


async def begin_events(engine: AsyncEngine, section: EventsSection) -> None:
    """Have entries noted, where anybody is told of them. It has to come before journals are drained."""
    if section.sinks:
        await EventOutbox(engine).begin()


def keep_events(
    engine: AsyncEngine,
    section: EventsSection,
    holder: str,
    metrics: EventMetrics,
    stack: contextlib.AsyncExitStack,
    proxy: ForwardProxy | None = None,
) -> None:
    """Tell events until the stack closes, whenever no other process does. Raises BadSink."""
    if not section.sinks:
        return
    outbox = EventOutbox(engine)
    timing = Timing(wall_us, asyncio.sleep, random.random)
    opened = [open_sink(each, resolve_secret, proxy, section.source) for each in section.sinks]
    for each in opened:
        stack.push_async_callback(each.sink.aclose)
    deliveries = [
        Delivery(each.name, each.sink, each.limits, outbox, each.encode, metrics, timing, each.timeout_s)
        for each in opened
    ]
    stream = EventStream(outbox, deliveries, holder, timing, keep_us=section.keep_days * DAY_US)
    background(stack, stream.run())
