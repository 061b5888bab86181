"""Reports of simulations: cells of a table, and a structure for programs. Dollars are exact."""

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec

from cost.shown import percent, rounded_money
from planner.plans.comparators import Comparator
from planner.simulate.fleet_simulation import Measured
from planner.simulate.machines import Machine
from planner.simulate.traces import Trace

PERCENTILES: Final = (50, 90, 99)
_HOUR_S: Final = 3_600
_MILLION: Final = 1_000_000
_CENTS: Final = Decimal("0.01")


class Spread(msgspec.Struct, frozen=True):
    """Percentiles of a duration in seconds; None without values."""

    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    most: float | None


class Cells(msgspec.Struct, frozen=True, kw_only=True):
    """A load too large to simulate, as many fleets alike side by side."""

    requests_per_s: float
    cells: int
    replicas: int
    gpus: int
    usd_per_hour: Decimal
    assumes: str = (
        "cells share nothing and a conversation stays in its cell, so hit rates and percentiles are those simulated; "
        "network, gateways and what breaks in a fleet of that size are not simulated"
    )


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The report of one simulation."""

    policy: str
    scaler: str
    gateways: int
    kv_events: bool
    replicas: int
    peak_replicas: int
    requests: int
    served: int
    overflow: int
    refused: int
    requests_per_s: float
    duration_s: float
    prefix_hit_rate: float
    prompt_tokens: int
    output_tokens: int
    computed_tokens: int
    preemptions: int
    ttft_s: Spread
    tpot_s: Spread
    whole_s: Spread
    ttft_target_s: float
    tpot_target_s: float
    late_first_tokens: float
    """Fraction of the served requests."""
    slow_answers: float
    slo_misses: float
    peak_queue: int
    replica_hours: float
    gpu_hours: float
    busy: float
    """Fraction of the replicas' time in which a step ran."""
    gpu_usd: Decimal
    overflow_usd: Decimal
    overflow_priced_by: str | None
    usd: Decimal
    usd_per_million_tokens: Decimal | None
    decisions: dict[str, int]
    cells: Cells | None = None
    samples: tuple[Any, ...] = ()


def report_of(
    measured: Measured,
    machine: Machine,
    trace: Trace,
    *,
    comparator: Comparator | None = None,
    target_requests_per_s: float | None = None,
) -> Report:
    spec = measured.spec
    served = max(1, measured.served)
    replica_hours = measured.replica_s / _HOUR_S
    gpu_usd = _dollars(replica_hours) * machine.usd_per_hour
    overflow_usd = _overflow_usd(measured, comparator)
    tokens = measured.prompt_tokens + measured.output_tokens
    rate = measured.requests / max(trace.duration_s, 1.0)
    return Report(
        policy=spec.policy,
        scaler=spec.scaler,
        gateways=spec.gateways,
        kv_events=spec.kv_events,
        replicas=spec.replicas,
        peak_replicas=measured.peak_replicas,
        requests=measured.requests,
        served=measured.served,
        overflow=measured.overflow,
        refused=measured.refused,
        requests_per_s=rate,
        duration_s=measured.duration_s,
        prefix_hit_rate=measured.cached_tokens / max(1, measured.prompt_tokens),
        prompt_tokens=measured.prompt_tokens,
        output_tokens=measured.output_tokens,
        computed_tokens=measured.computed_tokens,
        preemptions=measured.preemptions,
        ttft_s=spread_of(measured.ttft_s),
        tpot_s=spread_of(measured.tpot_s),
        whole_s=spread_of(measured.duration_each_s),
        ttft_target_s=spec.ttft_target_s,
        tpot_target_s=spec.tpot_target_s,
        late_first_tokens=measured.late_first_tokens / served,
        slow_answers=measured.slow_answers / served,
        slo_misses=measured.missed / served,
        peak_queue=measured.peak_waiting,
        replica_hours=replica_hours,
        gpu_hours=replica_hours * machine.gpus,
        busy=measured.busy_s / measured.replica_s if measured.replica_s else 0.0,
        gpu_usd=gpu_usd,
        overflow_usd=overflow_usd,
        overflow_priced_by=None if comparator is None else comparator.name,
        usd=gpu_usd + overflow_usd,
        usd_per_million_tokens=(gpu_usd / tokens * _MILLION).quantize(_CENTS) if tokens else None,
        decisions=measured.decisions,
        cells=None if target_requests_per_s is None else _cells(measured, machine, rate, target_requests_per_s),
        samples=tuple(measured.samples),
    )


def title_of(trace: Trace, machine: Machine) -> str:
    """Return the trace, its rate and the machine in one line."""
    rate = len(trace.requests) / max(1.0, trace.duration_s)
    return f"{trace.name}, {rate:.1f} requests/s, {machine.model} on {machine.gpus} x {machine.gpu} a replica"


def spread_of(values: Sequence[float]) -> Spread:
    """Return the mean, percentiles and maximum of some durations."""
    if not values:
        return Spread(None, None, None, None, None)
    ordered = sorted(values)
    p50, p90, p99 = (percentile(ordered, part) for part in PERCENTILES)
    return Spread(math.fsum(ordered) / len(ordered), p50, p90, p99, ordered[-1])


def percentile(ordered: Sequence[float], part: float) -> float:
    """Return the percentile by nearest rank, which is a value that occurred."""
    return ordered[max(0, math.ceil(len(ordered) * part / 100) - 1)]


def _dollars(hours: float) -> Decimal:
    return Decimal(str(round(hours, 6)))


def _overflow_usd(measured: Measured, comparator: Comparator | None) -> Decimal:
    """Return the dollars for the requests that went to the paid API, where nothing is assumed to be cached."""
    if comparator is None:
        return Decimal(0)
    prompts = measured.overflow_prompt_tokens * comparator.input_usd
    return (prompts + measured.overflow_output_tokens * comparator.output_usd) / _MILLION


def _cells(measured: Measured, machine: Machine, rate: float, wanted: float) -> Cells:
    count = math.ceil(wanted / rate)
    replicas = count * measured.peak_replicas
    return Cells(
        requests_per_s=wanted,
        cells=count,
        replicas=replicas,
        gpus=replicas * machine.gpus,
        usd_per_hour=replicas * machine.usd_per_hour,
    )


HEADINGS: Final = (
    *("policy", "scaling", "replicas", "hit rate", "TTFT p50", "p90", "p99", "TPOT p50", "p90", "p99"),
    *("SLO misses", "GPU-hours", "dollars", "overflow", "peak queue"),
)


def row_of(report: Report) -> list[str]:
    """Return table cells of a report, below HEADINGS."""
    times = [report.ttft_s.p50, report.ttft_s.p90, report.ttft_s.p99]
    steps = [report.tpot_s.p50, report.tpot_s.p90, report.tpot_s.p99]
    replicas = str(report.replicas)
    if report.peak_replicas != report.replicas:
        replicas += f" to {report.peak_replicas}"
    return [
        report.policy,
        report.scaler,
        replicas,
        percent(report.prefix_hit_rate),
        *("-" if value is None else f"{value:.2f} s" for value in times),
        *("-" if value is None else f"{value * 1_000:.0f} ms" for value in steps),
        percent(report.slo_misses),
        f"{report.gpu_hours:,.1f}",
        rounded_money(report.usd),
        f"{report.overflow:,}" + (f" ({rounded_money(report.overflow_usd)})" if report.overflow else ""),
        f"{report.peak_queue:,}",
    ]
