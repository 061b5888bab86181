"""Fractions of a data sheet's rates that engines reach, by engine and GPU: the table of `data/efficiencies.toml`, fitted to published
figures.

Prefill and decode have factors of their own: the matrices of a long prompt are multiplied at more of the sheet's rate than
those of a batch of single tokens. Experts have theirs: many small matrices. `published` has the figures, and tells how far each fit
is off.
"""

import tomllib
from pathlib import Path
from typing import Any, Final

import msgspec

from planner.plans.plan_errors import PlanRefused


class Reach(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fractions of one GPU's data sheet."""

    prefill: float
    """Fraction of the operations/s, for tokens of prompts."""
    decode: float
    """Fraction of the operations/s, for tokens of answers."""
    attention: float
    """Fraction of the bf16 operations/s, for a prompt's attention."""
    weight_read: float
    """Fraction of the memory bandwidth, for reading weights."""
    kv_read: float
    """Fraction of the memory bandwidth, for reading keys and values of running sequences."""
    fp8_kv_read: float
    """The same for keys and values in FP8, which are widened as they are read."""
    latent_read: float
    """Fraction of the memory bandwidth, for reading the vectors of multi-head latent attention."""
    narrow_read: dict[str, float]
    """Fraction of the rate of reading other weights, by precision; 1 where it is not named."""
    expert_prefill: dict[str, float]
    """Fraction of the operations/s in experts, for tokens of prompts, by precision; bf16's where it is not named."""
    expert_decode: dict[str, float]
    """The same for tokens of answers."""
    expert_read: dict[str, float]
    """Fraction of the memory bandwidth, for reading experts, by precision; bf16's where it is not named."""
    link: float
    """Fraction of the bandwidth to neighbours, for all-reduces."""
    exchange: float
    """The same for passing tokens to the ranks that have their experts, and back."""


class Efficiency(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The part of a data sheet that an engine reaches, and its fixed times."""

    name: str
    title: str
    hopeful: bool
    """True where the figures are a ceiling: a plan then has no margin of its own."""
    host_s: float
    """Seconds for every step: scheduling and launching."""
    layer_s: float
    """Seconds for every layer of a step, however little it does."""
    expert_layer_s: float
    """The same in a model with experts: its layers also route and sort, and its figures are of younger versions."""
    sequence_s: float
    """Seconds of a step for every running sequence: sampling, and handing its token on."""
    expert_sequence_s: float
    """The same in a model with experts."""
    request_s: float
    """Seconds of every request outside of the engine's steps: HTTP, tokenizing, and the way back."""
    all_reduce_s: float
    """Latency in seconds of an all-reduce of next to nothing."""
    source: str
    as_of: str
    reaches: dict[str, Reach]
    """Fractions by GPU."""
    like: dict[str, str]
    """GPUs of which nobody published a figure, each with the one whose fractions stand for it."""

    def reach(self, gpu: str) -> Reach:
        return self.reaches.get(gpu) or self.reaches[self.like.get(gpu, _USUAL)]


_USUAL: Final = "h100"


def _read() -> dict[str, Efficiency]:
    text = Path(__file__).with_name("data").joinpath("efficiencies.toml").read_text(encoding="utf-8")
    table: dict[str, Any] = tomllib.loads(text)
    return {name: msgspec.convert({"name": name, **row}, Efficiency) for name, row in table.items()}


EFFICIENCIES: Final[dict[str, Efficiency]] = _read()


def efficiency_named(name: str) -> Efficiency:
    """Return the efficiency of that name. Raises PlanRefused for an unknown one."""
    if name not in EFFICIENCIES:
        raise PlanRefused(f"`{name}` is no efficiency; there are {', '.join(EFFICIENCIES)}")
    return EFFICIENCIES[name]
