"""Estimate whether speculative decoding pays: it does while a step mostly reads weights, and costs once it mostly
multiplies.
"""

from typing import Any, Final, Literal

import msgspec

from planner.plans.roofline import StepTimes
from planner.plans.sizing import Work

Profile = Literal["low", "peak", "auto"]

GUESSES: Final = 4
ACCEPTANCE: Final = 0.5
"""Assumed probability that one more guessed token is right. vLLM counts what it really is (vllm:spec_decode_*)."""


class Speculation(msgspec.Struct, frozen=True, kw_only=True):
    """The decision on speculative decoding, with its estimated gains."""

    on: bool
    why: str
    config: dict[str, Any] | None
    """Value of vLLM's `--speculative-config`; None when it is off."""
    guesses: int
    acceptance: float
    gain_alone: float
    """Speed-up of a lone stream."""
    gain_planned: float
    """Speed-up at the planned load; below 1 it slows down."""


def speculation_for(
    times: StepTimes, work: Work, *, running: float, rate: float, step_s: float, profile: Profile, draft: str | None
) -> Speculation:
    """Decide on speculative decoding, by the profile and the bound of a step at the planned load, and estimate its
    gains.
    """
    alone = _gain(times, work, batch=1.0, prompts=0.0)
    planned = _gain(times, work, batch=max(1.0, running), prompts=rate * work.uncached * step_s)
    checked_s = times.answer_s * max(1.0, running) * (GUESSES + 1)
    reading = checked_s + times.prompt_s * rate * work.uncached * step_s <= times.weights_s + times.experts_s
    on = profile == "low" or (profile == "auto" and reading)
    return Speculation(
        on=on,
        why=_why(profile, reading=reading),
        config=_config(draft) if on else None,
        guesses=GUESSES,
        acceptance=ACCEPTANCE,
        gain_alone=alone,
        gain_planned=planned,
    )


def _gain(times: StepTimes, work: Work, *, batch: float, prompts: float) -> float:
    """Return the speed-up of decoding: expected tokens per step, (1 - a^(k + 1)) / (1 - a) with acceptance a and k
    guesses, times the plain step's time by the checking step's.
    """
    resident = batch * work.resident
    plain_s = times.step_s(prefill_tokens=prompts, batch=batch, kv_tokens=resident)
    checking_s = times.step_s(prefill_tokens=prompts, batch=batch * (GUESSES + 1), kv_tokens=resident)
    tokens = (1 - ACCEPTANCE ** (GUESSES + 1)) / (1 - ACCEPTANCE)
    return tokens * plain_s / checking_s


def _why(profile: Profile, *, reading: bool) -> str:
    if profile == "low":
        return "on, for a low load: a step reads all weights anyway, so checking guesses is nearly free"
    if profile == "peak":
        return "off, for the peak: checking guesses takes the operations that other requests need"
    if reading:
        return "on: at the planned load a step is bound by memory even with the guesses"
    return "off: at the planned load a step with guesses is bound by computing, so they would slow it down"


def _config(draft: str | None) -> dict[str, Any]:
    if draft is not None:
        return {"model": draft, "num_speculative_tokens": GUESSES}
    return {"method": "ngram_gpu", "num_speculative_tokens": GUESSES, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
