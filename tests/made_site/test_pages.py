"""Readers of the documentation's site: it finds, fits and reads, and asks nobody else for anything."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer
from playwright.async_api import Browser, ViewportSize, async_playwright

from tests.browser.site import CHROMIUM_FLAGS, chromium

SITE: Final = Path(os.environ["WB_SITE"])
PAGES: Final = sorted(str(each.relative_to(SITE)) for each in SITE.rglob("*.html") if "files" not in each.parts)
# The widest of each kind; all are opened once, at a desk.
NARROW: Final = ("index.html", "configuration.html", "commands.html", "routes.html", "api.html", "benchmarks.html")
_DESK: Final = ViewportSize(width=1440, height=900)
_PHONE: Final = ViewportSize(width=390, height=844)
pytestmark = [pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def address() -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_static("/", SITE)
    async with TestServer(app) as served:
        yield str(served.make_url("/"))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=chromium(), args=list(CHROMIUM_FLAGS))
        try:
            yield started
        finally:
            await started.close()


async def test_every_page_opens_and_asks_nobody_else(browser: Browser, address: str) -> None:
    """No script fails, no file is missing, and no host but the site's own is asked."""
    page = await browser.new_page(viewport=_DESK)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(f"{page.url}: {error}"))
    page.on(
        "request",
        lambda request: wrong.append(request.url) if not request.url.startswith((address, "data:", "blob:")) else None,
    )
    page.on("response", lambda reply: wrong.append(f"{reply.status} {reply.url}") if reply.status >= 400 else None)
    for name in PAGES:
        await page.goto(address + name, wait_until="load")
        assert await page.locator("h1").count() == 1, name
    assert not wrong


@pytest.mark.parametrize("name", NARROW)
async def test_a_page_fits_a_phone(browser: Browser, address: str, name: str) -> None:
    """Nothing makes the page wider, and a key of the configuration is at most three lines."""
    page = await browser.new_page(viewport=_PHONE)
    await page.goto(address + name, wait_until="load")
    assert await page.evaluate("document.documentElement.scrollWidth") <= _PHONE["width"]
    tall = await page.evaluate(
        """[...document.querySelectorAll("td:first-child code")].filter((each) => each.offsetHeight > 3.5 * parseFloat(getComputedStyle(each).lineHeight))
           .map((each) => each.textContent)"""
    )
    assert not tall


async def test_the_search_reads_its_index_from_here(browser: Browser, address: str) -> None:
    """Its results are in a closed shadow, where nobody can look."""
    page = await browser.new_page(viewport=_DESK)
    async with page.expect_response(lambda reply: reply.url.endswith("/search.json")) as told:
        await page.goto(f"{address}index.html", wait_until="load")
        await page.get_by_role("button", name="Search").click()
        await page.keyboard.type("providers.breaker")
    reply = await told.value
    assert reply.ok
    assert "providers.breaker" in await reply.text()
