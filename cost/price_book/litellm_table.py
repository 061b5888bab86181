"""Reader of litellm's price table as plain data: importing litellm would take seconds and much memory.

Its prices are dollars for one token. They are read as decimals, never as floats. Some carry the noise of a float that
somebody once computed with (0.000015000020000000002), so a figure is rounded to a nano-dollar for a million tokens.

litellm writes 0 where it does not know, for what is self-hosted, and for what is free for a while. So a 0 is taken for
an unknown figure, and a model without an input or output price has no price here. There are two exceptions: models that
generate nothing (embeddings and the like) have a true 0 for output, and those that charge for each request may have a
true 0 for input. Moderation costs nothing where the table says so. A cache without a figure costs what input costs. A batch's figure that is left out has the discount of
the others.

Searches have a price where they cost the same whatever context they bring. What is billed by the second, character, image or rerank's
search has its price by that unit; it needs none for tokens.

Audio, images and video within chats have the price of their tokens, else that of text. Not read: images by the pixel, and
seconds of audio or video beside tokens.
"""

import difflib
import importlib.util
import json
import re
from collections.abc import Iterator, Mapping
from decimal import ROUND_HALF_UP, Decimal
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import msgspec

from cost.errors import PriceTableMissing, UnknownPrice
from cost.meters import METERS, fill_uncached
from cost.price_book.shipped_table import PATH, read_shipped, reduced
from cost.prices import (
    MOST_UNIT_USD,
    MOST_USD_PER_MILLION,
    SIZED_SEARCHES,
    WEB_SEARCH,
    LongPrompt,
    Price,
    Unit,
    UnitPrice,
    nanousd,
    unit_price,
)

MOST_BYTES: Final = 64 * 1024 * 1024
MOST_ROWS: Final = 100_000
MOST_NAME_CHARACTERS: Final = 256

_FILE: Final = "model_prices_and_context_window_backup.json"
_GENERATES_NOTHING: Final = frozenset({"embedding", "rerank", "moderation"})
_TIER: Final = re.compile(r"(?:input|output)_cost_per_token_above_([0-9]{1,6})k_tokens\Z")
_TOKENS: Final = 1_000_000
_NANO: Final = Decimal("0.000000001")

# The first name that has a figure counts; the second one is what older rows have.
_METERS: Final[dict[str, tuple[str, ...]]] = {
    "input": ("input_cost_per_token",),
    "output": ("output_cost_per_token",),
    "cached_input": ("cache_read_input_token_cost", "input_cost_per_token_cache_hit"),
    "cache_write": ("cache_creation_input_token_cost",),
    "cache_write_1h": ("cache_creation_input_token_cost_above_1hr",),
    "reasoning": ("output_cost_per_reasoning_token",),
    "audio_input": ("input_cost_per_audio_token",),
    "image_input": ("input_cost_per_image_token",),
    "cached_audio_input": ("cache_read_input_audio_token_cost",),
    "cached_image_input": ("cache_read_input_image_token_cost",),
    "audio_output": ("output_cost_per_audio_token",),
    "image_output": ("output_cost_per_image_token",),
    "video_output": ("output_cost_per_video_token",),
}

_UNITS: Final[Mapping[str, tuple[Unit, tuple[str, ...]]]] = {
    "audio_transcription": ("second", ("input_cost_per_second",)),
    "audio_speech": ("character", ("input_cost_per_character",)),
    "image_generation": ("image", ("output_cost_per_image", "input_cost_per_image")),
    "rerank": ("search", ("input_cost_per_query",)),
}
"""Units that a mode's rows are billed by beside tokens, and its figures' names."""
_FEMTO: Final = Decimal("1E-15")

_TERMS: Final[dict[str, str]] = {"batch": "_batches", "flex": "_flex", "priority": "_priority"}
"""Other prices of a model, with the ending that their figures' names have."""

_OF_THE_OUTPUT: Final = frozenset(each.name for each in METERS if "output" in {each.name, each.within})
_FOLLOWERS: Final = {each.name: each.within for each in METERS if each.follows and each.name != "cache_write_1h"}
"""Meters whose figure is left out where it equals that of the meter they are within, so that they follow it for long prompts too."""

Row = Mapping[str, Any]

_decode_rows = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class _RowsOnDemand(Mapping[str, Row]):
    """The table's rows, each decoded when it is asked for: there are thousands, and few are of interest."""

    def __init__(self, raw: Mapping[str, msgspec.Raw]) -> None:
        self._raw = {name: row for name, row in raw.items() if bytes(memoryview(row)[:1]) == b"{"}

    def __getitem__(self, name: str) -> Row:
        found: Row = json.loads(bytes(self._raw[name]), parse_float=Decimal)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._raw)

    def __len__(self) -> int:
        return len(self._raw)


class LitellmTable(msgspec.Struct, frozen=True):
    """Rows of one litellm release's price table, by model name."""

    release: str
    rows: Mapping[str, Row]
    whole: bool = True
    """False for the part that comes with the gateway."""

    @property
    def lacks(self) -> str:
        """The reason that a name may be missing, to stand behind the message that says so."""
        if self.whole:
            return ""
        return (
            ". That is the part of it which comes with the gateway, of providers with OpenAI's API; "
            "`pip install 'weighbridge[litellm]'` brings all of it"
        )

    @property
    def version(self) -> str:
        """Version name of prices from this table, `litellm-RELEASE`."""
        return f"litellm-{self.release}"

    def price(self, name: str) -> Price | None:
        """Return a model's price; None if the table lacks it or does not know it."""
        row = self.rows.get(name)
        return None if row is None else _price(row, self.version)


def read_table(package: str = "litellm") -> LitellmTable:
    """Read the table of the installed litellm, or without one the part that comes with the gateway. Raises
    PriceTableMissing.
    """
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        shipped = read_shipped()
        return LitellmTable(shipped.release, _RowsOnDemand(shipped.rows), whole=False)
    try:
        release = metadata.version(package)
    except metadata.PackageNotFoundError as missing:
        raise PriceTableMissing("litellm is there, but not as an installed package, so it has no version") from missing
    return table_in(Path(found.origin).with_name(_FILE), release)


def table_in(path: Path, release: str) -> LitellmTable:
    """Read the table in a file. Raises PriceTableMissing."""
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except OSError as failure:
        raise PriceTableMissing(f"litellm {release} has no table of prices: {failure.strerror}") from failure
    if len(raw) > MOST_BYTES:
        raise PriceTableMissing(f"the table of litellm {release} is larger than {MOST_BYTES} bytes")
    try:
        rows = _decode_rows(raw)
    except msgspec.ValidationError as failure:
        raise PriceTableMissing(f"the table of litellm {release} is not one of at most {MOST_ROWS} models") from failure
    except (ValueError, RecursionError) as failure:
        raise PriceTableMissing(f"the table of litellm {release} cannot be read as JSON") from failure
    if len(rows) > MOST_ROWS:
        raise PriceTableMissing(f"the table of litellm {release} is not one of at most {MOST_ROWS} models")
    return LitellmTable(release, _RowsOnDemand(rows))


def priced(table: LitellmTable, name: str) -> Price:
    """Return a model's price. Raises UnknownPrice, which suggests the closest name."""
    found = table.price(name)
    if found is not None:
        return found
    if name in table.rows:
        raise UnknownPrice(
            f"the table of litellm {table.release} has `{name}`, but not what a token of it costs; write its prices out"
        )
    near = difflib.get_close_matches(name, table.rows, n=1)
    hint = f"; did you mean `{near[0]}`?" if near else ""
    raise UnknownPrice(f"the table of litellm {table.release} has no `{name[:80]}`{hint or table.lacks}")


class _Figures(msgspec.Struct, frozen=True):
    """Lookup of a row's figures, from the specific to the general."""

    row: Row
    brackets: tuple[tuple[int, Row], ...]
    """Price brackets by prompt length (`tiered_pricing`): lower bound in tokens, and the figures."""

    def find(self, meter: str, above_tokens: int | None, *, terms: str = "") -> Decimal | None:
        """Return a meter's figure for prompts above so many tokens; the general one if longer prompts have none.

        `terms` is the ending of the names of a batch's or a service tier's figures.
        """
        if self.brackets:
            return _first_figure(_bracket(self.brackets, above_tokens), _METERS[meter])
        tier = "" if above_tokens is None else f"_above_{above_tokens // 1000}k_tokens"
        told = _first_figure(self.row, _METERS[meter], f"{tier}{terms}")
        if terms:
            return self._by_terms(meter, above_tokens, terms) if told is None else told
        return _first_figure(self.row, _METERS[meter]) if told is None else told

    def _by_terms(self, meter: str, above_tokens: int | None, terms: str) -> Decimal | None:
        """Return a figure of a batch or a service tier that the table leaves out.

        It is the usual figure at the discount, or surcharge, of its meter, else at that of input or output.
        """
        usual = self.find(meter, above_tokens)
        for like in (meter, "output" if meter in _OF_THE_OUTPUT else "input"):
            in_batch, alone = _first_figure(self.row, _METERS[like], terms), _first_figure(self.row, _METERS[like])
            if usual is not None and in_batch is not None and alone is not None:
                return usual * in_batch / alone
        return usual

    def bounds(self) -> list[int]:
        """Return the prompt lengths in tokens above which prices change."""
        if self.brackets:
            return [above for above, _ in self.brackets if above > 0]
        return sorted({int(found[1]) * 1000 for key in self.row if (found := _TIER.match(key)) and int(found[1])})


def _price(row: Row, version: str) -> Price | None:
    units = _units(row)
    figures = _Figures(row, tuple(_brackets(row)))
    request = _positive(row.get("input_cost_per_request")) or Decimal(0)
    try:
        base = _price_with_tiers(figures, version, request)
        if base is None:
            return _of_units(version, units) if units else None
        others = {
            field: _price_with_tiers(figures, version, request, terms)
            for field, terms in _TERMS.items()
            if _has_figures(row, terms)
        }
        return msgspec.structs.replace(base, **others, tool_calls=_tool_calls(row), units=units)
    except ValueError:
        # A figure beyond any price, or more lengths than a price has: what makes no sense is not known.
        return None


def _tool_calls(row: Row) -> tuple[tuple[str, int], ...]:
    told = row.get("search_context_cost_per_query")
    found = {
        size: nanousd(figure.quantize(_NANO, ROUND_HALF_UP))
        for size in SIZED_SEARCHES
        if isinstance(told, dict) and (figure := _positive(told.get(f"search_context_size_{size}"))) is not None
    }
    if len(set(found.values())) == 1:
        return ((WEB_SEARCH, next(iter(found.values()))),)
    return tuple(sorted((SIZED_SEARCHES[size], price) for size, price in found.items()))


def _of_units(version: str, units: tuple[UnitPrice, ...]) -> Price:
    return Price(
        version=version,
        input_nanousd=0,
        output_nanousd=0,
        cached_input_nanousd=0,
        cache_write_nanousd=0,
        units=units,
    )


def _units(row: Row) -> tuple[UnitPrice, ...]:
    """Return the prices of a row's units, which are billed beside tokens."""
    unit, names = _UNITS.get(str(row.get("mode")), ("", ()))
    usd = _first_figure(row, names)
    if usd is None or usd > MOST_UNIT_USD:
        return ()
    return (unit_price(unit, usd.quantize(_FEMTO, ROUND_HALF_UP)),)


def _price_with_tiers(figures: _Figures, version: str, request: Decimal, terms: str = "") -> Price | None:
    base = _flat_price(figures, None, version, request, terms)
    if base is None:
        return None
    tiers = [(bound, _flat_price(figures, bound, version, request, terms)) for bound in figures.bounds()]
    long_prompts = tuple(LongPrompt(above_tokens=bound, price=tier) for bound, tier in tiers if tier is not None)
    return msgspec.structs.replace(base, long_prompts=long_prompts)


def _flat_price(
    figures: _Figures, above_tokens: int | None, version: str, request: Decimal, terms: str
) -> Price | None:
    found = {meter: figures.find(meter, above_tokens, terms=terms) for meter in _METERS}
    mode = figures.row.get("mode")
    is_free = mode == "moderation" and figures.row.get("input_cost_per_token") == 0
    usd_input = Decimal(0) if found["input"] is None and (request or is_free) else found["input"]
    generates_nothing = mode in _GENERATES_NOTHING
    if mode == "image_generation" and found["output"] is None:
        # Pictures are all that it generates.
        found["output"] = _first_figure(figures.row, ("output_cost_per_image_token",))
    usd_output = found["output"] if found["output"] is not None or not generates_nothing else Decimal(0)
    if usd_input is None or usd_output is None:
        return None
    cached, write, write_1h = found["cached_input"], found["cache_write"], found["cache_write_1h"]
    own: dict[str, Any] = {
        f"{name}_nanousd": _per_million(usd) for name, usd in _own(figures, found).items() if name in _FOLLOWERS
    }
    return Price(
        version=version,
        input_nanousd=_per_million(usd_input),
        output_nanousd=_per_million(usd_output),
        cached_input_nanousd=_per_million(usd_input if cached is None else cached),
        cache_write_nanousd=_per_million(usd_input if write is None else write),
        cache_write_1h_nanousd=None if write_1h is None else _per_million(write_1h),
        **own,
        request_nanousd=nanousd(request.quantize(_NANO, ROUND_HALF_UP)),
    )


def _own(figures: _Figures, found: Mapping[str, Decimal | None]) -> dict[str, Decimal]:
    """Return the figures that differ from those of the meters they are within."""
    own = {
        name: usd
        for name, usd in found.items()
        if usd is not None
        and (name not in _FOLLOWERS or figures.find(name, None) != figures.find(_FOLLOWERS[name], None))
    }
    fill_uncached(own)
    return own


def _has_figures(row: Row, terms: str) -> bool:
    return all(_positive(row.get(f"{side}_cost_per_token{terms}")) is not None for side in ("input", "output"))


def _brackets(row: Row) -> Iterator[tuple[int, Row]]:
    tiers = row.get("tiered_pricing")
    for tier in tiers if isinstance(tiers, list) else ():
        bounds = tier.get("range") if isinstance(tier, dict) else None
        start = bounds[0] if isinstance(bounds, list) and bounds else None
        if isinstance(start, int | Decimal):
            yield int(start), tier


def _bracket(brackets: tuple[tuple[int, Row], ...], above_tokens: int | None) -> Row:
    return next((tier for above, tier in brackets if above == (above_tokens or 0)), {})


def _first_figure(row: Row, names: tuple[str, ...], ending: str = "") -> Decimal | None:
    return next((found for name in names if (found := _positive(row.get(name + ending))) is not None), None)


def _positive(value: Any) -> Decimal | None:
    """Return a figure above 0, else None: a 0 means unknown, see the module's docstring."""
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    return Decimal(value) if Decimal(value) > 0 else None


def _per_million(usd_per_token: Decimal) -> int:
    amount = usd_per_token * _TOKENS
    if amount > MOST_USD_PER_MILLION:
        raise ValueError(f"{amount} USD per million tokens is beyond any price")
    return nanousd(amount.quantize(_NANO, ROUND_HALF_UP))


if __name__ == "__main__":
    _installed = read_table()
    PATH.write_bytes(reduced(_installed.release, _installed.rows))
