"""The price book: every target's prices with the days from which they hold, and who said so. Pure."""

from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec

from cost.prices import Price

Source = Literal["config", "litellm", "override"]
_PRECEDENCE: Final[dict[str, int]] = {"litellm": 0, "config": 1, "override": 2}


Unpriced = Literal["refuse", "book"]


def is_bookable(price: Price | None, unpriced: Unpriced, *, auto: bool) -> bool:
    """Whether a request may go to a target at this price. One without a price is never chosen for the caller."""
    return price is not None or (unpriced == "book" and not auto)


class DatedPrice(msgspec.Struct, frozen=True, kw_only=True):
    """A target's price from a moment on, and where it comes from."""

    target_id: str
    price: Price
    source: Source
    effective_us: int = 0
    """From when on it is the price; 0 for one without a date."""
    note: str = ""


class PriceBook(msgspec.Struct, frozen=True):
    """Each target's prices by rank: the last one that is in effect is the price.

    What an operator entered comes before the configuration, and that before litellm's table; among those of one source
    the latest counts, and of two from the same moment the one that was given last.
    """

    prices: Mapping[str, tuple[DatedPrice, ...]] = {}

    def at(self, target_id: str, moment_us: int) -> Price | None:
        """The price in effect; None when there is none, which is not the same as a price of 0."""
        found = self.entry_at(target_id, moment_us)
        return None if found is None else found.price

    def entry_at(self, target_id: str, moment_us: int) -> DatedPrice | None:
        """The same with its source and its date."""
        known = self.prices.get(target_id, ())
        return next((each for each in reversed(known) if each.effective_us <= moment_us), None)

    def next_change_us(self, after_us: int) -> int | None:
        """The next moment from which some price holds, whether or not it will be the one that counts."""
        dates = (each.effective_us for known in self.prices.values() for each in known)
        return min((date for date in dates if date > after_us), default=None)

    def entries(self) -> Iterable[DatedPrice]:
        """Everything in it."""
        return (each for known in self.prices.values() for each in known)


def price_book(prices: Iterable[DatedPrice]) -> PriceBook:
    """A book of these prices."""
    by_target: dict[str, list[DatedPrice]] = {}
    for each in prices:
        by_target.setdefault(each.target_id, []).append(each)
    # Sorting is stable, so what was given last stays last among equals.
    return PriceBook({target: tuple(sorted(known, key=_rank)) for target, known in by_target.items()})


def _rank(each: DatedPrice) -> tuple[int, int]:
    return _PRECEDENCE[each.source], each.effective_us
