"""The money of one attempt: usage, cost by meter and baselines. Pure functions."""

import math
from typing import Final

import msgspec

from cost.meters import OUTPUT_COLUMNS, ZERO_METERS, Meters
from cost.prices import Price, ServiceTier
from cost.savings.comparators import NO_BASELINES, Baselines
from cost.usage import MISSING, UNPRICED_CALLS, Usage, estimated, from_openai, plain_usage
from providers.target import NOT_CHAT, Target
from providers.wire import METERED, UsedUnits, WireUsage
from proxy.dispatch.metered_usage import metered_usage
from proxy.plan.route_plan import Facts, is_own, longest_answer
from proxy.plan.routed_request import RoutedRequest

# Characters a token in English text, the rule of thumb of OpenAI's tokenizer guide. It serves only where an
# upstream merged tokens into larger events; otherwise an event is a token.
_CHARS_PER_TOKEN: Final = 4

_MARKS: Final = 16
_PLAUSIBLE: Final = 2
"""The multiple of the target's configured context length above which an upstream's token count is not believed."""

_ROUNDS: Final = 32
"""The rounds of provider-run tools in one answer whose tokens are still believed."""


class Money(msgspec.Struct, frozen=True):
    """Usage, its cost by meter in nano-dollars, and its baselines. Costs are None without a price."""

    usage: Usage
    costs_nanousd: Meters | None
    cost_nanousd: int | None
    """The sum of `costs_nanousd`."""
    baselines: Baselines
    batch_saved_nanousd: int = 0
    """The difference between the usual price and the cost, for the tier batch."""


NOTHING: Final = Money(Usage(), ZERO_METERS, 0, NO_BASELINES)
"""The money of an attempt that used nothing."""


def money_of(routed: RoutedRequest, target: Target, usage: Usage, served_tier: str | None = None) -> Money:
    """Price the usage at the target's current price, and compute its baselines. `served_tier` is the provider's
    service tier as the upstream told it, which may be another than was asked for.
    """
    usual, asked = target.price, routed.facts.service_tier
    if usual is None:
        return Money(usage, None, None, NO_BASELINES)
    price = usual if asked is None else usual.of_tier(_tier(asked, target, served_tier))
    if not price.covers(usage):
        return Money(usage, None, None, NO_BASELINES)
    costs = price.costs_nanousd(usage, batch=routed.at_batch_price)
    cost = sum(costs)
    saved = usual.cost_nanousd(usage) - cost if routed.facts.tier == "batch" else 0
    if usage.tool_calls:
        usage, costs = _with_tool_calls(usual, usage, costs)
        cost = sum(costs)
    whole, spent = usage, cost
    if routed.before is not None:
        # The part of the answer before it broke off is compared here, once, with the cost of the whole answer.
        whole, spent = whole_usage(routed.before.usage, usage), spent + (routed.before.cost_nanousd or 0)
    return Money(usage, costs, cost, _baselines(routed, target, whole, spent), saved)


def whole_usage(first: Usage, rest: Usage) -> Usage:
    """Return the usage of an answer that was continued: the prompt once, and all of the answer."""
    return msgspec.structs.replace(
        first,
        **{name: getattr(first, name) + getattr(rest, name) for name in OUTPUT_COLUMNS},
        source=rest.source if first.source == "upstream" else first.source,
        flags=rest.flags,
    )


def _with_tool_calls(price: Price, usage: Usage, costs: Meters) -> tuple[Usage, Meters]:
    """Add the calls of tools that the provider ran to the cost of the request; where one of them has no price, the
    usage is flagged as without it.
    """
    called, unpriced = price.calls_nanousd(usage.tool_calls)
    if unpriced:
        usage = flagged(usage, (UNPRICED_CALLS,))
    return usage, (*costs[:-1], costs[-1] + called)


def _most_output(target: Target, facts: Facts, plausible: int) -> int:
    """Return the most answer tokens that a report is believed: the caller's limit, or else the target's, for each
    choice. Some engines count a mark or two beside the answer; under a hard budget the held amount is the limit.
    """
    longest = longest_answer(target, facts)
    if longest is None and "max_output_tokens" not in target.assumed:
        longest = target.max_output_tokens
    if longest is None or (not facts.bounded and not facts.needs.isdisjoint(NOT_CHAT)):
        return plausible * facts.choices
    return (longest + (0 if facts.bounded else _MARKS)) * facts.choices


def _tier(asked: ServiceTier, target: Target, served: str | None) -> ServiceTier | None:
    return asked if asked in target.service_tiers and served in {None, asked} else None


def usage_of(
    routed: RoutedRequest,
    target: Target,
    wire: WireUsage | None,
    *,
    token_events: int,
    chars: int,
    stale: bool,
    units: UsedUnits | None = None,
) -> Usage:
    """Return the upstream's usage report where it is plausible, else an estimate from the streamed events. `chars`
    and `token_events` count the answer so far; `units` are the upstream's units beside tokens. `stale` marks a report
    that does not cover everything: more tokens followed, or it counts one choice of several.
    """
    facts = routed.facts
    # Our own estimate let the request pass, so a report may lie above the configured limit and still be true.
    most = _PLAUSIBLE * max(target.max_context_tokens, facts.input_tokens if facts.longest_tokens is not None else 0)
    if facts.dialect is not None:
        # Each round of a tool that the provider runs reads the prompt again.
        most *= _ROUNDS
    if "max_context_tokens" in target.assumed and facts.most_input_tokens:
        # The context is not known, so the bound is the most that the body can come to.
        most = _PLAUSIBLE * facts.most_input_tokens
    most_output = _most_output(target, facts, most)
    if routed.request.operation in METERED:
        return metered_usage(routed, target.price, wire, units, most_input=most, most_output=most_output)
    if wire is not None and not stale:
        plain = plain_usage(wire, max_input_tokens=most, max_output_tokens=most_output)
        if plain is not None:
            return plain
    by_chars = math.ceil(chars / _CHARS_PER_TOKEN)
    if facts.max_output_tokens is not None:
        # Tokens of code or blanks are long: the guess must not lie above what was asked for, and held.
        by_chars = min(by_chars, facts.max_output_tokens * facts.choices)
    guess = estimated(input_tokens=facts.input_tokens, output_tokens=max(token_events, by_chars))
    if wire is None:
        return msgspec.structs.replace(guess, flags=(MISSING,))
    told = from_openai(wire, estimate=guess, max_input_tokens=most, max_output_tokens=most_output)
    if stale and told.source == "upstream" and guess.output_tokens > told.output_tokens:
        return msgspec.structs.replace(told, output_tokens=guess.output_tokens, source="estimated")
    return told


def flagged(usage: Usage, flags: tuple[str, ...]) -> Usage:
    return msgspec.structs.replace(usage, flags=(*flags, *usage.flags)) if flags else usage


def _baselines(routed: RoutedRequest, target: Target, usage: Usage, cost_nanousd: int) -> Baselines:
    # A baseline target need not have the tool that was needed, nor a price for it.
    if target.comparator is None or routed.comparators is None or routed.facts.dialect is not None:
        return NO_BASELINES
    cheapest = routed.plan.cheapest_commercial
    return routed.comparators.baselines(
        usage,
        by=target.comparator,
        own=is_own(target, routed.pools),
        cost_nanousd=cost_nanousd,
        cheapest=None if cheapest is None else cheapest.comparator,
        batch=routed.facts.tier == "batch",
    )
