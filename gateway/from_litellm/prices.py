"""Prices of LiteLLM's entries, dollars for a token, as prices of ours, dollars for a million."""

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from cost.meters import METERS, TOKEN_METERS
from cost.price_book.litellm_table import LitellmTable
from cost.prices import Price, usd
from gateway.configuration.file import Value

_COST: Final = ("_cost_per_", "_cost_above_", "_input_token_cost")
_ALSO: Final = frozenset({"tiered_pricing", "search_context_cost_per_query"})
_EITHER: Final = ("input_cost_per_token", "output_cost_per_token")
_OWN: Final = {each.name: each.within for each in METERS if each.within}


def is_price(key: str) -> bool:
    """Return True for a key of LiteLLM's that is a price."""
    return key in _ALSO or any(part in key for part in _COST)


_TOO_MUCH: Final = Decimal("1E18")


def number_in(value: Value) -> Decimal | None:
    """Return the number that a value is, also as text such as `5e-07`; None for none, and for one that no price, rate or time is."""
    if isinstance(value, bool) or not isinstance(value, int | str | Decimal):
        return None
    try:
        found = Decimal(value)
    except InvalidOperation:
        return None
    # Compared first: a whole number of a billion digits is never made.
    return found if found.is_finite() and -_TOO_MUCH < found < _TOO_MUCH else None


def prices_of(costs: Mapping[str, Value], mode: str) -> dict[str, Any] | None:
    """Return our prices for an entry's own ones; None where they make no price."""
    row: dict[str, Any] = {name: _figures(value) for name, value in costs.items()} | ({"mode": mode} if mode else {})
    zero = {name: Decimal(0) for name in ("input", "output")}
    told = [row.get(name) for name in _EITHER]
    if any(figure is not None for figure in told) and not any(told):
        return dict(zero)
    missing = [name for name, figure in zip(_EITHER, told, strict=True) if not figure]
    if len(missing) == 1 and any(told):
        # A table's 0 means unknown; whoever writes one side of his own has the other for nothing.
        row[missing[0]] = _NEXT_TO_NOTHING
    price = LitellmTable("", {"it": row}).price("it")
    return None if price is None else _written(price, with_units=True)


_NEXT_TO_NOTHING: Final = Decimal("1E-30")
"""A price that is a price, and rounds to none."""


def _figures(value: Value) -> Any:
    if isinstance(value, dict):
        return {name: _figures(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_figures(inner) for inner in value]
    found = number_in(value)
    return value if found is None else found


def _written(price: Price, *, with_units: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for meter in TOKEN_METERS:
        figure = getattr(price, f"{meter}_nanousd")
        if figure is not None and not (_OWN.get(meter) == "input" and figure == price.input_nanousd):
            found[meter] = usd(figure)
    if price.request_nanousd and with_units:
        found["request"] = usd(price.request_nanousd)
    if with_units and price.units:
        found["units"] = {each.unit: each.usd for each in price.units}
    if with_units and price.tool_calls:
        found["tool_calls"] = {name: usd(amount) for name, amount in price.tool_calls}
    if price.long_prompts:
        found["long_prompts"] = [
            {"above_tokens": each.above_tokens, **_alike(_written(each.price, with_units=False), found, each.price)}
            for each in price.long_prompts
        ]
    if with_units:
        for tier in ("batch", "flex", "priority"):
            other: Price | None = getattr(price, tier)
            if other is not None:
                found[tier] = _alike(_written(other, with_units=False), found, other)
    return found


def _alike(written: dict[str, Any], base: Mapping[str, Any], price: Price) -> dict[str, Any]:
    """Return a price beside another one with every optional figure that the other has: one left out would be a guess."""
    for meter in _OWN:
        if meter in base and meter not in written:
            figure = getattr(price, f"{meter}_nanousd")
            written[meter] = usd(figure) if figure is not None else written.get(_OWN[meter], written["input"])
    return written
