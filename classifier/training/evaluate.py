"""RouteLLM's measures (arXiv 2406.18665), from their definitions, with bootstrap intervals.

PGR(c) is the share of the strong model's lead that is won when the share c of the prompts goes to
it; APGR is its integral; CPT(x) the smallest c in percent with PGR(c) >= x. Ties count in
expectation, so a constant score is exactly the random router (0.5).
"""

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Pair(msgspec.Struct, frozen=True):
    source: str
    weak: str
    strong: str
    baseline: float
    """TF-IDF and ridge trained on this pair alone, as measured before; the number to beat."""


PAIRS: Final = (
    Pair("routellm_mmlu", "mixtral-8x7b-instruct-v0.1", "gpt-4-1106-preview", 0.670),
    Pair("routellm_gsm8k", "mixtral-8x7b-instruct-v0.1", "gpt-4-1106-preview", 0.602),
    Pair("mmlu_pro", "mixtral-8x7b-instruct-v0.1", "gpt-4o-2024-05-13", 0.608),
    Pair("mmlu_pro", "llama-3.1-70b-instruct", "gpt-4o-2024-05-13", 0.638),
    Pair("mmlu_pro", "gemini-1.5-flash-002", "gemini-1.5-pro-002", 0.720),
    Pair("zeroeval_crux", "llama-3-70b-instruct", "gpt-4o-2024-05-13", 0.522),
    Pair("zeroeval_math_l5", "llama-3-70b-instruct", "gpt-4o-2024-05-13", 0.508),
    Pair("bfcl_v1", "llama-3-70b-instruct", "claude-3-5-sonnet-20240620", 0.782),
    Pair("bfcl_v1", "claude-3-haiku-20240307", "claude-3-5-sonnet-20240620", 0.694),
)
BOOTSTRAPS: Final = 500


def curve(score: Floats, gain: Floats) -> tuple[Floats, Floats]:
    """(c, PGR) with one knot for each distinct score."""
    order = np.argsort(-score, kind="stable")
    ends = np.r_[np.flatnonzero(np.diff(score[order])) + 1, len(score)]
    return np.r_[0.0, ends / len(score)], np.r_[0.0, np.cumsum(gain[order])[ends - 1]] / gain.sum()


def apgr(score: Floats, gain: Floats) -> float:
    calls, won = curve(score, gain)
    return float(np.trapezoid(won, calls))


def cpt(share: float, score: Floats, gain: Floats) -> float:
    calls, won = curve(score, gain)
    at = int(np.argmax(won >= share - 1e-12))
    if at == 0:
        return 0.0
    part = (share - won[at - 1]) / (won[at] - won[at - 1])
    return float(100 * (calls[at - 1] + part * (calls[at] - calls[at - 1])))


class Measured(msgspec.Struct, frozen=True):
    n: int
    apgr: float
    low: float
    high: float
    cpt50: float
    cpt80: float


def measured(score: Floats, gain: Floats, seed: int) -> Measured:
    """APGR with its 95 % bootstrap interval, and the two CPTs."""
    draw, drawn = np.random.default_rng(seed), []
    for _ in range(BOOTSTRAPS):
        rows = draw.integers(0, len(gain), len(gain))
        if gain[rows].sum() > 0:
            drawn.append(apgr(score[rows], gain[rows]))
    low, high = np.percentile(drawn, [2.5, 97.5])
    numbers = (apgr(score, gain), low, high)
    cuts = (cpt(0.5, score, gain), cpt(0.8, score, gain))
    return Measured(len(gain), *(round(float(x), 4) for x in numbers), *(round(x, 1) for x in cuts))
