"""The graph as onnxruntime runs it: on rows that are bound once, and only where it takes and gives what is expected."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from classifier.manifest import Artifact, ArtifactMalformed
from classifier.prediction import Prompt
from classifier.runtime import OUTPUT, Graph
from classifier.tables import Inputs, look_up_in, read_tables


def test_what_stands_in_the_rows_is_scored(made_up_artifact: Artifact) -> None:
    """Twice, with other numbers in the same rows: what plain numpy makes of them and the graph's constants."""
    tables = read_tables(made_up_artifact.tables, made_up_artifact.manifest.loads)
    proto = onnx.load_from_string(made_up_artifact.model)
    weights = {each.name: numpy_helper.to_array(each) for each in proto.graph.initializer}
    graph, inputs, look_up = Graph(made_up_artifact.model), Inputs(tables), look_up_in(tables)
    scores = np.zeros((1, graph.width), np.float32)
    run = graph.on(inputs.gist, inputs.sums, scores)
    seen = []
    for text in ("Prove that there are infinitely many primes.", "hi"):
        look_up(Prompt(text=text), inputs)
        run()
        inner = np.maximum(inputs.gist @ weights["hidden"] + weights["hidden_bias"], 0)
        expected = inner @ weights["out"] + inputs.sums @ weights["by_sums"] + weights["constant"]
        assert scores[0] == pytest.approx(expected[0], abs=1e-4)
        seen.append(scores.tolist())
    assert seen[0] != seen[1]


def test_rows_of_another_length_are_refused(made_up_artifact: Artifact) -> None:
    """Nothing is read beyond them."""
    graph = Graph(made_up_artifact.model)
    scores = np.zeros((1, graph.width), np.float32)
    with pytest.raises(Exception, match="invalid dimensions"):
        graph.on(np.zeros((1, 3), np.float32), np.zeros((1, 3), np.float32), scores)()


@pytest.mark.parametrize(
    ("inputs", "output", "length", "match"),
    [
        (("gist", "sums"), "said", 3, "other outputs"),
        (("gist", "sums"), OUTPUT, "n", "other outputs"),
        (("gist",), OUTPUT, 3, "other inputs"),
    ],
)
def test_another_graph_is_refused(inputs: tuple[str, ...], output: str, length: int | str, match: str) -> None:
    """Of another name, as earlier versions have it, of no known length, or of other inputs."""
    rows = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, length]) for name in inputs]
    out = helper.make_tensor_value_info(output, TensorProto.FLOAT, [1, length])
    graph = helper.make_graph([helper.make_node("Relu", ["gist"], [output])], "other", rows, [out])
    model = helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 18)])
    with pytest.raises(ArtifactMalformed, match=match):
        Graph(model.SerializeToString())


def test_what_is_no_graph_is_refused(made_up_artifact: Artifact) -> None:
    """Nothing, something else, and a file that was cut short."""
    for content in (b"", b"no graph", made_up_artifact.model[:5_000]):
        with pytest.raises(ArtifactMalformed, match="does not load"):
            Graph(content)
