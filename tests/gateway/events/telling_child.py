"""A process that tells events until it is killed: `python -m … DATABASE URL HOLDER`."""

import asyncio
import contextlib
import sys

from prometheus_client import CollectorRegistry

from cost.events.event_metrics import EventMetrics
from gateway.configuration.events_config import EventsSection
from gateway.database import make_engine
from gateway.wiring.events import begin_events, keep_events


async def main(database: str, url: str, holder: str) -> None:
    engine = make_engine(database)
    section = EventsSection.model_validate({"sinks": [{"name": "lake", "kind": "http", "url": url, "events": 7}]})
    await begin_events(engine, section)
    async with contextlib.AsyncExitStack() as stack:
        keep_events(engine, section, holder, EventMetrics(CollectorRegistry()), stack)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
