"""Amounts as people write them: one reader for pages, commands, the API and the configuration."""

import re
from decimal import Decimal, InvalidOperation
from typing import Final

_GROUPED: Final = re.compile(r"[1-9][0-9]{0,2}(,[0-9]{3})+(\.[0-9]+)?", re.ASCII)
_COMMA: Final = re.compile(r"-?(?P<whole>[0-9]{1,3}(?:[. ]?[0-9]{3})*|[0-9]+),(?P<rest>[0-9]+)", re.ASCII)
_MOST_CHARS: Final = 40
EXAMPLE: Final = "write it like 20.50, with a point"


class BadAmount(ValueError):
    """A text is no amount. The message says how to write it."""


def ungrouped(text: str) -> str:
    """Return `$1,234.50` as `1234.50`. What is grouped otherwise stays as it is: `1,5` may mean one and a half."""
    plain = text.strip().removeprefix("$")
    return plain.replace(",", "") if _GROUPED.fullmatch(plain) else plain


def amount_in(text: str) -> Decimal:
    """Return the number that people wrote, in whatever unit the field has. Raises BadAmount."""
    plain = ungrouped(text)
    try:
        found = Decimal(plain)
    except InvalidOperation:
        found = Decimal("NaN")
    if not found.is_finite():
        raise BadAmount(problem_of(text))
    return found


def problem_of(text: str) -> str:
    """Return what is wrong with a text that is no amount, and how it is written."""
    told = text.strip()[:_MOST_CHARS]
    comma = _COMMA.fullmatch(told.strip("$€£ "))
    if comma is None:
        return f"“{told}” is no number: {EXAMPLE}."
    sign = "-" if told.strip("$€£ ").startswith("-") else ""
    rest = comma["rest"] + "0" if len(comma["rest"]) == 1 else comma["rest"]
    whole = comma["whole"].replace(".", "").replace(" ", "")
    return f"“{told}” is no number here: write {sign}{whole}.{rest}, with a point."
