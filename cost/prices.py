"""Prices and the arithmetic on them: integers of nano-dollars, never floats."""

from decimal import Decimal

import msgspec

from cost.usage import Usage

NANO_PER_USD = 1_000_000_000
_TOKENS_PER_PRICE = 1_000_000


def nanousd(usd: Decimal | str | int) -> int:
    """Nano-dollars in an exact dollar amount; a finer amount than a nano-dollar is a ValueError."""
    amount = Decimal(usd) * NANO_PER_USD
    if not amount.is_finite() or amount != amount.to_integral_value():
        raise ValueError(f"{usd} USD is not a whole number of nano-dollars")
    return int(amount)


def usd(amount_nanousd: int) -> Decimal:
    """The exact dollar amount of an integer of nano-dollars."""
    return Decimal(amount_nanousd) / NANO_PER_USD


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """Nano-dollars per million tokens, one figure per meter, as of `version`."""

    version: str
    input_nanousd: int
    output_nanousd: int
    cached_input_nanousd: int
    cache_write_nanousd: int

    def cost_nanousd(self, usage: Usage) -> int:
        """What `usage` costs, rounded half up to a whole nano-dollar once, at the end."""
        uncached = usage.input_tokens - usage.cached_input_tokens - usage.cache_write_tokens
        total = (
            uncached * self.input_nanousd
            + usage.cached_input_tokens * self.cached_input_nanousd
            + usage.cache_write_tokens * self.cache_write_nanousd
            + usage.output_tokens * self.output_nanousd
        )
        return (total + _TOKENS_PER_PRICE // 2) // _TOKENS_PER_PRICE
