"""What is computed quickly on the way of a request is what the plain computation gives, on the whole tier set."""

import re

import numpy as np
import pytest

from classifier.features import STRUCTURE, extract, read_text
from classifier.onnx_classifier import OnnxClassifier, open_classifier
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
    """The kind is the one of the highest score, and the numbers lie where the manifest says."""
    kinds = set()
    for prompt in prompts[:: len(prompts) // 200]:
        features = extract(prompt)
        placed = classifier.place(features)
        row = _row(classifier, prompt)
        assert (placed.complexity, placed.trust) == (row[0], row[1])
        assert placed.loads == pytest.approx(row[2 : 2 + classifier.loads], abs=0)
        assert placed.loads.dtype == np.float64
        assert placed.log_tokens == row[2 + classifier.loads]
        assert placed.kind == int(row[3 + classifier.loads :].argmax())
        kinds.add(placed.kind)
    assert len(kinds) > 3


def _row(classifier: OnnxClassifier, prompt: Prompt) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    features = extract(prompt)
    (row,) = classifier._run(
        ["said"],
        {
            "indices": features.indices,
            "sublinear": (1 + np.log(features.counts)).astype(np.float32)[None],
            "structure": features.structure[None],
            "read": np.concatenate((features.words, features.before)),
            "readings": features.readings,
            "flags": features.flags[None],
        },
        None,
    )
    found: np.ndarray[tuple[int], np.dtype[np.float32]] = row[0]
    return found
