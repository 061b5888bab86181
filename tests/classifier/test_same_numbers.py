"""What is computed quickly on the way of a request is what the plain computation gives, on the whole tier set."""

import re

import numpy as np
import pytest

from classifier.features import STRUCTURE, extract, read_text
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
        place = features.indices.astype(np.uint64) * 0x9E3779B1 % 2**32 >> 25
        summed = np.zeros(SKETCH)
        np.add.at(summed, (place >> 1).astype(np.intp), np.where(place & 1, -1.0, 1.0) * np.log1p(features.counts))
        length = np.linalg.norm(summed)
        assert np.abs(features.sketch - (summed / length if length else summed)).max() <= 1e-6
