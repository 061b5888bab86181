"""Meters: what is billed apart, in one table, and all that follows from it.

Usage counts tokens in inclusive buckets: `input_tokens` contains what came from a cache. Meters do not overlap, and `split` is
the one way from buckets to meters:

    of 100 prompt tokens, 60 of them cached, and 20 of answer, 5 of them reasoning  ->  40, 60, 15, 5 and 1 request

Tokens of sound, pictures and video are counted within what is not cached, and within what is: audio that came from the cache is
`cached_audio_input`, and no part of `audio_input`. So no two meters of one whole overlap (`cost.usage` says how what providers
tell is divided).

The columns of the ledger, of its roll-ups and of prices are named `<meter>_tokens` and `<meter>_nanousd`.
"""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from itertools import combinations
from typing import Any, Final, Literal, NamedTuple, TypeVar, get_args

import msgspec

_T = TypeVar("_T")
Medium = Literal["audio", "image", "video"]
"""What tokens may be of beside text."""


Media = frozenset[Medium]
MEDIA: Final[Media] = frozenset(get_args(Medium))
NO_MEDIA: Final[Media] = frozenset()
SETS_OF_MEDIA: Final = tuple(
    frozenset(each) for size in range(len(MEDIA) + 1) for each in combinations(get_args(Medium), size)
)


class Meter(NamedTuple):
    """One meter, and its words on each surface."""

    name: str
    within: str
    """Meter whose inclusive bucket contains this one's, and whose price and weight it has without one of its own; or empty."""
    request_label: str
    """Words on the page of one request."""
    price_label: str
    """Column of the page of prices."""
    report_label: str
    """Words in the daily report."""
    focus_label: str
    """Words in a FOCUS export."""
    price_help: str = ""
    """Description of its price in the configuration."""
    field_label: str = ""
    """Label of its field where a price is entered; `price_label` where that will do."""
    field_hint: str = ""
    """Price that it has where that field is left empty, in words; by its name that of `within`."""
    follows: bool = False
    """True if a price without this figure has none stored, so that it goes along with that of `within`."""
    in_tokens: bool = True
    in_statements: bool = True
    """False if providers' own books do not tell it apart, but as a part of `within`."""
    later: bool = False
    """True if the roll-ups had rows before it, which have 0."""
    medium: Medium | None = None
    """What its tokens are of, so that a request without it cannot have any; None for all."""
    uncached: str = ""
    """Meter that it is the cached part of, and whose price it has where no cache has a price."""


def _of_medium(medium: Medium, whole: str, words: str, *, uncached: str = "") -> Meter:
    """Return the meter of a medium's tokens within another meter."""
    words = f"{words}, {medium}"
    return Meter(
        f"cached_{medium}_input" if uncached else f"{medium}_{whole}",
        whole,
        words.replace("Input, cached", "Prompt, from a cache").replace("Input", "Prompt").replace("Output", "Answer"),
        words,
        words,
        f"{'Cached ' if uncached else ''}{medium.title()} {'Output' if whole == 'output' else 'Input'} Tokens",
        price_help=f"A million tokens of {medium}{'s' if medium == 'image' else ''}{' read from the cache' if uncached else ''}; default `{whole}`.",
        follows=True,
        in_statements=False,
        later=True,
        medium=medium,
        uncached=uncached,
    )


METERS: Final = (
    Meter(
        "input",
        "",
        "Prompt, fresh",
        "Input",
        "Input, not cached",
        "Input Tokens",
        price_help="A million prompt tokens.",
    ),
    _of_medium("audio", "input", "Input"),
    _of_medium("image", "input", "Input"),
    Meter(
        "cached_input",
        "input",
        "Prompt, from a cache",
        "Cached input",
        "Input, cached",
        "Cached Input Tokens",
        price_help="A million prompt tokens read from the provider's cache.",
    ),
    _of_medium("audio", "cached_input", "Input, cached", uncached="audio_input"),
    _of_medium("image", "cached_input", "Input, cached", uncached="image_input"),
    Meter(
        "cache_write",
        "input",
        "Prompt, written to a cache",
        "Cache write",
        "Cache writes, 5 minutes",
        "Cache Write Tokens",
        price_help="A million prompt tokens written to the cache.",
        field_label="Cache write, 5 minutes",
    ),
    Meter(
        "cache_write_1h",
        "cache_write",
        "Prompt, written to a cache for an hour",
        "Cache write, 1 h",
        "Cache writes, 1 hour",
        "Cache Write Tokens for 1 Hour",
        price_help="A million written for an hour; default `cache_write`.",
        field_label="Cache write, 1 hour",
        field_hint="as the 5 minutes",
        follows=True,
    ),
    Meter("output", "", "Answer", "Output", "Output", "Output Tokens", price_help="A million generated tokens."),
    _of_medium("audio", "output", "Output"),
    _of_medium("image", "output", "Output"),
    _of_medium("video", "output", "Output"),
    Meter(
        "reasoning",
        "output",
        "Reasoning",
        "Reasoning",
        "Reasoning",
        "Reasoning Tokens",
        price_help="A million reasoning tokens; default `output`.",
        follows=True,
        in_statements=False,
    ),
    Meter(
        "request",
        "",
        "The request itself, or what cannot be divided",
        "Request",
        "Requests and other charges",
        "Requests",
        in_tokens=False,
    ),
)
"""All meters, tokens first.

`input` is text that neither came from nor went to a cache, `output` text that is not reasoning, and `cache_write` what is kept
for the usual five minutes. `request` is the request itself, and what it used of a unit.
"""

Meters = tuple[int, ...]
"""One figure for each of `METERS`, in that order."""

METER_NAMES: Final = tuple(each.name for each in METERS)
TOKEN_METERS: Final = tuple(each.name for each in METERS if each.in_tokens)
METER_COLUMNS: Final = tuple(f"{name}_nanousd" for name in METER_NAMES)
"""Columns of the amount of each meter; they add up to the cost."""
TOKEN_COLUMNS: Final = tuple(f"{name}_tokens" for name in TOKEN_METERS)
"""Columns of token counts in inclusive buckets, as in `cost.usage.Usage`."""
REPLAYED_COLUMNS: Final = ("replayed_input_tokens", "replayed_output_tokens", "cache_saved_nanousd")
"""Columns of an answer that was kept and given again: its tokens and its cost when a model gave it. No meter counts them."""
OUTPUT_COLUMNS: Final = tuple(f"{each.name}_tokens" for each in METERS if "output" in {each.name, each.within})
"""Those of the answer."""
PRICED_PER_TOKEN: Final = tuple(sorted((each for each in METERS if each.in_tokens), key=lambda each: bool(each.within)))
"""Meters with a price for a million tokens, those first that every price has."""
LATER_COLUMNS: Final = tuple(f"{each.name}_{end}" for each in METERS if each.later for end in ("tokens", "nanousd"))
ZERO_METERS: Final[Meters] = (0,) * len(METERS)
FALLBACKS: Final = tuple((place, METER_NAMES.index(each.within)) for place, each in enumerate(METERS) if each.within)
"""Places of the meters that are within others, and of those others, which come first."""
FOLLOWERS: Final = tuple((part, whole) for part, whole in FALLBACKS if METERS[part].follows)
"""The same of the meters whose price may be left to that of another."""


TOKENS_PER_PRICE: Final = 1_000_000
"""Tokens that a price is for."""
_HALF: Final = TOKENS_PER_PRICE // 2


class TokenCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts in inclusive buckets, one field for each of `TOKEN_COLUMNS`."""

    input_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = 0
    """Part of `cache_write_tokens` that is kept for an hour."""
    output_tokens: int = 0
    reasoning_tokens: int = 0
    audio_input_tokens: int = 0
    image_input_tokens: int = 0
    cached_audio_input_tokens: int = 0
    cached_image_input_tokens: int = 0
    audio_output_tokens: int = 0
    image_output_tokens: int = 0
    video_output_tokens: int = 0


class MeterSums(TokenCounts, frozen=True, kw_only=True):
    """The same counts with amounts in nano-dollars, one field for each of `METER_COLUMNS`."""

    input_nanousd: int = 0
    cached_input_nanousd: int = 0
    cache_write_nanousd: int = 0
    cache_write_1h_nanousd: int = 0
    output_nanousd: int = 0
    reasoning_nanousd: int = 0
    request_nanousd: int = 0
    audio_input_nanousd: int = 0
    image_input_nanousd: int = 0
    cached_audio_input_nanousd: int = 0
    cached_image_input_nanousd: int = 0
    audio_output_nanousd: int = 0
    image_output_nanousd: int = 0
    video_output_nanousd: int = 0


class PriceFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Nano-dollars per million tokens by meter, and for one request, as of `version`; a later meter stands at the end."""

    version: str
    input_nanousd: int
    output_nanousd: int
    cached_input_nanousd: int
    cache_write_nanousd: int
    cache_write_1h_nanousd: int | None = None
    reasoning_nanousd: int | None = None
    request_nanousd: int = 0
    audio_input_nanousd: int | None = None
    image_input_nanousd: int | None = None
    cached_audio_input_nanousd: int | None = None
    cached_image_input_nanousd: int | None = None
    audio_output_nanousd: int | None = None
    image_output_nanousd: int | None = None
    video_output_nanousd: int | None = None


def _compiled(parameters: str, expression: str) -> Callable[..., Any]:
    """Compile what is made of the table: every attempt is split and priced, and loops over it would take four times as long."""
    found: Callable[..., Any] = eval(f"lambda {parameters}: {expression}")  # noqa: S307
    return found


def _split_terms(counts: Sequence[str]) -> list[str]:
    terms = list(counts)
    for part, whole in FALLBACKS:
        terms[whole] += f" - {counts[part]}"
    return terms


def _figure_terms() -> list[str]:
    terms = [f"price.{name}_nanousd" for name in METER_NAMES]
    for whole in {whole for _, whole in FOLLOWERS}:
        terms[whole] = f"(f{whole} := {terms[whole]})"
    for part, whole in FOLLOWERS:
        terms[part] = f"(f{whole} if (own := {terms[part]}) is None else own)"
    return terms


def _rounded_terms(amounts: Sequence[str]) -> list[str]:
    """Return whole nano-dollars of amounts times a million: the running total is rounded, not each part."""
    before = ""
    terms: list[str] = []
    for place, amount in enumerate(amounts):
        running = f"total + {amount}" if before else amount
        terms.append(f"(r{place} := ((total := {running}) + {_HALF}) // {TOKENS_PER_PRICE}){before}")
        before = f" - r{place}"
    return terms


def _cost_terms() -> tuple[str, str, str]:
    """Return the condition that any count is within another one, the costs by meter where one is, and where none is."""
    parts = " or ".join(f"usage.{each.name}_tokens" for each in METERS if each.within)
    amounts = [
        f"({count}) * {figure}"
        for count, figure in zip(
            _split_terms([f"usage.{name}" for name in TOKEN_COLUMNS]), _figure_terms()[:-1], strict=True
        )
    ]
    two = {name: f"usage.{name}_tokens * price.{name}_nanousd" for name in ("input", "output")}
    rounded = iter(_rounded_terms(list(two.values())))
    plain = [next(rounded) if name in two else "0" for name in TOKEN_METERS]
    return parts, ", ".join(_rounded_terms(amounts)), ", ".join(plain)


_PARTS, _COSTS, _COSTS_OF_TWO = _cost_terms()

split: Final[Callable[[Sequence[int], int], Meters]] = _compiled(
    "b, requests", f"({', '.join(_split_terms([f'b[{place}]' for place in range(len(TOKEN_METERS))]))}, requests)"
)
"""Split inclusive counts, in the order of `TOKEN_COLUMNS`, into meters that do not overlap; requests are the last one."""

own_figures: Final[Callable[[PriceFigures], Meters]] = _compiled("price", f"({', '.join(_figure_terms())})")
"""Return a price's figure of each meter, its own or that of the meter it follows; that of requests is for one."""

costs_of: Final[Callable[[TokenCounts, PriceFigures], Meters]] = _compiled(
    "usage, price", f"({_COSTS}, price.request_nanousd) if {_PARTS} else ({_COSTS_OF_TWO}, price.request_nanousd)"
)
"""Return the cost of a request by meter, in nano-dollars. They add up to its cost, rounded half up once."""

cost_of: Final[Callable[[TokenCounts, PriceFigures], int]] = _compiled(
    "usage, price",
    f"sum(({_COSTS}, price.request_nanousd)) if {_PARTS} else (usage.input_tokens * price.input_nanousd "
    f"+ usage.output_tokens * price.output_nanousd + {_HALF}) // {TOKENS_PER_PRICE} + price.request_nanousd",
)
"""Return the sum of `costs_of`, in half its time."""


def dearest_of(whole: str, media: Media) -> Callable[[PriceFigures], int]:
    """Return a function that gives the highest figure of a meter and of all that is within it, as far as it is of text or of
    these media.
    """
    found = [whole]
    for each in METERS:
        if each.within in found and (each.medium is None or each.medium in media):
            found.append(each.name)
    return _compiled("price", f"max({', '.join(f'price.{name}_nanousd or 0' for name in found)})")


def split_row(row: Mapping[str, int], requests: int) -> Meters:
    """Split the token columns of a row, as `split` does."""
    return split([row[name] for name in TOKEN_COLUMNS], requests)


def fill_uncached(figures: MutableMapping[str, _T]) -> None:
    """Give the cached part of a medium, where no cache has a price, the price of what is not cached."""
    if "cached_input" not in figures:
        for each in METERS:
            if each.uncached in figures and each.name not in figures:
                figures[each.name] = figures[each.uncached]


def with_fallbacks(figures: Mapping[str, int]) -> Meters:
    """Return a figure for each meter: its own, or else that of the meter that it is within."""
    found: list[int] = []
    for each in METERS:
        found.append(figures[each.name] if each.name in figures else found[METER_NAMES.index(each.within)])
    return tuple(found)
