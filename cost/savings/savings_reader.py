"""Reader of the savings report's inputs: roll-ups, pools' bills, and the two arms of the holdout experiment.

Days whose bill is not posted yet, today among them, are trued up for the reader alone, and marked as provisional.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final, cast

import msgspec
from sqlalchemy import ColumnElement, Float, case, func, literal, select
from sqlalchemy import cast as sql_cast
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlmodel import col

from cost.calendar import UTC_CALENDAR, Calendar, Days
from cost.calendars import day_of_row
from cost.fleet.cost_adjustment import IDLE, Pending, PostedDay, TrueUpStore, bill_of_day, pending
from cost.fleet.cost_adjustment import PoolDay as PoolBooks
from cost.fleet.hours import PoolRecord, up_us
from cost.fleet.pool_config import PoolSection
from cost.ledger.archived import archived_note
from cost.ledger.entries import Arm
from cost.ledger.rolled_up import days_with, rolled_up
from cost.reports.report_errors import BadQuery
from cost.reports.scope import ReadScope
from cost.reports.usage import scoped
from cost.savings.comparisons import Billed, FleetTotals, Ground, Line, figures
from cost.savings.holdout import ArmSums
from cost.tables import LatePosting, LedgerEntry
from cost.times import DAY_US, HOUR_US, start_of

MAX_DAYS: Final = 366
ARMS_WITHIN_S: Final = 1.0
"""Time budget in seconds for the experiment's rows: once it is used up no earlier day is begun."""
ARMS_KEPT_S: Final = 600.0
"""Lifetime in seconds of a cached day of the experiment; only very late entries can change a day that is over."""
_MOST_CACHED: Final = 4_096
_LATE_US: Final = 2 * HOUR_US
_SUMS: Final = ("served", "attempts", "estimated_attempts", "unpriced_attempts", "cost_nanousd")
_BASELINES: Final = ("baseline_nanousd", "cheapest_nanousd", "hosted_nanousd")
_ROWS: Final = ("baseline_rows", "cheapest_rows", "hosted_rows")


class PoolDay(msgspec.Struct, frozen=True, kw_only=True):
    """One pool on one UTC day."""

    day_us: int
    pool: str
    fleet: FleetTotals


class SavingsInputs(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs of a savings report for a range of whole days of a calendar.

    `pools` is empty for a team: idle GPUs are the organisation's.
    """

    start_us: int
    end_us: int
    lines: tuple[Line, ...] = ()
    pools: tuple[PoolDay, ...] = ()
    billed: Billed = {}
    overworked: tuple[str, ...] = ()
    """Pools whose tokens took longer, by the weights, than 110 % of the hours that they are billed for."""
    provisional_days: tuple[int, ...] = ()
    holdout: ArmSums = ArmSums()
    control: ArmSums = ArmSums()
    arms_from_us: int | None = None
    """First microsecond of the arms if they do not cover the whole range for want of time; None if they do."""
    calendar: Calendar = UTC_CALENDAR

    @property
    def days(self) -> Days:
        """The days of the range."""
        return _days(self.start_us, self.end_us, self.calendar)

    def shown_us(self, day_us: int) -> int:
        """Return the day that a UTC day's bill stands in: it is posted with the end of that day."""
        return start_of(self.calendar.day(day_us + DAY_US - 1))


class _PoolFacts(msgspec.Struct, frozen=True, kw_only=True):
    up_us: int
    busy_us: int
    overfull: bool
    pending: Pending | None
    """Postings still to be made; None when the day is posted and adds up to its bill."""


class SavingsReader:
    """A reader of the inputs of savings reports of one organisation or team."""

    def __init__(
        self,
        engine: AsyncEngine,
        fleet: TrueUpStore,
        *,
        ground_of: Callable[[str], Ground],
        arms_within_s: float = ARMS_WITHIN_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ground_of` returns the evidence for a target's answers beside the reference's, by target id."""
        self._engine = engine
        self._fleet = fleet
        self._ground_of = ground_of
        self._arms_within_s = arms_within_s
        self._clock = clock
        self._arms_cache: dict[tuple[ReadScope, int, int], tuple[float, dict[Arm, ArmSums]]] = {}

    async def read(
        self,
        scope: ReadScope,
        pools: Sequence[PoolSection],
        start_us: int,
        end_us: int,
        now_us: int,
        calendar: Calendar = UTC_CALENDAR,
    ) -> SavingsInputs:
        """Return the inputs for whole days from `start_us` up to `end_us`. Raises BadQuery for a bad range.

        Pools are billed by UTC days, with whose end their bills are in the books.
        """
        _refuse_range(start_us, end_us, calendar)
        touched_us = start_us - start_us % DAY_US, -(-end_us // DAY_US) * DAY_US
        touched = await self._read_facts(pools, *touched_us, now_us)
        facts = {(pool, day): found for (pool, day), found in touched.items() if day + DAY_US <= end_us}
        lines = await self._read_lines(scope, start_us, end_us, calendar)
        lines += [
            line for key, found in facts.items() for line in _pending_lines(scope, pools, key, found, self._ground_of)
        ]
        billed = {key: found.up_us > 0 for key, found in touched.items()}
        billed |= await self._billed_unconfigured(lines, {pool.name for pool in pools}, *touched_us)
        days = _days(start_us, end_us, calendar)
        arms, arms_from_us = await self._read_arms(scope, days, now_us)
        return SavingsInputs(
            calendar=calendar,
            start_us=start_us,
            end_us=end_us,
            lines=tuple(lines),
            pools=() if scope.team_id is not None else _pool_days(scope, pools, facts, lines, billed),
            billed=billed,
            overworked=_overworked(facts),
            provisional_days=tuple(sorted({day for (_, day), found in facts.items() if found.pending is not None})),
            holdout=arms.get("holdout", ArmSums()),
            control=arms.get("control", ArmSums()),
            arms_from_us=arms_from_us if arms_from_us > start_us else None,
        )

    async def _read_lines(self, scope: ReadScope, start_us: int, end_us: int, calendar: Calendar) -> list[Line]:
        offsets = calendar.offsets(start_us, end_us)
        names, summed = ("target_id", "pool", "origin"), (*_SUMS, *_BASELINES, *_ROWS)
        rows = rolled_up(
            self._engine,
            start_us,
            end_us,
            names,
            partial(scoped, scope=scope),
            sums=summed,
            by_day=True,
            offsets=offsets,
        ).c
        marks = [day_of_row(rows.start_us, offsets)] if offsets else []
        key = (day_of_row(rows.start_us), *(rows[name] for name in names), *marks)
        sums = [func.sum(rows[name]) for name in summed]
        async with self._engine.connect() as connection:
            found = (await connection.execute(select(*key, *sums).group_by(*key))).all()
        lines = (_line_of_row(row, self._ground_of, has_mark=bool(offsets)) for row in found)
        return sorted(lines, key=lambda line: (line.day_us, line.target_id, line.pool, line.origin, line.shown_us))

    async def _read_facts(
        self, pools: Sequence[PoolSection], start_us: int, end_us: int, now_us: int
    ) -> dict[tuple[str, int], _PoolFacts]:
        """Return each pool's days until now. They are facts of machines, not of tenants, so they are not scoped."""
        if not pools:
            return {}
        posted = await self._fleet.last_posted([pool.name for pool in pools], start_us, end_us)
        booked = await self._read_booked([pool.name for pool in pools], start_us, end_us)
        records = await self._fleet.hours.read(pools, start_us, end_us)
        facts = {}
        for pool in pools:
            for day in range(start_us, min(end_us, now_us), DAY_US):
                key, record = (pool.name, day), records[pool.name]
                up = up_us(pool, record, day, day + DAY_US, now_us)
                if up or key in booked or key in posted:
                    facts[key] = await self._day_facts(
                        pool, record, day, now_us, up, posted.get(key), booked.get(key, 0)
                    )
        return facts

    async def _billed_unconfigured(
        self, lines: Sequence[Line], known: Collection[str], start_us: int, end_us: int
    ) -> dict[tuple[str, int], bool]:
        """Return which days of pools no longer configured have a bill; a day that was never posted will have none."""
        days = {(line.pool, line.day_us) for line in lines if line.pool and line.pool not in known}
        if not days:
            return {}
        posted = await self._fleet.last_posted(sorted({pool for pool, _ in days}), start_us, end_us)
        return {key: key in posted and posted[key].up_us > 0 for key in days}

    async def _read_booked(self, pools: Sequence[str], start_us: int, end_us: int) -> dict[tuple[str, int], int]:
        table = days_with(("pool",)).c
        query = (
            select(table.pool, table.start_us, func.sum(table.cost_nanousd))
            .where(table.start_us >= start_us, table.start_us < end_us, table.pool.in_(pools))
            .group_by(table.pool, table.start_us)
        )
        late = (
            select(col(LatePosting.pool), col(LatePosting.day_us), func.sum(col(LatePosting.cost_nanousd)))
            .where(
                col(LatePosting.pool).in_(pools),
                col(LatePosting.day_us) >= start_us,
                col(LatePosting.day_us) < end_us,
                col(LatePosting.origin).not_in(("caller", "shadow")),
            )
            .group_by(col(LatePosting.pool), col(LatePosting.day_us))
        )
        async with self._engine.connect() as connection:
            booked = {(pool, day): int(cost) for pool, day, cost in await connection.execute(query)}
            # A signed month's later postings stand elsewhere, and the day's bill is complete with them.
            for pool, day, cost in await connection.execute(late):
                booked[pool, day] = booked.get((pool, day), 0) + int(cost or 0)
        return booked

    async def _day_facts(
        self,
        pool: PoolSection,
        record: PoolRecord,
        day: int,
        now_us: int,
        up: int,
        last: PostedDay | None,
        booked: int,
    ) -> _PoolFacts:
        if last is not None and last.up_us == up:
            bill = bill_of_day(PoolBooks(pool=pool, day_us=day, up_us=up, last=last))
            if bill.nanousd == booked:
                return _PoolFacts(up_us=up, busy_us=last.busy_us, overfull=last.busy_us > up, pending=None)
        # Tens of thousands of groups are possible: not in the event loop.
        found = await asyncio.to_thread(pending, await self._fleet.day(pool, day, record, now_us))
        return _PoolFacts(up_us=up, busy_us=found.allocation.busy_us, overfull=found.allocation.overfull, pending=found)

    async def _read_arms(self, scope: ReadScope, days: Days, now_us: int) -> tuple[dict[Arm, ArmSums], int]:
        """Sum the arms day by day, newest first, while there is time; both arms have the same days, so they compare.

        They end where entries are archived. Returns the arms and the first microsecond that they cover.
        """
        begun, day, from_us = self._clock(), days.last, days.end_us
        arms: dict[Arm, ArmSums] = {}
        while day >= days.first and self._clock() - begun <= self._arms_within_s:
            span = (days.calendar.start(day), from_us)
            if await archived_note(self._engine, *span):
                break
            for arm, found in (await self._cached_arms(scope, span, begun, now_us)).items():
                arms[arm] = arms.get(arm, ArmSums()).plus(found)
            day, from_us = day - timedelta(days=1), span[0]
        return arms, from_us

    async def _cached_arms(
        self, scope: ReadScope, span: tuple[int, int], begun: float, now_us: int
    ) -> dict[Arm, ArmSums]:
        """Return one day's arms, from the cache if the day is over and was read within `ARMS_KEPT_S`."""
        key = (scope, *span)
        kept = self._arms_cache.get(key)
        if kept is not None and begun - kept[0] < ARMS_KEPT_S:
            return kept[1]
        found = await self._query_arms(scope, *span)
        if span[1] + _LATE_US <= now_us:
            self._arms_cache.pop(key, None)
            while len(self._arms_cache) >= _MOST_CACHED:
                del self._arms_cache[next(iter(self._arms_cache))]
            self._arms_cache[key] = (begun, found)
        return found

    async def _query_arms(self, scope: ReadScope, start_us: int, end_us: int) -> dict[Arm, ArmSums]:
        """Query one day's arms: sums per request, then over requests, both in the database."""
        cost = col(LedgerEntry.cost_nanousd)
        kind = col(LedgerEntry.entry)
        tried = kind.in_(("settle", "expire"))
        requests = (
            select(
                col(LedgerEntry.arm).label("arm"),
                func.sum(func.coalesce(cost, 0)).label("cost"),
                func.sum(case((tried & cost.is_(None), 1), else_=0)).label("unpriced"),
            )
            .where(*_arm_conditions(scope, start_us, end_us), kind != "reserve")
            .group_by(col(LedgerEntry.arm), col(LedgerEntry.request_id))
            .having(func.sum(case((kind == "settle", 1), else_=0)) > 0)
            .subquery()
        )
        priced = requests.c.unpriced == 0
        amount = sql_cast(requests.c.cost, Float(53))
        query = select(
            requests.c.arm,
            func.sum(case((priced, 1), else_=0)),
            func.sum(case((priced, requests.c.cost), else_=0)),
            func.sum(case((priced, amount * amount), else_=0.0)),
            func.sum(case((priced, 0), else_=1)),
        ).group_by(requests.c.arm)
        async with self._engine.connect() as connection:
            return {
                arm: ArmSums(
                    requests=int(count), cost_nanousd=int(total), squares=float(squares), unpriced=int(unpriced)
                )
                for arm, count, total, squares, unpriced in await connection.execute(query)
            }


def _arm_conditions(scope: ReadScope, start_us: int, end_us: int) -> list[ColumnElement[bool]]:
    where = [
        # Inlined as a literal, so that the planner can use the partial index.
        col(LedgerEntry.arm) != literal("", literal_execute=True),
        col(LedgerEntry.at_us) >= start_us,
        col(LedgerEntry.at_us) < end_us,
        col(LedgerEntry.organisation_id) == scope.organisation_id,
    ]
    if scope.team_id is not None:
        # Written so that no other index serves it: SQLite would rather go through all of a team's rows than through the arms'.
        where.append(col(LedgerEntry.team_id).concat("") == scope.team_id)
    return where


def _days(start_us: int, end_us: int, calendar: Calendar) -> Days:
    return Days(calendar.day(start_us), calendar.day(end_us - 1), calendar)


def _refuse_range(start_us: int, end_us: int, calendar: Calendar) -> None:
    if end_us <= start_us:
        raise BadQuery("the end must come after the start", param="end")
    # Counted first: of a range of millennia no day is looked at.
    if end_us - start_us > (MAX_DAYS + 2) * DAY_US or len(_days(start_us, end_us, calendar)) > MAX_DAYS:
        raise BadQuery(f"at most {MAX_DAYS} days are told at once", param="end")
    days = _days(start_us, end_us, calendar)
    if (start_us, end_us) != (days.start_us, days.end_us):
        raise BadQuery("savings are told of whole days", param="start")


def _line_of_row(row: Sequence[Any], ground_of: Callable[[str], Ground], *, has_mark: bool) -> Line:
    day, target, pool, origin, *sums = row
    mark = int(sums.pop(0)) if has_mark else None
    counts = [int(each or 0) for each in sums]
    after = len(_SUMS)
    return Line(
        day_us=int(day),
        mark_us=mark,
        target_id=target,
        pool=pool,
        origin=origin,
        ground=ground_of(target),
        **dict(zip(_SUMS, counts, strict=False)),
        baselines=cast("tuple[int, int, int]", tuple(counts[after : after + 3])),
        rows=cast("tuple[int, int, int]", tuple(counts[after + 3 :])),
    )


def _pending_lines(
    scope: ReadScope,
    pools: Sequence[PoolSection],
    key: tuple[str, int],
    found: _PoolFacts,
    ground_of: Callable[[str], Ground],
) -> list[Line]:
    """Return the pending postings of a pool's day as lines, as far as the scope may see them."""
    if found.pending is None:
        return []
    name, day = key
    lines = [
        Line(
            day_us=day,
            target_id=group.target_id,
            pool=name,
            origin="true-up",
            ground=ground_of(group.target_id),
            cost_nanousd=sum(amounts),
        )
        for group, amounts in found.pending.groups
        if group.organisation_id == scope.organisation_id and scope.team_id in {None, group.team_id}
    ]
    owned = scope.team_id is None and _owner(pools, name) == scope.organisation_id
    if owned and found.pending.idle_nanousd:
        idle = found.pending.idle_nanousd
        lines.append(Line(day_us=day, target_id=name, pool=name, origin=IDLE, ground="measured", cost_nanousd=idle))
    return lines


def _overworked(facts: Mapping[tuple[str, int], _PoolFacts]) -> tuple[str, ...]:
    pools: dict[str, FleetTotals] = {}
    for (name, _), found in facts.items():
        pools[name] = pools.get(name, FleetTotals()) + FleetTotals(up_us=found.up_us, busy_us=found.busy_us)
    return tuple(name for name, whole in sorted(pools.items()) if whole.overworked)


def _owner(pools: Sequence[PoolSection], name: str) -> str:
    return next(pool.organisation for pool in pools if pool.name == name)


def _pool_days(
    scope: ReadScope,
    pools: Sequence[PoolSection],
    facts: Mapping[tuple[str, int], _PoolFacts],
    lines: Sequence[Line],
    billed: Billed,
) -> tuple[PoolDay, ...]:
    """Return the organisation's pools by day.

    The bill is the sum of its rows and its idle row, without the part that other organisations paid.
    """
    by_day: dict[tuple[str, int], list[Line]] = {}
    for line in lines:
        if line.pool:
            by_day.setdefault((line.pool, line.day_us), []).append(line)
    found = []
    for (name, day), fact in sorted(facts.items(), key=lambda item: (item[0][1], item[0][0])):
        if _owner(pools, name) == scope.organisation_id:
            mine = by_day.get((name, day), [])
            fleet = FleetTotals(
                bill_nanousd=sum(line.cost_nanousd for line in mine),
                up_us=fact.up_us,
                busy_us=fact.busy_us,
                overfull=fact.overfull,
                served=figures(mine, billed=billed),
            )
            found.append(PoolDay(day_us=day, pool=name, fleet=fleet))
    return tuple(found)
