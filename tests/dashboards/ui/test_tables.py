"""Tables whose state is the address."""

import csv
import io
from typing import Any
from urllib.parse import parse_qs

import pytest

from dashboards.ui.rendering import environment
from dashboards.ui.tables import Column, Kind, LazyRow, Row, Table, table_asked

COLUMNS = (
    Column("name", "Name"),
    Column("cost", "Cost", "money"),
    Column("kept", "Kept", "share"),
    Column("state", "State", "badge"),
    Column("at", "At", "time"),
)
ROWS: list[dict[str, Any]] = [
    {"name": "beta", "cost": 2_000_000_000, "kept": 0.5, "state": ("open", "bad"), "at": 2_000_000},
    {"name": "=cmd()", "cost": None, "kept": None, "state": ("closed", "good"), "at": None},
    {"name": "Alpha", "cost": 10_000_000_001, "kept": 0.25, "state": ("closed", "good"), "at": 1_000_000},
]


def names(table: Table) -> list[str]:
    return [row["name"] for row in table.rows]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, ["Alpha", "beta", "=cmd()"]),
        ({"sort": "cost"}, ["beta", "Alpha", "=cmd()"]),
        ({"sort": "name"}, ["=cmd()", "Alpha", "beta"]),
        ({"sort": "-state"}, ["beta", "=cmd()", "Alpha"]),
        ({"sort": "nonsense"}, ["Alpha", "beta", "=cmd()"]),
        ({"q": "ALP"}, ["Alpha"]),
        ({"q": "nobody"}, []),
        ({"page": "99"}, ["Alpha", "beta", "=cmd()"]),
        ({"page": "-1"}, ["Alpha", "beta", "=cmd()"]),
        ({"page": "²"}, ["Alpha", "beta", "=cmd()"]),
    ],
)
def test_state_is_the_address(query: dict[str, str], expected: list[str]) -> None:
    """Sorted and searched as it says; what it says wrongly is left out; unknown figures stand last."""
    assert names(Table.of(COLUMNS, ROWS, query, sort="-cost", search=("name",))) == expected


@pytest.mark.parametrize(
    ("key", "kind", "heading"),
    [
        ("cost", "money", "cost_usd"),
        ("cost_usd", "money", "cost_usd"),
        ("share", "share", "share"),
        ("saved_share", "share", "saved_share"),
        ("kept", "exact_share", "kept_share"),
        ("bytes", "bytes", "bytes"),
        ("share", "number", "share"),
    ],
)
def test_a_heading_of_a_file_tells_the_unit_once(key: str, kind: Kind, heading: str) -> None:
    assert Column(key, "Label", kind).heading == heading


def test_pages() -> None:
    """Each page leads to the next and the one before, and keeps what else the address had."""
    rows = [
        {"name": f"n{place:03}", "cost": place, "kept": None, "state": ("s", ""), "at": None} for place in range(120)
    ]
    first = Table.of(COLUMNS, rows, {"sort": "name", "days": "7"}, page_rows=50)
    assert first.previous_href is None
    assert first.next_href is not None
    assert parse_qs(first.next_href[1:]) == {"sort": ["name"], "days": ["7"], "page": ["2"]}
    last = Table.of(COLUMNS, rows, {"page": "3"}, page_rows=50, sort="name")
    assert (len(last.rows), last.first, last.total, last.next_href) == (20, 101, 120, None)


def test_two_tables_on_a_page() -> None:
    """Each one's state has its own prefix, and the other's is kept."""
    table = Table.of(COLUMNS, ROWS, {"a.sort": "cost", "b.sort": "name"}, name="b")
    assert names(table) == ["=cmd()", "Alpha", "beta"]
    kept = parse_qs((table.headings[1].href or "")[1:])
    assert kept == {"a.sort": ["cost"], "b.sort": ["-cost"], "b.page": ["1"]}
    assert table_asked({"format": "csv", "table": "b"}, {"b": table}) is table
    assert table_asked({"format": "csv", "table": "c"}, {"b": table}) is None
    assert table_asked({"table": "b"}, {"b": table}) is None


def test_csv_is_exact_and_no_formula() -> None:
    """Every row that the filter lets through; dollars to the last digit; a name that begins like a formula is text."""
    table = Table.of(COLUMNS, ROWS, {"page": "2"}, sort="-cost", page_rows=1)
    found = list(csv.reader(io.StringIO(table.csv())))
    assert found[0] == ["name", "cost_usd", "kept_share", "state", "at"]
    assert found[1] == ["Alpha", "10.000000001", "0.25", "closed", "1970-01-01T00:00:01.000Z"]
    assert found[3] == ["'=cmd()", "", "", "closed", ""]


def test_markup_is_inert() -> None:
    """A name that is markup is shown as text, in cells and in headings' links alike."""
    rows = [{**ROWS[0], "name": "<script>alert(1)</script>"}]
    table = Table.of(COLUMNS, rows, {"x": '"><script>'}, search=("name",))
    page = environment().from_string('{% import "ui.html" as ui with context %}{{ ui.table(t) }}')
    text = page.render(t=table, title="T", csrf="c")
    assert "<script>" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert 'title="$2.000000000"' in text


CHOSEN = (Column("name", "Name"), Column("cost", "Cost", "money"), Column("kept", "Kept", "share", usual=False))


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("", ["name", "cost"]),
        ("kept,name", ["name", "kept"]),
        ("nonsense", ["name", "cost"]),
        ("cost,nonsense", ["cost"]),
        ("x" * 5_000 + ",kept", ["name", "cost"]),
    ],
)
def test_columns_are_chosen_by_the_address(asked: str, expected: list[str]) -> None:
    """In the table's own order; what the address says wrongly is left out, and a file has all of them."""
    table = Table.of(CHOSEN, ROWS, {"columns": asked, "sort": "name"})
    assert [column.key for column in table.columns] == [heading.column.key for heading in table.headings] == expected
    assert table.csv().splitlines()[0] == "name,cost_usd,kept_share"
    assert [each.is_shown for each in table.choices] == [column.key in expected for column in CHOSEN]


def test_a_column_is_added_and_taken_away_by_a_link() -> None:
    """The rest of the address stays; the last column cannot be taken away; nothing to choose where all are usual."""
    usual = Table.of(CHOSEN, ROWS, {"sort": "name"})
    links = [parse_qs(each.href[1:]) for each in usual.choices]
    assert [each["columns"] for each in links] == [["cost"], ["name"], ["name,cost,kept"]]
    assert all(each["sort"] == ["name"] for each in links)
    (last,) = [each for each in Table.of(CHOSEN, ROWS, {"columns": "cost"}).choices if each.is_shown]
    assert parse_qs(last.href[1:])["columns"] == ["cost"]
    assert Table.of(COLUMNS, ROWS, {}).choices == ()


def test_rows_are_made_where_they_are_shown() -> None:
    """Of five hundred that are sorted by what is known at once, the fifty of the page; another order or a search makes them all."""
    made: list[int] = []

    def row_of(place: int) -> LazyRow:
        def make() -> Row:
            made.append(place)
            return {"name": f"n{place}", "cost": place, "kept": None, "state": ("open", "bad"), "at": None}

        return LazyRow({"cost": place}, make)

    def table(query: dict[str, str]) -> list[str]:
        made.clear()
        return names(Table.of(COLUMNS, map(row_of, range(500)), query, sort="-cost", search=("name",)))

    assert table({"page": "2"})[0] == "n449"
    assert sorted(made) == list(range(400, 450))
    assert table({"sort": "name"})[:2] == ["n0", "n1"]
    assert len(made) == 500
    assert table({"q": "n42"})[:2] == ["n429", "n428"]
    row = row_of(3)
    assert dict(row) == {"name": "n3", "cost": 3, "kept": None, "state": ("open", "bad"), "at": None}
    assert (len(row), row["name"], row.get("nothing")) == (5, "n3", None)
