"""What requests tell of the replicas that they are at, and what these tell them."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import msgspec
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from accounts.caller import Caller
from providers.target import Deployment, Target
from providers.wire import ChatRequest
from selfhosted.balance.balancer import Balancer
from selfhosted.config import PoolConfig, ReplicaConfig, WatchConfig
from selfhosted.discovery.discovery import Discovery
from selfhosted.engines.scrape import Fetched
from selfhosted.fleet import Fleet, FleetObserver
from selfhosted.pool import Pool, ReplicaLease
from selfhosted.registry.registry import Registry
from selfhosted.registry.store import RegistryStore
from selfhosted.replica import ReplicaState
from selfhosted.watch.watch import PoolWatch
from tests.processes import until
from tests.providers.calls import chat_request, target

_CONFIG = PoolConfig(
    name="p",
    targets=("t",),
    replicas=(ReplicaConfig(name="a", url="http://127.0.0.1:1"), ReplicaConfig(name="b", url="http://127.0.0.1:2")),
    watch=WatchConfig(every_s=0.05, misses=2),
)
_CALLER = Caller(key_id="key_1", key_name="tests", team_id="team_1", organisation_id="org_1")


class Engines:
    """What probes find. Silent ones answer nothing at all."""

    def __init__(self) -> None:
        self.status = 200
        self.silent = False

    async def __call__(self, url: str, *, timeout_s: float, max_bytes: int, with_key: bool = True) -> Fetched:
        if self.silent:
            await asyncio.Event().wait()
        return Fetched(self.status if url.endswith("/health") else 404, b"")


class House:
    """A fleet of one pool."""

    def __init__(self, engines: Engines) -> None:
        self.engines = engines
        self.now = 100.0
        self.watch = PoolWatch(_CONFIG, fetch=engines, changed=lambda: None, clock=self._clock)
        registry = Registry(RegistryStore(create_async_engine("sqlite+aiosqlite://")), (_CONFIG,))
        discovery = Discovery(_CONFIG, registry=registry)
        self.watch.adopt(discovery.addresses)
        balancer = Balancer(_CONFIG.balance, _CONFIG.room, rng=random.Random(1))
        self.pool = Pool(_CONFIG, discovery, self.watch, balancer, api_key=None, adapters=None, kv_events=None)
        self.fleet = Fleet({"p": self.pool}, clock=self._clock, observer=FleetObserver(), salt_of=_no_salt)

    def _clock(self) -> float:
        self.now += 0.001
        return self.now

    @property
    def target(self) -> Target:
        return msgspec.structs.replace(target("a"), pool="p", deployments=self.pool.deployments("t"))

    def state(self, name: str) -> ReplicaState:
        return next(each.state for each in self.pool.snapshot.replicas if each.name == name)

    def send(self, name: str = "a", request: ChatRequest | None = None) -> ReplicaLease:
        """A request to this replica."""
        asked, of = request or chat_request(stream=True), self.target
        ask = self.fleet.ask(of, asked, input_tokens=1_000, output_tokens=10, caller=_CALLER)
        found = self.fleet.pick(of, [each for each in of.deployments if each.deployment_id == f"t/{name}"], ask)
        assert found is not None
        return self.fleet.take(of, found[1], ask, asked, _CALLER)


def _no_salt(_deployment: Deployment, _caller: Caller) -> str:
    return ""


@pytest.fixture
async def house() -> AsyncIterator[House]:
    """Both of its replicas are ready."""
    found = House(Engines())
    watching = asyncio.create_task(found.watch.run())
    await until(lambda: len(found.pool.snapshot.ready) == 2)
    yield found
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching


async def test_a_replica_that_is_busy_is_not_suspected(house: House) -> None:
    """A first token that came too late says nothing where others had theirs meanwhile; where nobody had, it does."""
    house.engines.silent = True
    slow, quick = house.send(), house.send()
    quick.first_token()
    slow.end(failed=True, silent=True)
    assert house.state("a") == "ready"
    late = house.send()
    late.end(failed=True, silent=True)
    assert house.state("a") == "suspect"


async def test_a_failure_is_one_however_busy_the_replica_is(house: House) -> None:
    """A connection that was cut is no lateness."""
    house.engines.silent = True
    cut, quick = house.send(), house.send()
    quick.first_token()
    cut.end(failed=True)
    assert house.state("a") == "suspect"


async def test_who_waits_for_a_replica_that_went_down_is_told(house: House) -> None:
    """And nobody else: not who has its first token, not who ended, not who waits for another one."""
    told: list[str] = []
    leases = {name: house.send() for name in ("waits", "reads", "ended")} | {"elsewhere": house.send("b")}
    for name, lease in leases.items():
        lease.when_lost = lambda name=name: told.append(name)
    leases["reads"].first_token()
    leases["ended"].end(failed=None)
    leases["elsewhere"].first_token()
    house.engines.status = 503
    await until(lambda: house.state("a") == house.state("b") == "down")
    assert told == ["waits"]
    assert [name for name, lease in leases.items() if lease.lost] == ["waits"]
    for lease in leases.values():
        lease.end(failed=None)
    assert house.pool.unanswered == {}


async def test_who_is_ready_again_is_told_of_by_its_deployments(house: House) -> None:
    """So that nothing else keeps work from it."""
    cleared: list[str] = []
    house.fleet.cleared = cleared.append
    house.engines.status = 503
    await until(lambda: house.state("a") == house.state("b") == "down")
    assert cleared == []
    house.engines.status = 200
    await until(lambda: len(house.pool.snapshot.ready) == 2)
    assert sorted(cleared) == ["t/a", "t/b"]


async def test_whole_answers_are_no_first_tokens(house: House) -> None:
    """How long one takes to be written says nothing of how soon others begin. Vectors have nothing else to tell."""
    house.send(request=chat_request()).first_token()
    assert house.pool.first_tokens.missed(house.now) is None
    house.send().first_token()
    assert house.pool.first_tokens.missed(house.now) == 0.0


async def test_where_nobody_is_ready_suspects_get_work_as_others_do(house: House) -> None:
    """By what they have cached and by their load, and with their room counted."""
    house.engines.silent = True
    for name in ("a", "b"):
        house.send(name).end(failed=True)
    assert house.state("a") == house.state("b") == "suspect"
    assert len(house.fleet.ready(house.target)) == 2
    assert house.fleet.tokens(["t"]) > 0
    assert house.fleet.crowd(house.target) is None
    leases = [house.send(name) for name in ("a", "b") for _ in range(200)]
    assert house.fleet.crowd(house.target) is not None
    for lease in leases:
        lease.end(failed=None)
    assert house.fleet.crowd(house.target) is None
