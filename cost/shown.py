"""Amounts and shares formatted for people, alike on pages, in tables of commands, in sentences and mails.

A minus is a hyphen before the sign of the currency, and a blank stands before the sign of percent. Files for programs have every
digit instead.
"""

from decimal import Decimal
from fractions import Fraction
from typing import Final

_SMALL: Final = Decimal("0.001")
_HUNDRED: Final = 100


def money(amount: Decimal) -> str:
    """Return dollars as text: cents from a dollar on, six decimals below, nine below a tenth of a cent."""
    size = abs(amount)
    fine = 6 if size >= _SMALL else 9
    return rounded_money(amount, 2 if size >= 1 or not size else fine)


def nano_money(amount_nanousd: int) -> str:
    """Return nano-dollars as text, formatted as by `money`."""
    return money(Decimal(amount_nanousd).scaleb(-9))


def rounded_money(amount: Decimal | float, places: int = 2) -> str:
    """Return dollars with so many decimals."""
    return f"{'-' if amount < 0 else ''}${abs(amount):,.{places}f}"


def fine_money(amount_nanousd: int) -> str:
    """Return nano-dollars with cents, or with as many decimals as the amount needs."""
    exact = Decimal(amount_nanousd).scaleb(-9).normalize()
    return rounded_money(exact, max(2, -int(exact.as_tuple().exponent)))


def percent(
    part: Decimal | float | Fraction | None, places: int = 1, *, signed: bool = False, unknown: str = "-"
) -> str:
    """Return a share (1 is 100 %) as text. Only what is exactly nothing or all reads as 0 % and 100 %; a change has its sign."""
    if part is None:
        return unknown
    whole = Decimal(part.numerator) / part.denominator if isinstance(part, Fraction) else Decimal(str(part))
    value, least = whole * _HUNDRED, Decimal(1).scaleb(-places)
    if signed:
        return f"{value:+,.{places}f} %"
    if value and abs(value) < least / (2 if not places else 1):
        return f"<{least} %" if value > 0 else f">-{least} %"
    if _HUNDRED - least < value < _HUNDRED:
        return f">{_HUNDRED - least} %"
    return f"{value:,.{places}f} %"
