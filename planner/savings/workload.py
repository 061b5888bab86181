"""The requests of a trace, planned as the gateway plans them: which the pool may serve, and what each costs elsewhere.

A trace has no text, so no prompt can be classified. Complexity is the share of prompts that are easier, so it is
spread evenly over the requests, and declared capability decides; answers are expected to be as long as they are.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier.frontier import most_lost
from classifier.onnx_classifier import OnnxClassifier
from classifier.prediction import Prediction
from cost.fleet.pool_config import PoolSection
from cost.meters import METER_NAMES
from cost.prices import Price
from planner.savings.demand import Demand, Whole
from planner.savings.verdicts import Against, Elsewhere
from planner.simulate.simulation_errors import SimulationRefused
from planner.simulate.traces import DAY_PROFILE, Trace
from providers.catalog import Catalog
from providers.target import Deployment, Target
from proxy.errors import Refused
from proxy.parse.chat_request import AUTO
from proxy.plan.marginal_cost import NO_ROOMS, Rooms
from proxy.plan.route_plan import Candidate, Facts, Policy, is_own, plan

CACHED_FOR_S: Final = 600.0
"""Time for which providers and engines are taken to remember a prompt's beginning."""
_GOLDEN: Final = 0.6180339887498949
# Lengths are planned in steps of some 3 %: which model is cheapest does not hang on less.
_LENGTH_STEP: Final = 1.03
_NOT_CAPABLE: Final = frozenset({"baseline", "dearest", "most-capable"})
"""The reasons of a first candidate that is not known to be good enough."""
_MILLION: Final = 1_000_000
_MOST: Final = 2**62
_APART_S: Final = 10.0
_HOUR_S: Final = 3_600.0
MOST_REQUESTS: Final = 20_000_000


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of a trace as numbers."""

    at_s: NDArray[np.float64]
    input_tokens: Whole
    cached_tokens: Whole
    output_tokens: Whole
    complexity: NDArray[np.float64]
    place: Whole
    """The place in the trace of the request that each is a copy of."""
    copy: Whole
    """Copies of one number share prefixes, as the trace's requests do; others share nothing."""
    duration_s: float


class PlannedWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """A workload with the planner's decisions on it."""

    demand: Demand
    baseline_nanousd: int
    routed_nanousd: int
    """Cost of all requests with routing between commercial models alone."""
    elsewhere: Mapping[Against, Elsewhere]
    """Cost of the requests that the pool is capable of: at the baseline model, and with routing between commercial models alone."""
    refused: int
    """Requests that no model can serve."""
    here: Whole
    """Places in the workload of the requests that the pool is capable of, which are the demand."""


def workload_of(trace: Trace) -> Workload:
    """Return the trace's requests; what a prompt shares with one of the last minutes is cached."""
    seen: dict[int, float] = {}
    cached = [_cached(each.blocks, each.at_s, each.prompt_tokens, trace.block_tokens, seen) for each in trace.requests]
    count = len(trace.requests)
    return Workload(
        at_s=np.fromiter((each.at_s for each in trace.requests), float, count),
        input_tokens=np.fromiter((each.prompt_tokens for each in trace.requests), np.int64, count),
        cached_tokens=np.array(cached, dtype=np.int64),
        output_tokens=np.fromiter((each.output_tokens for each in trace.requests), np.int64, count),
        complexity=np.array((np.arange(count) * _GOLDEN + 0.5) % 1.0, dtype=np.float64),
        place=np.arange(count),
        copy=np.zeros(count, dtype=np.int64),
        duration_s=trace.duration_s,
    )


def _cached(blocks: tuple[int, ...], at_s: float, prompt: int, size: int, seen: dict[int, float]) -> int:
    known = 0
    for block in blocks:
        if at_s - seen.get(block, -CACHED_FOR_S - 1) > CACHED_FOR_S:
            break
        known += 1
    seen.update(dict.fromkeys(blocks, at_s))
    return min(known * size, prompt - 1)


def planned(
    workload: Workload,
    *,
    catalog: Catalog,
    policy: Policy,
    pool: PoolSection,
    first_token_s: float,
) -> PlannedWorkload:
    """Plan each request: with the pool, without it, and at the baseline model. `first_token_s` is the deadline; whose
    prompt alone takes longer to read here goes elsewhere.
    """
    work_s = work_of(workload, pool)
    alone_s = work_s - workload.output_tokens * float(pool.seconds_per_million.output) / _MILLION
    routes = routes_of(catalog, policy, frozenset(pool.targets))
    here, elsewhere, anywhere = decided(workload, routes)
    here &= alone_s <= first_token_s
    costs = costs_of(workload, catalog, routes.names)
    index = np.arange(len(workload.at_s))
    other = costs[anywhere, index]
    capable = np.where(elsewhere >= 0, costs[elsewhere, index], -1)
    reference = catalog.targets.get(policy.reference or "")
    baseline = np.zeros(len(index), dtype=np.int64)
    if reference is not None and reference.price is not None:
        baseline = costs_nanousd(reference.price, workload)
    served = anywhere >= 0
    demand = Demand(
        at_s=workload.at_s[here],
        work_s=work_s[here],
        input_tokens=(workload.input_tokens - workload.cached_tokens)[here],
        output_tokens=workload.output_tokens[here],
        elsewhere_nanousd=capable[here],
        duration_s=workload.duration_s,
        others_nanousd=int(other[~here & served].sum()),
    )
    return PlannedWorkload(
        demand=demand,
        baseline_nanousd=int(baseline.sum()),
        routed_nanousd=int(other[served].sum()),
        elsewhere={
            "reference": Elsewhere(nanousd=int(baseline[here].sum()), work_s=float(work_s[here].sum())),
            "routed": Elsewhere(nanousd=int(other[here & served].sum()), work_s=float(work_s[here & served].sum())),
        },
        refused=int((~here & ~served).sum()),
        here=index[here],
    )


def work_of(workload: Workload, pool: PoolSection) -> NDArray[np.float64]:
    """Return the seconds that one replica of the pool takes for each request, by the weights of the books."""
    weights = pool.seconds_per_million
    fresh = (workload.input_tokens - workload.cached_tokens) * float(weights.input)
    cached = workload.cached_tokens * float(weights.cached_input)
    work: NDArray[np.float64] = (fresh + cached + workload.output_tokens * float(weights.output)) / _MILLION
    return work


def costs_nanousd(price: Price, workload: Workload) -> Whole:
    """Return the cost of each request as `Price.cost_nanousd` gives it, for all of them at once."""
    costs = np.zeros(len(workload.at_s), dtype=np.int64)
    done = np.zeros(len(workload.at_s), dtype=np.bool_)
    for above in (*(each.above_tokens for each in reversed(price.long_prompts)), -1):
        chosen = ~done & (workload.input_tokens > above)
        figures = dict(zip(METER_NAMES, price.applying(above + 1, batch=False).figures(), strict=True))
        amounts = (workload.input_tokens - workload.cached_tokens, workload.cached_tokens, workload.output_tokens)
        if sum(int(each.max(initial=0)) for each in amounts) * max(figures.values()) + figures["request"] > _MOST:
            raise OverflowError("a request costs more than can be added up")
        fresh, cached, output = amounts
        total = (
            fresh * figures["input"]
            + cached * figures["cached_input"]
            + output * figures["output"]
            + figures["request"]
        )
        costs[chosen] = ((total + _MILLION // 2) // _MILLION)[chosen]
        done |= chosen
    return costs


def costs_of(workload: Workload, catalog: Catalog, names: list[str]) -> Whole:
    """Return the costs by target and request, and a last row of nothing for no target."""
    rows = []
    for name in names:
        price = catalog.targets[name].price
        rows.append(np.zeros(len(workload.at_s), dtype=np.int64) if price is None else costs_nanousd(price, workload))
    return np.array([*rows, np.zeros(len(workload.at_s), dtype=np.int64)], dtype=np.int64)


def decided(workload: Workload, routes: "Routes") -> tuple[NDArray[np.bool_], Whole, Whole]:
    """Return, for each request, whether the pool may serve it, the capable model elsewhere, and any model elsewhere
    (-1: none).
    """
    keys, inverse = np.unique(alike(workload, routes), axis=0, return_inverse=True)
    inverse = inverse.reshape(len(workload.at_s))
    found = np.array(
        [routes.of(level, *lengths(size, answer)) for level, size, answer in keys.tolist()], dtype=np.int64
    )
    return found[inverse, 0].astype(np.bool_), found[inverse, 1], found[inverse, 2]


def alike(workload: Workload, routes: "Routes") -> Whole:
    """Return, for each request, its level and its lengths in steps: requests of the same three are planned alike."""
    levels = np.searchsorted(routes.levels, workload.complexity, side="left")
    step = np.log(_LENGTH_STEP)
    sizes = np.ceil(np.log(workload.input_tokens) / step).astype(np.int64)
    answers = np.ceil(np.log(workload.output_tokens) / step).astype(np.int64)
    found: Whole = np.stack((levels, sizes, answers), axis=1)
    return found


def lengths(size: int, answer: int) -> tuple[int, int]:
    """Return the tokens of the prompt and of the answer that these steps stand for."""
    return round(_LENGTH_STEP**size), round(_LENGTH_STEP**answer)


def with_capabilities(catalog: Catalog, classifier: object, policy: Policy) -> Catalog:
    """Return the catalog with a capability for each target that has a row and no declared one: the share of the classifier's sample of
    which it loses no more against the reference than the minimum quality lets any prompt lose. Complexity is spread evenly here,
    so that is the highest that it is good enough for.
    """
    reference = policy.reference or ""
    if not isinstance(classifier, OnnxClassifier) or reference not in classifier.rows:
        return catalog
    sample, most = classifier.sample(), most_lost(policy.quality_floor)
    names = [name for name, target in catalog.targets.items() if target.capability is None and name in classifier.rows]
    chances = classifier.adequacies(sample.vectors, [reference, *names])
    shares = sample.weights @ (chances[:, :1] - chances[:, 1:] <= most) / sample.weights.sum()
    found = dict(zip(names, map(float, shares), strict=True))
    return Catalog(
        targets={
            name: msgspec.structs.replace(target, capability=found.get(name, target.capability))
            for name, target in catalog.targets.items()
        },
        wildcards=catalog.wildcards,
    )


def routes_of(catalog: Catalog, policy: Policy, pool: frozenset[str]) -> "Routes":
    """Return the planner's decisions with and without the pool of these targets."""
    return Routes(catalog, msgspec.structs.replace(policy, max_candidates=len(catalog)), pool)


class Routes:
    """The planner's decisions for requests of some complexity and length."""

    def __init__(self, catalog: Catalog, policy: Policy, pool: frozenset[str]) -> None:
        self._catalog = catalog
        self._policy = policy
        self._pool = pool
        self.names = [target.target_id for target in catalog]
        declared = {target.capability for target in catalog if target.capability is not None}
        self.levels = np.array(sorted(each + policy.capability_shift for each in declared or {1.0}))
        self._commercial: Mapping[str, tuple[Deployment, ...]] = {
            target.target_id: _some_deployment(target)
            for target in catalog
            if not is_own(target, policy.pooled) and target.target_id not in pool
        }
        own = {name: _some_deployment(catalog.targets[name]) for name in pool if name in catalog.targets}
        self._all = {**self._commercial, **own}

    def of(self, level: int, input_tokens: int, output_tokens: int) -> tuple[int, int, int]:
        """Return whether the pool may serve it, and the rows of a capable and of any model elsewhere; -1 for none."""
        complexity = self._complexity(level)
        with_pool = self._plan(complexity, input_tokens, output_tokens, self._all)
        without = self._plan(complexity, input_tokens, output_tokens, self._commercial)
        here = any(each.target.target_id in self._pool and each.reason != "degraded" for each in with_pool)
        first = without[0] if without else None
        anywhere = -1 if first is None else self.names.index(first.target.target_id)
        too_weak = first is None or first.reason in _NOT_CAPABLE
        # Where the pool is no more capable than what it stands in for, that is as good a place.
        pool_is_weak = here and with_pool[0].reason in _NOT_CAPABLE
        return int(here), anywhere if pool_is_weak or not too_weak else -1, anywhere

    def first_is_own(self, level: int, input_tokens: int, output_tokens: int, rooms: Rooms) -> bool:
        """Return whether the pool comes first, as its room is now, of all that are capable."""
        found = self._plan(self._complexity(level), input_tokens, output_tokens, self._all, rooms)
        return bool(found) and found[0].target.target_id in self._pool

    def _complexity(self, level: int) -> float:
        """Return a complexity above the levels before this one, and not above it."""
        return float(self.levels[level]) if level < len(self.levels) else min(1.0, float(self.levels[-1]) + 1e-6)

    def _plan(
        self,
        complexity: float,
        input_tokens: int,
        output_tokens: int,
        fleet: Mapping[str, tuple[Deployment, ...]],
        rooms: Rooms = NO_ROOMS,
    ) -> tuple[Candidate, ...]:
        facts = Facts(
            alias=AUTO,
            tier="interactive",
            needs=frozenset(),
            input_tokens=input_tokens,
            max_output_tokens=output_tokens,
        )
        prediction = Prediction(complexity=complexity, source="heuristic", expected_output_tokens=output_tokens)
        try:
            return plan(facts, prediction, self._policy, self._catalog, fleet, rooms=rooms).candidates
        except Refused:
            return ()


def _some_deployment(target: Target) -> tuple[Deployment, ...]:
    name = target.target_id
    return (Deployment(deployment_id=f"{name}/any", target_id=name, kind="openai", upstream_model=name),)


def repeated(workload: Workload, *, users: int = 1, days: int = 0, speed: float = 1.0) -> Workload:
    """Return the traffic of a multiple of the users, in days made of its first hour, at a multiple of its speed. Raises
    SimulationRefused for too many requests.
    """
    rng = np.random.default_rng(0)
    found = _spread_over_days(workload, days, rng) if days else workload
    _refuse_many(len(found.at_s) * users)
    if users > 1:
        copies = np.tile(np.arange(len(found.at_s)), users)
        later = rng.uniform(0.0, _APART_S, len(copies))
        later[: len(found.at_s)] = 0.0
        found = _chosen(found, copies, found.at_s[copies] + later, np.repeat(np.arange(users), len(found.at_s)))
    return msgspec.structs.replace(found, at_s=found.at_s / speed, duration_s=found.duration_s / speed)


def _spread_over_days(workload: Workload, days: int, rng: np.random.Generator) -> Workload:
    """Make each hour of the first one, thinned out to that hour's part of an office day."""
    first = np.flatnonzero(workload.at_s < _HOUR_S)
    _refuse_many(round(len(first) * days * sum(DAY_PROFILE)))
    kept = [first[rng.random(len(first)) < DAY_PROFILE[hour % 24]] for hour in range(24 * days)]
    times = [workload.at_s[each] + hour * _HOUR_S for hour, each in enumerate(kept)]
    hours = np.repeat(np.arange(len(kept)), [len(each) for each in kept])
    found = _chosen(workload, np.concatenate(kept), np.concatenate(times), hours)
    return msgspec.structs.replace(found, duration_s=24 * days * _HOUR_S)


def _chosen(workload: Workload, places: NDArray[np.int64], at_s: NDArray[np.float64], copy: Whole) -> Workload:
    """Return the requests at these places of a workload, at these times, as copies of these numbers."""
    order = np.argsort(at_s, kind="stable")
    places = places[order]
    copies = 1 + int(workload.copy.max(initial=0))
    return Workload(
        at_s=at_s[order],
        input_tokens=workload.input_tokens[places],
        cached_tokens=workload.cached_tokens[places],
        output_tokens=workload.output_tokens[places],
        complexity=workload.complexity[places],
        place=workload.place[places],
        copy=workload.copy[places] + copies * copy[order],
        duration_s=max(workload.duration_s, float(at_s.max(initial=0.0))),
    )


def _refuse_many(count: int) -> None:
    if count > MOST_REQUESTS:
        raise SimulationRefused(f"{count:,} requests are more than {MOST_REQUESTS:,}; ask for fewer days or users")
