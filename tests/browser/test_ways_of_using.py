"""The same pages without a mouse, in the dark, without motion, in another time zone; and how heavy they are."""

import re

import pytest
from playwright.async_api import Browser, expect

from tests.browser.site import PASSWORD, Site, visiting

_TESS = "tess@northwind.example"
_ADA = "ada@northwind.example"
_MOST_BYTES = 200_000
_FOCUSED = """
() => {
  const at = document.activeElement;
  const style = getComputedStyle(at);
  const outline = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
  const box = at.getBoundingClientRect();
  return {
    name: `${at.tagName} ${at.id} ${at.getAttribute("href") ?? at.getAttribute("name") ?? ""} ${at.innerText?.slice(0, 40) ?? ""}`,
    visible: outline || style.boxShadow !== "none",
    body: at === document.body,
    size: box.width * box.height,
  };
}
"""


@pytest.mark.long
async def test_everything_can_be_reached_with_the_keyboard(browser: Browser, site: Site) -> None:
    """From signing in on: the first stop skips to the content, every stop can be seen, and none is a trap."""
    async with visiting(browser, site) as visitor:
        page = visitor.page
        await visitor.open("/dashboard/sign-in?next=/dashboard/teams/support")
        await page.get_by_label("E-mail").focus()
        await page.keyboard.type(_TESS)
        await page.keyboard.press("Tab")
        while await page.evaluate("document.activeElement.type") != "password":
            await page.keyboard.press("Tab")
        await page.keyboard.type(PASSWORD)
        async with page.expect_navigation(wait_until="load"):
            await page.keyboard.press("Enter")
        await page.wait_for_url(re.compile("/dashboard/teams/support$"))
        await visitor.settled()
        await page.keyboard.press("Tab")
        first = await page.evaluate(_FOCUSED)
        assert "Skip" in first["name"]
        await page.keyboard.press("Enter")
        stops = []
        for _ in range(300):
            await page.keyboard.press("Tab")
            stop = await page.evaluate(_FOCUSED)
            if stop["body"]:
                break
            stops.append(stop["name"])
            assert stop["visible"], f"nobody sees that the focus is on {stop['name']}"
        assert len(set(stops)) > 10, stops


async def test_the_slider_follows_the_arrow_keys(browser: Browser, site: Site) -> None:
    """Each stop tells its figures, to ears too."""
    async with visiting(browser, site, _TESS) as visitor:
        page = visitor.page
        await visitor.open("/dashboard/teams/support/policy")
        slider = page.locator("input[type=range]")
        await slider.focus()
        before = await slider.input_value()
        for _ in range(3):
            await page.keyboard.press("ArrowLeft")
        assert await slider.input_value() != before
        label = await slider.evaluate("each => each.labels.length || each.getAttribute('aria-label')")
        assert label


async def test_a_chart_has_a_table_that_tells_the_same(browser: Browser, site: Site) -> None:
    """It opens with the keyboard."""
    async with visiting(browser, site, _TESS) as visitor:
        page = visitor.page
        await visitor.open("/dashboard/teams/support")
        await visitor.settled()
        twin = page.locator("figure details.twin").first
        await twin.locator("summary").focus()
        await page.keyboard.press("Enter")
        await expect(twin).to_have_attribute("open", "")
        assert await twin.locator("tbody tr").count() > 0
        await visitor.is_fine()


async def test_times_are_the_viewers_own_with_utc_beside(browser: Browser, site: Site) -> None:
    """A browser in Oslo shows Oslo's time, and UTC on hover."""
    async with visiting(browser, site, _ADA) as visitor:
        await visitor.open("/dashboard/audit")
        times = visitor.page.locator("main table time[datetime]")
        assert await times.count() > 5
        stamp = await times.first.get_attribute("datetime")
        title = await times.first.get_attribute("title")
        assert stamp is not None
        assert title is not None
        assert "UTC" in title
        # Oslo is an hour ahead in winter.
        hour = (int(stamp[11:13]) + 1) % 24
        assert f"{hour:02}:{stamp[14:16]}" in await times.first.inner_text()


@pytest.mark.long
async def test_light_dark_and_calm(browser: Browser, site: Site) -> None:
    """The page is as light as the viewer's system, and nothing moves for who wants nothing to move."""
    brightness = "() => getComputedStyle(document.body).backgroundColor.match(/[\\d.]+/g).slice(0, 3).map(Number).reduce((a, b) => a + b)"
    found = {}
    for dark in (False, True):
        async with visiting(browser, site, _TESS, dark=dark, calm=True) as visitor:
            await visitor.open("/dashboard/teams/support")
            found[dark] = await visitor.page.evaluate(brightness)
            moving = await visitor.page.evaluate("document.getAnimations().length")
            assert moving == 0
    assert found[False] > 600
    assert found[True] < 200


async def test_the_first_page_is_light(browser: Browser, site: Site) -> None:
    """Script and style together are under 200 KB as they are unpacked, and the next page gets them from the cache."""
    loaded = """
    () => performance.getEntriesByType("resource").filter((each) => /[.](js|css)$/.test(each.name))
      .map((each) => [each.name, each.decodedBodySize, each.transferSize])
    """
    async with visiting(browser, site, _TESS) as visitor:
        await visitor.open("/dashboard/teams/support")
        await visitor.settled()
        first = await visitor.page.evaluate(loaded)
        assert len(first) > 1
        assert sum(size for _, size, _ in first) < _MOST_BYTES, first
        await visitor.open("/dashboard/teams/support/requests")
        await visitor.settled()
        again = await visitor.page.evaluate(loaded)
        assert again
        assert all(transferred == 0 for _, _, transferred in again), again
