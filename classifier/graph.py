"""The graph as it is run: where classifier/words.c is compiled by one pass over its constants, elsewhere by onnxruntime.

onnxruntime takes 5 µs in the line of requests to find its way to a single node, and 27 MB. The loop's constants are those of model.onnx,
so nothing is written down twice. It runs a file of just the nodes that training makes; onnxruntime is loaded for any other.
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
_LANES: Final = 8
"""Columns that the compiled loop multiplies at once, at most."""
_MOST_SCORES: Final = 64
_MOST_INNER: Final = 1024
"""Numbers that it has room for, of every row but the last."""
_SAME: Final = 1e-4

# Protobuf's ways to write a field, and the fields of onnx.proto that lead to a constant, and to what is done with it.
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES: Final = {_FIXED64: 8, _FIXED32: 4}
_GRAPH, _INITIALIZER, _NAME, _DIMS, _DATA_TYPE, _RAW_DATA = 7, 5, 8, 1, 2, 9
_FLOAT: Final = 1
_NODE, _RESULT, _RESULT_NAME = 1, 12, 1
_READS, _WRITES, _OPERATOR, _OPTIONS = 1, 2, 4, 5

_NODES: Final = (
    ("Gemm", "sums by_sums constant", "straight", b""),
    ("Gemm", "gist hidden hidden_bias", "before_relu", b""),
    ("Relu", "before_relu", "inner", b""),
    ("Gemm", "inner out straight", "scores", b""),
    ("Sigmoid", "scores", "chances", b""),
    ("MatMul", "chances parts", "complexity", b""),
    ("Concat", "complexity scores", OUTPUT, b"\n\x04axis\x18\x01\xa0\x01\x02"),
)
"""Operator, what it reads, what it writes, and its options as they are in the file (the rows are put side by side). Those of training/graph.py,
and of the loop.
"""


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
    """The graph of a model: compiled where it is one that the loop knows. Raises as `RuntimeGraph` does."""
    loop = None if compiled is None else _loop(constants_of(model), tables, compiled)
    return RuntimeGraph(model) if loop is None else loop


def _loop(found: Mapping[str, Values], tables: Tables, compiled: CompiledWords) -> CompiledGraph | None:
    """The loop over these constants; None where they do not fit each other, it has no room for them, or says something else than they do."""
    scores, inner = (found[name].size if name in found else 0 for name in ("constant", "hidden_bias"))
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
    loop = compiled.with_graph({**filled, "parts": found["parts"], "one": one, "other": other}, {**numbers, **wide})
    return loop if _is_right(loop, found, tables) else None


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


def _is_right(loop: Graph, constants: Mapping[str, Values], tables: Tables) -> bool:
    """Whether the loop says of the probe prompts what numpy says."""
    inputs, said = Inputs(tables), np.zeros((1, loop.width), np.float32)
    run = loop.on(inputs.gist, inputs.sums, said)
    for prompt in PROBES:
        look_up_features(tables, extract(prompt), inputs)
        run()
        if not np.allclose(said, _by_numpy(constants, inputs), rtol=_SAME, atol=_SAME):
            return False
    return True


def _by_numpy(constants: Mapping[str, Values], inputs: Inputs) -> Values:
    """What _NODES say, (1, width)."""
    straight = inputs.sums @ constants["by_sums"] + constants["constant"]
    inner = np.maximum(inputs.gist @ constants["hidden"] + constants["hidden_bias"], 0)
    scores = inner @ constants["out"] + straight
    # The logistic function, written so that nothing overflows.
    chances = (1 + np.tanh(scores / 2)) / 2
    return np.concatenate([chances @ constants["parts"], scores], axis=1)


def constants_of(model: bytes) -> Mapping[str, Values]:
    """The constants by name, those that are floats, of an ONNX file of _NODES: the library that reads such files is training's alone. None for
    what is no such file.
    """
    with contextlib.suppress(IndexError, KeyError, TypeError, ValueError):
        graph = list(_fields(dict(_fields(memoryview(model)))[_GRAPH]))
        nodes = tuple(_node(value) for number, value in graph if number == _NODE)
        results = [_text(dict(_fields(value))[_RESULT_NAME]) for number, value in graph if number == _RESULT]
        if nodes == _NODES and results == [OUTPUT]:
            return dict(_constants(value for number, value in graph if number == _INITIALIZER))
    return {}


def _node(message: memoryview) -> tuple[str, str, str, bytes]:
    fields = list(_fields(message))
    reads, writes, operator, options = (
        [bytes(value) for number, value in fields if number == wanted]
        for wanted in (_READS, _WRITES, _OPERATOR, _OPTIONS)
    )
    return b" ".join(operator).decode(), b" ".join(reads).decode(), b" ".join(writes).decode(), b"".join(options)


def _constants(tensors: Iterable[memoryview]) -> Iterator[tuple[str, Values]]:
    for tensor in tensors:
        fields = list(_fields(tensor))
        told = dict(fields)
        if told[_DATA_TYPE] == _FLOAT:
            shape = [value for number, value in fields if number == _DIMS]
            # A copy, for in the file they begin at any byte.
            yield _text(told[_NAME]), np.frombuffer(told[_RAW_DATA], "<f4").astype(np.float32).reshape(shape)


def _text(value: memoryview) -> str:
    return bytes(value).decode()


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
