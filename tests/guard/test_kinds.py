"""The tables of kinds, and what customers write themselves."""

import pytest

from guard.kinds import KINDS, BadPattern, Example, block_list, checked_pattern, examples, own_kind
from guard.scan import Scanner

SCANNER = Scanner(KINDS.values())


@pytest.mark.parametrize("example", examples(), ids=lambda example: f"{example.kind}-{example.text[:12]}")
def test_each_example_of_the_tables_is_found_and_no_counter_example(example: Example) -> None:
    """A row's own examples say which part of them is the value."""
    found = tuple(
        example.text[value.start : value.end] for value in SCANNER.find(example.text) if value.kind == example.kind
    )
    assert found == example.values


def test_each_kind_has_examples_of_both_sorts() -> None:
    """A pattern without a counter-example has not been thought through."""
    told = examples()
    assert {example.kind for example in told if example.values} == set(KINDS)
    assert {example.kind for example in told if not example.values} == set(KINDS)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("", "empty"),
        ("x*", "empty text"),
        (r"\b", "empty text"),
        ("a{0,3}", "empty text"),
        ("(", "RE2 syntax"),
        ("(?=x)y", "look-ahead"),
        ("(?<!x)y", "look-behind"),
        (r"(a)\1", "back-references"),
        ("x" * 1_001, "1,000 characters"),
        (r"(?:[a-z]{1,900}x){900}", "too large"),
        (r"\p{L}{1000}", "too large"),
        ("\ud800", "no valid text"),
    ],
)
def test_case_39_a_pattern_that_cannot_be_run_is_refused_with_its_reason(pattern: str, why: str) -> None:
    """NeMo#2271: what would take the time of a regex bomb never runs."""
    with pytest.raises(BadPattern, match=why):
        checked_pattern(pattern)


def test_own_patterns_and_lists_are_found() -> None:
    """Words are found whole and in any case, phrases over any blanks; what has no edge in ASCII anywhere."""
    scanner = Scanner(
        [own_kind("ticket", r"PRJ-\d{3,9}"), block_list("names", ["Project Falcon", "Müller GmbH", "机密", "C++"])]
    )
    text = "PRJ-1234: project\nfalcon, MÜLLER GMBH; 这是机密的. C++! But projects falcons are not."
    assert [text[value.start : value.end] for value in scanner.find(text)] == [
        "PRJ-1234",
        "project\nfalcon",
        "MÜLLER GMBH",
        "机密",
        "C++",
    ]
    assert scanner.labels == {"ticket": "TICKET", "names": "NAMES"}


@pytest.mark.parametrize(
    ("words", "why"),
    [([], "at least one"), (["  "], "at least one"), (["x" * 201], "200"), ([f"w{i}" for i in range(1_001)], "1,000")],
)
def test_a_list_has_bounds(words: list[str], why: str) -> None:
    """Everything has a limit."""
    with pytest.raises(BadPattern, match=why):
        block_list("words", words)


def test_a_pattern_with_quantifiers_on_quantifiers_is_linear() -> None:
    """What doubles with each character elsewhere is one pass here."""
    scanner = Scanner([own_kind("bomb", "(a|aa)+$")])
    assert scanner.find("a" * 50_000 + "!") == ()
