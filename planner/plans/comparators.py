"""List prices of other providers for the same work, with the date of reading. One's own contract comes first.

Prices are US dollars per million tokens as listed, read in November 2026. `gone` tells that a model can no longer be
bought, or will not be after a day: a saving against it is a saving against a price that nobody asks any more.
"""

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Final

import msgspec

from planner.plans.plan_errors import PlanRefused

_MOST: Final = Decimal(100_000)


class Comparator(msgspec.Struct, frozen=True, kw_only=True):
    """The price of one model at one provider."""

    name: str
    title: str
    input_usd: Decimal
    cached_input_usd: Decimal | None
    """Dollars per million cached prompt tokens; None: no discount for cached ones."""
    output_usd: Decimal
    state: str
    gone: bool = False
    as_of: str = "2026-11"

    def blended_usd(self, input_tokens: int, output_tokens: int, *, cached_share: Decimal, batch: bool) -> Decimal:
        """Return the dollars per million tokens of this mix of input and output, with the cache discount and, for
        batch, half the price.
        """
        cached = self.input_usd if self.cached_input_usd is None else self.cached_input_usd
        prompt = self.input_usd * (1 - cached_share) + cached * cached_share
        whole = prompt * input_tokens + self.output_usd * output_tokens
        return whole / (input_tokens + output_tokens) / (2 if batch else 1)


def _offer(name: str, title: str, prices: tuple[str, str | None, str], state: str, *, gone: bool = False) -> Comparator:
    prompt, cached, output = prices
    return Comparator(
        name=name,
        title=title,
        input_usd=Decimal(prompt),
        cached_input_usd=None if cached is None else Decimal(cached),
        output_usd=Decimal(output),
        state=state,
        gone=gone,
    )


_LEAVES: Final = "leaves the API on 14 January 2027"

COMPARATORS: Final[Mapping[str, Comparator]] = {
    offer.name: offer
    for offer in (
        _offer("gpt-4o", "GPT-4o", ("2.50", "1.25", "10"), _LEAVES),
        _offer("gpt-4o-mini", "GPT-4o-mini", ("0.15", "0.075", "0.60"), _LEAVES),
        _offer("gpt-4.1", "GPT-4.1", ("2", "0.50", "8"), _LEAVES),
        _offer("claude-3.5-sonnet", "Claude 3.5 Sonnet", ("3", "0.30", "15"), "retired on 28 October 2025", gone=True),
        _offer("claude-3.5-haiku", "Claude 3.5 Haiku", ("0.80", "0.08", "4"), "retired on 19 February 2026", gone=True),
        _offer("claude-haiku-4.5", "Claude Haiku 4.5", ("1", "0.10", "5"), "current"),
        _offer("claude-sonnet-4.5", "Claude Sonnet 4.5", ("3", "0.30", "15"), "current"),
        _offer("claude-haiku-5.5", "Claude Haiku 5.5", ("0.10", "0.01", "0.50"), "current, since 7 October 2026"),
        _offer("gpt-6-luna", "gpt-6-luna", ("0.10", "0.01", "0.50"), "current, named successor of GPT-4o-mini"),
        _offer("gpt-6-sol", "gpt-6-sol", ("2", "0.20", "10"), "current"),
        _offer("groq-llama-3.3-70b", "Llama 3.3 70B at Groq", ("0.59", None, "0.79"), "current"),
        _offer("cheapest-llama-3.3-70b", "Llama 3.3 70B where it is cheapest", ("0.10", None, "0.32"), "current"),
    )
}
"""Prices as read in November 2026 from the providers' pages and from trackers that quote them."""

USUAL_COMPARATORS: Final = ("gpt-4o", "gpt-4o-mini", "gpt-6-luna", "groq-llama-3.3-70b")
"""Those that a plan is compared with where nobody names any."""


def comparator_named(text: str) -> Comparator:
    """Return the comparator of a text: a name of the table, or `NAME=INPUT/OUTPUT` or `NAME=INPUT/CACHED/OUTPUT` for one's own
    contract. Raises PlanRefused.
    """
    name, given, prices = text.partition("=")
    if not given:
        if name not in COMPARATORS:
            raise PlanRefused(
                f"`{name}` is not among the prices that are known ({', '.join(COMPARATORS)}); "
                "give your own as NAME=INPUT/OUTPUT, in dollars per million tokens"
            )
        return COMPARATORS[name]
    figures = [_dollars(part, text) for part in prices.split("/")]
    if not name or len(figures) not in (2, 3):
        raise PlanRefused(f"`{text}` is no price; write NAME=INPUT/OUTPUT or NAME=INPUT/CACHED/OUTPUT")
    return Comparator(
        name=name,
        title=name,
        input_usd=figures[0],
        cached_input_usd=figures[1] if len(figures) == 3 else None,  # noqa: PLR2004 - the form with a price for cached input
        output_usd=figures[-1],
        state="as given",
        as_of="as given",
    )


def _dollars(text: str, whole: str) -> Decimal:
    try:
        value = Decimal(text.strip())
    except InvalidOperation:
        raise PlanRefused(f"`{whole}`: `{text}` is no amount of dollars") from None
    if not value.is_finite() or not 0 <= value <= _MOST:
        raise PlanRefused(f"`{whole}`: dollars per million tokens are from 0 to {_MOST:,}")
    return value
