"""Splits into training and held-out prompts, with a check that no question is on both sides."""

import hashlib
import re
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Hashes = NDArray[np.uint64]
Split = Literal["10-fold", "leave-category-out", "leave-source-out", "own-0", "own-50", "own-200", "own-1000"]
"""`own-N`: trained on the other sources and N labels of the judged source, judged on the other half of that source."""

SPLITS: Final[tuple[Split, ...]] = get_args(Split)
OWN: Final[dict[Split, int]] = {"own-0": 0, "own-50": 50, "own-200": 200, "own-1000": 1000}
FOLDS: Final = 10
FEWEST_CATEGORIES: Final = 5
"""Least categories of a source of which some can be left out."""
STEMS_FILE: Final = "training_stems.bin"
MAX_STEMS_BYTES: Final = 8 * 2**20

_FIRST_CHOICE: Final = re.compile(r"(?:^|\s)\(?A[.):]\s")
_SECOND_CHOICE: Final = re.compile(r"\s\(?B[.):]\s")
_WORD: Final = re.compile(r"[^\W_]+")
_STEM_CHARS: Final = 400
_MAX_NAMED_ROWS: Final = 10


class NotDisjoint(Exception):
    """A question is both trained on and judged, so no number may come of the fold."""


class Fold(msgspec.Struct, frozen=True):
    """Row numbers to train on and to judge. `own` are the trained rows that stand for labels of the judged source."""

    taught: Integers
    kept: Integers
    own: Integers


def normalised(text: str) -> str:
    """Return the text's words and numbers alone: case, white space, signs and Unicode forms make no difference."""
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    words = " ".join(_WORD.findall(plain))
    # A text of signs alone is identified by its signs.
    return words or text.strip()


def stem(text: str) -> str:
    """Return a question without its choices, normalised: the same question in two sources has one stem."""
    first = _FIRST_CHOICE.search(text)
    if first and _SECOND_CHOICE.search(text, first.end() - 1) and _WORD.search(text, 0, first.start()):
        text = text[: first.start()]
    return normalised(text)[:_STEM_CHARS].strip()


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def hashes_of(texts: Sequence[str]) -> tuple[Hashes, Hashes]:
    """Return 64-bit hashes of each text's stem, and of each whole text, both normalised."""
    stems = np.fromiter((_hash(stem(text)) for text in texts), np.uint64, len(texts))
    whole = np.fromiter((_hash(normalised(text)) for text in texts), np.uint64, len(texts))
    return stems, whole


def questions(stems: Hashes, whole: Hashes) -> Integers:
    """Return the number of each prompt's question: prompts with one stem, or with one text, are the same question."""
    parent = list(range(len(stems)))

    def root(at: int) -> int:
        while parent[at] != at:
            parent[at] = parent[parent[at]]
            at = parent[at]
        return at

    for keys in (stems, whole):
        first: dict[int, int] = {}
        for at, key in enumerate(keys.tolist()):
            other = first.setdefault(key, at)
            left, right = root(other), root(at)
            parent[max(left, right)] = min(left, right)
    _, numbers = np.unique([root(at) for at in range(len(parent))], return_inverse=True)
    return numbers.astype(np.int64)


def prove_hashes_disjoint(taught: tuple[Hashes, Hashes], kept: tuple[Hashes, Hashes]) -> None:
    """Raise NotDisjoint, naming rows of `kept`, when one of their questions was trained on."""
    both = [np.isin(mine, theirs) for mine, theirs in zip(kept, taught, strict=True)]
    rows = np.flatnonzero(both[0] | both[1])
    if len(rows):
        named = ", ".join(map(str, rows[:_MAX_NAMED_ROWS].tolist()))
        more = f" and {len(rows) - _MAX_NAMED_ROWS} more" if len(rows) > _MAX_NAMED_ROWS else ""
        raise NotDisjoint(f"{len(rows)} kept prompts are questions that were taught: rows {named}{more}")


def stem_hashes(texts: Sequence[str]) -> Hashes:
    """Return the distinct stem hashes, sorted; they ship with the artifact, as no prompt can be read out of them."""
    return np.unique(hashes_of(texts)[0])


def write_stems(folder: Path, stems: Hashes) -> None:
    """Write stem hashes beside the model."""
    (folder / STEMS_FILE).write_bytes(np.unique(stems).astype("<u8").tobytes())


def read_stems(folder: Path) -> Hashes | None:
    """Return the stem hashes of the training prompts beside the model; None when there is no such file."""
    path = folder / STEMS_FILE
    try:
        with path.open("rb") as file:
            content = file.read(MAX_STEMS_BYTES)
    except FileNotFoundError:
        return None
    return np.frombuffer(content[: len(content) // 8 * 8], "<u8").astype(np.uint64)


def unseen(texts: Sequence[str], taught: Hashes) -> NDArray[np.bool_]:
    """Return True for each text whose question was not trained on."""
    return ~np.isin(hashes_of(texts)[0], taught)


class Questions(msgspec.Struct, frozen=True):
    """The part of a corpus that splitting needs: each prompt's source, category and question."""

    sources: NDArray[np.str_]
    categories: NDArray[np.str_]
    groups: Integers
    stems: Hashes
    whole: Hashes

    def folds(self, split: Split, seed: int) -> Iterator[Fold]:
        """Yield the folds of a split, each checked before. A row that nothing can judge is held out in none."""
        ways = {
            "10-fold": self._question_folds,
            "leave-category-out": self._category_folds,
            "leave-source-out": self._source_folds,
        }
        for fold in ways[split](seed) if split in ways else self._own_label_folds(OWN[split], seed):
            self.prove(fold)
            yield fold

    def prove(self, fold: Fold) -> None:
        """Raise NotDisjoint when a question is on both sides of the fold."""
        sides = [(self.stems[rows], self.whole[rows]) for rows in (fold.taught, fold.kept)]
        prove_hashes_disjoint(sides[0], sides[1])

    def _without(self, kept: Integers) -> Integers:
        """Return every row but the kept ones and those of the same questions."""
        return np.flatnonzero(~np.isin(self.groups, self.groups[kept]))

    def _question_folds(self, seed: int) -> Iterator[Fold]:
        for kept in _balanced_folds(self.groups, seed):
            yield Fold(self._without(kept), kept, _no_rows())

    def _category_folds(self, seed: int) -> Iterator[Fold]:
        """Return the ten folds of each source's categories, all sources at once; sources of few categories are only
        trained on.
        """
        folds: list[list[Integers]] = [[] for _ in range(FOLDS)]
        for source in np.unique(self.sources):
            rows = np.flatnonzero(self.sources == source)
            if len(np.unique(self.categories[rows])) >= FEWEST_CATEGORIES:
                for fold, kept in zip(folds, _balanced_folds(self.categories[rows], seed), strict=False):
                    fold.append(rows[kept])
        for parts in filter(None, folds):
            kept = np.sort(np.concatenate(parts))
            yield Fold(self._without(kept), kept, _no_rows())

    def _source_folds(self, _seed: int) -> Iterator[Fold]:
        for source in np.unique(self.sources):
            kept = np.flatnonzero(self.sources == source)
            yield Fold(self._without(kept), kept, _no_rows())

    def _own_label_folds(self, labels: int, seed: int) -> Iterator[Fold]:
        for source in np.unique(self.sources):
            rows = np.flatnonzero(self.sources == source)
            draw = np.random.default_rng(seed)
            groups = draw.permutation(np.unique(self.groups[rows]))
            judged = np.isin(self.groups[rows], groups[: len(groups) // 2])
            kept, pool = rows[judged], draw.permutation(rows[~judged])
            if labels <= len(pool):
                own = np.sort(pool[:labels])
                # Of the source nothing is taught but the labels, and of other sources no question of it.
                others = np.setdiff1d(self._without(rows), rows)
                yield Fold(np.sort(np.concatenate([others, own])), kept, own)


def _no_rows() -> Integers:
    return np.zeros(0, np.int64)


def _balanced_folds(labels: NDArray[np.int64] | NDArray[np.str_], seed: int) -> Iterator[Integers]:
    """Return at most ten folds of about equal size; rows with one label are in one fold."""
    _, which, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    hands = min(FOLDS, len(sizes))
    load, hand_of = np.zeros(hands), np.zeros(len(sizes), np.int64)
    shuffled = np.random.default_rng(seed).permutation(len(sizes))
    for label in shuffled[np.argsort(-sizes[shuffled], kind="stable")].tolist():
        hand_of[label] = int(np.argmin(load))
        load[hand_of[label]] += sizes[label]
    for hand in range(hands):
        yield np.flatnonzero(hand_of[which] == hand)
