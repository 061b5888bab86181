"""CSV: exact, quoted by the book, and never a formula."""

import csv
import io
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.reports.cells import csv_line, safe_text


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠"])  # noqa: RUF001
def test_what_could_be_a_formula_is_text(start: str) -> None:
    """An apostrophe stands before it, and the rest is as it was."""
    assert safe_text(f"{start}cmd|' /C calc'!A0") == f"'{start}cmd|' /C calc'!A0"
    assert safe_text(f"a{start}b") == f"a{start}b"


def test_numbers_stay_numbers() -> None:
    """Below zero too, and exactly: a nano-dollar is written out."""
    assert csv_line([-5, Decimal("-0.000000001"), Decimal("1E-9"), Decimal("1E+3"), 0, None]) == (
        "-5,-0.000000001,0.000000001,1000,0,\r\n"
    )


def test_cells_are_quoted_where_they_must_be() -> None:
    """Quotes are doubled; what could part cells, in any country, stands in quotes."""
    assert csv_line(['say "hi"', "a,b", "a;b", "two\r\nlines", "plain", ""]) == (
        '"say ""hi""","a,b","a;b","two\r\nlines",plain,\r\n'
    )


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1), min_size=2))
def test_every_reader_gets_back_what_was_written(cells: list[str]) -> None:
    """Python's reader, strict, finds the same cells, made safe; and none of them begins like a formula."""
    (found,) = csv.reader(io.StringIO(csv_line(cells), newline=""), strict=True)
    assert found == [safe_text(cell) for cell in cells]
    assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) for cell in found)
