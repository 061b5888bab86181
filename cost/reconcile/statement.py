"""A provider's exports in one shape: token counts that do not overlap, and exact dollars.

An export is pages of the provider's API as JSON or JSON lines, or the table that its dashboard downloads as CSV.
"""

import csv
import hashlib
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from decimal import Context, Decimal, InvalidOperation
from typing import Any, Final, NoReturn
from unicodedata import category

import msgspec

from cost.meters import METERS
from cost.times import DAY_US

MAX_BYTES: Final = 64 * 1024 * 1024
MAX_ROWS: Final = 500_000
_MAX_NAME_CHARS: Final = 200
"""Longest name, as wide as the columns that it may be stored in."""
_REFUSED_CATEGORIES: Final = frozenset({"Cc", "Cs"})
"""Unicode categories refused in names: control characters, which a terminal would obey, and lone surrogates."""
_MOST_TOKENS: Final = 10**15
_MOST_USD: Final = Decimal(10) ** 9
_MAX_DIGITS: Final = 60
_TABLE: Final = re.compile(r"[A-Za-z_\" ]+,")
"""Beginning of a CSV, and no JSON."""
EXACT: Final = Context(prec=120)
"""Decimal context wide enough that no sum of amounts is ever rounded."""

TOKEN_METERS: Final = tuple(each.name for each in METERS if each.in_tokens and each.in_statements)
"""Token meters that both sides count; the others are contained in what they are within."""
COST_METERS: Final = (*TOKEN_METERS, "request")
PARTS: Final = {
    each.name: TOKEN_METERS.index(each.within) for each in METERS if each.in_tokens and not each.in_statements
}
"""Meters that no statement tells, each with the place of the one of `TOKEN_METERS` that contains it."""
NO_PARTS: Final = (0,) * len(PARTS)

Tokens = tuple[int, ...]
"""One count for each of `TOKEN_METERS`; they do not overlap."""
NO_TOKENS: Final[Tokens] = (0,) * len(TOKEN_METERS)


class BadExport(Exception):
    """The file is not a provider's export; the message names the file and the place in it."""


class UsageLine(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens used of one model on one day. A name that the export does not tell is empty."""

    day_us: int
    model: str
    key: str
    tokens: Tokens
    requests: int


class CostLine(msgspec.Struct, frozen=True, kw_only=True):
    """Dollars charged on one day: for a model's tokens, or for `charge`, something else by its name."""

    day_us: int
    model: str
    key: str
    meter: str
    """One of `COST_METERS`; empty when the export does not tell it."""
    amount_usd: Decimal
    charge: str = ""


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of all files of one provider."""

    provider: str
    usage: tuple[UsageLine, ...]
    costs: tuple[CostLine, ...]
    usage_days: dict[int, int]
    """Start of each day that the usage export covers, and how many of its microseconds."""
    cost_days: dict[int, int]
    notes: tuple[str, ...]
    digest: str
    """Digest that is the same for the same files in any order."""


class Node(msgspec.Struct, frozen=True):
    """A JSON value and its place in its file, for error messages."""

    file: str
    place: str
    value: Any

    def fail(self, why: str) -> NoReturn:
        """Raise BadExport with the file, the place and the reason."""
        raise BadExport(f"{self.file}: {self.place}: {why}")

    def member(self, name: str) -> "Node":
        """Return a member of an object; its value is None if it is missing. Raises BadExport for no object."""
        if not isinstance(self.value, dict):
            self.fail("an object is expected here")
        return Node(self.file, f"{self.place}.{name}", self.value.get(name))

    def items(self) -> Iterator["Node"]:
        """Yield the items of a list. Raises BadExport for anything else."""
        if not isinstance(self.value, list):
            self.fail("a list is expected here")
        for index, each in enumerate(self.value):
            # A table's rows have places of their own.
            yield each if isinstance(each, Node) else Node(self.file, f"{self.place}[{index}]", each)

    def count(self, name: str) -> int:
        """Return a count of tokens or requests; 0 if missing or null. Raises BadExport."""
        node = self.member(name)
        value = node.value
        if value is None:
            return 0
        if isinstance(value, Decimal) and 0 <= value <= _MOST_TOKENS and value == int(value):
            value = int(value)
        if type(value) is not int or not 0 <= value <= _MOST_TOKENS:
            node.fail("a whole number, not negative, is expected here")
        return int(value)

    def text(self, name: str) -> str:
        """Return a name; empty if missing or null. Raises BadExport."""
        node = self.member(name)
        if node.value is None:
            return ""
        if not isinstance(node.value, str):
            node.fail("a text is expected here")
        if len(node.value) > _MAX_NAME_CHARS or any(category(each) in _REFUSED_CATEGORIES for each in node.value):
            node.fail(f"a name of at most {_MAX_NAME_CHARS} characters, on one line, is expected here")
        return node.value

    def amount(self, name: str) -> Decimal:
        """Return an exact decimal, written as a number or a text; negative for credits. Raises BadExport."""
        node = self.member(name)
        value = node.value
        if isinstance(value, bool) or not isinstance(value, int | str | Decimal):
            node.fail("an amount is expected here")
        try:
            amount = Decimal(value)
        except InvalidOperation:
            node.fail("an amount is expected here")
        if not amount.is_finite() or not -_MOST_USD <= amount <= _MOST_USD or _digits(amount) > _MAX_DIGITS:
            node.fail("this is no amount that anybody could have been charged")
        return amount


class Bucket(msgspec.Struct, frozen=True):
    """A time bucket within one UTC day, and its results."""

    start_us: int
    end_us: int
    results: tuple[Node, ...]

    @property
    def day_us(self) -> int:
        """Start of the UTC day that the bucket lies in."""
        return self.start_us - self.start_us % DAY_US


def bucket(node: Node, start_us: int, end_us: int) -> Bucket:
    """Return the bucket with the node's `results`. Raises BadExport if it crosses midnight."""
    if start_us >= end_us:
        node.fail("the bucket ends before it begins")
    if start_us // DAY_US != (end_us - 1) // DAY_US:
        node.fail("the bucket is longer than a UTC day; export with a bucket_width of 1d or less")
    return Bucket(start_us, end_us, tuple(node.member("results").items()))


class Page(msgspec.Struct, frozen=True):
    """A page of one export; `kind` is empty when nothing in it tells."""

    node: Node
    kind: str
    buckets: tuple[Bucket, ...]
    has_more: bool


def read_pages(
    files: Sequence[tuple[str, bytes]],
    bucket_of: Callable[[Node], Bucket],
    kind_of: Callable[[Node], str],
    row_of: Callable[[Node], dict[str, Any]],
    max_rows: int = MAX_ROWS,
) -> list[Page]:
    """Return every page of the files. Raises BadExport.

    `bucket_of` reads a bucket's times, `kind_of` a result's kind, and `row_of` makes a bucket as the API has it of a table's row.
    """
    pages: list[Page] = []
    rows = 0
    for name, data in files:
        kept: list[Page] = []
        for node in _page_nodes(name, _text_of(name, data), row_of):
            page = _page(node, bucket_of, kind_of)
            rows += sum(len(each.results) for each in page.buckets)
            if rows > max_rows:
                node.fail(f"more than {max_rows:,} results; reconcile a shorter range")
            kept.append(page)
        pages += _with_kinds(kept)
    return pages


def digest_of(files: Sequence[tuple[str, bytes]]) -> str:
    """Return a digest that is the same for the same contents, whatever the files' names and order."""
    parts = sorted(hashlib.sha256(data).hexdigest() for _, data in files)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def covered_days(pages: Sequence[Page], kind: str, dimensions: Callable[[Node], tuple[Any, ...]]) -> dict[int, int]:
    """Return the microseconds of each day that the pages of one kind cover.

    Raises BadExport for overlaps: what is told twice would count twice.
    """
    times: dict[tuple[int, int], Page] = {}
    told: dict[tuple[Any, ...], Page] = {}
    for page in pages:
        for each in page.buckets if page.kind == kind else ():
            times.setdefault((each.start_us, each.end_us), page)
            for result in each.results:
                if told.setdefault((each.start_us, *dimensions(result)), page) is not page:
                    result.fail("this is told on another page too; give each page once")
    days: dict[int, int] = {}
    last_end = 0
    for (start, end), page in sorted(times.items(), key=lambda item: item[0]):
        if start < last_end:
            page.node.fail("its buckets overlap with those of another width; export everything with one bucket_width")
        last_end = end
        day = start - start % DAY_US
        days[day] = days.get(day, 0) + end - start
    return days


def _digits(amount: Decimal) -> int:
    exponent = amount.as_tuple().exponent
    return max(len(amount.as_tuple().digits), -exponent if isinstance(exponent, int) else 0)


def _text_of(name: str, data: bytes) -> str:
    if len(data) > MAX_BYTES:
        raise BadExport(f"{name}: larger than {MAX_BYTES // 1024 // 1024} MB; reconcile a shorter range")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadExport(f"{name}: byte {error.start}: not UTF-8") from error


def _page_nodes(name: str, text: str, row_of: Callable[[Node], dict[str, Any]]) -> Iterator[Node]:
    if _TABLE.match(text):
        yield _table(name, text, row_of)
        return
    try:
        yield from _each_page(Node(name, "$", _json(text)))
    except json.JSONDecodeError as error:
        if error.msg != "Extra data":
            raise BadExport(f"{name}: line {error.lineno}, column {error.colno}: {error.msg}") from error
        yield from _lines(name, text)
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise BadExport(f"{name}: not JSON that anybody exports ({error})") from error


def _table(name: str, text: str, row_of: Callable[[Node], dict[str, Any]]) -> Node:
    """Return a table as one page, each row a bucket of its own; an empty cell is one that is not there."""
    reader = csv.reader(io.StringIO(text))
    buckets = []
    try:
        headings = [heading.strip().lower() for heading in next(reader)]
        for row in filter(any, reader):
            place = f"line {reader.line_num}"
            if len(row) > len(headings):
                raise BadExport(f"{name}: {place}: more cells than headings")
            cells = {heading: cell.strip() for heading, cell in zip(headings, row, strict=False) if cell.strip()}
            buckets.append(Node(name, place, row_of(Node(name, place, cells))))
    except csv.Error as error:
        raise BadExport(f"{name}: line {reader.line_num}: not CSV that anybody exports ({error})") from error
    return Node(name, "$", {"data": buckets})


def whole_number(cell: str | None) -> int | str | None:
    """Return a cell's count, where it is one; otherwise as it stands, for whoever reads it to refuse."""
    is_one = cell is not None and cell.isascii() and cell.isdigit() and len(cell) <= _MAX_DIGITS
    return int(cell) if cell is not None and is_one else cell


def _lines(name: str, text: str) -> Iterator[Node]:
    """Yield the pages of JSON lines, one or a list on each."""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            node = Node(name, f"line {number}: $", _json(line))
        except json.JSONDecodeError as error:
            raise BadExport(f"{name}: line {number}, column {error.colno}: {error.msg}") from error
        except (ValueError, ArithmeticError, RecursionError) as error:
            raise BadExport(f"{name}: line {number}: not JSON that anybody exports ({error})") from error
        yield from _each_page(node)


def _json(text: str) -> Any:
    """Parse JSON with fractions as Decimal: a float would lose the last digits."""
    return json.loads(text, parse_float=Decimal, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _each_page(node: Node) -> Iterator[Node]:
    """Yield a page, or each page of a list."""
    if isinstance(node.value, list):
        yield from node.items()
    else:
        yield node


def _page(node: Node, bucket_of: Callable[[Node], Bucket], kind_of: Callable[[Node], str]) -> Page:
    if not isinstance(node.value, dict) or not isinstance(node.value.get("data"), list):
        node.fail("a page is expected here: an object with `data`")
    buckets = tuple(bucket_of(each) for each in node.member("data").items())
    kind = ""
    for each in buckets:
        for result in each.results:
            found = kind_of(result)
            if kind and found != kind:
                result.fail(f"{found} among {kind}; a page is of one kind")
            kind = found
    return Page(node, kind, buckets, node.member("has_more").value is True)


def _with_kinds(pages: Sequence[Page]) -> list[Page]:
    """Give pages without results the kind of the rest of their file. Raises BadExport if the last page is missing."""
    kinds = {page.kind for page in pages if page.kind}
    only = next(iter(kinds)) if len(kinds) == 1 else ""
    named = [msgspec.structs.replace(page, kind=page.kind or only) for page in pages]
    last = {page.kind: page for page in named}
    for page in last.values():
        if page.has_more:
            page.node.fail("has_more is true, and the next page is missing; export the rest too")
    return named
