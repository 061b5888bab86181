"""What requests tell of the replicas that they are at, and what these tell them."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import msgspec
import pytest

from accounts.caller import Caller
from providers.target import Deployment, Target
from providers.wire import ChatRequest
from selfhosted.balance.balancer import Balancer
from selfhosted.config import PoolConfig, ScaleConfig, WatchConfig
from selfhosted.engines.fetching import Fetched
from selfhosted.health.bulletin import Bulletin
from selfhosted.health.host_messages import ToHost
from selfhosted.health.judge import PoolJudge
from selfhosted.health.messages import AdapterChanged, ReplicaDoubted
from selfhosted.health.pool_prober import PoolProber
from selfhosted.pools.fleet import Fleet, FleetObserver
from selfhosted.pools.pool import Pool, ReplicaLease
from selfhosted.replica import Address, ReplicaState
from selfhosted.scale.process_reports import AtGate, FleetReport
from tests.processes import until
from tests.providers.calls import chat_request, target

_CONFIG = PoolConfig(name="p", targets=("t",), watch=WatchConfig(every_s=0.05, misses=2))
_MEMBERS = tuple(
    Address(pool="p", name=name, url=f"http://127.0.0.1:{port}", kind="vllm", source="configured")
    for port, name in enumerate(("a", "b"), start=1)
)
_CALLER = Caller(key_id="key_1", key_name="tests", team_id="team_1", organisation_id="org_1")


class Engines:
    """What probes find. Silent ones answer nothing, until they are silent no more."""

    def __init__(self) -> None:
        self.status = 200
        self._gate = asyncio.Event()
        self._gate.set()

    def be_silent(self, silent: bool = True) -> None:
        if silent:
            self._gate.clear()
        else:
            self._gate.set()

    async def __call__(self, url: str, *, timeout_s: float, max_bytes: int, with_key: bool = True) -> Fetched:
        await self._gate.wait()
        return Fetched(self.status if url.endswith("/health") else 404, b"")


class House:
    """A watch of one pool, and a process's fleet that follows it."""

    def __init__(self, engines: Engines) -> None:
        self.engines = engines
        self.now = 100.0
        self.bulletin = Bulletin()
        self.reports: list[FleetReport] = []
        self.loses = False
        """Whether what a process tells gets lost."""
        self.probing: asyncio.Task[None] | None = None
        self.watch = PoolProber(_CONFIG, fetch=engines, publisher=self.bulletin, clock=self._clock)
        self.watch.adopt(_MEMBERS)
        self.fleet, self.pool = self.opened()
        self.bulletin.subscribe(self.fleet.hear)

    def opened(self) -> tuple[Fleet, Pool]:
        """A process that has heard of nothing yet."""
        judge = PoolJudge(_CONFIG, clock=self._clock, tell=self._tell)
        balancer = Balancer(_CONFIG.balance, _CONFIG.room, rng=random.Random(1))
        pool = Pool(_CONFIG, judge, balancer, adapters=None, kv_events=None)
        observer = FleetObserver()
        return Fleet({"p": pool}, clock=self._clock, observer=observer, salt_of=_no_salt, tell=self._tell), pool

    async def stop_probing(self) -> None:
        """Whoever probes is gone, without a word."""
        if self.probing is not None:
            self.probing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.probing
            self.probing = None

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.fleet.tick(1.0, lambda _pool: AtGate())

    def _tell(self, message: ToHost) -> None:
        if self.loses:
            return
        if isinstance(message, ReplicaDoubted):
            self.watch.doubt(message)
        elif isinstance(message, AdapterChanged):
            self.watch.adapter_changed(message)
        elif isinstance(message, FleetReport):
            self.reports.append(message)

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
    found.probing = asyncio.create_task(found.watch.run())
    await until(lambda: len(found.pool.snapshot.ready) == 2)
    yield found
    await found.stop_probing()


async def test_a_replica_that_is_busy_is_not_suspected(house: House) -> None:
    """A first token that came too late says nothing where others had theirs meanwhile; where nobody had, it does."""
    house.engines.be_silent()
    slow, quick = house.send(), house.send()
    quick.first_token()
    slow.end(failed=True, silent=True)
    assert house.state("a") == "ready"
    late = house.send()
    late.end(failed=True, silent=True)
    assert house.state("a") == "suspect"


async def test_a_failure_is_one_however_busy_the_replica_is(house: House) -> None:
    """A connection that was cut is no lateness."""
    house.engines.be_silent()
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


async def test_without_probes_requests_go_on_and_a_failure_is_not_for_ever(house: House) -> None:
    """The last states count; who fails a request is ejected, and after a while one request finds out whether it works."""
    await house.stop_probing()
    house.tick(1.0)
    house.tick(1.0)
    assert len(house.fleet.ready(house.target)) == 2
    house.send("a").end(failed=True)
    assert [each.deployment_id for each in house.fleet.ready(house.target)] == ["t/b"]
    house.tick(1.0)
    assert len(house.fleet.ready(house.target)) == 2
    trial = house.send("a")
    assert [each.deployment_id for each in house.fleet.ready(house.target)] == ["t/b"]
    trial.first_token()
    assert len(house.fleet.ready(house.target)) == 2
    trial.end(failed=False)
    house.send("a").end(failed=False)
    assert len(house.fleet.ready(house.target)) == 2
    house.probing = asyncio.create_task(house.watch.run())
    house.engines.status = 503
    await until(lambda: house.state("a") == house.state("b") == "down")


async def test_a_doubt_whose_message_was_lost_is_told_again(house: House) -> None:
    """At the next tick: so the others hear of it, and it is probed."""

    def shared() -> ReplicaState:
        return next(each.state for each in house.watch.snapshot.replicas if each.name == "a")

    house.loses = True
    house.engines.be_silent()
    house.send("a").end(failed=True)
    await asyncio.sleep(0.01)
    assert shared() == "ready"
    house.loses = False
    house.tick(0.5)
    assert shared() == "suspect"


async def test_whole_answers_are_no_first_tokens(house: House) -> None:
    """How long one takes to be written says nothing of how soon others begin. Vectors have nothing else to tell."""
    house.send(request=chat_request()).first_token()
    assert house.pool.first_tokens.count == 0
    house.send().first_token()
    assert (house.pool.first_tokens.count, house.pool.first_tokens.late) == (1, 0)


async def test_the_prompt_of_a_whole_answer_is_taken_to_be_read_in_its_time(house: House) -> None:
    """Nothing tells when its first token came, and as long as its answer takes nobody waits for its prompt."""
    lease, load = house.send(request=chat_request()), house.pool.balancer.load("a")
    house.tick(0.05)
    assert load.pending == 1, "a thousand tokens take an eighth of a second"
    house.tick(0.2)
    assert (load.pending, load.requests) == (0, 1)
    lease.first_token()
    lease.end(failed=False)
    assert (load.pending, load.requests) == (0, 0)


async def test_what_the_autoscaler_needs_is_told_at_each_tick(house: House) -> None:
    """Counters since the process began, and who waits now."""
    late = house.send()
    house.now += 5.0
    late.first_token()
    late.end(failed=False, tpot_s=0.08)
    house.send(request=chat_request()).end(failed=False, tpot_s=9.0)
    house.fleet.record_overflow(house.target, 700)
    for _ in range(2):
        house.fleet.tick(1.0, lambda pool: AtGate(3 if pool.name == "p" else 0))
    first, second = house.reports
    assert first == second
    (told,) = first.pools
    assert (told.turned_away_tokens, told.first_tokens, told.late_first_tokens, told.waiting_at_gate) == (700, 1, 1, 3)
    assert told.first_tokens_sum_s == pytest.approx(5.0, abs=0.1)
    assert (told.answers, told.slow_answers, told.tpot_sum_s) == (1, 1, 0.08), "of streams alone"


async def test_who_joins_late_knows_at_once_who_is_ready(house: House) -> None:
    """And who is suspected by another process."""
    house.engines.be_silent()
    house.send("a").end(failed=True)
    await until(lambda: house.watch.snapshot.replicas[0].state == "suspect")
    late, pool = house.opened()
    house.bulletin.subscribe(late.hear)
    await late.known(1.0)
    assert {each.name: each.state for each in pool.snapshot.replicas} == {"a": "suspect", "b": "ready"}


async def test_what_one_process_finds_helps_all(house: House) -> None:
    """A request that fails in one makes the replica suspect in all, until the probe that it asked for is answered."""
    other, pool = house.opened()
    house.bulletin.subscribe(other.hear)

    def state() -> str:
        return next(each.state for each in pool.snapshot.replicas if each.name == "a")

    house.engines.be_silent()
    house.send("a").end(failed=True)
    await until(lambda: state() == "suspect")
    assert other.ready(house.target) == house.fleet.ready(house.target) != ()
    house.engines.be_silent(False)
    await until(lambda: state() == house.state("a") == "ready")


async def test_where_nobody_is_ready_suspects_get_work_as_others_do(house: House) -> None:
    """By what they have cached and by their load, and with their room counted."""
    house.engines.be_silent()
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


def test_an_empty_pool_says_when_somebody_may_be_there() -> None:
    """One cold start from now; nothing where nothing scales it."""
    config = PoolConfig(name="p", targets=("t",), scale=ScaleConfig(cold_start_s=240))
    balanced = Balancer(config.balance, config.room, rng=random.Random(1))
    pool = Pool(config, PoolJudge(config, clock=lambda: 100.0), balanced, adapters=None, kv_events=None)
    fleet = Fleet({"p": pool}, clock=lambda: 100.0, observer=FleetObserver(), salt_of=_no_salt)
    assert fleet.starts_in_s(msgspec.structs.replace(target("a"), pool="p")) == 240
    assert fleet.starts_in_s(target("a")) is None
