"""The two questions that come first: why spend jumped on a day, and which request a complaint is of. Each by two clicks at most."""

import re
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, expect

from cost.ledger.store import LedgerStore
from cost.times import DAY_US, HOUR_US, iso, moment, wall_us
from gateway.database import make_engine
from tests.browser.serving import copied, serving
from tests.browser.site import Site, Visitor, visiting
from tests.cost.entries import settle

pytestmark = pytest.mark.timeout(300)

_TESS = "tess@northwind.example"
_TEAM = "/dashboard/teams/support"
_NOW_US = wall_us()
_TODAY = _NOW_US - _NOW_US % DAY_US
_JUMP = _TODAY - 2 * DAY_US + 14 * HOUR_US
_COMPLAINT = _JUMP + 187_000_000
_MOST_TABS = 150


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def jumped(history: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    """The company's history, with three weeks of a steady job that asks three times as much since the day before yesterday at 14:00,
    and one request that failed for one end user.
    """
    folder = copied(history, tmp_path_factory.mktemp("jumped"))
    with sqlite3.connect(folder / "sample.sqlite") as database:
        organisation_id, key_id = database.execute(
            "SELECT team.organisation_id, key_id FROM api_key JOIN team USING (team_id) WHERE team_id = 'support' LIMIT 1"
        ).fetchone()
        database.execute("UPDATE api_key SET name = 'search-prod' WHERE key_id = ?", [key_id])
    database.close()
    usual = {
        "organisation_id": organisation_id, "team_id": "support", "key_id": key_id, "target_id": "gpt-4o", "served": True,
        "cost_nanousd": 2_000_000_000, "tag": "nightly",
    }  # fmt: skip
    entries = []
    for hour in range(-21 * 24, (_NOW_US - _TODAY) // HOUR_US):
        at_us = _TODAY + hour * HOUR_US + 5
        entries += [settle(f"q{hour}/{each}", at_us=at_us, **usual) for each in range(3 if at_us >= _JUMP else 1)]
    failed = {"status": 502, "served": False, "cost_nanousd": 0, "end_user": "customer-4711"}
    entries.append(settle("req_complaint", at_us=_COMPLAINT, **{**usual, **failed}))
    engine = make_engine(f"sqlite:///{folder}/sample.sqlite")
    await LedgerStore(engine).insert(entries)
    await engine.dispose()
    with serving(folder) as found:
        yield found


async def _tab_to(visitor: Visitor, wanted: Locator) -> None:
    """Goes from one thing to the next by the keyboard until this has the focus."""
    for _ in range(_MOST_TABS):
        await visitor.page.keyboard.press("Tab")
        if await wanted.evaluate("each => each === document.activeElement"):
            return
    raise AssertionError(f"{wanted} is not reached by the keyboard")


async def test_why_spend_jumped(browser: Browser, jumped: Site) -> None:
    """The team's page says it; one click has its spend, another its requests. So has the day's bar."""
    async with visiting(browser, jumped, _TESS) as visitor:
        page = visitor.page
        await visitor.open(_TEAM)
        sentence = page.locator("#changes li").first
        await expect(sentence).to_contain_text("search-prod")
        await expect(sentence).to_contain_text(f"since {moment(_JUMP):%A} 14:00")
        await expect(sentence).to_contain_text("the requests")
        await visitor.press(sentence.get_by_role("link").first)
        await expect(page.locator(".chips")).to_contain_text("search-prod")
        await visitor.is_fine()
        await visitor.press(page.locator("#changes li").first.get_by_role("link", name=re.compile("^Requests")))
        await expect(page.locator("main table tbody tr").first).to_contain_text("gpt-4o")
        await visitor.open(_TEAM)
        await visitor.settled()
        bar = page.locator("[data-chart]").first
        await bar.scroll_into_view_if_needed()
        day_s = (_JUMP - _JUMP % DAY_US) // 1_000_000
        left = await bar.evaluate(f"box => box.plot.valToPos({day_s}, 'x')")
        async with page.expect_navigation(wait_until="load"):
            await bar.locator(".u-over").click(position={"x": left, "y": 60})
        assert f"from={iso(_JUMP)[:10]}&to={iso(_JUMP)[:10]}" in page.url
        await expect(page.locator("#changes li").first).to_contain_text("since")
        await visitor.is_fine()


async def test_why_spend_jumped_by_the_keyboard(browser: Browser, jumped: Site) -> None:
    """The same by Tab and Enter: the sentence, then its requests."""
    async with visiting(browser, jumped, _TESS) as visitor:
        page = visitor.page
        await visitor.open(_TEAM)
        await _tab_to(visitor, page.locator("#changes li a").first)
        async with page.expect_navigation(wait_until="load"):
            await page.keyboard.press("Enter")
        await _tab_to(visitor, page.locator("#changes li").first.get_by_role("link", name=re.compile("^Requests")))
        async with page.expect_navigation(wait_until="load"):
            await page.keyboard.press("Enter")
        await expect(page.locator("main table tbody tr").first).to_contain_text("gpt-4o")


async def test_the_request_of_a_complaint(browser: Browser, jumped: Site) -> None:
    """By the end user's name, though hundreds of requests are newer; its time is there to the second, in the viewer's zone."""
    async with visiting(browser, jumped, _TESS) as visitor:
        page = visitor.page
        await visitor.open(_TEAM)
        await visitor.press(page.get_by_role("link", name="Requests", exact=True).first)
        await page.get_by_label("Search", exact=True).fill("customer-4711")
        async with page.expect_navigation(wait_until="load"):
            await page.keyboard.press("Enter")
        row = page.locator("main table tbody tr")
        await expect(row).to_have_count(1)
        await expect(row).to_contain_text("customer-4711")
        await expect(row).to_contain_text(":07")
        await visitor.is_fine()
        await visitor.press(row.get_by_role("link").first)
        assert page.url.endswith("/requests/req_complaint")


async def test_the_request_of_a_complaint_by_the_keyboard(browser: Browser, jumped: Site) -> None:
    """By its second, and the search is kept under a name."""
    async with visiting(browser, jumped, _TESS) as visitor:
        page = visitor.page
        await visitor.open(_TEAM)
        await _tab_to(visitor, page.get_by_role("link", name="Requests", exact=True).first)
        async with page.expect_navigation(wait_until="load"):
            await page.keyboard.press("Enter")
        await _tab_to(visitor, page.get_by_label("Search", exact=True))
        await page.keyboard.type(f"at:{iso(_COMPLAINT).removesuffix('Z')} status:502")
        async with page.expect_navigation(wait_until="load"):
            await page.keyboard.press("Enter")
        await expect(page.locator("main table tbody tr")).to_have_count(1)
        await _tab_to(visitor, page.locator("summary", has_text="Keep this search"))
        await page.keyboard.press("Enter")
        await _tab_to(visitor, page.get_by_label("Name"))
        await page.keyboard.type("The complaint")
        async with page.expect_navigation(wait_until="load"):
            await page.keyboard.press("Enter")
        await expect(page.get_by_role("navigation", name="Kept searches")).to_contain_text("The complaint")
        await expect(page.locator("main table tbody tr")).to_have_count(1)
        await visitor.is_fine()


async def test_end_users_lead_to_their_requests(browser: Browser, jumped: Site) -> None:
    """From the menu: the page, then the requests of one."""
    async with visiting(browser, jumped, _TESS) as visitor:
        page = visitor.page
        await visitor.open(_TEAM)
        await visitor.press(page.get_by_role("link", name="End users", exact=True).first)
        row = page.locator("main table tbody tr", has_text="customer-4711")
        await visitor.is_fine()
        await visitor.press(row.get_by_role("link", name=re.compile("^Requests")))
        await expect(page.locator("main table tbody tr")).to_have_count(1)
