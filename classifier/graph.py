"""The graph as it is run: by onnxruntime, or where classifier/words.c is compiled by one pass over the same constants.

onnxruntime takes 5 µs in the line of requests to find its way to a single node. The loop's constants are those of model.onnx, so
nothing is written down twice, and it is used where it says what onnxruntime says.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from classifier.compiled import CompiledGraph, CompiledWords
from classifier.features import COMPILED, OF_A_PART, PROBES, READINGS, STRUCTURE, Indices, extract
from classifier.runtime import bound, open_session, output_width
from classifier.tables import ALL_READINGS, Inputs, Tables, look_up_features

Values = NDArray[np.float32]
Run = Callable[[], object]

INPUTS: Final = {"gist": "tensor(float)", "sums": "tensor(float)"}
"""The graph's inputs with their types: see `Inputs`."""
OUTPUT: Final = "said"
"""One row: complexity, logit of the domain, loads, log tokens, a score for each kind, and what the complexity is made of."""
_LANES: Final = 4
"""Columns that the compiled loop multiplies at once."""
_MOST_SCORES: Final = 64
_MOST_INNER: Final = 1024
"""Numbers that it has room for, of every row but the last."""
_SAME: Final = 1e-4

# Protobuf's ways to write a field, and the fields of onnx.proto that lead to a constant.
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES: Final = {_FIXED64: 8, _FIXED32: 4}
_GRAPH, _INITIALIZER, _NAME, _DIMS, _DATA_TYPE, _RAW_DATA = 7, 5, 8, 1, 2, 9
_FLOAT: Final = 1


class Graph(Protocol):
    """A graph that is ready to run."""

    width: int
    """The length of the row that it says."""

    def on(self, gist: Values, sums: Values, said: Values) -> Run:
        """A run on what stands in the rows `gist` and `sums`, which leaves its result in `said`, (1, width): nothing is handed over or
        made. All three have to stay.
        """
        ...


class RuntimeGraph:
    """A graph that onnxruntime runs."""

    def __init__(self, model: bytes) -> None:
        """Raises RuntimeMissing, or ArtifactMalformed for a graph of other inputs or outputs."""
        self._session = open_session(model, INPUTS)
        self.width = output_width(self._session, OUTPUT)

    def on(self, gist: Values, sums: Values, said: Values) -> Run:
        """As `Graph` says; the run raises an error of onnxruntime where a row is of another length than the graph's."""
        return bound(self._session, {"gist": gist, "sums": sums}, {OUTPUT: said})


def graph_of(model: bytes, tables: Tables, compiled: CompiledWords | None = COMPILED) -> Graph:
    """The graph of a model: compiled where it can be and says what onnxruntime says. Raises as `RuntimeGraph` does."""
    by_runtime = RuntimeGraph(model)
    loop = None if compiled is None else _loop(constants_of(model), tables, by_runtime.width - 1, compiled)
    return loop if loop is not None and _are_same(tables, loop, by_runtime) else by_runtime


def _loop(found: Mapping[str, Values], tables: Tables, scores: int, compiled: CompiledWords) -> CompiledGraph | None:
    """The loop over these constants; None where they are not those of the graph that training makes, or it has no room for them."""
    inner = found["hidden"].shape[-1] if "hidden" in found else 0
    shapes = {
        "by_sums": (tables.sums, scores),
        "constant": (scores,),
        "hidden": (tables.gist, inner),
        "hidden_bias": (inner,),
        "out": (inner, scores),
        "parts": (scores, 1),
    }
    fits = {name: found[name].shape for name in shapes if name in found} == shapes
    one, other = _often_alike(tables)
    if not fits or scores > _MOST_SCORES or max(inner, tables.sums, tables.gist + len(one)) > _MOST_INNER:
        return None
    hidden = found["hidden"]
    read = {**found, "hidden": np.concatenate([hidden, hidden[one] + hidden[other]])}
    filled = {name: _filled(read[name], rows=name == "out") for name in shapes if name != "parts"}
    numbers = {"sums": tables.sums, "gist": tables.gist, "pairs": len(one), "told": scores}
    wide = {"inner": len(filled["hidden_bias"]), "scores": len(filled["constant"])}
    return compiled.with_graph({**filled, "parts": found["parts"], "one": one, "other": other}, {**numbers, **wide})


def _often_alike(tables: Tables) -> tuple[Indices, Indices]:
    """Pairs of places in the gist: what is read of a message, and the same of what it asks, which is mostly all of it. Where the two
    numbers are the same the loop reads one row for both.
    """
    width = tables.meanings.shape[1]
    facts, base = len(STRUCTURE), ALL_READINGS * width
    of_ask = {
        reading * width + at: (READINGS + part) * width + at
        for part, reading in enumerate(OF_A_PART)
        for at in range(width)
    }
    of_ask |= {base + at: base + facts + at for at in range(facts)}
    places = {number: at for at, number in enumerate(tables.needed.tolist())}
    pairs = [(at, places[of_ask[number]]) for number, at in places.items() if of_ask.get(number) in places]
    one, other = np.array(pairs, np.int32).reshape(-1, 2).T
    return one, other


def _filled(matrix: Values, *, rows: bool) -> Values:
    """The matrix, or row, with further columns of 0, so that their number is a multiple of _LANES; and rows likewise."""
    sides = [(0, -size % _LANES) for size in matrix.shape]
    return np.pad(matrix, sides if rows or matrix.ndim == 1 else [(0, 0), sides[1]])


def _are_same(tables: Tables, one: Graph, other: Graph) -> bool:
    inputs = Inputs(tables)
    rows = [np.zeros((1, graph.width), np.float32) for graph in (one, other)]
    runs = [graph.on(inputs.gist, inputs.sums, said) for graph, said in zip((one, other), rows, strict=True)]
    for prompt in PROBES:
        look_up_features(tables, extract(prompt), inputs)
        try:
            for run in runs:
                run()
        except Exception:  # noqa: BLE001 - onnxruntime's errors share no base class. Its next run will tell of this one.
            return False
        if not np.allclose(rows[0], rows[1], rtol=_SAME, atol=_SAME):
            return False
    return True


def constants_of(model: bytes) -> Mapping[str, Values]:
    """The constants of an ONNX file by name, those that are floats: the library that reads such files is training's alone. None for what is
    no such file.
    """
    with contextlib.suppress(IndexError, KeyError, TypeError, ValueError):
        graph = dict(_fields(memoryview(model)))[_GRAPH]
        return dict(_constants(value for number, value in _fields(graph) if number == _INITIALIZER))
    return {}


def _constants(tensors: Iterable[memoryview]) -> Iterator[tuple[str, Values]]:
    for tensor in tensors:
        fields = list(_fields(tensor))
        told = dict(fields)
        if told[_DATA_TYPE] == _FLOAT:
            shape = [value for number, value in fields if number == _DIMS]
            # A copy, for in the file they begin at any byte.
            yield bytes(told[_NAME]).decode(), np.frombuffer(told[_RAW_DATA], "<f4").astype(np.float32).reshape(shape)


def _fields(message: memoryview) -> Iterator[tuple[int, Any]]:
    """Number and value of each field of a protobuf message: a number, or bytes; those of fixed size are left out."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, way = key >> 3, key & 7
        if way == _VARINT:
            value, at = _varint(message, at)
            yield number, value
        elif way == _LENGTH:
            size, at = _varint(message, at)
            yield number, message[at : at + size]
            at += size
        else:
            at += _FIXED_BYTES[way]


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """The number that begins there, and where it ends."""
    value = shift = 0
    while message[at] & 0x80:
        value |= (message[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | message[at] << shift, at + 1
