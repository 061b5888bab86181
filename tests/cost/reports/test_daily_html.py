"""The HTML of a daily report: whole, self-contained, and safe whatever names are made of."""

from html.parser import HTMLParser

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.ledger.store import LedgerStore
from cost.reports.daily import DailyReader, DailyReport
from cost.reports.daily_html import Html, daily_html
from cost.reports.scope import ReadScope
from tests.cost.reports.days import DAY, HOSTILE, books
from tests.cost.reports.test_daily import standing

_VOID = {"meta", "rect", "line", "link", "img", "br"}


class _Reader(HTMLParser):
    """Notes what a browser would see, and that every element is closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.attributes: set[str] = set()
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(page: str) -> _Reader:
    reader = _Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


@pytest.fixture
async def report(engine: AsyncEngine) -> DailyReport:
    await LedgerStore(engine).insert(books())
    scope = ReadScope(organisation_id="default", team_id="team_a")
    return await DailyReader(engine).read(scope, DAY, f"Team {HOSTILE}", [standing()])


async def test_the_page_is_whole_and_loads_nothing(report: DailyReport) -> None:
    """Well formed, no script, no link, no picture from elsewhere, and a bar for each of 14 days."""
    page = daily_html(report, "2026-11-21 06:00 UTC")
    seen = read(page)
    assert not seen.seen & {"script", "link", "img", "iframe", "object", "form", "a"}
    assert not {name for name in seen.attributes if name.startswith("on") or name in {"src", "href"}}
    assert "http" not in page.replace("http-equiv", "")
    assert page.count("<rect") == 14
    assert "$" + "{" not in page


async def test_hostile_names_are_text(report: DailyReport) -> None:
    """Names of teams, models and tags stand on the page as they are, and do nothing."""
    page = daily_html(report, "<i>now</i>")
    seen = read(page)
    told = " ".join(seen.text)
    assert HOSTILE in told
    assert "<b>x</b>" in told
    assert "Made <i>now</i>" in told
    assert "<script" not in page
    assert "onerror=alert(2)>" not in page


async def test_the_page_tells_what_to_know(report: DailyReport) -> None:
    """What is unpriced, estimated, without a baseline or nearly spent is said before the tables."""
    told = " ".join(read(daily_html(report, "now")).text)
    assert "which are not in the cost, so that the saving may be overstated: 1." in told
    assert "Attempts booked at an estimate: 1 (25.0 %)." in told
    assert "Only 50.0 % of the served requests have a baseline" in told
    assert "The budget of team team_a (month) is at its warning." in told
    assert "Friday, 20 November 2026 (UTC)" in told
    assert "+50.1 % to the day before" in told
    # What has no price at all is never a zero.
    assert "1 unpriced" in told
    assert "$0.00 + 1 unpriced" not in told
    assert "+950.4 % to the 7-day mean" in told


async def test_an_empty_day_has_a_page_too(engine: AsyncEngine) -> None:
    """Nothing to divide by and nothing to draw is no error."""
    scope = ReadScope(organisation_id="default", team_id="team_a")
    page = daily_html(await DailyReader(engine).read(scope, DAY, "Team A"), "now")
    assert "nothing has a baseline" in " ".join(read(page).text)


def test_html_is_what_is_marked_as_such() -> None:
    """Any other text is escaped."""
    assert isinstance(Html("<b>"), str)
