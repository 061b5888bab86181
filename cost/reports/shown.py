"""Figures formatted for people, alike in tables, pages and mails. Files for programs have every digit instead."""

from decimal import Decimal
from typing import Final

from cost.prices import usd

_SMALL: Final = Decimal("0.001")


def money(amount: Decimal) -> str:
    """Return dollars as text: cents from a dollar on, six decimals below, nine below a tenth of a cent."""
    size = abs(amount)
    fine = 6 if size >= _SMALL else 9
    places = 2 if size >= 1 or not size else fine
    return f"{'-' if amount < 0 else ''}${size:,.{places}f}"


def nano_money(amount_nanousd: int) -> str:
    """Return nano-dollars as text, formatted as by `money`."""
    return money(usd(amount_nanousd))


def percent(part: Decimal | float | None, *, signed: bool = False) -> str:
    """Return a share (1 is 100 %) as text with one decimal; `-` for None."""
    if part is None:
        return "-"
    return f"{part:+.1%}" if signed else f"{part:.1%}"
