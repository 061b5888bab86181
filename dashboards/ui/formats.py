"""Formats of numbers, money and times for people. Unknown values are a dash, never 0."""

import re
from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any, Final

from markupsafe import Markup, escape

from cost.calendar import Calendar
from cost.shown import percent

UNKNOWN: Final = "—"
_CODE: Final = re.compile("`([^`]+)`")
_DAY: Final = re.compile(r"\b\d{4}-\d\d-\d\d\b")
_NANO: Final = 1_000_000_000
_SCALES: Final[tuple[tuple[int, str], ...]] = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))
_BYTES: Final[tuple[tuple[int, str], ...]] = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_EXACT_BELOW: Final = 10_000
_WHOLE_FROM: Final = 1_000
_WHOLE_MS_FROM_S: Final = 0.01
_TENTHS_FROM_S: Final = 10
_MINUTE_S: Final = 60
_HOUR_S: Final = 3_600
_DAY_S: Final = 86_400


def money(nanousd: int | None) -> str:
    """Return the dollars with cents; small amounts with enough digits to differ from zero, large ones without cents."""
    if nanousd is None:
        return UNKNOWN
    amount, sign = abs(nanousd), "-" if nanousd < 0 else ""
    if amount >= 10_000 * _NANO:
        return f"{sign}${_rounded(amount, 0):,}"
    if amount == 0 or amount >= _NANO // 10:
        return f"{sign}${_rounded(amount, 2):,}"
    if amount >= _NANO // 10_000:
        return f"{sign}${_rounded(amount, 4)}"
    return f"{sign}${_two_digits(amount)}"


def exact_money(nanousd: int | None) -> str:
    """Return the dollars with all nine decimals."""
    return "unknown" if nanousd is None else f"{'-' * (nanousd < 0)}${abs(Decimal(nanousd).scaleb(-9)):,.9f}"


def number(value: float | Decimal | None) -> str:
    """Return a count with thousands separators; a fraction with three significant digits."""
    if value is None:
        return UNKNOWN
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.3g}" if -_WHOLE_FROM < value < _WHOLE_FROM else f"{value:,.0f}"


def short(value: float | None) -> str:
    """Return a count in at most four digits and a letter: 1.24M."""
    if value is None:
        return UNKNOWN
    if abs(value) < _EXACT_BELOW:
        return number(value)
    for scale, letter in _SCALES:
        if abs(value) >= scale:
            return f"{value / scale:.3g}{letter}" if abs(value) < 999.5 * scale else f"{value / scale:,.0f}{letter}"
    return number(value)


def share(value: float | Decimal | None) -> str:
    """Return a share of 1 as a percentage with one decimal. Only exactly 0 and 1 read as 0 % and 100 %."""
    return percent(value, unknown=UNKNOWN)


def change_share(value: float | Decimal | None) -> str:
    """Return a change as a percentage with its sign."""
    return percent(value, signed=True, unknown=UNKNOWN)


def exact_share(value: Decimal | None) -> str:
    """Return a share of 1 as a percentage with both decimals that the books have: a promise of 40 % is not kept by 39.99 %."""
    return percent(value, 2, unknown=UNKNOWN)


def seconds(value: float | None) -> str:
    """Return a duration in a suitable unit."""
    if value is None:
        return UNKNOWN
    return f"-{_span(-value)}" if value < 0 else _span(value)


def _span(value: float) -> str:
    if value < 1:
        return f"{value * 1000:.0f} ms" if value >= _WHOLE_MS_FROM_S or value == 0 else f"{value * 1000:.2g} ms"
    if value < _MINUTE_S:
        return f"{value:.2f} s" if value < _TENTHS_FROM_S else f"{value:.1f} s"
    if value < _HOUR_S:
        return _two(int(value // 60), "min", int(value % 60), "s")
    if value < 2 * _DAY_S:
        return _two(int(value // 3600), "h", int(value % 3600 // 60), "min")
    return f"{value / _DAY_S:.1f} days"


def _two(whole: int, unit: str, rest: int, smaller: str) -> str:
    return f"{whole} {unit} {rest} {smaller}" if rest else f"{whole} {unit}"


def size(value: int | None) -> str:
    """Return a number of bytes in a suitable unit."""
    if value is None:
        return UNKNOWN
    for scale, unit in _BYTES:
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value} B"


def moment(at_us: int | None) -> str:
    """Return a moment in UTC, to the second; the page's script turns it into the viewer's own time."""
    return UNKNOWN if at_us is None else f"{_utc(at_us):%Y-%m-%d %H:%M:%S} UTC"


def clock(at_us: int, time_zone: str) -> str:
    """Return a moment as clocks of a zone show it, to the minute."""
    return f"{Calendar(time_zone).local(at_us):%Y-%m-%d %H:%M}"


def day(at_us: int | None) -> str:
    """Return a UTC day."""
    return UNKNOWN if at_us is None else f"{_utc(at_us):%Y-%m-%d}"


def iso(at_us: int) -> str:
    """Return a moment in UTC as ISO 8601, with milliseconds."""
    return _utc(at_us).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def plural(count: int, one: str, many: str | None = None) -> str:
    """Return `1 request`, `2 requests`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _rounded(nanousd: int, places: int) -> Decimal:
    return Decimal(nanousd).scaleb(-9).quantize(Decimal(1).scaleb(-places), rounding=ROUND_HALF_EVEN)


def _two_digits(nanousd: int) -> str:
    """Return an amount of a hundredth of a cent or less, such as a small request's cost, with two significant digits."""
    return f"{_rounded(nanousd, 11 - len(str(nanousd)) if nanousd > 9 else 9):f}"  # noqa: PLR2004 - one digit is left


def _utc(at_us: int) -> datetime:
    return datetime.fromtimestamp(at_us / 1_000_000, UTC)


def coded(text: str) -> Markup:
    """Return a text with what stands between backticks as code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704  Escaped first.


def unbroken(text: str) -> Markup:
    """Return a text in which no day is broken at its hyphens."""
    return Markup(_DAY.sub(r'<span class="figure-text">\g<0></span>', str(escape(text))))  # noqa: S704  Escaped first.


FILTERS: Final[dict[str, Any]] = {
    "money": money,
    "exact_money": exact_money,
    "number": number,
    "short": short,
    "share": share,
    "change_share": change_share,
    "exact_share": exact_share,
    "seconds": seconds,
    "size": size,
    "moment": moment,
    "day": day,
    "iso": iso,
    "plural": plural,
    "coded": coded,
    "unbroken": unbroken,
}
"""Jinja filters by name."""
