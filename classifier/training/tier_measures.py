"""The order of complexity on prompts of known tiers, and its stability when a prompt is only worded differently."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import cohen_kappa_score
from sklearn.model_selection import GroupKFold

from classifier.features import extract
from classifier.prediction import Prompt
from classifier.training import difficulty, shape_measures
from classifier.training.difficulty import Lesson, gists_of, lessons
from classifier.training.network import asks_of, idf_of
from classifier.training.rewording import CHANGES
from classifier.training.tier_set import HELD_KINDS, LANGUAGES, Tiered, ladders, second_labels, written
from classifier.training.word_table import GRADED, WordTable

Floats = NDArray[np.float64]
Complexity = Callable[[Sequence[Prompt]], Floats]

FOLDS: Final = 6
COMMANDS, EVERYDAY, HARD = "clinc_oos", "self_instruct", ("arena_hard_v01", "arena_hard_v2")
PARTS: Final = ("length alone", "form alone", "hashed words", "embedding and form", "both")
"""The rivals of the difficulty model: parts of itself, and the number of characters."""


class Order(msgspec.Struct, frozen=True):
    """Shares of pairs of different tiers that stand in the right order; a tie counts half. NaN where there is no pair."""

    n: int
    every: float
    """Every pair of different tiers; half of them are neighbours."""
    clear: float
    """Pairs two tiers apart or three, which anybody would sort alike."""


def order_of(tiers: Iterable[int], scores: Iterable[float]) -> Order:
    """Return the shares for these tiers and scores."""
    known, said = np.array(list(tiers)), np.array(list(scores), np.float64)
    won, pairs = np.zeros(4), np.zeros(4)
    for low in range(4):
        for high in range(low + 1, 4):
            apart = np.sign(said[known == high][:, None] - said[known == low][None])
            won[high - low] += (apart > 0).sum() + 0.5 * (apart == 0).sum()
            pairs[high - low] += apart.size
    return Order(len(known), _share(won.sum(), pairs.sum()), _share(won[2:].sum(), pairs[2:].sum()))


def _share(won: float, pairs: float) -> float:
    return round(float(won / pairs), 4) if pairs else float("nan")


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """The measures on prompts that the model was not trained on."""

    whole: Order
    kinds: dict[str, Order]
    languages: dict[str, Order]
    with_tools: Order
    with_history: Order
    changes: dict[str, float]
    """Mean change of complexity, by what was changed."""


def judged(rows: Sequence[Tiered], complexity: Complexity, seed: int = 0) -> Judged:
    """Measure a classifier on rows of the written set."""
    scores = complexity([row.prompt for row in rows])
    tiers = np.array([row.tier for row in rows])

    def part(chosen: Iterable[bool]) -> Order:
        at = np.flatnonzero(list(chosen))
        return order_of(tiers[at], scores[at])

    return Judged(
        whole=order_of(tiers, scores),
        kinds={kind: part(row.kind == kind for row in rows) for kind in sorted({row.kind for row in rows})},
        languages={name: part(row.language == name for row in rows) for name in LANGUAGES},
        with_tools=part(row.prompt.tools > 0 for row in rows),
        with_history=part(row.prompt.turns > 1 for row in rows),
        changes=_changes(rows, scores, complexity, seed),
    )


def _changes(rows: Sequence[Tiered], scores: Floats, complexity: Complexity, seed: int) -> dict[str, float]:
    draw = random.Random(seed)  # noqa: S311 - it makes up changes
    found = {}
    for name, change in CHANGES.items():
        changed = complexity([change(row.prompt, draw) for row in rows])
        found[name] = round(float(np.abs(changed - scores).mean()), 4)
    at = {row.row_id: number for number, row in enumerate(rows)}
    pairs = [(number, at[row.of]) for number, row in enumerate(rows) if row.of in at]
    for name, same in (("paraphrase", True), ("translation", False)):
        moved = [abs(scores[a] - scores[b]) for a, b in pairs if (rows[a].language == rows[b].language) == same]
        found[name] = round(float(np.mean(moved)), 4) if moved else float("nan")
    return found


def weak_order(rows: Sequence[Tiered], scores: Floats) -> dict[str, float]:
    """Return the order of the chat prompts' origins: commands and everyday tasks below those that were kept as hard."""
    kinds = np.array([row.kind for row in rows])
    found = {}
    for name, low in (("commands < hard", COMMANDS), ("everyday < hard", EVERYDAY)):
        chosen = np.flatnonzero((kinds == low) | np.isin(kinds, HARD))
        found[name] = order_of(np.where(kinds[chosen] == low, 0, 3), scores[chosen]).every
    return found


def cross_validated(table: WordTable, data_rows: Sequence[Tiered], seed: int = 0) -> Iterator[tuple[str, Any]]:
    """Measure the difficulty model and its parts, trained anew without whole kinds, and chat prompts, without a part of them.
    Yields one measure after the other, each with its name.

    `data_rows` are chat prompts with weak tiers; without any, only the written set is measured.
    """
    rows = written()
    topics = ladders()
    tiers = [row.tier for row in rows]
    if data_rows:
        taught = [*rows, *topics]
        by_row = _held_out(data_rows, [row.row_id for row in data_rows], taught, table, seed)
        yield "chat, held out by row", {name: weak_order(data_rows, by_row[name]) for name in PARTS}
        without = _by_parts(lessons(taught, table, seed), data_rows, table, seed)
        yield "chat, never seen", {name: weak_order(data_rows, without[name]) for name in PARTS}
    of_kinds = _held_out(rows, [row.kind for row in rows], [*topics, *data_rows], table, seed)
    yield "kinds left out", {name: order_of(tiers, of_kinds[name]) for name in PARTS}


def _held_out(
    rows: Sequence[Tiered], groups: Sequence[str], always: Sequence[Tiered], table: WordTable, seed: int
) -> dict[str, Floats]:
    """Return the complexity of each row by each of PARTS, by models that saw no row of its group; and `always` all the
    others.
    """
    scores = {name: np.zeros(len(rows)) for name in PARTS}
    folds = GroupKFold(min(FOLDS, len(set(groups))), shuffle=True, random_state=seed)
    for taught, kept in folds.split(np.zeros(len(rows)), groups=list(groups)):
        lesson = lessons([*(rows[at] for at in taught), *always], table, seed)
        for name, found in _by_parts(lesson, [rows[at] for at in kept], table, seed).items():
            scores[name][kept] = found
    return scores


def _by_parts(lesson: Lesson, kept: Sequence[Tiered], table: WordTable, seed: int) -> dict[str, Floats]:
    features = [extract(row.prompt) for row in kept]
    asks, gists = asks_of(features), gists_of(features, table)
    whole = difficulty.fit(lesson, idf_of(lesson.rows.counts), seed)
    by_words, by_gist = (difficulty.expected(part) for part in whole.parts(asks, gists))
    form = msgspec.structs.replace(lesson, gists=_without_meaning(lesson.gists, table))
    plain = difficulty.fit_gist(form, seed)
    return {
        "length alone": np.array([float(len(row.prompt.text)) for row in kept]),
        "form alone": difficulty.expected(plain.logits(_without_meaning(gists, table))),
        "hashed words": by_words,
        "embedding and form": by_gist,
        "both": whole.complexity(asks, gists),
    }


def _without_meaning(gists: Floats, table: WordTable) -> Floats:
    """Return the gists with the meaning of the words left out: facts of form alone."""
    found = gists.copy()
    found[:, : len(difficulty.MEANT) * table.columns + len(difficulty.RATED) * GRADED] = 0.0
    return found


def measures(
    shipped: Complexity, table: WordTable, data_rows: Sequence[Tiered], seed: int = 0
) -> Iterator[tuple[str, Any]]:
    """Yield the measures of difficulty of a manifest, each with its name; first what takes no training."""
    held = [row for row in written() if row.kind in HELD_KINDS]
    tiers = [row.tier for row in held]
    yield "labelled twice", agreement()
    yield "held kinds", msgspec.to_builtins(judged(held, shipped, seed))
    yield (
        "held kinds, length alone",
        msgspec.to_builtins(order_of(tiers, [float(len(row.prompt.text)) for row in held])),
    )
    yield "always the same model", msgspec.to_builtins(order_of(tiers, np.zeros(len(held))))
    yield "shapes", shape_measures.measures(shipped, seed)
    for name, found in cross_validated(table, data_rows, seed):
        yield name, msgspec.to_builtins(found)


def agreement() -> dict[str, float]:
    """Return the agreement of the second labels, given apart and without sight of the first, with them."""
    second = second_labels()
    both = [(row.tier, second[row.row_id]) for row in (*written(), *ladders()) if row.row_id in second]
    one, other = np.array(both).T
    return {
        "n": len(both),
        "same": round(float((one == other).mean()), 4),
        "kappa": round(float(cohen_kappa_score(one, other)), 4),
        "weighted_kappa": round(float(cohen_kappa_score(one, other, weights="quadratic")), 4),
    }
