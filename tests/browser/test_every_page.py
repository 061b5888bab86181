"""Every page that can be reached, for each kind of person: whole, usable by everybody, and nothing of it from elsewhere."""

import re
from collections import deque
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser

from tests.browser.site import Site, Visitor, visiting

_PEOPLE = {
    "admin": "ada@northwind.example",
    "finance": "finn@northwind.example",
    "operator": "ola@northwind.example",
    "team admin": "tess@northwind.example",
    "member": "milo@northwind.example",
}
_VARYING = re.compile(
    r"(?<=/)(key_[a-z0-9]+|req_[a-z0-9]+|person_[a-z0-9]+|budget_[a-z0-9]+|[0-9a-f]{16,}|\d+|\d{4}-\d\d(-\d\d)?)(?=/|$)"
)
Look = Callable[[Visitor], Awaitable[list[str]]]
_MOST = 80
_FEWEST = 5
_FILES = re.compile(r"\.(csv|json|ndjson|html|txt)$|/exports/|format=csv|[?&]csv=|/download")


def kind_of(path: str) -> str:
    """Pages of one kind are looked at once: one key, one request, one team's overview."""
    parts = urlsplit(path).path.split("/")
    if parts[2:3] == ["teams"] and len(parts) > 3:
        parts[3] = "{team}"
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
        pytest.param("admin", "/dashboard", "desktop", marks=pytest.mark.long),
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
    looks = {"phone": "phone" in look, "dark": "dark" in look, "calm": "calm" in look}
    async with visiting(browser, site, _PEOPLE[who], **looks) as visitor:
        opened, wrong = await crawl(visitor, within=within)
        assert not wrong, "\n".join(dict.fromkeys(wrong))
        assert len(opened) > _FEWEST, opened
