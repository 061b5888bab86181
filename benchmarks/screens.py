"""The pictures that the documents show: `python -m benchmarks.screens`.

They go to docs/screens as `<page>-<light|dark>-<desktop|phone>.png`, and no others are there. The data is the sample's, as
`make dashboard` shows it. tests/test_docs.py holds the list to what the documents link to.
"""

import argparse
import asyncio
import tempfile
from pathlib import Path
from typing import Any, Final, cast

import msgspec
from PIL import Image
from playwright.async_api import Browser, async_playwright

from tests.browser.serving import serving, write_history
from tests.browser.site import CHROMIUM_FLAGS, Site, Visitor, chromium, visiting

FOLDER: Final = Path("docs/screens")
_REQUESTS: Final = 40_000
_COLOURS: Final = 64
_MOST_PX: Final = 2_600
"""Greatest height of a picture: below it is more of the same table."""


class Screen(msgspec.Struct, frozen=True):
    """A page, who looks at it, where it is found, and in which of light, dark, desktop and phone it is pictured."""

    name: str
    email: str
    path: str
    follow: str = ""
    """A link on it to follow first: the beginning of its address."""
    variants: tuple[str, ...] = ("light-desktop",)

    @property
    def pictures(self) -> tuple[str, ...]:
        return tuple(f"{self.name}-{variant}.png" for variant in self.variants)


_ADA, _FINN, _OLA, _TESS = (f"{name}@northwind.example" for name in ("ada", "finn", "ola", "tess"))
_SUPPORT: Final = "/dashboard/teams/support"
SCREENS: Final = (
    Screen("teams", _ADA, "/dashboard/teams"),
    Screen("people", _ADA, "/dashboard/people"),
    Screen("audit", _ADA, "/dashboard/audit"),
    Screen("api", _ADA, "/dashboard/api"),
    Screen("team", _TESS, _SUPPORT, variants=("light-desktop", "light-phone")),
    Screen("team-request", _TESS, f"{_SUPPORT}/requests", follow=f"{_SUPPORT}/requests/req_"),
    Screen("team-policy", _TESS, f"{_SUPPORT}/policy"),
    Screen("team-key", _TESS, f"{_SUPPORT}/keys", follow=f"{_SUPPORT}/keys/key_"),
    Screen("team-budgets", _TESS, f"{_SUPPORT}/budgets"),
    Screen("team-caching", _TESS, f"{_SUPPORT}/caching"),
    Screen("guard", _ADA, "/dashboard/guard"),
    Screen("finance", _FINN, "/dashboard/finance"),
    Screen("finance-month", _FINN, "/dashboard/finance/month"),
    Screen("finance-showback", _FINN, "/dashboard/finance/showback"),
    Screen("finance-reconciliation", _FINN, "/dashboard/finance/reconciliation"),
    Screen("operations", _OLA, "/dashboard/operations", variants=("dark-desktop",)),
    Screen("operations-target", _OLA, "/dashboard/operations/targets/gpt-4o"),
    Screen("operations-pool", _OLA, "/dashboard/operations/pools/l40s", variants=("dark-phone",)),
    Screen("operations-queues", _OLA, "/dashboard/operations/queues"),
    Screen("operations-decisions", _OLA, "/dashboard/operations/decisions", variants=("dark-desktop",)),
    Screen("operations-classifier", _OLA, "/dashboard/operations/classifier"),
)
_VARIANTS: Final = tuple(f"{colours}-{width}" for colours in ("light", "dark") for width in ("desktop", "phone"))


async def take(browser: Browser, site: Site, folder: Path, screens: tuple[Screen, ...]) -> int:
    """Take them all, and return the number of pictures."""
    taken = 0
    for variant in _VARIANTS:
        wanted = [each for each in screens if variant in each.variants]
        dark, phone = variant.startswith("dark"), variant.endswith("phone")
        for email in dict.fromkeys(each.email for each in wanted):
            async with visiting(browser, site, email, phone=phone, dark=dark, calm=True) as visitor:
                for screen in (each for each in wanted if each.email == email):
                    await _take_one(visitor, screen, folder / f"{screen.name}-{variant}.png")
                    taken += 1
    return taken


async def _take_one(visitor: Visitor, screen: Screen, place: Path) -> None:
    page = visitor.page
    await page.goto(visitor.site.url + screen.path, wait_until="load")
    await visitor.settled()
    if screen.follow:
        link = page.locator(f"main a[href^='{screen.follow}']:not([href*='?'])").first
        await visitor.press(link)
        await visitor.settled()
    height = await page.evaluate("document.documentElement.scrollHeight")
    size = page.viewport_size or {"width": 0, "height": 0}
    clip = {"x": 0, "y": 0, "width": size["width"], "height": min(_MOST_PX, max(height, size["height"]))}
    await page.screenshot(path=place, full_page=True, clip=cast("Any", clip))
    await asyncio.to_thread(_reduce, place)


def _reduce(place: Path) -> None:
    """Reduce a picture to as many colours as a page needs: a quarter of the bytes, without a visible difference."""
    with Image.open(place) as picture:
        reduced = picture.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
    reduced.save(place, optimize=True)


async def _run(site: Site, folder: Path, screens: tuple[Screen, ...]) -> int:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium(), args=list(CHROMIUM_FLAGS))
        try:
            return await take(browser, site, folder, screens)
        finally:
            await browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.screens", description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--only", help="pages whose names begin so")
    parser.add_argument("--requests", type=int, default=_REQUESTS)
    given = parser.parse_args()
    chosen = tuple(each for each in SCREENS if given.only is None or each.name.startswith(given.only))
    given.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="weighbridge-screens-") as made:
        folder = Path(made)
        write_history(folder, given.requests)
        with serving(folder) as site:
            taken = asyncio.run(_run(site, given.folder, chosen))
    print(f"{taken} pictures in {given.folder}")


if __name__ == "__main__":
    main()
