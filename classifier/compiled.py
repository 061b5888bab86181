"""The compiled part of a score, where the installation had a C compiler: classifier/featurize.c, called by ctypes.

`load` gives None without it; numpy then does the same.

No types of arguments are declared, for to convert each by its declared type takes longer than the call: a number goes as an int of C, bytes
as their address, and every other address has to be an object of ctypes.
"""

import ctypes
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

LIBRARY: Final = Path(__file__).with_name("_featurize.so")
_SOURCE: Final = "featurize.c"
_CHECKSUM: Final = ".sha256"
"""The suffix of the file beside the library that hatch_build.py writes."""
_HASH_CHARS: Final = 64
_FACTS_AT: Final = 5
_SKETCH_AT: Final = 34
_TEXTS: Final = 3
_CLASSES: Final = 16
_UNITS: Final = 8


Request = tuple[int, int, int, bool, int, int]
"""Facts of a request beside its text: turns, tools, images, JSON wanted, and characters of instructions and of history."""


AskingTables = tuple[Mapping[str, NDArray[Any]], Mapping[str, int]]
"""Arrays and numbers by which what is asked is found; see classifier/asking."""


class _Addresses(ctypes.Structure):
    """Addresses of arrays and some numbers, for the library. The arrays stay as long as this does, or what refers to it."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]], numbers: Mapping[str, float]) -> None:
        self.kept = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        super().__init__(**{name: array.ctypes.data for name, array in self.kept.items()}, **numbers)


_ASKING_NUMBERS: Final = (
    "label_mask",
    "tag_mask",
    "word_mask",
    "last_mask",
    "weight_bits",
    "scored",
    "long_system",
    "margin",
    "system_margin",
    "surely_beside",
    "less",
    "compared",
    "a_shared_word",
    "long_material",
    "pasted",
    "signed_units",
    "signature",
    "fewest_telling",
    "sure",
    "told",
    "least_task",
    "sure_task",
    "task_share",
    "least_share",
)


class _Asking(_Addresses):
    _fields_ = [
        *(
            (name, ctypes.c_void_p)
            for name in ("weights", "system_weights", "label_keys", "tag_keys", "word_keys", "last_keys")
        ),
        *(
            (name, ctypes.c_void_p)
            for name in (
                "label_values",
                "tag_values",
                "word_values",
                "last_values",
                "lookalike",
                "alike",
                "common",
                "near",
                "inputs",
                "fill",
            )
        ),
        *((name, ctypes.c_int32) for name in _ASKING_NUMBERS),
    ]


class _Tables(_Addresses):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("value", "ideograph", "cue", "is_cue", "log_more", "sublinear")),
        *((name, ctypes.c_void_p) for name in ("power", "inverse", "tally", "marks", "mark_at", "asking")),
        *((name, ctypes.c_uint64) for name in ("pair", "finish", "placing")),
        *((name, ctypes.c_int32) for name in ("word_bits", "head_words", "tail_words", "head_bytes", "tail_bytes")),
        *((name, ctypes.c_int32) for name in ("sketch", "searched", "marks_known", "long_quote", "long_sentence")),
    ]


_MODEL_TABLES: Final = (
    "terms",
    "own",
    "meanings",
    "meaning_at",
    "own_first",
    "own_shift",
    "needed",
    "gate",
    "gist_bounds",
    "fact_bounds",
)
_MODEL_NUMBERS: Final = (
    "terms_width",
    "own_width",
    "meanings_width",
    "loads",
    "summed",
    "tiers",
    "kinds",
    "gist",
    "tools_at",
    "short_words",
    "context_words",
    "first_words",
)


class _Model(_Addresses):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in _MODEL_TABLES),
        *((name, ctypes.c_int32) for name in _MODEL_NUMBERS),
        ("half_read", ctypes.c_double),
    ]


def _address(array: NDArray[Any]) -> ctypes.c_void_p:
    """Return the address of an array, which has to stay as long as the library is called with it."""
    return ctypes.c_void_p(array.ctypes.data)


Found = tuple[
    NDArray[np.int32],
    NDArray[np.intp],
    NDArray[np.float32],
    NDArray[np.float32],
    int,
    NDArray[np.int32],
    NDArray[np.float32],
    tuple[int, int],
]


class CompiledFeaturizer:
    """The library with the tables that it reads."""

    def __init__(
        self,
        library: ctypes.PyDLL,
        tables: Mapping[str, NDArray[Any]],
        numbers: Mapping[str, int],
        asking: AskingTables,
    ) -> None:
        self._asking = _Asking(*asking)
        self._tables = ctypes.byref(_Tables(tables, {**numbers, "asking": ctypes.addressof(self._asking)}))
        self._room = _TEXTS * (numbers["head_bytes"] + numbers["tail_bytes"] + 2)
        self._meanings_at = _SKETCH_AT + numbers["sketch"]
        self._buckets_at = self._meanings_at + numbers["head_words"] + numbers["tail_words"]
        self._library = library
        self._features, self._parts, self._words = (
            library.weighbridge_features,
            library.weighbridge_parts,
            library.weighbridge_words,
        )

    def features(self, data: bytes, request: Request) -> Found:
        """Return the buckets in rising order, their counts, what these count, the facts, the number of terms, the words
        by meaning, the sketch, and the length asked for. Raises ValueError for a text that is longer than a text that
        is read can be.
        """
        size = len(data)
        out = np.empty(self._buckets_at + 6 * size, np.int32)
        if self._features(self._tables, data, size, _address(out), *request):
            raise ValueError(f"{size} bytes are more than are read of a text")
        floats = out.view(np.float32)
        distinct, terms, meant, number, unit = out[:_FACTS_AT].tolist()
        buckets, counts, sublinear = self._buckets_at, self._buckets_at + 2 * size, self._buckets_at + 4 * size
        # Copies: whoever keeps features would keep the room for the longest otherwise.
        rising = out[buckets : buckets + distinct].argsort()
        return (
            out[buckets : buckets + distinct][rising],
            out[counts : counts + distinct][rising].astype(np.intp),
            floats[sublinear : sublinear + distinct][rising],
            floats[_FACTS_AT:_SKETCH_AT].copy(),
            terms,
            out[self._meanings_at : self._meanings_at + meant].copy(),
            floats[_SKETCH_AT : self._meanings_at].copy(),
            (number, unit),
        )

    def parts(self, data: bytes, system: bytes, *, settled: bool) -> tuple[bytes, bytes, bytes]:
        """Return the part to read of a message with a system message, its ask, and its question; a part that equals the one
        before is the same object. A message that is `settled` is read as it is. Raises ValueError as above.
        """
        out, sizes, place = ctypes.create_string_buffer(self._room), (ctypes.c_int32 * _TEXTS)(), ctypes.c_int32()
        if self._parts(self._tables, data, len(data), system, len(system), settled, out, sizes, ctypes.byref(place)):
            raise ValueError(f"{len(data)} bytes are more than are searched of a text")
        texts = out.raw
        plain = texts[: sizes[0]]
        ask = plain if sizes[1] < 0 else texts[len(plain) : len(plain) + sizes[1]]
        begin = len(plain) + len(ask)
        return plain, ask, ask if sizes[2] < 0 else texts[begin : begin + sizes[2]]

    def words(self, data: bytes, most: int) -> NDArray[np.int32]:
        """Return the first words by meaning. Raises ValueError as above."""
        out = np.empty(most, np.int32)
        found = self._words(self._tables, data, len(data), most, _address(out))
        if found < 0:
            raise ValueError(f"{len(data)} bytes are more than are read of a text")
        return out[:found]

    def with_model(self, tables: Mapping[str, NDArray[Any]], numbers: Mapping[str, float]) -> "CompiledInputs":
        """Return the look-ups in a model's tables."""
        return CompiledInputs(self._library, self._tables, tables, numbers)


class CompiledInputs:
    """The library with the tables of a trained model: from a text's bytes to what the graph takes."""

    def __init__(
        self, library: ctypes.PyDLL, words: Any, tables: Mapping[str, NDArray[Any]], numbers: Mapping[str, float]
    ) -> None:
        self._words, self._model = words, ctypes.byref(_Model(tables, numbers))
        self._inputs = library.weighbridge_inputs

    def __call__(
        self, data: bytes, system: bytes, settled: bool, before: bytes, request: Request, out: ctypes.c_void_p
    ) -> tuple[int, int]:
        """Write the `Inputs` of classifier/tables.py to the address `out`, which has their size, and return the length asked for.

        They are made of the searched parts of a message and a system message, and of the message before it. Marks need not be
        plain. A message that is `settled` is read as it is. Raises ValueError as above.
        """
        texts = data, len(data), system, len(system), settled, before, len(before)
        asked: int = self._inputs(self._words, self._model, *texts, out, *request)
        if asked < 0:
            raise ValueError(f"{len(before)} bytes are more than are read of a text")
        return divmod(asked, _UNITS)


class _Pairs(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("class_of", "weight", "weight_of_three")),
        ("before", ctypes.c_uint8),
    ]


class CompiledPairs:
    """The sum of weights over a text's neighbouring bytes, with the tables of classifier/tokens.py."""

    def __init__(self, library: ctypes.PyDLL, class_of: bytes, weights: NDArray[np.int32], before: int) -> None:
        pairs = weights.reshape(_CLASSES, _CLASSES)
        threes = pairs[:, :, None] + pairs[None, :, :]
        # The library keeps addresses, so the tables have to stay.
        self._kept = tuple(
            map(np.ascontiguousarray, (np.frombuffer(class_of, np.uint8), weights, threes.astype(np.int16)))
        )
        self._tables = ctypes.byref(_Pairs(*(table.ctypes.data for table in self._kept), before))
        self._sum = library.weighbridge_pairs
        self._sum.restype = ctypes.c_int64

    def sum(self, data: bytes) -> int:
        """Return the summed weight of all pairs."""
        found: int = self._sum(self._tables, data, len(data))
        return found


def load(
    library: Path, tables: Mapping[str, NDArray[Any]], numbers: Mapping[str, int], asking: AskingTables
) -> CompiledFeaturizer | None:
    """Return the words from the library, or None as `_opened` says."""
    found = _opened(library)
    return None if found is None else CompiledFeaturizer(found, tables, numbers, asking)


def load_pairs(library: Path, class_of: bytes, weights: NDArray[np.int32], before: int) -> CompiledPairs | None:
    """Return the pairs from the library, or None as `_opened` says."""
    found = _opened(library)
    return None if found is None else CompiledPairs(found, class_of, weights, before)


def is_damaged(library: Path) -> bool:
    """Return True if there is a library that is not as it was compiled, cut short for example."""
    try:
        content = library.read_bytes()
    except OSError:
        return False
    try:
        recorded = library.with_suffix(_CHECKSUM).read_bytes()
    except OSError:
        return True
    return hashlib.sha256(content).hexdigest().encode() != recorded


def _opened(library: Path) -> ctypes.PyDLL | None:
    """Open the library; None where it was not compiled, is damaged, is for another machine, or was made of another source, whose
    tables would differ.
    """
    # A page that is missing is found by the system when it is touched, and ends the process.
    if is_damaged(library):
        return None
    try:
        # It runs for microseconds, so it keeps the interpreter's lock.
        found = ctypes.PyDLL(str(library))
        made_of = (ctypes.c_char * _HASH_CHARS).in_dll(found, "weighbridge_source").value
        source = hashlib.sha256(library.with_name(_SOURCE).read_bytes()).hexdigest()
    except (OSError, ValueError):
        return None
    return found if made_of == source.encode() else None
