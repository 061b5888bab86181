"""What is looked up for the graph: rows of 8-bit tables, summed to the two short rows that the graph takes.

A prompt's words hit some hundred rows of tables that are megabytes long. As nodes of the graph each look-up, conversion and
sum was a call over hundreds of rows that the next one read again; here they are a few numpy calls, or one loop where
classifier/words.c is compiled. The tables are a part of the trained model: tables.npz beside model.onnx.
"""

import io
from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier.compiled import CompiledInputs, CompiledWords
from classifier.features import (
    BUCKET_BITS,
    COMPILED,
    CONTEXT_WORDS,
    FLAGS,
    HALF_READ,
    PROBES,
    SHORT_WORDS,
    STRUCTURE,
    WORD_BITS,
    Features,
    extract_by_numpy,
    read_text,
    request_of,
    text_before,
)
from classifier.manifest import ArtifactMalformed, read_columns
from classifier.prediction import Prompt
from classifier.tuning import SKETCH

Values = NDArray[np.float32]

BLOCK: Final = 16
"""Tables are widened to a multiple of so many columns, which the compiled loop adds up at once."""
_WIDEST: Final = 256
_MOST_LOADS: Final = 64
_READINGS: Final = 4
_LINE_BYTES: Final = 64
_TOOLS_AT: Final = STRUCTURE.index("log_tools")
_FACTS: Final = len(STRUCTURE)
_TOOLS_FLAG: Final = slice(FLAGS.index("tools"), FLAGS.index("tools") + 1)
_ASKED: Final = 2
_SAME: Final = 1e-4


class Tables(msgspec.Struct, frozen=True, kw_only=True):
    """The arrays of tables.npz. A row of `terms` or `own` is in steps that the graph knows the worth of."""

    sizes: NDArray[np.int32]
    """(2,): the number of loads, and of the columns of `terms` that the graph takes."""
    terms: NDArray[np.int8]
    """(2**BUCKET_BITS, columns): by bucket what the graph takes, loads first; then a score for each kind of the gate; and in the
    last column the inverse document frequency.
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
    """(gist,): which numbers the small networks read, of the meanings in four readings, STRUCTURE and FLAGS."""
    gist_bounds: Values
    """(2, gist): to what these are held."""
    fact_bounds: Values
    """(2, facts): to what facts are held for all else."""

    @property
    def loads(self) -> int:
        """The number of loads."""
        return int(self.sizes[0])

    @property
    def summed(self) -> int:
        """The number of sums over terms that the graph takes."""
        return int(self.sizes[1])

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


class Inputs(msgspec.Struct, frozen=True):
    """What the graph takes of one prompt, and what else is needed of its features."""

    gist: Values
    """(1, gist): what the small networks read."""
    sums: Values
    """(1, sums): sums over terms, facts, whether there are tools; and for each kind its own sums, facts and 1, which are 0 but
    for the likeliest kind's, and count as far as the gate is sure of it.
    """
    sketch: Values
    asked: tuple[int, int]
    """See `Features`."""
    tools: bool


InputsOf = Callable[[Prompt], Inputs]


def inputs_by_numpy(tables: Tables, features: Features) -> Inputs:
    """Looks up what the graph takes for these features."""
    return Inputs(
        _gist(tables, features)[None],
        _sums(tables, features)[None],
        features.sketch,
        features.asked,
        features.structure.item(_TOOLS_AT) > 0,
    )


def _gist(tables: Tables, features: Features) -> Values:
    read = np.concatenate((features.words, features.before))
    meant = tables.meanings.take(tables.meaning_at.take(read), axis=0).astype(np.float32)
    known = np.concatenate(((features.readings @ meant).ravel(), features.structure, features.flags))
    found: Values = np.clip(known.take(tables.needed), *tables.gist_bounds)
    return found


def _sums(tables: Tables, features: Features) -> Values:
    hit = tables.terms.take(features.indices, axis=0).astype(np.float32)
    weights = features.sublinear * hit[:, -1]
    weights /= max(float(np.linalg.norm(weights)), _TINY)
    found = weights @ hit
    facts = np.clip(features.structure, *tables.fact_bounds)
    summed, gate = tables.summed, tables.gate
    scores = gate[:, 0] * found[summed : summed + tables.kinds] + gate[:, 1:-1] @ facts + gate[:, -1]
    kind = int(scores.argmax())
    sure = 1 / np.exp(scores - scores[kind]).sum()
    own_at = tables.own_first[kind] + (features.indices >> tables.own_shift[kind])
    own = weights @ tables.own.take(own_at, axis=0).astype(np.float32)
    of_kinds = np.zeros((tables.kinds, tables.of_a_kind), np.float32)
    of_kinds[kind] = sure * np.concatenate((own[: tables.loads], facts, _ONE))
    return np.concatenate((found[:summed], facts, features.flags[_TOOLS_FLAG], of_kinds.ravel()))


_ONE: Final = np.ones(1, np.float32)
_TINY: Final = float(np.finfo(np.float32).tiny)


def inputs_of(tables: Tables, compiled: CompiledWords | None = COMPILED) -> InputsOf:
    """The way from a prompt to what the graph takes: compiled where it can be and gives numpy's numbers."""
    by_numpy = _by_numpy(tables)
    if compiled is None:
        return by_numpy
    found = _compiled(tables, compiled)
    return found if all(_are_same(found(prompt), by_numpy(prompt)) for prompt in PROBES) else by_numpy


def _by_numpy(tables: Tables) -> InputsOf:
    return lambda prompt: inputs_by_numpy(tables, extract_by_numpy(prompt))


def _are_same(one: Inputs, other: Inputs) -> bool:
    near = all(
        np.allclose(a, b, rtol=_SAME, atol=_SAME)
        for a, b in ((one.gist, other.gist), (one.sums, other.sums), (one.sketch, other.sketch))
    )
    return near and (one.asked, one.tools) == (other.asked, other.tools)


def _compiled(tables: Tables, compiled: CompiledWords) -> InputsOf:
    gist, sums = tables.gist, tables.gist + tables.sums
    read = _with_library(tables, compiled, sums + SKETCH + _ASKED)
    tools_at = gist + tables.summed + _FACTS

    def inputs(prompt: Prompt) -> Inputs:
        before = text_before(prompt) if prompt.before else b""
        out = read(read_text(prompt), before, request_of(prompt))
        number, unit = out[sums + SKETCH :].tolist()
        return Inputs(
            out[None, :gist],
            out[None, gist:sums],
            out[sums : sums + SKETCH],
            (int(number), int(unit)),
            out.item(tools_at) > 0,
        )

    return inputs


def _with_library(tables: Tables, compiled: CompiledWords, size: int) -> CompiledInputs:
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
            "kinds": tables.kinds,
            "gist": tables.gist,
            "tools_at": _TOOLS_AT,
            "short_words": SHORT_WORDS,
            "context_words": CONTEXT_WORDS,
            "half_read": HALF_READ,
        },
        size,
    )


def widened(table: NDArray[np.int8], more: int = 0) -> NDArray[np.int8]:
    """The table with further columns of 0, `more` at least, so that their number is a multiple of BLOCK."""
    columns = table.shape[1] + more
    return np.pad(table, ((0, 0), (0, more + -columns % BLOCK)))


_STORED: Final = {
    "sizes": np.int32,
    "terms": np.int8,
    "own": np.int8,
    "own_first": np.int32,
    "own_shift": np.int32,
    "gate": np.float32,
    "meaning_at": np.uint16,
    "meanings": np.int8,
    "needed": np.int32,
    "gist_bounds": np.float32,
    "fact_bounds": np.float32,
}


def write_tables(tables: Tables) -> bytes:
    """The tables as an .npz file; the same tables give the same bytes."""
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {
        name: np.ascontiguousarray(getattr(tables, name), dtype) for name, dtype in _STORED.items()
    }
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def read_tables(content: bytes, loads: int) -> Tables:
    """Decodes tables for so many loads. Raises ArtifactMalformed where they do not fit each other or this code: the compiled
    loop reads where they say.
    """
    found = read_columns(content, "the tables", list(_STORED.items()))
    tables = Tables(**dict(zip(_STORED, map(_on_lines, found), strict=True)))
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
        (lambda: shapes["sizes"] == (2,) and tables.loads == loads <= _MOST_LOADS, f"there are {loads} loads"),
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
            lambda: len(tables.terms) == buckets and loads <= tables.summed <= shapes["terms"][1] - 1 - tables.kinds,
            "each bucket has loads, scores of kinds, and its frequency",
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
                and int(tables.needed.max()) < _READINGS * shapes["meanings"][1] + _FACTS + len(FLAGS)
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


def _on_lines(array: NDArray[Any]) -> NDArray[Any]:
    """The array where a line of the processor's cache begins: a short row then lies in one line and not across two."""
    room = np.empty(array.nbytes + _LINE_BYTES, np.uint8)
    begin = -room.ctypes.data % _LINE_BYTES
    placed = room[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    placed[...] = array
    return placed
