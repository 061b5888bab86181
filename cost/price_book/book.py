"""The price book: each target's prices with their source and effective date. Pure."""

from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec

from cost.prices import Price

Source = Literal["config", "litellm", "override"]
_PRECEDENCE: Final[dict[str, int]] = {"litellm": 0, "config": 1, "override": 2}


Unpriced = Literal["refuse", "book"]


def is_bookable(price: Price | None, unpriced: Unpriced, *, auto: bool) -> bool:
    """Return True if a target at this price may be called. `auto` never chooses a target without a price."""
    return price is not None or (unpriced == "book" and not auto)


class DatedPrice(msgspec.Struct, frozen=True, kw_only=True):
    """A target's price, its source, and the moment from which it holds."""

    target_id: str
    price: Price
    source: Source
    effective_us: int = 0
    """Microseconds since 1970 from which it is the price; 0 for one without a date."""
    note: str = ""


class PriceBook(msgspec.Struct, frozen=True):
    """Each target's prices by precedence: the last one that is in effect is the price.

    An override comes before the configuration, and that before litellm's table; among those of one source the latest
    date wins, and of two from the same moment the one that was given last.
    """

    prices: Mapping[str, tuple[DatedPrice, ...]] = {}

    def at(self, target_id: str, moment_us: int) -> Price | None:
        """Return the price in effect; None if unknown, which is not a price of 0."""
        found = self.entry_at(target_id, moment_us)
        return None if found is None else found.price

    def entry_at(self, target_id: str, moment_us: int) -> DatedPrice | None:
        """Return the price in effect with its source and date; None if unknown."""
        known = self.prices.get(target_id, ())
        return next((each for each in reversed(known) if each.effective_us <= moment_us), None)

    def next_change_us(self, after_us: int) -> int | None:
        """Return the next moment after this one from which some price holds, even if another one takes precedence."""
        dates = (each.effective_us for known in self.prices.values() for each in known)
        return min((date for date in dates if date > after_us), default=None)

    def entries(self) -> Iterable[DatedPrice]:
        """Return every price in the book, by target."""
        return (each for known in self.prices.values() for each in known)


def price_book(prices: Iterable[DatedPrice]) -> PriceBook:
    """Build a book of these prices."""
    by_target: dict[str, list[DatedPrice]] = {}
    for each in prices:
        by_target.setdefault(each.target_id, []).append(each)
    # Sorting is stable, so what was given last stays last among equals.
    return PriceBook({target: tuple(sorted(known, key=_rank)) for target, known in by_target.items()})


def _rank(each: DatedPrice) -> tuple[int, int]:
    return _PRECEDENCE[each.source], each.effective_us
