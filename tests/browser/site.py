"""What a person at a browser sees of a gateway, and what must never be seen there."""

import asyncio
import contextlib
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from playwright.async_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Dialog,
    Locator,
    Page,
    Request,
    Response,
    StorageState,
    expect,
)
from playwright.async_api import Error as PlaywrightError

from dashboards.web.cookie import COOKIE
from tests.written import other_ways

AXE: Final = Path("build/browser/node_modules/axe-core/axe.min.js")
PASSWORD: Final = "four scales and a bridge"
WEBHOOK_SECRET: Final = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
CHROMIUM_FLAGS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
DESKTOP: Final = {"width": 1440, "height": 900}
PHONE: Final = {"width": 390, "height": 844}
WIDTHS: Final = (1440, 1024, 390)
"""At which pages are looked at, in pixels: a desk's, a small notebook's or a tablet's, and a phone's."""
_PATIENCE_MS: Final = 30_000
_LOOK_S: Final = 0.02
expect.set_options(timeout=_PATIENCE_MS)
_VIOLATIONS: Final = """
document.addEventListener("securitypolicyviolation", (event) => {
  console.error(`content policy: ${event.violatedDirective} ${event.blockedURI} ${event.sample}`);
});
"""
_AXE_RUN: Final = """
axe.run(document, {resultTypes: ["violations"], runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]})
  .then((found) => JSON.stringify(found.violations.map((each) => ({
    rule: each.id, impact: each.impact, help: each.help,
    nodes: each.nodes.slice(0, 5).map((node) => node.html.slice(0, 200) + " — " + (node.failureSummary || "").slice(0, 300)),
  }))))
"""
_SETTLED: Final = """
() => !document.querySelector(".htmx-request, .htmx-swapping, .htmx-settling")
  && document.getAnimations().every((each) => each.playState !== "running")
"""
_TILES: Final = """
(most) => [...document.querySelectorAll(".figures")].filter((each) => each.offsetParent).flatMap((figures) => {
  const tiles = [...figures.children], rows = new Map();
  for (const tile of tiles) rows.set(tile.offsetTop, (rows.get(tile.offsetTop) || 0) + 1);
  const counts = [...rows.values()], words = (tile) => tile.innerText.split(/\\s+/).filter((word) => /[\\p{L}\\p{N}]/u.test(word)).length;
  return [
    ...(counts.includes(1) && Math.max(...counts) > 1 ? [`a tile stands alone in its row: ${counts.join(" + ")}`] : []),
    ...tiles.filter((tile) => words(tile) > most).map((tile) => `a tile says ${words(tile)} words: ${tile.innerText.replace(/\\s+/g, " ")}`),
  ];
})
"""
MOST_TILE_WORDS: Final = 12
_SERIOUS: Final = frozenset({"serious", "critical"})
_SESSIONS: Final[dict[tuple[str, str], StorageState]] = {}
"""Cookies of those who signed in to a site, by its address and their e-mail."""


class Site(msgspec.Struct, frozen=True):
    """A gateway that is running."""

    url: str
    keys: Mapping[str, str]
    """An API key of each team."""


class Problem(msgspec.Struct, frozen=True):
    """Something that axe-core found."""

    rule: str
    impact: str | None
    help: str
    nodes: list[str]


def chromium() -> str | None:
    """Where Debian's Chromium is."""
    return shutil.which("chromium")


async def until(page: Page, condition: str) -> None:
    """Wait until an expression holds on a page. Playwright's own wait looks again from within the page, where the content policy forbids
    it to evaluate anything: it fails unless the first look finds what it waits for.
    """
    async with asyncio.timeout(_PATIENCE_MS / 1000):
        while True:
            try:
                if await page.evaluate(condition):
                    return
            except PlaywrightError as error:
                # Another page came meanwhile, which is looked at next.
                if "context was destroyed" not in str(error):
                    raise
            await asyncio.sleep(_LOOK_S)


class Visitor:
    """Somebody at one tab. Remembers whatever went wrong on any page that was opened."""

    def __init__(self, site: Site, context: BrowserContext, page: Page) -> None:
        self.site = site
        self.context = context
        self.page = page
        self.wrong: list[str] = []
        self.bytes_loaded = 0
        page.set_default_timeout(_PATIENCE_MS)
        self.asked: list[str] = []
        """What the page wanted to be sure of; everything is answered with yes."""
        page.on("dialog", self._asked)
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.wrong.append(f"{page.url}: script error: {error}"))
        page.on("request", self._requested)
        page.on("response", self._answered)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.wrong.append(f"{self.page.url}: console {message.type}: {message.text[:400]}")

    async def _asked(self, dialog: Dialog) -> None:
        self.asked.append(dialog.message)
        await dialog.accept()

    def _requested(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in {"data", "blob", "about"} and f"{parts.scheme}://{parts.netloc}" != self.site.url:
            self.wrong.append(f"{self.page.url}: asked another machine for {request.url[:200]}")

    def _answered(self, response: Response) -> None:
        if response.status >= 500 or (response.status >= 400 and not response.request.is_navigation_request()):
            self.wrong.append(f"{self.page.url}: {response.url} answered {response.status}")

    async def open(self, path: str, *, status: int = 200) -> Response:
        """Opens a page of the dashboards."""
        answer = await self.page.goto(f"{self.site.url}{path}", wait_until="load")
        assert answer is not None
        assert answer.status == status, f"{path} answered {answer.status}: {(await self.page.inner_text('body'))[:400]}"
        if status >= 400:
            # Browsers tell of a refused page in the console, as they should.
            self.wrong = [each for each in self.wrong if f"status of {status}" not in each]
        return answer

    async def press(self, button: Locator) -> None:
        """Presses what leads to another page, and waits for that."""
        async with self.page.expect_navigation(wait_until="load"):
            await button.click()

    async def sign_in(self, email: str, password: str = PASSWORD, *, then: str = "/dashboard") -> None:
        """As people do it: the form, and where it leads."""
        await self.open(f"/dashboard/sign-in?next={then}" if then != "/dashboard" else "/dashboard/sign-in")
        await self.page.get_by_label("E-mail").fill(email)
        await self.page.get_by_label("Password").fill(password)
        await self.page.get_by_role("button", name="Sign in", exact=True).click()
        await self.page.wait_for_url(lambda url: "/sign-in" not in url)

    async def text(self) -> str:
        """What can be read."""
        return await self.page.inner_text("body")

    async def heading(self) -> str:
        return await self.page.inner_text("h1")

    async def problems(self) -> list[Problem]:
        """What axe-core finds serious or critical on the page as it is now."""
        session = await self.context.new_cdp_session(self.page)
        try:
            await _evaluate(session, AXE.read_text())
            found = await _evaluate(session, _AXE_RUN)
        finally:
            await session.detach()
        problems = msgspec.convert(json.loads(found), list[Problem])
        return [each for each in problems if each.impact in _SERIOUS]

    async def faults(self) -> list[str]:
        """What went wrong so far, what axe-core finds, and whether the page is wider than the window, or its tiles
        are too wordy or alone in a row.
        """
        await self.settled()
        found = [
            f"{each.rule} ({each.impact}): {' '.join(node.split())}"
            for each in await self.problems()
            for node in each.nodes
        ]
        wide = await self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        if wide > 0:
            found.append(f"{wide} pixels wider than the window")
        found += await self.page.evaluate(_TILES, MOST_TILE_WORDS)
        found += [f"a figure is written otherwise: {each}" for each in other_ways(await self.text())]
        found += self.wrong
        self.wrong = []
        return [f"{urlsplit(self.page.url).path}: {each}" for each in found]

    async def settled(self) -> None:
        """Parts that are loaded after the page are there, and nothing moves any more."""
        await until(self.page, _SETTLED)

    async def looked_at(self, path: str, look: "Callable[[Visitor], Awaitable[list[str]]]") -> list[str]:
        """What `look` finds on a page that is opened for it."""
        try:
            answer = await self.page.goto(f"{self.site.url}{path}", wait_until="load")
        except PlaywrightError as error:
            # A link to a file is no page.
            if "Download is starting" in str(error):
                return []
            raise
        assert answer is not None
        told = [] if answer.status == 200 else [f"{path} answered {answer.status}: {(await self.text())[:300]}"]
        return told + await look(self)

    async def is_fine(self) -> None:
        """Nothing went wrong so far, and everybody can use the page: only tables and code scroll sideways, within themselves."""
        found = await self.faults()
        assert not found, "\n".join(found)


async def _evaluate(session: Any, expression: str) -> Any:
    """Runs in the page as its own tools do, whatever the content policy says."""
    told = await session.send(
        "Runtime.evaluate", {"expression": expression, "awaitPromise": True, "returnByValue": True}
    )
    assert "exceptionDetails" not in told, str(told["exceptionDetails"])[:500]
    return told["result"].get("value")


@contextlib.asynccontextmanager
async def visiting(
    browser: Browser,
    site: Site,
    email: str | None = None,
    *,
    phone: bool = False,
    dark: bool = False,
    calm: bool = False,
    cookie: str | None = None,
) -> AsyncIterator[Visitor]:
    """A tab of its own, signed in when an e-mail or a session's cookie is given. On the way out nothing may have gone wrong in it.

    Whoever signed in to this site before has the same session in the next tab.
    """
    known = _SESSIONS.get((site.url, email or ""))
    context = await browser.new_context(
        storage_state=known,
        viewport=PHONE if phone else DESKTOP,  # type: ignore[arg-type]
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce" if calm else "no-preference",
        timezone_id="Europe/Oslo",
        locale="en-GB",
    )
    try:
        await context.add_init_script(_VIOLATIONS)
        if cookie is not None:
            await context.add_cookies(
                [{"name": COOKIE, "value": cookie, "url": site.url.replace("http:", "https:"), "secure": True}]
            )
        visitor = Visitor(site, context, await context.new_page())
        if email is not None and known is None:
            await visitor.sign_in(email)
            _SESSIONS[site.url, email] = await context.storage_state()
        yield visitor
        assert not visitor.wrong, "\n".join(visitor.wrong)
    finally:
        await context.close()
