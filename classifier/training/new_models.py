"""The number of questions that place a model never seen: `weighbridge classifier study-new-models --data DIR --out DIR`.

Whole families of models are left out, and half of the questions: a network is trained on the rest, so that neither the
model nor the prompt was seen. A left-out model is then weighed by n questions of the other half, as `classifier measure`
does it, and judged on those that were not asked. Takes about a minute a family.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier.measuring.ability_row import (
    Floats,
    Prior,
    Row,
    chances,
    fit_row,
    loads_of,
    mean_chance,
    plain_prior,
    prior_of,
)
from classifier.onnx_classifier import OnnxClassifier
from classifier.training.calibration_set import COUNTS
from classifier.training.data import Corpus, load
from classifier.training.left_out import LeftOut
from classifier.training.measures import apgr
from classifier.training.published import PLACED_BY, SCORES_FILE, Board, board_of, source_means
from classifier.tuning import Ability

Integers = NDArray[np.int64]
Say = Callable[[str], None]

FAMILIES: Final[Mapping[str, tuple[str, ...]]] = {
    "gpt-4 and llama-3": ("gpt-4", "chatgpt", "llama-3", "athene", "hermes-2-pro-llama-3", "o1-"),
    "gemini and gemma": ("gemini", "gemma"),
    "claude and mistral": ("claude", "mixtral", "mistral", "mathstral"),
}
NOT_ASKED: Final = -1
"""Number of questions of a row that is made of published scores."""
SIZES: Final = (25, 50, 100, 200, 400, 0)
"""Numbers of questions; 0 stands for as many as there are."""
PAIRS: Final = (
    ("mmlu_pro", "llama-3.1-70b-instruct", "gpt-4o-2024-05-13"),
    ("mmlu_pro", "gemini-1.5-flash-002", "gemini-1.5-pro-002"),
    ("zeroeval_crux", "llama-3-70b-instruct", "gpt-4o-2024-05-13"),
    ("zeroeval_crux", "claude-3-haiku-20240307", "claude-3-5-sonnet-20240620"),
)
DRAWS: Final = 20
_LEAST_ROWS: Final = 250
"""Least judged answers of a model whose mean is compared."""
_RIGHT: Final = 0.5


class Unseen(msgspec.Struct, frozen=True):
    """Prompts and models that a network had not seen, as its loads."""

    family: str
    rows: Integers
    """Rows of the corpus."""
    loads: Floats
    models: list[str]
    abilities: dict[str, Ability]
    """The rows of the models that it had seen."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One measure at one number of questions, over models and draws."""

    what: str
    """`mean error`, `mean error p90`, `interval holds`, or a pair whose APGR it is."""
    prior: str
    questions: int
    value: float
    spread: float
    """Standard deviation over the draws, of their mean over models; of published scores the standard error over them."""


def unseen_parts(corpus: Corpus, say: Say) -> Iterator[Unseen]:
    """Train one network for each family that is left out."""
    from classifier.training import train as training  # noqa: PLC0415 - it needs libraries of its own
    from classifier.training.tier_set import learned_from  # noqa: PLC0415 - as above

    known = training.everyday(learned_from(), corpus.texts, say)
    rng = np.random.default_rng(0)
    taught = rng.random(int(corpus.groups.max()) + 1)[corpus.groups] < 0.5
    for family, prefixes in FAMILIES.items():
        left_out = [model for model in corpus.models if model.startswith(prefixes)]
        kept = [at for at, model in enumerate(corpus.models) if model not in left_out]
        part = corpus.only(np.flatnonzero(taught))
        part = msgspec.structs.replace(
            part,
            models=[corpus.models[at] for at in kept],
            outcomes=part.outcomes[:, kept],
            output_tokens=part.output_tokens[:, kept],
        )
        asked = ~np.isnan(part.outcomes).all(axis=1)
        part = part.only(np.flatnonzero(asked))
        say(f"{family}: {len(left_out)} models left out, {len(part.texts)} prompts taught")
        classifier = OnnxClassifier(training.train(part, known, 0, say))
        # Some are never asked, as the calibration set has none of their kind: rows of published scores are judged on them, too.
        judged = [*COUNTS, *(member for members in PLACED_BY.values() for member in members)]
        rows = np.flatnonzero(~taught & np.isin(corpus.sources, judged))
        loads = loads_of(classifier, [corpus.prompt(int(row)) for row in rows])
        yield Unseen(family, rows, loads, left_out, dict(classifier.manifest.abilities))


class _Exam:
    """The left-out half of the questions, divided once more: those that may be asked, and those to judge by."""

    def __init__(self, corpus: Corpus, unseen: Unseen) -> None:
        rng = np.random.default_rng(1)
        groups = corpus.groups[unseen.rows]
        self.is_asked = rng.random(int(corpus.groups.max()) + 1)[groups] < _RIGHT
        self.sources = corpus.sources[unseen.rows]
        self.loads = unseen.loads
        self._right = corpus.outcomes[unseen.rows]
        self._models = corpus.models

    def answers(self, model: str) -> Floats:
        """Return (rows,) 1 right, 0 wrong, NaN not asked."""
        told = self._right[:, self._models.index(model)]
        found: Floats = np.where(np.isnan(told), np.nan, told >= _RIGHT)
        return found

    def weights(self, rows: Integers) -> Floats:
        """Return the weights that give each source its share of the calibration set."""
        found = np.zeros(len(rows))
        for source, share in COUNTS.items():
            own = self.sources[rows] == source
            found[own] = share / max(1, int(own.sum()))
        shares: Floats = found / found.sum()
        return shares

    def drawn(self, model: str, count: int, seed: int) -> Integers:
        """Return `count` questions that may be asked, in the calibration set's shares of the sources; 0 is as many as
        can be.
        """
        rng = np.random.default_rng([seed, count])
        able = np.flatnonzero(self.is_asked & ~np.isnan(self.answers(model)))
        by_source = {source: able[self.sources[able] == source] for source in COUNTS}
        by_source = {source: rows for source, rows in by_source.items() if len(rows)}
        whole = sum(COUNTS[source] for source in by_source)
        most = min(len(rows) * whole / COUNTS[source] for source, rows in by_source.items())
        wanted = most if count == 0 else min(count, most)
        picked = [
            rng.choice(rows, min(len(rows), round(wanted * COUNTS[source] / whole)), replace=False)
            for source, rows in by_source.items()
        ]
        return np.concatenate(picked)

    def judged(self, *models: str) -> Integers:
        """Return the rows to judge by, which all of these models answered."""
        there = ~self.is_asked
        for model in models:
            there = there & ~np.isnan(self.answers(model))
        return np.flatnonzero(there)

    def fitted(self, model: str, count: int, seed: int, prior: Prior) -> Row:
        """Return the model's row by so many questions."""
        rows = self.drawn(model, count, seed)
        return fit_row(self.loads[rows], self.answers(model)[rows], prior)


def figures(corpus: Corpus, parts: Iterable[Unseen], say: Say) -> list[Figure]:
    """Return all measures, by number of questions and prior."""
    found: dict[tuple[str, str, int], list[tuple[int, float]]] = {}

    def note(what: str, prior: str, count: int, draw: int, value: float) -> None:
        found.setdefault((what, prior, count), []).append((draw, value))

    for unseen in parts:
        exam = _Exam(corpus, unseen)
        loads = unseen.loads.shape[1]
        priors = {"known rows": prior_of(unseen.abilities, loads), "plain": plain_prior(loads)}
        for name, prior in priors.items():
            for count in SIZES:
                for draw in range(DRAWS):
                    _judge_means(exam, unseen, prior, (name, count, draw), note)
                    _judge_pairs(exam, unseen, prior, (name, count, draw), note)
            say(f"{unseen.family}: judged with the prior {name}")
    return [_figure(*key, values) for key, values in found.items()]


Note = Callable[[str, str, int, int, float], None]
Run = tuple[str, int, int]


def placed_figures(corpus: Corpus, parts: Iterable[Unseen], board: Board, say: Say) -> list[Figure]:
    """Return the figures of rows made of published scores, beside what else is known before anything was asked."""
    found: dict[tuple[str, str], list[float]] = {}
    for unseen in parts:
        exam = _Exam(corpus, unseen)
        left_out = LeftOut(
            board,
            unseen.models,
            unseen.abilities,
            unseen.loads,
            exam.sources,
            exam.answers,
        )
        left_out.judge(lambda what, prior, value: found.setdefault((what, prior), []).append(value))
        say(f"{unseen.family}: {len(left_out.scored)} models judged by published scores alone")
    return [
        Figure(
            what=what,
            prior=prior,
            questions=NOT_ASKED,
            value=float(np.mean(values)),
            spread=float(np.std(values) / np.sqrt(len(values))),
        )
        for (what, prior), values in found.items()
    ]


def _judge_means(exam: _Exam, unseen: Unseen, prior: Prior, run: Run, note: Note) -> None:
    for model in unseen.models:
        rows = exam.judged(model)
        if len(rows) < _LEAST_ROWS:
            continue
        weights = exam.weights(rows)
        row = exam.fitted(model, run[1], run[2], prior)
        said = mean_chance(row, exam.loads[rows], weights)
        true = float(exam.answers(model)[rows] @ weights)
        note("mean error", *run, abs(said.value - true))
        note("interval holds", *run, float(said.low <= true <= said.high))


def _judge_pairs(exam: _Exam, unseen: Unseen, prior: Prior, run: Run, note: Note) -> None:
    for source, weak, strong in PAIRS:
        if weak in unseen.models and strong in unseen.models:
            rows = exam.judged(weak, strong)
            rows = rows[exam.sources[rows] == source]
            fits = [exam.fitted(model, run[1], run[2], prior).values for model in (weak, strong)]
            said = [chances(fit, exam.loads[rows]) for fit in fits]
            gain = exam.answers(strong)[rows] - exam.answers(weak)[rows]
            note(f"{source}: {weak} / {strong}", *run, apgr(said[1] - said[0], gain))


def _figure(what: str, prior: str, count: int, values: Sequence[tuple[int, float]]) -> Figure:
    by_draw: dict[int, list[float]] = {}
    for draw, value in values:
        by_draw.setdefault(draw, []).append(value)
    means = [float(np.mean(each)) for each in by_draw.values()]
    return Figure(what=what, prior=prior, questions=count, value=float(np.mean(means)), spread=float(np.std(means)))


def study(data: Path, out: Path, say: Say) -> list[Figure]:
    """Run the study; writes its figures as JSON and as a picture."""
    out.mkdir(parents=True, exist_ok=True)
    corpus = load(data)
    # Each part is a network; it is trained once and judged in both ways.
    parts = list(unseen_parts(corpus, say))
    found = []
    if (data / SCORES_FILE).is_file():
        board = board_of(data, source_means(corpus.models, corpus.outcomes, corpus.sources))
        found += placed_figures(corpus, parts, board, say)
    found += figures(corpus, parts, say)
    (out / "new-models.json").write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))
    draw(found, out / "new-models.svg")
    return found


def draw(found: Sequence[Figure], path: Path) -> None:
    """Draw the error of the mean, and APGR, against the number of questions."""
    from matplotlib.figure import Figure as Picture  # noqa: PLC0415 - only who draws needs it

    picture = Picture(figsize=(9, 3.6), layout="constrained")
    left, right = picture.subplots(1, 2)
    most = 1_000
    found = [each for each in found if each.questions != NOT_ASKED]
    for what in sorted({each.what for each in found}):
        if what == "interval holds":
            continue
        axes = left if what == "mean error" else right
        for prior, style in (("known rows", "-"), ("plain", ":")):
            own = [each for each in found if each.what == what and each.prior == prior]
            own.sort(key=lambda each: each.questions or most)
            if not own or (axes is right and prior == "plain"):
                continue
            axes.errorbar(
                [each.questions or most for each in own],
                [each.value for each in own],
                [each.spread for each in own],
                fmt=f"o{style}",
                markersize=3,
                capsize=2,
                label=prior if axes is left else what.replace("-instruct", ""),
            )
    for axes, title in ((left, "Error of the mean chance"), (right, "APGR")):
        axes.set_xscale("log")
        axes.set_xticks([25, 50, 100, 200, 400, most], ["25", "50", "100", "200", "400", "all"])
        axes.set_xlabel("questions")
        axes.set_title(title, fontsize=10)
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=6.5)
    picture.savefig(path, metadata={"Date": None})
