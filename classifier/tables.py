"""The tables beside the graph: rows of 8-bit numbers, summed to the two short rows that the graph takes.

A prompt's words hit some hundred rows of tables that are megabytes long. As nodes of the graph each look-up, conversion and
sum was a call over hundreds of rows that the next one read again; here they are a few numpy calls, or one loop where
classifier/featurize.c is compiled. The tables are a part of the trained model: tables.npz beside model.onnx.
"""

import contextlib
import ctypes
import io
import math
import mmap
from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier.asking.resolution import to_search
from classifier.compiled import CompiledFeaturizer, CompiledInputs
from classifier.features import (
    BUCKET_BITS,
    COMPILED,
    CONTEXT_WORDS,
    FIRST_WORDS,
    FLAGS,
    HALF_READ,
    PART_READINGS,
    PROBES,
    READINGS,
    SHORT_WORDS,
    STRUCTURE,
    WORD_BITS,
    Features,
    Indices,
    Part,
    extract_by_numpy,
    raw_text_before,
    request_of,
)
from classifier.manifest import MAX_TABLES_BYTES, ArtifactMalformed, read_columns
from classifier.prediction import Prompt
from classifier.tuning import SKETCH

Values = NDArray[np.float32]

TEXTS: Final = 3
"""A message, what it asks, and its question."""
ALL_READINGS: Final = READINGS + 2 * PART_READINGS
BLOCK: Final = 16
"""Tables are widened to a multiple of so many columns, which the compiled loop adds up at once."""
_WIDEST: Final = 256
_MOST_LOADS: Final = 64
_TOOLS_AT: Final = STRUCTURE.index("log_tools")
_FACTS: Final = len(STRUCTURE)
_TOOLS_FLAG: Final = slice(FLAGS.index("tools"), FLAGS.index("tools") + 1)
_SAME: Final = 1e-4
_LARGE_PAGE: Final = 2 * 2**20
_CACHE_LINE: Final = 64


class Tables(msgspec.Struct, frozen=True, kw_only=True):
    """The arrays of tables.npz. A row of `terms` or `own` is in steps that the graph knows the worth of."""

    sizes: NDArray[np.int32]
    """(3,): the number of loads, of the columns of `terms` that the graph takes, and of those that follow the loads and are summed
    over the terms of what is asked alone.
    """
    terms: NDArray[np.int8]
    """(2**BUCKET_BITS, columns): by bucket what the graph takes, loads first, then tiers; then a score for each kind of the gate;
    and in the last column the inverse document frequency.
    """
    own: NDArray[np.int8]
    """(rows, columns): further loads of a kind, the tables of all kinds one after the other."""
    own_first: NDArray[np.int32]
    """(kinds,): where each kind's table begins."""
    own_shift: NDArray[np.int32]
    """(kinds,): by how many bits a bucket is folded for it."""
    gate: Values
    """(kinds, 1 + facts + 1): how much the score among the terms counts, each fact, and a constant."""
    meaning_at: NDArray[np.uint16]
    """(2**WORD_BITS,): the row of each word."""
    meanings: NDArray[np.int8]
    """(rows, columns)"""
    needed: NDArray[np.int32]
    """(gist,): the indices of the numbers that the small networks read, of the meanings in the readings of the text, of
    what it asks and of its question, of the three's STRUCTURE, and FLAGS.
    """
    gist_bounds: Values
    """(2, gist): bounds of these numbers."""
    fact_bounds: Values
    """(2, facts): bounds of the facts for everything else."""

    @property
    def loads(self) -> int:
        """The number of loads."""
        return int(self.sizes[0])

    @property
    def summed(self) -> int:
        """The number of sums over terms that the graph takes."""
        return int(self.sizes[1])

    @property
    def tiers(self) -> int:
        """The number of those that are summed over the terms of what is asked alone."""
        return int(self.sizes[2])

    @property
    def kinds(self) -> int:
        """The number of kinds that the gate tells."""
        return len(self.own_first)

    @property
    def gist(self) -> int:
        """The length of the gist."""
        return len(self.needed)

    @property
    def of_a_kind(self) -> int:
        """The length of what each kind has in the row of sums: its loads, facts, and a constant."""
        return self.loads + _FACTS + 1

    @property
    def sums(self) -> int:
        """The length of the row of sums."""
        return self.summed + _FACTS + 1 + self.kinds * self.of_a_kind


class Inputs:
    """The graph's inputs of one prompt and the other features that serving needs: in one place, filled anew for each prompt."""

    def __init__(self, tables: Tables) -> None:
        ends = np.cumsum([tables.gist, tables.sums, SKETCH]).tolist()
        self.numbers: Values = np.zeros(ends[-1], np.float32)
        self.address = ctypes.c_void_p(self.numbers.ctypes.data)
        self.gist = self.numbers[None, : ends[0]]
        """(1, gist): the small networks' inputs."""
        self.sums = self.numbers[None, ends[0] : ends[1]]
        """(1, sums): sums over terms, facts, whether there are tools; and for each kind its own sums, facts and 1, which are 0
        but for the likeliest kind's, and count as far as the gate is sure of it.
        """
        self.sketch = self.numbers[ends[1] : ends[2]]
        self.asked = 0, 0
        """See `Features`."""
        self.tools = False
        """True if tools are on offer."""


LookUp = Callable[[Prompt, Inputs], None]


def look_up_features(tables: Tables, features: Features, inputs: Inputs) -> None:
    """Look up the graph's inputs for these features."""
    inputs.gist[0] = _gist(tables, features)
    inputs.sums[0] = _sums(tables, features)
    inputs.sketch[:] = features.sketch
    inputs.asked = features.asked
    inputs.tools = bool(features.flags[_TOOLS_FLAG])


def _gist(tables: Tables, features: Features) -> Values:
    parts = features.ask, features.question
    known = [
        features.readings @ _meant(tables, np.concatenate((features.words, features.before))),
        *(part.readings @ _meant(tables, part.words) for part in parts),
    ]
    facts = (features.structure, *(part.structure for part in parts), features.flags)
    return _within(np.concatenate([*map(np.ravel, known), *facts]).take(tables.needed), tables.gist_bounds)


def _meant(tables: Tables, words: Indices) -> Values:
    return tables.meanings.take(tables.meaning_at.take(words), axis=0).astype(np.float32)


def _within(values: Values, bounds: Values) -> Values:
    low, high = bounds
    found: Values = np.minimum(np.maximum(values, low), high)
    return found


def _terms(tables: Tables, part: Features | Part) -> tuple[Values, Values]:
    """Return the terms' weights, and the weighed sum of their rows."""
    hit = tables.terms.take(part.indices, axis=0).astype(np.float32)
    weights = part.sublinear * hit[:, -1]
    weights /= max(math.sqrt(weights @ weights), _TINY)
    found: Values = (weights @ hit).astype(np.float32, copy=False)
    return weights, found


def _sums(tables: Tables, features: Features) -> Values:
    weights, found = _terms(tables, features)
    _, of_ask = _terms(tables, features.ask)
    found[tables.loads : tables.loads + tables.tiers] = of_ask[tables.loads : tables.loads + tables.tiers]
    facts = _within(features.structure, tables.fact_bounds)
    summed, gate = tables.summed, tables.gate
    scores = gate[:, 0] * found[summed : summed + tables.kinds] + gate[:, 1:-1] @ facts + gate[:, -1]
    kind = int(scores.argmax())
    sure = 1 / np.exp(scores - scores[kind]).sum()
    own_at = tables.own_first[kind] + (features.indices >> tables.own_shift[kind])
    own = weights @ tables.own.take(own_at, axis=0).astype(np.float32)
    of_kinds = np.zeros((tables.kinds, tables.of_a_kind), np.float32)
    np.multiply(np.concatenate((own[: tables.loads], facts, _ONE)), sure, out=of_kinds[kind])
    return np.concatenate((found[:summed], facts, features.flags[_TOOLS_FLAG], of_kinds.ravel()))


_ONE: Final = np.ones(1, np.float32)
_TINY: Final = float(np.finfo(np.float32).tiny)


def look_up_in(tables: Tables, compiled: CompiledFeaturizer | None = COMPILED) -> LookUp:
    """Return the function from a prompt to the graph's inputs: compiled where it can be and gives numpy's numbers."""
    by_numpy = _by_numpy(tables)
    if compiled is None:
        return by_numpy
    found = _compiled(tables, compiled)
    return found if _are_same(tables, found, by_numpy) else by_numpy


def _by_numpy(tables: Tables) -> LookUp:
    return lambda prompt, inputs: look_up_features(tables, extract_by_numpy(prompt), inputs)


def _are_same(tables: Tables, one: LookUp, other: LookUp) -> bool:
    places = Inputs(tables), Inputs(tables)
    for prompt in PROBES:
        for look_up, inputs in zip((one, other), places, strict=True):
            look_up(prompt, inputs)
        found, expected = places
        if found.asked != expected.asked or not np.allclose(found.numbers, expected.numbers, rtol=_SAME, atol=_SAME):
            return False
    return True


def _compiled(tables: Tables, compiled: CompiledFeaturizer) -> LookUp:
    read = _with_library(tables, compiled)

    def look_up(prompt: Prompt, inputs: Inputs) -> None:
        before = raw_text_before(prompt) if prompt.before else b""
        inputs.asked = read(*to_search(prompt), before, request_of(prompt), inputs.address)
        inputs.tools = prompt.tools > 0

    return look_up


def _with_library(tables: Tables, compiled: CompiledFeaturizer) -> CompiledInputs:
    return compiled.with_model(
        {
            "terms": tables.terms,
            "own": tables.own,
            "meanings": tables.meanings,
            "meaning_at": tables.meaning_at,
            "own_first": tables.own_first,
            "own_shift": tables.own_shift,
            "needed": tables.needed,
            "gate": tables.gate,
            "gist_bounds": tables.gist_bounds,
            "fact_bounds": tables.fact_bounds,
        },
        {
            "terms_width": tables.terms.shape[1],
            "own_width": tables.own.shape[1],
            "meanings_width": tables.meanings.shape[1],
            "loads": tables.loads,
            "summed": tables.summed,
            "tiers": tables.tiers,
            "kinds": tables.kinds,
            "gist": tables.gist,
            "tools_at": _TOOLS_AT,
            "short_words": SHORT_WORDS,
            "context_words": CONTEXT_WORDS,
            "half_read": HALF_READ,
            "first_words": FIRST_WORDS,
        },
    )


def widened(table: NDArray[np.int8], more: int = 0) -> NDArray[np.int8]:
    """Return the table with further columns of 0, `more` at least, so that their number is a multiple of BLOCK."""
    columns = table.shape[1] + more
    return np.pad(table, ((0, 0), (0, more + -columns % BLOCK)))


# From the short ones to the long ones: each is read into memory that is then given back, since none before was as long.
_STORED: Final = {
    "sizes": np.int32,
    "own_first": np.int32,
    "own_shift": np.int32,
    "needed": np.int32,
    "fact_bounds": np.float32,
    "gist_bounds": np.float32,
    "gate": np.float32,
    "meaning_at": np.uint16,
    "meanings": np.int8,
    "terms": np.int8,
    "own": np.int8,
}


def write_tables(tables: Tables) -> bytes:
    """Return the tables as an .npz file; the same tables give the same bytes."""
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {
        name: np.ascontiguousarray(getattr(tables, name), _STORED[name]) for name in Tables.__struct_fields__
    }
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def read_tables(content: bytes, loads: int) -> Tables:
    """Decode tables for so many loads. Raises ArtifactMalformed where they do not fit each other or this code, for the compiled
    loop reads where they say.
    """
    found = read_columns(content, "the tables", list(_STORED.items()), _Pages())
    tables = Tables(**dict(zip(_STORED, found, strict=True)))
    for fits, what in _demands(tables, loads):
        # In their order: what a later one looks at, an earlier one has found to be there.
        if not fits():
            raise ArtifactMalformed(f"the tables do not fit: {what}")
    return tables


def _demands(tables: Tables, loads: int) -> list[tuple[Callable[[], bool], str]]:
    shapes = {name: getattr(tables, name).shape for name in _STORED}
    buckets, kinds, gist = 1 << BUCKET_BITS, shapes["own_first"], shapes["needed"]
    wide = (tables.terms, tables.own, tables.meanings)
    return [
        (lambda: shapes["sizes"] == (3,) and tables.loads == loads <= _MOST_LOADS, f"there are {loads} loads"),
        (lambda: all(each.ndim == 2 and len(each) for each in wide), "a table has rows and columns"),  # noqa: PLR2004
        (
            lambda: all(each.shape[1] % BLOCK == 0 and 0 < each.shape[1] <= _WIDEST for each in wide),
            f"a table's width is a multiple of {BLOCK}, {_WIDEST} at most",
        ),
        (
            lambda: len(kinds) == 1 and kinds[0] > 0 and kinds == shapes["own_shift"],
            "each kind has a place and a shift",
        ),
        (
            lambda: (
                len(tables.terms) == buckets
                and loads <= loads + tables.tiers <= tables.summed <= shapes["terms"][1] - 1 - tables.kinds
            ),
            "each bucket has loads, tiers, scores of kinds, and its frequency",
        ),
        (lambda: loads <= shapes["own"][1], "each kind has every load"),
        (
            lambda: bool(
                (tables.own_first >= 0).all()
                and (tables.own_shift >= 0).all()
                and (tables.own_shift <= BUCKET_BITS).all()
                and (tables.own_first.astype(np.int64) + (buckets >> tables.own_shift) <= len(tables.own)).all()
            ),
            "each kind's table lies within the whole",
        ),
        (lambda: shapes["gate"] == (tables.kinds, 1 + _FACTS + 1), "the gate has a weight for each fact"),
        (lambda: shapes["meaning_at"] == (1 << WORD_BITS,), "each word has a place"),
        (lambda: int(tables.meaning_at.max()) < len(tables.meanings), "each word's row is there"),
        (
            lambda: len(gist) == 1 and gist[0] > 0 and shapes["gist_bounds"] == (2, *gist),
            "each number of the gist has two bounds",
        ),
        (
            lambda: (
                int(tables.needed.min()) >= 0
                and int(tables.needed.max()) < ALL_READINGS * shapes["meanings"][1] + TEXTS * _FACTS + len(FLAGS)
            ),
            "each number of the gist is known",
        ),
        (lambda: shapes["fact_bounds"] == (2, _FACTS), "each fact has two bounds"),
        (
            lambda: bool(
                all(np.isfinite(each).all() for each in (tables.gate, tables.gist_bounds, tables.fact_bounds))
            ),
            "every number is finite",
        ),
    ]


class _Pages:
    """A place for arrays one after the other in pages of their own, as large ones as the system gives.

    A short row then lies in one line of the processor's cache and not across two, and what was needed to read the file can be
    given back, for nothing that stays lies behind it. A score reads some thousand rows all over the tables: on pages of 4 KiB
    nearly each is another page, which the processor has forgotten wherever a request did something else before.
    """

    def __init__(self) -> None:
        room = mmap.mmap(-1, MAX_TABLES_BYTES + 2 * _LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        # Untouched, the room behind the last array takes no memory.
        self._room = np.frombuffer(room, np.uint8)
        self._used = -self._room.ctypes.data % _LARGE_PAGE
        with contextlib.suppress(AttributeError, OSError):
            # Only Linux has it, and only where it is not switched off.
            room.madvise(mmap.MADV_HUGEPAGE)

    def __call__(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return a copy of the array, where a line of the cache begins."""
        begin, self._used = self._used, self._used + array.nbytes + -array.nbytes % _CACHE_LINE
        placed: NDArray[Any] = self._room[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
        placed[...] = array
        return placed
