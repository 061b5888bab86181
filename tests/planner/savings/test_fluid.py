"""One fleet on a trace, in steps of seconds."""

import math

import msgspec
import numpy as np
import pytest

from planner.savings.demand import Demand
from planner.savings.fluid import STEP_S, FluidFleet, FluidSpec, Outcome, Steps
from selfhosted.scale.policy import ScaleDecision
from selfhosted.scale.signals import Signals

HOUR_US = 3_600_000_000


def demand(per_s: float, work_s: float, seconds: float, *, elsewhere: int = 1_000) -> Demand:
    at_s = np.arange(0, seconds, 1 / per_s)
    ones = np.ones(len(at_s), dtype=np.int64)
    return Demand(
        at_s=at_s, work_s=np.full(len(at_s), work_s), input_tokens=ones * 1_000, output_tokens=ones,
        elsewhere_nanousd=ones * elsewhere, duration_s=seconds, others_nanousd=0,
    )  # fmt: skip


def outcome(found: Demand, replicas: int, *, cold_s: float = 0.0, wait_s: float = 1.0, aim_s: float = 1.0) -> Outcome:
    spec = FluidSpec(
        replicas=replicas, cold_start_s=cold_s, wait_s=wait_s, aim_s=aim_s, output_weight=2.0, input_s=1e-4
    )
    return FluidFleet(Steps(found), spec).run()


def test_what_fits_is_carried_and_the_rest_goes_elsewhere() -> None:
    """Two replicas carry two of three replica-seconds a second, and a little in the buffer."""
    found = outcome(demand(30, 0.1, 3_600), 2)
    assert found.up_us == 2 * HOUR_US
    assert found.utilisation == pytest.approx(1.0, abs=0.01)
    assert found.requests_here == pytest.approx(72_000, rel=0.01)
    assert found.requests_here + found.requests_elsewhere == 108_000
    assert found.elsewhere_nanousd == found.requests_elsewhere * 1_000
    assert found.late == 0


def test_a_fleet_serves_nobody_before_it_has_started_and_costs_from_its_order_on() -> None:
    """A cold start of ten minutes is paid for, and what comes meanwhile goes elsewhere."""
    found = outcome(demand(1, 0.1, 3_600), 1, cold_s=600)
    assert found.up_us == HOUR_US
    assert found.requests_elsewhere == 600


def test_without_replicas_all_goes_elsewhere() -> None:
    """No fleet, no bill, no wait."""
    found = outcome(demand(1, 0.1, 600), 0)
    assert (found.up_us, found.requests_here, found.elsewhere_nanousd, found.utilisation) == (0, 0, 600_000, None)


def test_who_cannot_go_elsewhere_waits_and_is_late() -> None:
    """Half again as much as one replica carries, and nobody else is capable."""
    found = outcome(demand(15, 0.1, 600, elsewhere=-1), 1)
    assert found.requests_elsewhere == 0
    assert found.late > 8_000
    assert outcome(demand(15, 0.1, 600, elsewhere=-1), 2).late == 0


def test_a_deadline_beyond_the_aim_makes_late_first_tokens() -> None:
    """Who may wait for ten seconds waits, and is counted."""
    assert outcome(demand(15, 0.1, 600), 1, wait_s=10).late > 5_000
    assert outcome(demand(15, 0.1, 600), 1, wait_s=math.inf).requests_elsewhere == 0


def test_a_scaler_sees_what_came_and_what_it_costs_elsewhere() -> None:
    """The signals are those of production, and its word is done: new ones after a cold start."""
    seen: list[Signals] = []

    class Three:
        def decide(self, signals: Signals) -> ScaleDecision:
            seen.append(signals)
            return ScaleDecision(3, "demand", "three")

    spec = FluidSpec(replicas=1, cold_start_s=60, wait_s=1, aim_s=1, output_weight=2.0, input_s=1e-4)
    found = FluidFleet(Steps(demand(10, 0.1, 600)), spec, Three()).run()
    assert len(seen) == 600 / STEP_S
    assert seen[0].input_tokens_per_s == pytest.approx(10_000)
    assert seen[0].elsewhere_usd == pytest.approx(1e-6 / (0.1 / 1e-4))
    assert (seen[0].ready, seen[0].starting, seen[-1].ready) == (0, 1, 3)
    assert found.most_replicas == 3


def test_requests_go_elsewhere_over_the_last_part_of_the_wait() -> None:
    """One after the other, as the shadow price has it: with a spread fewer are taken, and those that are wait for less."""

    def taken(spread: float) -> Outcome:
        spec = FluidSpec(
            replicas=2, cold_start_s=0.0, wait_s=1, spread=spread, aim_s=0.5, output_weight=2.0, input_s=1e-4
        )
        draw = np.random.default_rng(1)
        found = demand(20, 0.1, 3_600)
        # Bursts: as many in a minute, at any time in it.
        at_s = np.sort(draw.uniform(0, 3_600, len(found)))
        return FluidFleet(Steps(msgspec.structs.replace(found, at_s=at_s)), spec).run()

    one, other = taken(0.0), taken(0.5)
    assert one.requests_elsewhere < other.requests_elsewhere < 2 * one.requests_elsewhere
    assert other.late < one.late


def test_a_burst_overflows_that_the_hour_would_carry() -> None:
    """One replica could do a quarter of its work in the pauses, and of a burst takes what can wait for a second."""
    at_s = np.repeat(np.arange(0, 3_600, 40.0), 100)
    found = msgspec.structs.replace(demand(2.5, 0.1, 3_600), at_s=at_s)
    assert len(found) == len(at_s)
    burst = outcome(found, 1)
    assert 900 <= burst.requests_here <= 990
    assert burst.requests_here + burst.requests_elsewhere == 9_000


def test_what_a_replica_has_left_it_does_while_it_drains() -> None:
    """Nothing that was taken is lost when the fleet shrinks."""

    class Fewer:
        def decide(self, signals: Signals) -> ScaleDecision:
            return ScaleDecision(2 if signals.at_s < 300 else 1, "demand", "fewer")

    spec = FluidSpec(replicas=2, cold_start_s=0.0, wait_s=1, aim_s=1, output_weight=2.0, input_s=1e-4)
    found = FluidFleet(Steps(demand(30, 0.1, 600)), spec, Fewer()).run()
    assert found.busy_s == pytest.approx(found.requests_here * 0.1, abs=2.0)
    assert found.ready[-1][1] == 1
