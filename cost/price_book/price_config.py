"""Prices in the configuration: one price, several with their dates, or a name in litellm's table."""

from collections.abc import Callable, Mapping
from datetime import date
from decimal import ROUND_HALF_UP, Decimal
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

import msgspec
from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, create_model, model_validator

from cost.amounts import amount_in
from cost.meters import METER_COLUMNS, METERS, PRICED_PER_TOKEN, TOKEN_METERS, Meter
from cost.price_book.book import DatedPrice
from cost.price_book.litellm_table import MOST_NAME_CHARACTERS, LitellmTable, priced
from cost.prices import (
    MOST_LONG_PROMPTS,
    MOST_UNIT_PRICES,
    MOST_UNIT_USD,
    UNIT,
    LongPrompt,
    Price,
    UnitPrice,
    nanousd,
    price_from_usd,
    unit_price,
)
from cost.times import start_of
from settings.types import Section

_MAX_PRICE_USD = Decimal(1_000_000)
_MOST_VERSIONS: Final = 64
_OWN_METERS: Final = tuple(each.name for each in METERS if each.within)
"""Meters that cost what another one does if they have no price of their own."""


def _as_written(value: Any) -> Any:
    """Convert a YAML number to the decimal that was written: 0.1 is a tenth, not the nearest binary fraction. Raises BadAmount."""
    if isinstance(value, str):
        return amount_in(value)
    return Decimal(str(value)) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _whole_nanousd(value: Decimal) -> Decimal:
    nanousd(value)
    return value


Usd = Annotated[
    Decimal,
    BeforeValidator(_as_written),
    Field(ge=0, le=_MAX_PRICE_USD),
    AfterValidator(_whole_nanousd),
]


ToolName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]


def _whole_unit(value: Decimal) -> Decimal:
    unit_price("", value)
    return value


UnitUsd = Annotated[Decimal, BeforeValidator(_as_written), Field(ge=0, le=MOST_UNIT_USD), AfterValidator(_whole_unit)]
UnitName = Annotated[str, Field(pattern=rf"^{UNIT.pattern}$")]


def _figure(meter: Meter) -> tuple[Any, Any]:
    """Return type and field of a meter's price, which may be left out where it costs what another one does."""
    if meter.within:
        return Usd | None, Field(default=None, description=meter.price_help)
    return Usd, Field(description=meter.price_help)


_FIGURES: Final[dict[str, Any]] = {each.name: _figure(each) for each in PRICED_PER_TOKEN}
_Figures: Any = create_model("_Figures", __base__=Section, **_FIGURES)


class MeterPrices(_Figures):
    """US dollars per million tokens. Cached and cache-written tokens cost the input price unless told otherwise."""

    if TYPE_CHECKING:  # Those that code calls by name.
        input: Usd
        output: Usd
        cached_input: Usd | None = None
        cache_write: Usd | None = None

    def own_meters(self) -> set[str]:
        """Return the optional meters that have a price of their own."""
        return {name for name in _OWN_METERS if getattr(self, name) is not None}

    def flat(self, version: str, request_usd: Decimal) -> Price:
        """Return these figures as a price, without long prompts and batches."""
        figures: dict[str, Decimal | None] = {f"{name}_usd": getattr(self, name) for name in TOKEN_METERS}
        return price_from_usd(version=version, request_usd=request_usd, **figures)


class LongPromptPrices(MeterPrices):
    """Prices of a whole request whose prompt is longer than `above_tokens`."""

    above_tokens: int = Field(
        ge=1, le=1_000_000_000, description="A prompt of more tokens costs, with its answer, this."
    )


_LongPrompts = Annotated[tuple[LongPromptPrices, ...], Field(max_length=MOST_LONG_PROMPTS)]


class BatchPrices(MeterPrices):
    """Prices of work that the provider takes as a batch, or in a service tier."""

    long_prompts: _LongPrompts = Field(default=(), description="Again other prices for long prompts.")


class PricesConfig(MeterPrices):
    """A complete price. A model may also have a list of such prices, each with its date."""

    units: Annotated[dict[UnitName, UnitUsd], Field(max_length=MOST_UNIT_PRICES)] = Field(
        default_factory=dict,
        description="Dollars for one `second` of audio, `character` of speech, `image` (also `image/QUALITY`, "
        "`image/QUALITY/SIZE`) or `search`. `input` and `output` may then be left out together.",
    )

    request: Usd = Field(default=Decimal(0), description="One request, beside its tokens; in US dollars.")
    long_prompts: _LongPrompts = Field(default=(), description="Other prices for long prompts, the shortest first.")
    batch: BatchPrices | None = Field(default=None, description="What a batch costs; as usual, if left out.")
    batch_discount: Annotated[Decimal, BeforeValidator(_as_written)] | None = Field(
        default=None,
        gt=0,
        lt=1,
        json_schema_extra={"unit": "number"},
        description="In place of `batch`: the share taken off every figure, such as 0.5.",
    )
    flex: BatchPrices | None = Field(
        default=None, description="What `service_tier: flex` costs; with it such requests reach the provider as flex."
    )
    priority: BatchPrices | None = Field(
        default=None, description="What `service_tier: priority` costs; with it such requests reach the provider so."
    )
    tool_calls: dict[ToolName, Usd] = Field(
        default_factory=dict,
        max_length=64,
        description="Dollars for a call of a provider's tool, by name.",
    )
    version: str = Field(
        default="",
        max_length=64,
        description="Kept in every entry booked at these prices; default the date.",
    )
    effective_from: date | None = Field(default=None, description="The first day of these prices, in UTC.")

    @model_validator(mode="before")
    @classmethod
    def _of_units_alone(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given.get("units") and given.keys().isdisjoint({"input", "output"}):
            return {"input": 0, "output": 0, **given}
        return given

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.batch is not None and self.batch_discount is not None:
            raise ValueError("give `batch` or `batch_discount`, not both")
        _refuse_gaps(self, self.long_prompts, "long_prompts")
        for name, other in (("batch", self.batch), ("flex", self.flex), ("priority", self.priority)):
            if other is None:
                continue
            _refuse_missing(self, other, name)
            _refuse_gaps(other, other.long_prompts, f"{name}.long_prompts")
            if self.long_prompts and not other.long_prompts:
                raise ValueError(f"{name} needs `long_prompts` too, because the prices beside it have some")
        return self

    def named_version(self) -> str:
        """Return the version, else the date, else the figures, so that ledger rows of two prices never look the same."""
        if self.version:
            return self.version
        if self.effective_from is not None:
            return self.effective_from.isoformat()
        figures = (self.input, self.output, self.cached_input, self.cache_write)
        name = "/".join("-" if figure is None else f"{figure.normalize():f}" for figure in figures)
        price = self._price("")
        simple = MeterPrices(
            input=self.input, output=self.output, cached_input=self.cached_input, cache_write=self.cache_write
        )
        return name if price == simple.flat("", Decimal(0)) else f"{name}~{price.digest()}"

    def effective_us(self) -> int:
        """Return the moment from which they hold in microseconds since 1970; 0 for always."""
        return 0 if self.effective_from is None else start_of(self.effective_from)

    def price(self) -> Price:
        """Return the price in nano-dollars, exactly."""
        return self._price(self.named_version())

    def _price(self, version: str) -> Price:
        base = msgspec.structs.replace(
            self.flat(version, self.request),
            long_prompts=_tiers(self.long_prompts, version, self.request),
            units=self._units(),
        )
        if self.batch_discount is None:
            batch = self._other(self.batch, version)
        else:
            batch = _discounted(base, 1 - self.batch_discount)
        flex, priority = self._other(self.flex, version), self._other(self.priority, version)
        calls = tuple(sorted((name, nanousd(amount)) for name, amount in self.tool_calls.items()))
        return msgspec.structs.replace(base, batch=batch, flex=flex, priority=priority, tool_calls=calls)

    def _other(self, prices: BatchPrices | None, version: str) -> Price | None:
        """Return the price of a batch or a service tier."""
        if prices is None:
            return None
        tiers = _tiers(prices.long_prompts, version, self.request)
        flat = prices.flat(version, self.request)
        return msgspec.structs.replace(flat, long_prompts=tiers, units=self._units())

    def _units(self) -> tuple[UnitPrice, ...]:
        return tuple(unit_price(name, each) for name, each in sorted(self.units.items()))


class EnteredPrices(PricesConfig):
    """A complete price as an operator enters it, by command or by call."""

    version: str = Field(
        default="",
        max_length=64,
        pattern=r"^([A-Za-z0-9][A-Za-z0-9._:@+-]*)?$",
        description="Kept in every row that is booked at these prices; made from the date, if left out.",
    )
    note: str = Field(
        default="", pattern=r"^[^\x00]*$", max_length=1_000, description="Why, for those who read it later."
    )

    def entered(self, today: date) -> tuple[Price, int]:
        """Return the price and the moment from which it holds; the start of `today` if no day is given."""
        day = self.effective_from or today
        return self._price(self.version or f"override-{day.isoformat()}"), start_of(day)


class LitellmPrices(Section):
    """A price taken from litellm's packaged table by name."""

    source: Literal["litellm"] = Field(description="In place of figures: take them from litellm's table.")
    name: str = Field(
        min_length=1, max_length=MOST_NAME_CHARACTERS, description="The model's name in that table, such as gpt-4o."
    )


def _discriminate(given: Any) -> str:
    if isinstance(given, list | tuple):
        return "a list"
    named = "source" in given if isinstance(given, Mapping) else isinstance(given, LitellmPrices)
    return "a name" if named else "figures"


PriceItem = Annotated[
    Annotated[PricesConfig, Tag("figures")] | Annotated[LitellmPrices, Tag("a name")], Discriminator(_discriminate)
]


def _refuse_overlaps(items: tuple[PricesConfig | LitellmPrices, ...]) -> tuple[PricesConfig | LitellmPrices, ...]:
    dates: set[date | None] = set()
    versions: set[str] = set()
    for item in items:
        if isinstance(item, LitellmPrices):
            continue
        if item.effective_from in dates:
            day = item.effective_from
            told = f"begin on {day}" if day else "have no effective_from, so both hold from the beginning"
            raise ValueError(f"the dates overlap: two prices {told}")
        if item.named_version() in versions:
            raise ValueError(f"two prices have the version {item.named_version()}; give each its own")
        dates.add(item.effective_from)
        versions.add(item.named_version())
    if sum(isinstance(item, LitellmPrices) for item in items) > 1:
        raise ValueError("the dates overlap: two prices come from litellm's table, which has no dates")
    return items


_PriceList = Annotated[
    tuple[PriceItem, ...], Field(min_length=1, max_length=_MOST_VERSIONS), AfterValidator(_refuse_overlaps)
]
ModelPrices = Annotated[
    Annotated[PricesConfig, Tag("figures")]
    | Annotated[LitellmPrices, Tag("a name")]
    | Annotated[_PriceList, Tag("a list")],
    Discriminator(_discriminate),
]
"""The forms that a model's `prices` may have: one price, a name in litellm's table, or a list of prices."""


def price_items(
    prices: PricesConfig | LitellmPrices | tuple[PricesConfig | LitellmPrices, ...] | None,
) -> tuple[PricesConfig | LitellmPrices, ...]:
    """Return a model's prices as a tuple; empty for None."""
    if prices is None:
        return ()
    return prices if isinstance(prices, tuple) else (prices,)


def dated_price(target_id: str, item: PricesConfig | LitellmPrices, table: Callable[[], LitellmTable]) -> DatedPrice:
    """Return a configured price as the price book has it.

    Raises PriceError if litellm's table is missing or lacks it.
    """
    if isinstance(item, LitellmPrices):
        return DatedPrice(target_id=target_id, price=priced(table(), item.name), source="litellm")
    return DatedPrice(target_id=target_id, price=item.price(), source="config", effective_us=item.effective_us())


def _refuse_gaps(base: MeterPrices, tiers: tuple[LongPromptPrices, ...], place: str) -> None:
    bounds = [tier.above_tokens for tier in tiers]
    if bounds != sorted(set(bounds)):
        raise ValueError(f"{place} must be ordered: each above_tokens above the one before")
    for index, tier in enumerate(tiers):
        _refuse_missing(base, tier, f"{place}[{index}]")


def _refuse_missing(base: MeterPrices, other: MeterPrices, place: str) -> None:
    """Refuse an optional meter left out beside one that is given: filling it in would be a guess. Raises ValueError."""
    missing = sorted(base.own_meters() - other.own_meters())
    if missing:
        raise ValueError(f"{place} needs `{missing[0]}` too, because the prices around it have one of their own")


def _tiers(tiers: tuple[LongPromptPrices, ...], version: str, request_usd: Decimal) -> tuple[LongPrompt, ...]:
    return tuple(LongPrompt(above_tokens=tier.above_tokens, price=tier.flat(version, request_usd)) for tier in tiers)


def _discounted(price: Price, share: Decimal) -> Price:
    def less(figure: int) -> int:
        return int((figure * share).to_integral_value(ROUND_HALF_UP))

    figures: dict[str, Any] = {
        name: less(figure) for name in METER_COLUMNS if (figure := getattr(price, name)) is not None
    }
    return Price(
        version=price.version,
        **figures,
        long_prompts=tuple(
            LongPrompt(above_tokens=each.above_tokens, price=_discounted(each.price, share))
            for each in price.long_prompts
        ),
        units=tuple(UnitPrice(unit=each.unit, nanousd=less(each.nanousd)) for each in price.units),
    )
