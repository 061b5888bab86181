"""The gain of KV blocks in main memory: reading one back against computing it again, and what that changes in the plan. Pure."""

import math
from typing import Any

import msgspec

from cost.shown import percent
from planner.plans.plan_errors import PlanRefused
from planner.plans.planning import Plan, Question, plan, times_of
from planner.plans.sizing import Work

_MOST_HITS = 0.99


class Offload(msgspec.Struct, frozen=True, kw_only=True):
    """A replica whose KV blocks go to main memory when they leave its GPUs."""

    hits: float
    """The part of prompt tokens that main memory would have, and the GPUs' caches not."""
    holds_tokens: int | None
    """Tokens that the main memory holds which was asked for; None where none was."""
    gpu_tokens: int
    """Tokens that the caches of its GPUs hold."""
    copy_s: float
    """Seconds for a token's keys and values to come back, each GPU's part at the same time."""
    compute_s: float
    """Seconds for a token of a mean prompt to be computed again."""
    gpus: int
    gpus_without: int

    @property
    def pays(self) -> bool:
        return self.gpus < self.gpus_without

    @property
    def verdict(self) -> str:
        """The outcome, for people."""
        cost = f"a token comes back in {self.copy_s * 1e6:,.1f} us and is computed in {self.compute_s * 1e6:,.1f} us"
        if self.copy_s >= self.compute_s:
            return f"KV offload does not pay: {cost}"
        if not self.pays:
            return f"KV offload saves no GPU here, and first tokens come sooner: {cost}; {self.gpus} GPUs either way"
        return f"KV offload pays: {self.gpus} GPUs instead of {self.gpus_without}; {cost}"

    def as_json(self) -> dict[str, Any]:
        """Return plain values, the verdict among them."""
        return {**msgspec.to_builtins(self), "pays": self.pays, "verdict": self.verdict}


def offload_of(question: Question, answer: Plan, *, hits: float, copy_bytes_per_s: float) -> Offload:
    """Return the change of the plan `answer` with `hits` of all prompt tokens found in main memory. `copy_bytes_per_s`:
    between one GPU and main memory. Raises PlanRefused.
    """
    work = question.work
    if not 0 < hits <= 1 - work.prefix_hit_rate:
        raise PlanRefused(
            f"main memory has at most the part of prompts that the GPUs' caches have not, here {percent(1 - work.prefix_hit_rate, 0)}"
        )
    if question.tokens_per_gpu is not None:
        raise PlanRefused("measured tokens contain what offload does already; leave --offload-hits out")
    per_gpu = question.model.kv_bytes_per_token_per_gpu(answer.kv_precision, answer.tp)
    # A stage's GPUs keep its own layers only.
    copy_s = per_gpu / answer.pp / copy_bytes_per_s
    times = times_of(question, answer.tp, answer.pp, answer.precision, answer.kv_precision, answer.dp)
    compute_s = times.prefill_s(work.uncached, work.cached) / work.uncached
    saved = hits * max(0.0, 1 - copy_s / compute_s)
    better = plan(msgspec.structs.replace(question, work=_hitting(work, work.prefix_hit_rate + saved), comparators=()))
    held = None
    if question.kv_offload_gib:
        # Each GPU's part goes out by itself: a latent vector, which all of them keep, as often.
        held = math.floor(question.kv_offload_gib * 2**30 / (per_gpu * answer.tp))
    return Offload(
        hits=hits,
        holds_tokens=held,
        gpu_tokens=answer.memory.kv_tokens,
        copy_s=copy_s,
        compute_s=compute_s,
        gpus=min(better.gpus, answer.gpus),
        gpus_without=answer.gpus,
    )


def _hitting(work: Work, rate: float) -> Work:
    return msgspec.structs.replace(work, prefix_hit_rate=min(_MOST_HITS, rate))
