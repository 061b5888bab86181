"""Usage of the metered operations: tokens where a provider tells and bills those, else its own units. Pure."""

from typing import Final

import msgspec

from cost.prices import Price
from cost.usage import ABSURD, MISSING, Usage, estimated, from_openai
from providers.wire import ChatRequest, Operation, UsedUnits, WireUsage
from proxy.plan.routed_request import RoutedRequest

_MISSING: Final = (MISSING,)
_WRITES_NOTHING: Final[frozenset[Operation]] = frozenset({"rerank", "moderations"})


def metered_usage(
    routed: RoutedRequest,
    price: Price | None,
    wire: WireUsage | None,
    units: UsedUnits | None,
    *,
    most_input: int,
    most_output: int,
) -> Usage:
    """Return the usage of an attempt so far, by the upstream's report: its tokens, and its units beside them. A
    report above plausible amounts, or above the request's, is not believed.
    """
    request = routed.request
    unit = _priced_name(price, request.unit)
    tokens = _tokens(routed, wire, most_input, most_output)
    is_sold_by_unit = price is not None and price.priced_unit(unit) is not None
    # A report that is not believed is still one of tokens where nothing else has a price.
    is_told = wire is not None and (tokens.source == "upstream" or not is_sold_by_unit)
    bills_tokens = price is None or price.has_tokens or not is_sold_by_unit
    if units is not None and (request.operation == "rerank" or not (is_told and bills_tokens)):
        # A guess of tokens is no part of a bill by units.
        return _with_units(tokens if is_told else Usage(), request, unit, units)
    if is_told and bills_tokens:
        return tokens
    if not unit or (request.operation == "rerank" and bills_tokens):
        return tokens
    # Reported tokens are booked, too, though only the unit has a price.
    beside = msgspec.structs.replace(tokens if is_told else Usage(), unit=unit, quantity_milli=request.units_milli)
    if request.operation == "speech":
        # Billed by the text to be spoken, which is known from the start.
        return msgspec.structs.replace(beside, source="counted")
    return msgspec.structs.replace(beside, source="estimated", flags=(*beside.flags, MISSING))


def _with_units(tokens: Usage, request: ChatRequest, unit: str, told: UsedUnits) -> Usage:
    booked = msgspec.structs.replace(tokens, unit=unit or told.unit, source="upstream", flags=tokens.flags)
    most = request.most_units_milli
    if most and told.milli > most:
        return msgspec.structs.replace(booked, quantity_milli=most, source="estimated", flags=(ABSURD,))
    # Pictures are counted here.
    source: Final = "counted" if told.unit == "image" else "upstream"
    return msgspec.structs.replace(booked, quantity_milli=told.milli, source=source)


def _tokens(routed: RoutedRequest, wire: WireUsage | None, most_input: int, most_output: int) -> Usage:
    # Of an answer that says more than was held for it, all of that is booked.
    is_held = wire is not None and routed.facts.bounded and routed.request.operation not in _WRITES_NOTHING
    guess = estimated(input_tokens=routed.facts.input_tokens, output_tokens=most_output if is_held else 0)
    if wire is None:
        return msgspec.structs.replace(guess, flags=_MISSING)
    told = from_openai(wire, estimate=guess, max_input_tokens=most_input, max_output_tokens=most_output)
    if routed.request.operation == "images" and wire.completion_tokens_details is None:
        # Pictures are all that it makes, and most hosts do not say so.
        return msgspec.structs.replace(told, image_output_tokens=told.output_tokens - told.reasoning_tokens)
    return told


def _priced_name(price: Price | None, unit: str) -> str:
    """Return the most particular name of a unit that has a price, so that units of the same price are booked
    together.
    """
    found = None if price is None or not unit else price.priced_unit(unit)
    return unit.partition("/")[0] if found is None else found.unit
