"""Cells of CSV files, which spreadsheets open: exact, quoted by RFC 4180, and never a formula."""

from collections.abc import Iterable
from decimal import Decimal
from typing import Final

Cell = str | int | Decimal | None

_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What makes a spreadsheet take a cell for a formula; the last four are the full-width forms of the first four."""
# The semicolon and the tab part cells where a spreadsheet is set up so; quoted, they do not.
_QUOTED: Final = frozenset('",;\t\r\n')


def csv_line(cells: Iterable[Cell]) -> str:
    """One line of a CSV file, with its end."""
    return ",".join(map(_cell, cells)) + "\r\n"


def safe_text(text: str) -> str:
    """`text` as a spreadsheet shows it and never runs it."""
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def exact(amount: Decimal) -> str:
    """A decimal number written out, never with an exponent."""
    return format(amount, "f")


def _cell(value: Cell) -> str:
    if value is None:
        return ""
    if isinstance(value, Decimal):
        return exact(value)
    if isinstance(value, int):
        # A number stays one, also below zero: only text can be a formula.
        return str(value)
    text = safe_text(value)
    return '"' + text.replace('"', '""') + '"' if _QUOTED.intersection(text) else text
