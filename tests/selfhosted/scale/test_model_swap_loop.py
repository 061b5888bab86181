"""Who decides whose turn it is on shared GPUs, and how engines are told."""

import asyncio
from typing import Final

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from selfhosted.config import SharedGpusConfig
from selfhosted.engines.fetching import Fetched, FetchFailed
from selfhosted.model_swap.swap_state import read
from selfhosted.registry.store import RegistryStore
from selfhosted.replica import Address, EngineStats, PoolSnapshot, Replica
from selfhosted.scale.engine_sleep import SleepUnknown, is_sleeping
from selfhosted.scale.model_swap_loop import SharedPool, TurnLoop, Wanted
from selfhosted.scale.target import Targets
from tests.processes import until

GROUP: Final = SharedGpusConfig(name="box", pools=("a", "b"), least_awake_s=5, settle_s=1, drain_s=20)


class Box:
    """Two engines, their sleep routes, and a clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.asleep = {"http://a": False, "http://b": False}
        self.calls: list[str] = []
        self.gone: set[str] = set()
        self.running = {"a": 0, "b": 0}
        self.waiting = {"a": 0, "b": 0}

    async def __call__(self, url: str, *, timeout_s: float, max_bytes: int, with_key: bool = True) -> Fetched:
        del timeout_s, max_bytes, with_key
        origin = url.removesuffix("/is_sleeping")
        if origin in self.gone:
            raise FetchFailed("unreachable", "gone")
        return Fetched(200, b'{"is_sleeping":%s}' % (b"true" if self.asleep[origin] else b"false"))

    async def post(self, url: str, body: bytes, *, timeout_s: float, max_bytes: int) -> Fetched:
        del body, timeout_s, max_bytes
        self.calls.append(url)
        self.asleep[url[:8]] = "/sleep" in url
        return Fetched(200, b"{}")

    def snapshot(self, pool: str) -> PoolSnapshot:
        address = Address(pool=pool, name=f"{pool}-1", url=f"http://{pool}", kind="vllm", source="configured")
        stats = EngineStats(at=self.now, running=self.running[pool], waiting=0)
        return PoolSnapshot(
            pool=pool, at=self.now, replicas=(Replica(address=address, state="ready", since=0.0, stats=stats),)
        )


class Leader:
    """One process's loop, which leads when it is told to."""

    def __init__(self, engine: AsyncEngine, box: Box, holder: str) -> None:
        self.holder = holder
        self.leads = False
        self.box = box
        self.loop = TurnLoop(
            GROUP,
            {name: SharedPool(lambda name=name: box.snapshot(name), lambda _: True, box) for name in GROUP.pools},  # type: ignore[misc]
            targets=Targets(engine),
            lease=self,
            demand=lambda pool: Wanted(waiting=box.waiting[pool]),
            stored=self._stored,
            clock=lambda: box.now,
        )

    def held(self, pool: str) -> bool:
        return pool == "box" and self.leads

    async def _stored(self) -> None:
        pass

    async def steps(self, seconds: int) -> None:
        for _ in range(seconds):
            self.box.now += 1
            await self.loop.step()
            await asyncio.sleep(0)
            await until(lambda: not self.loop._moving)


async def test_another_process_goes_on_in_the_middle_of_a_switch(engine: AsyncEngine) -> None:
    """What is stored says who drains for whom; one that lost its lease does nothing more."""
    registry, box = RegistryStore(engine), Box()
    first, second = Leader(engine, box, "one"), Leader(engine, box, "two")
    first.leads = await registry.hold("box", "one", 3_600_000_000)
    await second.steps(3)
    assert box.calls == []
    await first.steps(4)
    assert box.calls == ["http://b/sleep?level=1"]
    box.now += 10
    box.waiting["b"], box.running["a"] = 50, 1
    await first.steps(2)
    stored = read((await registry.read([], ["box"])).turns["box"], 0.0)
    assert stored is not None
    assert (stored.phase, stored.awake, stored.next) == ("draining", "a", "b")
    await registry.release("one", ["box"])
    second.leads = await registry.hold("box", "two", 3_600_000_000)
    box.running["a"] = 0
    await first.steps(3)
    assert len(box.calls) == 1
    await second.steps(6)
    assert box.calls[1:] == ["http://a/sleep?level=1", "http://b/wake_up"]
    stored = read((await registry.read([], ["box"])).turns["box"], 0.0)
    assert stored is not None
    assert (stored.phase, stored.awake) == ("awake", "b")


async def test_nobody_switches_while_the_database_is_away() -> None:
    """The engines stay as they are."""
    box = Box()
    leader = Leader(create_async_engine("sqlite+aiosqlite:////nowhere/at/all.db"), box, "one")
    leader.leads = True
    await leader.steps(3)
    assert box.calls == []


async def test_what_an_engine_says_of_its_sleep() -> None:
    """One without the routes is told what to set; nonsense is no word; one that does not answer is neither."""

    def answering(status: int, body: bytes) -> Box:
        class Odd(Box):
            async def __call__(self, url: str, *, timeout_s: float, max_bytes: int, with_key: bool = True) -> Fetched:
                return Fetched(status, body)

        return Odd()

    with pytest.raises(SleepUnknown, match="VLLM_SERVER_DEV_MODE=1"):
        await is_sleeping(answering(404, b""), "http://a")
    for body in (b"", b"[]", b'{"is_sleeping": 3}', b"\xff"):
        with pytest.raises(SleepUnknown, match="is it vLLM"):
            await is_sleeping(answering(200, body), "http://a")
    with pytest.raises(FetchFailed, match="503"):
        await is_sleeping(answering(503, b""), "http://a")
