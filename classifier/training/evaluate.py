"""The evaluation protocol: the pairs of models that are judged, on which rows, and the measures of each.

It knows no classifier, only its `Scored`: for every prompt of the corpus the probability that each target's answer is
adequate, NaN where there is none. Whoever makes a Scored leaves out rows that were trained on, so no number comes from
them.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier.tokens import estimate_tokens
from classifier.training.cascade import CascadeMeasure, judge_cascades
from classifier.training.data import BadData, Corpus, Problem
from classifier.training.factors import equal_sources
from classifier.training.measures import (
    Calibrated,
    Floats,
    FloorOutcome,
    Integers,
    Measured,
    Mixed,
    TargetTable,
    apgr,
    calibration,
    cpt,
    curve,
    measured,
    mixed,
    promises,
    traded,
)
from classifier.training.splits import OWN

__all__ = [
    "PAIRS",
    "Evaluation",
    "Measured",
    "Pair",
    "Row",
    "Scored",
    "apgr",
    "cpt",
    "evaluated",
    "measured",
    "pairs_of",
]


class Pair(msgspec.Struct, frozen=True):
    """A weak and a strong model of one source, with results known from before."""

    source: str
    weak: str
    strong: str
    baseline: float | None = None
    """APGR of TF-IDF and ridge trained on this pair alone, ten folds; the number to beat."""
    baseline_categories: float | None = None
    """The same with categories left out."""
    ceiling: float | None = None
    """APGR of knowing how many other models succeeded on the very prompt."""

    @property
    def name(self) -> str:
        """The pair as tables show it."""
        return f"{self.source}: {self.weak} / {self.strong}"


MIXTRAL: Final = "mixtral-8x7b-instruct-v0.1"
LLAMA: Final = "llama-3-70b-instruct"
LLAMA_31: Final = "llama-3.1-70b-instruct"
GPT_4: Final = "gpt-4-1106-preview"
GPT_4O: Final = "gpt-4o-2024-05-13"
SONNET: Final = "claude-3-5-sonnet-20240620"
HAIKU: Final = "claude-3-haiku-20240307"
MINI: Final = "gpt-4o-mini-2024-07-18"

PAIRS: Final = (
    Pair("routellm_mmlu", MIXTRAL, GPT_4, 0.670, 0.618, 0.73),
    Pair("routellm_gsm8k", MIXTRAL, GPT_4, 0.602, None, 0.656),
    Pair("mmlu_pro", MIXTRAL, GPT_4O, 0.608, 0.572),
    Pair("mmlu_pro", LLAMA_31, GPT_4O, 0.638, 0.580, 0.827),
    Pair("mmlu_pro", "gemini-1.5-flash-002", "gemini-1.5-pro-002", 0.720, 0.501),
    Pair("zeroeval_crux", LLAMA, GPT_4O, 0.522, None, 0.787),
    Pair("zeroeval_math_l5", LLAMA, GPT_4O, 0.508),
    Pair("bfcl_v1", LLAMA, SONNET, 0.782, 0.660, 0.808),
    Pair("bfcl_v1", HAIKU, SONNET, 0.694, 0.429),
)
LENGTH_ALONE: Final = {
    pair.name: value
    for pair, value in zip(PAIRS, (0.579, 0.591, 0.477, 0.454, 0.687, 0.578, 0.481, 0.441, 0.501), strict=True)
}
PUBLISHED: Final = (
    ("RouteLLM, best row, MMLU (about 1,500 gold labels)", 0.603, 35.4, 71.6),
    ("RouteLLM, best row, GSM8K (an 8B model routes)", 0.622, None, None),
    ("RouteLLM, best row, MT-Bench (n = 72, noise .13)", 0.802, None, None),
    ("RouteLLM's released BERT router run by others, MMLU", 0.533, None, None),
    ("RouteLLM's released BERT router run by others, GSM8K", 0.529, None, None),
)
ROUTELLM: Final = {"routellm_mmlu": 0.603, "routellm_gsm8k": 0.622}
_GPT_4_CLASS: Final = (GPT_4O, "gpt-4o-2024-08-06", "gpt-4-turbo-2024-04-09", GPT_4, "gpt-4-0314")
STANDARD: Final[tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]] = (
    ((LLAMA, LLAMA_31), _GPT_4_CLASS),
    ((MIXTRAL,), _GPT_4_CLASS),
    ((HAIKU,), (SONNET,)),
    (
        ("gemini-1.5-flash-002", "gemini-1.5-flash", "gemini-1.5-flash-preview-0514"),
        ("gemini-1.5-pro-002", "gemini-1.5-pro", "gemini-1.5-pro-preview-0514"),
    ),
    ((MINI,), _GPT_4_CLASS),
)
"""Model families for a source that has none of PAIRS: of each, the first two models with enough outcomes."""
FEWEST_ROWS: Final = 100
FEWEST_TARGETS: Final = 3
FLOORS: Final = tuple(round(0.90 + step / 100, 2) for step in range(11))
TARGETS: Final[tuple[tuple[str, ...], ...]] = ((LLAMA, MINI, GPT_4O, SONNET), (LLAMA, HAIKU, MINI, GPT_4O, SONNET))
"""Targets that are routed among at once, such as a house would have beside its own GPUs, as far as their outcomes are known. Of
Haiku there are none on one of the sources.
"""
REFERENCE: Final[str] = GPT_4O
CASCADES: Final = (
    ((MINI, LLAMA, GPT_4O, SONNET), GPT_4O),
    ((LLAMA_31, "gemini-1.5-flash-002", GPT_4O, "gemini-1.5-pro-002"), GPT_4O),
)
"""Targets, and the one that quality is measured against, for which two cheap answers before a dear one are measured."""


class Price(msgspec.Struct, frozen=True):
    """US dollars per million tokens, the date since when, and the provider."""

    input: float
    output: float
    since: str
    of: str


PRICES: Final = {
    LLAMA: Price(0.845, 0.845, "2026-05-01", "own GPUs, as in config/gateway.yaml"),
    LLAMA_31: Price(0.845, 0.845, "2026-05-01", "own GPUs, as in config/gateway.yaml"),
    MIXTRAL: Price(0.60, 0.60, "2023-12-11", "Together"),
    GPT_4: Price(10.0, 30.0, "2023-11-06", "OpenAI"),
    GPT_4O: Price(2.50, 10.0, "2024-10-01", "OpenAI's gpt-4o; this snapshot itself is still listed at 5 / 15"),
    MINI: Price(0.15, 0.60, "2024-07-18", "OpenAI"),
    SONNET: Price(3.0, 15.0, "2024-06-20", "Anthropic"),
    HAIKU: Price(0.25, 1.25, "2024-03-13", "Anthropic"),
    "gemini-1.5-flash-002": Price(0.075, 0.30, "2024-08-12", "Google"),
    "gemini-1.5-pro-002": Price(1.25, 5.0, "2024-10-01", "Google"),
}
TOKENS_A_TOOL: Final = 120
UNKNOWN_OUTPUT: Final = {"text": 250.0, "tools": 60.0}


class Scored(msgspec.Struct, frozen=True, kw_only=True):
    """A classifier's probabilities for each prompt of a corpus, by target; NaN where it gives none."""

    adequate: Mapping[str, Floats]
    complexity: Floats | None = None
    """Complexity of each prompt, which routes between targets without a known ability."""
    output_tokens: Mapping[str, Floats] = {}
    """The expected tokens of each answer, by target."""


class Timing(msgspec.Struct, frozen=True):
    """Milliseconds and characters of each prompt on this machine; NaN where it was not timed."""

    spent: Floats
    characters: Floats


class Row(msgspec.Struct, frozen=True):
    """One line of `evaluate --json`."""

    pair: str
    split: str
    n: int
    apgr: float
    lo: float
    hi: float
    cpt50: float
    cpt80: float
    ms_p50: float
    ms_p99: float


class Judged(msgspec.Struct, frozen=True):
    """A row with the further values of the report."""

    row: Row
    pair: Pair
    savings: dict[str, float]
    """Share of the cost saved at 95, 98 and 100 % of the strong model's quality; empty where a price is unknown."""
    kept: dict[str, float]
    """Quality as a share of the strong model's, when 30, 50 and 70 % of the cost are saved."""
    calls: Floats
    won: Floats


class Target(msgspec.Struct, frozen=True):
    """Calibration of one model's probabilities on one split."""

    split: str
    model: str
    found: Calibrated


class AllTargets(msgspec.Struct, frozen=True):
    """Routing among all targets at once, on one split."""

    split: str
    sources: list[str]
    found: Mixed
    promises: list[FloorOutcome]


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """All results, with notes on what was left out."""

    prompts: dict[str, int]
    data_sha256: str
    notes: list[str]
    judged: list[Judged] = []
    targets: list[Target] = []
    many: list[AllTargets] = []
    cascades: list[CascadeMeasure] = []
    timing: Timing | None = None

    @property
    def rows(self) -> list[Row]:
        """The rows of `evaluate --json`."""
        return [each.row for each in self.judged]


def pairs_of(corpus: Corpus) -> tuple[list[Pair], list[str]]:
    """Return the pairs that can be judged, and for each other one a note with the reason. Raises BadData when there is none."""
    pairs: list[Pair] = []
    notes: list[str] = []
    for source in dict.fromkeys([pair.source for pair in PAIRS] + np.unique(corpus.sources).tolist()):
        rows = corpus.sources == source
        if rows.any():
            pairs += _pairs_in(corpus, source, rows, notes)
    if not pairs:
        raise BadData([Problem("there is no pair of models to judge", notes)])
    return pairs, notes


def _pairs_in(corpus: Corpus, source: str, rows: NDArray[np.bool_], notes: list[str]) -> list[Pair]:
    listed = [pair for pair in PAIRS if pair.source == source]
    for candidates in (listed, _family_pairs(corpus, source, rows), _extreme_pair(corpus, source, rows)):
        reasons = [(pair, _exclusion_reason(corpus, pair, rows)) for pair in candidates]
        notes += [f"{pair.name}: left out, {why}" for pair, why in reasons if why]
        fit = [pair for pair, why in reasons if not why]
        if fit:
            return fit
    if not any(note.startswith(f"{source}:") for note in notes):
        notes.append(f"{source}: left out, fewer than two models answered {FEWEST_ROWS} of its prompts")
    return []


def _exclusion_reason(corpus: Corpus, pair: Pair, rows: NDArray[np.bool_]) -> str:
    absent = [name for name in (pair.weak, pair.strong) if name not in corpus.models]
    if absent:
        return f"no outcomes of {' and '.join(absent)}"
    gain = corpus.gain(pair.weak, pair.strong)[rows]
    gain = gain[~np.isnan(gain)]
    if len(gain) < FEWEST_ROWS:
        return f"both answered only {len(gain)} prompts of the {FEWEST_ROWS} that a number needs"
    if not gain.any():
        return "one class only: the two models never differ"
    return "" if gain.sum() > 0 else "the strong model gains nothing over the weak one"


def _answer_counts(corpus: Corpus, rows: NDArray[np.bool_]) -> dict[str, int]:
    counts = np.count_nonzero(~np.isnan(corpus.outcomes[rows]), axis=0)
    return {model: int(count) for model, count in zip(corpus.models, counts, strict=True) if count}


def _family_pairs(corpus: Corpus, source: str, rows: NDArray[np.bool_]) -> list[Pair]:
    answered = _answer_counts(corpus, rows)
    firsts = (
        [next((name for name in side if answered.get(name, 0) >= FEWEST_ROWS), None) for side in family]
        for family in STANDARD
    )
    return [Pair(source, weak, strong) for weak, strong in firsts if weak and strong]


def _extreme_pair(corpus: Corpus, source: str, rows: NDArray[np.bool_]) -> list[Pair]:
    """Return the worst and the best model of a source without any known pair."""
    enough = [name for name, count in _answer_counts(corpus, rows).items() if count >= FEWEST_ROWS]
    level = {name: float(np.nanmean(corpus.scores[name][rows])) for name in enough}
    ranked = sorted(level, key=lambda name: (level[name], name))
    return [Pair(source, ranked[0], ranked[-1])] if len(ranked) > 1 else []


class PairScores(msgspec.Struct, frozen=True):
    """A classifier's routing scores of one pair, on the rows where it has one."""

    rows: Integers
    score: Floats


def said_of(scored: Scored, corpus: Corpus, pair: Pair) -> PairScores:
    """Return P(strong adequate) less P(weak adequate) for each prompt, else its complexity; higher needs the strong
    model more.
    """
    known = {pair.weak, pair.strong} <= scored.adequate.keys()
    here = (corpus.sources == pair.source) & ~np.isnan(corpus.gain(pair.weak, pair.strong))
    score = scored.adequate[pair.strong] - scored.adequate[pair.weak] if known else None
    if score is None or np.isnan(score)[here].all():
        score = scored.complexity if scored.complexity is not None else np.full(len(here), np.nan)
    rows = np.flatnonzero(here & ~np.isnan(score))
    return PairScores(rows, score[rows])


def judge_pair(corpus: Corpus, scored: Scored, pair: Pair, split: str, timing: Timing, seed: int) -> Judged | None:
    """Return the measures of one pair; None on fewer than FEWEST_ROWS prompts, or where the strong model gains nothing."""
    said = said_of(scored, corpus, pair)
    gain = corpus.gain(pair.weak, pair.strong)[said.rows]
    if len(gain) < FEWEST_ROWS or gain.sum() <= 0:
        return None
    found = measured(said.score, gain, seed)
    p50, p99 = (round(float(value), 4) for value in np.percentile(timing.spent[said.rows], [50, 99]))
    row = Row(pair.name, split, found.n, found.apgr, found.low, found.high, found.cpt50, found.cpt80, p50, p99)
    savings, kept = _savings_and_quality(corpus, pair, said.rows, said.score)
    return Judged(row, pair, savings, kept, *_resampled(*curve(said.score, gain)))


def _resampled(calls: Floats, won: Floats, points: int = 201) -> tuple[Floats, Floats]:
    grid = np.linspace(0, 1, points)
    return grid, np.interp(grid, calls, won)


def cost_of(corpus: Corpus, model: str, rows: Integers) -> Floats:
    """Return the cost of each prompt in nano-dollars, with the real answer's length where it is known."""
    spent = corpus.output_tokens[rows, corpus.models.index(model)]
    usual = np.where(corpus.tools[rows] > 0, UNKNOWN_OUTPUT["tools"], UNKNOWN_OUTPUT["text"])
    return _priced(corpus, model, rows, np.where(np.isnan(spent), usual, spent))


def foretold_cost(corpus: Corpus, scored: Scored, model: str, rows: Integers) -> Floats:
    """Return costs by the length that is expected of the answer; at its usual cost where none is."""
    expected = scored.output_tokens.get(model)
    if expected is None or np.isnan(expected[rows]).any():
        return np.full(len(rows), cost_of(corpus, model, rows).mean())
    return _priced(corpus, model, rows, expected[rows])


def _priced(corpus: Corpus, model: str, rows: Integers, output: Floats) -> Floats:
    price = PRICES[model]
    tokens = np.array([estimate_tokens(corpus.texts[row]) for row in rows]) + TOKENS_A_TOOL * corpus.tools[rows]
    cost: Floats = 1000 * (price.input * tokens + price.output * output)
    return cost


def _savings_and_quality(
    corpus: Corpus, pair: Pair, rows: Integers, score: Floats
) -> tuple[dict[str, float], dict[str, float]]:
    if not {pair.weak, pair.strong} <= PRICES.keys():
        return {}, {}
    weak, strong = (corpus.scores[name][rows] for name in (pair.weak, pair.strong))
    found = traded(score, weak, strong, cost_of(corpus, pair.weak, rows), cost_of(corpus, pair.strong, rows))
    savings = {f"{share:.0%}": found.saving_at(share) for share in (0.95, 0.98, 1.0)}
    kept = {f"{saving:.0%}": found.quality_at(saving) for saving in (0.3, 0.5, 0.7)}
    return savings, {name: value for name, value in kept.items() if not math.isnan(value)}


def judge_targets(corpus: Corpus, scored: Scored, split: str, models: Iterable[str]) -> list[Target]:
    """Return the calibration of each model's probabilities, over all sources together."""
    found = []
    for model in models:
        if model in scored.adequate and model in corpus.models:
            said, true = scored.adequate[model], corpus.scores[model]
            known = ~np.isnan(said) & ~np.isnan(true)
            if known.sum() >= FEWEST_ROWS:
                found.append(Target(split, model, calibration(said[known], true[known])))
    return found


def judge_many(corpus: Corpus, scored: Scored, split: str, targets: Sequence[str], seed: int) -> AllTargets | None:
    """Judge the routing among these targets, on the prompts that every one of them answered; None where there are too
    few of either.
    """
    names = sorted(targets)
    if REFERENCE not in names or len(names) < FEWEST_TARGETS:
        return None
    true = np.column_stack([corpus.scores[name] for name in names])
    said = np.column_stack([scored.adequate[name] for name in names])
    rows = np.flatnonzero(~np.isnan(true + said).any(axis=1))
    if len(rows) < FEWEST_ROWS:
        return None
    answers = TargetTable(
        names,
        said[rows],
        np.column_stack([foretold_cost(corpus, scored, name, rows) for name in names]),
        true[rows],
        np.column_stack([cost_of(corpus, name, rows) for name in names]),
    )
    curve_found = mixed(answers, REFERENCE, seed)
    weights = equal_sources(corpus.sources[rows])
    kept = promises(answers, REFERENCE, FLOORS, corpus.groups[rows], weights, seed)
    return AllTargets(split, np.unique(corpus.sources[rows]).tolist(), curve_found, kept)


def judge_split(
    corpus: Corpus, scored: Scored, split: str, pairs: Sequence[Pair], timing: Timing, seed: int
) -> Evaluation:
    """Compute all measures of one split; the learning curve's splits (`own-N`) have pairs only."""
    rows = (judge_pair(corpus, scored, pair, split, timing, seed) for pair in pairs)
    judged = [row for row in rows if row is not None]
    if split in OWN:
        return Evaluation(prompts={}, data_sha256="", notes=[], judged=judged)
    known = set(corpus.models) & scored.adequate.keys()
    together = dict.fromkeys(tuple(name for name in names if name in known) for names in TARGETS)
    many = [judge_many(corpus, scored, split, names, seed) for names in together]
    models = dict.fromkeys(
        [*(name for names in TARGETS for name in names), *(name for pair in pairs for name in (pair.weak, pair.strong))]
    )
    return Evaluation(
        prompts={},
        data_sha256="",
        notes=[],
        judged=judged,
        targets=judge_targets(corpus, scored, split, models),
        many=[each for each in many if each is not None],
        cascades=judge_cascades(
            CASCADES,
            corpus.scores,
            scored.adequate,
            lambda name, rows: cost_of(corpus, name, rows),
            lambda name, rows: foretold_cost(corpus, scored, name, rows),
            corpus.sources,
            split,
        ),
    )


def evaluated(
    corpus: Corpus,
    scored: Mapping[str, Callable[[], Scored]],
    timing: Timing,
    *,
    notes: Sequence[str] = (),
    seed: int = 0,
    say: Callable[[str], None] = lambda _line: None,
) -> Evaluation:
    """Return the measures of every split. Each split's Scored is made when its turn comes, and dropped after."""
    pairs, left_out = pairs_of(corpus)
    parts = []
    for split, make in scored.items():
        say(f"measuring {split}")
        parts.append(judge_split(corpus, make(), split, pairs, timing, seed))
    names, sizes = np.unique(corpus.sources, return_counts=True)
    return Evaluation(
        prompts=dict(zip(names.tolist(), sizes.tolist(), strict=True)),
        data_sha256=corpus.data_sha256,
        notes=[*notes, *left_out],
        judged=[each for part in parts for each in part.judged],
        targets=[each for part in parts for each in part.targets],
        many=[each for part in parts for each in part.many],
        cascades=[each for part in parts for each in part.cascades],
        timing=timing,
    )
