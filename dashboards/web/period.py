"""The days that a page is about, from its address: `from` and `to`, both included, or a `month`."""

import datetime as dt
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlencode

import msgspec
from starlette.responses import Response

from accounts.errors import UnknownTeam
from accounts.store import TeamRecord
from api.web.changing import looking
from cost.calendar import UTC_CALENDAR, Calendar, Days
from cost.close.month import Month, month_of, parse_month
from cost.reports.scope import ReadScope
from cost.reports.usage import MAX_DAYS
from dashboards.web.view import PageRequest
from proxy.errors import TeamNotFound

_DAY_CHARS: Final = 10
_WEEK: Final = 7
_MONTH_DAYS: Final = 30
_QUARTER: Final = 90
_FIRST_DAY: Final = dt.date(1971, 1, 1)
_OWN: Final = frozenset({"from", "to", "month", "format", "table", "page"})


class Period(msgspec.Struct, frozen=True, kw_only=True):
    """Whole days of the organisation's calendar."""

    span: Days
    problem: str = ""
    """The error in the address; the usual days are shown instead. '' for a valid one."""

    @property
    def start_us(self) -> int:
        """First microsecond of the first day."""
        return self.span.start_us

    @property
    def end_us(self) -> int:
        """First microsecond after the last day."""
        return self.span.end_us

    @property
    def first(self) -> str:
        """The first day, ISO 8601."""
        return self.span.first.isoformat()

    @property
    def last(self) -> str:
        """The last day, included, ISO 8601."""
        return self.span.last.isoformat()

    @property
    def end(self) -> str:
        """The day after the last, as the APIs take it, ISO 8601."""
        return (self.span.last + dt.timedelta(days=1)).isoformat()

    @property
    def days(self) -> int:
        """Number of days."""
        return len(self.span)

    @property
    def time_zone(self) -> str:
        """The zone that its days are of."""
        return self.span.time_zone

    @property
    def told(self) -> str:
        """The period in words: a month's name, a day, or `first to last`."""
        month = Month(self.span.first.year, self.span.first.month)
        if (self.span.first, self.span.last) == (month.first_day, month.last_day):
            return month.title
        return self.first if self.days == 1 else f"{self.first} to {self.last}"

    def within(self, now_us: int) -> str:
        """Return the period as a sentence goes on with it: `in the last 30 days`, `in October 2026`, `on 2026-10-05`."""
        if self.span.last == self.span.calendar.day(now_us):
            return "today" if self.days == 1 else f"in the last {self.days} days"
        told = self.told
        if told == self.first:
            return f"on {told}"
        return f"in {told}" if " to " not in told else f"from {told}"


def period_of(
    query: Mapping[str, str], now_us: int, calendar: Calendar = UTC_CALENDAR, *, usual_days: int = _MONTH_DAYS
) -> Period:
    """Return the period of an address; the last `usual_days`, today included, where it names none or an invalid one."""
    usual = Period(span=last_days(now_us, calendar, usual_days))
    try:
        return _parse(query, usual)
    except ValueError as error:
        return msgspec.structs.replace(usual, problem=f"{error}. The last {usual_days} days are shown.")


def _parse(query: Mapping[str, str], usual: Period) -> Period:
    calendar = usual.span.calendar
    if query.get("month"):
        return Period(span=parse_month(query["month"], calendar).days)
    first, last = _day(query, "from"), _day(query, "to")
    if first is None and last is None:
        return usual
    last = usual.span.last if last is None else last
    first = max(_FIRST_DAY, last - dt.timedelta(days=usual.days - 1)) if first is None else first
    if last < first:
        raise ValueError("The last day is before the first one")
    found = Days(first, last, calendar)
    if len(found) > MAX_DAYS:
        raise ValueError(f"At most {MAX_DAYS} days are shown at once")
    return Period(span=found)


def _day(query: Mapping[str, str], name: str) -> dt.date | None:
    given = query.get(name, "")
    if not given:
        return None
    try:
        found = dt.date.fromisoformat(given) if len(given) == _DAY_CHARS else None
    except ValueError:
        found = None
    if found is None or not _FIRST_DAY <= found < dt.date(9990, 1, 1):
        raise ValueError("A day is written like 2026-11-05")
    return found


def last_days(now_us: int, calendar: Calendar, days: int) -> Days:
    """Return so many days, today the last of them."""
    today = calendar.day(now_us)
    return Days(today - dt.timedelta(days=days - 1), today, calendar)


def presets(query: Mapping[str, str], now_us: int, shown: Period) -> list[tuple[str, str, bool]]:
    """Return links to common periods as (label, href, is shown now). Other parameters of the address are kept.

    One is shown at most: on a month's 30th the last 30 days are this month, too, and the address says which was asked for.
    """
    calendar = shown.span.calendar
    this = month_of(now_us, calendar)
    offered: list[tuple[str, Days, dict[str, str]]] = []
    for label, count in (("7 days", _WEEK), ("30 days", _MONTH_DAYS), ("90 days", _QUARTER)):
        days = last_days(now_us, calendar, count)
        offered.append((label, days, {"from": days.first.isoformat(), "to": days.last.isoformat()}))
    offered += [
        (label, month.days, {"month": month.text})
        for label, month in (("This month", this), ("Last month", this.previous))
    ]
    fitting = [label for label, days, _ in offered if days == shown.span]
    here = fitting[-1 if query.get("month") else 0] if fitting else None
    kept = {name: value for name, value in query.items() if name not in _OWN}
    return [(label, f"?{urlencode({**kept, **given})}", label == here) for label, _, given in offered]


def kept_fields(query: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the address's other parameters, as hidden fields for the form that chooses days."""
    return [(name, value) for name, value in query.items() if name not in _OWN]


def whole_organisation(view: PageRequest) -> ReadScope:
    """Return the viewer's whole organisation."""
    return ReadScope(organisation_id=view.principal.organisation_id, team_id=None)


async def chosen_scope(view: PageRequest) -> tuple[ReadScope, TeamRecord | None]:
    """Return the organisation, or the one of its teams that the address names. Raises TeamNotFound."""
    scope, team_id = whole_organisation(view), view.query.get("team", "")
    if not team_id:
        return scope, None
    try:
        if not team_id.isprintable():
            # PostgreSQL rejects such text (NUL) with an error.
            raise UnknownTeam(team_id)  # noqa: TRY301
        team = await view.gateway.identity.accounts.team_of(scope.organisation_id, team_id)
    except UnknownTeam as error:
        raise TeamNotFound(f"There is no team `{team_id[:80]}`.", param="team") from error
    return ReadScope(organisation_id=scope.organisation_id, team_id=team.team_id), team


async def whose_asked(view: PageRequest) -> Response | None:
    """Return the choices of the field that names a team, where the address asks for those alone."""

    async def teams() -> list[tuple[str, str]]:
        async with looking():
            return whose(await team_names(view))

    return await view.options_asked(team=teams)


def whose(teams: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the choices of that field: the whole organisation, and each of its teams by name."""
    return [("", "The whole organisation"), *sorted(teams.items(), key=lambda each: each[1].casefold())]


async def team_names(view: PageRequest) -> dict[str, str]:
    """Return the names of the organisation's teams by id."""
    return await view.gateway.identity.accounts.team_names(view.principal.organisation_id)
