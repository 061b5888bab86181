"""Training of the classifier: outcomes to loads, loads to a network, tiers to difficulty, and what joins them.

Whatever is fitted to the network's own answers (abilities, the blend's rows, the sample) is fitted to answers about
prompts that the answering network had not seen, neither them nor another wording of them.
"""

import hashlib
import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from classifier.features import extract, feature_hash
from classifier.heuristic import P90_FACTOR, TOKENS_AT_EASIEST, TOKENS_BY_COMPLEXITY
from classifier.learning.labels import Labels, probability
from classifier.learning.recalibrate import fit_ability
from classifier.manifest import FORMAT, Artifact, Lengths, Manifest, Reference, Spread
from classifier.onnx_classifier import OnnxClassifier
from classifier.prediction import Prompt
from classifier.sample import Sample, write_sample
from classifier.tables import write_tables
from classifier.tokens import estimate_tokens
from classifier.training import difficulty, domain, task_kind, word_table
from classifier.training.blend import Blend, blend_of
from classifier.training.data import BadData, Corpus, Floats, Integers, Problem
from classifier.training.difficulty import Difficulty, gists_of, lessons
from classifier.training.evaluate import Scored
from classifier.training.factors import LEAST_OUTCOMES, Basis, equal_sources, source_levels, taught_loads
from classifier.training.graph import Whole, blend_rows, tables_of, to_onnx, trust_of
from classifier.training.lengths import published_ratios, told_over_actual, usual_lengths
from classifier.training.network import Fitted, Rows, asks_of, fit, idf_of, predict, rows_of
from classifier.training.published import SCORES_FILE, Published, board_of, grounds_of, published, source_means
from classifier.training.references import REFERENCE_PROMPTS
from classifier.training.splits import Split
from classifier.training.task_kind import TaskKinds
from classifier.training.tier_set import Tiered
from classifier.training.word_table import WordTable
from classifier.tuning import Ability

Bools = NDArray[np.bool_]
Say = Callable[[str], None]

PRIOR_STRENGTH: Final = 120.0
"""Strength of the prior of abilities, which the linear factors give. By Brier score 60 is the best of 1, 5, 20, 60, 120, 200, 600 and
2,000 on held-out folds (.1587, here .1589). But what rows differ in decides who answers: the target of four that is most likely to be right
is so in .8643 of the prompts, for .8635.
"""
FEWEST_TAUGHT: Final = 20
"""Least training prompts of a fold that is judged."""
SAMPLED: Final = 2_000
REFERENCE_WEAK: Final = ("llama-3-70b-instruct", "llama-3.1-70b-instruct")
REFERENCE_STRONG: Final = ("gpt-4o-2024-05-13", "claude-3-5-sonnet-20240620")
SAME_KIND: Final = 0.8
"""Share of the smaller source's questions that two sources of one kind have in common."""
LIBRARIES: Final = ("numpy", "scipy", "scikit-learn", "wordllama", "onnx", "onnxruntime", "pyarrow")
EASY_TIER: Final = 1
SPREAD: Final = Spread(known=0.05, other=0.15)
"""Judgement, for there is no better classifier to measure it by."""
_FEWEST_MODELS: Final = 2


class Everyday(msgspec.Struct, frozen=True):
    """All that is learned without outcomes: what words mean, and how hard prompts are."""

    table: WordTable
    difficulty: Difficulty
    task_kinds: TaskKinds
    rows: Rows
    """The prompts of known tiers."""
    outside: domain.Sides
    """Those of them that are unlike the prompts with outcomes: all but a single tool call."""


def everyday(tiered: Sequence[Tiered], texts: Sequence[str], say: Say = lambda _line: None) -> Everyday:
    """Return the difficulty model from prompts of known tiers. `texts` are further texts whose words shall have a meaning."""
    say(f"{len(tiered)} prompts of known tiers: words, difficulty, kinds of task")
    table = word_table.built([*texts, *(row.prompt.text for row in tiered)])
    features = [extract(row.prompt) for row in tiered]
    rows, asks, gists = rows_of(features), asks_of(features), gists_of(features, table)
    others = rows_of([extract(Prompt(text=text)) for text in texts]).counts if texts else rows.counts[:0]
    found = difficulty.fit(lessons(tiered, table), idf_of(sparse.vstack([others, rows.counts], format="csr")))
    standardised = found.gist.standardised(gists)
    kinds = task_kind.fit(standardised, [row.kind for row in tiered])
    single_call = np.array([row.prompt.tools > 0 and row.tier <= EASY_TIER for row in tiered])
    sides = domain.Sides(rows, standardised, found.complexity(asks, gists))
    return Everyday(table, found, kinds, rows, sides[np.flatnonzero(~single_call)])


class Table(msgspec.Struct, frozen=True):
    """A corpus as arrays, with the models that have enough outcomes to get an ability."""

    corpus: Corpus
    rows: Rows
    sides: domain.Sides
    everyday: Everyday
    models: list[str]
    outcomes: Floats
    kinds: list[str]
    kind_of: Integers
    tokens: Floats
    """Tokens of gpt-4o's usual answer to each prompt; NaN where no length is known."""
    log_lengths: Floats
    """(models,): logarithm of the ratio of each model's answers to gpt-4o's."""


def table_of(corpus: Corpus, known: Everyday, ratios: Mapping[str, float] | None = None) -> Table:
    """Return a corpus as arrays. Raises BadData where fewer than two models have LEAST_OUTCOMES.

    `ratios` are published log ratios of answers' lengths, by model.
    """
    enough = np.flatnonzero(np.count_nonzero(~np.isnan(corpus.outcomes), axis=0) >= LEAST_OUTCOMES)
    if len(enough) < _FEWEST_MODELS:
        what = f"{len(enough)} of {len(corpus.models)} models have {LEAST_OUTCOMES} outcomes or more"
        raise BadData([Problem(f"{what}; training needs two such models", [])])
    kinds, kind_of = kinds_in(corpus)
    models = [corpus.models[at] for at in enough]
    tokens, lengths = usual_lengths(corpus.output_tokens[:, enough], corpus.sources, models, ratios)
    rows, gists = rows_of(corpus.features), gists_of(corpus.features, known.table)
    complexity = known.difficulty.complexity(asks_of(corpus.features), gists)
    return Table(
        corpus=corpus,
        rows=rows,
        sides=domain.Sides(rows, known.difficulty.gist.standardised(gists), complexity),
        everyday=known,
        models=models,
        outcomes=corpus.outcomes[:, enough],
        kinds=kinds,
        kind_of=kind_of,
        tokens=tokens,
        log_lengths=lengths,
    )


def kinds_in(corpus: Corpus) -> tuple[list[str], Integers]:
    """Return the names of the kinds, and each prompt's kind. Sources are kinds; two that hold the same questions are
    one.
    """
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


class Taught(msgspec.Struct, frozen=True):
    """The model parts learned from the outcomes of some rows."""

    basis: Basis
    network: Fitted
    domain: domain.Domain


def taught(table: Table, rows: Integers, idf: Floats | None = None) -> Taught:
    """Return a network trained on these rows alone; nothing of any other row's outcomes goes into it."""
    lesson = taught_loads(table.outcomes[rows], table.corpus.sources[rows])
    numbers, kind_of = np.unique(table.kind_of[rows], return_inverse=True)
    kinds = [table.kinds[number] for number in numbers]
    known = table.everyday
    return Taught(
        lesson.basis,
        fit(table.rows[rows], lesson.loads, kinds, kind_of, table.tokens[rows], idf),
        domain.fit(table.sides[rows], table.corpus.sources[rows], known.outside, known.difficulty.idf),
    )


def _blend(table: Table, rows: Integers, basis: Basis, loads: Floats) -> Blend:
    """Return the blend for held-out loads of these rows."""
    said = basis.outcomes(loads)
    weak, strong = (
        said[:, [at for at, name in enumerate(table.models) if name in names]].mean(axis=1)
        for names in reference_pair(table, rows)
    )
    return blend_of(loads, weak, strong, equal_sources(table.corpus.sources[rows]))


def reference_pair(table: Table, rows: Integers) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the weak and the strong reference models; where either are missing, the corpus's weaker and stronger half."""
    weak = tuple(name for name in REFERENCE_WEAK if name in table.models)
    strong = tuple(name for name in REFERENCE_STRONG if name in table.models)
    if weak and strong:
        return weak, strong
    _, levels = source_levels(table.outcomes[rows], table.corpus.sources[rows])
    rising = [table.models[at] for at in np.argsort(levels.mean(axis=0), kind="stable")]
    return tuple(rising[: len(rising) // 2]), tuple(rising[len(rising) // 2 :])


def abilities_of(table: Table, rows: Integers, basis: Basis, loads: Floats) -> dict[str, Ability]:
    """Return a logistic row for each model, fitted to `loads` of prompts that their network had not seen.

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
    """Return the logistic row that agrees with the linear one in value and slope where the loads are 0."""
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
    """Return P(adequate) of each prompt."""
    return probability(loads @ np.array(ability.weights) + ability.bias)


class Answers(msgspec.Struct, frozen=True):
    """Networks' outputs for prompts whose questions they had not seen; NaN where no fold judged."""

    outcomes: Floats
    """(prompts, models): expected outcomes, straight from the loads."""
    kinds: Floats
    trust: Floats
    log_tokens: Floats
    fold_of: Integers
    """Number of the fold that judged each prompt; -1 where none did."""
    bases: list[Basis]
    asked: list[Bools]
    """(models,) for each fold: True when the network was trained on any outcome of the model."""


def answers(table: Table, split: Split, seed: int, say: Say) -> Answers:
    """Train a network for each fold of a split and predict the fold's held-out prompts."""
    size = len(table.corpus.texts)
    outcomes, kinds = np.full((size, len(table.models)), np.nan), np.zeros((size, len(table.kinds)))
    trust, log_tokens = np.zeros(size), np.zeros(size)
    fold_of = np.full(size, -1)
    bases: list[Basis] = []
    asked: list[Bools] = []
    known = table.everyday.difficulty
    for number, fold in enumerate(table.corpus.questions.folds(split, seed), 1):
        if len(fold.taught) < FEWEST_TAUGHT:
            continue
        learned = taught(table, fold.taught)
        said = predict(learned.network, table.rows[fold.kept])
        outcomes[fold.kept] = learned.basis.outcomes(said.loads)
        kinds[np.ix_(fold.kept, np.array([table.kinds.index(kind) for kind in learned.network.kinds]))] = said.kinds
        trust[fold.kept] = learned.domain.trust(table.sides[fold.kept], known.idf)
        log_tokens[fold.kept] = said.log_tokens
        fold_of[fold.kept] = len(bases)
        bases.append(learned.basis)
        asked.append(np.asarray(~np.isnan(table.outcomes[fold.taught]).all(axis=0), np.bool_))
        say(f"{split}: fold {number}, {len(fold.kept)} prompts held out")
    return Answers(outcomes, kinds, trust, log_tokens, fold_of, bases, asked)


class Joined(msgspec.Struct, frozen=True):
    """All that is fitted to answers about unseen prompts."""

    blend: Blend
    abilities: dict[str, Ability]
    loads: Floats
    """Loads of the rows that it was fitted to, as abilities take them."""


def placed(table: Table, rows: Integers, blend: Blend, loads: Floats, trust: Floats) -> Floats:
    """Return (rows, loads): the network's loads and those of the complexity, as the graph mixes them."""
    others = blend.loads_at(table.sides.complexity[rows])
    return np.asarray(trust[:, None] * loads + (1 - trust[:, None]) * others)


def joined(table: Table, rows: Integers, basis: Basis, found: Answers) -> Joined:
    """Return the blend and abilities, fitted to these held-out answers."""
    # Each network has a basis of its own, and outcomes are common to all.
    loads = basis.loads(found.outcomes[rows])
    blend = _blend(table, rows, basis, loads)
    mixed = placed(table, rows, blend, loads, found.trust[rows])
    return Joined(blend, abilities_of(table, rows, basis, mixed), mixed)


def cross_validated(
    corpus: Corpus, split: Split, known: Everyday, *, seed: int = 0, say: Say = lambda _line: None
) -> Scored:
    """Return P(adequate) of every prompt, by models in the form that ships that never saw its question.

    NaN where the split does not judge the prompt, or leaves fewer than FEWEST_TAUGHT prompts to train on.
    """
    table = table_of(corpus, known)
    return judged(table, answers(table, split, seed, say))


def judged(table: Table, found: Answers) -> Scored:
    """Return each fold's probabilities, by abilities and blend fitted to the answers about the other folds' prompts."""
    size = len(table.corpus.texts)
    adequate = {name: np.full(size, np.nan) for name in table.models}
    output_tokens = {name: np.full(size, np.nan) for name in table.models}
    for number, basis in enumerate(found.bases):
        kept = np.flatnonzero(found.fold_of == number)
        # A question of this fold may stand in another one, too, where that is of another source.
        strange = ~np.isin(table.corpus.groups, table.corpus.groups[kept])
        others = np.flatnonzero((found.fold_of >= 0) & strange)
        if len(others) < FEWEST_TAUGHT:
            continue
        made = joined(table, others, basis, found)
        loads = placed(table, kept, made.blend, basis.loads(found.outcomes[kept]), found.trust[kept])
        log_tokens = _log_tokens(table, kept, found)
        for at in np.flatnonzero(found.asked[number]).tolist():
            # Of a model that was asked nowhere else nothing was learned: a guess must not look like a measurement.
            name = table.models[at]
            adequate[name][kept] = chances(made.abilities[name], loads)
            output_tokens[name][kept] = np.exp(log_tokens + made.abilities[name].log_length)
    return Scored(adequate=adequate, output_tokens=output_tokens)


def sample_of(table: Table, rows: Integers, loads: Floats, log_tokens: Floats, seed: int) -> Sample:
    """Return a sample of the held-out prompts, every source equally likely, with estimated input and output tokens."""
    corpus = table.corpus
    draw = np.random.default_rng(seed)
    weights = equal_sources(corpus.sources[rows])
    chosen = np.sort(draw.choice(len(rows), min(SAMPLED, len(rows)), replace=False, p=weights))
    sketches = np.stack([corpus.features[row].sketch for row in rows[chosen]])
    return Sample(
        vectors=np.concatenate([loads[chosen], sketches], axis=1).astype(np.float32),
        input_tokens=np.array([estimate_tokens(corpus.texts[row]) for row in rows[chosen]]),
        output_tokens=np.maximum(1, np.rint(np.exp(log_tokens[chosen]))).astype(np.int64),
        weights=np.full(len(chosen), 1 / len(chosen)),
    )


def train(
    corpus: Corpus,
    known: Everyday,
    seed: int,
    say: Say = lambda _line: None,
    *,
    judge: Callable[[Scored], None] | None = None,
    scores: Path | None = None,
) -> Artifact:
    """Return the artifact for a corpus; the same corpus and seed give the same bytes on one machine.

    `judge` is called with the ten folds' held-out scores. `scores` is the folder of published scores and lengths, if there is
    one: models without outcomes are placed by it. Raises BadData.
    """
    ratios = published_ratios(scores) if scores is not None else {}
    table = table_of(corpus, known, ratios)
    found = answers(table, "10-fold", seed, say)
    say("fitting the network that ships")
    learned = taught(table, np.arange(len(corpus.texts)), known.difficulty.idf)
    judging = np.flatnonzero(found.fold_of >= 0)
    say("fitting abilities")
    made = joined(table, judging, learned.basis, found)
    others = _published(table, judging, made, scores, ratios, say)
    parts = (learned.network, known.difficulty, known.table, learned.domain, known.task_kinds, made.blend)
    whole = Whole(*parts)
    network, tables = to_onnx(whole), write_tables(tables_of(whole))
    sample = write_sample(sample_of(table, judging, made.loads, found.log_tokens[judging], seed))
    log_error = np.log(table.tokens[judging]) - _log_tokens(table, judging, found)
    manifest = Manifest(
        format=FORMAT,
        code_version=importlib.metadata.version("weighbridge"),
        feature_hash=feature_hash(),
        model_sha256=hashlib.sha256(network).hexdigest(),
        tables_sha256=hashlib.sha256(tables).hexdigest(),
        sample_sha256=hashlib.sha256(sample).hexdigest(),
        data_sha256=corpus.data_sha256,
        seed=seed,
        rows={str(name): int(size) for name, size in zip(*np.unique(corpus.sources, return_counts=True), strict=True)},
        libraries={name: importlib.metadata.version(name) for name in LIBRARIES},
        kinds=known.task_kinds.names,
        loads=made.loads.shape[1],
        abilities={**made.abilities, **others.abilities},
        trust=trust_of(whole),
        blend=blend_rows(made.blend),
        spread=SPREAD,
        usual_facts=np.round(known.rows.facts.mean(axis=0), 4).tolist(),
        lengths=Lengths(known_p90=_p90(log_error), other_p90=P90_FACTOR),
        references=[],
        metrics={},
        training={**_training_facts(table, judging, found, log_error), "placed": others.means},
    )
    artifact = Artifact(network, tables, manifest, sample)
    if judge is not None:
        judge(judged(table, found))
    return msgspec.structs.replace(
        artifact, manifest=msgspec.structs.replace(manifest, references=_references(artifact))
    )


def _published(
    table: Table, rows: Integers, made: Joined, scores: Path | None, ratios: Mapping[str, float], say: Say
) -> Published:
    """Return rows of models without outcomes; none where no scores are given."""
    if scores is None or not (scores / SCORES_FILE).is_file():
        return Published({}, {})
    corpus = table.corpus
    board = board_of(scores, source_means(corpus.models, corpus.outcomes, corpus.sources))
    found = published(board, grounds_of(made.loads, corpus.sources[rows], made.abilities), ratios)
    say(f"{len(found.abilities)} rows placed by published scores")
    return found


def _log_tokens(table: Table, rows: Integers, found: Answers) -> Floats:
    """Return (rows,): the logarithm of the answer's length, as the graph mixes it."""
    trust = found.trust[rows]
    by_complexity = np.log(TOKENS_AT_EASIEST) + TOKENS_BY_COMPLEXITY * table.sides.complexity[rows]
    return np.asarray(trust * found.log_tokens[rows] + (1 - trust) * by_complexity)


def _p90(log_error: Floats) -> float:
    known = log_error[~np.isnan(log_error)]
    return round(float(np.exp(np.percentile(known, 90))), 3) if len(known) else P90_FACTOR


def _training_facts(table: Table, rows: Integers, found: Answers, log_error: Floats) -> dict[str, Any]:
    """Return facts on the training run, for the manifest."""
    off = 100 * np.abs(np.exp(-log_error[~np.isnan(log_error)]) - 1)
    sources = table.corpus.sources[rows]
    trust = found.trust[rows]
    return {
        "tiered_prompts": int(table.everyday.rows.counts.shape[0]),
        "known_words": len(table.everyday.table.rows) - 1,
        "median_trust": {
            str(source): round(float(np.median(trust[sources == source])), 3) for source in np.unique(sources)
        },
        "kind_told_right": round(float((found.kinds[rows].argmax(axis=1) == table.kind_of[rows]).mean()), 4),
        "answer_lengths": msgspec.to_builtins(
            told_over_actual(
                _log_tokens(table, rows, found),
                table.corpus.output_tokens[rows][:, [table.corpus.models.index(name) for name in table.models]],
                sources,
                table.models,
                table.log_lengths,
            )
        ),
        "answer_length_median_error_percent": round(float(np.median(off)), 1) if len(off) else None,
    }


def _references(artifact: Artifact) -> list[Reference]:
    """Return the predictions of this artifact for a few prompts, so that whoever loads it can check that they still
    hold.
    """
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
