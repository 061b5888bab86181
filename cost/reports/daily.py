"""Daily report of a team or an organisation: one day of its calendar from the roll-ups, beside the days before."""

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from decimal import Decimal
from typing import Any, Final

import msgspec
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.budgets.budget import BudgetStatus
from cost.calendar import UTC_CALENDAR, Calendar, Days
from cost.dimensions import BY_NAME, Dimension
from cost.fleet.earnings import PoolEarnings
from cost.meters import METER_COLUMNS, METER_NAMES, TOKEN_COLUMNS, split_row
from cost.prices import usd
from cost.reports.scope import ReadScope
from cost.reports.usage import MAX_ROWS, UsagePage, UsageQuery, UsageReader, UsageSums
from cost.times import iso, start_of

DAYS_SHOWN: Final = 14
WEEK: Final = 7
MAX_GROUPS_SHOWN: Final = 100
_MONTH: Final = 31
_EPOCH: Final = date(1970, 1, 1)
_SHARE: Final = Decimal("0.001")
_DIVIDED_BY: Final[tuple[Dimension, ...]] = ("team", "model", "tier", "key", "tag")
SECTIONS: Final[Mapping[Dimension, str]] = {name: BY_NAME[name].plural for name in _DIVIDED_BY}
"""Dimensions that a day is divided by, and the plural names of their parts."""
_FEWER_PARTS: Final = (10, 5, 2, 0)


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a section; an empty name is what has none of the dimension."""

    name: str
    sums: UsageSums


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A day divided by one dimension, highest cost first; parts beyond the limit are summed up in `left_out`."""

    dimension: Dimension
    groups: tuple[Group, ...]
    left_out: UsageSums | None = None


class DayFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Sums of one day."""

    day: date
    sums: UsageSums


class DailyReport(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of a daily report. `days` are the last fourteen, the reported one at the end."""

    day: date
    organisation_id: str
    team_id: str | None
    title: str
    total: UsageSums
    month: UsageSums
    week_before: UsageSums
    """Sums of the seven days before."""
    days: tuple[DayFigures, ...]
    sections: tuple[Section, ...]
    standings: tuple[BudgetStatus, ...] = ()
    pools: tuple[PoolEarnings, ...] = ()
    """Earnings of the organisation's own GPUs that day; none in a team's report."""
    time_zone: str = "UTC"

    @property
    def day_before(self) -> UsageSums:
        """Sums of the day before the reported one."""
        return self.days[-2].sums

    @property
    def is_empty(self) -> bool:
        """True if nothing was booked on any of the fourteen days."""
        return not any(any(msgspec.structs.astuple(each.sums)) for each in self.days)


class MeterUse(msgspec.Struct, frozen=True, kw_only=True):
    """Units used of one meter, without overlap, and their cost."""

    name: str
    used: int
    cost_nanousd: int


def meters_of(sums: UsageSums) -> tuple[MeterUse, ...]:
    """Return every meter of these sums. Corrections are included, so a part may be negative."""
    used = split_row({name: getattr(sums, name) for name in TOKEN_COLUMNS}, sums.requests)
    return tuple(
        MeterUse(name=name, used=amount, cost_nanousd=getattr(sums, column))
        for name, amount, column in zip(METER_NAMES, used, METER_COLUMNS, strict=True)
    )


def change(now: int, before: int, days: int = 1) -> Decimal | None:
    """Return the relative change from the mean of `days` days that sum to `before`; None if that is not positive."""
    return ((Decimal(now) * days - before) / before).quantize(_SHARE) if before > 0 else None


def share(part: int, whole: int) -> Decimal | None:
    """Return part / whole to three places; None without a whole."""
    return (Decimal(part) / whole).quantize(_SHARE) if whole > 0 else None


def saving(sums: UsageSums) -> int | None:
    """Return the baseline less the cost in nano-dollars; None when nothing has a baseline or no cost is known."""
    return sums.savings_nanousd if sums.baseline_rows else None


class DailyReader:
    """A reader of daily reports; every query has the scope in it."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._usage = UsageReader(engine)

    async def read(
        self,
        scope: ReadScope,
        day: date,
        title: str,
        standings: Sequence[BudgetStatus] = (),
        calendar: Calendar = UTC_CALENDAR,
    ) -> DailyReport:
        """Return the report of one team's day, or of the organisation's when the scope has no team."""
        days = Days(max(_EPOCH, day - timedelta(days=_MONTH - 1)), day, calendar)
        history = await self._usage.page(
            UsageQuery(
                scope=scope, start_us=max(0, days.start_us), end_us=days.end_us, group_by=("day",), offsets=days.offsets
            ),
            with_totals=False,
        )
        dimensions: list[Dimension] = [each for each in SECTIONS if each != "team" or scope.team_id is None]
        if not history.rows:
            dimensions = []
        one = Days(day, day, calendar)
        pages = {each: await self._read_page(scope, one, each) for each in dimensions}
        report = report_of(scope, day, title, history, pages, standings)
        return msgspec.structs.replace(report, time_zone=one.time_zone)

    async def _read_page(self, scope: ReadScope, day: Days, dimension: Dimension) -> UsagePage:
        return await self._usage.page(
            UsageQuery(
                scope=scope,
                start_us=max(0, day.start_us),
                end_us=day.end_us,
                group_by=(dimension,),
                limit=MAX_ROWS,
                offsets=day.offsets,
            )
        )


def report_of(
    scope: ReadScope,
    day: date,
    title: str,
    history: UsagePage,
    pages: Mapping[Dimension, UsagePage],
    standings: Sequence[BudgetStatus] = (),
) -> DailyReport:
    """Build the report of these pages. Pure."""
    by_day = {int(row.group[0]): row.sums for row in history.rows}

    def days(first: date, last: date) -> list[DayFigures]:
        all_days = [first + timedelta(days=each) for each in range((last - first).days + 1)]
        return [DayFigures(day=each, sums=by_day.get(start_of(each), UsageSums())) for each in all_days]

    def sums(first: date, last: date) -> UsageSums:
        return _sum([each.sums for each in days(first, last)])

    return DailyReport(
        day=day,
        organisation_id=scope.organisation_id,
        team_id=scope.team_id,
        title=title,
        total=sums(day, day),
        month=sums(day.replace(day=1), day),
        week_before=sums(day - timedelta(days=WEEK), day - timedelta(days=1)),
        days=tuple(days(day - timedelta(days=DAYS_SHOWN - 1), day)),
        sections=tuple(_section(dimension, page) for dimension, page in pages.items()),
        standings=tuple(standings),
    )


def plain_within(report: DailyReport, max_bytes: int) -> dict[str, Any]:
    """Return the report as JSON-ready values, with as many parts of each section as fit into `max_bytes`."""
    for parts in _FEWER_PARTS:
        found = plain(report, parts)
        if len(msgspec.json.encode(found)) <= max_bytes:
            break
    return found


def plain(report: DailyReport, parts: int = MAX_GROUPS_SHOWN) -> dict[str, Any]:
    """Return the report as JSON-ready values: whole numbers, and dollars as exact texts.

    Each section has its `parts` of highest cost.
    """
    total = report.total
    return {
        "day": report.day.isoformat(),
        "time_zone": report.time_zone,
        "organisation_id": report.organisation_id,
        "team_id": report.team_id,
        **_plain_sums(total),
        "meters": {
            each.name: {"used": each.used, "cost_usd": exact_usd(each.cost_nanousd)} for each in meters_of(total)
        },
        "given_again": {"requests": total.cache_hits, "saved_usd": exact_usd(total.cache_saved_nanousd)},
        "estimated_share": _text(share(total.estimated_attempts, total.attempts)),
        "baseline_coverage": _text(share(total.baseline_rows, total.served)),
        "change_to_day_before": _text(change(total.cost_nanousd, report.day_before.cost_nanousd)),
        "change_to_week_before": _text(change(total.cost_nanousd, report.week_before.cost_nanousd, WEEK)),
        "month_to_date": _plain_sums(report.month),
        **{SECTIONS[each.dimension]: _plain_section(each, parts) for each in report.sections},
        "budgets": [_plain_standing(each) for each in report.standings[:parts]],
        **({"pools": [plain_pool(each) for each in report.pools[:parts]]} if report.pools else {}),
    }


def plain_pool(each: PoolEarnings) -> dict[str, Any]:
    """Return a pool's earnings as JSON-ready values."""
    found = each.earnings
    return {
        "pool": each.pool,
        "replica_hours": f"{each.hours:f}",
        "paid_usd": exact_usd(found.paid_nanousd),
        "avoided_usd": exact_usd(found.avoided_nanousd),
        "net_usd": exact_usd(found.net_nanousd),
        "best_fixed_replicas": found.best_fixed,
        "best_fixed_usd": exact_usd(found.best_fixed_nanousd),
    }


def exact_usd(amount_nanousd: int) -> str:
    """Return dollars as text with nine decimals."""
    return f"{usd(amount_nanousd):.9f}"


def _plain_sums(sums: UsageSums) -> dict[str, Any]:
    saved, spent = saving(sums), sums.known_cost_nanousd
    return {
        "requests": sums.requests,
        "input_tokens": sums.input_tokens,
        "output_tokens": sums.output_tokens,
        "cost_usd": None if spent is None else exact_usd(spent),
        "baseline_usd": exact_usd(sums.baseline_nanousd) if saved is not None else None,
        "saving_usd": None if saved is None else exact_usd(saved),
        "unpriced_attempts": sums.unpriced_attempts,
    }


def _plain_section(section: Section, parts: int) -> list[dict[str, Any]]:
    return [{"name": each.name, **_plain_sums(each.sums)} for each in section.groups[:parts]]


def _plain_standing(standing: BudgetStatus) -> dict[str, Any]:
    budget = standing.budget
    return {
        "scope": budget.scope,
        "scope_id": budget.shown_id,
        "period": budget.period,
        "kind": budget.kind,
        "limit_usd": exact_usd(standing.limit_nanousd),
        "spent_usd": exact_usd(standing.spent_nanousd),
        "state": standing.state,
        # The day that is told of may be long over.
        "as_of": iso(standing.at_us),
    }


def _text(number: Decimal | None) -> str | None:
    return None if number is None else f"{number:f}"


def _section(dimension: Dimension, page: UsagePage) -> Section:
    groups = [Group(name=str(row.group[0]), sums=row.sums) for row in page.rows]
    groups.sort(key=lambda each: (-each.sums.cost_nanousd, -each.sums.requests, each.name))
    shown = groups[:MAX_GROUPS_SHOWN]
    left_out = None
    if page.totals is not None and len(groups) > len(shown):
        # Computed from the totals, so that it is right however many groups there are.
        left_out = _subtract(page.totals, _sum([each.sums for each in shown]))
    return Section(dimension=dimension, groups=tuple(shown), left_out=left_out)


def _sum(sums: Sequence[UsageSums]) -> UsageSums:
    names = UsageSums.__struct_fields__
    return UsageSums(**{name: sum(getattr(each, name) for each in sums) for name in names})


def _subtract(one: UsageSums, other: UsageSums) -> UsageSums:
    names = UsageSums.__struct_fields__
    return UsageSums(**{name: getattr(one, name) - getattr(other, name) for name in names})
