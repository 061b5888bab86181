"""What a provider's exports say, in one shape: tokens in parts that do not overlap, and exact dollars."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from decimal import Context, Decimal, InvalidOperation
from typing import Any, Final, NoReturn
from unicodedata import category

import msgspec

from cost.times import DAY_US

MAX_BYTES: Final = 64 * 1024 * 1024
MAX_ROWS: Final = 500_000
_MAX_NAME_CHARS: Final = 200
"""As wide as the columns that a name may have to stand in."""
_NO_TEXT: Final = frozenset({"Cc", "Cs"})
"""Control characters, which a terminal would obey, and halves of characters, which nothing can write."""
_MOST_TOKENS: Final = 10**15
_MOST_USD: Final = Decimal(10) ** 9
_MAX_DIGITS: Final = 60
EXACT: Final = Context(prec=120)
"""Wide enough that no sum of amounts is ever rounded."""

TOKEN_METERS: Final = ("input", "cached_input", "cache_write", "cache_write_1h", "output")
"""What both sides can count. No provider tells reasoning apart here, so `output` contains it."""
COST_METERS: Final = (*TOKEN_METERS, "request")

Tokens = tuple[int, int, int, int, int]
"""One count for each of `TOKEN_METERS`; they do not overlap."""
NO_TOKENS: Final[Tokens] = (0, 0, 0, 0, 0)


class BadExport(Exception):
    """A file is not what a provider exports. Names the file and the place in it."""


class UsageLine(msgspec.Struct, frozen=True, kw_only=True):
    """What was used of one model on one day. A name that the export does not tell is empty."""

    day_us: int
    model: str
    key: str
    tokens: Tokens
    requests: int


class CostLine(msgspec.Struct, frozen=True, kw_only=True):
    """What was charged on one day: for a model's tokens, or for `charge`, something else by its name."""

    day_us: int
    model: str
    key: str
    meter: str
    """One of `COST_METERS`; empty when it is not told."""
    amount_usd: Decimal
    charge: str = ""


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """Everything in the files of one provider."""

    provider: str
    usage: tuple[UsageLine, ...]
    costs: tuple[CostLine, ...]
    usage_days: dict[int, int]
    """The days that the usage export tells about, by their start, and how many of their microseconds."""
    cost_days: dict[int, int]
    notes: tuple[str, ...]
    digest: str
    """The same for the same files, in whatever order."""


class Node(msgspec.Struct, frozen=True):
    """A value of a file, and where it stands."""

    file: str
    place: str
    value: Any

    def fail(self, why: str) -> NoReturn:
        raise BadExport(f"{self.file}: {self.place}: {why}")

    def member(self, name: str) -> "Node":
        """The named member of an object; None's when it is not there."""
        if not isinstance(self.value, dict):
            self.fail("an object is expected here")
        return Node(self.file, f"{self.place}.{name}", self.value.get(name))

    def items(self) -> Iterator["Node"]:
        if not isinstance(self.value, list):
            self.fail("a list is expected here")
        for index, each in enumerate(self.value):
            yield Node(self.file, f"{self.place}[{index}]", each)

    def count(self, name: str) -> int:
        """A number of tokens or requests; absent and null are none."""
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
        """A name; absent and null are empty."""
        node = self.member(name)
        if node.value is None:
            return ""
        if not isinstance(node.value, str):
            node.fail("a text is expected here")
        if len(node.value) > _MAX_NAME_CHARS or any(category(each) in _NO_TEXT for each in node.value):
            node.fail(f"a name of at most {_MAX_NAME_CHARS} characters, on one line, is expected here")
        return node.value

    def amount(self, name: str) -> Decimal:
        """An exact decimal number, written as a number or as a text. It may be negative: providers give credits."""
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
    """A stretch of time within one UTC day, and its results."""

    start_us: int
    end_us: int
    results: tuple[Node, ...]

    @property
    def day_us(self) -> int:
        return self.start_us - self.start_us % DAY_US


def bucket(node: Node, start_us: int, end_us: int) -> Bucket:
    """A bucket of `results`, which must not reach over midnight."""
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
    max_rows: int = MAX_ROWS,
) -> list[Page]:
    """Every page of the files. `bucket_of` reads a bucket's times and `kind_of` tells a result's kind."""
    pages: list[Page] = []
    rows = 0
    for name, data in files:
        kept: list[Page] = []
        for node in _page_nodes(name, data):
            page = _page(node, bucket_of, kind_of)
            rows += sum(len(each.results) for each in page.buckets)
            if rows > max_rows:
                node.fail(f"more than {max_rows:,} results; reconcile a shorter range")
            kept.append(page)
        pages += _of_one_file(kept)
    return pages


def digest_of(files: Sequence[tuple[str, bytes]]) -> str:
    """The same for the same contents, whatever the files are called and in whatever order they come."""
    parts = sorted(hashlib.sha256(data).hexdigest() for _, data in files)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def covered_days(pages: Sequence[Page], kind: str, dimensions: Callable[[Node], tuple[Any, ...]]) -> dict[int, int]:
    """How much of each day the pages of one kind tell about. What is told twice is refused: it would count twice."""
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


def _page_nodes(name: str, data: bytes) -> Iterator[Node]:
    if len(data) > MAX_BYTES:
        raise BadExport(f"{name}: larger than {MAX_BYTES // 1024 // 1024} MB; reconcile a shorter range")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadExport(f"{name}: byte {error.start}: not UTF-8") from error
    try:
        yield from _unrolled(Node(name, "$", _json(text)))
    except json.JSONDecodeError as error:
        if error.msg != "Extra data":
            raise BadExport(f"{name}: line {error.lineno}, column {error.colno}: {error.msg}") from error
        yield from _lines(name, text)
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise BadExport(f"{name}: not JSON that anybody exports ({error})") from error


def _lines(name: str, text: str) -> Iterator[Node]:
    """JSON lines: a page on each."""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            node = Node(name, f"line {number}: $", _json(line))
        except json.JSONDecodeError as error:
            raise BadExport(f"{name}: line {number}, column {error.colno}: {error.msg}") from error
        except (ValueError, ArithmeticError, RecursionError) as error:
            raise BadExport(f"{name}: line {number}: not JSON that anybody exports ({error})") from error
        yield from _unrolled(node)


def _json(text: str) -> Any:
    """JSON with its fractions as they are written: a float would have lost the last digits already."""
    return json.loads(text, parse_float=Decimal, parse_constant=_no_constant)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _unrolled(node: Node) -> Iterator[Node]:
    """A page, or a list of pages."""
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


def _of_one_file(pages: Sequence[Page]) -> list[Page]:
    """Pages without any result are of the kind that the rest of the file is; the last page must really be the last."""
    kinds = {page.kind for page in pages if page.kind}
    only = next(iter(kinds)) if len(kinds) == 1 else ""
    named = [msgspec.structs.replace(page, kind=page.kind or only) for page in pages]
    last = {page.kind: page for page in named}
    for page in last.values():
        if page.has_more:
            page.node.fail("has_more is true, and the next page is missing; export the rest too")
    return named
