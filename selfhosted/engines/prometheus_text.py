"""Parser of Prometheus's text format for a few wanted series, which accepts sound values only.

The page is another process's output. An invalid series (NaN, infinite, negative, absurdly large, or a duplicate) makes
its whole metric unknown, since a sum or a mean of what is left would be a wrong figure that looks like a right one.
"""

import re
from collections.abc import Iterable
from itertools import islice
from typing import Final

import msgspec

MAX_LINES: Final = 50_000
MAX_SAMPLES: Final = 4_000
"""The most samples of the wanted metrics together: 64 engines in one process have about 1,500."""
MAX_LINE_BYTES: Final = 16_384
MAX_VALUE: Final = 1e15
"""The largest value accepted: far above any count of tokens or bytes, and still exact in a float."""

# Possessive quantifiers: no backtracking, so matching is linear in a hostile line.
_REST: Final = re.compile(
    rb'(?:\{((?:[^"}]++|"(?:[^"\\]++|\\.)*+")*+)\})?[ \t]++([^ \t\r]++)(?:[ \t]++-?[0-9]++)?[ \t\r]*+'
)
_LABEL: Final = re.compile(rb'[ \t]*+([A-Za-z_][A-Za-z0-9_]*+)[ \t]*+=[ \t]*+"((?:[^"\\]++|\\.)*+)"[ \t]*+(?:,|$)')
_ESCAPE: Final = re.compile(r'\\([\\"n])')


class PageUnreadable(Exception):
    """The page is cut off, too long or no metrics, and is rejected as a whole."""


class Sample(msgspec.Struct, frozen=True):
    """The value of one series. `raw_labels` is the text between the braces."""

    raw_labels: bytes
    value: float

    def labels(self) -> dict[str, str]:
        """Return the labels, unescaped. Malformed ones are left out."""
        found = {}
        for name, value in _LABEL.findall(self.raw_labels):
            text = value.decode(errors="replace")
            found[name.decode()] = _ESCAPE.sub(_unescape, text) if "\\" in text else text
        return found


Series = dict[str, tuple[Sample, ...] | None]
"""Samples by metric name; None for a metric with an invalid series. Metrics that the page lacks are missing."""


class PageReader:
    """A reader of fixed metric names, compiled to find their lines in one pass over a page."""

    def __init__(self, names: Iterable[str]) -> None:
        wanted = "|".join(re.escape(name) for name in sorted(names, reverse=True))
        self._lines = re.compile(rf"\n({wanted})(?=[{{ \t])([^\n]*+)".encode())

    def read(self, page: bytes) -> Series:
        # The format ends with a line feed; without it the page was cut, and what is missing would count as 0.
        if not page.endswith(b"\n"):
            raise PageUnreadable("the page is empty" if not page else "the page is cut off, or is no metrics at all")
        if page.count(b"\n") > MAX_LINES:
            raise PageUnreadable(f"the page has more than {MAX_LINES} lines")
        found: dict[bytes, dict[bytes, float] | None] = {}
        matches = self._lines.finditer(b"\n" + page)
        for match in islice(matches, MAX_SAMPLES):
            _note(found, match.group(1), match.group(2))
        if next(matches, None) is not None:
            raise PageUnreadable(f"the page has more than {MAX_SAMPLES} series of the metrics that are read")
        return {
            name.decode(): None if series is None else tuple(Sample(labels, value) for labels, value in series.items())
            for name, series in found.items()
        }


def _note(found: dict[bytes, dict[bytes, float] | None], name: bytes, rest: bytes) -> None:
    """Add a series to its metric, or make the whole metric unknown."""
    series = found.setdefault(name, {})
    if series is None:
        return
    match = _REST.fullmatch(rest) if len(rest) <= MAX_LINE_BYTES else None
    value = None if match is None else sound(match.group(2))
    if match is None or value is None:
        found[name] = None
        return
    labels = match.group(1) or b""
    if labels in series:
        found[name] = None
        return
    series[labels] = value


def sound(text: bytes) -> float | None:
    """Return the value as a float; None unless it is finite, not negative and at most `MAX_VALUE`."""
    # Python reads digits with underscores between them; the format has none.
    if b"_" in text:
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    # Nothing compares with NaN, so it fails this too.
    return value if 0.0 <= value <= MAX_VALUE else None


def _unescape(match: re.Match[str]) -> str:
    return "\n" if match.group(1) == "n" else match.group(1)
