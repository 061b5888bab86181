"""Late first tokens in `weighbridge savings simulate`: the trace's requests, the gateway's planner, and the engines."""

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from cost.fleet.pool_config import PoolSection
from planner.plans.models import MODELS
from planner.savings.bills import FleetBill
from planner.savings.lateness import LatenessModel, at_the_books_speed
from planner.savings.windows import sample_of
from planner.savings.workload import PlannedWorkload, Routes, Workload, alike, lengths, routes_of
from planner.simulate.fleet_simulation import FleetSpec
from planner.simulate.machines import Machine, machine_of
from planner.simulate.simulation_errors import SimulationRefused
from planner.simulate.traces import Trace, TraceRequest
from providers.catalog import Catalog
from proxy.plan.marginal_cost import Room, Rooms, place_of
from proxy.plan.route_plan import Policy
from selfhosted.config import PoolConfig, ScaleConfig
from selfhosted.replica import PoolRoom

# Simulated for all fleets together, and for each: a month is to be a matter of minutes.
_MOST_SIMULATED = 1_200_000
_MOST_EACH = 150_000
_CALIBRATING = 600
_MILLION = 1e6


class Requests:
    """The demand's requests, with the prefixes that the trace gives them."""

    def __init__(self, trace: Trace, workload: Workload, planned: PlannedWorkload) -> None:
        self._trace = trace
        self._workload = workload
        self._demand = planned.demand
        self._bound = planned.demand.bound
        self._here = planned.here
        self._widest = 1 + trace.highest_block

    def between(self, first: int, last: int) -> list[TraceRequest]:
        """Return the items from one number up to another."""
        places = self._here[first:last]
        sources, copies = self._workload.place[places].tolist(), self._workload.copy[places].tolist()
        times, bound = self._demand.at_s[first:last].tolist(), self._bound[first:last].tolist()
        return [
            msgspec.structs.replace(
                self._trace.requests[source],
                at_s=times[index],
                blocks=tuple([block + copies[index] * self._widest for block in self._trace.requests[source].blocks]),
                number=first + index,
                bound=bound[index],
            )
            for index, source in enumerate(sources)
        ]


class RoomPlanner:
    """The gateway's planner before a simulated fleet: whether the pool comes first, by the balancer's room."""

    def __init__(
        self, workload: Workload, planned: PlannedWorkload, routes: Routes, pool: PoolSection, first_token_s: float
    ) -> None:
        self._routes = routes
        self._alike = alike(workload, routes)[planned.here]
        self._targets = pool.targets
        self._by_margin = pool.price == "margin"
        self._aim_s = first_token_s

    def overflows(self, request: TraceRequest, room: PoolRoom | None) -> bool:
        if request.bound:
            return False
        if room is None or not self._by_margin:
            # Nobody takes requests, so the pool is no candidate; or its price does not follow the wait.
            return room is None
        level, size, answer = self._alike[request.number].tolist()
        here = Room(room.wait_s, self._aim_s, room.fill)
        rooms = Rooms(dict.fromkeys(self._targets, here), place_of(str(request.number)))
        return not self._routes.first_is_own(level, *lengths(size, answer), rooms)


class Engines(msgspec.Struct, frozen=True, kw_only=True):
    """The engines that were simulated."""

    machine: Machine
    factor: float
    """The factor of their step times, so that a full engine does what the books' weights say."""


def machine_for(pool: PoolSection, watched: PoolConfig | None, model: str | None, gpu: str) -> Machine:
    """Return the hardware of one of the pool's replicas. Raises SimulationRefused."""
    upstream = None if watched is None else watched.upstream_model
    known = {shape.repository: name for name, shape in MODELS.items()} | {name: name for name in MODELS}
    name = model or known.get(upstream or "", "llama-3-70b")
    try:
        return machine_of(model=name, gpu=gpu, tp=pool.gpus_per_replica, efficiency="ceiling")
    except SimulationRefused as error:
        raise SimulationRefused(
            f"the engines of {pool.name} ({name} on {pool.gpus_per_replica} x {gpu}, `gpus_per_replica`) cannot be "
            f"simulated: {error}. Say what runs there with --model and --gpu, or leave lateness out with --no-lateness"
        ) from None


def lateness_model(
    trace: Trace,
    workload: Workload,
    planned: PlannedWorkload,
    *,
    machine: Machine,
    catalog: Catalog,
    policy: Policy,
    pool: PoolSection,
    watched: PoolConfig | None,
    scale: ScaleConfig,
    first_token_s: float,
    most: int,
    seed: int,
) -> tuple[LatenessModel, Engines]:
    """Return the model by which all fleets are judged, with about `most` requests each. Raises SimulationRefused."""
    requests = Requests(trace, workload, planned)
    spec = FleetSpec(replicas=0, engine=machine.engine, scale=scale, ttft_target_s=scale.ttft_target_s, seed=seed)
    if watched is not None:
        spec = msgspec.structs.replace(spec, balance=watched.balance, room=watched.room, watch_s=watched.watch.every_s)
    weights = pool.seconds_per_million
    some = Trace(trace.name, trace.format, tuple(requests.between(0, _CALIBRATING)), trace.block_tokens)
    steps, factor = at_the_books_speed(
        some,
        spec,
        machine.steps,
        input_s=float(weights.input) / _MILLION,
        cached_s=float(weights.cached_input) / _MILLION,
        output_s=float(weights.output) / _MILLION,
    )
    demand = planned.demand
    model = LatenessModel(
        sample_of(demand.at_s, demand.duration_s, most=most, seed=seed),
        requests.between,
        spec=spec,
        steps=steps,
        planner=RoomPlanner(
            workload, planned, routes_of(catalog, policy, frozenset(pool.targets)), pool, first_token_s
        ),
        block_tokens=trace.block_tokens,
    )
    return model, Engines(machine=machine, factor=factor)


def most_for(fleets: int) -> int:
    """Return the requests to simulate under each of so many fleets."""
    return min(_MOST_EACH, _MOST_SIMULATED // max(1, fleets))


def with_lateness(
    bills: Sequence[FleetBill], model: LatenessModel, progress: Callable[[str, float], None]
) -> list[FleetBill]:
    """Return the bills, each with the lateness of its fleet's windows."""
    found = []
    for bill in bills:
        outcome, name = bill.outcome, f"{bill.name}, first tokens"
        late = None if outcome is None else model.of(outcome, partial(progress, name))
        found.append(msgspec.structs.replace(bill, lateness=late))
    return found
