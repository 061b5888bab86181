"""Usage of the metered operations: tokens where a provider tells and bills those, else its own units. Pure."""

from collections.abc import Mapping
from typing import Final

import msgspec

from cost.prices import Price
from cost.usage import DISPUTED, MISSING, Usage, estimated, from_openai
from cost.usage_names import COMPLETION_DETAILS
from providers.target import Target
from providers.wire import DRAWS, ChatRequest, Operation, UsedUnits, WireUsage
from proxy.plan.route_plan import longest_answer
from proxy.plan.routed_request import RoutedRequest

_MISSING: Final = (MISSING,)
_WRITES_NOTHING: Final[frozenset[Operation]] = frozenset({"rerank", "moderations"})


def metered_usage(
    routed: RoutedRequest,
    target: Target,
    wire: WireUsage | None,
    units: UsedUnits | None,
    *,
    most_input: int,
    most_output: int,
) -> Usage:
    """Return what an attempt used so far, by what the upstream told: its tokens, and its units beside them.

    `most_input` and `most_output` are the most tokens that are possible.
    """
    request, price = routed.request, target.price
    unit = _priced_name(price, request.unit)
    tokens = _tokens(routed, target, wire, most_input, most_output)
    is_sold_by_unit = price is not None and price.priced_unit(unit) is not None
    # A report that cannot be read is still one of tokens where nothing else has a price.
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
        rest = told.milli - most
        return msgspec.structs.replace(
            booked, quantity_milli=most, disputed_milli=rest, flags=tuple(dict.fromkeys((*tokens.flags, DISPUTED)))
        )
    # Pictures are counted here.
    source: Final = "counted" if told.unit == "image" else "upstream"
    return msgspec.structs.replace(booked, quantity_milli=told.milli, source=source)


def _tokens(routed: RoutedRequest, target: Target, wire: WireUsage | None, most_input: int, most_output: int) -> Usage:
    facts = routed.facts
    # Of an answer whose report cannot be read, all that was held for it is booked.
    is_held = wire is not None and facts.bounded and routed.request.operation not in _WRITES_NOTHING
    longest = longest_answer(target, facts) if is_held else None
    guess = estimated(input_tokens=facts.input_tokens, output_tokens=(longest or 0) * facts.choices)
    if wire is None:
        return msgspec.structs.replace(guess, flags=_MISSING)
    told = from_openai(wire, estimate=guess, max_input_tokens=most_input, max_output_tokens=most_output)
    made = _MADE.get(routed.request.operation)
    if made is not None and wire.get(COMPLETION_DETAILS) is None:
        # They are all that it makes, and most hosts do not say so.
        return msgspec.structs.replace(told, **{made: told.output_tokens - told.reasoning_tokens})
    return told


_MADE: Final[Mapping[Operation, str]] = {
    **dict.fromkeys(DRAWS, "image_output_tokens"),
    "speech": "audio_output_tokens",
}
"""Fields of a Usage for what an answer of an operation consists of."""


def _priced_name(price: Price | None, unit: str) -> str:
    """Return the most particular name of a unit that has a price, so that units of the same price are booked
    together.
    """
    found = None if price is None or not unit else price.priced_unit(unit)
    return unit.partition("/")[0] if found is None else found.unit
