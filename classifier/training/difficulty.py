"""The ordinal difficulty model: P(tier ≥ 1), P(tier ≥ 2) and P(tier ≥ 3) of a prompt, whatever its topic.

Two models of about equal strength are joined. One is a logistic regression on hashed words and word pairs of what is asked,
without what is pasted; it learns how a demand is put. The other is a small network on the *gist*: the mean meaning of the words,
of those that ask, of the first of these and of the question; how hard they are rated; plain facts of form; and the words of the user
message before. It carries over to words and languages that no training prompt had. For each threshold the logit is a weighted sum of both, which orders unseen kinds
better than the mean of their probabilities: the network is surer of itself than it is right. Complexity is the
mean of the three probabilities, which is the expected tier / 3.

The small network is taught by six that were trained on the tiers (Hinton, Vinyals and Dean 2015): it gives what they say on average,
and what a score costs is above all the memory that its weights take.
"""

import random
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from classifier.asking.normalization import with_plain_marks
from classifier.asking.resolution import searched
from classifier.features import FLAGS, STRUCTURE, Features, extract, read_text
from classifier.prediction import Prompt
from classifier.training.network import Rows, asks_of, quantised, weighed
from classifier.training.rewording import CHANGES
from classifier.training.tier_set import TIERS, Tiered
from classifier.training.word_table import GRADED, WordTable
from classifier.training.wrapping import shapes, wrapped

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Singles = NDArray[np.float32]

THRESHOLDS: Final = tuple(TIERS)[1:]
OF_THE_REQUEST: Final = frozenset(
    {"log_turns", "log_tools", "log_images", "json_mode", "log_system_chars", "log_history_chars"}
)
"""Facts that do not tell a task's difficulty: tools on offer, or the length of what came before."""
FACTS: Final = tuple(at for at, name in enumerate(STRUCTURE) if name not in OF_THE_REQUEST)
FLAGS_READ: Final = (FLAGS.index("follows"), FLAGS.index("follows_short"))
MEANT: Final = (0, 5, 7, 8)
"""Readings of features.py that the network takes whole: the mean of the whole message, of what it asks and of the first
words of that, and of its question. The readings of what is asked follow those of the message, and the question's those.
"""
RATED: Final = (1, 2, 3, 6, 9)
"""Readings of which it takes the classes and ratings alone."""
WORDS_STRENGTH: Final = 10.0
JOINED: Final = ((0.8, 0.5, -0.5), (1.0, 0.65, 0.2), (0.95, 0.45, 1.0))
"""Weights of the words' logit and of the gist's, and the constant, for each threshold: by a logistic regression on the
logits of models that had not seen the prompt's kind, over the kinds that may be learned from.
"""
OF_WORDS, OF_GIST, MORE = np.array(JOINED).T
HIDDEN: Final = 64
NETWORKS: Final = 6
"""Networks of different seeds, whose mean logits teach the one that ships. With kinds left out .9379 of pairs are in order by the six,
.9375 by the one that they taught, and .9359 by one that learned from tiers.
"""
EPOCHS: Final = 12
BATCH: Final = 128
STEP: Final = 2e-3
_MEANS: Final = (0.9, 0.999)
"""Shares of the means of gradients and of their squares that are kept at each step (Adam, Kingma and Ba 2015)."""
CLAMP: Final = 4.0
"""Standard deviations to which each number of the gist is held."""


class Schooling(msgspec.Struct, frozen=True):
    """The settings by which networks are trained."""

    decay: float
    dropped: float
    """Share of the gist's numbers that are left out at each step, so that none of them is relied on. scikit-learn's networks cannot do this."""
    slows: bool
    """True where steps grow shorter, to nothing at the end."""


OF_TIERS: Final = Schooling(decay=0.3, dropped=0.1, slows=False)
OF_MANY: Final = Schooling(decay=0.1, dropped=0.0, slows=True)
"""The settings for targets averaged over many networks, which have less noise than tiers, so less has to be kept out."""


class GistNetwork(msgspec.Struct, frozen=True):
    """The small network on the standardised gist."""

    mean: Floats
    scale: Floats
    hidden: Floats
    """(gist, HIDDEN)"""
    hidden_bias: Floats
    out: Floats
    """(HIDDEN, thresholds)"""
    out_bias: Floats

    def standardised(self, gists: Floats) -> Floats:
        """Return the gists as the network takes them."""
        found: Floats = np.clip((gists - self.mean) * self.scale, -CLAMP, CLAMP)
        return found

    def logits(self, gists: Floats) -> Floats:
        """Return (prompts, thresholds): the network's logits."""
        inner = np.maximum(0, self.standardised(gists) @ self.hidden + self.hidden_bias)
        found: Floats = inner @ self.out + self.out_bias
        return found


class Difficulty(msgspec.Struct, frozen=True):
    """The fitted model: in plain numpy the reference for the ONNX graph."""

    idf: Floats
    words: Floats
    """(buckets, thresholds)"""
    words_bias: Floats
    gist: GistNetwork

    def parts(self, asks: Rows, gists: Floats) -> tuple[Floats, Floats]:
        """Return (prompts, thresholds) each: the logits by words, and by gist."""
        by_words: Floats = weighed(asks.counts, self.idf) @ self.words + self.words_bias
        return by_words, self.gist.logits(gists)

    def complexity(self, asks: Rows, gists: Floats) -> Floats:
        """Return (prompts,): the expected tier / 3."""
        by_words, by_gist = self.parts(asks, gists)
        return expected(OF_WORDS * by_words + OF_GIST * by_gist + MORE)


def expected(logits: Floats) -> Floats:
    """Return (prompts,): the expected tier / 3 by the logits of the thresholds."""
    return np.asarray(_logistic(logits).mean(axis=1))


def _logistic(values: Floats) -> Floats:
    found: Floats = 1 / (1 + np.exp(-np.clip(values, -30, 30)))
    return found


def gist_of(features: Features, table: WordTable) -> Floats:
    """Return the network's input of one prompt, as the ONNX graph computes it."""
    parts = features.ask, features.question
    meant = np.concatenate(
        [
            features.readings.astype(np.float64) @ _rows(table, np.concatenate([features.words, features.before])),
            *(part.readings.astype(np.float64) @ _rows(table, part.words) for part in parts),
        ]
    )
    facts = [part.structure[list(FACTS)] for part in (features, *parts)]
    rated = meant[list(RATED), -GRADED - 1 : -1].ravel()
    found = [meant[list(MEANT)].ravel(), rated, *facts, features.flags[list(FLAGS_READ)]]
    return np.concatenate(found).astype(np.float64)


def _rows(table: WordTable, words: NDArray[np.int32]) -> NDArray[np.int8]:
    return table.rows[table.index[words]]


def gists_of(features: Sequence[Features], table: WordTable) -> Floats:
    """Return (prompts, gist): the network's inputs for many prompts."""
    return np.stack([gist_of(each, table) for each in features])


class Lesson(msgspec.Struct, frozen=True):
    """Prompts of known tiers, as arrays."""

    rows: Rows
    """Features of the asks alone."""
    gists: Floats
    tiers: Integers
    weights: Floats


def lesson_of(prompts: Sequence[Prompt], tiers: Sequence[int], weights: Sequence[float], table: WordTable) -> Lesson:
    """Return the prompts of known tiers, as arrays."""
    features = [extract(prompt) for prompt in prompts]
    return Lesson(asks_of(features), gists_of(features, table), np.array(tiers), np.array(weights))


def lessons(taught: Sequence[Tiered], table: WordTable, seed: int = 0) -> Lesson:
    """Return the prompts and, once each, a copy that is worded otherwise, and one as a program or a person might send it: the
    task is the same.
    """
    draw = random.Random(seed)  # noqa: S311 - it makes up training data
    names = list(CHANGES)
    known = shapes().part(held=False)
    changed = [CHANGES[names[number % len(names)]](row.prompt, draw) for number, row in enumerate(taught)]
    sent = [(row, wrapped(row.prompt, known, draw)) for row in taught]
    # Where the ask is not found there is nothing to be learned about it.
    found = [(row, prompt) for row, prompt in sent if _begins(row.prompt) in read_text(prompt)]
    return lesson_of(
        [*(row.prompt for row in taught), *changed, *(prompt for _, prompt in found)],
        [*(row.tier for row in taught), *(row.tier for row in taught), *(row.tier for row, _ in found)],
        [
            *(row.weight for row in taught),
            *(row.weight for row in taught),
            *(SENT_WEIGHT * row.weight for row, _ in found),
        ],
        table,
    )


SENT_WEIGHT: Final = 0.5
"""Weight of a copy in a template or a letter."""
_BEGINNING: Final = 60


def _begins(prompt: Prompt) -> bytes:
    """Return the beginning of a prompt's message, with plain marks."""
    return with_plain_marks(searched(prompt.text)).strip()[:_BEGINNING]


def fit(lesson: Lesson, idf: Floats, seed: int = 0) -> Difficulty:
    """Train both models on the prompts of a lesson."""
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
    """Train the networks on gists, and the one that ships on their mean predictions."""
    scaler = StandardScaler().fit(lesson.gists)
    inputs = np.clip(scaler.transform(lesson.gists), -CLAMP, CLAMP).astype(np.float32)
    many = _networks(inputs, _above(lesson), lesson.weights, seed, NETWORKS, OF_TIERS)
    one = _networks(inputs, _logistic(_mean_logits(many, inputs)), lesson.weights, seed, 1, OF_MANY)
    hidden, hidden_bias, out, out_bias = (each[0].astype(np.float64) for each in one)
    return GistNetwork(
        mean=scaler.mean_,
        scale=1 / scaler.scale_,
        hidden=hidden,
        hidden_bias=hidden_bias[0],
        out=out,
        out_bias=out_bias[0],
    )


def _above(lesson: Lesson) -> NDArray[np.bool_]:
    """Return (prompts, thresholds): whether the tier reaches each threshold."""
    return np.asarray(lesson.tiers[:, None] >= np.array(THRESHOLDS))


def _mean_logits(layers: Sequence[Singles], inputs: Singles) -> Floats:
    """Return (prompts, thresholds): the mean of the networks' logits."""
    said = np.zeros((len(inputs), len(THRESHOLDS)))
    for hidden, hidden_bias, out, out_bias in zip(*layers, strict=True):
        said += np.maximum(0, inputs @ hidden + hidden_bias) @ out + out_bias
    return said / len(layers[0])


def _networks(
    inputs: Singles, told: NDArray[Any], weights: Floats, seed: int, networks: int, schooling: Schooling
) -> list[Singles]:
    """Train several networks side by side, each with an order and gaps of its own, for EPOCHS: more only fit the
    training prompts. `told` are the probabilities that they are to give, (prompts, thresholds).

    Returns (networks, gist, HIDDEN), (networks, 1, HIDDEN), (networks, HIDDEN, thresholds) and (networks, 1, thresholds).
    """
    draw = np.random.default_rng(seed)
    told, counted = told.astype(np.float32), (weights / weights.mean()).astype(np.float32)
    layers = [
        *_layer(draw, networks, inputs.shape[1], HIDDEN),
        *_layer(draw, networks, HIDDEN, told.shape[1]),
    ]
    means, squares = ([np.zeros_like(each) for each in layers] for _ in range(2))
    steps, every = 0, EPOCHS * -(-len(inputs) // BATCH) + 1
    for _ in range(EPOCHS):
        orders = np.stack([draw.permutation(len(inputs)) for _ in range(networks)])
        for begin in range(0, len(inputs), BATCH):
            rows = orders[:, begin : begin + BATCH]
            seen = inputs[rows]
            if schooling.dropped:
                gaps = draw.random(seen.shape, np.float32) < schooling.dropped
                seen = np.where(gaps, np.float32(0), seen / np.float32(1 - schooling.dropped))
            slopes = _slopes(layers, seen, told[rows], counted[rows][..., None], schooling.decay)
            steps += 1
            step = STEP * (1 - steps / every) if schooling.slows else STEP
            for each in zip(layers, slopes, means, squares, strict=True):
                _stepped(*each, steps, step)
    return layers


def _layer(draw: np.random.Generator, networks: int, wide: int, to: int) -> tuple[Singles, Singles]:
    """Return the weights and bias at the start (Glorot and Bengio 2010)."""
    bound = np.sqrt(6 / (wide + to))
    return draw.uniform(-bound, bound, (networks, wide, to)).astype(np.float32), np.zeros((networks, 1, to), np.float32)


def _stepped(layer: Singles, slope: Singles, mean: Singles, square: Singles, steps: int, step: float) -> None:
    """Take a step of a layer, in place. Both means began at nothing, and are made up for it."""
    of_mean, of_square = _MEANS
    mean += (1 - of_mean) * (slope - mean)
    square += (1 - of_square) * (slope * slope - square)
    layer -= step / (1 - of_mean**steps) * mean / (np.sqrt(square / (1 - of_square**steps)) + 1e-8)


def _slopes(layers: Sequence[Singles], known: Singles, told: Singles, counted: Singles, decay: float) -> list[Singles]:
    """Return the gradients of the mean cross-entropy of a batch, and of `decay` by the squared weights."""
    hidden, hidden_bias, out, out_bias = layers
    size = known.shape[1]
    inner = np.maximum(0, known @ hidden + hidden_bias)
    off = (1 / (1 + np.exp(-np.clip(inner @ out + out_bias, -30, 30))) - told) * counted / size
    back = (off @ out.transpose(0, 2, 1)) * (inner > 0)
    return [
        known.transpose(0, 2, 1) @ back + decay / size * hidden,
        back.sum(axis=1, keepdims=True),
        inner.transpose(0, 2, 1) @ off + decay / size * out,
        off.sum(axis=1, keepdims=True),
    ]
