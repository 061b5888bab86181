"""Spending of a range of days, read once from the roll-ups, and ways to sum it.

Showback, statements and a month's figures are sums of the same lines, so they cannot disagree.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal

import msgspec
from sqlalchemy import ColumnElement, case, func, null, select
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.calendars import Offsets, day_of_row
from cost.dimensions import COLUMNS, Dimension, PostedGroup
from cost.ledger.rolled_up import Columns, rolled_up, whole_sum
from cost.reports.report_errors import BadQuery
from cost.reports.scope import ReadScope
from cost.reports.usage import LONGER_US, MAX_DAYS, known_cost, scoped
from cost.times import DAY_US, QUARTER_US

Part = Literal["requests", "shadow", "corrections", "reconciliations", "true-up", "idle"]
PARTS: Final[tuple[Part, ...]] = ("requests", "shadow", "corrections", "reconciliations", "true-up", "idle")
"""Kinds of cost; each ledger entry is in one of them."""
MOST_LINES: Final = 100_000

_PART_OF: Final[Mapping[str, Part]] = {
    "caller": "requests",
    "shadow": "shadow",
    "correction": "corrections",
    "reconciliation": "reconciliations",
    "true-up": "true-up",
    "idle": "idle",
}
_COUNTS: Final = (
    "requests",
    "attempts",
    "served",
    "input_tokens",
    "cached_input_tokens",
    "output_tokens",
    "cost_nanousd",
    "baseline_nanousd",
    "baseline_rows",
    "unpriced_attempts",
    "estimated_attempts",
    "batch_saved_nanousd",
)
_SUMMED: Final = (*_COUNTS, "quantity_milli")


def part_of(origin: str) -> Part:
    """Return the kind of cost of entries of this origin."""
    return _PART_OF[origin]


class PeriodLine(PostedGroup, frozen=True, kw_only=True):
    """Sums over the days by origin, pool, unit and the dimensions grouped by; the other names are empty."""

    origin: str = "caller"
    unit: str = ""
    """Unit that the provider counts beside tokens, such as `second`; empty for tokens alone."""
    quantity_milli: int = 0
    """Thousandths of `unit`. Lines of different units have no sum of it."""
    requests: int = 0
    attempts: int = 0
    served: int = 0
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    cost_nanousd: int = 0
    baseline_nanousd: int = 0
    baseline_rows: int = 0
    unpriced_attempts: int = 0
    estimated_attempts: int = 0
    batch_saved_nanousd: int = 0

    @property
    def part(self) -> Part:
        """Kind of cost."""
        return part_of(self.origin)


class SpendSum(msgspec.Struct, frozen=True, kw_only=True):
    """Sums of lines; `parts` divide the cost by kind, in nano-dollars."""

    parts: Mapping[Part, int] = {}
    requests: int = 0
    attempts: int = 0
    served: int = 0
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    baseline_nanousd: int = 0
    baseline_rows: int = 0
    unpriced_attempts: int = 0
    estimated_attempts: int = 0
    batch_saved_nanousd: int = 0

    @property
    def cost_nanousd(self) -> int:
        """Sum of the parts, as booked."""
        return sum(self.parts.values())

    @property
    def known_cost_nanousd(self) -> int | None:
        """Cost, or None if there are unpriced attempts and no cost: unknown is not 0."""
        return known_cost(self.unpriced_attempts, self.cost_nanousd)

    @property
    def saving_nanousd(self) -> int | None:
        """Reference baseline less the cost; None without a baseline or a known cost."""
        cost = self.known_cost_nanousd
        return None if cost is None or not self.baseline_rows else self.baseline_nanousd - cost

    def part(self, *names: Part) -> int:
        """Return the sum of these kinds of cost."""
        return sum(self.parts.get(name, 0) for name in names)


def spent(lines: Iterable[PeriodLine]) -> SpendSum:
    """Sum these lines."""
    parts: dict[Part, int] = dict.fromkeys(PARTS, 0)
    counts = dict.fromkeys((name for name in _COUNTS if name != "cost_nanousd"), 0)
    for line in lines:
        parts[line.part] += line.cost_nanousd
        for name in counts:
            counts[name] += getattr(line, name)
    return SpendSum(parts=parts, **counts)


def divided(lines: Iterable[PeriodLine], by: Dimension) -> dict[str, SpendSum]:
    """Return the sums per value of a dimension. Idle GPUs belong to none, so they are left out."""
    return {name: spent(found) for name, found in lines_by(lines, by).items()}


def lines_by(lines: Iterable[PeriodLine], by: Dimension) -> dict[str, list[PeriodLine]]:
    """Return the lines per value of a dimension, without those of idle GPUs, for those who sum a few of thousands."""
    field = COLUMNS[by]
    groups: dict[str, list[PeriodLine]] = {}
    for line in lines:
        if line.origin != "idle":
            groups.setdefault(getattr(line, field), []).append(line)
    return groups


def known_cost_of(lines: Iterable[PeriodLine]) -> int | None:
    """Return the cost of these lines alone, as `SpendSum` has it."""
    cost = unpriced = 0
    for line in lines:
        cost += line.cost_nanousd
        unpriced += line.unpriced_attempts
    return known_cost(unpriced, cost)


def idle_of(lines: Iterable[PeriodLine]) -> SpendSum:
    """Sum the lines of idle GPUs."""
    return spent(line for line in lines if line.origin == "idle")


class DaySpent(msgspec.Struct, frozen=True, kw_only=True):
    """Spending of one team on one day; an empty team is nobody's."""

    day_us: int
    team_id: str | None
    """None for all teams together that were not asked for."""
    is_idle: bool
    cost_nanousd: int
    baseline_nanousd: int


class PeriodReader:
    """A reader of spending of whole days, in whatever zone, within a scope."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def lines(
        self,
        scope: ReadScope,
        start_us: int,
        end_us: int,
        by: Sequence[Dimension],
        apart: Sequence[str] = ("pool", "origin", "unit"),
    ) -> tuple[PeriodLine, ...]:
        """Return the lines from `start_us` up to `end_us`, sorted by their names, and told `apart` by what is named there; without
        the unit no quantity has a meaning. Raises BadQuery.
        """
        _check_range(start_us, end_us)
        names = [*(COLUMNS[each] for each in by), *apart]
        rows = rolled_up(self._engine, start_us, end_us, names, partial(scoped, scope=scope), sums=_SUMMED).c
        group = [rows[name] for name in names]
        query = select(*group, *(whole_sum(rows[name]) for name in _SUMMED)).group_by(*group).limit(MOST_LINES + 1)
        async with self._engine.connect() as connection:
            found = (await connection.execute(query)).all()
        if len(found) > MOST_LINES:
            raise BadQuery(f"there are more than {MOST_LINES:,} lines; ask for fewer days", param="end")
        # No two have the same names. As plain tuples: rows of a result compare a hundred times more slowly.
        return tuple(_line(names, row) for row in sorted(map(tuple, found)))

    async def used_days(self, scope: ReadScope, start_us: int, end_us: int) -> dict[str, tuple[int, ...]]:
        """Return the UTC days on which anything was booked to each provider but by a posting. Raises BadQuery.

        A provider's own books are of UTC days.
        """
        _check_range(start_us, end_us)

        def used(columns: Columns) -> list[ColumnElement[bool]]:
            return [*scoped(columns, scope), columns["origin"].in_(("caller", "shadow"))]

        rows = rolled_up(self._engine, start_us, end_us, ["provider"], used, sums=("attempts",)).c
        day = day_of_row(rows.start_us).label("day")
        query = select(rows.provider, day).distinct().order_by(rows.provider, day).limit(MOST_LINES)
        found: dict[str, list[int]] = {}
        async with self._engine.connect() as connection:
            for provider, day_us in await connection.execute(query):
                found.setdefault(provider, []).append(int(day_us))
        return {provider: tuple(days) for provider, days in found.items()}

    async def dearest_teams(self, scope: ReadScope, start_us: int, end_us: int, most: int) -> tuple[str, ...]:
        """Return the teams that cost most, without idle GPUs, which are no team's. Raises BadQuery."""
        _check_range(start_us, end_us)

        def used(columns: Columns) -> list[ColumnElement[bool]]:
            return [*scoped(columns, scope), columns["origin"] != "idle"]

        rows = rolled_up(self._engine, start_us, end_us, ["team_id"], used, sums=("cost_nanousd",)).c
        query = select(rows.team_id).group_by(rows.team_id)
        query = query.order_by(func.sum(rows.cost_nanousd).desc(), rows.team_id).limit(most)
        async with self._engine.connect() as connection:
            return tuple(await connection.scalars(query))

    async def days(
        self, scope: ReadScope, start_us: int, end_us: int, offsets: Offsets, teams: Sequence[str]
    ) -> tuple[DaySpent, ...]:
        """Return the spending of each of these teams on each day, by the offsets of a zone, and that of all others together. Raises
        BadQuery.
        """
        _check_range(start_us, end_us)
        rows = rolled_up(
            self._engine,
            start_us,
            end_us,
            ["team_id", "origin"],
            partial(scoped, scope=scope),
            sums=("cost_nanousd", "baseline_nanousd"),
            by_day=True,
            offsets=offsets,
        ).c
        told = case((rows.team_id.in_(teams), rows.team_id), else_=null()).label("told")
        group = (day_of_row(rows.start_us, offsets), told, (rows.origin == "idle").label("idle"))
        query = select(*group, whole_sum(rows.cost_nanousd), whole_sum(rows.baseline_nanousd))
        async with self._engine.connect() as connection:
            found = (await connection.execute(query.group_by(*group).order_by(*group).limit(MOST_LINES))).all()
        return tuple(
            DaySpent(
                day_us=int(day), team_id=team, is_idle=bool(is_idle), cost_nanousd=int(cost), baseline_nanousd=int(base)
            )
            for day, team, is_idle, cost, base in found
        )


def _line(names: Sequence[str], row: Sequence[Any]) -> PeriodLine:
    given: dict[str, Any] = dict(zip(names, row, strict=False))
    counts: dict[str, Any] = {name: value or 0 for name, value in zip(_SUMMED, row[len(names) :], strict=True)}
    return PeriodLine(**given, **counts)


def _check_range(start_us: int, end_us: int) -> None:
    # Where a day of any zone begins.
    if start_us % QUARTER_US or end_us % QUARTER_US:
        raise BadQuery("a period is of whole days", param="start")
    if not 0 <= start_us < end_us < 2**62:
        raise BadQuery("the end must come after the start", param="end")
    if end_us - start_us > MAX_DAYS * DAY_US + LONGER_US:
        raise BadQuery(f"at most {MAX_DAYS} days are told at once", param="end")
