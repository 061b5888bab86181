"""Top movers: what changed most against the time before, each as a sentence, and since when.

    +$412: key “search-prod”, gpt-4o, since Tuesday 14:00, 3.1 x the requests, 1.4 x the tokens each

Since when is a lasting step in the hours of the group's cost (`change_point`); it is told only where the step is beyond noise and by
itself makes at least half of the change. What had no cost before is new since its first hour, and what has none now is gone after its last.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from typing import Final, Literal

import msgspec

from cost.calendar import UTC_CALENDAR, Calendar
from cost.dimensions import BY_NAME, Dimension
from cost.prices import usd
from cost.reports.change_point import find_step
from cost.reports.compared import Compared, ComparedQuery, ComparedReader, ComparedRow, Span, Window
from cost.reports.usage import MAX_DAYS_BY_HOUR
from cost.shown import nano_money
from cost.times import DAY_US, HOUR_US

_HISTORY_US: Final = 14 * DAY_US
"""Time before the end that hours are looked at, so that a single day is seen beside others."""
_FROM_RATIO: Final = Fraction(21, 20)
"""A factor is told from five parts of a hundred on, up or down."""
_ONE_DIGIT_BELOW: Final = 10
_HUNDREDTHS_BELOW: Final = Fraction(6, 5)
_SATURDAY: Final = 5
_WEEKDAY_US: Final = 6 * DAY_US
"""Time for which a weekday's name says which day is meant."""

How = Literal["step", "new", "gone"]


class Since(msgspec.Struct, frozen=True):
    """When a change began."""

    at_us: int
    how: How
    step_us: int
    """How exactly that is known: an hour or a day."""


class Mover(msgspec.Struct, frozen=True, kw_only=True):
    """A group whose cost changed, and since when; None where no step is beyond noise."""

    row: ComparedRow
    since: Since | None


class Movers(msgspec.Struct, frozen=True, kw_only=True):
    """What changed most, and the whole change."""

    movers: tuple[Mover, ...]
    compared: Compared

    @property
    def others(self) -> ComparedRow:
        """What is in the whole change and in none of the movers."""
        return self.compared.others


async def read_movers(reader: ComparedReader, query: ComparedQuery) -> Movers:
    """Return the groups that changed most, with since when; those that did not change are left out."""
    compared = await reader.read(query)
    rows = [row for row in compared.rows if row.change_nanousd]
    span = hours_of(query.window)
    series = await reader.series(query, [row.group for row in rows], span) if rows else []
    found = tuple(
        Mover(row=row, since=since_of(row, values, span, query.window))
        for row, values in zip(rows, series, strict=True)
    )
    return Movers(movers=found, compared=compared)


def hours_of(window: Window) -> Span:
    """Return the hours that are looked at: both times, and two weeks at least; days where that is more than a month."""
    calendar = window.calendar
    start_us = max(0, min(window.previous_start_us, window.end_us - _HISTORY_US))
    step_us = HOUR_US if window.end_us - start_us <= MAX_DAYS_BY_HOUR * DAY_US else DAY_US
    if step_us == DAY_US:
        start_us = calendar.start(calendar.day(start_us))
    return Span(start_us=max(0, start_us), end_us=window.end_us, step_us=step_us, calendar=calendar)


def since_of(row: ComparedRow, values: Sequence[int], span: Span, window: Window) -> Since | None:
    """Return when a group's change began; None where that is not beyond noise."""
    first = bisect_right(span.starts, window.previous_start_us) - 1
    busy = [place for place in range(first, len(values)) if values[place]]
    if not busy:
        return None
    at = [*span.starts, span.end_us]
    if not row.before.attempts:
        # A day may begin within an hour, as in India.
        return Since(max(at[busy[0]], window.start_us), "new", span.step_us)
    if not row.now.attempts:
        last_us, gone_us = at[busy[-1]], at[busy[-1] + 1]
        return Since(window.start_us if last_us < window.start_us < gone_us else gone_us, "gone", span.step_us)
    # What was before the first call of all says nothing of how days differ.
    begin = next(place for place, value in enumerate(values) if value)
    seasons = [_season(at[place], span) for place in range(begin, len(values))]
    rises = row.now.asked_nanousd > row.before.asked_nanousd
    step = find_step(values[begin:], seasons, a_day=DAY_US // span.step_us, rises=rises)
    if step is None or step.place + begin < first or not _explains(values, step.place + begin, span, window, row):
        return None
    return Since(at[step.place + begin], "step", span.step_us)


def _season(at_us: int, span: Span) -> tuple[int, bool]:
    return at_us % DAY_US if span.step_us < DAY_US else 0, span.calendar.day(at_us).weekday() >= _SATURDAY


def _explains(values: Sequence[int], place: int, span: Span, window: Window, row: ComparedRow) -> bool:
    """Return True if the step alone makes at least half of the change: its height, times the steps that one time has more of."""
    height = Fraction(sum(values[place:]), len(values) - place) - Fraction(sum(values[:place]), place)
    at_us = span.starts[place]
    later = max(0, window.end_us - max(at_us, window.start_us)) - max(0, window.previous_end_us - at_us)
    change = row.now.asked_nanousd - row.before.asked_nanousd
    return 2 * height * Fraction(later, span.step_us) * (1 if change > 0 else -1) >= abs(change)


Naming = Callable[[Dimension, str], str]
"""The name of a dimension's value for people, such as a key's by its id."""


def sentence(
    mover: Mover, group_by: Sequence[Dimension], name: Naming, now_us: int, calendar: Calendar = UTC_CALENDAR
) -> str:
    """Return a mover as a sentence without a full stop; its times are the calendar's."""
    row, parts = mover.row, mover.row.parts
    words = [_named(dimension, value, name) for dimension, value in zip(group_by, row.group, strict=True) if value] or [
        "postings of the books" if not row.now.attempts and not row.before.attempts else "everything"
    ]
    if mover.since is not None:
        words.append(f"{_SINCE[mover.since.how]} {when(mover.since, now_us, calendar)}")
    if parts.requests is None:
        words.append(f"{row.now.attempts:,} {'request' if row.now.attempts == 1 else 'requests'}, none before")
    elif not row.now.attempts:
        words.append("no requests any more")
    price = "the price a token" if parts.tokens is not None else "the price each"
    for ratio, what in ((parts.requests, "the requests"), (parts.tokens, "the tokens each"), (parts.price, price)):
        if ratio and not 1 / _FROM_RATIO < ratio < _FROM_RATIO:
            words.append(f"{times(ratio)} {what}")
    if parts.posted_nanousd and 2 * abs(parts.posted_nanousd) > abs(row.change_nanousd):
        words.append(f"{signed(parts.posted_nanousd)} of it posted by the books")
    return f"{signed(row.change_nanousd)}: {', '.join(words)}"


def told_window(window: Window) -> str:
    """Return both times in words, in the calendar's zone."""
    if not window.is_compared:
        return ""
    calendar = window.calendar
    whole = all(calendar.start(calendar.day(each)) == each for span in window.spans for each in span)

    def shown(at_us: int) -> str:
        return f"{calendar.local(at_us):{'%Y-%m-%d' if whole else '%Y-%m-%d %H:%M'}}"

    def span(start_us: int, end_us: int) -> str:
        last = shown(end_us - 1 if whole else end_us)
        return shown(start_us) if whole and last == shown(start_us) else f"{shown(start_us)} to {last}"

    before, now = window.spans
    return f"{span(*now)}, beside {span(*before)} ({calendar.at(window.end_us - 1).time_zone})"


_SINCE: Final[Mapping[How, str]] = {"step": "since", "new": "new since", "gone": "gone since"}


def signed(nanousd: int) -> str:
    """Return a change of dollars with its sign."""
    if not nanousd:
        return "no change"
    sign = "+" if nanousd > 0 else "-"
    amount = abs(usd(nanousd))
    if amount < _CENTS_FROM:
        return f"{sign}${amount:,.4f}" if amount >= _FOUR_DIGITS_FROM else f"{sign}{nano_money(abs(nanousd))}"
    return f"{sign}${amount:,.2f}" if amount < _WHOLE_FROM else f"{sign}${int(amount):,}"


_CENTS_FROM: Final = Decimal("0.1")
_FOUR_DIGITS_FROM: Final = Decimal("0.0001")
"""Dollars from which a sentence leaves out what is less than a cent."""
_WHOLE_FROM: Final = 100
"""Dollars from which a sentence leaves out the cents."""


def times(ratio: Fraction) -> str:
    """Return a factor as people say it: 3.1 \u00d7."""
    if ratio >= _ONE_DIGIT_BELOW:
        return f"{round(ratio):,} \u00d7"
    if ratio < Fraction(1, 10):
        return f"{float(ratio):.2g} \u00d7"
    return f"{float(ratio):.1f} \u00d7" if ratio >= _HUNDREDTHS_BELOW else f"{float(ratio):.2f} \u00d7"


def when(since: Since, now_us: int, calendar: Calendar = UTC_CALENDAR) -> str:
    """Return the moment in the calendar's zone, by its weekday where that says which day is meant."""
    at: datetime = calendar.local(since.at_us)
    day = f"{at:%A}" if now_us - since.at_us < _WEEKDAY_US else f"{at.day} {at:%B}"
    return f"{day} {at:%H:%M}" if since.step_us < DAY_US else day


def _named(dimension: Dimension, value: str, name: Naming) -> str:
    told = name(dimension, value)
    return told if dimension in {"model", "provider"} else f"{BY_NAME[dimension].label.lower()} “{told}”"
