"""CSV cells that are safe in spreadsheets: exact, quoted by RFC 4180, and never a formula."""

from collections.abc import Iterable
from decimal import Decimal
from typing import Final

Cell = str | int | Decimal | None

_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""Characters with which a spreadsheet takes a cell for a formula; the last four are full-width forms of the first four.
"""
# Semicolon and tab separate cells in some spreadsheet locales, unless quoted.
_QUOTED: Final = frozenset('",;\t\r\n')


def csv_line(cells: Iterable[Cell]) -> str:
    """Return one line of a CSV file, with CRLF."""
    return ",".join(map(_cell, cells)) + "\r\n"


def safe_text(text: str) -> str:
    """Return `text` with an apostrophe in front if a spreadsheet would run it as a formula."""
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def exact(amount: Decimal) -> str:
    """Return a decimal number without an exponent."""
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
