"""Verification of the ledger: summed up anew and compared with every roll-up, to the nano-dollar.

All is read in one snapshot, hour by hour, so that neither concurrent writes nor the size of a day matter.
"""

import asyncio
import operator
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import msgspec
from sqlalchemy import Select, Table, and_, case, func, or_, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from cost.end_users import LEAST_KEPT_DAYS
from cost.ledger.archive_files import ArchiveReader, FileDamaged, PlaceUnreachable
from cost.ledger.archived import FileRow, files_of_day, files_of_month, month_text, place_of, sums_of
from cost.ledger.entries import HANDED, TERMINAL
from cost.ledger.rollups import (
    COST,
    MONTH_KEY,
    QUARTER_KEY,
    ROLLUP_KEY,
    SPEND_KEY,
    MonthSums,
    RollupDeltas,
    SpendSums,
    Sums,
    add,
    coarser_of,
    counted,
    days_of,
    end_user_month,
    key_of,
    ledger_groups,
    ledger_key,
    ledger_sums,
    month_sums,
    quarter_sums,
    roll_up,
    spend_day,
    spend_of,
    spend_quarter,
    spend_sums,
)
from cost.meters import METER_COLUMNS
from cost.scopes import SCOPES
from cost.tables import COARSER_DAYS, ROLLUP_SUMS, LedgerEntry, rollup_day, rollup_hour
from cost.times import DAY_US, HOUR_US, month_of, next_month

MOST_DIFFERENCES: Final = 1000
"""Most differences that are listed; all are counted."""
_OPEN_US: Final = HOUR_US
_HANDED_OPEN_US: Final = 28 * HOUR_US
_HANDED: Final = "handed"
_START: Final = ROLLUP_KEY.index("start_us")
_BATCH: Final = 500
_Place = TypeVar("_Place", bound=tuple[Any, ...])
_ZEROS: Final = (0,) * len(ROLLUP_SUMS)


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One figure that differs from the ledger, and its place.

    `table` is a roll-up, or `ledger_entry` for an inconsistency within the ledger: meters that do not add up to the
    cost, or an attempt that is closed without a reserve, or twice.
    """

    table: str
    key: dict[str, str | int]
    column: str
    expected: int
    found: int


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a verification."""

    rows: int
    """Entries that count: all but reserves."""
    cost_nanousd: int
    differences: int
    """Number of all differences; `told` lists the first."""
    told: tuple[Difference, ...]
    open_reserves: int
    """Reserves that are open for longer than an hour: no difference, but worth a look."""
    archived: int = 0
    """Entries in files of archived months, which the sums contain."""
    damaged: tuple[str, ...] = ()
    """Files that are missing or not what was written."""
    unread: tuple[str, ...] = ()
    """Months whose files were not read, so that days were compared with the manifest's totals alone; each with its reason."""


class _Findings:
    """A collection of differences that keeps at most `MOST_DIFFERENCES` and counts all."""

    def __init__(self) -> None:
        self.rows = self.cost_nanousd = self.differences = self.open_reserves = 0
        self.told: list[Difference] = []
        self.archived = 0
        self.damaged: list[str] = []
        self.unread: dict[str, str] = {}
        self.months: MonthSums = {}

    def add(self, found: Iterable[Difference]) -> None:
        for difference in found:
            self.differences += 1
            if len(self.told) < MOST_DIFFERENCES:
                self.told.append(difference)

    async def look(
        self,
        table: str,
        key: Sequence[str],
        columns: Sequence[str],
        ledger: Mapping[tuple[Any, ...], Sums],
        found: Mapping[tuple[Any, ...], Sums],
    ) -> None:
        """Compare a table with the ledger in a thread: a day may have 100,000 groups, too many for the event loop."""
        await asyncio.to_thread(lambda: self.add(_differing(table, key, columns, ledger, found)))

    def done(self) -> Verification:
        return Verification(
            rows=self.rows,
            cost_nanousd=self.cost_nanousd,
            differences=self.differences,
            told=tuple(self.told),
            open_reserves=self.open_reserves,
            archived=self.archived,
            damaged=tuple(self.damaged),
            unread=tuple(f"{month}: {why}" for month, why in self.unread.items()),
        )


OpenArchive = Callable[[str, str], ArchiveReader]
"""Opens an archive by its place and folder. Raises PlaceUnreachable."""


async def check(
    engine: AsyncEngine, from_us: int, to_us: int, *, now_us: int, open_archive: OpenArchive | None = None
) -> Verification:
    """Compare the roll-ups of the UTC days from `from_us` up to `to_us` with the ledger, and with the files of archived months;
    without `open_archive` with what is known of these alone.
    """
    findings = _Findings()
    archives = _Archives(open_archive, findings)
    start_us, end_us = from_us - from_us % DAY_US, -(-to_us // DAY_US) * DAY_US
    days: list[int] = []
    async with _snapshot(engine) as connection:
        while (day_us := await next_day(connection, start_us, end_us)) is not None:
            await _check_day(connection, day_us, findings, now_us, archives)
            days.append(day_us)
            start_us = day_us + DAY_US
        await _check_months(connection, days, from_us - from_us % DAY_US, end_us, findings, now_us)
    return findings.done()


@asynccontextmanager
async def _snapshot(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """Open a read-only transaction that sees the database as it was at its first query."""
    async with engine.connect() as plain:
        if engine.dialect.name == "sqlite":
            connection = plain
            await connection.exec_driver_sql("BEGIN")
        else:
            connection = await plain.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        yield connection
        await connection.rollback()


async def next_day(connection: AsyncConnection, start_us: int, end_us: int) -> int | None:
    """Return the start of the next day that has anything in the ledger or a roll-up; None if there is none."""
    times = (
        col(LedgerEntry.at_us),
        rollup_hour.c.start_us,
        *(table.c.start_us for table in (rollup_day, *COARSER_DAYS)),
        spend_day.c.day_us,
        spend_quarter.c.start_us,
    )
    queries = (select(func.min(time)).where(time >= start_us, time < end_us) for time in times)
    found = [await connection.scalar(query) for query in queries]
    first = min((at_us for at_us in found if at_us is not None), default=None)
    return None if first is None else first - first % DAY_US


class _Archives:
    """The files of archived months, as far as they can be read."""

    def __init__(self, open_archive: OpenArchive | None, findings: _Findings) -> None:
        self._open = open_archive
        self._findings = findings
        self._opened: dict[int, ArchiveReader | None] = {}

    async def read(self, connection: AsyncConnection, files: Sequence[FileRow]) -> RollupDeltas | None:
        """Return the sums of files of one day; None where one of them could not be read, which is noted."""
        reader = await self._reader(connection, files[0].month_us)
        if reader is None:
            return None
        found: list[RollupDeltas] = []
        for file in files:
            try:
                found.append(roll_up(await asyncio.to_thread(reader.entries, file)))
            except FileDamaged as error:
                self._findings.damaged.append(str(error))
                self._findings.differences += 1
            except PlaceUnreachable as error:
                self._opened[file.month_us] = None
                self._findings.unread[month_text(file.month_us)] = str(error)
                return None
        return _added(found) if len(found) == len(files) else None

    async def _reader(self, connection: AsyncConnection, month_us: int) -> ArchiveReader | None:
        if month_us not in self._opened:
            self._opened[month_us] = await self._open_month(connection, month_us)
        return self._opened[month_us]

    async def _open_month(self, connection: AsyncConnection, month_us: int) -> ArchiveReader | None:
        place, month = await place_of(connection, month_us), month_text(month_us)
        if self._open is None or place is None:
            self._findings.unread[month] = "its files were not asked for"
            return None
        try:
            reader = await asyncio.to_thread(self._open, *place)
            await asyncio.to_thread(reader.check_manifest, month, await files_of_month(connection, month_us))
        except FileDamaged as error:
            self._findings.damaged.append(str(error))
            self._findings.differences += 1
        except PlaceUnreachable as error:
            self._findings.unread[month] = str(error)
            return None
        return reader


def _added(parts: Sequence[RollupDeltas]) -> RollupDeltas:
    """Add up what the checks below ask of the files of a day."""
    hours: dict[tuple[Any, ...], Sums] = {}
    spend: SpendSums = {}
    quarters: SpendSums = {}
    months: MonthSums = {}
    for part in parts:
        for key, figures in part.hours.items():
            add(hours, key, figures)
        _add_amounts(spend, part.spend)
        _add_amounts(quarters, part.quarters)
        _add_amounts(months, part.months)
    return RollupDeltas(hours, {}, (), spend, quarters, months)


def _add_amounts(sums: dict[_Place, int], more: Mapping[_Place, int]) -> None:
    for place, amount in more.items():
        sums[place] = sums.get(place, 0) + amount


_ALONE_SCOPES: Final = frozenset(each.name for each in SCOPES if not each.rolled_up)


async def _check_day(
    connection: AsyncConnection, day_us: int, findings: _Findings, now_us: int, archives: _Archives
) -> None:
    files = await files_of_day(connection, day_us)
    archived = await archives.read(connection, files) if files else RollupDeltas({}, {}, (), {}, {}, {})
    findings.archived += sum(each.rows for each in files)
    if archived is None:
        await _check_totals(connection, day_us, files, findings, now_us)
    else:
        await _check_figures(connection, day_us, archived, findings, now_us)


async def _check_totals(
    connection: AsyncConnection, day_us: int, files: Sequence[FileRow], findings: _Findings, now_us: int
) -> None:
    """Compare the totals of a day whose files are not at hand with what is known of these."""
    total: Sums = _ZEROS
    for hour_us in range(day_us, day_us + DAY_US, HOUR_US):
        for sums in (await _ledger_hour(connection, hour_us, findings)).values():
            total = tuple(map(operator.add, total, sums))
        await _check_closings(connection, hour_us, findings, now_us)
    told = sums_of(files)
    total = tuple(amount + told[name] for name, amount in zip(ROLLUP_SUMS, total, strict=True))
    findings.cost_nanousd += told["cost_nanousd"]
    for table in (rollup_hour, rollup_day, *COARSER_DAYS):
        start = table.c.start_us
        query = select(*(func.coalesce(func.sum(table.c[name]), 0) for name in ROLLUP_SUMS))
        row = (await connection.execute(query.where(start >= day_us, start < day_us + DAY_US))).one()
        await findings.look(
            table.name, ("start_us",), ROLLUP_SUMS, {(day_us,): total}, {(day_us,): tuple(map(int, row))}
        )


async def _check_figures(
    connection: AsyncConnection, day_us: int, archived: RollupDeltas, findings: _Findings, now_us: int
) -> None:
    days: dict[tuple[Any, ...], Sums] = {}
    by_hour: dict[int, list[tuple[tuple[Any, ...], Sums]]] = {}
    for key, sums in archived.hours.items():
        by_hour.setdefault(key[_START], []).append((key, sums))
        findings.cost_nanousd += sums[COST]
    for place, amount in archived.months.items():
        findings.months[place] = findings.months.get(place, 0) + amount
    alone = {place: amount for place, amount in archived.quarters.items() if place[0] in _ALONE_SCOPES}
    for hour_us in range(day_us, day_us + DAY_US, HOUR_US):
        hours = await _ledger_hour(connection, hour_us, findings)
        for key, sums in by_hour.get(hour_us, ()):
            add(hours, key, sums)
        found = await _read_rollup(connection, rollup_hour, hour_us)
        await findings.look("rollup_hour", ROLLUP_KEY, ROLLUP_SUMS, hours, found)
        for key, sums in days_of(hours).items():
            add(days, key, sums)
        await _check_quarters(connection, hour_us, hours, findings, now_us, alone)
        await _check_closings(connection, hour_us, findings, now_us)
    await findings.look("rollup_day", ROLLUP_KEY, ROLLUP_SUMS, days, await _read_rollup(connection, rollup_day, day_us))
    for table in COARSER_DAYS:
        sums_of_day = await asyncio.to_thread(coarser_of, days, table)
        found = await _read_rollup(connection, table, day_us)
        await findings.look(table.name, key_of(table), ROLLUP_SUMS, sums_of_day, found)
    spent = {key: (amount,) for key, amount in (await asyncio.to_thread(spend_of, days)).items()}
    spent |= {place: (amount,) for place, amount in archived.spend.items() if place[0] in _ALONE_SCOPES}
    for query in spend_sums(day_us, rolled_up=False):
        async for scope, scope_id, day, amount in await connection.stream(query):
            of_day = (scope, scope_id, day)
            spent[of_day] = (spent.get(of_day, (0,))[0] + int(amount),)
    query = select(spend_day).where(spend_day.c.day_us == day_us)
    found = {tuple(row[:3]): (int(row[3]),) for row in await connection.execute(query)}
    expected, kept = (_without_forgotten(each, day_us, now_us) for each in (spent, found))
    await findings.look("spend_day", SPEND_KEY, ("spent_nanousd",), expected, kept)


async def _check_months(
    connection: AsyncConnection, days: Collection[int], start_us: int, end_us: int, findings: _Findings, now_us: int
) -> None:
    """Check what end users spent in months that are checked whole, up to now: the others would be read again each hour."""
    kept = await connection.scalars(select(end_user_month.c.month_us).distinct())
    for month_us in sorted({*map(month_of, days), *kept}):
        if month_us < start_us or min(next_month(month_us), now_us) > end_us:
            continue
        if month_us < month_of(now_us - LEAST_KEPT_DAYS * DAY_US):
            continue
        if month_text(month_us) in findings.unread or findings.damaged:
            continue
        expected = {place: (amount,) for place, amount in findings.months.items() if place[1] == month_us}
        async for row in await connection.stream(month_sums(month_us)):
            place = tuple(row[:3])
            expected[place] = (expected.get(place, (0,))[0] + int(row[3]),)
        query = select(end_user_month).where(end_user_month.c.month_us == month_us)
        found = {tuple(row[:3]): (int(row[3]),) async for row in await connection.stream(query)}
        await findings.look("end_user_month", MONTH_KEY, ("spent_nanousd",), expected, found)


def _without_forgotten(sums: Mapping[tuple[Any, ...], Sums], at_us: int, now_us: int) -> Mapping[tuple[Any, ...], Sums]:
    """Return the sums without those of end users where they are too old to be kept (`cost.budgets.end_user_retention`)."""
    if at_us >= now_us - LEAST_KEPT_DAYS * DAY_US:
        return sums
    return {place: amounts for place, amounts in sums.items() if place[0] != "end_user"}


async def _check_quarters(
    connection: AsyncConnection,
    hour_us: int,
    hours: dict[tuple[Any, ...], Sums],
    findings: _Findings,
    now_us: int,
    archived: Mapping[tuple[str, str, int], int],
) -> None:
    """Compare the spend by quarters of an hour, hour by hour. `archived` is what files have of it that the roll-ups do not."""
    start = spend_quarter.c.start_us
    key = (spend_quarter.c.scope, spend_quarter.c.scope_id)
    query = select(*key, func.sum(spend_quarter.c.spent_nanousd)).where(start >= hour_us, start < hour_us + HOUR_US)
    found = {(*row[:2], hour_us): (int(row[2]),) for row in await connection.execute(query.group_by(*key))}
    spent = {each: (amount,) for each, amount in (await asyncio.to_thread(spend_of, hours)).items()}
    for (scope, scope_id, start_us), amount in archived.items():
        if hour_us <= start_us < hour_us + HOUR_US:
            place = (scope, scope_id, hour_us)
            spent[place] = (spent.get(place, (0,))[0] + amount,)
    for sums in quarter_sums(hour_us, HOUR_US, rolled_up=False):
        async for scope, scope_id, _, amount in await connection.stream(sums):
            place = (scope, scope_id, hour_us)
            spent[place] = (spent.get(place, (0,))[0] + int(amount),)
    expected, kept = (_without_forgotten(each, hour_us, now_us) for each in (spent, found))
    await findings.look("spend_quarter", QUARTER_KEY, ("spent_nanousd",), expected, kept)


async def _ledger_hour(connection: AsyncConnection, hour_us: int, findings: _Findings) -> dict[tuple[Any, ...], Sums]:
    query = select(
        *ledger_key(hour_us), *ledger_sums(), func.count(), func.sum(case((_METERS_DIFFER, 1), else_=0))
    ).where(counted(hour_us, hour_us + HOUR_US))
    hours: dict[tuple[Any, ...], Sums] = {}
    odd = 0
    async for row in await connection.stream(query.group_by(*ledger_groups())):
        key, figures = tuple(row[: len(ROLLUP_KEY)]), tuple(map(int, row[len(ROLLUP_KEY) :]))
        hours[key] = figures[:-2]
        findings.rows += figures[-2]
        findings.cost_nanousd += figures[COST]
        odd += figures[-1]
    if odd:
        async for difference in _meter_differences(connection, hour_us):
            findings.add((difference,))
    return hours


async def _read_rollup(connection: AsyncConnection, table: Table, start_us: int) -> dict[tuple[Any, ...], Sums]:
    key = key_of(table)
    query = select(*(table.c[name] for name in (*key, *ROLLUP_SUMS))).where(table.c.start_us == start_us)
    rows: dict[tuple[Any, ...], Sums] = {}
    async for row in await connection.stream(query):
        rows[tuple(row[: len(key)])] = tuple(row[len(key) :])
    return rows


def _differing(
    table: str,
    key: Sequence[str],
    columns: Sequence[str],
    ledger: Mapping[tuple[Any, ...], Sums],
    found: Mapping[tuple[Any, ...], Sums],
) -> Iterator[Difference]:
    """Yield the differing figures. A missing row equals one of zeros."""
    wrong = (place for place in ledger.keys() | found.keys() if ledger.get(place) != found.get(place))
    for place in sorted(wrong):
        told, stands = ledger.get(place, _ZEROS), found.get(place, _ZEROS)
        for column, expected, figure in zip(columns, told, stands, strict=False):
            if expected != figure:
                named = dict(zip(key, place, strict=True))
                yield Difference(table=table, key=named, column=column, expected=expected, found=figure)


# Within the ledger: every entry's meters are its cost, and every attempt is reserved once and closed once.

_METERS: Final = sum((getattr(LedgerEntry, name) for name in METER_COLUMNS[1:]), getattr(LedgerEntry, METER_COLUMNS[0]))
_METERS_DIFFER: Final = func.coalesce(col(LedgerEntry.cost_nanousd), 0) != _METERS
_ALONE: Final = ("adjust", "cache")
"""Entries that no reserve goes with."""
_PLACE: Final = (col(LedgerEntry.request_id), col(LedgerEntry.attempt))


async def _meter_differences(connection: AsyncConnection, hour_us: int) -> AsyncIterator[Difference]:
    query = select(*_PLACE, col(LedgerEntry.entry), func.coalesce(col(LedgerEntry.cost_nanousd), 0), _METERS)
    query = query.where(counted(hour_us, hour_us + HOUR_US), _METERS_DIFFER).order_by(*_PLACE)
    async for request_id, attempt, entry, cost, meters in await connection.stream(query):
        key: dict[str, str | int] = {"request_id": request_id, "attempt": attempt, "entry": entry}
        yield Difference(table="ledger_entry", key=key, column="sum of meters", expected=int(cost), found=int(meters))


async def _check_closings(connection: AsyncConnection, hour_us: int, findings: _Findings, now_us: int) -> None:
    """Check reserves and closings. Nearly all attempts begin and end within the hour; the others are looked up."""
    odd = await connection.stream(_unusual_attempts(hour_us))
    async for places in odd.partitions(_BATCH):
        attempts = await _read_attempts(connection, [tuple(place) for place in places])
        for place, entries in attempts.items():
            _check_attempt(place, entries, hour_us, findings, now_us)


def _unusual_attempts(hour_us: int) -> Select[str, int]:
    entry = col(LedgerEntry.entry)
    reserves = func.sum(case((entry == "reserve", 1), else_=0))
    closings = func.sum(case((entry.in_(sorted(TERMINAL)), 1), else_=0))
    within = and_(col(LedgerEntry.at_us) >= hour_us, col(LedgerEntry.at_us) < hour_us + HOUR_US)
    grouped = select(*_PLACE).where(within, entry.not_in(_ALONE)).group_by(*_PLACE)
    return grouped.having(or_(reserves != 1, closings != 1))


async def _read_attempts(
    connection: AsyncConnection, places: list[tuple[Any, ...]]
) -> dict[tuple[str, int], dict[str, int]]:
    """Return each entry's `at_us` by kind, per attempt; of a reserve that a provider's batch may keep open for a day, under
    `handed` as well.
    """
    query = select(*_PLACE, col(LedgerEntry.entry), col(LedgerEntry.at_us), col(LedgerEntry.boot_id))
    attempts: dict[tuple[str, int], dict[str, int]] = {}
    for request_id, attempt, entry, at_us, boot_id in await connection.execute(
        query.where(tuple_(*_PLACE).in_(places))
    ):
        found = attempts.setdefault((request_id, attempt), {})
        found[entry] = at_us
        if entry == "reserve" and boot_id.startswith(HANDED):
            found[_HANDED] = at_us
    return attempts


def _check_attempt(
    place: tuple[str, int], entries: Mapping[str, int], hour_us: int, findings: _Findings, now_us: int
) -> None:
    """Check one attempt in the hour of its reserve, or of its first entry without one, so that it is reported once."""
    at_us = entries.get("reserve", min(entries.values()))
    if not hour_us <= at_us < hour_us + HOUR_US:
        return
    closings = sorted(TERMINAL & entries.keys())
    if "reserve" in entries and not closings:
        findings.open_reserves += at_us < now_us - (_HANDED_OPEN_US if _HANDED in entries else _OPEN_US)
    key: dict[str, str | int] = {"request_id": place[0], "attempt": place[1], "entry": " ".join(closings)}
    # A void without a reserve is regular: it cancels a reserve whose write may have failed.
    if "reserve" not in entries and closings != ["void"]:
        findings.add((Difference(table="ledger_entry", key=key, column="reserves", expected=len(closings), found=0),))
    standing = len(closings) - ("expire" in entries and "adjust" in entries)
    if standing > 1:
        findings.add((Difference(table="ledger_entry", key=key, column="closings", expected=1, found=standing),))
