"""Answers checked by a program: each form in each dress that models give it, and nothing that only looks right."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier.measuring.checking import Answer, Call, check
from classifier.measuring.questions import ExpectedCall, Kind, Question, calibration_set


def asked(kind: Kind, gold: str) -> Question:
    return Question(question_id="q", source="s", category="c", kind=kind, text="?", gold=gold)


@pytest.mark.parametrize(
    ("kind", "gold", "said", "outcome"),
    [
        ("choice", "C", "Answer: C", "right"),
        ("choice", "C", "It is not B.\n\n**Answer: (C)**", "right"),
        ("choice", "C", "the answer is (C).", "right"),
        ("choice", "C", r"So \boxed{C}", "right"),
        ("choice", "C", r"So \boxed{\text{C}}", "right"),
        ("choice", "C", "C", "right"),
        ("choice", "C", "(C)", "right"),
        ("choice", "C", "Answer: A\nNo, wait.\nAnswer: C", "right"),
        ("choice", "C", "Answer: C. because the others are not", "right"),
        ("choice", "C", "<think>Answer: B</think>\nAnswer: C", "right"),
        ("choice", "C", "<think>Answer: C", "unparsed"),
        ("choice", "C", "Answer: B", "wrong"),
        ("choice", "C", "Answer: c", "unparsed"),
        ("choice", "C", "I would need to know more about the company to say.", "unparsed"),
        ("choice", "C", "", "unparsed"),
        ("number", "2880000", "Answer: $2,880,000", "right"),
        ("number", "2880000", "#### 2880000.00", "right"),
        ("number", "9.110", "Answer: 9.11", "right"),
        ("number", "-8", "Answer: −8", "right"),  # noqa: RUF001 - as typesetters write it
        ("number", "0.5", r"\boxed{\frac{1}{2}}", "right"),
        ("number", "8", "Answer: 5 + 3 = 8", "right"),
        ("number", "8", "Answer: 8 apples", "right"),
        ("number", "8", "Answer: 80", "wrong"),
        ("number", "8", "There are 5 apples and then 3 more of them, so it all adds up to 8", "unparsed"),
        ("number", "8", "Answer: eight", "unparsed"),
        ("number", "1", "Answer: 1/0", "unparsed"),
        ("literal", "'aa++___bb'", "Answer: 'aa++___bb'", "right"),
        ("literal", "'aa'", 'Answer: `"aa"`', "right"),
        ("literal", "{1: 'a', 2: 'b'}", "[ANSWER]{2: 'b', 1: 'a'}[/ANSWER]", "right"),
        ("literal", "[0, 1]", "```python\nassert f([1, 0]) == [0, 1]\n```", "right"),
        ("literal", "True", "Answer: 1", "wrong"),
        ("literal", "[0, 1]", "Answer: (0, 1)", "wrong"),
        ("literal", "1", "Answer: 1.0", "wrong"),
        ("literal", "'a'", "Answer: a", "unparsed"),
        ("literal", "0", "Answer: __import__('os').getpid()", "unparsed"),
    ],
)
def test_texts(kind: Kind, gold: str, said: str, outcome: str) -> None:
    """The last answer of the asked form counts; a sentence with the right word in it is none."""
    assert check(asked(kind, gold), Answer(said)).outcome == outcome


WEATHER = ExpectedCall("get_weather", {"city": ["Oslo"], "days": [0, 1], "unit": ["celsius"]}, ["unit"])
TOOLS = Question(question_id="q", source="s", category="c", kind="tool", text="?", calls=[WEATHER])
TWO = Question(question_id="q", source="s", category="c", kind="tool", text="?", calls=[WEATHER, ExpectedCall("ping")])
NONE = Question(question_id="q", source="s", category="c", kind="tool", text="?")


@pytest.mark.parametrize(
    ("question", "calls", "outcome"),
    [
        (TOOLS, [("get_weather", '{"city": "oslo", "days": 1}')], "right"),
        (TOOLS, [("get_weather", '{"city": "Oslo", "days": 1.0, "unit": "celsius"}')], "right"),
        (TOOLS, [("get_weather", '{"city": "Oslo"}')], "wrong"),
        (TOOLS, [("get_weather", '{"city": "Oslo", "days": true}')], "wrong"),
        (TOOLS, [("get_weather", '{"city": "Oslo", "days": 1, "more": 1}')], "wrong"),
        (TOOLS, [("weather", '{"city": "Oslo", "days": 1}')], "wrong"),
        (TOOLS, [("get_weather", '{"city": "Oslo", "days": 1}')] * 2, "wrong"),
        (TOOLS, [("get_weather", '{"city": "Oslo", ')], "unparsed"),
        (TOOLS, [("get_weather", "[1]")], "unparsed"),
        (TOOLS, [], "unparsed"),
        (TWO, [("ping", ""), ("get_weather", '{"city": "Oslo", "days": 0}')], "right"),
        (TWO, [("get_weather", '{"city": "Oslo", "days": 0}')], "wrong"),
        (NONE, [], "right"),
        (NONE, [("get_weather", "{}")], "wrong"),
    ],
)
def test_tool_calls(question: Question, calls: list[tuple[str, str]], outcome: str) -> None:
    """Every expected call once, with its arguments and no others; where none serves, words and no call."""
    answer = Answer("" if calls else "None of these does.", tuple(Call(*each) for each in calls))
    assert check(question, answer).outcome == outcome


def test_every_bundled_question_can_be_answered() -> None:
    """The right answer, said as asked, is right, and an empty one is not."""
    for question in calibration_set().questions:
        assert check(question, Answer("")).outcome != "right"
        if question.kind != "tool":
            assert check(question, Answer(f"Hm.\nAnswer: {question.gold}")).outcome == "right", question.question_id


@given(st.text(max_size=400))
def test_nothing_breaks_it(said: str) -> None:
    """Whatever a model says, there is an outcome."""
    for kind, gold in (("choice", "A"), ("number", "1"), ("literal", "'a'")):
        assert check(asked(kind, gold), Answer(said)).outcome in {"right", "wrong", "unparsed"}  # type: ignore[arg-type]
    assert check(TOOLS, Answer(said, (Call(said, said),))).outcome != "right"
