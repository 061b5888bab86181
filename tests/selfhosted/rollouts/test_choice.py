"""Which replica a request gets during a rollout, by the fleet of one process."""

import random

import msgspec

from accounts.caller import Caller
from providers.target import Target
from providers.wire import ChatRequest
from selfhosted.balance.balancer import Balancer
from selfhosted.config import PoolConfig, RoomConfig
from selfhosted.health.judge import PoolJudge
from selfhosted.health.messages import PoolMembers, ReplicaObserved
from selfhosted.health.verdict import Probe
from selfhosted.pools.fleet import Fleet, FleetObserver
from selfhosted.pools.pool import Pool, ReplicaLease
from selfhosted.replica import Address, ReplicaRequest
from selfhosted.rollouts.sides import UNSAID
from selfhosted.rollouts.versions import PPM, Rollout, RolloutTold, gets_candidate
from tests.providers.calls import chat_request, target

_CALLER = Caller(key_id="key_1", key_name="tests", team_id="team_1", organisation_id="org_1")
_CANARY = Rollout(model="t", pool="p", candidate="v2", share_ppm=PPM // 4, state="canary", since_us=1)
_VERSIONS = {"a": "v1", "b": "v1", "c": "v2", "d": ""}


class House:
    """A fleet of four replicas: two of the old version, one of the new one, and one that does not say."""

    def __init__(self) -> None:
        config = PoolConfig(name="p", targets=("t",), room=RoomConfig(max_waiting=0))
        judge = PoolJudge(config, clock=lambda: 100.0)
        balancer = Balancer(config.balance, config.room, rng=random.Random(1))
        self.pool = Pool(config, judge, balancer, adapters=None, kv_events=None)
        self.fleet = Fleet(
            {"p": self.pool}, clock=lambda: 100.0, observer=FleetObserver(), salt_of=lambda _deployment, _caller: ""
        )
        self.addresses = {
            name: Address(
                pool="p", name=name, url=f"http://127.0.0.1:{port}", kind="vllm", source="configured", version=version
            )
            for port, (name, version) in enumerate(_VERSIONS.items(), start=1)
        }
        self.fleet.hear(PoolMembers(pool="p", addresses=tuple(self.addresses.values())))
        for name in self.addresses:
            self.observe(name)

    def observe(self, name: str, *, misses: int = 0) -> None:
        answered_at = 0.0 if misses else 99.0
        probe = Probe(sent_at=99.0, first_at=0.0, misses=misses, why="no answer", answered_at=answered_at)
        self.fleet.hear(ReplicaObserved(address=self.addresses[name], probe=probe))

    @property
    def target(self) -> Target:
        return msgspec.structs.replace(target("a"), pool="p", deployments=self.pool.deployments("t"))

    def ask(self, root: int) -> ReplicaRequest:
        found = self.fleet.ask(self.target, _REQUEST, input_tokens=100, output_tokens=10, caller=_CALLER)
        return msgspec.structs.replace(found, root=root)

    def send(self, root: int, **changes: object) -> ReplicaLease:
        """A request of the conversation, held until its lease ends."""
        of, ask = self.target, msgspec.structs.replace(self.ask(root), **changes)
        found = self.fleet.pick(of, self.fleet.ready(of), ask)
        assert found is not None
        return self.fleet.take(of, found[1], ask, _REQUEST, _CALLER)

    def versions(self, roots: range) -> dict[int, tuple[str, bool]]:
        told = {}
        for root in roots:
            lease = self.send(root)
            told[root] = (lease.version, lease.other_version)
            lease.end(failed=None)
        return told


_REQUEST: ChatRequest = chat_request(stream=True)
_ROOTS = range(0, 4_000, 20)


def told(rollout: Rollout | None) -> RolloutTold:
    return RolloutTold(pool="p", rollout=rollout)


def test_conversations_get_the_version_that_they_are_meant_for() -> None:
    """Each the same one again and again; before a rollout all replicas serve, and whoever says no version is stable."""
    house = House()
    assert {version for version, _ in house.versions(_ROOTS).values()} == {"v1", "v2", ""}
    house.fleet.hear(told(_CANARY))
    first = house.versions(_ROOTS)
    assert first.keys() == house.versions(_ROOTS).keys()
    for root, (version, stood_in) in first.items():
        assert (version == "v2") == gets_candidate(_CANARY, root)
        assert not stood_in
    assert {version for version, _ in first.values()} == {"v1", "v2", UNSAID}
    promoted = msgspec.structs.replace(_CANARY, stable="v2", candidate="", share_ppm=0, state="settled")
    house.fleet.hear(told(promoted))
    assert set(house.versions(_ROOTS).values()) == {("v2", False)}
    house.fleet.hear(told(msgspec.structs.replace(_CANARY, share_ppm=0, state="rolled_back")))
    assert {version for version, _ in house.versions(_ROOTS).values()} == {"v1", UNSAID}
    # Where nothing was read of late, as prompts that nobody has read go to whoever has read least.
    idle = House()
    idle.fleet.hear(told(_CANARY))
    idle.fleet.hear(told(None))
    assert {version for version, _ in idle.versions(_ROOTS).values()} == {"v1", "v2", ""}


def test_another_version_stands_in_where_the_meant_one_is_not_there() -> None:
    """When its replica is down, and told so; nobody is refused for a rollout."""
    house = House()
    house.fleet.hear(told(msgspec.structs.replace(_CANARY, stable="v2", candidate="", share_ppm=0, state="settled")))
    house.observe("c", misses=3)
    assert {(version, True) for version in ("v1", UNSAID)} == set(house.versions(_ROOTS).values())
    house.observe("c")
    assert set(house.versions(_ROOTS).values()) == {("v2", False)}


def test_an_adapter_stays_with_the_stable_version() -> None:
    """It was made for that one's weights."""
    house = House()
    house.fleet.hear(told(_CANARY))
    meant = next(root for root in _ROOTS if gets_candidate(_CANARY, root))
    lease = house.send(meant, adapter="sql")
    assert lease.version != "v2"
    assert not lease.other_version


def test_the_rest_of_an_answer_is_for_the_version_that_began_it() -> None:
    """Also after a promotion meanwhile; another one stands in where that is gone."""
    house = House()
    house.fleet.hear(told(msgspec.structs.replace(_CANARY, stable="v2", candidate="", share_ppm=0, state="settled")))
    lease = house.send(1, version="v1")
    assert (lease.version, lease.other_version) == ("v1", False)
    for name in ("a", "b"):
        house.observe(name, misses=3)
    lease = house.send(1, version="v1")
    assert (lease.version in {"v2", UNSAID}, lease.other_version) == (True, True)
    house.fleet.hear(told(None))
    assert house.send(1, version=UNSAID).other_version is False
