"""The number of own verdicts that close the gap: the shipped model, then recalibrated with 50, 200, 1,000 labels.

python -m classifier.training.learning_curve --data FOLDER [--vectors random] [--out rows.json]

One source stands for a team whose categories are its applications. Its questions are cut in halves: labels are drawn
from one and every number comes from the other, through the very code that serves (`recalibrate`, groups found by
their reach). A model that was trained on the source has seen both halves, so the numbers of such a source say what own
labels add in a known domain; for an unknown one give `--artifact` a model that was trained without it.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier.learning.labels import Floats, Labels, logits_of, losses, probability
from classifier.learning.recalibrate import Known, TooFewLabels, pooled_ability, recalibrate, shifts
from classifier.prediction import Prediction, Prompt
from classifier.training.data import Corpus, load
from classifier.training.evaluate import Pair, pairs_of
from classifier.training.measures import apgr, bootstrap_apgr
from classifier.tuning import Ability, Tuning

COUNTS: Final = (0, 50, 200, 1_000)
DRAWS: Final = 6
"""Sets of labels drawn for each count; a single one shows its luck as much as its size."""
_TEAM: Final = "team"
_RANDOM_LOADS: Final = 16
_WEAK_CAPABILITY, _STRONG_CAPABILITY = 0.5, 0.9


class TrainedClassifier(Protocol):
    """The part of the trained classifier that is needed here."""

    @property
    def artifact(self) -> str: ...
    @property
    def loads(self) -> int: ...
    @property
    def abilities(self) -> Mapping[str, Ability]: ...
    def adopt(self, abilities: Mapping[str, str]) -> None: ...
    def classify(self, prompt: Prompt, team_id: str = "") -> Prediction: ...


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One pair and number of labelled prompts. `apgr` is the mean over draws; the interval is of the judged prompts."""

    pair: str
    labels: int
    n: int
    apgr: float
    lo: float
    hi: float
    spread: float
    """Standard deviation between draws of labels."""
    log_loss: float
    groups: float


class _Outcome(msgspec.Struct, frozen=True, kw_only=True):
    request_id: str
    target_id: str
    vector: bytes
    adequate: float
    at_us: int
    team_id: str = _TEAM
    weight: float = 1.0


class Vectors(msgspec.Struct, frozen=True):
    """A corpus's prompts as vectors of loads and sketch, and the targets' starting point."""

    rows: list[bytes]
    known: Known


def shipped_vectors(classifier: TrainedClassifier, corpus: Corpus, rows: Sequence[int], pair: Pair) -> Vectors:
    """Return the prompts' vectors by a trained artifact, through the code that serves."""
    classifier.adopt({model: model for model in (pair.weak, pair.strong)})
    made = [classifier.classify(corpus.prompt(row)).vector for row in rows]
    known = Known(
        artifact=classifier.artifact,
        loads=classifier.loads,
        abilities=classifier.abilities,
        capabilities={pair.weak: _WEAK_CAPABILITY, pair.strong: _STRONG_CAPABILITY},
    )
    return Vectors(made, known)


def random_vectors(corpus: Corpus, rows: Sequence[int], pair: Pair) -> Vectors:
    """Return the prompts' vectors by a random projection of hashed words: a baseline without any training."""
    projection = np.random.default_rng(0).normal(size=(1 << 17, _RANDOM_LOADS)).astype(np.float32)
    made = []
    for row in rows:
        features = corpus.features[row]
        weights = np.log1p(features.counts).astype(np.float32)
        length = max(float(np.linalg.norm(weights)), 1e-6)
        loads = weights @ projection[features.indices] / length
        made.append(np.r_[loads, features.sketch].astype("<f2").tobytes())
    capabilities = {pair.weak: _WEAK_CAPABILITY, pair.strong: _STRONG_CAPABILITY}
    return Vectors(made, Known(artifact="random", loads=_RANDOM_LOADS, capabilities=capabilities))


def halves(questions: NDArray[np.int64], seed: int) -> NDArray[np.bool_]:
    """Return True where a prompt is judged; all wordings of one question are on one side."""
    numbers = np.unique(questions)
    chosen = np.random.default_rng(seed).permutation(numbers)[: len(numbers) // 2]
    judged: NDArray[np.bool_] = np.isin(questions, chosen)
    return judged


def curve(vectors: Vectors, weak: Floats, strong: Floats, questions: NDArray[np.int64], pair: Pair) -> list[Row]:
    """Return the rows of one pair, for every count that its pool of labels allows."""
    judged = halves(questions, seed=1)
    pool = np.flatnonzero(~judged)
    gain = (strong - weak)[judged]
    if gain.sum() <= 0:
        return []
    test = _labels(vectors, np.flatnonzero(judged), weak, strong, pair)
    found: list[Row] = []
    for count in COUNTS:
        if count > len(pool):
            break
        draws = [
            _tuning_of_draw(vectors, pool, count, (weak, strong), pair, draw) for draw in range(DRAWS if count else 1)
        ]
        scores = [_scores_and_loss(vectors, tuning, test, pair) for tuning in draws]
        each = [apgr(score, gain) for score, _ in scores]
        middle = scores[int(np.argsort(each)[len(each) // 2])][0]
        low, high = np.percentile(bootstrap_apgr(middle, gain, 0), [2.5, 97.5])
        found.append(
            Row(
                pair=pair.name,
                labels=count,
                n=len(gain),
                apgr=round(float(np.mean(each)), 4),
                lo=round(float(low), 4),
                hi=round(float(high), 4),
                spread=round(float(np.std(each)), 4),
                log_loss=round(float(np.mean([loss for _, loss in scores])), 4),
                groups=float(np.mean([len(tuning.groups.get(_TEAM, [])) for tuning in draws])),
            )
        )
    return found


def _tuning_of_draw(
    vectors: Vectors, pool: NDArray[np.intp], count: int, scores: tuple[Floats, Floats], pair: Pair, draw: int
) -> Tuning:
    """Return the tuning that `weighbridge classifier recalibrate --accept` would put in use after `count` labelled prompts."""
    nothing = Tuning(version=0, artifact=vectors.known.artifact)
    rows = np.random.default_rng([2, draw]).permutation(pool)[:count]
    outcomes = [
        _Outcome(
            request_id=str(row), target_id=model, vector=vectors.rows[row], adequate=float(score[row]), at_us=place
        )
        for place, row in enumerate(rows.tolist())
        for model, score in ((pair.weak, scores[0]), (pair.strong, scores[1]))
    ]
    try:
        return recalibrate(outcomes, vectors.known, version=1, seed=draw).tuning
    except TooFewLabels:
        return nothing


def _labels(vectors: Vectors, rows: NDArray[np.intp], weak: Floats, strong: Floats, pair: Pair) -> Labels:
    """Return the judged prompts as labels, all for the weak target and then all for the strong one."""
    raw = np.frombuffer(b"".join(vectors.rows[row] for row in rows.tolist()), "<f2").astype(np.float64)
    raw = np.tile(raw.reshape(len(rows), -1), (2, 1))
    count = len(raw)
    return Labels(
        loads=raw[:, : vectors.known.loads],
        sketches=raw[:, vectors.known.loads :],
        adequate=np.r_[weak[rows], strong[rows]],
        weights=np.ones(count),
        at_us=np.zeros(count, np.int64),
        requests=np.tile(rows, 2).astype(np.str_),
        teams=np.full(count, _TEAM),
        targets=np.repeat([pair.weak, pair.strong], len(rows)),
    )


def _scores_and_loss(vectors: Vectors, tuning: Tuning, test: Labels, pair: Pair) -> tuple[Floats, float]:
    """Return P(strong) - P(weak) of each judged prompt, and the mean log loss of both probabilities."""
    known = vectors.known
    rows: dict[str, Ability] = {}
    for model in (pair.weak, pair.strong):
        guess = pooled_ability({}, {}, known.capabilities[model], known.loads)
        rows[model] = tuning.abilities.get(model) or known.abilities.get(model) or guess
    logits = logits_of(test, rows) + shifts(test, tuning.groups)
    chances = probability(logits)
    half = len(chances) // 2
    return chances[half:] - chances[:half], float(losses(logits, test.adequate).mean())


def study(corpus: Corpus, classifier: TrainedClassifier | None) -> list[Row]:
    """Return the rows of every pair in the data; without a classifier, by random projections."""
    found: list[Row] = []
    for pair in pairs_of(corpus)[0]:
        weak, strong = corpus.scores[pair.weak], corpus.scores[pair.strong]
        rows = np.flatnonzero((corpus.sources == pair.source) & ~np.isnan(weak) & ~np.isnan(strong)).tolist()
        if classifier is None:
            vectors = random_vectors(corpus, rows, pair)
        else:
            vectors = shipped_vectors(classifier, corpus, rows, pair)
        found += curve(vectors, weak[rows], strong[rows], corpus.groups[rows], pair)
    return found


def _classifier(folder: Path | None) -> Any:
    from classifier.onnx_classifier import open_classifier  # noqa: PLC0415 - random projections do without onnxruntime

    return open_classifier(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with prompts.parquet and outcomes.parquet")
    parser.add_argument("--artifact", type=Path, help="folder of a trained model; the packaged one when left out")
    parser.add_argument("--vectors", choices=("trained", "random"), default="trained")
    parser.add_argument("--out", type=Path, help="also write the rows here as JSON")
    asked = parser.parse_args()
    rows = study(load(asked.data), None if asked.vectors == "random" else _classifier(asked.artifact))
    for row in rows:
        print(
            f"{row.pair:76} {row.labels:>5} labels  APGR {row.apgr:.3f} [{row.lo:.3f}, {row.hi:.3f}] "
            f"±{row.spread:.3f}  log loss {row.log_loss:.3f}  {row.groups:.1f} groups"
        )
    if asked.out is not None:
        asked.out.write_text(json.dumps(msgspec.to_builtins(rows), indent=1) + "\n")


if __name__ == "__main__":
    main()
