"""An answer's figures, each checked against what tools returned: what no tool returned is marked, and never shown as found. Pure."""

import datetime as dt
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Final, Literal

import msgspec

from api.ask.found import Figure, Found, Kind

PartKind = Literal["text", "figure", "unverified"]
MOST_CHARS: Final = 4_000
_MOST_NAMES: Final = 2_000
_MOST_DIGITS: Final = 15
_ECHOED: Final = 366
"""The greatest plain number that an answer may repeat from its question, such as the 7 of `last 7 days`."""

_ADDRESS: Final = re.compile(
    r"(?:\b[a-z][a-z0-9+.-]{1,20}:)?//[^\s<>()\[\]\"']+|\bwww\.[^\s<>()\[\]\"']+|\b(?:mailto|javascript|data):\S+",
    re.IGNORECASE,
)
_LINK: Final = re.compile(r"!?\[([^\[\]\n]{0,300})\]\([^()\n]{0,2000}\)")
_MARKS: Final = re.compile(r"\*\*|__|`+|^#{1,6}\s+", re.MULTILINE)
_LIST_MARK: Final = re.compile(r"^\s*\d{1,2}[.)]\s")
_MONTHS: Final = (
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
)
_TIMES: Final = "\u00d7"
_MONTH: Final = "|".join(f"{name}|{name[:3]}" for name in _MONTHS)
_TOKEN: Final = re.compile(
    r"(?P<iso>\b\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?Z?)?\b)"
    r"|(?P<clock>\b\d{1,2}:\d{2}(?::\d{2})?\b)"
    rf"|(?P<day>\b\d{{1,2}}(?:st|nd|rd|th)?\s+(?:{_MONTH})\b\.?(?:,?\s+\d{{4}}\b)?|\b(?:{_MONTH})\.?\s+\d{{1,2}}(?:st|nd|rd|th)?\b(?:,?\s+\d{{4}}\b)?)"
    rf"|(?P<month>\b(?:{_MONTH})\.?\s+\d{{4}}\b)"
    r"|(?P<number>(?<![\w.])[-\u2212+]?(?:(?P<dollar>\$|USD|US\$)\s?)?(?P<digits>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
    r"(?P<unit>\s?%|\s?\u00d7|[ -]?(?:percent|per cent|cents?|thousand|million|billion|dollars?|USD|bn|ms|milliseconds?|seconds?|s|x|k|M|B|K|G)\b)?)",
    re.IGNORECASE,
)
_LENGTH: Final = re.compile(r"[ -](?:day|week|month|hour|minute)s?\b", re.IGNORECASE)
"""What follows a number that is a length of time, and no figure."""
_SCALES: Final[Mapping[str, Decimal]] = {
    "k": Decimal(1_000), "thousand": Decimal(1_000), "m": Decimal(10) ** 6, "million": Decimal(10) ** 6,
    "b": Decimal(10) ** 9, "bn": Decimal(10) ** 9, "g": Decimal(10) ** 9, "billion": Decimal(10) ** 9,
    "cent": Decimal("0.01"), "cents": Decimal("0.01"),
    "ms": Decimal("0.001"), "millisecond": Decimal("0.001"), "milliseconds": Decimal("0.001"),
}  # fmt: skip
_KINDS: Final[Mapping[str, Kind]] = {
    "%": "percent", "percent": "percent", "per cent": "percent", "cent": "usd", "cents": "usd", "dollar": "usd", "dollars": "usd", "usd": "usd",
    "ms": "s", "millisecond": "s", "milliseconds": "s", "s": "s", "second": "s", "seconds": "s",
}  # fmt: skip


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of an answer: text, a figure with the page of its rows, or one that no tool returned."""

    text: str
    kind: PartKind = "text"
    href: str = ""
    ref: str = ""


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer is checked against: figures, names and days of the results, and the question."""

    figures: Sequence[Figure]
    names: Sequence[str]
    days: Sequence[tuple[dt.date, dt.date]]
    moments: Sequence[str]
    question: str
    today: dt.date


def known_of(results: Mapping[str, Found], question: str, today: dt.date) -> Known:
    """Return what these results, by their references, back."""
    names = sorted({name for found in results.values() for name in found.names()}, key=lambda each: (-len(each), each))
    figures = [figure for ref, found in results.items() for figure in found.figures(ref)]
    sentences = [
        _in_sentence(match, found.link(at), f"{ref}.{at + 1}")
        for ref, found in results.items()
        for at, row in enumerate(found.rows)
        for match in _TOKEN.finditer(str(row.get("text") or ""))
        if match["number"]
    ]
    return Known(
        figures=[*figures, *sentences],
        names=[name for name in names if _is_mere_name(name)][:_MOST_NAMES],
        days=[days for found in results.values() for days in (found.days, found.before) if days is not None],
        moments=names,
        question=question,
        today=today,
    )


def readable(text: str) -> str:
    """Return a model's text as people may see it: plain, bounded, without markup and addresses, which it could have from anywhere."""
    sound = "".join(char for char in text[: 4 * MOST_CHARS].replace("\r\n", "\n") if char == "\n" or char.isprintable())
    sound = _LINK.sub(r"\1", sound)
    sound = _ADDRESS.sub("(address left out)", sound)
    sound = re.sub(r"\n{3,}", "\n\n", _MARKS.sub("", sound)).strip()
    return sound if len(sound) <= MOST_CHARS else f"{sound[: MOST_CHARS - 1]}…"


def checked(text: str, known: Known) -> list[list[Part]]:
    """Return the lines of an answer in parts, every figure of it either linked to its rows or marked as unverified."""
    return [_merged(_line(line, known)) for line in readable(text).split("\n")]


def unverified(lines: Iterable[Sequence[Part]]) -> list[str]:
    """Return the figures that no tool returned."""
    return [part.text for line in lines for part in line if part.kind == "unverified"]


def _is_mere_name(name: str) -> bool:
    """Return True for a name whose digits are no figures. One that reads like an amount could pass off any as found."""
    numbers = [match for match in _TOKEN.finditer(name) if match["number"]]
    is_plain = not any(match["dollar"] or match["unit"] for match in numbers)
    return is_plain and any(char.isdigit() for char in name) and any(char.isalpha() for char in name)


def _line(line: str, known: Known) -> Iterator[Part]:
    at = 0
    mark = _LIST_MARK.match(line)
    if mark is not None:
        yield Part(text=mark[0])
        at = mark.end()
    for piece, is_name in _named(line[at:], known.names):
        if is_name:
            yield Part(text=piece)
            continue
        done = 0
        for match in _TOKEN.finditer(piece):
            yield Part(text=piece[done : match.start()])
            yield _checked_token(match, line, known)
            done = match.end()
        yield Part(text=piece[done:])


def _named(text: str, names: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Yield the text in pieces: names of the results as a whole, whose digits are no figures, and what is between."""
    places: list[tuple[int, int]] = []
    for name in names:
        start = text.find(name)
        while start >= 0:
            end = start + len(name)
            alone = not (text[start - 1 : start].isalnum() or text[end : end + 1].isalnum())
            if alone and all(end <= one or start >= other for one, other in places):
                places.append((start, end))
            start = text.find(name, end)
    at = 0
    for start, end in sorted(places):
        yield text[at:start], False
        yield text[start:end], True
        at = end
    yield text[at:], False


def _checked_token(match: re.Match[str], line: str, known: Known) -> Part:
    text = match[0]
    if match["number"] is None:
        return Part(text=text, kind="text" if _is_known_time(match, known) else "unverified")
    if _LENGTH.match(match.string, match.end()) and match["digits"].isdigit():
        return Part(text=text, kind="text" if _is_length(match, known) else "unverified")
    figure = _figure_of(match, line, known.figures)
    if figure is not None:
        return Part(text=text, kind="figure", href=figure.href, ref=figure.ref)
    return Part(text=text, kind="text" if _is_echo(match, known) else "unverified")


def _figure_of(match: re.Match[str], line: str, figures: Sequence[Figure]) -> Figure | None:
    """Return the figure that a number is, rounded as far as it is written; the one whose names stand in the same line first."""
    digits = match["digits"].replace(",", "")
    if len(digits) > _MOST_DIGITS:
        return None
    unit = (match["unit"] or "").strip(" -").lower()
    kind: Kind | None = "usd" if match["dollar"] else _KINDS.get(unit)
    scale = _SCALES.get(unit, Decimal(1))
    shown = Decimal(digits) * scale
    places = len(digits.partition(".")[2])
    half = Decimal(5).scaleb(-places - 1) * scale
    is_whole = scale == 1 and not places and kind is None
    fitting = [each for each in figures if _fits(each, shown, half, kind, unit, is_whole=is_whole)]
    named = (each for each in fitting if any(name in line for name in each.names))
    return next(named, fitting[0] if fitting else None)


def _fits(figure: Figure, shown: Decimal, half: Decimal, kind: Kind | None, unit: str, *, is_whole: bool) -> bool:
    if kind is not None and figure.kind != kind:
        return False
    # A count is no rounded amount, and neither is a multiple.
    if (is_whole or unit in {"x", _TIMES}) and figure.kind:
        return False
    value = abs(figure.value)
    if not shown or (is_whole and value == int(value)):
        # Nothing is nothing, and a whole number is not rounded.
        return value == shown
    return abs(value - shown) <= half


def _is_echo(match: re.Match[str], known: Known) -> bool:
    """Return True for a plain number of the question, such as its 7 days. An amount in it is a claim to check."""
    if match["dollar"] or match["unit"] or not match["digits"].isdigit() or int(match["digits"]) > _ECHOED:
        return False
    return match["digits"] in re.findall(r"(?<![\w.,$])\d+(?![\w.,%])", known.question)


def _is_length(match: re.Match[str], known: Known) -> bool:
    """Return True for the length of a period that was looked at, or one of the question."""
    lengths = {str((last - first).days + 1) for first, last in known.days}
    return match["digits"] in lengths or _is_echo(match, known)


def _is_known_time(match: re.Match[str], known: Known) -> bool:
    """Return True for a time of the results or of the question."""
    text = match[0]
    if text in known.question or any(text in moment for moment in known.moments):
        return True
    if match["iso"]:
        try:
            day = dt.date.fromisoformat(text[:10])
        except ValueError:
            return False
        return len(text) == len("2026-11-05") and _is_within(known, lambda one: one == day)
    if match["clock"]:
        return False
    words = re.findall(r"[a-z]+|\d+", text.lower())
    month = next((at for at, name in enumerate(_MONTHS, 1) for word in words if word == name or word == name[:3]), 0)
    numbers = [int(word) for word in words if word.isdigit()]
    if match["month"]:
        return _is_within(known, lambda one: (one.month, one.year) == (month, numbers[0]))
    year = numbers[1] if len(numbers) > 1 else None
    return _is_within(known, lambda one: (one.month, one.day) == (month, numbers[0]) and year in {None, one.year})


def _is_within(known: Known, is_it: Callable[[dt.date], bool]) -> bool:
    if is_it(known.today):
        return True
    for first, last in known.days:
        span = min((last - first).days, _ECHOED)
        if any(is_it(first + dt.timedelta(days=at)) for at in range(span + 1)):
            return True
    return False


def _in_sentence(match: re.Match[str], href: str, ref: str) -> Figure:
    unit = (match["unit"] or "").strip(" -").lower()
    kind: Kind = "usd" if match["dollar"] else _KINDS.get(unit, "")
    digits = match["digits"].replace(",", "")[:_MOST_DIGITS]
    return Figure(value=Decimal(digits) * _SCALES.get(unit, Decimal(1)), kind=kind, href=href, ref=f"{ref}.text")


def _merged(parts: Iterable[Part]) -> list[Part]:
    """Return parts without empty ones, neighbouring texts as one."""
    merged: list[Part] = []
    for part in parts:
        if part.kind == "text" and merged and merged[-1].kind == "text":
            merged[-1] = Part(text=merged[-1].text + part.text)
        elif part.text:
            merged.append(part)
    return merged
