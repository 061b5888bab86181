"""The gateways' queue in simulated time."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.made_up_traces import KINDS, made_up
from planner.simulate.engine import EngineSpec
from planner.simulate.fleet_simulation import FleetSimulation, FleetSpec, Measured
from planner.simulate.gateway_queue import SimulatedQueue
from planner.simulate.machines import machine_of
from planner.simulate.simulation_errors import SimulationRefused
from planner.simulate.traces import Trace, sped_up
from tests.examples import examples

MACHINE = machine_of()


def run(
    trace: Trace, *, gateways: int = 1, kv_tokens: int = 80_000, queue: bool = True, spill: bool = False
) -> Measured:
    spec = FleetSpec(replicas=2, engine=EngineSpec(kv_tokens=kv_tokens), gateways=gateways, spill=spill)
    gate = SimulatedQueue(gateways) if queue else None
    measured = FleetSimulation(spec, MACHINE.steps, trace, gate=gate).run()
    assert gate is None or gate.waiting == 0
    return measured


@settings(max_examples=examples(12), deadline=None)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    seed=st.integers(0, 99),
    size=st.sampled_from([(1, 12_288), (1, 160_000), (3, 12_288), (3, 160_000)]),
)
def test_whoever_waits_is_served(kind: str, seed: int, size: tuple[int, int]) -> None:
    """However full the engines are and whoever has the room: each request ends once, and nobody waits for good."""
    gateways, kv_tokens = size
    measured = run(sped_up(made_up(kind, seed, 40), 20), gateways=gateways, kv_tokens=kv_tokens)
    assert measured.served + measured.refused == 40


def test_what_has_no_room_waits_in_the_gateway() -> None:
    """A saturated fleet's engines give back less that they began."""
    busy = sped_up(made_up("single", 1, 200), 30)
    queued, free = run(busy), run(busy, queue=False)
    assert queued.served == free.served
    assert queued.preemptions <= free.preemptions
    assert run(busy).ttft_s == queued.ttft_s


@pytest.mark.parametrize("gateways", [1, 4])
def test_where_nothing_has_to_wait_the_queue_changes_nothing(gateways: int) -> None:
    """To the last figure: gateways hear of first tokens and ends in the same order, so that one run can be told from the other."""
    trace = sped_up(made_up("chats", 1, 200), 8)
    queued, free = (run(trace, gateways=gateways, kv_tokens=1_000_000, queue=queue) for queue in (True, False))
    assert (queued.ttft_s, queued.tpot_s) == (free.ttft_s, free.tpot_s)


def test_overflow_does_not_wait() -> None:
    """Both at once would not be what happens live, and is refused."""
    with pytest.raises(SimulationRefused, match="overflows"):
        run(made_up("chats", 1, 5), spill=True)


@pytest.mark.parametrize("kind", KINDS)
def test_made_up_traces_are_sound(kind: str) -> None:
    """Repeatable by seed, in order, with a block for every 512 tokens begun, and a prompt that goes on begins as before."""
    trace = made_up(kind, 3, 100)
    assert trace == made_up(kind, 3, 100)
    assert trace != made_up(kind, 4, 100)
    times = [each.at_s for each in trace.requests]
    assert times == sorted(times)
    assert all(len(each.blocks) == -(-each.prompt_tokens // 512) for each in trace.requests)
    before: dict[int, int | None] = {}
    for each in trace.requests:
        for above, block in zip((None, *each.blocks), each.blocks, strict=False):
            assert before.setdefault(block, above) == above
