"""Five people do their jobs with the keyboard alone: Tab, Enter, Space and arrows, from the page that they see first. Keys are counted."""

import re
from collections.abc import AsyncIterator
from typing import Final

import pytest
from playwright.async_api import Browser, Locator, expect

from tests.browser.site import Site, Visitor, until, visiting

pytestmark = pytest.mark.timeout(300)

_MOST: Final = 120
"""Keys, beside what is typed, that the longest job may take from its first page on."""
_SEEN: Final = """
each => {
  const box = each.getBoundingClientRect(), style = getComputedStyle(each);
  const isMarked = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0 || style.boxShadow !== "none";
  return box.width > 0 && box.height > 0 && isMarked;
}
"""
"""Whether somebody sees where the focus is."""
_HAS_FOCUS: Final = "document.activeElement !== document.body"
"""What replaces a part of a page gives the focus back just after it."""


class Typist:
    """Somebody without a mouse, who counts keys."""

    def __init__(self, visitor: Visitor) -> None:
        self.visitor = visitor
        self.keys = 0

    async def press(self, key: str) -> None:
        self.keys += 1
        await self.visitor.page.keyboard.press(key)

    async def skip(self) -> None:
        """The first link of a page leads past its menu."""
        await self.press("Tab")
        await self.press("Enter")

    async def reach(self, wanted: Locator) -> None:
        """From one thing to the next until this has the focus, which is there to be seen all the way."""
        page = self.visitor.page
        await expect(wanted).to_be_visible()
        for _ in range(_MOST):
            await self.press("Tab")
            if await wanted.evaluate("each => each === document.activeElement"):
                assert await wanted.evaluate(_SEEN), f"nobody sees that {wanted} has the focus"
                return
        where = await page.evaluate("document.activeElement.outerHTML.slice(0, 200)")
        raise AssertionError(f"{wanted} is not reached by the keyboard; the focus is on {where}")

    async def go(self, wanted: Locator, key: str = "Enter") -> None:
        """Reaches a link or button that opens another page, and opens it."""
        await self.reach(wanted)
        async with self.visitor.page.expect_navigation(wait_until="load"):
            await self.press(key)
        await self.visitor.settled()

    async def type(self, wanted: Locator, text: str) -> None:
        """Reaches a field and types into it."""
        await self.reach(wanted)
        await self.press("ControlOrMeta+a")
        await self.visitor.page.keyboard.type(text)

    async def choose(self, wanted: Locator, value: str) -> None:
        """Reaches a list of choices, and takes one by the arrows."""
        await self.reach(wanted)
        for _ in range(_MOST):
            if await wanted.input_value() == value:
                return
            await self.press("ArrowDown")
        raise AssertionError(f"{value} is no choice of {wanted}")


async def at(browser: Browser, site: Site, who: str) -> AsyncIterator[Typist]:
    async with visiting(browser, site, f"{who}@northwind.example") as visitor:
        yield Typist(visitor)


async def test_an_administrator_raises_a_budget(browser: Browser, site: Site) -> None:
    """From all budgets to one that is used most, and a raise of it until a day."""
    async for person in at(browser, site, "ada"):
        page = person.visitor.page
        await person.visitor.open("/dashboard/budgets")
        await person.skip()
        await person.go(page.locator("main td a[href*='/budgets/']").first)
        await person.skip()
        limit = page.get_by_label(re.compile("^Dollars")).nth(1)
        await person.type(limit, "90000")
        await person.reach(page.get_by_label("Last day"))
        await page.keyboard.type("12312030")
        await person.go(page.get_by_role("button", name="Save the raise"))
        await expect(page.locator("main")).to_contain_text("$90,000")
        await person.visitor.is_fine()
        assert person.keys <= _MOST, person.keys


async def test_a_finance_lead_looks_why_the_month_cost_more(browser: Browser, site: Site) -> None:
    """From the savings to the month's spend, by team, and into one team."""
    async for person in at(browser, site, "finn"):
        page = person.visitor.page
        await person.visitor.open("/dashboard/finance")
        await person.go(page.get_by_role("navigation").get_by_role("link", name="Spend", exact=True).first)
        await person.skip()
        await person.go(page.locator("#parts tbody a").first)
        assert re.search(r"[?&](team|key|model)=[^&]", page.url), page.url
        await person.visitor.is_fine()
        assert person.keys <= _MOST, person.keys


async def test_an_operator_finds_what_is_wrong_and_whom_it_hurts(browser: Browser, site: Site) -> None:
    """From the overview to the incidents and one of them; and the page of its model."""
    async for person in at(browser, site, "ola"):
        page = person.visitor.page
        await person.visitor.open("/dashboard/operations")
        await person.go(page.get_by_role("navigation").get_by_role("link", name="Incidents", exact=True).first)
        await person.visitor.is_fine()
        await person.go(page.get_by_role("navigation").get_by_role("link", name="Models", exact=True).last)
        await person.skip()
        await person.go(page.locator("main td a[href*='/targets/'], main th a[href*='/targets/']").first)
        await person.visitor.is_fine()
        assert person.keys <= 2 * _MOST, person.keys


async def test_a_developer_compares_two_models(browser: Browser, site: Site) -> None:
    """Prompt, decision, two answers: what comes in parts leaves the focus where it was."""
    async for person in at(browser, site, "tess"):
        page = person.visitor.page
        await person.visitor.open("/dashboard/teams/support/playground")
        await person.skip()
        await person.type(page.get_by_label("Prompt", exact=True), "Where is my parcel?")
        await person.reach(page.get_by_role("button", name="Show the decision"))
        await person.press("Enter")
        await expect(page.locator("#decisions tbody tr").first).to_be_visible()
        await until(page, _HAS_FOCUS)
        await person.choose(page.get_by_label("Ask", exact=True), "llama-3-70b")
        await person.choose(page.get_by_label("Compare with"), "gpt-4o")
        await person.reach(page.get_by_role("button", name="Call and compare"))
        await person.press("Enter")
        await expect(page.locator("#answers .card")).to_have_count(2)
        await until(page, _HAS_FOCUS)
        await person.reach(page.get_by_role("link", name="The request and its decision").first)
        assert person.keys <= _MOST, person.keys


async def test_a_team_admin_finds_a_complaints_request(browser: Browser, site: Site) -> None:
    """From the team's page to the requests, the dearest of those that failed or not, and what decided."""
    async for person in at(browser, site, "tess"):
        page = person.visitor.page
        await person.visitor.open("/dashboard/teams/support")
        await person.go(page.get_by_role("link", name="Requests", exact=True).first)
        await person.skip()
        await person.type(page.get_by_label("Search", exact=True), "cost>0.00001")
        async with page.expect_navigation(wait_until="load"):
            await person.press("Enter")
        await person.visitor.settled()
        await expect(page).to_have_url(re.compile("q=cost"))
        await person.reach(page.locator("summary", has_text="Filters"))
        await person.press("Enter")
        await person.choose(page.get_by_label("Outcome"), "answered")
        await person.go(page.get_by_role("button", name="Filter"))
        await person.go(page.locator("a.id").first)
        await expect(page.locator("main")).to_contain_text("Time line")
        await person.visitor.is_fine()
        assert person.keys <= 2 * _MOST, person.keys
