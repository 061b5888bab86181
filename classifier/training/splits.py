"""Which prompts are taught and which are kept aside, and the proof that no question is on both sides."""

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
"""`own-N`: taught on the other sources and on N labels of the prompts' own source, judged on the other half of it."""

SPLITS: Final[tuple[Split, ...]] = get_args(Split)
OWN: Final[dict[Split, int]] = {"own-0": 0, "own-50": 50, "own-200": 200, "own-1000": 1000}
FOLDS: Final = 10
FEWEST_CATEGORIES: Final = 5
"""A source with fewer categories than this has nothing that could be left out."""
STEMS_FILE: Final = "training_stems.bin"
MAX_STEMS_BYTES: Final = 8 * 2**20

_FIRST_CHOICE: Final = re.compile(r"(?:^|\s)\(?A[.):]\s")
_SECOND_CHOICE: Final = re.compile(r"\s\(?B[.):]\s")
_WORD: Final = re.compile(r"[^\W_]+")
_STEM_CHARS: Final = 400
_TOLD: Final = 10


class NotDisjoint(Exception):
    """A question that was taught is also one that is judged: no number may come of it."""


class Fold(msgspec.Struct, frozen=True):
    """Row numbers. `own` are the taught rows that stand for labels of the judged source's own traffic."""

    taught: Integers
    kept: Integers
    own: Integers


def normalised(text: str) -> str:
    """Words and numbers alone: case, white space, signs and ways to write a letter make no other prompt."""
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    words = " ".join(_WORD.findall(plain))
    # What is all signs has only its signs to be known by.
    return words or text.strip()


def stem(text: str) -> str:
    """A question without its choices: the same question in two sources has one stem."""
    first = _FIRST_CHOICE.search(text)
    if first and _SECOND_CHOICE.search(text, first.end() - 1) and _WORD.search(text, 0, first.start()):
        text = text[: first.start()]
    return normalised(text)[:_STEM_CHARS].strip()


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def hashes_of(texts: Sequence[str]) -> tuple[Hashes, Hashes]:
    """Of each text the hash of its stem and of the whole, both normalised."""
    stems = np.fromiter((_hash(stem(text)) for text in texts), np.uint64, len(texts))
    whole = np.fromiter((_hash(normalised(text)) for text in texts), np.uint64, len(texts))
    return stems, whole


def questions(stems: Hashes, whole: Hashes) -> Integers:
    """A number for each question: two prompts with one stem, or with one text, are the same question."""
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
    """Raises NotDisjoint, naming rows of `kept`, when a question of theirs was taught."""
    both = [np.isin(mine, theirs) for mine, theirs in zip(kept, taught, strict=True)]
    rows = np.flatnonzero(both[0] | both[1])
    if len(rows):
        named = ", ".join(map(str, rows[:_TOLD].tolist()))
        more = f" and {len(rows) - _TOLD} more" if len(rows) > _TOLD else ""
        raise NotDisjoint(f"{len(rows)} kept prompts are questions that were taught: rows {named}{more}")


def stem_hashes(texts: Sequence[str]) -> Hashes:
    """Sorted and each once: what a model tells of its training prompts, for nobody can read a prompt out of it."""
    return np.unique(hashes_of(texts)[0])


def write_stems(folder: Path, stems: Hashes) -> None:
    (folder / STEMS_FILE).write_bytes(np.unique(stems).astype("<u8").tobytes())


def read_stems(folder: Path) -> Hashes | None:
    """The training prompts' hashes beside the model; None when there are none."""
    path = folder / STEMS_FILE
    try:
        with path.open("rb") as file:
            content = file.read(MAX_STEMS_BYTES)
    except FileNotFoundError:
        return None
    return np.frombuffer(content[: len(content) // 8 * 8], "<u8").astype(np.uint64)


def unseen(texts: Sequence[str], taught: Hashes) -> NDArray[np.bool_]:
    """Which of the texts are no question that was taught."""
    return ~np.isin(hashes_of(texts)[0], taught)


class Questions(msgspec.Struct, frozen=True):
    """What splitting needs to know of a corpus: where each prompt comes from, and which question it is."""

    sources: NDArray[np.str_]
    categories: NDArray[np.str_]
    groups: Integers
    stems: Hashes
    whole: Hashes

    def folds(self, split: Split, seed: int) -> Iterator[Fold]:
        """The folds of a split, each proven before it is given out. A row that nothing can judge is kept in none."""
        ways = {"10-fold": self._in_domain, "leave-category-out": self._categories, "leave-source-out": self._sources}
        for fold in ways[split](seed) if split in ways else self._own(OWN[split], seed):
            self.prove(fold)
            yield fold

    def prove(self, fold: Fold) -> None:
        sides = [(self.stems[rows], self.whole[rows]) for rows in (fold.taught, fold.kept)]
        prove_hashes_disjoint(sides[0], sides[1])

    def _without(self, kept: Integers) -> Integers:
        """Every row that is not kept, nor another wording or copy of what is kept."""
        return np.flatnonzero(~np.isin(self.groups, self.groups[kept]))

    def _in_domain(self, seed: int) -> Iterator[Fold]:
        for kept in _dealt(self.groups, seed):
            yield Fold(self._without(kept), kept, _none())

    def _categories(self, seed: int) -> Iterator[Fold]:
        """Ten folds of each source's categories, all sources at once; sources of few categories are only taught."""
        folds: list[list[Integers]] = [[] for _ in range(FOLDS)]
        for source in np.unique(self.sources):
            rows = np.flatnonzero(self.sources == source)
            if len(np.unique(self.categories[rows])) >= FEWEST_CATEGORIES:
                for fold, kept in zip(folds, _dealt(self.categories[rows], seed), strict=False):
                    fold.append(rows[kept])
        for parts in filter(None, folds):
            kept = np.sort(np.concatenate(parts))
            yield Fold(self._without(kept), kept, _none())

    def _sources(self, _seed: int) -> Iterator[Fold]:
        for source in np.unique(self.sources):
            kept = np.flatnonzero(self.sources == source)
            yield Fold(self._without(kept), kept, _none())

    def _own(self, labels: int, seed: int) -> Iterator[Fold]:
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


def _none() -> Integers:
    return np.zeros(0, np.int64)


def _dealt(labels: NDArray[np.int64] | NDArray[np.str_], seed: int) -> Iterator[Integers]:
    """Rows in at most ten hands of about equal size; rows with one label are in one hand."""
    _, which, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    hands = min(FOLDS, len(sizes))
    load, hand_of = np.zeros(hands), np.zeros(len(sizes), np.int64)
    shuffled = np.random.default_rng(seed).permutation(len(sizes))
    for label in shuffled[np.argsort(-sizes[shuffled], kind="stable")].tolist():
        hand_of[label] = int(np.argmin(load))
        load[hand_of[label]] += sizes[label]
    for hand in range(hands):
        yield np.flatnonzero(hand_of[which] == hand)
