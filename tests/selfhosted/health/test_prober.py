"""What processes tell reaches who probes for them, and nobody else's nonsense harms it."""

import asyncio
from collections.abc import Sequence

from sqlalchemy.ext.asyncio import create_async_engine

from selfhosted.config import PoolConfig, ReplicaConfig, WatchConfig
from selfhosted.discovery.discovery import Discovery
from selfhosted.engines.fetching import Fetched
from selfhosted.health.bulletin import Bulletin
from selfhosted.health.host_messages import FromProcess
from selfhosted.health.messages import AdapterChanged, PoolMembers, ReplicaDoubted, ReplicaObserved
from selfhosted.health.pool_prober import PoolProber
from selfhosted.health.prober import ProbedPool, Prober
from selfhosted.health.verdict import Doubt
from selfhosted.kv_events.subscriber import KvState, KvStates
from selfhosted.registry.registry import Registry
from selfhosted.registry.store import RegistryStore
from selfhosted.replica import ReplicaState
from selfhosted.scale.process_reports import FleetReport, PoolReport
from tests.processes import until

_CONFIG = PoolConfig(
    name="p",
    targets=("t",),
    replicas=(ReplicaConfig(name="a", url="http://127.0.0.1:1"),),
    watch=WatchConfig(every_s=60.0),
)


class Site:
    """A prober of one pool whose engine always answers."""

    def __init__(self) -> None:
        self.now = 100.0
        self.probes = 0
        self.told: list[PoolMembers | ReplicaObserved] = []
        bulletin = Bulletin()
        bulletin.subscribe(self.told.append)
        registry = Registry(RegistryStore(create_async_engine("sqlite+aiosqlite://")), (_CONFIG,))
        watch = PoolProber(_CONFIG, fetch=self._fetch, publisher=bulletin, clock=self._clock)
        discovery = Discovery(_CONFIG, registry=registry)
        watch.adopt(discovery.addresses, complete=discovery.complete)
        self.prober = Prober({"p": ProbedPool(config=_CONFIG, discovery=discovery, watch=watch)}, self._clock)

    def _clock(self) -> float:
        self.now += 0.001
        return self.now

    async def _fetch(self, url: str, *, timeout_s: float, max_bytes: int, with_key: bool = True) -> Fetched:
        del timeout_s, max_bytes, with_key
        self.probes += url.endswith("/health")
        return Fetched(200 if url.endswith("/health") else 404, b"")

    @property
    def state(self) -> ReplicaState:
        return self.prober.pools["p"].snapshot().replicas[0].state

    @property
    def newest(self) -> ReplicaObserved:
        return next(each for each in reversed(self.told) if isinstance(each, ReplicaObserved))


async def test_a_doubt_is_told_to_all_and_probed_at_once() -> None:
    """Though the next probe was a minute away; told again it is no news."""
    site = Site()
    assert site.told == [PoolMembers(pool="p", addresses=site.prober.pools["p"].discovery.addresses)]
    loops = [asyncio.create_task(loop) for loop in site.prober.loops()]
    await until(lambda: site.state == "ready")
    probes = site.probes
    doubt = Doubt(at=site.now, suspicions=1, doubted_at=site.now)
    doubted = ReplicaDoubted(pool="p", replica="a", url="http://127.0.0.1:1", doubt=doubt)
    site.prober.hear("one", doubted)
    assert site.state == "suspect"
    assert site.newest.doubt == doubt
    await until(lambda: site.state == "ready")
    assert site.probes == probes + 1
    told = len(site.told)
    site.prober.hear("two", doubted)
    assert (len(site.told), site.state) == (told, "ready")
    for loop in loops:
        loop.cancel()
    await asyncio.gather(*loops, return_exceptions=True)


def _nonsense() -> Sequence[FromProcess]:
    doubt = Doubt(at=1.0, doubted_at=1.0)
    return (
        ReplicaDoubted(pool="other", replica="a", url="http://127.0.0.1:1", doubt=doubt),
        ReplicaDoubted(pool="p", replica="other", url="http://127.0.0.1:1", doubt=doubt),
        ReplicaDoubted(pool="p", replica="a", url="http://former", doubt=doubt),
        AdapterChanged(pool="p", replica="a", url="http://former", adapter="x", loaded=True, at=1.0),
        AdapterChanged(pool="other", replica="a", url="http://127.0.0.1:1", adapter="x", loaded=True, at=1.0),
        FleetReport(began_at=1.0, pools=(PoolReport(pool="other", waiting_at_gate=1),)),
        KvStates(pool="other", states={}),
    )


async def test_who_is_not_known_is_ignored() -> None:
    """Pools and replicas come and go while messages are on their way."""
    site = Site()
    told = len(site.told)
    for message in _nonsense():
        site.prober.hear("one", message)
    assert len(site.told) == told
    assert site.prober.pools["p"].snapshot().replicas[0].adapters == frozenset()


async def test_adapters_of_two_processes_are_all_known() -> None:
    """In whatever order they are heard of; an older one than all that were seen at once is not."""
    site = Site()

    def loaded(adapter: str, at: float) -> None:
        change = AdapterChanged(pool="p", replica="a", url="http://127.0.0.1:1", adapter=adapter, loaded=True, at=at)
        site.prober.hear("one", change)

    loaded("x", 12.0)
    first = site.newest
    loaded("y", 11.0)
    assert site.newest.adapters == {"x", "y"}
    assert site.newest.adapters_at > first.adapters_at
    site.prober.pools["p"].watch.set_adapters("a", frozenset({"y"}), 13.0)
    loaded("x", 12.5)
    assert site.newest.adapters == {"y"}


async def test_subscriptions_are_shown_of_a_process_that_lives() -> None:
    """Of the one that told first."""
    site = Site()
    assert site.prober.kv_states("p") == {}
    for number, process in enumerate(("one", "two"), start=1):
        site.prober.hear(process, KvStates(pool="p", states={"a": KvState(blocks=number)}))
    assert site.prober.kv_states("p")["a"].blocks == 1
    site.prober.hear("two", FleetReport(began_at=200.0, pools=(PoolReport(pool="p", waiting_at_gate=4),)))
    site.prober.forget("one")
    assert site.prober.kv_states("p")["a"].blocks == 2
    assert site.prober.reports.waiting_at_gate("p") == 4
