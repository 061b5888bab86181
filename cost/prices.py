"""Prices and their arithmetic in integers of nano-dollars, never floats."""

import hashlib
import operator
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final, Literal, assert_never, get_args

import msgspec

from cost.meters import (
    MEDIA,
    METERS,
    SETS_OF_MEDIA,
    TOKEN_COLUMNS,
    TOKENS_PER_PRICE,
    Media,
    Meters,
    PriceFigures,
    cost_of,
    costs_of,
    dearest_of,
    fill_uncached,
    own_figures,
    split,
)
from cost.usage import Usage

NANO_PER_USD = 1_000_000_000
MOST_USD_PER_MILLION = 1_000_000
MOST_LONG_PROMPTS: Final = 16
MOST_JSON_CHARACTERS: Final = 64 * 1024
MOST_VERSION_CHARACTERS: Final = 200
_MOST_NANOUSD: Final = MOST_USD_PER_MILLION * NANO_PER_USD
_MILLI: Final = 1_000
MOST_UNIT_USD: Final = 1_000
MOST_UNIT_NANOUSD: Final = MOST_UNIT_USD * TOKENS_PER_PRICE * NANO_PER_USD
"""The most that a million of a unit may cost: it must fit 64 bits."""
_DIGEST_DIGITS: Final = 6
_buckets: Final = operator.attrgetter(*TOKEN_COLUMNS)
_DEAREST_INPUT: Final = {media: dearest_of("input", media) for media in SETS_OF_MEDIA}
_dearest_output: Final = dearest_of("output", MEDIA)

ServiceTier = Literal["flex", "priority"]
"""A provider's other ways to serve the same model: slower and cheaper, or quicker and dearer."""
SERVICE_TIERS: Final[tuple[ServiceTier, ...]] = get_args(ServiceTier)


def nanousd(usd: Decimal | str | int) -> int:
    """Convert an exact dollar amount to nano-dollars. Raises ValueError for an amount finer than a nano-dollar."""
    amount = Decimal(usd) * NANO_PER_USD
    if not amount.is_finite() or amount != amount.to_integral_value():
        raise ValueError(f"{usd} USD is not a whole number of nano-dollars")
    return int(amount)


def usd(amount_nanousd: int) -> Decimal:
    """Convert nano-dollars to the exact dollar amount."""
    return Decimal(amount_nanousd) / NANO_PER_USD


Unit = Literal["second", "character", "image", "search"]
"""Units billed beside tokens: audio by its length, text to be spoken, pictures made, searches of a reranker."""
UNITS: Final[tuple[Unit, ...]] = get_args(Unit)
UNIT: Final = re.compile(rf"({'|'.join(UNITS)})(/[A-Za-z0-9._-]{{1,24}}){{0,2}}", re.ASCII)
"""A unit's name. An image's may have its quality, or its quality and size, behind it: `image/hd/1024x1792`."""
MOST_UNIT_PRICES: Final = 64


def meters(usage: Usage) -> Meters:
    """Split the token counts of one request into meters that do not overlap."""
    return split(_buckets(usage), 1)


WEB_SEARCH: Final = "web_search"
"""Provider-run tool that searches the web, as prices name it."""
SIZED_SEARCHES: Final = {size: f"{WEB_SEARCH}_{size}" for size in ("low", "medium", "high")}
"""Its names where a search has a price by `search_context_size`."""


class UnitPrice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nano-dollars per million of a unit; see `UNIT` for its name."""

    unit: str
    nanousd: int

    @property
    def usd(self) -> Decimal:
        """Dollars for one."""
        return usd(self.nanousd) / TOKENS_PER_PRICE


class LongPrompt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Price of a whole request whose prompt has more than `above_tokens` tokens."""

    above_tokens: int
    price: "Price"


class Price(PriceFigures, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Nano-dollars per million tokens by meter, as of `version`. `request_nanousd` is for one request.

    A meter without a figure of its own costs what the next more general one does: an hour's cache what five minutes'
    does, reasoning what output does. Construction raises ValueError for figures that make no sense.
    """

    long_prompts: tuple[LongPrompt, ...] = ()
    """Prices of long prompts, ascending by `above_tokens`; the last one that applies counts."""
    batch: "Price | None" = None
    """Price for work given in as a batch; None when that is no cheaper."""
    flex: "Price | None" = None
    """Price of the service tier flex; None where that is not sold, or costs the same."""
    priority: "Price | None" = None
    """Price of the service tier priority; None where that is not sold, or costs the same."""
    tool_calls: tuple[tuple[str, int], ...] = ()
    """Nano-dollars for a call of each tool that the provider runs, by its name; what is not named has no known price."""
    units: tuple[UnitPrice, ...] = ()
    """Prices of units. Where there are some and no token has a price, what a token costs is unknown, not nothing."""

    def __post_init__(self) -> None:
        _refuse_figures(self)
        _refuse_long_prompts(self.long_prompts)
        if any(type(figure) is not int or not 0 <= figure <= _MOST_NANOUSD for _, figure in self.tool_calls):
            raise ValueError(f"a call of a tool costs a whole number of nano-dollars from 0 to {_MOST_NANOUSD}")
        _refuse_units(self.units)
        for other in (self.batch, self.flex, self.priority):
            if other is not None and (other.batch is not None or other.flex is not None or other.priority is not None):
                raise ValueError(
                    "the price of a batch or a service tier has no other price for batches or service tiers"
                )

    def of_tier(self, tier: ServiceTier | None) -> "Price":
        """Return the price in a service tier; this one for None, and where the tier has no price of its own."""
        match tier:
            case None:
                return self
            case "flex":
                return self.flex or self
            case "priority":
                return self.priority or self
            case _:
                assert_never(tier)

    def priced_unit(self, unit: str) -> UnitPrice | None:
        """Return the price of a unit, or of the more general unit: of `image/hd/1024x1792` else that of `image/hd`,
        else that of `image`. None where it is unknown.
        """
        found = {each.unit: each for each in self.units}
        while unit not in found and "/" in unit:
            unit = unit.rpartition("/")[0]
        return found.get(unit)

    @property
    def has_tokens(self) -> bool:
        """True if it is known what a token costs."""
        return not self.units or self.input_nanousd > 0 or self.output_nanousd > 0

    def covers(self, usage: Usage) -> bool:
        """Return True where everything that was used has a known price."""
        if not self.units and not usage.unit:
            return True
        if usage.unit:
            return self.priced_unit(usage.unit) is not None
        return self.has_tokens or not (usage.input_tokens or usage.output_tokens)

    def _units_total(self, usage: Usage) -> int:
        """Return the cost of the used quantity of a unit, times a million."""
        priced = self.priced_unit(usage.unit)
        return 0 if priced is None else (priced.nanousd * usage.quantity_milli + _MILLI // 2) // _MILLI

    def cost_nanousd(self, usage: Usage, *, batch: bool = False) -> int:
        """Return the cost of `usage`, rounded half up to a whole nano-dollar once, at the end."""
        price = self.applying(usage.input_tokens, batch=batch) if batch or self.long_prompts else self
        if usage.unit:
            total: int = sum(map(operator.mul, meters(usage), price.figures()))
            return (total + price._units_total(usage) + TOKENS_PER_PRICE // 2) // TOKENS_PER_PRICE  # noqa: SLF001  Its own class.
        return cost_of(usage, price)

    def tokens_nanousd(self, input_tokens: int, output_tokens: int, cached: int = 0, written: int = 0) -> int:
        """Return the cost of such a usage, of which `cached` came from a cache and `written` went to one."""
        price = self.applying(input_tokens, batch=False) if self.long_prompts else self
        total = input_tokens * price.input_nanousd + output_tokens * price.output_nanousd
        if price.request_nanousd:
            total += price.request_nanousd * TOKENS_PER_PRICE
        if cached or written:
            total += cached * (price.cached_input_nanousd - price.input_nanousd)
            total += written * (price.cache_write_nanousd - price.input_nanousd)
        return (total + TOKENS_PER_PRICE // 2) // TOKENS_PER_PRICE

    def costs_nanousd(self, usage: Usage, *, batch: bool = False) -> Meters:
        """Return the cost by meter.

        The parts add up to `cost_nanousd` exactly: the running total is rounded, not each part.
        """
        price = self.applying(usage.input_tokens, batch=batch) if batch or self.long_prompts else self
        if usage.unit:
            return price._costs_with_units(usage)  # noqa: SLF001  Its own class.
        return costs_of(usage, price)

    def calls_nanousd(self, calls: Sequence[tuple[str, int]]) -> tuple[int, tuple[str, ...]]:
        """Return the cost of so many calls of provider-run tools, and the names of those without a price."""
        priced = [(name, self.call_nanousd(name), count) for name, count in calls]
        return (
            sum(price * count for _, price, count in priced if price is not None),
            tuple(name for name, price, _ in priced if price is None),
        )

    def call_nanousd(self, name: str) -> int | None:
        """Return the price of one call of a provider-run tool, or None; a search of a size (`web_search_high`) has that of
        `web_search` where sizes cost the same.
        """
        known = dict(self.tool_calls)
        return known.get(name, known.get(WEB_SEARCH) if name in SIZED_SEARCHES.values() else None)

    def _costs_with_units(self, usage: Usage) -> Meters:
        *tokens, request = map(operator.mul, meters(usage), self.figures())
        return _rounded((*tokens, request + self._units_total(usage)))

    def units_nanousd(self, unit: str, quantity_milli: int) -> int | None:
        """Return the cost of a quantity of a unit, rounded up; None where its price is unknown."""
        priced = self.priced_unit(unit)
        return None if priced is None else -(-priced.nanousd * quantity_milli // (TOKENS_PER_PRICE * _MILLI))

    def most_nanousd(self, input_tokens: int, output_tokens: int, media: Media = MEDIA) -> int:
        """Return the most that this many tokens can cost, whichever meters they fall under; rounded up.

        Those of the prompt are of text and of `media`. What a model answers with is its own choice, so all may be of anything.
        """
        if not self.long_prompts:
            return self._most_nanousd(input_tokens, output_tokens, media)
        most = 0
        for price in (self, *(each.price for each in self.long_prompts if input_tokens > each.above_tokens)):
            most = max(most, price._most_nanousd(input_tokens, output_tokens, media))  # noqa: SLF001  Its own class.
        return most

    def _most_nanousd(self, input_tokens: int, output_tokens: int, media: Media) -> int:
        read, written = _DEAREST_INPUT[media](self), _dearest_output(self)
        total = input_tokens * read + output_tokens * written + self.request_nanousd * TOKENS_PER_PRICE
        return -(-total // TOKENS_PER_PRICE)

    def applying(self, input_tokens: int, *, batch: bool) -> "Price":
        """Return the price that applies to a prompt of this length, for a batch if there is one."""
        price = self.batch if batch and self.batch is not None else self
        for each in reversed(price.long_prompts):
            if input_tokens > each.above_tokens:
                return each.price
        return price

    def figures(self) -> Meters:
        """Return nano-dollars per million of each meter, requests included."""
        *tokens, request = own_figures(self)
        return (*tokens, request * TOKENS_PER_PRICE)

    def named(self, version: str) -> "Price":
        """Return the same figures under another version name."""
        return msgspec.structs.replace(
            self,
            version=version,
            long_prompts=tuple(
                msgspec.structs.replace(each, price=each.price.named(version)) for each in self.long_prompts
            ),
            batch=None if self.batch is None else self.batch.named(version),
            flex=None if self.flex is None else self.flex.named(version),
            priority=None if self.priority is None else self.priority.named(version),
        )

    def same_figures(self, other: "Price") -> bool:
        """Return True if both have the same figures, whatever their version names."""
        return self.named("") == other.named("")

    def digest(self) -> str:
        """Return six hexadecimal digits of a SHA-256 over the figures, without the version name."""
        text = to_json(self.named(""))
        return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_DIGITS]


def _rounded(amounts: Iterable[int]) -> Meters:
    """Return amounts in nano-dollars times a million as whole nano-dollars: the running total is rounded, not each part."""
    running = rounded = 0
    parts: list[int] = []
    for amount in amounts:
        running += amount
        before, rounded = rounded, (running + TOKENS_PER_PRICE // 2) // TOKENS_PER_PRICE
        parts.append(rounded - before)
    return tuple(parts)


def _refuse_figures(price: Price) -> None:
    if len(price.version) > MOST_VERSION_CHARACTERS:
        raise ValueError(f"the name of a price has at most {MOST_VERSION_CHARACTERS} characters")
    for figure in (*price.figures()[:-1], price.request_nanousd):
        if type(figure) is not int or not 0 <= figure <= _MOST_NANOUSD:
            raise ValueError(f"{figure!r} nano-dollars is no price; it must be whole and from 0 to {_MOST_NANOUSD}")


def _refuse_units(units: tuple[UnitPrice, ...]) -> None:
    if len(units) > MOST_UNIT_PRICES or len({each.unit for each in units}) != len(units):
        raise ValueError(f"a price has at most {MOST_UNIT_PRICES} units, each once")
    for each in units:
        if UNIT.fullmatch(each.unit) is None:
            raise ValueError(f"{each.unit[:64]!r} is no unit; there are {', '.join(UNITS)}, and image/QUALITY/SIZE")
        if type(each.nanousd) is not int or not 0 <= each.nanousd <= MOST_UNIT_NANOUSD:
            raise ValueError(f"{each.nanousd!r} nano-dollars is no price for a million of {each.unit}")


def _refuse_long_prompts(tiers: tuple[LongPrompt, ...]) -> None:
    if len(tiers) > MOST_LONG_PROMPTS:
        raise ValueError(f"a price has at most {MOST_LONG_PROMPTS} prices for long prompts")
    bounds = [each.above_tokens for each in tiers]
    if any(bound < 1 for bound in bounds) or bounds != sorted(set(bounds)):
        raise ValueError("the prices for long prompts must be ordered by above_tokens, each above the one before")
    if any(each.price.long_prompts or each.price.batch or each.price.flex or each.price.priority for each in tiers):
        raise ValueError("the price for long prompts has no further prices for long prompts or batches")


def to_json(price: Price) -> str:
    """Encode a price as JSON, the same text for the same price."""
    return msgspec.json.encode(price).decode()


def from_json(text: str) -> Price:
    """Decode a price. Raises ValueError if it is none, or has unknown fields."""
    if len(text) > MOST_JSON_CHARACTERS:
        raise ValueError(f"a price has at most {MOST_JSON_CHARACTERS} characters")
    try:
        return msgspec.json.decode(text, type=Price)
    except msgspec.DecodeError as failure:
        raise ValueError(f"this is no price: {failure}") from failure


def usd_per_million(text: Decimal | str | float) -> int:
    """Convert a list price in dollars per million tokens to nano-dollars, exactly. Raises ValueError.

    A float is what YAML makes of `0.15`; its shortest text is what stood in the file, so that text is read, and not the
    binary fraction behind it.
    """
    if isinstance(text, bool):
        raise ValueError(f"{text} is no price")  # noqa: TRY004  A configuration's value, not a caller's type.
    try:
        amount = Decimal(repr(text)) if isinstance(text, float) else Decimal(text)
    except InvalidOperation as failure:
        raise ValueError(f"{text!r} is no price in dollars") from failure
    if not amount.is_finite() or amount < 0:
        raise ValueError(f"{text} is no price: it must be finite and not negative")
    if amount > MOST_USD_PER_MILLION:
        raise ValueError(f"{text} USD per million tokens is beyond any price; the most is {MOST_USD_PER_MILLION}")
    return nanousd(amount)


def unit_price(unit: str, usd_each: Decimal) -> UnitPrice:
    """Return the price of a unit from dollars for one. Raises ValueError for what is finer than a nano-dollar a million."""
    return UnitPrice(unit=unit, nanousd=nanousd(usd_each * TOKENS_PER_PRICE))


def price_from_usd(*, version: str, **usd_of_meter: Decimal | str | float | None) -> Price:
    """Build a price from dollars per million tokens, named `<meter>_usd`; only `request_usd` is for one request.

    Cached and cache-written input without a price costs what input does. Raises ValueError, and TypeError where a price of
    input or output is missing.
    """
    told = {
        name.removesuffix("_usd"): usd_per_million(amount)
        for name, amount in usd_of_meter.items()
        if amount is not None
    }
    fill_uncached(told)
    for each in METERS:
        if each.within and not each.follows and each.name not in told and each.within in told:
            told[each.name] = told[each.within]
    figures: dict[str, Any] = {f"{name}_nanousd": figure for name, figure in told.items()}
    return Price(version=version, **figures)
