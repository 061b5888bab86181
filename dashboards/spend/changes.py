"""What changed, as sentences that lead to their part of the spend and to its requests."""

from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlencode

import msgspec

from cost.dimensions import Dimension
from cost.reports.compared import ComparedQuery, ComparedReader, Window
from cost.reports.movers import Movers, read_movers, sentence
from cost.times import DAY_US, iso
from dashboards.spend.asked import requests_href
from dashboards.ui.formats import moment

SHOWN: Final = 5


class ChangeLine(msgspec.Struct, frozen=True, kw_only=True):
    """One mover: its sentence, and the addresses of its spend and its requests."""

    amount: str
    words: str
    rises: bool
    href: str
    requests_href: str
    """Empty where the page has no single team."""


async def read_changes(reader: ComparedReader, query: ComparedQuery) -> Movers | None:
    """Return what changed most; None where the time is compared with nothing."""
    return await read_movers(reader, query) if query.window.shift_us else None


def change_lines(
    movers: Movers | None,
    query: ComparedQuery,
    name: Callable[[Dimension, str], str],
    now_us: int,
    href: Callable[[Mapping[Dimension, str]], str],
) -> list[ChangeLine]:
    """Return the lines of a page; `href` gives the address of a part by the values that narrow it."""
    lines = []
    for mover in () if movers is None else movers.movers:
        values = {key: value for key, value in zip(query.group_by, mover.row.group, strict=True) if value}
        amount, _, words = sentence(mover, query.group_by, name, now_us).partition(": ")
        lines.append(
            ChangeLine(
                amount=amount,
                words=words,
                rises=mover.row.change_nanousd > 0,
                href=href(values),
                requests_href=_requests(query, values),
            )
        )
    return lines


def _requests(query: ComparedQuery, values: Mapping[Dimension, str]) -> str:
    team_id = query.scope.team_id or values.get("team", "")
    return requests_href(team_id, query.window.start_us, query.window.end_us, values) if team_id else ""


def days_href(path: str, start_us: int, end_us: int) -> Callable[[Mapping[Dimension, str]], str]:
    """Return the addresses of a team's spend in these days, narrowed further."""
    days = {"from": iso(start_us)[:10], "to": iso(end_us - 1)[:10]}
    return lambda values: f"{path}?{urlencode([*days.items(), *values.items()])}"


def told_window(window: Window) -> str:
    """Return both times in words."""
    if not window.shift_us:
        return ""
    whole = not (window.start_us % DAY_US or window.end_us % DAY_US)

    def shown(at_us: int) -> str:
        return iso(at_us)[:10] if whole else moment(at_us)[:16]

    def span(start_us: int, end_us: int) -> str:
        last = shown(end_us - 1 if whole else end_us)
        return shown(start_us) if whole and last == shown(start_us) else f"{shown(start_us)} to {last}"

    return f"{span(window.start_us, window.end_us)}, compared with {span(window.previous_start_us, window.previous_end_us)} (UTC)"


def full_words(window: Window, end_us: int) -> str:
    """Return what to add to the figures of a comparison that ends before `end_us`, as the last hour or day is not over."""
    if window.end_us >= end_us:
        return ""
    return (
        " in full days" if not window.end_us % DAY_US and window.end_us - window.start_us > DAY_US else " in full hours"
    )


def named(names: Mapping[Dimension, Mapping[str, str]]) -> Callable[[Dimension, str], str]:
    """Return the naming of values by the names that are known."""
    return lambda dimension, value: names.get(dimension, {}).get(value, value)
