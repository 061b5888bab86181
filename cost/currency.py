"""A second currency that amounts are shown in, at a dated rate of the configuration. Books and budgets are in US dollars alone."""

from datetime import date
from decimal import Decimal
from typing import Annotated, Any

import msgspec
from pydantic import AfterValidator, Field

from settings.types import Section


class CurrencyRate(Section):
    """What a US dollar is worth, since when, and who says so."""

    rate: Decimal = Field(gt=0, le=1_000_000, allow_inf_nan=False, description="Units of the currency for a US dollar.")
    as_of: date = Field(description="Day of the rate.")
    source: str = Field(min_length=1, max_length=100, description="Who says so, such as ECB.")


def _not_the_dollar(code: str) -> str:
    if code == "USD":
        raise ValueError("amounts are in US dollars anyway")
    return code


ShownCurrency = dict[Annotated[str, Field(pattern="^[A-Z]{3}$"), AfterValidator(_not_the_dollar)], CurrencyRate]


class SecondCurrency(msgspec.Struct, frozen=True):
    """The currency beside dollars."""

    code: str
    rate: Decimal
    as_of: date
    source: str

    def of(self, nanousd: int) -> Decimal:
        """Return an amount in the currency, unrounded."""
        return Decimal(nanousd).scaleb(-9) * self.rate

    def shown(self, nanousd: int) -> str:
        """Return an amount for people: with cents, or with as many digits as a small one needs."""
        amount = self.of(nanousd)
        digits = 2 if amount == 0 or abs(amount) >= Decimal("0.1") else 1 - amount.adjusted()
        return f"{amount:,.{digits}f} {self.code}"

    @property
    def told(self) -> str:
        """Rate, day and source in words."""
        return f"{self.rate:f} {self.code} to the US dollar of {self.as_of.isoformat()} ({self.source})"

    @property
    def column(self) -> str:
        """The end of a CSV column's heading, with rate and day."""
        return f"_{self.code.lower()}_at_{self.rate:f}_of_{self.as_of.isoformat()}"


def second_currency(configured: Any) -> SecondCurrency | None:
    """Return the configured currency, or None."""
    for code, found in configured.items():
        return SecondCurrency(code, found.rate, found.as_of, found.source)
    return None
