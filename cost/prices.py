"""Prices and the arithmetic on them: integers of nano-dollars, never floats."""

from decimal import Decimal, InvalidOperation

import msgspec

from cost.usage import Usage

NANO_PER_USD = 1_000_000_000
_TOKENS_PER_PRICE = 1_000_000
MOST_USD_PER_MILLION = 1_000_000


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


def usd_per_million(text: Decimal | str | float) -> int:
    """Nano-dollars in a listed price of dollars per million tokens, exactly.

    A float is what YAML makes of `0.15`; its shortest text is what stood in the file, so that text
    is read, and not the binary fraction behind it.
    """
    if isinstance(text, bool):
        raise ValueError(f"{text} is no price")  # noqa: TRY004  A configuration's value, not a caller's type.
    try:
        amount = Decimal(repr(text)) if isinstance(text, float) else Decimal(text)
    except InvalidOperation as failure:
        raise ValueError(f"{text!r} is no price in dollars") from failure
    if not amount.is_finite() or amount < 0:
        raise ValueError(f"{text} is no price: it must be finite and not negative")
    if amount > MOST_USD_PER_MILLION:
        raise ValueError(f"{text} USD per million tokens is beyond any price; the most is {MOST_USD_PER_MILLION}")
    return nanousd(amount)


def price_from_usd(
    *,
    version: str,
    input_usd: Decimal | str | float,
    output_usd: Decimal | str | float,
    cached_input_usd: Decimal | str | float | None = None,
    cache_write_usd: Decimal | str | float | None = None,
) -> Price:
    """A price from a list in dollars per million tokens; what has no price of its own costs what input costs."""
    input_nanousd = usd_per_million(input_usd)
    return Price(
        version=version,
        input_nanousd=input_nanousd,
        output_nanousd=usd_per_million(output_usd),
        cached_input_nanousd=input_nanousd if cached_input_usd is None else usd_per_million(cached_input_usd),
        cache_write_nanousd=input_nanousd if cache_write_usd is None else usd_per_million(cache_write_usd),
    )
