"""What is computed quickly on the way of a request is what the plain computation gives, on the whole tier set."""

import math
import re

import numpy as np
import pytest

from classifier.features import STRUCTURE, extract, read_text
from classifier.manifest import Trust
from classifier.onnx_classifier import OnnxClassifier, open_classifier
from classifier.placing import trust_in
from classifier.prediction import Prompt
from classifier.training.tier_set import written
from classifier.tuning import SKETCH

OPTION = re.compile(rb"\n[A-J][.)]")
ITEM = re.compile(rb"\n(?:[-*]|[12]\.) ")
ODD = (
    "\nA. one\nB) two\n- three\n\n* four\n1. five\n2.six\nC.\n2. \nK. no\n-no\n1) no",
    "\n- A. one\n\nA.- two\nA.\nB.\nC.\r\nD. \n1. A. x",
    "",
)


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    return [*(each.prompt for each in written()), *(Prompt(text=text) for text in ODD)]


@pytest.fixture(scope="module")
def classifier() -> OnnxClassifier:
    return open_classifier(None, {"one": "llama-3-70b-instruct", "two": "gpt-4o-2024-05-13"})


def test_choices_and_items_found_by_one_search_are_those_of_two(prompts: list[Prompt]) -> None:
    """To the last bit of the fact that is made of their number."""
    options, items = STRUCTURE.index("log_options"), STRUCTURE.index("log_items")
    seen = set()
    for prompt in prompts:
        data, structure = read_text(prompt), extract(prompt).structure
        numbers = len(OPTION.findall(data)), len(ITEM.findall(data))
        assert structure[options] == np.float32(np.log1p(numbers[0]))
        assert structure[items] == np.float32(np.log1p(numbers[1]))
        seen.add(numbers)
    assert len(seen) > 5


def test_a_sketch_by_the_table_is_that_of_the_hash(prompts: list[Prompt]) -> None:
    """Multiply, shift, sign and sum, for each term."""
    for prompt in prompts:
        features = extract(prompt)
        summed = np.zeros(SKETCH)
        for index, count in zip(features.indices.tolist(), features.counts.tolist(), strict=True):
            place = index * 0x9E3779B1 % 2**32 >> 25
            summed[place >> 1] += (-1 if place & 1 else 1) * np.log1p(count)
        length = np.linalg.norm(summed)
        assert features.sketch == pytest.approx(summed / length if length else summed, abs=1e-6)


def test_a_row_is_read_as_the_graph_gives_it(classifier: OnnxClassifier, prompts: list[Prompt]) -> None:
    """The kind is the one of the highest score, and the numbers lie where the manifest says: what the graph gives is taken
    whole where it is trusted, and where it is not, what the complexity says.
    """
    kinds, trusts = set(), []
    manifest, loads = classifier.manifest, classifier.loads
    knots = np.array(manifest.blend)
    for prompt in prompts[:: len(prompts) // 200]:
        inputs = classifier.look_up(prompt)
        placed = classifier.placed(inputs)
        row = np.array(classifier.said(), np.float64)
        assert placed.complexity == row[0]
        logit = row[1] + inputs.tools * manifest.trust.tools_by_complexity * row[0]
        assert placed.trust == pytest.approx(1 / (1 + np.exp(-logit))) or inputs.tools
        whole = np.linspace(0, 1, len(knots))
        others = np.array([np.interp(row[0], whole, column) for column in knots.T])
        mixed = placed.trust * row[2 : 3 + loads] + (1 - placed.trust) * others
        assert [*placed.loads, placed.log_tokens] == pytest.approx(mixed, abs=1e-9)
        assert placed.loads.dtype == np.float64
        assert placed.kind == int(row[3 + loads :][: len(manifest.kinds)].argmax())
        kinds.add(placed.kind)
        trusts.append(placed.trust)
    assert len(kinds) > 3
    assert min(trusts) < 0.1
    assert max(trusts) > 0.9


@pytest.mark.parametrize(
    ("complexity", "tools", "trust"),
    [
        (0.3, True, 1.0),  # No harder than one call.
        (0.55, True, 0.5),  # Half way to an agent's job.
        (0.9, True, 0.2),
        (0.3, False, 0.2),
    ],
)
def test_tools_are_trusted_for_one_call(complexity: float, tools: bool, trust: float) -> None:
    """With tools on offer the complexity allows trust; where it allows none, and without, the domain alone decides."""
    settings = Trust(tools_by_complexity=0.0, one_call=0.45, agents_job=0.65)
    assert trust_in(settings, math.log(0.2 / 0.8), complexity, tools=tools) == pytest.approx(trust)
