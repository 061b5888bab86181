"""What a page of spend is asked for by its address: a time, filters, and what it is divided by. The address holds all of it."""

import datetime as dt
import re
from collections.abc import Mapping
from typing import Final, Literal, cast
from urllib.parse import quote, urlencode

import msgspec

from cost.calendar import UTC_CALENDAR, Calendar
from cost.dimensions import ON_PAGES, Dimension, UsageFilters
from cost.end_users import booked
from cost.reports.compared import AGAINST, Against, Window, longest_us, window_of
from cost.reports.minutes import MAX_HOURS
from cost.times import HOUR_US, MINUTE_US, first_and_last, in_us, iso, moment, start_of
from dashboards.web.period import Period, period_of

Step = Literal["day", "hour", "minute"]
FILTERS: Final[tuple[Dimension, ...]] = ("key", "model", "tag", "tier", "provider", "end_user")
"""Dimensions that a page is narrowed by; the organisation's page by `team`, too."""
DIVIDED: Final[tuple[Dimension, ...]] = ("key", "model", "tag", "tier", "provider", "end_user")
LASTS: Final[Mapping[str, int]] = {"24h": 24, "3h": 3}
"""Hours by the address's `last`."""
CAUSES: Final[Mapping[str, tuple[str, tuple[Dimension, ...]]]] = {
    "": ("Key and model", ("key", "model")),
    "tag": ("Tag and model", ("tag", "model")),
    "end_user": ("End user", ("end_user", "model")),
}
"""What changes are told of, by the address's `of`."""
END_USER_DAYS: Final = 1
"""Most days that are divided by end user, of whom there may be a hundred thousand."""
_HOUR: Final = re.compile(r"(\d{4}-\d{2}-\d{2}T\d{2})(:15|:30|:45)?", re.ASCII)
_BY_HOUR_DAYS: Final = 2
_USUAL_DAYS: Final = 7
_MOST_CHARS: Final = 200
_TIMES: Final = frozenset({"from", "to", "month", "last", "hour"})
_OWN: Final = frozenset({"format", "table", "page"})


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """An address's question."""

    query: Mapping[str, str]
    start_us: int
    end_us: int
    step: Step
    period: Period
    """The days, for the form that chooses them."""
    by: Dimension
    of: str
    against: Against
    values: Mapping[Dimension, str]
    """Filters that are set."""

    @property
    def calendar(self) -> Calendar:
        """The organisation's calendar, which cuts the days."""
        return self.period.span.calendar

    @property
    def is_short(self) -> bool:
        """True for hours or minutes of no chosen days."""
        return "last" in self.query or "hour" in self.query

    def filters(self, keys: tuple[str, ...]) -> UsageFilters:
        """Return the filters; `keys` are the ids that the asked key has had."""
        plain = {name: (value,) for name, value in self.values.items() if name != "key"}
        return UsageFilters(key=keys, **plain)

    def window(self, now_us: int, group_by: tuple[Dimension, ...]) -> Window:
        """Return what the time is compared with; with nothing where that is not possible."""
        longest = longest_us(self.filters(()), group_by, self.start_us, self.end_us)
        return window_of(self.start_us, self.end_us, now_us, self.against, self.calendar, longest_us=longest)

    def bars(self, now_us: int) -> list[int]:
        """Return the bars until now: moments at which hours or minutes begin, or the marks of days (`Days.marks`)."""
        if self.step == "day":
            today_us = start_of(self.calendar.day(now_us))
            return [mark for mark in self.period.span.marks if mark <= today_us]
        if self.step == "minute":
            return list(range(self.start_us, min(self.end_us, now_us + 1), MINUTE_US))
        found, at_us = [], self.start_us
        while at_us < min(self.end_us, now_us + 1):
            found.append(at_us)
            at_us = hour_end_us(at_us, self.calendar)
        return found

    def href(self, **changes: str) -> str:
        """Return the address with changes; an empty value takes a parameter away."""
        kept = {name: value for name, value in self.query.items() if name not in _OWN}
        if _TIMES & changes.keys():
            kept = {name: value for name, value in kept.items() if name not in _TIMES}
        return f"?{urlencode({name: value for name, value in {**kept, **changes}.items() if value})}"

    def part_href(self, values: Mapping[Dimension, str]) -> str:
        """Return the address of a part by the values of its dimensions."""
        return self.href(**{str(name): value for name, value in values.items()})

    def narrowed(self, start_us: int) -> str:
        """Return the address of one of the `bars`: a day by hours, an hour by minutes."""
        if self.step == "day":
            return self.href(**{"from": iso(start_us)[:10], "to": iso(start_us)[:10]})
        return self.href(hour=iso(start_us)[: 16 if start_us % HOUR_US else 13])

    def requests_href(self, team_id: str) -> str:
        """Return the address of the requests of this time and these filters."""
        return requests_href(team_id, self.start_us, self.end_us, self.values)


_SEARCHED_AS: Final[Mapping[str, str]] = {
    "key": "key",
    "model": "target",
    "tag": "tag",
    "tier": "tier",
    "provider": "provider",
    "end_user": "end_user",
}
"""Parameters of the page of requests, by dimension."""


def requests_href(team_id: str, start_us: int, end_us: int, values: Mapping[Dimension, str]) -> str:
    """Return the address of a team's requests of a time, its end not included, and of these values."""
    asked = {_SEARCHED_AS[name]: value for name, value in values.items() if name in _SEARCHED_AS}
    times = dict(zip(("from", "to"), first_and_last(start_us, end_us), strict=True))
    return f"/dashboard/teams/{quote(team_id)}/requests?{urlencode({**times, **asked})}"


def asked_of(
    query: Mapping[str, str], now_us: int, calendar: Calendar = UTC_CALENDAR, *, of_organisation: bool
) -> Asked:
    """Return the question of an address; what is not valid in it is as usual, and the period says so."""
    period = period_of(query, now_us, calendar, usual_days=_USUAL_DAYS)
    start_us, end_us, step = _time(query, now_us, period)
    divided = (*(("team",) if of_organisation else ()), *DIVIDED)
    by, of, against = query.get("by", ""), query.get("of", ""), query.get("against", "")
    values = {name: query[name].strip() for name in FILTERS if query.get(name, "").strip()}
    values = {name: value for name, value in values.items() if value.isprintable() and len(value) <= _MOST_CHARS}
    if "end_user" in values:
        # A person's mail address is booked as its digest.
        values["end_user"] = booked(values["end_user"])
    return Asked(
        query={name: value for name, value in query.items() if value},
        start_us=start_us,
        end_us=end_us,
        step=step,
        period=period,
        by=cast("Dimension", by) if by in divided else cast("Dimension", divided[0]),
        of=of if of in CAUSES else "",
        against=against if against in AGAINST else AGAINST[0],
        values=values,
    )


def _time(query: Mapping[str, str], now_us: int, period: Period) -> tuple[int, int, Step]:
    hours = LASTS.get(query.get("last", ""))
    if hours is not None:
        end_us = now_us - now_us % HOUR_US + HOUR_US
        return end_us - hours * HOUR_US, end_us, "minute" if hours <= MAX_HOURS else "hour"
    hour_us = _hour_us(query.get("hour", ""))
    if hour_us is not None:
        return hour_us, hour_end_us(hour_us, period.span.calendar), "minute"
    return period.start_us, period.end_us, "hour" if period.days <= _BY_HOUR_DAYS else "day"


def _hour_us(text: str) -> int | None:
    given = _HOUR.fullmatch(text)
    if given is None:
        return None
    try:
        found = in_us(dt.datetime.fromisoformat(f"{given[1]}{given[2] or ':00'}:00+00:00"))
    except ValueError:
        return None
    return found if 0 <= found < moment_limit() else None


def hour_end_us(at_us: int, calendar: Calendar) -> int:
    """Return the end of an hour of UTC that begins here; where a day begins within it, as in India, its parts are told apart."""
    end_us = at_us - at_us % HOUR_US + HOUR_US
    midnight_us = calendar.start(calendar.day(end_us))
    return midnight_us if at_us < midnight_us < end_us else end_us


def moment_limit() -> int:
    """Return the first microsecond that pages do not know."""
    return (dt.datetime(9990, 1, 1, tzinfo=dt.UTC) - moment(0)) // dt.timedelta(microseconds=1)


def label_of(dimension: Dimension) -> str:
    """Return a dimension's heading."""
    return ON_PAGES[dimension].label if dimension in ON_PAGES else "End user"


def nobody_of(dimension: Dimension) -> str:
    """Return the name of a dimension's empty value."""
    return ON_PAGES[dimension].nobody if dimension in ON_PAGES else "No end user"
