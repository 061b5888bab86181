"""Prices as plain values, for the command line and the API: exact decimals as text, and None for unknown ones."""

import datetime as dt
import json
from decimal import Decimal
from typing import Any, Final

from pydantic import ValidationError

from cost import times
from cost.meters import METER_NAMES
from cost.price_book.book import DatedPrice, PriceBook
from cost.price_book.price_config import EnteredPrices
from cost.prices import Price, usd
from settings.words import closest, in_words

_MOST_UPCOMING: Final = 16


class BadPrice(ValueError):
    """An entered price is not valid. `field` names the field; the message gives the reason."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"`{field}` {why}" if field else why)
        self.field = field


def prices_as_json(book: PriceBook, target_id: str, at_us: int) -> dict[str, Any]:
    """Return a target's price at a moment, and upcoming ones."""
    known = book.prices.get(target_id, ())
    later = [each for each in known if each.effective_us > at_us]
    upcoming = sorted(later, key=lambda each: each.effective_us)[:_MOST_UPCOMING]
    return {
        "object": "price",
        "target": target_id,
        **entry_told(book.entry_at(target_id, at_us)),
        "upcoming": [entry_told(each) for each in upcoming],
    }


def entry_told(entry: DatedPrice | None) -> dict[str, Any]:
    """Return one price with its source and date; all None without one."""
    if entry is None:
        return {"version": None, "source": None, "effective_from": None, "note": "", **figures_told(None)}
    return {
        "version": entry.price.version,
        "source": entry.source,
        "effective_from": day_of(entry.effective_us) if entry.effective_us else None,
        "note": entry.note,
        **figures_told(entry.price),
    }


def figures_told(price: Price | None) -> dict[str, Any]:
    """Return a price's figures by meter; None without a price."""
    if price is None:
        nothing: dict[str, Any] = {
            "usd_per_million_tokens": None,
            "usd_per_request": None,
            "usd_per_tool_call": {},
            "usd_per_unit": {},
            "long_prompts": [],
        }
        return {**nothing, "batch": None, "flex": None, "priority": None}
    return {
        "usd_per_million_tokens": _per_million(price),
        "usd_per_request": exact(usd(price.request_nanousd)),
        "usd_per_tool_call": {name: exact(usd(figure)) for name, figure in price.tool_calls},
        "usd_per_unit": {each.unit: exact(each.usd) for each in price.units},
        "long_prompts": [
            {"above_tokens": each.above_tokens, "usd_per_million_tokens": _per_million(each.price)}
            for each in price.long_prompts
        ],
        **{
            terms: None if other is None else figures_told(other)
            for terms, other in (("batch", price.batch), ("flex", price.flex), ("priority", price.priority))
        },
    }


def _per_million(price: Price) -> dict[str, str]:
    figures = dict(zip(METER_NAMES, price.figures(), strict=True))
    return {name: exact(usd(figure)) for name, figure in figures.items() if name != "request"}


def exact(amount: Decimal) -> str:
    """Return a number with every digit, without an exponent."""
    return f"{amount.normalize():f}"


def day_of(at_us: int) -> str:
    """Return the UTC day of a moment, ISO 8601."""
    return times.day_of(at_us).isoformat()


def today(now_us: int) -> dt.date:
    """Return the UTC day of `now_us`."""
    return times.day_of(now_us)


def parse_prices(text: str | bytes) -> dict[str, Any]:
    """Return a JSON object, its numbers as the decimals written there. Raises BadPrice."""
    try:
        found = json.loads(
            text, parse_float=Decimal, parse_constant=_no_constant, object_pairs_hook=_without_repeated_keys
        )
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise BadPrice("", str(error) if isinstance(error, BadPrice) else "this is not JSON") from error
    if not isinstance(found, dict):
        raise BadPrice("", "this is not an object such as " + '{"input": "2.50", "output": "10"}')
    return found


def checked_prices(values: dict[str, Any]) -> EnteredPrices:
    """Return an entered price, validated. Raises BadPrice for the first error."""
    try:
        return EnteredPrices.model_validate(values)
    except ValidationError as error:
        # A field that is not known is often the one that is missing, misspelt.
        first = min(error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden")
        place = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            near = closest(str(first["loc"][-1]), EnteredPrices.model_fields)
            raise BadPrice(place, "is not known" + (f"; did you mean `{near}`?" if near else "")) from error
        if first["type"] == "missing":
            raise BadPrice(place, "is required") from error
        if first["type"] == "value_error":
            raise BadPrice(place, f"{first.get('ctx', {}).get('error', 'is not valid')}") from error
        raise BadPrice(place, in_words(first)) from error


def _no_constant(name: str) -> None:
    raise BadPrice("", f"{name} is no price")


def _without_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise BadPrice("", "a field stands there twice")
    for name, value in pairs:
        _check_letters(name)
        _check_letters(value)
    return found


def _check_letters(value: Any) -> None:
    """Refuse half a letter, which JSON may escape and which no answer that repeats it could be written with."""
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise BadPrice("", "there is half of a pair of surrogates in it, which is no letter") from error
    elif isinstance(value, list):
        for each in value:
            _check_letters(each)
