"""Prices that were probably written in another unit than dollars per million tokens."""

import itertools
from collections.abc import Iterator
from decimal import Decimal
from typing import Final

from cost.price_book.price_config import PricesConfig, price_items
from cost.prices import NANO_PER_USD, Price
from providers.config import ProvidersSection
from providers.model_facts import listed_price

_FAR: Final = 100
"""So many times away from the table no discount and no mark-up is."""
_UNITS: Final = ((Decimal(1_000_000), "one token"), (Decimal(1_000), "1,000 tokens"))
_ODDS: Final = 20
"""How far a price may be from the table's, once its unit is guessed."""
_CHEAPEST_USD: Final = Decimal("0.001")
"""Nobody sells a million tokens for less."""
_DEAREST_USD: Final = Decimal(5_000)


def price_hints(section: ProvidersSection) -> Iterator[str]:
    """Yield a sentence, with both figures, for each price that is far from litellm's; without a row there, for one that nobody asks."""
    for model in section.models:
        written = [each for each in price_items(model.prices) if isinstance(each, PricesConfig)]
        listed = listed_price(model) if written else None
        row, price = listed or ("", None)
        found = (
            f"{model.model_id}: prices.{meter} is {_usd(here)} for a million tokens{doubt}"
            for prices in written
            for meter in ("input", "output")
            if (here := Decimal(getattr(prices, meter) or 0))
            and (doubt := _doubt(here, _listed_usd(price, meter), row)) is not None
        )
        # One mistake is mostly all figures'.
        yield from itertools.islice(found, 1)


def _listed_usd(price: Price | None, meter: str) -> Decimal | None:
    nanousd = None if price is None else getattr(price, f"{meter}_nanousd")
    return Decimal(nanousd) / NANO_PER_USD if nanousd else None


def _doubt(here: Decimal, there: Decimal | None, row: str) -> str | None:
    if there is None:
        usual = _CHEAPEST_USD <= here <= _DEAREST_USD
        return None if usual else ", which nobody asks: is it the price of another number of tokens?"
    if there / _FAR <= here <= there * _FAR:
        return None
    known = f", and litellm's table has {_usd(there)} for `{row}`"
    for times, unit in _UNITS:
        if there / _ODDS <= here * times <= there * _ODDS:
            return f"{known}; it looks like the price of {unit}, so multiply by {times:,}"
    return f"{known}; is it the price of another number of tokens?"


def _usd(amount: Decimal) -> str:
    return f"${amount.normalize():f}"
