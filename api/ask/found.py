"""What a tool found: rows with links to where people see them, as a model reads them and as figures of its answer are checked by."""

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, Literal

import msgspec

Value = str | int | Decimal | None
Kind = Literal["usd", "percent", "s", ""]
"""The unit of a figure: dollars, percent, seconds, or a plain number."""

MOST_ROWS: Final = 30
MOST_BYTES: Final = 6_000
"""Most bytes of one result that a model reads."""
_MOST_CHARS: Final = 80
_MOST_TEXT: Final = 400
_TEXT: Final = "text"
"""The one column of sentences of ours, which may be longer and have figures in them."""
_COST: Final = "cost_usd"
_UNKNOWN: Final = "unknown, as attempts have no price"
_encoder: Final = msgspec.json.Encoder(decimal_format="number")


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A number that a tool returned."""

    value: Decimal
    kind: Kind
    href: str
    ref: str
    names: tuple[str, ...] = ()
    """The names in its row."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one look-up. A column's unit is the end of its name: `cost_usd`, `share_percent`, `duration_s`."""

    title: str
    rows: Sequence[Mapping[str, Value]]
    hrefs: Sequence[str] = ()
    """The page of each row."""
    href: str = ""
    """The page of all rows."""
    total: Mapping[str, Value] = {}
    days: tuple[dt.date, dt.date] | None = None
    """First and last day, both included."""
    before: tuple[dt.date, dt.date] | None = None
    """Those that they are compared with."""
    more: bool = False
    """True if there are more rows than these."""
    note: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of all columns, in order."""
        return tuple(dict.fromkeys(name for row in (*self.rows, self.total) for name in row))

    def link(self, row: int) -> str:
        """Return the page of a row."""
        return self.hrefs[row] if row < len(self.hrefs) and self.hrefs[row] else self.href

    def figures(self, ref: str) -> Iterator[Figure]:
        """Yield every number, the total's too, and how many rows there are."""
        for at, row in enumerate(self.rows):
            names = tuple(value for name, value in row.items() if isinstance(value, str) and value and name != _TEXT)
            for name, value in row.items():
                if isinstance(value, int | Decimal):
                    yield _figure(name, value, self.link(at), f"{ref}.{at + 1}.{name}", names)
        for name, value in self.total.items():
            if isinstance(value, int | Decimal):
                yield _figure(name, value, self.href, f"{ref}.total.{name}", ())
        if not self.more:
            yield _figure("", len(self.rows), self.href, ref, ())

    def names(self) -> Iterator[str]:
        """Yield the texts of all rows, the title's left out."""
        for row in (*self.rows, self.total):
            yield from (value for value in row.values() if isinstance(value, str) and value)

    def for_model(self, ref: str) -> str:
        """Return the result as a model reads it, bounded: each row with the beginning of its figures' references."""
        rows = [{"ref": f"{ref}.{at + 1}", **_told(row)} for at, row in enumerate(self.rows)]
        told: dict[str, Any] = {"ref": ref, "title": self.title}
        if self.days is not None:
            told["days"] = [day.isoformat() for day in self.days]
        if self.before is not None:
            told["days_before"] = [day.isoformat() for day in self.before]
        if self.total:
            told["total"] = {"ref": f"{ref}.total", **_told(self.total)}
        if self.note:
            told["note"] = self.note
        more = self.more
        while True:
            text = _encoder.encode({**told, "rows": rows, "more_rows": more})
            if len(text) <= MOST_BYTES or not rows:
                return text.decode()
            rows, more = rows[: len(rows) * 3 // 4], True


def plain(text: str, most: int = _MOST_CHARS) -> str:
    """Return text that others wrote without what is not printable, and shortened: a name of data is never more than a name."""
    sound = "".join(char if char.isprintable() else " " for char in text)
    return sound if len(sound) <= most else f"{sound[: most - 1]}…"


def kind_of(column: str) -> Kind:
    """Return the unit of a column by its name."""
    words = column.split("_")
    if "usd" in words:
        return "usd"
    return "percent" if words[-1] == "percent" else "s" if words[-1] == "s" else ""


def _figure(column: str, value: int | Decimal, href: str, ref: str, names: tuple[str, ...]) -> Figure:
    return Figure(value=Decimal(value), kind=kind_of(column), href=href, ref=ref, names=names)


def _told(row: Mapping[str, Value]) -> dict[str, Value]:
    return {
        name: plain(value, _MOST_TEXT if name == _TEXT else _MOST_CHARS) if isinstance(value, str) else value
        for name, value in (
            (name, _UNKNOWN if name == _COST and value is None else value) for name, value in row.items()
        )
        if value is not None and value != ""
    }
