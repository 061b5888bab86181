"""The result of a measurement, computed from its answers and a classifier alone."""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec
import numpy as np

from classifier.measuring.ability_row import (
    Floats,
    Interval,
    TooFewAnswers,
    WeighsPrompts,
    checked_fit,
    known_shift,
    loads_of,
    mean_chance,
    mean_chances,
    prior_of,
    quantile,
    share_right,
    shifted,
)
from classifier.measuring.questions import CalibrationSet, Question
from classifier.measuring.store import SCORED, CalibrationAnswer, Measurement
from classifier.tuning import Ability

SHOWN: Final = 8
"""Most answers without the asked form that are shown."""
NEIGHBOURS: Final = 4
"""Known models shown on either side of the target."""
_REFUSING_SHARE: Final = 0.05
_UNPARSED_SHARE: Final = 0.1
_US: Final = 1_000_000


class Trained(WeighsPrompts, Protocol):
    """A trained classifier, with the rows that it knows and prompts to compare on."""

    @property
    def artifact(self) -> str: ...


class ReferenceModels(msgspec.Struct, frozen=True, kw_only=True):
    """The reference of a result: rows of known models, and the loads of the classifier's own mix of prompts."""

    known: Mapping[str, Ability]
    """The rows that the artifact ships, by model."""
    before: float | None
    """The mean chance by the target's row in use; None for one that was never measured."""
    log_length: float
    loads: Floats
    weights: Floats


class SourceScore(msgspec.Struct, frozen=True, kw_only=True):
    """The right answers of one source's questions, with a 95 % interval, and the known models' on the same questions."""

    source: str
    asked: int
    right: int
    low: float
    high: float
    known_median: float | None
    """Median of the known models' shares, of those that were asked most of these questions."""
    known_best: float | None


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that had not the asked form."""

    question_id: str
    expected: str
    said: str


class KnownModel(msgspec.Struct, frozen=True, kw_only=True):
    """A known model's mean chance on the same mix of prompts."""

    name: str
    mean: float


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """All that is told of a measurement, and the row that it may be accepted as."""

    target_id: str
    artifact: str
    questions: int
    scored: int
    right: int
    unparsed: int
    refused: int
    failed: int
    spent_nanousd: int
    budget_nanousd: int
    at_once: int
    sources: list[SourceScore]
    ability: Ability | None
    too_few: str | None
    """The reason why no row was fitted."""
    mean: Interval | None
    before: float | None
    """The mean chance by the row that was in use."""
    known: list[KnownModel]
    """The known models nearest to it, the best and the worst, best first."""
    ttft_p50_s: float | None
    ttft_p90_s: float | None
    tpot_p50_s: float | None
    tpot_p90_s: float | None
    token_ratio: float | None
    """Prompt tokens as the target counts them, over our estimate."""
    output_tokens_p50: float | None
    shown: list[Shown]
    notes: list[str]


def result_of(
    measurement: Measurement,
    answers: Sequence[CalibrationAnswer],
    calibration: CalibrationSet,
    classifier: Trained,
    reference: ReferenceModels,
) -> Result:
    """Score the answers, and fit the target's row where there are enough."""
    by_id = {question.question_id: question for question in calibration.questions}
    scored = [each for each in answers if each.outcome in SCORED and each.question_id in by_id]
    counts = {
        name: sum(each.outcome == name for each in answers) for name in ("right", "unparsed", "refused", "failed")
    }
    ability, mean, too_few = None, None, None
    try:
        loads = loads_of(classifier, [by_id[each.question_id].prompt for each in scored])
        right = np.array([each.outcome == "right" for each in scored], np.float64)
        row = checked_fit(loads, right, prior_of(reference.known, classifier.loads))
        told = known_outcomes(calibration.models, [by_id[each.question_id] for each in scored])
        row = shifted(row, -known_shift(reference.known, told, loads))
        ability = row.ability(reference.log_length)
        mean = mean_chance(row, reference.loads, reference.weights)
    except TooFewAnswers as error:
        too_few = str(error)
    known = mean_chances(reference.known, reference.loads, reference.weights)
    ratio = [each for each in scored if each.input_tokens and each.estimated_tokens]
    return Result(
        target_id=measurement.target_id,
        artifact=classifier.artifact,
        questions=measurement.questions,
        scored=len(scored),
        right=counts["right"],
        unparsed=counts["unparsed"],
        refused=counts["refused"],
        failed=counts["failed"],
        spent_nanousd=sum(each.cost_nanousd for each in answers),
        budget_nanousd=measurement.budget_nanousd,
        at_once=measurement.at_once,
        sources=_sources(scored, by_id, calibration.models),
        ability=ability,
        too_few=too_few,
        mean=mean,
        before=reference.before,
        known=[] if mean is None else _near(known, mean.value),
        ttft_p50_s=_seconds([each.ttft_us for each in scored], 0.5),
        ttft_p90_s=_seconds([each.ttft_us for each in scored], 0.9),
        tpot_p50_s=_seconds([each.tpot_us for each in scored], 0.5),
        tpot_p90_s=_seconds([each.tpot_us for each in scored], 0.9),
        token_ratio=sum(each.input_tokens or 0 for each in ratio) / sum(each.estimated_tokens for each in ratio)
        if ratio
        else None,
        output_tokens_p50=quantile([each.output_tokens for each in scored if each.output_tokens is not None], 0.5),
        shown=_shown(scored, by_id),
        notes=_notes(len(scored), counts),
    )


def known_outcomes(models: Sequence[str], questions: Sequence[Question]) -> dict[str, Floats]:
    """Return the outcomes of known models on these questions: 1, 0, or NaN where they were not asked."""
    codes = {"1": 1.0, "0": 0.0}
    return {
        model: np.array([codes.get(question.outcomes[at : at + 1], np.nan) for question in questions])
        for at, model in enumerate(models)
    }


def _seconds(values: Sequence[int | None], share: float) -> float | None:
    return quantile([value / _US for value in values if value is not None], share)


def _sources(
    scored: Sequence[CalibrationAnswer], by_id: Mapping[str, Question], models: Sequence[str]
) -> list[SourceScore]:
    found = []
    for source in sorted({by_id[each.question_id].source for each in scored}):
        rows = [each for each in scored if by_id[each.question_id].source == source]
        right = sum(each.outcome == "right" for each in rows)
        reach = share_right(right, len(rows))
        known = _known_shares([by_id[each.question_id] for each in rows], len(models))
        found.append(
            SourceScore(
                source=source,
                asked=len(rows),
                right=right,
                low=reach.low,
                high=reach.high,
                known_median=quantile(known, 0.5),
                known_best=max(known, default=None),
            )
        )
    return found


def _known_shares(questions: Sequence[Question], models: int) -> list[float]:
    """Return the known models' shares of right answers to these questions, of those that were asked at least half of them."""
    shares = []
    for at in range(models):
        told = [question.outcomes[at] for question in questions if question.outcomes and question.outcomes[at] != "-"]
        if told and 2 * len(told) >= len(questions):
            shares.append(told.count("1") / len(told))
    return shares


def _near(known: Mapping[str, float], mean: float) -> list[KnownModel]:
    ordered = sorted(known.items(), key=lambda each: (-each[1], each[0]))
    above = [at for at, (_, value) in enumerate(ordered) if value >= mean][-NEIGHBOURS:]
    below = [at for at, (_, value) in enumerate(ordered) if value < mean][:NEIGHBOURS]
    chosen = sorted({0, len(ordered) - 1, *above, *below}) if ordered else []
    return [KnownModel(name=ordered[at][0], mean=round(ordered[at][1], 4)) for at in chosen]


def _shown(scored: Sequence[CalibrationAnswer], by_id: Mapping[str, Question]) -> list[Shown]:
    odd = [each for each in scored if each.outcome in {"unparsed", "refused"}][:SHOWN]
    return [
        Shown(question_id=each.question_id, expected=expected_of(by_id[each.question_id]), said=each.said)
        for each in odd
    ]


def expected_of(question: Question) -> str:
    """Return the right answer, in words for people."""
    if question.kind != "tool":
        return question.gold
    return "; ".join(each.name for each in question.calls) or "no call"


def _notes(scored: int, counts: Mapping[str, int]) -> list[str]:
    notes = []
    if scored and counts["refused"] > _REFUSING_SHARE * scored:
        notes.append(
            f"it refused {counts['refused']} of {scored} questions, which are harmless: a filter before it may be in the way"
        )
    if scored and counts["unparsed"] > _UNPARSED_SHARE * scored:
        notes.append(
            f"{counts['unparsed']} of {scored} answers had not the asked form and count as wrong; where they were cut, "
            "a larger --max-tokens helps"
        )
    if counts["failed"]:
        notes.append(f"{counts['failed']} questions were not answered and are not scored")
    return notes
