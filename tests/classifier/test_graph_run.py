"""The graph and what is made of its row: by the library the same as by onnxruntime and in Python."""

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from classifier.compiled import CompiledGraph, CompiledWords
from classifier.graph import Graph, RuntimeGraph, constants_of, graph_of
from classifier.manifest import Artifact, ArtifactMalformed, Manifest
from classifier.placing import NotFinite, place_by
from classifier.prediction import Prompt
from classifier.tables import Inputs, Tables, look_up_in, read_tables
from classifier.tuning import SKETCH
from tests.classifier.test_features import PROMPTS, compiled

__all__ = ["compiled"]
HALVES = st.floats(-1, 1, width=32) | st.floats(-(2.0**-13), 2.0**-13, width=32) | st.floats(-70_000, 70_000, width=32)
"""Floats that are rounded to 16 bits each in another way."""


@pytest.fixture(scope="module")
def tables(made_up_artifact: Artifact) -> Tables:
    return read_tables(made_up_artifact.tables, made_up_artifact.manifest.loads)


@pytest.fixture(scope="module")
def both(made_up_artifact: Artifact, tables: Tables, compiled: CompiledWords) -> tuple[Graph, Graph]:
    """The library's, and that of onnxruntime."""
    return graph_of(made_up_artifact.model, tables, compiled), graph_of(made_up_artifact.model, tables, None)


def said(graph: Graph, inputs: Inputs) -> list[float]:
    row = np.zeros((1, graph.width), np.float32)
    graph.on(inputs.gist, inputs.sums, row)()
    found: list[float] = row[0].tolist()
    return found


@settings(max_examples=100, deadline=None)
@given(PROMPTS)
def test_the_library_says_what_the_graph_says(both: tuple[Graph, Graph], tables: Tables, prompt: Prompt) -> None:
    """To the digits of a float, for any prompt."""
    assert isinstance(both[0], CompiledGraph)
    assert isinstance(both[1], RuntimeGraph)
    inputs = Inputs(tables)
    look_up_in(tables)(prompt, inputs)
    one, other = (said(graph, inputs) for graph in both)
    assert one == pytest.approx(other, abs=1e-5, rel=1e-5)


def test_constants_are_read_as_onnx_reads_them(made_up_artifact: Artifact) -> None:
    """Each with its name and shape; and of what is no graph there are none."""
    model = onnx.load_from_string(made_up_artifact.model)
    expected = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    found = constants_of(made_up_artifact.model)
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    assert constants_of(b"not a graph") == constants_of(b"") == constants_of(made_up_artifact.model[:5000]) == {}


def changed(model: bytes, name: str, change: Any) -> bytes:
    """The model with one constant replaced, or left out for None."""
    proto = onnx.load_from_string(model)
    (at,) = (at for at, each in enumerate(proto.graph.initializer) if each.name == name)
    proto.graph.initializer[at].CopyFrom(
        numpy_helper.from_array(change(numpy_helper.to_array(proto.graph.initializer[at])), name)
    )
    return bytes(proto.SerializeToString())


def test_a_graph_that_computes_something_else_is_left_to_onnxruntime(
    made_up_artifact: Artifact, tables: Tables, compiled: CompiledWords
) -> None:
    """One that has the same constants, and a node more, another operator or an option."""
    more, other, option = (onnx.load_from_string(made_up_artifact.model) for _ in range(3))
    more.graph.node[0].output[0] = "half"
    more.graph.node.insert(1, onnx.helper.make_node("Neg", ["half"], ["straight"]))
    other.graph.node[2].op_type = "Tanh"
    option.graph.node[0].attribute.append(onnx.helper.make_attribute("alpha", 0.5))
    for proto in (more, other, option):
        assert isinstance(graph_of(bytes(proto.SerializeToString()), tables, compiled), RuntimeGraph)


def test_constants_that_the_loop_sums_wrongly_are_left_to_onnxruntime(
    made_up_artifact: Artifact, tables: Tables, compiled: CompiledWords
) -> None:
    """It has to say of some prompts what numpy says; of what is no number nobody says the same."""
    model = changed(made_up_artifact.model, "constant", lambda array: np.full_like(array, np.nan))
    assert isinstance(graph_of(model, tables, compiled), RuntimeGraph)


@pytest.mark.parametrize("wide", [33, 2000])
def test_a_graph_that_there_is_no_room_for_is_left_to_onnxruntime(
    made_up_artifact: Artifact, tables: Tables, compiled: CompiledWords, wide: int
) -> None:
    """Constants of other shapes: the loop reads where they say."""
    model = changed(made_up_artifact.model, "hidden_bias", lambda array: np.resize(array, wide))
    assert isinstance(graph_of(model, tables, compiled), RuntimeGraph)


@settings(max_examples=200, deadline=None)
@given(st.data(), st.booleans())
def test_the_library_places_as_python_does(
    made_up_artifact: Artifact, compiled: CompiledWords, data: st.DataObject, tools: bool
) -> None:
    """The same to the last digit or two, for any row; one that is not finite is refused by both."""
    manifest = made_up_artifact.manifest
    numbers = st.floats(-50, 50, width=32) | st.sampled_from([np.nan, np.inf, -np.inf])
    told = 3 + manifest.loads + len(manifest.kinds)
    row = np.array(data.draw(st.lists(numbers, min_size=told, max_size=told)), np.float32)
    row[0] = abs(row[0]) / 50
    sketch = np.array(data.draw(st.lists(HALVES, min_size=SKETCH, max_size=SKETCH)), np.float32)
    one, other = (place_by(row, sketch, manifest, how) for how in (compiled, None))
    if not np.isfinite(row).all():
        for place in (one, other):
            with pytest.raises(NotFinite):
                place(tools)
        return
    found, expected = one(tools), other(tools)
    assert found.loads == pytest.approx(expected.loads, rel=1e-12, abs=1e-12)
    assert found.loads.dtype == expected.loads.dtype == np.float64
    assert found.vector == expected.vector
    assert (found.complexity, found.kind) == (expected.complexity, expected.kind)
    assert (found.trust, found.log_tokens) == pytest.approx((expected.trust, expected.log_tokens), rel=1e-12, abs=1e-12)


def test_where_a_prompt_stood_stays(made_up_artifact: Artifact, compiled: CompiledWords) -> None:
    """What was found of a prompt is not that of the next one."""
    manifest: Manifest = made_up_artifact.manifest
    row = np.full(3 + manifest.loads + len(manifest.kinds), 0.5, np.float32)
    place = place_by(row, np.zeros(SKETCH, np.float32), manifest, compiled)
    before = place(False)
    kept = before.loads.copy()
    row[:] = 1
    assert place(False).loads.tolist() != kept.tolist()
    assert before.loads.tolist() == kept.tolist()


@pytest.mark.parametrize("how", ["library", "Python"])
def test_a_row_that_is_too_short_is_refused(made_up_artifact: Artifact, compiled: CompiledWords, how: str) -> None:
    """The library would read beyond it."""
    with pytest.raises(ArtifactMalformed, match="other outputs"):
        place_by(
            np.zeros(3, np.float32),
            np.zeros(SKETCH, np.float32),
            made_up_artifact.manifest,
            compiled if how == "library" else None,
        )
