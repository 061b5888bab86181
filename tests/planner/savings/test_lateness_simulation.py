"""The planner before the simulated fleets of `savings simulate`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.configuration.environment import read_environment
from gateway.configuration.gateway_config import GatewayConfig
from gateway.configuration.settings import load
from gateway.wiring.policy import build_policy
from planner.savings.lateness_simulation import Requests, RoomPlanner
from planner.savings.workload import planned, repeated, routes_of, workload_of
from planner.simulate.traces import Trace, TraceRequest
from providers.catalog import build_catalog
from selfhosted.replica import PoolRoom
from tests.gateway.commands.test_savings_simulate import CONFIG

TRACE = Trace(
    "t", "mooncake", tuple(TraceRequest(float(at), 1_000, 50, (1, 10 + at % 3)) for at in range(200)), block_tokens=512
)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> GatewayConfig:
    path = tmp_path_factory.mktemp("config") / "c.yaml"
    path.write_text(CONFIG % (0, "1"))
    return load(path, read_environment(), secrets_from=None)


@pytest.fixture(scope="module")
def planner(settings: GatewayConfig) -> RoomPlanner:
    catalog = build_catalog(settings.providers, lambda _: "unused", pools=settings.selfhosted.pool_of_target())
    policy, pool = build_policy(settings.policy, settings.cost), settings.cost.pools[0]
    workload = workload_of(TRACE)
    found = planned(workload, catalog=catalog, policy=policy, pool=pool, first_token_s=1.0)
    return RoomPlanner(workload, found, routes_of(catalog, policy, frozenset(pool.targets)), pool, 1.0)


def request(number: int, *, bound: bool = False) -> TraceRequest:
    return TraceRequest(0.0, 1_000, 50, (), number=number, bound=bound)


@given(number=st.integers(0, 100), wait_s=st.floats(0, 3), more_s=st.floats(0, 3), fill=st.floats(0, 1.2))
def test_who_overflows_overflows_at_every_longer_wait(
    planner: RoomPlanner, number: int, wait_s: float, more_s: float, fill: float
) -> None:
    """And never with room, always from the aim on."""
    each = request(number)
    if planner.overflows(each, PoolRoom(wait_s, fill)):
        assert planner.overflows(each, PoolRoom(wait_s + more_s, fill))
    assert not planner.overflows(each, PoolRoom(0.0, 0.0))
    assert planner.overflows(each, PoolRoom(1.0, 0.0))


def test_a_part_of_the_requests_goes_before_the_aim_is_reached(planner: RoomPlanner) -> None:
    """As in production, where processes that see the same must not send all at once."""
    gone = sum(planner.overflows(request(number), PoolRoom(0.75, 0.0)) for number in range(100))
    assert 20 < gone < 95


def test_without_a_replica_only_those_stay_who_are_bound(planner: RoomPlanner) -> None:
    """Nobody else can serve them."""
    assert planner.overflows(request(1), None)
    assert not planner.overflows(request(1, bound=True), None)
    assert not planner.overflows(request(1, bound=True), PoolRoom(9.0, 1.0))


def test_copies_share_no_prefix_and_one_copy_shares_what_the_trace_does(settings: GatewayConfig) -> None:
    """Of two users and two hours there are four kinds of blocks, each of the trace's own."""
    catalog = build_catalog(settings.providers, lambda _: "unused", pools=settings.selfhosted.pool_of_target())
    policy, pool = build_policy(settings.policy, settings.cost), settings.cost.pools[0]
    workload = repeated(workload_of(TRACE), users=2, days=1)
    found = planned(workload, catalog=catalog, policy=policy, pool=pool, first_token_s=1.0)
    requests = Requests(TRACE, workload, found).between(0, len(found.demand))
    assert [each.number for each in requests] == list(range(len(requests)))
    assert [each.at_s for each in requests] == found.demand.at_s.tolist()
    copies = {(each.blocks[0], int(each.at_s // 3_600)) for each in requests}
    assert len({block for block, _ in copies}) == 2 * 24
    assert {each.blocks[1] - each.blocks[0] for each in requests} <= {9, 10, 11}


def test_a_part_of_the_requests_is_that_part(settings: GatewayConfig) -> None:
    """Whatever is asked for: numbers, times and prefixes are those of the whole."""
    catalog = build_catalog(settings.providers, lambda _: "unused", pools=settings.selfhosted.pool_of_target())
    policy, pool = build_policy(settings.policy, settings.cost), settings.cost.pools[0]
    workload = workload_of(TRACE)
    found = planned(workload, catalog=catalog, policy=policy, pool=pool, first_token_s=1.0)
    requests = Requests(TRACE, workload, found)
    assert requests.between(20, 60) == requests.between(0, 100)[20:60]
