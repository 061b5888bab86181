"""Implementation of `weighbridge classifier train|evaluate|calibrate` without a command line: files in, values out."""

import functools
import importlib
import itertools
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier.config import ClassifierSection
from classifier.manifest import Artifact, read_artifact, write_artifact
from classifier.onnx_classifier import OnnxClassifier, load_classifier
from classifier.training.cascade import recorded
from classifier.training.data import Corpus, Floats, Integers, load
from classifier.training.evaluate import FEWEST_ROWS, AllTargets, Evaluation, Scored, Target, Timing, evaluated
from classifier.training.measures import Platt, brier, ece, platt
from classifier.training.published import SCORES_FILE, TABLE_FILE, write_table
from classifier.training.shipped import weighed
from classifier.training.splits import SPLITS, Hashes, Split, read_stems, stem_hashes, unseen, write_stems
from classifier.tuning import Ability

if TYPE_CHECKING:
    from classifier.training.new_models import Figure
    from classifier.training.train import Everyday

__all__ = [
    "PACKAGED",
    "SPLITS",
    "NothingToJudge",
    "accept",
    "calibrate",
    "cross_validation",
    "evaluate",
    "study_new_models",
    "train",
]

Rows = NDArray[np.bool_]
Say = Callable[[str], None]
CrossValidated = Callable[[Corpus, Split], Scored]

PACKAGED: Final = Path(__file__).parent.parent / "artifacts"
SHIPPED: Final = "shipped"
_MAX_NAMED: Final = 10
_FLOOR_FIGURES: Final = (
    *("floor", "kept", "low", "high", "quality", "cost", "saving"),
    *("lead", "lead_low", "lead_high", "way", "way_low", "way_high"),
)
# Measures of difficulty for which nothing is trained; they come first.
_UNTRAINED: Final = 5


class NothingToJudge(Exception):
    """No honest number can be given."""


def train(data: Path, out: Path, seed: int, say: Say, *, measure: bool = True) -> Artifact:
    """Train on everything in `data`, and write the artifact with the hashes of its training prompts.

    The manifest's measures come from cross-validation on the same data; they are written as they are found. Raises BadData.
    """
    # It comes with scikit-learn, and has no types. Small matrices are slower by many threads than by one.
    threads: Any = importlib.import_module("threadpoolctl")
    with threads.threadpool_limits(1):
        return _trained(data, out, seed, say, measure=measure)


def _trained(data: Path, out: Path, seed: int, say: Say, *, measure: bool) -> Artifact:
    corpus = load(data)
    say(_size_note(corpus))
    # Before the minutes of training: a place that cannot be written to is told at once.
    out.mkdir(parents=True, exist_ok=True)
    from classifier.training import train as training  # noqa: PLC0415 - Judging needs none of its libraries.
    from classifier.training.tier_set import learned_from  # noqa: PLC0415 - as above

    known = training.everyday(learned_from(data), corpus.texts, say)
    ten_folds: list[Scored] = []
    artifact = training.train(corpus, known, seed, say, judge=ten_folds.append if measure else None, scores=data)
    write_artifact(out, artifact)
    write_stems(out, stem_hashes(corpus.texts))
    if (data / SCORES_FILE).is_file():
        write_table(data, out / TABLE_FILE)
    say(f"wrote {len(artifact.model)} bytes of model, its tables and its manifest to {out}")
    if not measure:
        return artifact
    # Measuring takes longer than training: what is known of the model's quality is written down as it is found.
    for metrics in _measured(artifact, known, corpus, data, ten_folds[0], seed, say):
        artifact = msgspec.structs.replace(
            artifact, manifest=msgspec.structs.replace(artifact.manifest, metrics=metrics)
        )
        write_artifact(out, artifact)
    return artifact


def _measured(
    artifact: Artifact, known: "Everyday", corpus: Corpus, data: Path, ten_folds: Scored, seed: int, say: Say
) -> Iterator[dict[str, Any]]:
    """Yield more and more of a model's quality: first the parts that take no training, then difficulty, and outcomes split by
    split, by cross-validation, without times, so that the same data give the same manifest. `ten_folds` are scores that training
    computes.
    """
    found: dict[str, Any] = {
        "rows": [],
        "targets": [],
        "all targets": [],
        "cascades": [],
        "notes": [],
        "difficulty": {},
    }
    difficulty = _difficulty(artifact, known, data, seed)
    for name, told in itertools.islice(difficulty, _UNTRAINED):
        found["difficulty"][name] = told
    yield found
    cross_validate = cross_validation(data, seed, say, known)
    timing = Timing(*(np.full(len(corpus.texts), np.nan) for _ in range(2)))
    for split in SPLITS:
        scored = ten_folds if split == "10-fold" else cross_validate(corpus, split)
        one = evaluated(corpus, {split: functools.partial(_itself, scored)}, timing, seed=seed, say=say)
        rows: list[dict[str, Any]] = msgspec.to_builtins(one.rows)
        found["rows"] += [{name: value for name, value in row.items() if not name.startswith("ms_")} for row in rows]
        found["targets"] += [_calibration(each) for each in one.targets]
        found["all targets"] += [_at_once(each) for each in one.many]
        found["cascades"] += [recorded(each) for each in one.cascades]
        found["notes"] = one.notes
        yield found
        if split == "10-fold":
            for name, told in difficulty:
                say(f"difficulty: {name}")
                found["difficulty"][name] = told
                yield found


def _itself(scored: Scored) -> Scored:
    return scored


def _difficulty(artifact: Artifact, known: "Everyday", data: Path, seed: int) -> Iterator[tuple[str, Any]]:
    """Return the measures of the artifact's complexity, each with its name."""
    from classifier.training import tier_measures  # noqa: PLC0415 - as above
    from classifier.training.tier_set import chat  # noqa: PLC0415 - as above

    classifier = OnnxClassifier(artifact)
    return tier_measures.measures(
        lambda prompts: np.array([classifier.classify(prompt).complexity for prompt in prompts]),
        known.table,
        chat(data),
        seed,
    )


def _at_once(each: AllTargets) -> dict[str, Any]:
    """Return the routing among several targets at once: areas below the curves, and what minimums kept and saved."""
    found = each.found
    areas = {
        name: round(getattr(found, name), 4) for name in ("area", "area_low", "area_high", "random_area", "least_lead")
    }
    best = int(np.argmax(found.single_quality))
    return {
        "split": each.split,
        "targets": found.targets,
        "n": found.n,
        "oracle": round(found.oracle, 4),
        **areas,
        "best": {
            "target": found.targets[best],
            "quality": round(float(found.single_quality[best]), 4),
            "nanousd": round(float(found.single_cost[best])),
        },
        "floors": [{name: round(getattr(floor, name), 4) for name in _FLOOR_FIGURES} for floor in each.promises],
    }


def _calibration(each: Target) -> dict[str, Any]:
    numbers = {name: round(getattr(each.found, name), 4) for name in ("brier", "ece", "log_loss")}
    return {"model": each.model, "split": each.split, "n": each.found.n, **numbers}


def cross_validation(data: Path, seed: int, say: Say, everyday: "Everyday | None" = None) -> CrossValidated:
    """Return a function that trains anew on each fold of a split and returns the held-out scores. `everyday` is what was learned
    without outcomes, where it is there already.
    """
    from classifier.training import train as training  # noqa: PLC0415 - as above
    from classifier.training.tier_set import learned_from  # noqa: PLC0415 - as above

    # Of the last corpus: what is known without outcomes is the same for each of its splits.
    kept: dict[int, training.Table] = {}

    def held_out(corpus: Corpus, split: Split) -> Scored:
        if id(corpus) not in kept:
            kept.clear()
            known = everyday or training.everyday(learned_from(data), corpus.texts, say)
            kept[id(corpus)] = training.table_of(corpus, known)
        table = kept[id(corpus)]
        return training.judged(table, training.answers(table, split, seed, say))

    return held_out


def _size_note(corpus: Corpus) -> str:
    questions = len(np.unique(corpus.groups))
    return f"{len(corpus.texts)} prompts, {questions} questions, {len(corpus.models)} models"


def open_shipped(folder: Path | None, models: list[str]) -> OnnxClassifier:
    """Return the artifact as it serves, with a target for each model. Raises NothingToJudge in place of the heuristic."""
    classifier = load_classifier(ClassifierSection(artifact_dir=folder), {model: model for model in models})
    if not isinstance(classifier, OnnxClassifier):
        raise NothingToJudge(f"the artifact cannot be used: {classifier.fallback_reason}")
    return classifier


def taught(folder: Path | None) -> Hashes:
    """Return hashes of the prompts that the artifact was trained on. Raises NothingToJudge when they are missing."""
    stems = read_stems(folder or PACKAGED)
    if stems is None:
        raise NothingToJudge(
            "the artifact does not tell what it was trained on (training_stems.bin is missing), so no prompt can be "
            "called unseen; train it anew"
        )
    return stems


def study_new_models(data: Path, out: Path, say: Say) -> "list[Figure]":
    """Return the errors of models that were left out and weighed by few questions. Raises BadData."""
    from classifier.training import new_models  # noqa: PLC0415 - it trains, as above

    return new_models.study(data, out, say)


def evaluate(
    data: Path,
    *,
    artifact_dir: Path | None = None,
    cross_validate: CrossValidated | None = None,
    splits: Sequence[Split] = SPLITS,
    seed: int = 0,
    say: Say = lambda _line: None,
) -> Evaluation:
    """Evaluate the artifact on prompts that it was not trained on, and every split of cross-validation when wanted.

    Raises NothingToJudge when neither is possible, and BadData.
    """
    corpus = load(data)
    say(_size_note(corpus))
    new, notes = _new_rows(corpus, artifact_dir, needed=cross_validate is None)
    say(notes[0])
    if not new.any() and cross_validate is None:
        raise NothingToJudge(f"{notes[0]}; leave out --no-cross-validate, or give other prompts")
    classifier = open_shipped(artifact_dir, corpus.models)
    notes += _unmeasured_notes(classifier, corpus)
    found = weighed(classifier, corpus, np.flatnonzero(new), say)
    if cross_validate is not None:
        notes.append(proven(corpus, splits, seed))
        say(notes[-1])
    return evaluated(
        corpus,
        _splits(corpus, found.scored if new.any() else None, cross_validate, splits),
        found.timing,
        notes=notes,
        seed=seed,
        say=say,
    )


def _new_rows(corpus: Corpus, artifact_dir: Path | None, *, needed: bool) -> tuple[Rows, list[str]]:
    """Mark the prompts that the artifact was not trained on, with notes; none where it does not tell, unless `needed`."""
    try:
        new = unseen(corpus.texts, taught(artifact_dir))
    except NothingToJudge as error:
        if needed:
            raise
        return np.zeros(len(corpus.texts), np.bool_), [str(error)]
    return new, [_unseen_note(new)]


def _splits(
    corpus: Corpus, shipped: Scored | None, cross_validate: CrossValidated | None, wanted: Sequence[Split]
) -> dict[str, Callable[[], Scored]]:
    found: dict[str, Callable[[], Scored]] = {SHIPPED: lambda: shipped} if shipped is not None else {}
    if cross_validate is not None:
        found |= {split: functools.partial(cross_validate, corpus, split) for split in wanted}
    return found


def proven(corpus: Corpus, splits: Sequence[Split], seed: int) -> str:
    """Return a note with the number of folds of each split, which were all checked to be disjoint. Raises NotDisjoint."""
    counts = {split: sum(1 for _ in corpus.questions.folds(split, seed)) for split in splits}
    told = ", ".join(f"{split} ({count})" for split, count in counts.items())
    return f"no question is on both sides of any fold, by normalised prompt text: {told}"


def _unseen_note(new: Rows) -> str:
    seen, size = int((~new).sum()), len(new)
    if not seen:
        return f"none of the {size} prompts is among those that the artifact was trained on"
    if seen == size:
        return f"all {size} prompts are among those that the artifact was trained on, so it has no row of its own"
    return f"{seen} of {size} prompts are among those that the artifact was trained on and are left out of its rows"


def _unmeasured_notes(classifier: OnnxClassifier, corpus: Corpus) -> list[str]:
    """Return a note on models that the artifact has no ability for; a misspelt name looks the same."""
    absent = [model for model in corpus.models if model not in classifier.manifest.abilities]
    if not absent:
        return []
    more = f" and {len(absent) - _MAX_NAMED} more" if len(absent) > _MAX_NAMED else ""
    return [
        f"the artifact has no ability of this name, so no probability of it: {', '.join(absent[:_MAX_NAMED])}{more}"
    ]


class Recalibrated(msgspec.Struct, frozen=True):
    """One ability before and after, judged on the half of the prompts that the change was not fitted to."""

    model: str
    fitted_on: int
    n: int
    brier_before: float
    brier_after: float
    ece_before: float
    ece_after: float
    change: Platt

    @property
    def better(self) -> bool:
        """True when the Brier score became lower."""
        return self.brier_after < self.brier_before


def calibrate(data: Path, *, artifact_dir: Path | None = None, seed: int = 0, say: Say) -> list[Recalibrated]:
    """Fit slope and shift of each ability's logit on one half of the new prompts, and judge them on the other.

    Raises NothingToJudge and BadData.
    """
    corpus = load(data)
    new = np.flatnonzero(unseen(corpus.texts, taught(artifact_dir)))
    say(f"{len(new)} of {len(corpus.texts)} prompts are new to the artifact")
    classifier = open_shipped(artifact_dir, corpus.models)
    for note in _unmeasured_notes(classifier, corpus):
        say(note)
    found = weighed(classifier, corpus.only(new), np.arange(len(new)), say)
    return recalibrated(corpus.only(new), found.scored, seed)


def recalibrated(corpus: Corpus, scored: Scored, seed: int) -> list[Recalibrated]:
    """Return the same for scores that were computed before. Raises NothingToJudge when no target has enough labels."""
    groups = np.unique(corpus.groups)
    first_half = np.random.default_rng(seed).permutation(groups)[: len(groups) // 2]
    fitting = np.isin(corpus.groups, first_half)
    found = []
    for model, said in scored.adequate.items():
        true = corpus.scores[model]
        known = ~np.isnan(said + true)
        halves = np.flatnonzero(known & fitting), np.flatnonzero(known & ~fitting)
        if min(map(len, halves)) >= FEWEST_ROWS:
            found.append(_recalibrated(model, said, true, *halves))
    if not found:
        raise NothingToJudge(
            f"no target has {2 * FEWEST_ROWS} new labelled prompts, half to fit with and half to judge by"
        )
    return found


def _recalibrated(model: str, said: Floats, true: Floats, fitting: Integers, judging: Integers) -> Recalibrated:
    change = platt(said[fitting], true[fitting])
    before, after, right = said[judging], change(said[judging]), true[judging]
    numbers = (brier(before, right), brier(after, right), ece(before, right), ece(after, right))
    return Recalibrated(model, len(fitting), len(judging), *numbers, change)


def mended(ability: Ability, change: Platt) -> Ability:
    """Return the ability whose logit is the old one's, stretched and shifted."""
    return msgspec.structs.replace(
        ability,
        weights=[change.slope * weight for weight in ability.weights],
        bias=change.slope * ability.bias + change.shift,
    )


def accept(found: list[Recalibrated], folder: Path, out: Path) -> list[str]:
    """Write the artifact of `folder` with the abilities that became better on held-out prompts; return their names."""
    artifact = read_artifact(folder)
    table = artifact.manifest.abilities
    better = {
        each.model: mended(table[each.model], each.change) for each in found if each.better and each.model in table
    }
    manifest = msgspec.structs.replace(artifact.manifest, abilities={**table, **better})
    changed = msgspec.structs.replace(artifact, manifest=manifest)
    if out.resolve() != folder.resolve():
        # Files beside the model, such as the hashes of its training prompts, are copied unchanged.
        shutil.copytree(folder, out, dirs_exist_ok=True)
    write_artifact(out, changed)
    return sorted(better)
