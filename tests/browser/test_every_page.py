"""Every page that can be reached, for each kind of person: whole, usable by everybody, and nothing of it from elsewhere."""

import re
from collections import deque
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser

from tests.browser.site import WIDTHS, Site, Visitor, visiting

_PEOPLE = {
    "admin": "ada@northwind.example",
    "finance": "finn@northwind.example",
    "operator": "ola@northwind.example",
    "team admin": "tess@northwind.example",
    "member": "milo@northwind.example",
}
_VARYING = re.compile(
    r"(?<=/)(key_[a-z0-9]+|inc_[0-9a-f]+|req_[a-z0-9]+|person_[a-z0-9]+|budget_[a-z0-9]+|[0-9a-f]{16,}|\d+|\d{4}-\d\d(-\d\d)?)(?=/|$)"
)
Look = Callable[[Visitor], Awaitable[list[str]]]
_MOST = 80
_FEWEST = 5
_NOTEBOOK = 1_024
_SHEET = 703
"""What is between an A4 sheet's margins, in pixels."""
_CUT = """
() => [...document.querySelectorAll("main table")].filter((table) => !table.closest(".twin")).map((table) => [table, table.closest(".scroll") ?? table.parentElement])
  .filter(([table, box]) => box.clientWidth > 0 && box.scrollWidth - box.clientWidth > 1)
  .map(([table, box]) => `the table “${table.caption?.textContent ?? ""}” is cut by ${box.scrollWidth - box.clientWidth} pixels`)
"""
_FILES = re.compile(r"\.(csv|json|ndjson|html|txt)$|/exports/|format=csv|[?&]csv=|/download")


def kind_of(path: str) -> str:
    """Pages of one kind are looked at once: one key, one request, one team's overview."""
    parts = urlsplit(path).path.split("/")
    if parts[2:3] == ["teams"] and len(parts) > 3:
        parts[3] = "{team}"
    if parts[2:3] == ["api"] and len(parts) > 3:
        parts[3] = "{part}"
    if (
        parts[2:4]
        in (["finance", "prices"], ["operations", "targets"], ["operations", "pools"], ["operations", "rollouts"])
        and len(parts) > 4
    ):
        parts[4] = "{name}"
    return _VARYING.sub("{id}", "/".join(parts))


async def _links(visitor: Visitor) -> list[str]:
    found = await visitor.page.eval_on_selector_all("a[href]", "all => all.map((each) => each.href)")
    here = [each.removeprefix(visitor.site.url) for each in found if each.startswith(f"{visitor.site.url}/dashboard")]
    return [each.partition("#")[0] for each in here if not _FILES.search(each)]


async def crawl(
    visitor: Visitor, look: Look = Visitor.faults, *, within: str = "/dashboard"
) -> tuple[list[str], list[str]]:
    """Opens one page of each kind, from the start page on; what was opened, and what is wrong with it."""
    waiting, seen = deque([within]), {within}
    opened: list[str] = []
    wrong: list[str] = []
    while waiting and len(opened) < _MOST:
        path = waiting.popleft()
        opened.append(path)
        wrong += await visitor.looked_at(path, look)
        for link in await _links(visitor):
            if link.startswith(within) and kind_of(link) not in seen:
                seen.add(kind_of(link))
                waiting.append(link)
    return opened, wrong


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("who", "within", "look"),
    [
        pytest.param("admin", "/dashboard", "phone, dark", marks=pytest.mark.long),
        pytest.param("finance", "/dashboard/finance", "desktop, dark", marks=pytest.mark.long),
        # Desktops are what the jobs of test_jobs.py are done at.
        ("operator", "/dashboard/operations", "phone, dark"),
        pytest.param("team admin", "/dashboard/teams/support", "phone, dark, calm", marks=pytest.mark.long),
        pytest.param("member", "/dashboard", "phone", marks=pytest.mark.long),
    ],
)
async def test_whatever_a_person_can_reach_is_fine(
    browser: Browser, site: Site, who: str, within: str, look: str
) -> None:
    """No page is broken, none breaks the content policy, none asks another machine, axe-core finds nothing serious, and
    each fits its window.
    """
    phone, dark, calm = (word in look for word in ("phone", "dark", "calm"))
    async with visiting(browser, site, _PEOPLE[who], phone=phone, dark=dark, calm=calm) as visitor:
        opened, wrong = await crawl(visitor, within=within)
        assert not wrong, "\n".join(dict.fromkeys(wrong))
        assert len(opened) > _FEWEST, opened


async def at_every_size(visitor: Visitor) -> list[str]:
    """What is wrong with the page in light and dark at each width. On a desk, and on a small notebook, no table is cut but
    that of a chart's figures; printed, none is.
    """
    page, found = visitor.page, list[str]()
    for colours in ("light", "dark"):
        await page.emulate_media(color_scheme=colours)
        for width in WIDTHS:
            await page.set_viewport_size({"width": width, "height": 900})
            told = await visitor.faults()
            if width >= _NOTEBOOK:
                told += [f"{page.url.removeprefix(visitor.site.url)}: {each}" for each in await page.evaluate(_CUT)]
            found += [f"{width} pixels, {colours}: {each}" for each in told]
    await page.emulate_media(media="print", color_scheme="light")
    await page.set_viewport_size({"width": _SHEET, "height": 1_000})
    found += [f"printed: {page.url.removeprefix(visitor.site.url)}: {each}" for each in await page.evaluate(_CUT)]
    await page.emulate_media(media="screen")
    return found


@pytest.mark.long
@pytest.mark.timeout(1_200)
async def test_pages_are_fine_at_every_width_in_light_and_in_dark(browser: Browser, site: Site) -> None:
    """One page of each kind that the organisation's administrator can reach."""
    async with visiting(browser, site, _PEOPLE["admin"]) as visitor:
        opened, wrong = await crawl(visitor, at_every_size)
        assert not wrong, "\n".join(dict.fromkeys(wrong))
        assert len(opened) > _FEWEST, opened
