"""Tables that sort, filter and page by link, so that the address is their state; each is also available as CSV."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from operator import itemgetter
from typing import Any, Final, Literal
from urllib.parse import urlencode

import msgspec

from cost.currency import SecondCurrency
from cost.reports.cells import Cell, csv_line
from dashboards.ui import formats

Kind = Literal[
    "text",
    "number",
    "money",
    "share",
    "exact_share",
    "seconds",
    "time",
    "second",
    "badge",
    "link",
    "id",
    "code",
    "path",
    "bytes",
    "day",
]
Row = Mapping[str, Any]

MAX_QUERY_CHARS: Final = 200
MAX_PAGE: Final = 100_000
_MAX_PAGE_DIGITS: Final = 8
_MAX_COLUMNS_CHARS: Final = 1_000
_NUMERIC: Final = frozenset({"number", "money", "share", "exact_share", "seconds", "bytes"})


def _exact(value: Any) -> Cell:
    return value if isinstance(value, (int, Decimal)) else str(value)


_EXACT: Final[Mapping[Kind, Callable[[Any], Cell]]] = {
    "money": lambda nanousd: Decimal(nanousd).scaleb(-9),
    "badge": lambda badge: str(badge[0]),
    "time": formats.iso,
    "second": formats.iso,
    "day": formats.day,
    "share": lambda share: Decimal(str(share)),
    "exact_share": lambda share: Decimal(str(share)),
}


class LazyRow(Mapping[str, Any]):
    """A row that is made when more of it is looked at than is known at once: a table of thousands is sorted by one column,
    and shows fifty rows.
    """

    __slots__ = ("_known", "_make")

    def __init__(self, known: Row, make: Callable[[], Row]) -> None:
        self._known = known
        self._make: Callable[[], Row] | None = make

    def __getitem__(self, key: str) -> Any:
        if self._make is not None and key not in self._known:
            self._known, self._make = self._make(), None
        return self._known[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._whole())

    def __len__(self) -> int:
        return len(self._whole())

    def _whole(self) -> Row:
        if self._make is not None:
            self._known, self._make = self._make(), None
        return self._known


class Column(msgspec.Struct, frozen=True):
    """One column. Values of `row[key]` are raw: nano-dollars, shares of 1, seconds, microseconds since the epoch.

    A badge is `(text, tone)`; a link has its address in `row[key + "_href"]`, and so has an id, which is shown shortened.
    """

    key: str
    label: str
    kind: Kind = "text"
    note: str = ""
    """Explanation of the figure, shown on hovering over its heading."""
    sortable: bool = True
    usual: bool = True
    """False for a column that is shown only to who chooses it; a CSV has it always."""

    @property
    def is_numeric(self) -> bool:
        """True if cells are aligned to the right."""
        return self.kind in _NUMERIC

    def cell(self, row: Row) -> Cell:
        """Return the CSV cell: exact, and None where unknown."""
        value = row.get(self.key)
        return None if value is None else _EXACT.get(self.kind, _exact)(value)

    @property
    def heading(self) -> str:
        """The CSV heading, with the unit, which cells omit."""
        units = {"money": "_usd", "seconds": "_s", "bytes": "_bytes", "share": "_share", "exact_share": "_share"}
        unit = units.get(self.kind, "")
        return self.key if f"_{self.key}".endswith(unit) else f"{self.key}{unit}"


class Heading(msgspec.Struct, frozen=True):
    """A column's heading, with its link and the current sort direction."""

    column: Column
    href: str | None
    direction: Literal["", "ascending", "descending"]


class ColumnChoice(msgspec.Struct, frozen=True):
    """A link that shows a column, or takes it away."""

    label: str
    href: str
    is_shown: bool


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a table, with links to the others."""

    columns: tuple[Column, ...]
    """Columns that are shown."""
    rows: tuple[Row, ...]
    """Rows of this page."""
    headings: tuple[Heading, ...]
    name: str
    caption: str
    empty: str
    total: int | None
    """Number of rows that match the filter; None where the database pages."""
    first: int = 1
    query_text: str = ""
    is_searchable: bool = False
    previous_href: str | None = None
    next_href: str | None = None
    csv_href: str | None = None
    kept: tuple[tuple[str, str], ...] = ()
    """Other parameters of the address, which a search keeps."""
    all_rows: tuple[Row, ...] = ()
    all_columns: tuple[Column, ...] = ()
    """Every column, as the CSV has them."""
    choices: tuple[ColumnChoice, ...] = ()
    """The columns to choose from; none where all are shown to everybody."""
    is_chosen: bool = False
    """True if the address names the columns."""

    @classmethod
    def of(
        cls,
        columns: Sequence[Column],
        rows: Iterable[Row],
        query: Mapping[str, str],
        *,
        name: str = "",
        caption: str = "",
        sort: str = "",
        page_rows: int = 50,
        search: Sequence[str] = (),
        empty: str = "Nothing here yet.",
        csv: bool = True,
    ) -> "Table":
        """Return a table of rows in memory. `query` has the address's parameters; `search` names the columns that are
        searched.
        """
        state = _State(query, f"{name}." if name else "", sort, columns)
        found = _searched(list(rows), search, state.text)
        found = _sorted(found, state.sort, columns)
        last = max(1, -(-len(found) // page_rows))
        page = min(state.page, last)
        begin = (page - 1) * page_rows
        return cls(
            columns=state.columns,
            rows=tuple(found[begin : begin + page_rows]),
            headings=tuple(state.heading(column) for column in state.columns),
            name=name,
            caption=caption,
            empty="Nothing fits this search." if state.text else empty,
            total=len(found),
            first=begin + 1,
            query_text=state.text,
            is_searchable=bool(search),
            previous_href=state.href(page=page - 1) if page > 1 else None,
            next_href=state.href(page=page + 1) if page < last else None,
            csv_href=state.csv_href(name) if csv else None,
            kept=state.kept(),
            all_rows=tuple(found),
            all_columns=tuple(columns),
            choices=state.choices(),
            is_chosen=state.is_chosen,
        )

    @classmethod
    def paged(
        cls,
        columns: Sequence[Column],
        rows: Iterable[Row],
        *,
        name: str = "",
        caption: str = "",
        previous_href: str | None = None,
        next_href: str | None = None,
        csv_href: str | None = None,
        empty: str = "Nothing here yet.",
        query: Mapping[str, str] | None = None,
    ) -> "Table":
        """Return a table of rows that the database has sorted and paged. With `query`, the address's parameters, headings link
        to the orders of sortable columns and columns can be chosen.
        """
        shown = tuple(rows)
        state = _State(query or {}, f"{name}." if name else "", "", columns)
        return cls(
            columns=state.columns,
            rows=shown,
            headings=tuple(
                Heading(column, None, "") if query is None else state.heading(column) for column in state.columns
            ),
            name=name,
            caption=caption,
            empty=empty,
            total=None,
            previous_href=previous_href,
            next_href=next_href,
            csv_href=csv_href,
            all_rows=shown,
            all_columns=tuple(columns),
            choices=() if query is None else state.choices(),
            is_chosen=state.is_chosen,
        )

    def csv(self, currency: SecondCurrency | None = None) -> str:
        """Return every row that matches the filter, in the table's order, with cells escaped against formula injection. Amounts stand
        in a second currency too, where there is one, in columns of their own behind the others.
        """
        columns = self.all_columns
        money = [column for column in columns if column.kind == "money" and currency is not None]
        lines = [csv_line([each.heading for each in columns] + [_in_currency(each, currency) for each in money])]
        for row in self.all_rows:
            amounts = [
                None if currency is None or (found := row.get(each.key)) is None else currency.of(found)
                for each in money
            ]
            lines.append(csv_line([*(each.cell(row) for each in columns), *amounts]))
        return "".join(lines)


def _in_currency(column: Column, currency: SecondCurrency | None) -> str:
    return column.heading.removesuffix("_usd") + ("" if currency is None else currency.column)


class _State:
    """Sorting, search and page of the address. Invalid values are ignored."""

    def __init__(self, query: Mapping[str, str], prefix: str, sort: str, columns: Sequence[Column]) -> None:
        self._query = {key: value for key, value in query.items() if key != "format"}
        self._prefix = prefix
        sortable = {column.key for column in columns if column.sortable}
        asked = query.get(f"{prefix}sort", "")
        self.sort = asked if asked.removeprefix("-") in sortable else sort
        self.text = query.get(f"{prefix}q", "")[:MAX_QUERY_CHARS].strip()
        page = query.get(f"{prefix}page", "1")
        self.page = (
            min(int(page), MAX_PAGE) if page.isascii() and page.isdigit() and len(page) <= _MAX_PAGE_DIGITS else 1
        )
        self.page = max(1, self.page)
        self._every = tuple(columns)
        named = set(query.get(f"{prefix}columns", "")[:_MAX_COLUMNS_CHARS].split(","))
        chosen = tuple(column for column in columns if column.key in named)
        self.is_chosen = bool(chosen)
        self.columns = chosen or tuple(column for column in columns if column.usual)

    def choices(self) -> tuple[ColumnChoice, ...]:
        """Return a link for each column, where some are not shown to everybody. The last one cannot be taken away."""
        if all(column.usual for column in self._every):
            return ()
        shown = {column.key for column in self.columns}
        found = []
        for column in self._every:
            wanted = shown ^ {column.key} or shown
            keys = ",".join(each.key for each in self._every if each.key in wanted)
            found.append(ColumnChoice(column.label, self.href(columns=keys), column.key in shown))
        return tuple(found)

    def href(self, **changes: str | int) -> str:
        return _address(self._query, {f"{self._prefix}{key}": str(value) for key, value in changes.items()})

    def csv_href(self, name: str) -> str:
        return _address(self._query, {"format": "csv", **({"table": name} if name else {})})

    def kept(self) -> tuple[tuple[str, str], ...]:
        own = {f"{self._prefix}q", f"{self._prefix}page", "table"}
        return tuple((key, value) for key, value in self._query.items() if key not in own)

    def heading(self, column: Column) -> Heading:
        if not column.sortable:
            return Heading(column, None, "")
        if self.sort == column.key:
            return Heading(column, self.href(sort=f"-{column.key}", page=1), "ascending")
        if self.sort == f"-{column.key}":
            return Heading(column, self.href(sort=column.key, page=1), "descending")
        first = f"-{column.key}" if column.is_numeric or column.kind in {"time", "second"} else column.key
        return Heading(column, self.href(sort=first, page=1), "")


def table_asked(query: Mapping[str, str], tables: Mapping[str, Table]) -> Table | None:
    """Return the table that the address asks for as CSV, by name, or None."""
    return tables.get(query.get("table", "")) if query.get("format") == "csv" else None


def _address(query: Mapping[str, str], changes: Mapping[str, str]) -> str:
    return f"?{urlencode({**query, **changes})}"


def _searched(rows: list[Row], keys: Sequence[str], text: str) -> list[Row]:
    if not text or not keys:
        return rows
    wanted = text.casefold()
    return [row for row in rows if any(wanted in _text_of(row.get(key)).casefold() for key in keys)]


def _sorted(rows: list[Row], sort: str, columns: Sequence[Column]) -> list[Row]:
    key = sort.removeprefix("-")
    if not any(column.key == key for column in columns):
        return rows
    # Of each row this one cell is looked at, and once.
    cells = [(row.get(key), row) for row in rows]
    known = [(_rank(value), row) for value, row in cells if value is not None]
    known.sort(key=itemgetter(0), reverse=sort.startswith("-"))
    # Unknown values come last in either sort direction.
    return [row for _, row in known] + [row for value, row in cells if value is None]


def _rank(value: Any) -> Any:
    if isinstance(value, (int, float, Decimal)):
        return value
    return _text_of(value).casefold()


def _text_of(value: Any) -> str:
    return str(value[0]) if isinstance(value, tuple) else str(value or "")
