"""What queues and pools leave for batches."""

import asyncio
from typing import Any

import msgspec
import pytest

from providers.catalog import Catalog, build_catalog
from providers.config import ProvidersSection
from providers.target import Target
from proxy.admit.queues.capacity import Capacity
from proxy.admit.queues.queue_item import QueueItem, QueuePermit, QueueSnapshot
from proxy.admit.queues.queues import Queues
from proxy.admit.queues.queues_config import QueueConfig
from proxy.batch.idle_capacity import BESIDE, IdleCapacity
from selfhosted.replica import PoolReading, PoolRoom
from tests.running_gateway import model


def catalog(*names: str, pool: str | None = None) -> Catalog:
    models = [model(name, [{"kind": "scripted", "upstream_model": "ok"}]) for name in names]
    made = build_catalog(ProvidersSection.model_validate({"models": models}), str)
    if pool is None:
        return made
    return Catalog(targets={name: msgspec.structs.replace(each, pool=pool) for name, each in made.targets.items()})


class Pools:
    """A pool that is as full as it is told to be."""

    def __init__(self, room: PoolRoom | None, runs: int | None = None) -> None:
        self.room = room
        self.runs = runs

    def free(self, target: Target, tokens: int) -> PoolRoom | None:
        return self.room

    def places(self, target: Target) -> int | None:
        return self.runs

    def reading(self, target: Target) -> PoolReading | None:
        return None if self.room is None else PoolReading(int(self.room.wait_s <= 0), self.room.wait_s)


def queues(**given: Any) -> Queues:
    config = QueueConfig.model_validate({"targets": ("own",), "tokens_in_flight": 1_000, **given})
    return Queues({"q": config}, Capacity(lambda: 1, clock=lambda: 0.0), lambda: 0.0)


async def begin(site: Queues, tokens: int, tier: str = "interactive") -> QueuePermit:
    work = QueueItem(team_id="t", weight=1.0, tier=tier, priority=0, tokens=tokens, start_by=1_000.0)  # type: ignore[arg-type]
    return await site.enter("own", work)


async def test_a_queue_leaves_what_nothing_uses() -> None:
    """Whatever uses it."""
    site = queues(light_share=0.0, interactive_share=0.0)
    room = IdleCapacity(lambda: catalog("own"), site, None)
    assert room.idle("own") == 1.0
    permit = await begin(site, 400)
    await begin(site, 100, "batch")
    assert room.idle("own") == pytest.approx(0.5)
    permit.release()
    assert room.idle("own") == pytest.approx(0.9)
    await begin(site, 900)
    assert room.idle("own") == 0.0


async def test_what_other_processes_use_counts_too() -> None:
    """The runner's own process serves nobody; before the others have said anything, nothing is idle."""
    own = queues(light_share=0.0, interactive_share=0.0)
    other = queues(light_share=0.0, interactive_share=0.0)
    await begin(own, 200, "batch")
    await begin(other, 250)
    said: list[QueueSnapshot] | None = None
    room = IdleCapacity(lambda: catalog("own"), own, None, lambda _name: said)
    assert room.idle("own") == 0.0
    said = [other.snapshot("q")]
    assert room.idle("own") == pytest.approx(0.8 - BESIDE * 0.25), "what others run counts for more than it is"
    waits = asyncio.ensure_future(begin(other, 900))
    await asyncio.sleep(0)
    said = [other.snapshot("q")]
    assert room.idle("own") == 0.0
    waits.cancel()


async def test_places_count_where_they_are_known() -> None:
    """A tenth of the requests that may run at once is left free: who finds no place waits until an answer has ended. The queue says how
    many, or the engines.
    """
    counts = queues(light_share=0.0, interactive_share=0.0, requests_in_flight=10)
    plain = queues(light_share=0.0, interactive_share=0.0)
    by_engines = IdleCapacity(lambda: catalog("own", pool="p"), plain, Pools(PoolRoom(0.0, 0.1), runs=10))
    for site, room in ((counts, IdleCapacity(lambda: catalog("own"), counts, None)), (plain, by_engines)):
        assert room.idle("own") == pytest.approx(0.9)
        for _ in range(3):
            await begin(site, 10)
        assert room.idle("own") == pytest.approx(0.6)


async def test_what_is_bought_leaves_everything_and_several_models_the_most() -> None:
    """A line of `auto` may go anywhere."""
    site = queues(light_share=0.0, interactive_share=0.0)
    await begin(site, 1_000)
    room = IdleCapacity(lambda: catalog("own", "bought"), site, None)
    assert (room.idle("own"), room.idle("bought"), room.idle("auto"), room.idle(None)) == (0.0, 1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("told", "idle"), [(None, 0.0), (PoolRoom(0.0, 0.25), 0.75), (PoolRoom(0.0, 1.5), 0.0), (PoolRoom(3.0, 0.1), 0.0)]
)
def test_a_pool_without_a_queue_says_itself(told: PoolRoom | None, idle: float) -> None:
    """Unknown is not idle."""
    none = Queues({}, Capacity(lambda: 1, clock=lambda: 0.0), lambda: 0.0)
    assert IdleCapacity(lambda: catalog("m", pool="p"), none, Pools(told)).idle("m") == idle


def test_what_own_engines_still_read() -> None:
    """Of all that may serve a model; where something is bought, nothing waits for engines."""
    none = Queues({}, Capacity(lambda: 1, clock=lambda: 0.0), lambda: 0.0)
    own = IdleCapacity(lambda: catalog("m", "n", pool="p"), none, Pools(PoolRoom(0.5, 0.1)))
    assert own.reading("m") == PoolReading(0, 0.5)
    assert IdleCapacity(lambda: catalog("m", "n", pool="p"), none, Pools(PoolRoom(0.0, 0.1))).reading(
        None
    ) == PoolReading(2, 0.0)
    assert IdleCapacity(lambda: catalog("m", pool="p"), none, Pools(None)).reading("m") is None
    assert IdleCapacity(lambda: catalog("m"), none, Pools(PoolRoom(0.5, 0.1))).reading("m") is None
