"""Training of the classifier: outcomes to loads, loads to a network, and calibration by held-out predictions.

Whatever is fitted to the network's own answers (abilities, the blend's rows, calibration, the sample) is fitted to
answers about prompts that the answering network had not seen, neither them nor another wording of them.
"""

import hashlib
import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier.features import SHAPES, feature_hash
from classifier.heuristic import P90_FACTOR, structural_complexity
from classifier.learning.labels import Labels, probability
from classifier.learning.recalibrate import fit_ability
from classifier.manifest import FORMAT, Artifact, Blend, Calibration, Lengths, Manifest, Reference
from classifier.onnx_classifier import OnnxClassifier
from classifier.sample import Sample, write_sample
from classifier.sketch import sketch
from classifier.tokens import estimate_tokens
from classifier.training.data import BadData, Corpus, Floats, Integers, Problem
from classifier.training.evaluate import Scored
from classifier.training.factors import LEAST_OUTCOMES, Basis, equal_sources, source_levels, taught_loads
from classifier.training.model import Fitted, Predicted, Rows, fit, predict, rows_of, to_onnx
from classifier.training.references import REFERENCE_PROMPTS
from classifier.training.splits import Split
from classifier.tuning import Ability

Bools = NDArray[np.bool_]
Say = Callable[[str], None]
Measure = Callable[[Scored], dict[str, Any]]
Yardstick = tuple[Sequence[str], Sequence[str]]

KNOTS: Final = 65
RULE_KNOTS: Final = 9
PRIOR_STRENGTH: Final = 60.0
"""Strength of the prior of abilities, which the linear factors give: the best of 1, 5, 20 and 60 on held-out folds."""
FEWEST_TAUGHT: Final = 20
"""Least training prompts of a fold that is judged."""
SAMPLED: Final = 2_000
TRUST: Final = {"open": 1.0, "choice": 1.0, "tools": 1.0}
KNOWN_FROM: Final = 0.45
KNOWN_TO: Final = 0.75
HALF_TERMS: Final = 40.0
LIKE_FROM: Final = 0.5
LIKE_TO: Final = 0.62
FULL_TERMS_TOOLS: Final = 8.0
YARDSTICK_WEAK: Final = ("llama-3-70b-instruct", "llama-3.1-70b-instruct")
YARDSTICK_STRONG: Final = ("gpt-4o-2024-05-13", "claude-3-5-sonnet-20240620")
SAME_KIND: Final = 0.8
"""Share of the smaller source's questions that two sources of one kind have in common."""
LIBRARIES: Final = ("numpy", "scipy", "onnx", "onnxruntime", "pyarrow")
KIND_SPREAD: Final = 0.05
"""Spread for prompts of a known kind: judgement, for there is no better classifier to measure it by."""
RULE_SPREAD: Final = 0.15
"""Spread for prompts that only the rule can place: judgement too."""
_LENGTH_ROUNDS: Final = 20
_FEWEST_MODELS: Final = 2


class Table(msgspec.Struct, frozen=True):
    """A corpus as arrays, with the models that have enough outcomes to get an ability."""

    corpus: Corpus
    rows: Rows
    rule: Floats
    models: list[str]
    outcomes: Floats
    kinds: list[str]
    kind_of: Integers
    tokens: Floats
    """Usual length of an answer to each prompt, in tokens; NaN where no length is known."""
    log_lengths: Floats
    """(models,): logarithm of the ratio of each model's answers to the usual length."""


def table_of(corpus: Corpus) -> Table:
    """A corpus as arrays. Raises BadData where fewer than two models have LEAST_OUTCOMES."""
    enough = np.flatnonzero(np.count_nonzero(~np.isnan(corpus.outcomes), axis=0) >= LEAST_OUTCOMES)
    if len(enough) < _FEWEST_MODELS:
        what = f"{len(enough)} of {len(corpus.models)} models have {LEAST_OUTCOMES} outcomes or more"
        raise BadData([Problem(f"{what}; training needs two such models", [])])
    kinds, kind_of = kinds_in(corpus)
    tokens, lengths = answer_lengths(corpus.output_tokens[:, enough])
    return Table(
        corpus=corpus,
        rows=rows_of(corpus.features),
        rule=np.array([structural_complexity(found) for found in corpus.features]),
        models=[corpus.models[at] for at in enough],
        outcomes=corpus.outcomes[:, enough],
        kinds=kinds,
        kind_of=kind_of,
        tokens=tokens,
        log_lengths=lengths,
    )


def kinds_in(corpus: Corpus) -> tuple[list[str], Integers]:
    """Names of the kinds, and each prompt's kind. Sources are kinds; two that hold the same questions are one."""
    names = np.unique(corpus.sources).tolist()
    questions = {name: set(corpus.groups[corpus.sources == name].tolist()) for name in names}
    kind = {name: name for name in names}
    for name in names:
        for other in names:
            shared = len(questions[name] & questions[other])
            if other < name and shared >= SAME_KIND * min(len(questions[name]), len(questions[other])):
                kind[name] = kind[other]
                break
    kinds, kind_of = np.unique([kind[name] for name in corpus.sources.tolist()], return_inverse=True)
    return kinds.tolist(), kind_of.astype(np.int64)


def answer_lengths(tokens: Floats) -> tuple[Floats, Floats]:
    """Log length = usual log length of the prompt's answers + habit of the model; returns exp of the first, and the
    second.
    """
    logs = np.log(np.maximum(tokens, 1.0))
    known = ~np.isnan(logs)
    habit = np.zeros(tokens.shape[1])
    usual = np.zeros(len(tokens))
    for _ in range(_LENGTH_ROUNDS):
        usual = np.nansum(np.where(known, logs - habit, 0.0), axis=1) / np.maximum(known.sum(axis=1), 1)
        habit = np.nansum(np.where(known, logs - usual[:, None], 0.0), axis=0) / np.maximum(known.sum(axis=0), 1)
        habit -= habit[known.any(axis=0)].mean() if known.any() else 0.0
    return np.where(known.any(axis=1), np.exp(usual), np.nan), habit


def taught(table: Table, rows: Integers) -> tuple[Basis, Fitted]:
    """A network trained on these rows alone; nothing of any other row goes into it."""
    lesson = taught_loads(table.outcomes[rows], table.corpus.sources[rows])
    numbers, kind_of = np.unique(table.kind_of[rows], return_inverse=True)
    kinds = [table.kinds[number] for number in numbers]
    open_text = table.corpus.shapes[rows] == SHAPES.index("open")
    return lesson.basis, fit(table.rows[rows], lesson.loads, kinds, kind_of, open_text, table.tokens[rows])


class PlacedPrompts(msgspec.Struct, frozen=True):
    """Loads as abilities take them, and the trust in the network for each prompt."""

    loads: Floats
    trust: Floats


def trust_of(table: Table, rows: Integers, blend: Blend, said: Predicted) -> Floats:
    """(rows,): the blend's trust in the network."""
    terms = [table.corpus.features[row].terms for row in rows]
    columns = zip(table.corpus.shapes[rows].tolist(), said.known.tolist(), terms, said.likeness.tolist(), strict=True)
    return np.array([blend.trust_in(*each) for each in columns])


def placed(table: Table, rows: Integers, blend: Blend, said: Predicted) -> PlacedPrompts:
    """The serving code's blend of network and rule, for many prompts."""
    trust = trust_of(table, rows, blend, said)
    rule = np.stack([np.interp(table.rule[rows], blend.rule, column) for column in np.array(blend.loads).T], axis=1)
    return PlacedPrompts(trust[:, None] * said.loads + (1 - trust[:, None]) * rule, trust)


def blend_of(table: Table, rows: Integers, basis: Basis, loads: Floats) -> Blend:
    """The blend, whose rows are the mean loads of held-out prompts of similar hardness.

    Hard is what weak models fail and strong ones gain on; both orders count the same, so that a prompt which is easy
    for all leads the list, and one that only the strong can do ends it.
    """
    said = basis.outcomes(loads)
    weak, strong = (
        said[:, [at for at, name in enumerate(table.models) if name in names]].mean(axis=1)
        for names in yardstick_of(table, rows)
    )
    weights = equal_sources(table.corpus.sources[rows])
    hardness = (_cumulative_shares(-weak, weights) + _cumulative_shares(strong - weak, weights)) / 2
    order = np.argsort(hardness, kind="stable")
    below = np.cumsum(weights[order])
    knots = np.linspace(0, 1, RULE_KNOTS)
    half = 1 / (RULE_KNOTS - 1)
    means = []
    for knot in knots:
        away = np.abs(below - knot)
        # Where a few prompts weigh much there may be none so near; then the nearest stand in.
        near = np.maximum(0.0, 1 - away / max(half, 2 * away.min())) * weights[order]
        means.append((near / near.sum()) @ loads[order])
    return Blend(
        trust=TRUST,
        known_from=KNOWN_FROM,
        known_to=KNOWN_TO,
        half_terms=HALF_TERMS,
        like_from=LIKE_FROM,
        like_to=LIKE_TO,
        full_terms_tools=FULL_TERMS_TOOLS,
        rule=[round(float(knot), 6) for knot in knots],
        loads=np.round(means, 5).tolist(),
    )


def yardstick_of(table: Table, rows: Integers) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The weak and the strong yardstick models; where either are missing, the corpus's weaker and stronger half."""
    weak = tuple(name for name in YARDSTICK_WEAK if name in table.models)
    strong = tuple(name for name in YARDSTICK_STRONG if name in table.models)
    if weak and strong:
        return weak, strong
    _, levels = source_levels(table.outcomes[rows], table.corpus.sources[rows])
    rising = [table.models[at] for at in np.argsort(levels.mean(axis=0), kind="stable")]
    return tuple(rising[: len(rising) // 2]), tuple(rising[len(rising) // 2 :])


def _cumulative_shares(values: Floats, weights: Floats) -> Floats:
    """The weighted share of the whole that lies at or below each value."""
    order = np.argsort(values, kind="stable")
    shares = np.empty(len(values))
    shares[order] = np.cumsum(weights[order])
    return shares


def abilities_of(table: Table, rows: Integers, basis: Basis, loads: Floats) -> dict[str, Ability]:
    """A logistic row for each model, fitted to `loads` of prompts that their network had not seen.

    The prior comes from the linear factors; a model with few outcomes stays near it.
    """
    found = {}
    for at, name in enumerate(table.models):
        prior = _prior_ability(basis, at, float(table.log_lengths[at]))
        known = np.flatnonzero(~np.isnan(table.outcomes[rows, at]))
        found[name] = (
            fit_ability(_labels(loads[known], table.outcomes[rows[known], at]), prior, strength=PRIOR_STRENGTH)
            if len(known)
            else prior
        )
    return {name: _round_ability(ability) for name, ability in found.items()}


def _prior_ability(basis: Basis, at: int, log_length: float) -> Ability:
    """The logistic row that agrees with the linear one in value and slope where the loads are 0."""
    level = float(np.clip(basis.mean[at], 0.05, 0.95))
    slope = basis.rows[:, at] / (level * (1 - level))
    return Ability(weights=slope.tolist(), bias=float(np.log(level / (1 - level))), log_length=log_length)


def _round_ability(ability: Ability) -> Ability:
    return msgspec.structs.replace(
        ability,
        weights=[round(weight, 5) for weight in ability.weights],
        bias=round(ability.bias, 5),
        log_length=round(ability.log_length, 4),
    )


def _labels(loads: Floats, adequate: Floats) -> Labels:
    size = len(loads)
    return Labels(
        requests=np.arange(size).astype(np.str_),
        teams=np.zeros(size, "U1"),
        targets=np.zeros(size, "U1"),
        loads=loads,
        sketches=np.zeros((size, 0)),
        adequate=adequate,
        weights=np.ones(size),
        at_us=np.zeros(size, np.int64),
    )


def chances(ability: Ability, loads: Floats) -> Floats:
    """P(adequate) of each prompt."""
    return probability(loads @ np.array(ability.weights) + ability.bias)


class Answers(msgspec.Struct, frozen=True):
    """Networks' outputs for prompts whose questions they had not seen; NaN where no fold judged."""

    outcomes: Floats
    """(prompts, models): expected outcomes, straight from the loads."""
    kinds: Floats
    known: Floats
    likeness: Floats
    log_tokens: Floats
    fold_of: Integers
    """Number of the fold that judged each prompt; -1 where none did."""
    bases: list[Basis]
    asked: list[Bools]
    """(models,) for each fold: True when the network was trained on any outcome of the model."""

    def of(self, rows: Integers, basis: Basis) -> Predicted:
        """Some rows, with their loads in one basis: each network has its own, and outcomes are common to all."""
        rest = (each[rows] for each in (self.kinds, self.known, self.likeness, self.log_tokens))
        return Predicted(basis.loads(self.outcomes[rows]), *rest)


def answers(table: Table, split: Split, seed: int, say: Say) -> Answers:
    """Trains a network for each fold of a split and predicts the fold's held-out prompts."""
    size = len(table.corpus.texts)
    outcomes, kinds = np.full((size, len(table.models)), np.nan), np.zeros((size, len(table.kinds)))
    known, likeness, log_tokens = np.zeros(size), np.zeros(size), np.zeros(size)
    fold_of = np.full(size, -1)
    bases: list[Basis] = []
    asked: list[Bools] = []
    for number, fold in enumerate(table.corpus.questions.folds(split, seed), 1):
        if len(fold.taught) < FEWEST_TAUGHT:
            continue
        basis, model = taught(table, fold.taught)
        said = predict(model, table.rows[fold.kept])
        outcomes[fold.kept] = basis.outcomes(said.loads)
        kinds[np.ix_(fold.kept, np.array([table.kinds.index(kind) for kind in model.kinds]))] = said.kinds
        known[fold.kept], likeness[fold.kept], log_tokens[fold.kept] = said.known, said.likeness, said.log_tokens
        fold_of[fold.kept] = len(bases)
        bases.append(basis)
        asked.append(np.asarray(~np.isnan(table.outcomes[fold.taught]).all(axis=0), np.bool_))
        say(f"{split}: fold {number}, {len(fold.kept)} prompts held out")
    return Answers(outcomes, kinds, known, likeness, log_tokens, fold_of, bases, asked)


class Calibrated(msgspec.Struct, frozen=True):
    """All parameters that are fitted to answers about unseen prompts."""

    blend: Blend
    abilities: dict[str, Ability]
    loads: Floats
    """Loads of the rows that it was fitted to, as abilities take them."""
    trust: Floats


def calibrated(table: Table, rows: Integers, basis: Basis, said: Predicted) -> Calibrated:
    """Blend and abilities, fitted to these held-out answers."""
    blend = blend_of(table, rows, basis, said.loads)
    placing = placed(table, rows, blend, said)
    return Calibrated(blend, abilities_of(table, rows, basis, placing.loads), placing.loads, placing.trust)


def _gain(abilities: Mapping[str, Ability], loads: Floats, weak: Sequence[str], strong: Sequence[str]) -> Floats:
    gain = np.mean([chances(abilities[name], loads) for name in strong], axis=0)
    return np.asarray(gain - np.mean([chances(abilities[name], loads) for name in weak], axis=0))


def cross_validated(corpus: Corpus, split: Split, *, seed: int = 0, say: Say = lambda _line: None) -> Scored:
    """P(adequate) of every prompt, by models in the form that ships that never saw its question.

    NaN where the split does not judge the prompt, or leaves fewer than FEWEST_TAUGHT prompts to train on.
    """
    table = table_of(corpus)
    return judged(table, answers(table, split, seed, say))


def judged(table: Table, found: Answers) -> Scored:
    """Each fold's probabilities, by abilities and blend fitted to the answers about the other folds' prompts."""
    size = len(table.corpus.texts)
    adequate = {name: np.full(size, np.nan) for name in table.models}
    for number, basis in enumerate(found.bases):
        kept = np.flatnonzero(found.fold_of == number)
        # A question of this fold may stand in another one, too, where that is of another source.
        strange = ~np.isin(table.corpus.groups, table.corpus.groups[kept])
        others = np.flatnonzero((found.fold_of >= 0) & strange)
        if len(others) < FEWEST_TAUGHT:
            continue
        made = calibrated(table, others, basis, found.of(others, basis))
        placing = placed(table, kept, made.blend, found.of(kept, basis))
        for at in np.flatnonzero(found.asked[number]).tolist():
            # Of a model that was asked nowhere else nothing was learned: a guess must not look like a measurement.
            name = table.models[at]
            adequate[name][kept] = chances(made.abilities[name], placing.loads)
    return Scored(adequate=adequate)


def calibration_of(
    loads: Floats, weights: Floats, abilities: Mapping[str, Ability], yardstick: Yardstick
) -> Calibration:
    """The map from the yardstick's gain to its share of the prompts, weighted by `weights`."""
    weak, strong = yardstick
    gain = _gain(abilities, loads, weak, strong)
    shares = np.linspace(0, 1, KNOTS)
    knots, first = np.unique(np.round(_quantiles(gain, weights, shares), 6), return_index=True)
    return Calibration(
        weak=list(weak), strong=list(strong), gain=knots.tolist(), complexity=np.round(shares[first], 6).tolist()
    )


def _quantiles(values: Floats, weights: Floats, shares: Floats) -> Floats:
    order = np.argsort(values, kind="stable")
    middle = np.cumsum(weights[order]) - weights[order] / 2
    quantiles: Floats = np.interp(shares, middle / weights.sum(), values[order])
    return quantiles


def sample_of(table: Table, rows: Integers, loads: Floats, log_tokens: Floats, seed: int) -> Sample:
    """A sample of the held-out prompts, every source equally likely, with estimated input and output tokens."""
    corpus = table.corpus
    draw = np.random.default_rng(seed)
    weights = equal_sources(corpus.sources[rows])
    chosen = np.sort(draw.choice(len(rows), min(SAMPLED, len(rows)), replace=False, p=weights))
    sketches = np.stack([sketch(corpus.features[row]) for row in rows[chosen]])
    return Sample(
        vectors=np.concatenate([loads[chosen], sketches], axis=1).astype(np.float32),
        input_tokens=np.array([estimate_tokens(corpus.texts[row]) for row in rows[chosen]]),
        output_tokens=np.maximum(1, np.rint(np.exp(log_tokens[chosen]))).astype(np.int64),
        weights=np.full(len(chosen), 1 / len(chosen)),
    )


def train(
    corpus: Corpus,
    seed: int,
    say: Say = lambda _line: None,
    *,
    metrics: Measure | None = None,
) -> Artifact:
    """The artifact for a corpus; the same corpus and seed give the same bytes on one machine.

    `metrics` is called with the ten folds' held-out scores, and its result goes into the manifest. Raises BadData.
    """
    table = table_of(corpus)
    everything = np.arange(len(corpus.texts))
    found = answers(table, "10-fold", seed, say)
    say("fitting the network that ships")
    basis, model = taught(table, everything)
    network = to_onnx(model)
    judging = everything[found.fold_of >= 0]
    said = found.of(judging, basis)
    say("fitting abilities")
    made = calibrated(table, judging, basis, said)
    sample = write_sample(sample_of(table, judging, made.loads, said.log_tokens, seed))
    log_error = np.log(table.tokens[judging]) - said.log_tokens
    manifest = Manifest(
        format=FORMAT,
        code_version=importlib.metadata.version("weighbridge"),
        feature_hash=feature_hash(),
        model_sha256=hashlib.sha256(network).hexdigest(),
        sample_sha256=hashlib.sha256(sample).hexdigest(),
        data_sha256=corpus.data_sha256,
        seed=seed,
        rows={str(name): int(size) for name, size in zip(*np.unique(corpus.sources, return_counts=True), strict=True)},
        libraries={name: importlib.metadata.version(name) for name in LIBRARIES},
        kinds=model.kinds,
        blend=made.blend,
        abilities=made.abilities,
        calibration=calibration_of(
            made.loads, equal_sources(corpus.sources[judging]), made.abilities, yardstick_of(table, judging)
        ),
        spread={**dict.fromkeys(model.kinds, KIND_SPREAD), "rule": RULE_SPREAD},
        usual_facts=np.round(table.rows.facts.mean(axis=0), 4).tolist(),
        lengths=Lengths(network_p90=_p90(log_error), rule_p90=P90_FACTOR),
        references=[],
        metrics={} if metrics is None else metrics(judged(table, found)),
        training=_training_facts(table, judging, made.trust, said, log_error),
    )
    artifact = Artifact(network, manifest, sample)
    return msgspec.structs.replace(
        artifact, manifest=msgspec.structs.replace(manifest, references=_references(artifact))
    )


def _p90(log_error: Floats) -> float:
    known = log_error[~np.isnan(log_error)]
    return round(float(np.exp(np.percentile(known, 90))), 3) if len(known) else P90_FACTOR


def _training_facts(table: Table, rows: Integers, trust: Floats, said: Predicted, log_error: Floats) -> dict[str, Any]:
    """Facts on the training run, for the manifest."""
    off = 100 * np.abs(np.exp(-log_error[~np.isnan(log_error)]) - 1)
    sources = table.corpus.sources[rows]
    return {
        "loads": said.loads.shape[1],
        "median_trust": {
            str(source): round(float(np.median(trust[sources == source])), 3) for source in np.unique(sources)
        },
        "kind_told_right": round(float((said.kinds.argmax(axis=1) == table.kind_of[rows]).mean()), 4),
        "answer_length_median_error_percent": round(float(np.median(off)), 1) if len(off) else None,
    }


def _references(artifact: Artifact) -> list[Reference]:
    """Predictions of this artifact for a few prompts, so that whoever loads it can check that they still hold."""
    classifier = OnnxClassifier(artifact)
    said = [(prompt, classifier.classify(prompt)) for prompt in REFERENCE_PROMPTS]
    return [
        Reference(
            prompt=prompt,
            complexity=round(found.complexity, 6),
            expected_output_tokens=found.expected_output_tokens,
        )
        for prompt, found in said
    ]
