"""Late first tokens under a fleet: simulated engines behind the real balancer, with the replicas that the month gave it."""

import numpy as np
import pytest

from planner.plans.roofline import StepTimes
from planner.savings.fluid import Outcome
from planner.savings.lateness import LatenessModel, at_the_books_speed
from planner.savings.windows import sample_of
from planner.simulate.engine import Engine, EngineSpec, Job
from planner.simulate.fleet_simulation import FleetSpec
from planner.simulate.machines import machine_of
from planner.simulate.traces import Trace, TraceRequest
from selfhosted.config import ScaleConfig
from selfhosted.replica import PoolRoom

MACHINE = machine_of(model="llama-3-8b", tp=1, efficiency="ceiling")
ENGINE, STEPS = MACHINE.engine, MACHINE.steps


class AllHere:
    """No request goes elsewhere by its price."""

    def __init__(self) -> None:
        self.rooms: list[PoolRoom | None] = []

    def overflows(self, request: TraceRequest, room: PoolRoom | None) -> bool:
        self.rooms.append(room)
        return room is None and not request.bound


def requests(*, per_s: float, seconds: float, tokens: int = 4_000, bound: bool = True) -> list[TraceRequest]:
    return [
        TraceRequest(float(at_s), tokens, 20, (), number=number, bound=bound)
        for number, at_s in enumerate(np.arange(0, seconds, 1 / per_s))
    ]


def model(found: list[TraceRequest], planner: AllHere | None = None, *, most: int = 100_000) -> LatenessModel:
    at_s = np.array([each.at_s for each in found])
    spec = FleetSpec(replicas=0, engine=ENGINE, scale=ScaleConfig(cold_start_s=120), ttft_target_s=1.0)
    return LatenessModel(
        sample_of(at_s, float(at_s[-1]) + 1, most=most, seed=0),
        lambda first, last: found[first:last],
        spec=spec, steps=STEPS, planner=planner or AllHere(), block_tokens=512,
    )  # fmt: skip


def fleet(*ready: tuple[float, int]) -> Outcome:
    return Outcome(ready=list(ready))


def test_more_replicas_make_fewer_first_tokens_late() -> None:
    """Twice what one replica does, which nobody else can serve."""
    found = model(requests(per_s=20, seconds=120))
    late = [found.of(fleet((0.0, replicas))).late.share for replicas in (1, 2, 4)]
    assert late[0] > 0.5
    assert late[0] > late[1] >= late[2]
    assert late[2] == 0


def test_who_finds_no_replica_goes_elsewhere_and_is_not_late() -> None:
    """A quarter of the time nobody is up."""
    found = model(requests(per_s=2, seconds=400, bound=False)).of(fleet((0.0, 0), (100.0, 2)))
    assert found.overflow.share == pytest.approx(0.25, abs=0.01)
    assert found.late.share == 0


def test_who_cannot_go_elsewhere_waits_for_a_replica_and_is_late() -> None:
    """The same quarter."""
    found = model(requests(per_s=2, seconds=400)).of(fleet((0.0, 0), (100.0, 2)))
    assert found.overflow.share == 0
    assert found.late.share == pytest.approx(0.25, abs=0.02)


def test_the_replicas_of_the_month_come_and_go_at_their_times() -> None:
    """One replica is too few for this traffic, and is alone in the second half only."""
    planner = AllHere()
    found = model(requests(per_s=20, seconds=400), planner).of(fleet((0.0, 4), (200.0, 1)))
    half = len(found.windows) // 2
    assert sum(window.late for window in found.windows[: half - 1]) == 0
    assert all(window.late for window in found.windows[half + 1 :])
    waits = [room.wait_s for room in planner.rooms if room is not None]
    assert max(waits[: len(waits) // 2]) < 1 < max(waits[len(waits) // 2 :])


def test_fleets_that_were_the_same_are_the_same_and_are_simulated_once() -> None:
    """In every window that they share, also when one of them has more replicas elsewhere."""
    found = requests(per_s=2, seconds=20_000)
    planner = AllHere()
    windows = model(found, planner, most=12_000)
    one = windows.of(fleet((0.0, 2)))
    asked = len(planner.rooms)
    other = windows.of(fleet((0.0, 2), (19_999.0, 3)))
    assert len(planner.rooms) == asked
    assert windows.later(one, other).share == 0


def test_a_window_in_the_middle_has_the_replicas_of_its_time() -> None:
    """None are up in the second half of a trace of which windows are simulated."""
    found = requests(per_s=2, seconds=40_000, bound=False)
    windows = model(found, most=20_000)
    assert len(windows.sample.runs) > 4
    result = windows.of(fleet((0.0, 2), (20_000.0, 0)))
    assert result.overflow.share == pytest.approx(0.5, abs=0.3)
    assert {count.overflow > 0 for count in result.windows} == {True, False}


@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_a_full_engine_is_as_fast_as_the_books_say(factor: float) -> None:
    """Whatever the data sheets would allow."""
    trace = Trace("some", "azure", tuple(requests(per_s=10, seconds=20)))
    spec = FleetSpec(replicas=1, engine=ENGINE)
    natural_s = _full_s(trace, ENGINE, STEPS)
    prompt, output = trace.prompt_tokens, trace.output_tokens
    input_s = factor * natural_s / (prompt + 2 * output)
    steps, found = at_the_books_speed(trace, spec, STEPS, input_s=input_s, cached_s=0, output_s=2 * input_s)
    assert found == pytest.approx(factor)
    assert _full_s(trace, ENGINE, steps) == pytest.approx(prompt * input_s + output * 2 * input_s)


def _full_s(trace: Trace, spec: EngineSpec, steps: StepTimes) -> float:
    ends: list[float] = []
    engine = Engine(spec, steps, lambda at, _what, _job: ends.append(at))
    for each in trace.requests:
        engine.enqueue(
            Job(arrived_at=0, prompt_tokens=each.prompt_tokens, output_tokens=each.output_tokens, blocks=()), 0.0
        )
    engine.advance(1e9)
    return ends[-1]
