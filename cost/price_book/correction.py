"""Price correction: recomputes what was booked at a wrong price and posts the difference. Nothing is rewritten.

Every settled attempt of a target that was booked at the wrong version is recomputed, one by one, so the difference is
exact. It is posted as one `adjust` entry for each group that the roll-ups tell apart, dated within the day it corrects.
What was posted before for the same version counts as booked; so a correction can be corrected, and posting one again
adds nothing. Baselines that were computed at the wrong version move likewise (`cost.price_book.baseline_correction`).
"""

import hashlib
from collections.abc import AsyncIterator
from datetime import date
from operator import sub
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, and_, func, literal_column, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from cost.dimensions import POSTED_COLUMNS, PostedGroup
from cost.errors import PriceRefused, UnknownPrice
from cost.ledger.archived import refuse_archived
from cost.ledger.entries import Entry, Origin, adjustment
from cost.ledger.store import LedgerStore
from cost.meters import METER_COLUMNS, TOKEN_COLUMNS, ZERO_METERS, Meters
from cost.price_book.baseline_correction import (
    BaselineDifference,
    baseline_posting,
    find_baseline_differences,
)
from cost.price_book.store import PriceStore
from cost.prices import SERVICE_TIERS, Price, to_json
from cost.tables import LedgerEntry
from cost.times import DAY_US, start_of
from cost.usage import Usage

MOST_DAYS: Final = 400
MOST_GROUPS: Final = 100_000
_AT_ONCE: Final = 2_000
_ORIGIN: Final[Origin] = "correction"

_OF_THE_TARGET: Final = ("target_id", "price_version")
_GROUP: Final = (*(name for name in POSTED_COLUMNS if name not in _OF_THE_TARGET), "unit")

_at_us: Final = col(LedgerEntry.at_us)
# Written out: PostgreSQL does not see that two bound parameters are the same expression to group by.
_day_us: Final = (_at_us - _at_us % literal_column(str(DAY_US))).label("day_us")


class Difference(PostedGroup, frozen=True, kw_only=True):
    """Booked and right amounts of one group on one day, by meter, in nano-dollars."""

    day_us: int
    last_us: int
    """`at_us` of the group's last attempt; the posting is dated like it."""
    rows: int
    booked: Meters
    right: Meters
    unpriced: int = 0
    """Formerly unpriced attempts that this correction prices."""
    posted: int = 0
    """Entries posted for the group before; part of `posting_id`, so that what was reversed can be posted again."""
    unit: str = ""

    @property
    def meters(self) -> Meters:
        """Amounts to post: right less booked."""
        return _subtract_meters(self.right, self.booked)


class Correction(msgspec.Struct, frozen=True, kw_only=True):
    """Differences that a correction would post, and the counts of attempts behind them."""

    target_id: str
    version: str
    """Wrong price version; empty for attempts whose price was unknown."""
    price: Price
    first_day: date
    last_day: date
    differences: tuple[Difference, ...]
    """Groups that differ; groups that are right already are left out."""
    rows: int
    """Attempts that were recomputed."""
    baselines: tuple[BaselineDifference, ...] = ()
    """Changes of the baselines that were computed at this version, of this target's attempts and of all others'."""
    left_rows: int
    """Attempts left as they are, because their cost does not follow from their tokens, as after a crash."""

    @property
    def total_nanousd(self) -> int:
        """Signed sum of all differences."""
        return sum(sum(each.meters) for each in self.differences)

    @property
    def posting_id(self) -> str:
        """Id that is the same for the same differences of the same correction, so that it is posted once."""
        facts = (self.target_id, self.version, to_json(self.price.named("")), self.differences, self.baselines)
        return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:32]

    @property
    def reason(self) -> str:
        """Reason written into the postings, by which earlier ones of this version are found."""
        return _reason(self.version)


async def find_correction(
    engine: AsyncEngine, target_id: str, version: str, price: Price, first_day: date, last_day: date
) -> Correction:
    """Compute the change at `price` of a target's attempts of these days, booked at `version`. Posts nothing.

    An empty `version` means attempts without a price. Raises PriceRefused for a range that is empty or too long, or too
    many groups, ArchivedTime for days whose entries are archived, and UnknownPrice if nothing was booked at an unknown version.
    """
    if not 0 <= (last_day - first_day).days < MOST_DAYS:
        raise PriceRefused(f"a correction is for 1 to {MOST_DAYS} days, the last one not before the first")
    old = await PriceStore(engine).figures(target_id, version) if version else None
    within = (_at_us >= start_of(first_day)) & (_at_us < start_of(last_day) + DAY_US)
    found = _Recomputed(old, price)
    async with engine.connect() as connection:
        await refuse_archived(
            connection, start_of(first_day), start_of(last_day) + DAY_US, "these days cannot be corrected"
        )
        async for row in _stream_rows(connection, and_(within, col(LedgerEntry.target_id) == target_id), version):
            found.add(row)
        posted = await _read_posted(connection, and_(within, col(LedgerEntry.target_id) == target_id), version)
        baselines = (
            ()
            if old is None
            else await find_baseline_differences(connection, within, f"{target_id}@{version}", old, price)
        )
    if not found.rows and not found.left_rows and version and old is None:
        raise UnknownPrice(f"nothing of {target_id} was booked at {version!r} in these days, nor is it a known version")
    return Correction(
        target_id=target_id,
        version=version,
        price=price,
        first_day=first_day,
        last_day=last_day,
        differences=tuple(_differences(found.groups, posted)),
        baselines=baselines,
        rows=found.rows,
        left_rows=found.left_rows,
    )


async def post_correction(
    ledger: LedgerStore, prices: PriceStore, correction: Correction, *, effective_us: int = 0
) -> tuple[int, str]:
    """Post the differences; return the number of new entries and the name that the price is remembered under."""
    kept = await prices.remember(correction.target_id, correction.price, "correction", effective_us)
    entries = postings(correction, kept.version)
    new = 0
    for start in range(0, len(entries), _AT_ONCE):
        new += await ledger.insert(entries[start : start + _AT_ONCE])
    return new, kept.version


def postings(correction: Correction, version: str) -> list[Entry]:
    """Return the entries that post a correction; `version` is the name that its price is remembered under."""
    posting_id, count = f"{_ORIGIN}/{correction.posting_id}", len(correction.differences)
    costs = [
        _posting(correction, each, version, f"{posting_id}/{number}")
        for number, each in enumerate(correction.differences, 1)
    ]
    label = f"{correction.target_id}@{correction.version}"
    return costs + [
        baseline_posting(each, f"{posting_id}/{number}", label)
        for number, each in enumerate(correction.baselines, count + 1)
    ]


def _posting(correction: Correction, each: Difference, version: str, request_id: str) -> Entry:
    return adjustment(
        request_id,
        at_us=each.last_us,
        origin=_ORIGIN,
        meters_nanousd=each.meters,
        reason=correction.reason,
        priced_attempts=each.unpriced,
        target_id=correction.target_id,
        price_version=version,
        **{name: getattr(each, name) for name in _GROUP},
    )


class _Group:
    __slots__ = ("booked", "last_us", "right", "rows", "unpriced")

    def __init__(self) -> None:
        self.rows = 0
        self.unpriced = 0
        self.last_us = 0
        self.booked = ZERO_METERS
        self.right = ZERO_METERS


class _EarlierPostings(msgspec.Struct, frozen=True):
    """Sums that earlier corrections of a version posted for one group."""

    meters: Meters = ZERO_METERS
    priced: int = 0
    entries: int = 0


_Key = tuple[Any, ...]


class _Recomputed:
    """Accumulates attempts by group as they stream by."""

    def __init__(self, old: Price | None, new: Price) -> None:
        self._old = old
        self._new = new
        self.groups: dict[_Key, _Group] = {}
        self.rows = 0
        self.left_rows = 0

    def add(self, row: Any) -> None:
        usage = Usage(**{name: getattr(row, name) for name in (*TOKEN_COLUMNS, "unit", "quantity_milli")})
        right = self._right_price(row, usage)
        if right is None:
            self.left_rows += 1
            return
        key = (row.day_us, *(getattr(row, name) for name in _GROUP))
        group = self.groups.get(key)
        if group is None:
            if len(self.groups) == MOST_GROUPS:
                raise PriceRefused(f"this would be more than {MOST_GROUPS:,} postings; give a shorter range")
            group = self.groups[key] = _Group()
        self.rows += 1
        group.rows += 1
        group.unpriced += row.cost_nanousd is None
        group.last_us = max(group.last_us, row.at_us)
        group.booked = _add_meters(group.booked, _booked_meters(row))
        group.right = _add_meters(group.right, right.costs_nanousd(usage))

    def _right_price(self, row: Any, usage: Usage) -> Price | None:
        """Return the right price of an attempt; None if its booked cost does not follow from its tokens.

        An entry does not keep its service tier, so it is told by what it was booked at.
        """
        if (
            not self._new.covers(usage)
            or row.usage_source == "none"
            or "orphaned" in msgspec.json.decode(row.flags, type=list[str])
        ):
            return None
        if self._old is None or row.cost_nanousd is None or row.cost_nanousd == self._old.cost_nanousd(usage):
            return self._new
        for tier in SERVICE_TIERS:
            if row.cost_nanousd == self._old.of_tier(tier).cost_nanousd(usage):
                return self._new.of_tier(tier)
        return None


async def _stream_rows(connection: AsyncConnection, where: ColumnElement[bool], version: str) -> AsyncIterator[Any]:
    names = (
        *_GROUP,
        *TOKEN_COLUMNS,
        "quantity_milli",
        *METER_COLUMNS,
        "cost_nanousd",
        "usage_source",
        "flags",
        "at_us",
    )
    query = select(_day_us, *(getattr(LedgerEntry, name) for name in names)).where(
        where, col(LedgerEntry.price_version) == version, col(LedgerEntry.entry) == "settle"
    )
    streamed = await connection.stream(query.execution_options(yield_per=_AT_ONCE))
    async for row in streamed:
        yield row


async def _read_posted(
    connection: AsyncConnection, where: ColumnElement[bool], version: str
) -> dict[_Key, _EarlierPostings]:
    """Return the sums that earlier corrections of this version posted, by group; reversed ones cancel out."""
    dimensions = (_day_us, *(getattr(LedgerEntry, name) for name in _GROUP))
    query = (
        select(
            *dimensions,
            func.sum(col(LedgerEntry.priced_attempts)),
            func.count(),
            *(func.sum(getattr(LedgerEntry, name)) for name in METER_COLUMNS),
        )
        .where(
            where,
            col(LedgerEntry.entry) == "adjust",
            col(LedgerEntry.origin) == _ORIGIN,
            col(LedgerEntry.reason) == _reason(version),
        )
        .group_by(*dimensions)
    )
    rows = (await connection.execute(query)).all()
    # PostgreSQL sums integers to decimals.
    found = {}
    for row in rows:
        priced, entries, *meters = map(int, row[len(dimensions) :])
        found[tuple(row[: len(dimensions)])] = _EarlierPostings(tuple(meters), priced, entries)
    return found


def _differences(groups: dict[_Key, _Group], posted: dict[_Key, _EarlierPostings]) -> list[Difference]:
    found = []
    for key in sorted(groups):
        group, before = groups[key], posted.get(key, _EarlierPostings())
        difference = Difference(
            day_us=key[0],
            **dict(zip(_GROUP, key[1:], strict=True)),
            last_us=group.last_us,
            rows=group.rows,
            booked=_add_meters(group.booked, before.meters),
            right=group.right,
            unpriced=group.unpriced - before.priced,
            posted=before.entries,
        )
        if any(difference.meters) or difference.unpriced:
            found.append(difference)
    return found


def _booked_meters(row: Any) -> Meters:
    """Return the booked cost by meter. Old entries have a cost without meters; it counts as input."""
    meters = [int(getattr(row, name)) for name in METER_COLUMNS]
    meters[0] += (row.cost_nanousd or 0) - sum(meters)
    return tuple(meters)


def _reason(version: str) -> str:
    return f"corrects {version}" if version else "prices what was unpriced"


def _add_meters(first: Meters, second: Meters) -> Meters:
    return tuple(a + b for a, b in zip(first, second, strict=True))


def _subtract_meters(first: Meters, second: Meters) -> Meters:
    return tuple(map(sub, first, second))
