"""Figures that others published of their engines, and how far the roofline with an efficiency is from them: the table of
`data/published.toml`.

Each is a throughput in a closed loop of streams, at full load or of a burst, or the time of one stream. Caches are taken as the
publisher's settings leave them. A part is held out: it is never fitted to, and tells what the fit is worth elsewhere.
"""

import math
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from planner.plans.efficiency import Efficiency
from planner.plans.gpus import gpu_named
from planner.plans.models import Architecture, KvPrecision, Precision, model_named
from planner.plans.roofline import StepTimes, pairs, step_times
from planner.plans.sizing import memory_of

_TRT_SEQUENCES: Final = 2_048
_BUDGET: Final = 8_192
"""Tokens of a step, as vLLM has it on large GPUs and InferenceX sets it."""
_SMALL_BUDGET: Final = 2_048
"""The same on GPUs with less memory, where it runs 256 sequences at most."""
_ROUNDS: Final = 4
_EACH: Final = 10
"""Requests of each stream, as InferenceX sends them."""

Measure = Literal["tokens/s", "further token", "first token", "seconds"]


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One published figure, with what the roofline says in its place."""

    source: str
    what: str
    model: str
    gpu: str
    architecture: Architecture
    measure: Measure
    published: float
    computed: float
    held_out: bool
    """True for what is never fitted to."""
    left_out: str | None
    """Reason why it counts neither for the fit nor for its error."""

    @property
    def error(self) -> float:
        """Relative: 0.1 is 10 % too much."""
        return self.computed / self.published - 1


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """The degree to which an efficiency meets the figures published of one GPU."""

    figures: int
    rms: float
    """Root mean square of the relative errors."""
    worst: float


class _Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: str
    engine: str
    as_of: str
    model: str
    gpu: str
    precision: Precision
    kv_precision: KvPrecision
    tp: int
    version: str | None = None
    page: str | None = None
    dp: int = 1
    pp: int = 1
    ep: bool = False
    held_out: bool = False
    left_out: str | None = None

    def figure(self, what: str, measure: Measure, published: float, computed: float) -> Figure:
        layout = "".join(
            f", {name}{size}" for name, size in (("TP", self.tp), ("DP", self.dp), ("PP", self.pp)) if size > 1
        )
        return Figure(
            source=f"{self.source} {self.version or self.as_of}",
            what=f"{what}, {self.precision}{layout}",
            model=self.model,
            gpu=self.gpu,
            architecture=model_named(self.model).architecture,
            measure=measure,
            published=published,
            computed=computed,
            held_out=self.held_out,
            left_out=self.left_out,
        )

    def times(self, efficiency: Efficiency) -> StepTimes:
        return step_times(
            model_named(self.model), gpu_named(self.gpu), tp=self.tp, pp=self.pp, dp=self.dp, precision=self.precision,
            kv_precision=self.kv_precision, efficiency=efficiency,
        )  # fmt: skip

    def cache_tokens(self, share: float, sequences: int, budget: int) -> int:
        return memory_of(
            model_named(self.model), gpu_named(self.gpu), tp=self.tp, pp=self.pp, dp=self.dp, precision=self.precision,
            kv_precision=self.kv_precision, utilisation=share, batched_tokens=budget, sequences=sequences,
        ).kv_tokens  # fmt: skip


class Served(_Row, frozen=True, kw_only=True):
    """A closed loop of so many streams."""

    input: int
    output: int
    points: list[tuple[int, float, float]]
    """Streams, milliseconds to the first token, milliseconds a token."""


class Burst(_Row, frozen=True, kw_only=True):
    """Requests that were sent at once."""

    input: int
    output: int
    requests: int
    seconds: float
    streams: int | None = None
    batched_tokens: int = _BUDGET


class Full(_Row, frozen=True, kw_only=True):
    """Output tokens/s and GPU at full load."""

    figures: list[tuple[int, int, float]]


class Alone(_Row, frozen=True, kw_only=True):
    """Seconds of a lone request."""

    figures: list[tuple[int, int, float]]


class Source(msgspec.Struct, frozen=True):
    """Where rows are from."""

    url: str
    what: str
    lengths: float
    """Part of the stated lengths that prompts and answers have on average."""


class Published(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that was found."""

    served: list[Served]
    burst: list[Burst]
    full: list[Full]
    alone: list[Alone]
    sources: dict[str, Source]


@cache
def published() -> Published:
    """Return the table."""
    text = Path(__file__).with_name("data").joinpath("published.toml").read_text(encoding="utf-8")
    table: dict[str, Any] = tomllib.loads(text)
    return msgspec.convert(table, Published)


def figures(efficiency: Efficiency) -> Iterator[Figure]:
    """Return all figures that were published of the engine that this efficiency stands for, computed beside them."""
    table = published()
    for served in table.served:
        if served.engine == efficiency.name:
            yield from _served(served, efficiency, table.sources[served.source].lengths)
    for burst in table.burst:
        if burst.engine == efficiency.name:
            yield _burst(burst, efficiency)
    for full in table.full:
        if full.engine == efficiency.name:
            yield from _full(full, efficiency)
    for alone in table.alone:
        if alone.engine == efficiency.name:
            yield from _alone(alone, efficiency)


def fit_of(efficiency: Efficiency, gpu: str, architecture: Architecture = "dense") -> Fit | None:
    """Return the error of throughputs of one GPU, of what was held out where there is any; None where no figure was found."""
    found = [
        each
        for each in _cached(msgspec.json.encode(efficiency))
        if each.gpu == gpu and each.architecture == architecture and each.left_out is None and each.measure in _RATES
    ]
    errors = [each.error for each in found if each.held_out] or [each.error for each in found]
    if not errors:
        return None
    rms = math.sqrt(sum(error**2 for error in errors) / len(errors))
    return Fit(figures=len(errors), rms=rms, worst=max(errors, key=abs))


_RATES: Final = ("tokens/s", "seconds")


@cache
def _cached(efficiency: bytes) -> tuple[Figure, ...]:
    return tuple(figures(msgspec.json.decode(efficiency, type=Efficiency)))


class Loop(msgspec.Struct, frozen=True, kw_only=True):
    """A closed loop of streams in its steady state."""

    tokens_per_s: float
    tpot_s: float
    ttft_s: float


def closed_loop(
    times: StepTimes,
    prompt: float,
    answer: float,
    *,
    streams: float,
    cache_tokens: float,
    budget: float = _BUDGET,
    rounds: float = math.inf,
) -> Loop:
    """Compute what so many callers get of one replica who ask again as soon as they are answered, `rounds` times, and the first time all
    at once. Those for whom the cache has no room wait.
    """
    most = min(streams, cache_tokens / (prompt + answer / 2), budget * answer / (prompt + answer))
    running, step_s, ttft_s = most, 0.0, 0.0
    for _ in range(_ROUNDS):
        resident = running * (prompt + answer / 2)
        chunk = min(prompt, max(1.0, budget - running))
        filled = times.step_s(
            prefill_tokens=chunk, pairs=chunk / prompt * pairs(prompt), batch=running, kv_tokens=resident
        )
        step_s = times.mean_step_s(
            prefill_tokens=running * prompt / answer,
            pairs=running / answer * pairs(prompt),
            batch=running,
            kv_tokens=resident,
            chunk=max(chunk, running * prompt / answer),
        )
        # Behind half a step, and behind those prompts that came shortly before; the first ones behind each other.
        own_s = math.ceil(prompt / budget) * filled
        wave_s = streams * own_s * min(1.0, prompt / chunk) / 2 / rounds
        ttft_s = times.request_s + step_s / 2 + own_s * (1 + min(1.0, running / answer) / 2) + wave_s
        running = min(most, streams * answer * step_s / (ttft_s + answer * step_s))
    if most < streams:
        ttft_s = max(ttft_s, (streams - most) * answer * step_s / most)
    return Loop(tokens_per_s=running / step_s, tpot_s=step_s, ttft_s=ttft_s)


def _served(row: Served, efficiency: Efficiency, lengths: float) -> Iterator[Figure]:
    times = row.times(efficiency)
    prompt, answer = row.input * lengths, row.output * lengths
    for streams, first_ms, further_ms in row.points:
        room = row.cache_tokens(0.9, streams, _BUDGET)
        if streams == 1:
            # Alone, a prompt and its answer never share a step.
            first_s, further_s = times.prefill_s(prompt), times.decode_step_s(1, prompt + answer / 2)
            loop = Loop(tokens_per_s=answer / (first_s + (answer - 1) * further_s), tpot_s=further_s, ttft_s=first_s)
        else:
            loop = closed_loop(
                times, prompt, answer, streams=streams / row.dp, cache_tokens=room / row.dp, rounds=_EACH
            )
        named = f"{row.input}/{row.output}, {streams} streams"
        rate = streams * answer / (first_ms + (answer - 1) * further_ms) * 1e3
        yield row.figure(named, "tokens/s", rate, loop.tokens_per_s * (row.dp if streams > 1 else 1))
        yield row.figure(named, "further token", further_ms, loop.tpot_s * 1e3)
        yield row.figure(named, "first token", first_ms, loop.ttft_s * 1e3)


def _burst(row: Burst, efficiency: Efficiency) -> Figure:
    streams = min(row.requests, row.streams or 1_024, 256 if row.batched_tokens == _SMALL_BUDGET else 1_024)
    room = row.cache_tokens(0.9, streams, row.batched_tokens)
    loop = closed_loop(
        row.times(efficiency), row.input, row.output, streams=streams / row.dp, cache_tokens=room / row.dp,
        budget=row.batched_tokens,
    )  # fmt: skip
    return row.figure(
        f"{row.input}/{row.output}, {row.requests} at once",
        "seconds",
        row.seconds,
        row.requests * row.output / (loop.tokens_per_s * row.dp),
    )


def _full(row: Full, efficiency: Efficiency) -> Iterator[Figure]:
    times = row.times(efficiency)
    for prompt, answer, rate in row.figures:
        room = 0.95 * row.cache_tokens(0.98, 256, _BUDGET) / row.pp / row.dp
        computed = closed_loop(times, prompt, answer, streams=_TRT_SEQUENCES, cache_tokens=room).tokens_per_s / row.tp
        yield row.figure(f"{prompt}/{answer}", "tokens/s", rate, computed)


def _alone(row: Alone, efficiency: Efficiency) -> Iterator[Figure]:
    times = row.times(efficiency)
    for prompt, answer, seconds in row.figures:
        computed = times.prefill_s(prompt) + (answer - 1) * times.decode_step_s(1, prompt + answer / 2)
        yield row.figure(f"{prompt}/{answer}, alone", "seconds", seconds, computed)
