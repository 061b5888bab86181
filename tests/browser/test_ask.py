"""Asking at the page: by keyboard alone, on every width and in both colours; the figure that is pressed leads to its rows."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser

from tests.api.ask.asked_model import AskedModel, asked_model, calls, says
from tests.browser.site import WIDTHS, Site, Visitor, visiting
from tests.dashboards.pages.teams import asked, keep
from tests.running_gateway import Running, running_gateway
from tests.signed_in import cookie_of

pytestmark = pytest.mark.timeout(300)

_HOSTILE = '"><img src=x onerror=console.error(1)>'


@contextlib.asynccontextmanager
async def asking(folder: Path) -> AsyncIterator[tuple[Running, AskedModel, str]]:
    """A gateway with a little spend, its model, and an administrator's cookie."""
    async with asked_model() as mind, running_gateway(folder, [mind.entry()]) as running:
        await keep(running, [asked(f"req_{at}", tag=_HOSTILE if at else "", cost_nanousd=10**9) for at in range(12)])
        yield running, mind, await cookie_of(running, "ada@example.com", role="admin")


async def _asked_by_keyboard(visitor: Visitor) -> None:
    page = visitor.page
    await visitor.open("/dashboard/ask")
    await page.get_by_label("Question").focus()
    await page.keyboard.type("What was spent today, by tag?")
    async with page.expect_navigation(wait_until="load"):
        await page.keyboard.press("Enter")


async def test_a_question_is_asked_by_keyboard_and_its_figure_leads_to_rows(browser: Browser, tmp_path: Path) -> None:
    """From switching it on to the request behind a figure; nothing on the way runs, leads away or is unusable."""
    async with asking(tmp_path) as (running, mind, cookie):
        mind.plays(
            calls(("usage", {"by": ["tag"], "period": "today"}), ("usage", {"team": "no such"})),
            says(f"$12.00 was spent, $11.00 of it by {_HOSTILE}, and $99. See [this](https://evil.example)."),
        )
        async with visiting(browser, Site(url=running.url, keys={}), cookie=cookie) as visitor:
            page = visitor.page
            await visitor.open("/dashboard/ask")
            assert "Ask is off" in await visitor.text()
            await visitor.is_fine()
            await visitor.press(page.get_by_role("button", name="Switch on"))
            await visitor.is_fine()
            await _asked_by_keyboard(visitor)
            text = await page.inner_text("#answer")
            assert "$99 (not looked up)" in text
            assert _HOSTILE in text
            await page.locator("summary", has_text="Usage by tag").press("Enter")
            await visitor.is_fine()
            assert await page.locator("details[open] tbody tr").count() == 3
            assert await page.locator(".doing:visible").count() == 0
            figure = page.locator("#answer a", has_text="$12.00")
            await figure.focus()
            async with page.expect_navigation(wait_until="load"):
                await page.keyboard.press("Enter")
            assert "$12.00" in await visitor.text()
            await visitor.is_fine()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_the_answer_fits_every_width(browser: Browser, tmp_path: Path, *, dark: bool) -> None:
    """Long names and many columns too."""
    async with (
        asking(tmp_path) as (running, mind, cookie),
        visiting(browser, Site(url=running.url, keys={}), cookie=cookie, dark=dark) as visitor,
    ):
        await visitor.open("/dashboard/ask")
        await visitor.press(visitor.page.get_by_role("button", name="Switch on"))
        for width in WIDTHS:
            await visitor.page.set_viewport_size({"width": width, "height": 900})
            mind.plays(
                calls(("usage", {"by": ["team", "model"], "compare": True}), ("requests", {})),
                says(f"$12.00, {'long' * 60}, and $98."),
            )
            await _asked_by_keyboard(visitor)
            for summary in await visitor.page.locator("details summary").all():
                await summary.click()
            await visitor.is_fine()
            await visitor.page.screenshot(path=tmp_path / f"ask-{width}.png", full_page=True)


async def test_an_example_is_asked_by_pressing_it(browser: Browser, tmp_path: Path) -> None:
    """With an empty field."""
    async with asking(tmp_path) as (running, mind, cookie):
        mind.plays(calls(("usage", {})), says("$12.00 was spent."))
        async with visiting(browser, Site(url=running.url, keys={}), cookie=cookie) as visitor:
            await visitor.open("/dashboard/ask")
            await visitor.press(visitor.page.get_by_role("button", name="Switch on"))
            example = visitor.page.locator(".examples button").first
            words = await example.inner_text()
            await visitor.press(example)
            assert "$12.00 was spent." in await visitor.page.inner_text("#answer")
            assert await visitor.page.get_by_label("Question").input_value() == words
        assert mind.bodies[0]["messages"][1]["content"] == words
