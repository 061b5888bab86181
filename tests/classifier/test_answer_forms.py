"""What models really write, read and compared without its dress."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier.answer_forms import (
    NOTHING,
    TextForm,
    json_in,
    read,
    same,
    same_calls,
    same_text,
    same_value,
    short_text,
)


@pytest.mark.parametrize(
    ("form", "one", "other"),
    [
        ("choice", "The answer is (B).", "**B**"),
        ("choice", "Answer: B) 42", "B"),
        ("choice", "Let me see.\n\nOption B", "The correct answer is **B**: 42"),
        ("choice", "<think>A? No, (C).</think>\n\\boxed{\\text{B}}", "The answer is B"),
        ("number", "\\boxed{42}", "42.0"),
        ("number", "So 6 by 7 is 42.\n\n#### 42", "The final answer is: **42** apples"),
        ("number", "The answer is $1,234.", "1234"),
        ("number", "\\boxed{\\frac{1}{2}}", "Answer: 0.5"),
        ("number", "Answer: −5", "-5"),  # noqa: RUF001 - the minus sign of typesetters
        ("literal", "[ANSWER]{'a': 1, 'b': 2}[/ANSWER]", "{'b': 2, 'a': 1}"),
    ],
)
def test_one_answer_in_two_dresses_is_the_same(form: TextForm, one: str, other: str) -> None:
    """Emphasis, boxes, sentences around it, commas, currencies, thoughts before it."""
    first, second = read(form, one), read(form, other)
    assert first is not None
    assert second is not None
    assert same(form, first, second)


@pytest.mark.parametrize(
    ("form", "one", "other"),
    [
        ("choice", "The answer is (B).", "The answer is (C)."),
        ("number", "\\boxed{42}", "-42"),
        ("number", "\\boxed{42}", "42.5"),
        ("literal", "1", "True"),
    ],
)
def test_two_answers_are_not_the_same(form: TextForm, one: str, other: str) -> None:
    """Whatever their dress."""
    first, second = read(form, one), read(form, other)
    assert first is not None
    assert second is not None
    assert not same(form, first, second)


@pytest.mark.parametrize("form", ["choice", "number", "literal"])
@pytest.mark.parametrize(
    "text", ["", "<think>it is 42, so (B)", "There are many ways to look at this, and none of them is simple."]
)
def test_where_there_is_no_answer_none_is_read(form: TextForm, text: str) -> None:
    """Nothing, a thought that never ends, a sentence."""
    assert read(form, text) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Yes.", "yes"),
        ("**Positive**", "Sentiment: positive"),
        ('"Billing"', "billing."),
        ("The Eiffel Tower", "Eiffel Tower."),
        ("The answer is Paris.", "Paris"),
        ("$1,234", "1234.00"),
        ("\\boxed{\\text{blue}}", "Blue!"),
        ("<think>hm</think> en", "EN"),
        ("Ｙｅｓ", "yes"),  # noqa: RUF001 - wide letters
    ],
)
def test_short_texts_are_the_same_but_for_their_dress(one: str, other: str) -> None:
    """Case, marks, a label before it, an article, how a number is written."""
    first, second = short_text(one), short_text(other)
    assert first is not None
    assert second is not None
    assert same_text(first, second)


@pytest.mark.parametrize(
    ("one", "other"),
    [("C", "C++"), ("not spam", "spam"), ("vitamin A", "vitamin"), ("5", "-5"), ("answered", "unanswered")],
)
def test_what_means_something_is_no_dress(one: str, other: str) -> None:
    """Signs, negations, letters."""
    first, second = short_text(one), short_text(other)
    assert first is not None
    assert second is not None
    assert not same_text(first, second)


def test_a_longer_text_is_not_compared_as_one() -> None:
    """Two essays never say the same."""
    assert short_text("word " * 13) is None
    assert short_text("one line\nand another") is None


@pytest.mark.parametrize(
    ("text", "value", "bare"),
    [
        (' {"a": 1} ', {"a": 1}, True),
        ('```json\n{"a": 1}\n```', {"a": 1}, False),
        ('```\n{"a": 1}\n```', {"a": 1}, False),
        ("Here:\n```python\nx = {1}\n```\n```json\n[1, 2]\n```", [1, 2], False),
        ('Sure! {"a": {"b": [1]}} Anything else?', {"a": {"b": [1]}}, False),
        ('{"code": "```json\\n[1]\\n```"}', {"code": "```json\n[1]\n```"}, True),
        ("As said in [1], {this} is no JSON.", NOTHING, False),
        ("", NOTHING, False),
    ],
)
def test_json_is_found_where_models_put_it(text: str, value: object, bare: bool) -> None:
    """Bare, between fences, in prose; fences within a text are its own."""
    found, is_bare = json_in(text)
    assert found is value if value is NOTHING else found == value
    assert is_bare is bare


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ({"a": 1, "b": "x"}, {"b": "X ", "a": 1.0}, True),
        ({"n": "1,234"}, {"n": 1234}, True),
        ({"n": "$5"}, {"n": 5.0}, True),
        ([1, 2], [2, 1], False),
        ({"a": None}, {}, False),
        (True, 1, False),
        (None, None, True),
        ({"a": 0.1 + 0.2}, {"a": 0.3}, True),
        ("abc", 3, False),
    ],
)
def test_values_are_the_same_to_who_uses_them(one: object, other: object, alike: bool) -> None:
    """The order of names and the writing of numbers aside; a list has an order."""
    assert same_value(one, other) is alike
    assert same_value(other, one) is alike


def test_calls_are_the_same_in_any_order() -> None:
    """Parallel calls have none; how often one is made counts."""
    one = [("weigh", {"kg": 7, "of": "Ada"}), ("stop", {})]
    assert same_calls(one, [("stop", {}), ("weigh", {"of": "ada", "kg": "7"})])
    assert not same_calls(one, one[:1])
    assert not same_calls(one[:1], one)
    assert not same_calls(one[:1], [("weigh", {"kg": 8, "of": "Ada"})])


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(_JSON)
def test_every_value_is_the_same_as_itself(value: object) -> None:
    """Whatever it is made of."""
    assert same_value(value, value)


@given(st.text(max_size=200))
def test_no_text_makes_reading_fail(text: str) -> None:
    """Whatever a model writes, it is read or it is not."""
    for form in ("choice", "number", "literal"):
        read(form, text)
    short_text(text)
    json_in(text)
