"""A whole fleet in simulated time: nothing is lost, the same seed gives the same, and better policies do better."""

import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.plans.comparators import comparator_named
from planner.simulate.choosers import POLICIES
from planner.simulate.engine import EngineSpec
from planner.simulate.fleet_simulation import FleetSimulation, FleetSpec, Measured
from planner.simulate.machines import machine_of
from planner.simulate.scaling import SCALERS, demand_of
from planner.simulate.simulation_errors import SimulationRefused
from planner.simulate.simulation_report import HEADINGS, report_of, row_of, spread_of
from planner.simulate.traces import Trace, TraceRequest, read_trace
from selfhosted.config import RoomConfig, ScaleConfig
from tests.examples import examples

DATA = Path(__file__).parent / "data"
MACHINE = machine_of()
ENGINE = EngineSpec(kv_tokens=80_000)


def conversations(seed: int = 1, *, users: int = 24, turns: int = 6, every_s: float = 12.0) -> Trace:
    """Users who ask again and again, each turn longer by what came before; all share a system prompt."""
    rng = random.Random(seed)
    found = []
    for user in range(users):
        at_s, length = rng.uniform(0, every_s), rng.randint(3, 10)
        for _ in range(turns):
            blocks = (0, *(1 + user * 1_000 + index for index in range(length - 1)))
            found.append(TraceRequest(at_s, length * 512 - rng.randint(1, 200), rng.randint(1, 120), blocks))
            at_s += rng.expovariate(1 / every_s)
            length += rng.randint(1, 3)
    found.sort(key=lambda each: each.at_s)
    start = found[0].at_s
    return Trace("conversations", "mooncake", tuple(
        TraceRequest(each.at_s - start, each.prompt_tokens, each.output_tokens, each.blocks) for each in found
    ))  # fmt: skip


def run(trace: Trace, **changed: object) -> Measured:
    spec = FleetSpec(**({"replicas": 3, "engine": ENGINE} | changed))  # type: ignore[arg-type] # of many types
    return FleetSimulation(spec, MACHINE.steps, trace).run()


def whole(measured: Measured) -> None:
    assert measured.served + measured.overflow + measured.refused == measured.requests
    assert len(measured.ttft_s) == len(measured.duration_each_s) == measured.served
    assert 0 <= measured.cached_tokens < max(1, measured.prompt_tokens)
    assert all(value > 0 for value in measured.ttft_s)
    assert all(sample.kv_usage <= 1 for sample in measured.samples)
    assert measured.busy_s <= measured.replica_s + 1e-6


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_serves_everything(policy: str) -> None:
    """Whoever chooses: each request ends once, tokens are conserved, and a cache finds no more than is asked for."""
    trace = conversations()
    measured = run(trace, policy=policy, gateways=2)
    whole(measured)
    assert measured.served == len(trace.requests)
    assert (measured.prompt_tokens, measured.output_tokens) == (trace.prompt_tokens, trace.output_tokens)
    if not measured.preemptions:
        assert measured.computed_tokens + measured.cached_tokens == trace.prompt_tokens


@pytest.mark.parametrize("scaler", SCALERS)
def test_every_scaling_serves_everything(scaler: str) -> None:
    """However the fleet is scaled, nothing is lost, and every replica's hours are counted from its order on."""
    trace = conversations(users=40, turns=20)
    scale = ScaleConfig(min_replicas=1, max_replicas=6, cold_start_s=30, down_stabilisation_s=30, cooldown_s=10)
    measured = run(trace, replicas=1, scaler=scaler, scale=scale, engine=EngineSpec(kv_tokens=40_000))
    whole(measured)
    assert measured.served == len(trace.requests)
    assert measured.replica_s >= measured.duration_s - 1e-6
    assert measured.replica_s <= measured.peak_replicas * measured.duration_s + 1e-6
    if scaler == "fixed":
        assert measured.replica_s == pytest.approx(measured.duration_s)


def test_same_seed_same_figures() -> None:
    """Twice the same is the same to the last digit; another seed is another run."""
    trace = conversations()
    first, again, other = (run(trace, policy="power-of-two", gateways=3, seed=seed) for seed in (7, 7, 8))
    assert first.ttft_s == again.ttft_s
    assert first.ttft_s != other.ttft_s


def test_prefixes_are_told_apart_as_finely_as_the_trace_does() -> None:
    """In blocks of 16 a second prompt finds all but its last tokens, where blocks of 512 would not hold any of it."""
    prompt = tuple(range(20))
    requests = (TraceRequest(0.0, 325, 5, prompt), TraceRequest(30.0, 325, 5, (*prompt[:10], *range(100, 110))))
    trace = Trace("two", "mooncake", requests, 16)
    measured = FleetSimulation(FleetSpec(replicas=1, engine=ENGINE), MACHINE.steps, trace).run()
    assert measured.cached_tokens == 160


def test_first_tokens_are_late_by_what_is_outside_of_the_engine() -> None:
    """HTTP and tokenizing: the planner counts it, and so does the fleet."""
    trace = Trace("one", "azure", (TraceRequest(0.0, 1_000, 5, ()),))
    slow = msgspec.structs.replace(MACHINE.steps, request_s=MACHINE.steps.request_s + 0.5)
    fast, late = (
        FleetSimulation(FleetSpec(replicas=1, engine=ENGINE), steps, trace).run() for steps in (MACHINE.steps, slow)
    )
    assert late.ttft_s[0] == pytest.approx(fast.ttft_s[0] + 0.5)


def test_caches_are_found() -> None:
    """Affinity finds more in caches than round robin, and the oracle's first tokens are no later."""
    trace = conversations(users=30, turns=10)
    found = {policy: run(trace, policy=policy) for policy in ("prefix", "round-robin", "oracle")}
    hits = {policy: each.cached_tokens for policy, each in found.items()}
    assert hits["prefix"] > 1.2 * hits["round-robin"]
    mean = {policy: sum(each.ttft_s) / each.served for policy, each in found.items()}
    assert mean["oracle"] < mean["round-robin"]
    assert mean["prefix"] < mean["round-robin"]


def test_overflow_is_counted_and_priced() -> None:
    """What no replica has room for goes elsewhere, and is paid there token by token."""
    trace = conversations(users=200, turns=2, every_s=1.0)
    measured = run(trace, replicas=1, spill=True, room=RoomConfig(max_waiting=2), engine=EngineSpec(kv_tokens=20_000))
    whole(measured)
    assert measured.overflow > 0
    told = report_of(measured, MACHINE, trace, comparator=comparator_named("mine=2/8"))
    prompts, outputs = measured.overflow_prompt_tokens, measured.overflow_output_tokens
    assert measured.prompt_tokens + prompts == trace.prompt_tokens
    assert told.overflow_usd * 1_000_000 == 2 * prompts + 8 * outputs
    assert told.usd == told.gpu_usd + told.overflow_usd
    assert told.overflow_priced_by == "mine"


def test_too_long_for_any_engine() -> None:
    """A prompt that fits no cache is refused, not waited for, and goes elsewhere where there is one."""
    trace = Trace("long", "mooncake", (TraceRequest(0, 100_000, 5, ()), TraceRequest(1, 100, 5, ())))
    assert run(trace, engine=EngineSpec(kv_tokens=50_000)).refused == 1
    assert run(trace, engine=EngineSpec(kv_tokens=50_000), spill=True).overflow == 1


def test_pool_of_none() -> None:
    """While nobody is ready, requests wait at the gateway, and are served once somebody is."""
    trace = conversations(users=4, turns=3)
    scale = ScaleConfig(min_replicas=1, max_replicas=2, cold_start_s=45)
    measured = run(trace, replicas=0, scaler="keda", scale=scale)
    whole(measured)
    assert measured.served == len(trace.requests)
    assert max(measured.ttft_s) > 40
    with pytest.raises(SimulationRefused, match="no replica"):
        run(trace, replicas=0)


def test_report() -> None:
    """The table's figures are the run's, percentiles are values that occurred, and the paper fleet is whole cells."""
    trace = read_trace(DATA / "conversation.jsonl")
    measured = run(trace, replicas=2)
    told = report_of(measured, MACHINE, trace, target_requests_per_s=1_000)
    assert told.ttft_s.p99 in measured.ttft_s
    assert told.gpu_hours == pytest.approx(2 * MACHINE.gpus * measured.duration_s / 3_600)
    assert told.cells is not None
    assert told.cells.cells == 12_000  # 5 requests in a minute.
    assert told.cells.gpus == 12_000 * 2 * MACHINE.gpus
    assert len(row_of(told)) == len(HEADINGS)
    assert spread_of([3.0, 1.0, 2.0]).p50 == 2.0
    assert spread_of([]).mean is None


@settings(max_examples=examples(25), deadline=None)
@given(
    seed=st.integers(0, 1_000),
    policy=st.sampled_from(POLICIES),
    replicas=st.integers(1, 4),
    gateways=st.integers(1, 3),
    kv_tokens=st.sampled_from([12_288, 40_960]),
    spill=st.booleans(),
)
def test_whatever_comes(seed: int, policy: str, replicas: int, gateways: int, kv_tokens: int, spill: bool) -> None:
    """Each request ends exactly once: served, elsewhere or refused."""
    trace = conversations(seed, users=6, turns=4, every_s=4.0)
    measured = run(
        trace, policy=policy, replicas=replicas, gateways=gateways, spill=spill, engine=EngineSpec(kv_tokens=kv_tokens)
    )
    whole(measured)
    assert measured.prompt_tokens + measured.overflow_prompt_tokens <= trace.prompt_tokens
    if not measured.refused:
        assert measured.prompt_tokens + measured.overflow_prompt_tokens == trace.prompt_tokens
        assert measured.output_tokens + measured.overflow_output_tokens == trace.output_tokens


def test_kv_events_help_gateways_that_know_nothing() -> None:
    """Told by the engines what is cached, several gateways find more of it than each by itself."""
    trace = conversations(users=30, turns=10)
    told, inferred = (run(trace, gateways=6, hosts=6, kv_events=on) for on in (True, False))
    whole(told)
    assert told.cached_tokens > inferred.cached_tokens


def test_demand_is_what_arrives() -> None:
    """Who knows the future knows all of the trace's work, and nothing else."""
    trace = conversations()
    demand = demand_of(trace)
    bins = range(int(trace.duration_s // 15) + 2)
    work = sum(each.prompt_tokens + 4 * each.output_tokens for each in trace.requests)
    assert sum(demand(15.0 * each + 7) * 15 for each in bins) == pytest.approx(work)
    assert demand(15.0) == demand(29.9)


def test_gateways_of_one_host_find_what_the_others_sent() -> None:
    """Eight gateways that tell each other find nearly what one finds; eight hosts that do not find less, and more once they do."""
    trace = conversations(users=30, turns=10)
    one, host, hosts = (
        run(trace, gateways=gateways, hosts=hosts).cached_tokens for gateways, hosts in ((1, 1), (8, 1), (8, 8))
    )
    assert host > 0.9 * one
    assert hosts < host
    assert run(trace, gateways=8, hosts=8, hosts_told_after_s=0.15).cached_tokens > hosts
