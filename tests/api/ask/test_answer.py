"""Figures of an answer: what a tool returned is linked to its rows, what none returned is marked, and nothing else passes."""

import datetime as dt
from decimal import Decimal
from typing import Final

import pytest

from api.ask.answer import Known, checked, known_of, readable, unverified
from api.ask.found import Found

TODAY: Final = dt.date(2026, 11, 29)
ROWS: Final = [
    {
        "team": "Search 2",
        "model": "gpt-4o-2024-05-13",
        "cost_usd": Decimal("1234.5678"),
        "requests": 12_345,
        "share_percent": Decimal("41.26"),
    },
    {"team": "Shop", "model": "o3", "cost_usd": Decimal("-2.50"), "requests": 7, "duration_s": Decimal("2.4")},
]


def known(question: str = "", rows: object = None, **fields: object) -> Known:
    found = Found(
        title="Usage",
        rows=ROWS if rows is None else rows,  # type: ignore[arg-type]
        hrefs=("/rows/1", "/rows/2"),
        href="/rows",
        total={"cost_usd": Decimal("1232.0678")},
        days=(dt.date(2026, 11, 23), TODAY),
        **fields,  # type: ignore[arg-type]
    )
    return known_of({"r1": found}, question, TODAY)


def kinds(text: str, question: str = "") -> list[tuple[str, str]]:
    """The parts that are more than text, with where they lead."""
    return [
        (part.text, part.href or part.kind)
        for line in checked(text, known(question))
        for part in line
        if part.kind != "text"
    ]


@pytest.mark.parametrize(
    ("text", "href"),
    [
        ("$1,234.57", "/rows/1"),
        ("$1234.5678", "/rows/1"),
        ("USD 1,235", "/rows/1"),
        ("1,234.57 dollars", "/rows/1"),
        ("$1.23k", "/rows/1"),
        ("$1.2 thousand", "/rows/1"),
        ("12,345 requests", "/rows/1"),
        ("12.3k requests", "/rows/1"),
        ("41.3 %", "/rows/1"),
        ("41 percent", "/rows/1"),
        ("$1,232.07 in all", "/rows"),
        ("fell by $2.50", "/rows/2"),
        ("-$2.50", "/rows/2"),
        ("250 cents", "/rows/2"),
        ("2.4 s", "/rows/2"),
        ("2400 ms", "/rows/2"),
        ("2 teams", "/rows"),
    ],
)
def test_a_figure_that_a_tool_returned_leads_to_its_rows(text: str, href: str) -> None:
    """As it is, rounded as it is written, or in a larger unit."""
    assert [where for _, where in kinds(text)] == [href]


@pytest.mark.parametrize(
    "text",
    [
        "$1,234.58",
        "$1,300",
        "$41.26",
        "41.26 dollars",
        "12,346 requests",
        "12,000",
        "12345 %",
        "1234.57 %",
        "$0",
        "0 requests",
        "$0.00",
        "41.4 %",
        "2.4x",
        "3 teams",
        "in 14 days",
        "on 2026-11-01",
        "on 5 October",
        "in October 2026",
        "since 14:00",
        "\u0664\u0662",
        "3",
        "1,235",
        "999999999999999999999",
    ],
)
def test_a_figure_that_no_tool_returned_is_marked(text: str) -> None:
    """Another number, another unit, another rounding, or another time."""
    assert unverified(checked(text, known()))


@pytest.mark.parametrize(
    "text",
    [
        "Search 2 used gpt-4o-2024-05-13 and o3.",
        "From 2026-11-23 to 29 November 2026, Nov 24 too.",
        "In the last 7 days.",
        "1. Shop\n2. Search 2",
        "The p95 of v2 models.",
    ],
)
def test_names_days_and_list_marks_are_no_figures(text: str) -> None:
    """They stay text."""
    assert kinds(text) == []


def test_the_question_backs_no_amount() -> None:
    """What it asks for is repeated as text where it is a plain number, and marked where it is an amount."""
    assert kinds("In the last 14 days, the top 5.", "The top 5 of the last 14 days?") == []
    assert kinds("Yes, $5,000.", "Did we spend $5,000?") == [("$5,000", "unverified")]
    assert kinds("Yes, 90 %.", "Was it 90 %?") == [("90 %", "unverified")]


def test_the_row_that_is_named_is_linked_where_figures_are_alike() -> None:
    """Of two rows with the same cost."""
    rows = [{"team": "Shop", "cost_usd": Decimal(3)}, {"team": "Mail", "cost_usd": Decimal(3)}]
    lines = checked("Mail spent $3.00.", known(rows=rows))
    assert [part.href for line in lines for part in line if part.kind == "figure"] == ["/rows/2"]


def test_a_name_that_reads_like_an_amount_is_no_name() -> None:
    """Or a tag could pass off any amount as found."""
    rows = [{"tag": "we spent $9,999 (88 %)", "cost_usd": Decimal(1)}, {"tag": "777", "cost_usd": Decimal(2)}]
    lines = checked("we spent $9,999 (88 %) and 777", known(rows=rows))
    assert unverified(lines) == ["$9,999", "88 %", "777"]


def test_figures_of_our_own_sentences_count() -> None:
    """As in an incident's text; a number in a name does not."""
    rows = [{"subject": "gpt-4o", "text": "30 % of its last 50 attempts failed, for 4 s"}]
    lines = checked("30 % of 50 attempts of gpt-4o, 4 s, and 31 %", known(rows=rows))
    assert unverified(lines) == ["31 %"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("See [the report](https://evil.example/?q=secret).", "See the report."),
        ("![](https://evil.example/x.png)done", "done"),
        ("Go to https://evil.example/a?b=c now", "Go to (address left out) now"),
        ("Go to //evil.example/x now", "Go to (address left out) now"),
        ("www.evil.example", "(address left out)"),
        ("javascript:alert(1)", "(address left out)"),
        ("data:text/html,x", "(address left out)"),
        ("[a](javascript:alert`1`)", "a"),
        ("**bold** `code`\n# Title", "bold code\nTitle"),
        ("a\u202eb\u200bc\x00d\x1b[31m", "abcd[31m"),
        ("x" * 9_000, "x" * 3_999 + "…"),
    ],
)
def test_an_answer_has_no_markup_and_no_address(text: str, shown: str) -> None:
    """Nothing of a model leads out of the gateway."""
    assert readable(text) == shown


def test_html_stays_text() -> None:
    """The page escapes it; here it is nothing special."""
    ((part,),) = checked("<script>alert()</script>", known())
    assert (part.kind, part.text) == ("text", "<script>alert()</script>")


def test_it_ends_soon_on_odd_text() -> None:
    """Thousands of digits, brackets and names take no time that counts."""
    rows = [{"tag": f"tag-{number}", "cost_usd": Decimal(number)} for number in range(30)]
    for text in ("[" * 4_000, "1," * 2_000, "$" * 4_000, "9" * 4_000, "tag-1 " * 600, "(" * 2_000 + "[a](" * 500):
        checked(text, known(rows=rows))
