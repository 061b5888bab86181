"""The ordinal difficulty model: P(tier ≥ 1), P(tier ≥ 2) and P(tier ≥ 3) of a prompt, whatever its topic.

Two models of about equal strength are averaged. One is a logistic regression on hashed words and word pairs, which
learns how a demand is put. The other is a small network on the *gist*: the mean meaning of the words, how hard they are
rated, plain facts of form, and the words of the user message before. It carries over to words and languages that no
training prompt had. Complexity is the mean of the three probabilities, which is the expected tier / 3.
"""

import random
import warnings
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

from classifier.features import FLAGS, STRUCTURE, Features, extract
from classifier.prediction import Prompt
from classifier.training.network import Rows, quantised, rows_of, weighed
from classifier.training.rewording import CHANGES
from classifier.training.tier_set import TIERS, Tiered
from classifier.training.word_table import GRADED, WordTable

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

THRESHOLDS: Final = tuple(TIERS)[1:]
OF_THE_REQUEST: Final = frozenset(
    {"log_turns", "log_tools", "log_images", "json_mode", "log_system_chars", "log_history_chars"}
)
"""Facts that do not tell a task's difficulty: tools on offer, or the length of what came before."""
FACTS: Final = tuple(at for at, name in enumerate(STRUCTURE) if name not in OF_THE_REQUEST)
FLAGS_READ: Final = (FLAGS.index("follows"), FLAGS.index("follows_short"))
WORDS_STRENGTH: Final = 10.0
HIDDEN: Final = 64
NETWORKS: Final = 3
"""Networks of different seeds, whose probabilities are averaged."""
EPOCHS: Final = 18
DECAY: Final = 0.3
CLAMP: Final = 4.0
"""Standard deviations to which each number of the gist is held."""


class GistNetwork(msgspec.Struct, frozen=True):
    """Small networks on the standardised gist, side by side in one pair of matrices."""

    mean: Floats
    scale: Floats
    hidden: Floats
    """(gist, NETWORKS * HIDDEN)"""
    hidden_bias: Floats
    out: Floats
    """(NETWORKS * HIDDEN, NETWORKS * thresholds), 0 between different networks."""
    out_bias: Floats

    def standardised(self, gists: Floats) -> Floats:
        """Gists as the network takes them."""
        found: Floats = np.clip((gists - self.mean) * self.scale, -CLAMP, CLAMP)
        return found

    def tiers(self, gists: Floats) -> Floats:
        """(prompts, thresholds): the mean of the networks' probabilities."""
        inner = np.maximum(0, self.standardised(gists) @ self.hidden + self.hidden_bias)
        each = _logistic(inner @ self.out + self.out_bias).reshape(len(gists), NETWORKS, len(THRESHOLDS))
        return np.asarray(each.mean(axis=1))


class Difficulty(msgspec.Struct, frozen=True):
    """The fitted model: in plain numpy the reference for the ONNX graph."""

    idf: Floats
    words: Floats
    """(buckets, thresholds)"""
    words_bias: Floats
    gist: GistNetwork

    def parts(self, rows: Rows, gists: Floats) -> tuple[Floats, Floats]:
        """(prompts, thresholds) each: the probabilities by words, and by gist."""
        terms = weighed(rows.counts, self.idf)
        return _logistic(terms @ self.words + self.words_bias), self.gist.tiers(gists)

    def complexity(self, rows: Rows, gists: Floats) -> Floats:
        """(prompts,): the expected tier / 3."""
        by_words, by_gist = self.parts(rows, gists)
        return np.asarray((by_words + by_gist).mean(axis=1) / 2)


def _logistic(values: Floats) -> Floats:
    found: Floats = 1 / (1 + np.exp(-np.clip(values, -30, 30)))
    return found


def gist_of(features: Features, table: WordTable) -> Floats:
    """What the network reads of one prompt, as the ONNX graph computes it."""
    read = np.concatenate([features.words, features.before])
    meant = features.readings.astype(np.float64) @ table.rows[table.index[read]]
    facts = [features.structure[list(FACTS)], features.flags[list(FLAGS_READ)]]
    return np.concatenate([meant[0], meant[1], *meant[2:, -GRADED - 1 : -1], *facts]).astype(np.float64)


def gists_of(features: Sequence[Features], table: WordTable) -> Floats:
    """(prompts, gist): what the network reads of many prompts."""
    return np.stack([gist_of(each, table) for each in features])


class Lesson(msgspec.Struct, frozen=True):
    """Prompts of known tiers, as arrays."""

    rows: Rows
    gists: Floats
    tiers: Integers
    weights: Floats


def lesson_of(prompts: Sequence[Prompt], tiers: Sequence[int], weights: Sequence[float], table: WordTable) -> Lesson:
    """Prompts of known tiers, as arrays."""
    features = [extract(prompt) for prompt in prompts]
    return Lesson(rows_of(features), gists_of(features, table), np.array(tiers), np.array(weights))


def lessons(taught: Sequence[Tiered], table: WordTable, seed: int = 0) -> Lesson:
    """The prompts and, once each, a changed copy of them whose task is the same."""
    draw = random.Random(seed)  # noqa: S311 - it makes up training data
    names = list(CHANGES)
    changed = [CHANGES[names[number % len(names)]](row.prompt, draw) for number, row in enumerate(taught)]
    return lesson_of(
        [*(row.prompt for row in taught), *changed],
        [row.tier for row in taught] * 2,
        [row.weight for row in taught] * 2,
        table,
    )


def fit(lesson: Lesson, idf: Floats, seed: int = 0) -> Difficulty:
    """Trains both models on the prompts of a lesson."""
    terms = weighed(lesson.rows.counts, idf)
    by_words = [
        LogisticRegression(C=WORDS_STRENGTH, max_iter=200).fit(terms, side, sample_weight=lesson.weights)
        for side in _above(lesson).T
    ]
    return Difficulty(
        idf=idf,
        words=quantised(np.stack([each.coef_[0] for each in by_words], axis=1)),
        words_bias=np.array([each.intercept_[0] for each in by_words]),
        gist=fit_gist(lesson, seed),
    )


def fit_gist(lesson: Lesson, seed: int = 0) -> GistNetwork:
    """Trains the networks on gists."""
    scaler = StandardScaler().fit(lesson.gists)
    inputs = np.clip(scaler.transform(lesson.gists), -CLAMP, CLAMP)
    networks = [_network(inputs, _above(lesson), lesson.weights, seed + number) for number in range(NETWORKS)]
    out = np.zeros((NETWORKS * HIDDEN, NETWORKS * len(THRESHOLDS)))
    for number, each in enumerate(networks):
        rows, columns = number * HIDDEN, number * len(THRESHOLDS)
        out[rows : rows + HIDDEN, columns : columns + len(THRESHOLDS)] = each.coefs_[1]
    return GistNetwork(
        mean=scaler.mean_,
        scale=1 / scaler.scale_,
        hidden=np.concatenate([each.coefs_[0] for each in networks], axis=1),
        hidden_bias=np.concatenate([each.intercepts_[0] for each in networks]),
        out=out,
        out_bias=np.concatenate([each.intercepts_[1] for each in networks]),
    )


def _above(lesson: Lesson) -> NDArray[np.bool_]:
    """(prompts, thresholds): whether the tier reaches each threshold."""
    return np.asarray(lesson.tiers[:, None] >= np.array(THRESHOLDS))


def _network(inputs: Floats, above: NDArray[np.bool_], weights: Floats, seed: int) -> MLPClassifier:
    network = MLPClassifier(
        (HIDDEN,), alpha=DECAY, learning_rate_init=2e-3, max_iter=EPOCHS, batch_size=128, random_state=seed
    )
    with warnings.catch_warnings():
        # It is stopped early on purpose: more epochs only fit the training prompts.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return network.fit(inputs, above.astype(np.int64), sample_weight=weights)
