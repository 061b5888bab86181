"""Charts as data: the page's script draws them, and a table below shows the same figures."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from dashboards.ui import formats

Shape = Literal["line", "area", "bars", "stacked", "histogram"]
Unit = Literal["usd", "tokens", "requests", "share", "seconds", ""]
Tone = Literal["", "accent", "good", "warn", "bad", "quiet"]

MAX_POINTS: Final = 2_000
_SHOWN: Final[Mapping[Unit, Callable[[Any], str]]] = {
    "usd": formats.money,
    "tokens": formats.short,
    "requests": formats.number,
    "share": formats.share,
    "seconds": formats.seconds,
    "": formats.number,
}


class Series(msgspec.Struct, frozen=True):
    """One line or kind of bar. Money is nano-dollars; None is a gap."""

    label: str
    values: Sequence[float | None]
    tone: Tone = ""
    colour: int = 0
    """Number of its colour, from 1; 0 for the colour of its place."""


class Mark(msgspec.Struct, frozen=True):
    """A labelled position on the x axis."""

    x: float
    label: str


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """A chart. `x` are microseconds since the epoch with `is_time`, otherwise numbers, or words for bars."""

    shape: Shape
    title: str
    x: Sequence[Any]
    series: Sequence[Series]
    unit: Unit = ""
    is_time: bool = True
    x_label: str = "Day (UTC)"
    marks: Sequence[Mark] = ()
    caption: str = ""
    """One sentence on the chart's content and period."""
    by_hour: bool = False
    time_zone: str = "UTC"
    """Of hours in the accompanying table."""
    hrefs: Sequence[str] = ()
    """Where each point leads, on a click and in the table; none for a chart that leads nowhere."""

    def __post_init__(self) -> None:
        if len(self.x) > MAX_POINTS or any(len(each.values) != len(self.x) for each in self.series):
            raise ValueError(f"a chart has at most {MAX_POINTS} points, and each series as many as the others")

    @property
    def is_empty(self) -> bool:
        """True where every value is unknown or zero."""
        return not any(value for each in self.series for value in each.values)

    @property
    def nothing(self) -> str:
        """Say why an empty chart is empty: zeros are known, and gaps are not."""
        is_known = any(value is not None for each in self.series for value in each.values)
        return "Zero throughout this time." if is_known else "Nothing was recorded in this time."

    @property
    def data(self) -> str:
        """JSON for the page's script. Money is in dollars there: pixels need no nano-dollars."""
        scale = 1e-9 if self.unit == "usd" else 1
        return msgspec.json.encode(
            {
                "shape": self.shape,
                "unit": self.unit,
                "isTime": self.is_time,
                "byHour": self.by_hour,
                "x": [value / 1e6 for value in self.x] if self.is_time else list(self.x),
                "series": [
                    {
                        "label": each.label,
                        "tone": each.tone,
                        "colour": each.colour,
                        "values": [None if value is None else float(value) * scale for value in each.values],
                    }
                    for each in self.series
                ],
                "hrefs": list(self.hrefs),
                "marks": [{"x": mark.x / 1e6 if self.is_time else mark.x, "label": mark.label} for mark in self.marks],
            }
        ).decode()

    def rows(self) -> list[list[str]]:
        """Return rows of the accompanying table: x, then a cell for each series."""
        shown = _SHOWN[self.unit]
        return [
            [self._x_shown(x), *(shown(each.values[place]) for each in self.series)] for place, x in enumerate(self.x)
        ]

    def _x_shown(self, x: Any) -> str:
        if not self.is_time:
            return x if isinstance(x, str) else formats.number(x)
        return formats.clock(x, self.time_zone) if self.by_hour else formats.day(x)
