"""Figures for people: tables, pages and mails show them alike. Files for programs have every digit instead."""

from decimal import Decimal
from typing import Final

from cost.prices import usd

_SMALL: Final = Decimal("0.001")


def money(amount: Decimal) -> str:
    """Dollars: cents from a dollar on, six decimals below, all nine where those would be mostly zeros."""
    size = abs(amount)
    fine = 6 if size >= _SMALL else 9
    places = 2 if size >= 1 or not size else fine
    return f"{'-' if amount < 0 else ''}${size:,.{places}f}"


def nano_money(amount_nanousd: int) -> str:
    """The same for nano-dollars."""
    return money(usd(amount_nanousd))


def percent(part: Decimal | float | None, *, signed: bool = False) -> str:
    """A share from 0 to 1."""
    if part is None:
        return "-"
    return f"{part:+.1%}" if signed else f"{part:.1%}"
