"""The table of word meanings: a row of numbers for each known word, from a static embedding, ratings and lexicons.

The embedding is wordllama's (256 dimensions, MIT), reduced by principal components and weighted by how rare a word is
(Arora, Liang and Ma 2017). Words of other languages have the row of their English counterpart, by a small lexicon each.
Every row ends with what a word does in a request (a condition, a scope, an order of steps, ...), by a short list for each of
these classes, and how hard requests with the word tend to be, by a rating of some 7,500 words.
"""

import collections
import functools
import importlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.linear_model import Ridge

from classifier.features import WORD_BITS, meaning_of, words_of

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Integers = NDArray[np.int64]

FOLDER: Final = Path(__file__).parent / "lexicon"
LANGUAGES: Final = ("de", "es", "fr", "zh")
COMPONENTS: Final = 45
CLASSES: Final = 15
"""Columns of the classes of classes.tsv."""
GRADED: Final = CLASSES + 3
"""Columns of the classes, and of the rating: how hard, how easy, and whether the word was rated at all."""
AVERAGE_RATING: Final = 5.0
"""The mean rating; the raters' 4 and 5 both say that a word tells nothing."""
RARE: Final = 1e-2
"""The weight of a word of frequency f is RARE / (RARE + f)."""
FEWEST_TEXTS: Final = 3
LONGEST: Final = 40
_LEVELS: Final = 127


class WordTable(msgspec.Struct, frozen=True):
    """Rows of meanings: COMPONENTS, GRADED, and 1 for a known word. Row 0, of words that are not known, is all 0."""

    index: NDArray[np.uint16]
    """(2**WORD_BITS,): the row of each bucket."""
    rows: NDArray[np.int8]
    """(rows, columns): each column in units of its own."""

    @property
    def columns(self) -> int:
        """The number of columns."""
        return len(self.rows[0])


@functools.cache
def embedding() -> tuple[list[str], Any]:
    """Return the whole words of wordllama's tokenizer, and the model itself."""
    wordllama: Any = importlib.import_module("wordllama")
    # The package looks for its tokenizer in another folder than it ships it in.
    model = wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)
    whole = [token[1:].lower() for token in model.tokenizer.get_vocab() if token.startswith("\u2581")]
    return sorted({word for word in whole if word.isalpha() and word.isascii()}), model


def vectors(words: Sequence[str]) -> Singles:
    """Return (words, 256): wordllama's vectors."""
    _, model = embedding()
    found: Singles = model.embed(list(words), norm=False)
    return found


def ratings(folder: Path = FOLDER) -> dict[str, int]:
    """Return the difficulty of requests with a word, 0 to 9, by word."""
    return {word: int(digit) for word, digit in _pairs(folder / "ratings.tsv")}


def classes(folder: Path = FOLDER) -> dict[str, set[str]]:
    """Return the words of each class."""
    found: dict[str, set[str]] = {}
    for name, word in _pairs(folder / "classes.tsv"):
        found.setdefault(name, set()).add(word)
    return found


def lexicon(folder: Path = FOLDER) -> dict[str, list[str]]:
    """Return the English counterparts of words of other languages."""
    found: dict[str, list[str]] = collections.defaultdict(list)
    for language in LANGUAGES:
        for word, english in _pairs(folder / f"{language}.tsv"):
            found[word].append(english)
    return found


def _pairs(path: Path) -> Iterable[tuple[str, str]]:
    if not path.is_file():
        return
    for line in path.read_text().splitlines():
        first, _, second = line.partition("\t")
        if first.strip() and second.strip():
            yield first.strip().lower(), second.strip().lower()


def built(texts: Iterable[str], *, components: int = COMPONENTS, rated: bool = True) -> WordTable:
    """Return the table for the words of these texts, of the embedding's own vocabulary, the ratings and the lexicons."""
    counts: collections.Counter[str] = collections.Counter()
    documents = 0
    for text in texts:
        counts.update(set(words_of(text)))
        documents += 1
    graded = ratings() if rated else {}
    whole, _ = embedding()
    foreign = _capital_too({word: english for word, english in lexicon().items() if word not in graded})
    known = {word for word, count in counts.items() if count >= FEWEST_TEXTS} | set(whole) | graded.keys()
    known.update(*foreign.values(), *classes().values())
    # The vector of a word that the lexicons know says little, for the embedding is of English.
    words = sorted(word for word in known - foreign.keys() if word and len(word) < LONGEST)
    share = np.array([counts[word] for word in words]) / max(1, documents)
    return _table(words, _meaning(words, share, components, graded), foreign, _order(words, foreign, graded, counts))


def _capital_too(foreign: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return the words with, where the first letter is none of ASCII, their form at a sentence's start: features fold ASCII
    alone.
    """
    capital = {word[0].upper() + word[1:]: english for word, english in foreign.items() if not word[0].isascii()}
    return {**capital, **foreign}


def _order(
    words: Sequence[str], foreign: Iterable[str], graded: Mapping[str, int], counts: Mapping[str, int]
) -> list[str]:
    """Return all words, those first that keep a bucket which two share: rated ones, lexicons', others; frequent before
    rare.
    """
    ranks = {**dict.fromkeys(words, 2), **dict.fromkeys(foreign, 1), **dict.fromkeys(graded, 0)}
    return sorted(ranks, key=lambda word: (ranks[word], -counts[word], word))


def _meaning(words: Sequence[str], share: Floats, components: int, graded: Mapping[str, int]) -> Singles:
    raw = vectors(words).astype(np.float64)
    weight = RARE / (RARE + share)
    raw -= np.average(raw, axis=0, weights=np.minimum(share + 1e-5, 0.05))
    raw /= np.maximum(np.linalg.norm(raw, axis=1, keepdims=True), 1e-6)
    frequent = share > 2e-4
    reduced = PCA(components, random_state=0).fit(raw[frequent] if frequent.sum() > 2 * components else raw)
    # Half whitened: the first components say what most words are about, the later ones tell them apart.
    plain = reduced.transform(raw) / reduced.explained_variance_**0.25
    plain /= np.abs(plain).std()
    found = [plain * weight[:, None], _classed(words), _rated(words, raw, graded)]
    return np.concatenate(found, axis=1).astype(np.float32)


def _classed(words: Sequence[str]) -> Floats:
    """Return (words, CLASSES): 1 for each class of a word."""
    members = list(classes().values())
    return np.array([[word in each for each in members] for word in words], np.float64)


def _rated(words: Sequence[str], raw: Floats, graded: Mapping[str, int]) -> Floats:
    """Return (words, GRADED): the rating, guessed from the vector where a word was not rated."""
    told = np.array([graded.get(word, -1) for word in words])
    if not (told >= 0).any():
        return np.zeros((len(words), GRADED))
    guess = Ridge(alpha=10.0).fit(raw[told >= 0], told[told >= 0] - AVERAGE_RATING).predict(raw)
    off = np.where(told >= 0, told - AVERAGE_RATING, guess)
    return np.stack([np.maximum(0, off) / 4, np.maximum(0, -off) / 5, told >= 0], axis=1)


def _table(
    words: Sequence[str], meaning: Singles, foreign: Mapping[str, Sequence[str]], order: Iterable[str]
) -> WordTable:
    scale = np.maximum(np.abs(meaning).max(axis=0), 1e-6) / _LEVELS
    known = np.ones((len(words), 1), np.int8)
    rows = list(np.concatenate([np.rint(meaning / scale).astype(np.int8), known], axis=1))
    rows.insert(0, np.zeros(meaning.shape[1] + 1, np.int8))
    at = {word: number for number, word in enumerate(words, 1)}
    for word, english in foreign.items():
        same = [at[each] for each in english if each in at]
        if same:
            at[word] = len(rows)
            rows.append(np.rint(np.mean([rows[each] for each in same], axis=0)).astype(np.int8))
    if len(rows) > np.iinfo(np.uint16).max:
        raise ValueError("the table has more rows than its index can name")
    index = np.zeros(2**WORD_BITS, np.uint16)
    for word in order:
        for bucket in _buckets(word):
            index[bucket] = index[bucket] or at.get(word, 0)
    return WordTable(index, np.stack(rows))


def _buckets(word: str) -> Integers:
    """Return the buckets that have a word's meaning: its own, or of a Chinese word those of its pairs of characters."""
    found = meaning_of(word)
    # The single characters come first, and mean too much to mean anything; one alone has no pair.
    return found[min((len(found) + 1) // 2, len(found) - 1) :].astype(np.int64)
