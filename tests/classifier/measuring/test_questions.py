"""The bundled set: what is in it, that every beginning of it is balanced, and that it stays small."""

import importlib.resources
from collections import Counter

import pytest

from classifier.measuring.questions import SET_FILE, CalibrationSet, decoded, encoded
from classifier.measuring.questions import calibration_set as bundled
from classifier.training.tool_questions import tool_questions


def test_it_is_small_and_complete() -> None:
    """Below a megabyte; every question has an answer that can be checked, and its id once."""
    content = (importlib.resources.files("classifier.measuring") / SET_FILE).read_bytes()
    questions = bundled().questions
    assert len(content) < 2**20
    assert len(questions) == len({each.question_id for each in questions}) == 1_260
    assert all(each.gold for each in questions if each.kind != "tool")
    assert {len(each.outcomes) for each in questions} == {0, len(bundled().models)}


@pytest.mark.parametrize("count", [50, 100, 200, 400])
def test_every_beginning_is_balanced(count: int) -> None:
    """Sources have their share of it, and its difficulty is that of the whole."""
    questions = bundled().questions
    shares, whole = (Counter(each.source for each in part) for part in (questions[:count], questions))
    for source, size in whole.items():
        assert abs(shares[source] - count * size / len(questions)) <= 1
    assert abs(_ease(bundled(), count) - _ease(bundled(), len(questions))) < 0.04


def _ease(found: CalibrationSet, count: int) -> float:
    told = "".join(each.outcomes for each in found.first(count))
    return told.count("1") / (told.count("0") + told.count("1"))


def test_it_comes_back_as_it_was_and_another_format_is_refused() -> None:
    """The same set gives the same bytes."""
    content = encoded(bundled(), {"a": "b"})
    assert content == encoded(decoded(content), {"a": "b"})
    with pytest.raises(ValueError, match="format 7"):
        decoded(__import__("gzip").compress(b'{"format": 7, "models": [], "licences": {}}\n'))


def test_tool_questions_are_the_ones_that_ship() -> None:
    """What is checked against is what is offered: names and arguments are in the tools' own definitions."""
    made = list(tool_questions())
    assert len(made) == 60
    assert [each for each in bundled().questions if each.kind == "tool"] == made
    assert sum(not each.calls for each in made) == 9
    for question in made:
        offered = {tool["function"]["name"]: tool["function"]["parameters"] for tool in question.tools}
        for call in question.calls:
            assert call.arguments.keys() <= offered[call.name]["properties"].keys(), question.text
            assert set(offered[call.name]["required"]) <= call.arguments.keys(), question.text
            assert not set(call.optional) & set(offered[call.name]["required"]), question.text
