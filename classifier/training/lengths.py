"""Answer lengths: one usual length a prompt, in gpt-4o's units, and one ratio a model.

A ratio is that of a model's billed answer to gpt-4o's, for the same prompt in the same form. What a benchmark's harness made of
a model is no habit of the model: where each model got a form of its own (FORMS_DIFFER), only gpt-4o's own lengths count.
Between sources of one form a model's ratio still differs, by up to a factor of two; it is taken over all of their prompts at
once, halfway between the ratio of the median answer and that of the sums, as both are asked for: a deadline by the one, a
budget by the other.
"""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier.known_models import EFFORTS, Listed, known_models, listed
from classifier.training.data import Floats

RATIOS_FILE: Final = "length_ratios.csv"
REFERENCE: Final = "gpt-4o-2024-05-13"
FORMS_DIFFER: Final = frozenset({"mmlu_pro", "routellm_gsm8k"})
"""Sources whose models were not asked in one form: in MMLU-Pro gpt-4o explains at length and Jamba writes 18 characters, and in
RouteLLM's GSM8K examples go before the question, without gpt-4o.
"""
PLAIN: Final = 1.8
"""Ratio of a model that does not reason, where nothing was published of it: the median of 62 on 100 open questions, half of them
between 1.2 and 2.5 (BullshitBench v2, MIT, 2026-05-02).
"""
REASONING: Final = 5.4
"""The same of one that does: the median of 78, half of them between 3.6 and 7.4."""
HIGH_TO_NONE: Final = 2.05
"""Ratio of a model's answers at high effort to those without, on the same questions."""
_STEPS: Final = {"none": 0.0, "minimal": 0.1, "low": 0.35, "medium": 0.7, "high": 1.0, "xhigh": 1.2, "max": 1.4}
_ROUNDS: Final = 20
_FEWEST_TOLD: Final = 200
_VISIBLE: Final = "visible characters ratio "
_LITTLE_REASONING: Final = 0.05


def usual_lengths(
    tokens: Floats, sources: NDArray[np.str_], models: Sequence[str], ratios: Mapping[str, float] | None = None
) -> tuple[Floats, Floats]:
    """Return (prompts,): the length that gpt-4o's answer to each prompt has, NaN where nobody's is known; (models,):
    log ratios.

    `tokens` are (prompts, models), NaN where unknown. A source that gpt-4o did not answer tells nothing. `ratios` are log
    ratios that others published, by model; they count where the tokens tell none, and for models whose visible answer is not
    what is billed. Data without any answer of gpt-4o are measured by the model with most lengths.
    """
    logs = np.log(np.maximum(tokens, 1.0))
    at = _reference(tokens, models)
    usual, shared = np.full(len(tokens), np.nan), np.zeros(len(tokens), np.bool_)
    for source in np.unique(sources):
        own = np.flatnonzero(sources == source)
        if np.isnan(logs[own, at]).all():
            continue
        if source in FORMS_DIFFER:
            usual[own] = logs[own, at]
        else:
            usual[own] = _usual(logs[own], at)
            both = own[~np.isnan(logs[own, at])]
            # A usual length is a median; its sum falls short of what the same answers add up to. Halfway, as ratios are.
            usual[own] += np.log(np.exp(logs[both, at]).sum() / np.exp(usual[both]).sum()) / 2
            shared[own] = True
    found = np.zeros(len(models))
    for model, name in enumerate(models):
        there = shared & ~np.isnan(tokens[:, model] + tokens[:, at])
        told = listed(name)
        if there.any() and not (told is not None and told[0].thinks):
            one, other = np.maximum(tokens[there, model], 1.0), np.maximum(tokens[there, at], 1.0)
            found[model] = (np.median(np.log(one / other)) + np.log(one.sum() / other.sum())) / 2
        elif ratios is not None:
            found[model] = ratios.get(name, 0.0)
    return np.exp(usual), found


def _reference(tokens: Floats, models: Sequence[str]) -> int:
    if REFERENCE in models:
        at = list(models).index(REFERENCE)
        if not np.isnan(tokens[:, at]).all():
            return at
    return int((~np.isnan(tokens)).sum(axis=0).argmax())


def _usual(logs: Floats, reference: int) -> Floats:
    """Log length = the prompt's own + the model's habit in this source, which the reference has none of; the first of them."""
    known = ~np.isnan(logs)
    habit = np.zeros(logs.shape[1])
    usual = np.zeros(len(logs))
    for _ in range(_ROUNDS):
        usual = np.where(known, logs - habit, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
        habit = np.where(known, logs - usual[:, None], 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
        habit -= habit[reference]
    return np.where(known.any(axis=1), usual, np.nan)


class Told(msgspec.Struct, frozen=True):
    """Told answer tokens over actual ones, of one model's answers."""

    answers: int
    median: float
    total: float
    """Ratio of the sums."""


def told_over_actual(
    log_usual: Floats, tokens: Floats, sources: NDArray[np.str_], models: Sequence[str], log_ratios: Floats
) -> dict[str, Told]:
    """Compare the predicted lengths with held-out answers, by model: in sources of one form, of models whose visible answers are
    what is billed.
    """
    found = {}
    same = ~np.isin(sources, list(FORMS_DIFFER))
    for at, name in enumerate(models):
        match = listed(name)
        there = same & ~np.isnan(tokens[:, at]) & (tokens[:, at] > 0)
        if there.sum() < _FEWEST_TOLD or (match is not None and match[0].thinks):
            continue
        told = np.exp(log_usual[there] + log_ratios[at])
        ratio = float(np.median(told / tokens[there, at]))
        found[name] = Told(int(there.sum()), round(ratio, 3), round(float(told.sum() / tokens[there, at].sum()), 3))
    return found


def published_ratios(folder: Path) -> dict[str, float]:
    """Log ratios of every known model at each of its efforts, by the manifest's key of the row.

    From published lengths where there are some; else the effort next to it, by what efforts do to lengths in general; else
    PLAIN or REASONING.
    """
    told: dict[tuple[str, str], list[float]] = {}
    visible: dict[str, list[float]] = {}
    if (folder / RATIOS_FILE).is_file():
        with (folder / RATIOS_FILE).open(newline="") as file:
            for row in csv.DictReader(file):
                _note(row, told, visible)
    found = {}
    for model in known_models():
        efforts = model.efforts or ("",)
        own = {effort: float(np.mean(told[model.name, effort])) for effort in efforts if (model.name, effort) in told}
        if model.name in visible:
            # What a model writes beside its reasoning is what it writes without.
            shown = float(np.mean(visible[model.name]))
            own = {**{effort: shown for effort in efforts if not reasons(model, effort)}, **own}
        for effort in efforts:
            found[model.row(effort)] = own[effort] if effort in own else _guessed(model, effort, own)
    return found


def _note(row: Mapping[str, str], told: dict[tuple[str, str], list[float]], visible: dict[str, list[float]]) -> None:
    """Add the ratio of one line of the table, if it is one to gpt-4o; and that of the visible part of a reasoned answer."""
    name, _, _ = row["model"].partition(" ")
    match = listed(name)
    if match is None or not row["base"].startswith("gpt-4o"):
        return
    model = match[0]
    effort = match[1] or model.at(_effort(row["mode"]))
    share = float(row["reasoning_share"] or 0)
    if effort == "none" and share > _LITTLE_REASONING:
        # The host's default is not the provider's.
        effort = model.at("medium")
    if reasons(model, effort):
        if share <= _LITTLE_REASONING:
            return
        if _VISIBLE in row["note"]:
            visible.setdefault(model.name, []).append(float(np.log(float(row["note"].rpartition(" ")[2]))))
    ratios = [float(row[name]) for name in ("median_ratio", "total_ratio") if row[name]]
    if ratios:
        told.setdefault((model.name, effort), []).append(float(np.mean(np.log(ratios))))


def _effort(mode: str) -> str:
    words = mode.replace(";", " ").split()
    if "thinking" in words:
        return "high"
    return next((word for word in words if word in EFFORTS), "")


def reasons(model: Listed, effort: str) -> bool:
    """Return True if a model reasons before it answers, at one of its efforts."""
    return model.thinks or effort not in {"", "none", "minimal"}


def _guessed(model: Listed, effort: str, own: Mapping[str, float]) -> float:
    """Return the ratio at an effort of which nothing was published."""
    by_effort = float(np.log(HIGH_TO_NONE))
    if own:
        at = _STEPS[effort]
        known = sorted((_STEPS[each], ratio) for each, ratio in own.items())
        first, last = known[0][0], known[-1][0]
        # Between two known ones they lead, beyond them what efforts do in general.
        steps, ratios = [step for step, _ in known], [ratio for _, ratio in known]
        between = float(np.interp(at, steps, ratios))
        return between + by_effort * (max(0.0, at - last) - max(0.0, first - at))
    if not reasons(model, effort):
        return float(np.log(PLAIN))
    return float(np.log(REASONING) + (by_effort * (_STEPS[effort] - 1) if effort else 0.0))
