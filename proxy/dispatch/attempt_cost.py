"""The money of one attempt: usage, cost by meter and baselines. Pure functions."""

import math
from typing import Final

import msgspec

from cost.meters import OUTPUT_COLUMNS, ZERO_METERS, Meters
from cost.prices import Price, ServiceTier
from cost.savings.comparators import NO_BASELINES, Baselines
from cost.told_cost import differs, divided, possible_nanousd
from cost.usage import (
    COST_DIFFERS,
    DISPUTED,
    MISSING,
    MOST_TOKENS,
    UNDERTOLD,
    UNPRICED_CALLS,
    Usage,
    estimated,
    from_openai,
    plain_usage,
)
from providers.target import Target
from providers.wire import METERED, UsedUnits, WireUsage
from proxy.dispatch.metered_usage import metered_usage
from proxy.plan.route_plan import Facts, as_sound, asks_for_media, is_own, longest_answer, longest_prompt, search_of
from proxy.plan.routed_request import RoutedRequest

# Characters a token in English text, the rule of thumb of OpenAI's tokenizer guide. It serves only where an
# upstream merged tokens into larger events; otherwise an event is a token.
_CHARS_PER_TOKEN: Final = 4

_CHARS_OF_NO_LETTER: Final = 2
"""Characters an event, on average, from which on events are no single letters."""

_LONGEST_TOKEN: Final = 128
"""Characters of the longest token of the tokenizers in use: blanks of OpenAI's."""

_ECHO: Final = "an echo"

_MARKS: Final = 16
"""Tokens that some engines count beside each choice of an answer: its marks of beginning and end."""

_UNREAD_EVENTS: Final = 1_024
"""Events without text that every stream may have: signs of life, one a second, for a quarter of an hour."""
_UNREAD_EVENTS_OF_A_TOKEN: Final = 4
_UNREAD_BYTES: Final = 262_144
_UNREAD_BYTES_OF_A_TOKEN: Final = 64
"""Bytes of events without text; encrypted reasoning is some eight a token, and text that is told again when it is done some fifteen."""
_TOLD_AGAIN: Final = 4
_LIKELIHOODS: Final = frozenset({"logprobs", "top_logprobs"})

_FRAMING: Final = 256
"""Tokens of a prompt's template that are taken for no overrun; OpenAI's open models add some 70, Llama's 25."""

_ASSUMED_TEMPLATE: Final = 2_000
"""Tokens that a host may add to a prompt where nobody said how many: Anthropic's words about tools are up to 800, and hidden
system messages of some hosts about as many."""

_ROUNDS: Final = 32
"""Rounds of provider-run tools in one answer, each of which reads the prompt again."""


class Money(msgspec.Struct, frozen=True):
    """Usage, its cost by meter in nano-dollars, and its baselines. Costs are None without a price."""

    usage: Usage
    costs_nanousd: Meters | None
    cost_nanousd: int | None
    """The sum of `costs_nanousd`."""
    baselines: Baselines
    disputed_nanousd: int = 0
    """What would be owed beside the cost for what the upstream told beyond the possible."""
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
        return _money_as_told(usage)
    price = usual if asked is None else usual.of_tier(_tier(asked, target, served_tier))
    if not price.covers(usage):
        return _money_as_told(usage)
    search = search_of(target, routed.facts)
    if search and not usage.tool_calls and usage.output_tokens and not is_own(target, routed.pools):
        # Who is asked to search on chat does so once for each answer, and nobody tells how often.
        usage = msgspec.structs.replace(usage, tool_calls=((search, 1),))
    costs = price.costs_nanousd(usage, batch=routed.at_batch_price)
    cost = sum(costs)
    saved = usual.cost_nanousd(usage) - cost if routed.facts.tier == "batch" else 0
    if usage.tool_calls:
        usage, costs = _with_tool_calls(usual, usage, costs)
        cost = sum(costs)
    if usage.told_nanousd is not None:
        # The provider's own bill has its dispute in it.
        told, disputed = possible_nanousd(usage.told_nanousd, cost)
        if differs(usage.told_nanousd, cost):
            usage = flagged(usage, (COST_DIFFERS, *((DISPUTED,) if disputed else ())))
        costs, cost = divided(told, costs), told
    else:
        disputed = _disputed_nanousd(price, usage, batch=routed.at_batch_price) if usage.is_disputed else 0
    whole, spent = usage, cost
    if routed.before is not None:
        # The part of the answer before it broke off is compared here, once, with the cost of the whole answer.
        whole, spent = whole_usage(routed.before.usage, usage), spent + (routed.before.cost_nanousd or 0)
    return Money(usage, costs, cost, _baselines(routed, target, whole, spent), disputed, saved)


def _money_as_told(usage: Usage) -> Money:
    """Return the money of a request without a price of ours: what its provider told, if it did."""
    told = usage.told_nanousd
    return Money(usage, None if told is None else divided(told, ZERO_METERS), told, NO_BASELINES)


def _disputed_nanousd(price: Price, usage: Usage, *, batch: bool) -> int:
    told = msgspec.structs.replace(
        usage,
        input_tokens=usage.input_tokens + usage.disputed_input,
        output_tokens=usage.output_tokens + usage.disputed_output,
        quantity_milli=usage.quantity_milli + usage.disputed_milli,
    )
    return price.cost_nanousd(told, batch=batch) - price.cost_nanousd(usage, batch=batch)


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


def possible_tokens(target: Target, facts: Facts) -> tuple[int, int]:
    """Return the most prompt tokens and the most answer tokens that the target can truly have used, whatever was asked for.

    A prompt is bounded by `longest_prompt`, an answer by what the model can write. What nobody knows bounds nothing.
    """
    if facts.most_input_tokens:
        most_input = longest_prompt(target, facts)
        if target.template_tokens is None:
            most_input += _ASSUMED_TEMPLATE
    else:
        most_input = MOST_TOKENS if facts.longest_tokens is not None else target.max_context_tokens
    if facts.dialect is not None:
        most_input *= _ROUNDS
    is_known = "max_output_tokens" not in target.assumed
    most_output = target.max_output_tokens if is_known else target.max_context_tokens
    return min(most_input, MOST_TOKENS), min(most_output * facts.choices, MOST_TOKENS)


def broken_bound(target: Target, facts: Facts, usage: Usage) -> str:
    """Return how an answer under a hard budget used more than was held for it, in words; empty if it did not."""
    if not facts.bounded:
        return ""
    told, held = usage.input_tokens + usage.disputed_input, longest_prompt(target, facts)
    if told > held + _FRAMING:
        return f"told {told:,} prompt tokens of at most {held:,} (`template_tokens` tells what its host adds)"
    written, longest = usage.output_tokens + usage.disputed_output, longest_answer(target, facts)
    if longest is not None and written > (longest + _MARKS) * facts.choices:
        return f"wrote {written:,} tokens where {longest * facts.choices:,} were asked for"
    if usage.disputed_milli:
        return f"told {(usage.quantity_milli + usage.disputed_milli) / 1000:g} {usage.unit} of at most {usage.quantity_milli / 1000:g}"
    return ""


def outgrows_bound(target: Target, routed: RoutedRequest, token_events: int, chars: int) -> bool:
    """Return whether a stream under a hard budget has surely become longer than what is held for it.

    An echo has the prompt in it, so nothing is sure.
    """
    facts = routed.facts
    longest = longest_answer(target, facts)
    return (
        longest is not None
        and _ECHO not in routed.request.text_needs
        and _is_longer(longest, facts, token_events, chars)
    )


def outgrows_unread(target: Target, routed: RoutedRequest, events: int, size: int) -> bool:
    """Return whether a stream under a hard budget has more than its answer can need in events that say nothing which is read as text:
    signatures, encrypted reasoning, fields that nobody knows, empty deltas. `size` is their bytes.

    An event is a token that a parser keeps back, or a sign of life. Pictures, sound and lists of likelihoods take any number of bytes, and
    so do the results of tools that a provider runs.
    """
    facts = routed.facts
    longest = longest_answer(target, facts)
    if longest is None or not routed.request.stream:
        return False
    most = (longest + _MARKS) * facts.choices
    if events > _UNREAD_EVENTS_OF_A_TOKEN * most + _UNREAD_EVENTS:
        return True
    # Some dialects tell the request in their first events.
    is_over = size > _UNREAD_BYTES_OF_A_TOKEN * most + _UNREAD_BYTES + _TOLD_AGAIN * (facts.most_input_tokens or 0)
    return (
        is_over
        and facts.dialect is None
        and not asks_for_media(facts)
        and _LIKELIHOODS.isdisjoint(routed.request.fields)
    )


def most_written(target: Target, routed: RoutedRequest) -> int:
    """Return the most tokens of an answer that a hard budget holds; 0 where it holds none."""
    return (longest_answer(target, routed.facts) or 0) * routed.facts.choices


def _is_longer(longest: int, facts: Facts, token_events: int, chars: int) -> bool:
    """Return whether an answer surely has more than so many tokens for each choice.

    An event may be a part of a token or hold many, and a token may be one character or many blanks, so both counts must be over.
    Events of single characters, as some proxies make them for show, say nothing; characters alone decide at sixteen a token,
    which no text reaches.
    """
    most = (longest + _MARKS) * facts.choices
    by_chars = chars // _CHARS_PER_TOKEN
    are_tokens = token_events > most and chars >= _CHARS_OF_NO_LETTER * token_events
    return by_chars > most and (are_tokens or by_chars > _CHARS_PER_TOKEN * most)


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
    """Return the usage that the upstream's report comes to (`cost.usage`), or without one an estimate from the streamed events.

    `chars` and `token_events` count the answer so far; `units` are what the upstream told beside tokens. `stale` marks a report that does not cover everything: more
    tokens followed, or it counts one choice of several.
    """
    facts = routed.facts
    most, most_output = possible_tokens(target, facts)
    if routed.request.operation in METERED:
        return metered_usage(routed, target, wire, units, most_input=most, most_output=most_output)
    # Text cannot be made of fewer tokens, but an echo has the prompt in it.
    is_echo = _ECHO in routed.request.text_needs
    least_output = 0 if is_echo else chars // _LONGEST_TOKEN
    if wire is not None and not stale:
        plain = plain_usage(wire, max_input_tokens=most, max_output_tokens=most_output)
        if plain is not None and plain.output_tokens >= least_output:
            return _doubted(plain, facts)
    by_chars = math.ceil(chars / _CHARS_PER_TOKEN)
    asked = facts.max_output_tokens if facts.affordable_tokens is None else facts.affordable_tokens
    if asked is not None and (is_echo or not _is_longer(asked, facts, token_events, chars)):
        # Tokens of code or blanks are long: the guess must not lie above what was asked for, and held.
        by_chars = min(by_chars, asked * facts.choices)
    guess = estimated(input_tokens=facts.input_tokens, output_tokens=max(token_events, by_chars))
    guess = as_sound(guess, facts)
    if wire is None:
        return msgspec.structs.replace(guess, flags=(MISSING,))
    told = from_openai(
        wire,
        estimate=guess,
        max_input_tokens=most,
        max_output_tokens=most_output,
        least_output_tokens=least_output,
        zeros_are_told=is_echo,
    )
    if stale and told.source == "upstream" and guess.output_tokens > told.output_tokens:
        return msgspec.structs.replace(told, output_tokens=guess.output_tokens, source="estimated")
    return _doubted(told, facts)


def _doubted(usage: Usage, facts: Facts) -> Usage:
    """Return the usage, flagged where its prompt is told to have fewer tokens than text can have; of media nothing is sure."""
    is_possible = facts.media or usage.input_tokens * _LONGEST_TOKEN >= facts.input_tokens * _CHARS_PER_TOKEN
    return usage if is_possible else flagged(usage, (UNDERTOLD,))


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
