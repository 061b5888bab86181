"""What changed, as sentences that lead to their part of the spend and to its requests."""

from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlencode

import msgspec

from cost.calendar import Days
from cost.dimensions import Dimension
from cost.reports.compared import ComparedQuery, ComparedReader
from cost.reports.movers import Movers, read_movers, sentence
from dashboards.spend.asked import requests_href

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
    return await read_movers(reader, query) if query.window.is_compared else None


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
        amount, _, words = sentence(mover, query.group_by, name, now_us, query.window.calendar).partition(": ")
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


def days_href(path: str, span: Days) -> Callable[[Mapping[Dimension, str]], str]:
    """Return the addresses of a team's spend in these days, narrowed further."""
    days = {"from": span.first.isoformat(), "to": span.last.isoformat()}
    return lambda values: f"{path}?{urlencode([*days.items(), *values.items()])}"


def named(names: Mapping[Dimension, Mapping[str, str]]) -> Callable[[Dimension, str], str]:
    """Return the naming of values by the names that are known."""
    return lambda dimension, value: names.get(dimension, {}).get(value, value)
