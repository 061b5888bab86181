"""Scaling rules of a simulation: the real policy, KEDA's rule, Knative's, or a perfect forecast."""

from collections.abc import Callable
from typing import Final

import msgspec

from planner.plans.roofline import StepTimes
from planner.simulate.engine import Engine, EngineSpec, Job
from planner.simulate.simulation_errors import SimulationRefused
from planner.simulate.traces import Trace
from selfhosted.config import ScaleConfig
from selfhosted.scale.policy import ScalePolicy, ScaleRule
from selfhosted.scale.rules import ConcurrencyRule, PerfectForecast, QueueRule

SCALERS: Final = ("fixed", "weighbridge", "keda", "knative", "perfect")
OUTPUT_WEIGHT: Final = 4.0
"""Work of a generated token, in prompt tokens."""
_SATURATING: Final = 600
_PERFECT_UTILISATION: Final = 0.5
_BIN_S: Final = 15.0


def check_scaler(scaler: str) -> None:
    """Refuse an unknown name. Raises SimulationRefused."""
    if scaler not in SCALERS:
        raise SimulationRefused(f"`{scaler}` is no way to scale; there are {', '.join(SCALERS)}")


def rule_of(
    scaler: str,
    config: ScaleConfig,
    trace: Trace,
    spec: EngineSpec,
    steps: StepTimes,
    usd_per_replica_hour: float | None,
) -> ScaleRule | None:
    """Return the rule of that name; None for a fixed number of replicas. Raises SimulationRefused for an unknown name."""
    if scaler == "fixed":
        return None
    if scaler == "weighbridge":
        return ScalePolicy(config, usd_per_replica_hour=usd_per_replica_hour, output_weight=OUTPUT_WEIGHT)
    if scaler == "keda":
        return QueueRule(config)
    if scaler == "knative":
        return ConcurrencyRule(config)
    check_scaler(scaler)
    carries = most_work_per_s(trace, spec, steps) * _PERFECT_UTILISATION
    return PerfectForecast(config, demand=demand_of(trace), carries=carries)


def demand_of(trace: Trace) -> Callable[[float], float]:
    """Return function from a time to the work per second that arrives in its quarter of a minute, from the trace itself."""
    bins: dict[int, float] = {}
    for request in trace.requests:
        index = int(request.at_s // _BIN_S)
        bins[index] = bins.get(index, 0.0) + request.prompt_tokens + OUTPUT_WEIGHT * request.output_tokens

    def demand(at_s: float) -> float:
        return bins.get(int(at_s // _BIN_S), 0.0) / _BIN_S

    return demand


class FullEngine(msgspec.Struct, frozen=True, kw_only=True):
    """The work of one engine that never waits for any."""

    seconds: float
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens that were found in its cache."""
    output_tokens: int


def full_engine(trace: Trace, spec: EngineSpec, steps: StepTimes) -> FullEngine:
    """Run one engine on the trace's first requests, all at once. Raises SimulationRefused where none fits it."""
    jobs = [
        Job(arrived_at=0.0, prompt_tokens=each.prompt_tokens, output_tokens=each.output_tokens, blocks=each.blocks)
        for each in trace.requests[:_SATURATING]
    ]
    last = 0.0

    def told(at: float, what: str, job: Job) -> None:
        nonlocal last
        del what, job
        last = at

    engine = Engine(msgspec.structs.replace(spec), steps, told)
    taken = [job for job in jobs if engine.holds(job.prompt_tokens, job.output_tokens)]
    for job in taken:
        engine.enqueue(job, 0.0)
    engine.advance(1e12)
    if not taken or last <= 0:
        raise SimulationRefused(f"{trace.name}: none of its first {len(jobs)} requests fits one engine's KV cache")
    return FullEngine(
        seconds=last,
        prompt_tokens=sum(job.prompt_tokens for job in taken),
        cached_tokens=sum(job.cached_tokens for job in taken),
        output_tokens=sum(job.output_tokens for job in taken),
    )


def most_work_per_s(trace: Trace, spec: EngineSpec, steps: StepTimes) -> float:
    """Return the work per second of one engine that never waits for work, measured on the trace's own requests."""
    full = full_engine(trace, spec, steps)
    return (full.prompt_tokens + OUTPUT_WEIGHT * full.output_tokens) / full.seconds
