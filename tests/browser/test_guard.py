"""The guard's pages in a browser: a rule is added, a text is tried, what was found is shown, on a desk and on a phone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import aiohttp
import pytest
import yaml
from playwright.async_api import Browser, expect

from tests.browser.serving import copied, serving
from tests.browser.site import PHONE, Site, Visitor, visiting
from tests.processes import until

pytestmark = pytest.mark.timeout(300)

_TEAM: Final = "/dashboard/teams/support/guard"
_CARD: Final = "4111 1111 1111 1111"
_MAIL: Final = "jane.doe@example.com"
_RULES: Final = [
    {"name": "cards", "kind": "pii", "entities": ["card", "iban"], "input": "block"},
    {"name": "mails", "kind": "pii", "entities": ["email"], "input": "mask"},
]


def _guarded(config: Path) -> None:
    written = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump({**written, "guard": {"rules": _RULES}}))


@pytest.fixture
def guarded(history: Path, tmp_path: Path) -> Iterator[Site]:
    with serving(copied(history, tmp_path / "guarded"), changed=_guarded) as found:
        yield found


async def _ask(site: Site, said: str) -> int:
    body = {"model": "auto", "messages": [{"role": "user", "content": said}]}
    headers = {"authorization": f"Bearer {site.keys['support']}"}
    async with (
        aiohttp.ClientSession(site.url, headers=headers) as session,
        session.post("/v1/chat/completions", json=body) as reply,
    ):
        await reply.read()
        return reply.status


async def _is_fine_at_both(visitor: Visitor) -> None:
    for size in ({"width": 1440, "height": 900}, PHONE):
        await visitor.page.set_viewport_size(size)  # type: ignore[arg-type]
        await visitor.is_fine()


async def test_a_team_admin_tightens_tries_and_reads_what_was_found(browser: Browser, guarded: Site) -> None:
    """What is typed is text: no script of it runs, and it is on no other page."""
    assert await _ask(guarded, f"pay {_CARD}") == 400
    assert await _ask(guarded, f"write to {_MAIL}") == 200
    async with visiting(browser, guarded, "tess@northwind.example") as visitor:
        page = visitor.page
        await visitor.open(_TEAM)
        await _is_fine_at_both(visitor)
        await page.get_by_label("Name", exact=True).fill("project")
        await page.get_by_label("Looks for").select_option("words")
        await page.get_by_label("Words or phrases").fill("bluebird")
        await page.get_by_role("button", name="Add the rule").click()
        await expect(page.get_by_role("table", name="Rules that hold")).to_contain_text("project")
        await page.get_by_label("Text", exact=True).fill(f"bluebird <img src=x onerror=window.hit=1> {_CARD}")
        await page.get_by_role("button", name="Show what is found", exact=True).click()
        tried = page.get_by_role("table", name="What is found in this text")
        await expect(tried).to_contain_text("41…11")
        await expect(tried).to_contain_text("project")
        assert await page.evaluate("window.hit") is None
        await _is_fine_at_both(visitor)

        await page.get_by_role("button", name="Show what is found in them").click()
        await expect(page.locator("#prompts")).to_contain_text("looked through")

        async def shown() -> bool:
            await visitor.open(_TEAM)
            return await page.get_by_role("table", name="What was found").count() > 0

        await until(shown)
        await _is_fine_at_both(visitor)
        await page.get_by_role("button", name="Remove the rule project").click()
        await expect(page.get_by_role("table", name="Rules that hold")).not_to_contain_text("project")
        assert visitor.asked == ["Remove the rule project?"]


async def test_an_administrator_sees_all_teams(browser: Browser, guarded: Site) -> None:
    """With the way from the menu to the page, and from a team's row to its own."""
    assert await _ask(guarded, f"pay {_CARD}") == 400
    async with visiting(browser, guarded, "ada@northwind.example") as visitor:
        page = visitor.page
        await visitor.open("/dashboard/budgets")
        await visitor.press(page.get_by_role("navigation").get_by_role("link", name="Guard", exact=True).last)
        assert await visitor.heading() == "Guard"

        async def shown() -> bool:
            await visitor.open("/dashboard/guard")
            return await page.get_by_role("table", name="What was found").count() > 0

        await until(shown)
        await _is_fine_at_both(visitor)
        await page.set_viewport_size({"width": 1440, "height": 900})
        await visitor.press(page.get_by_role("table", name="What was found").get_by_role("link").last)
        assert "/guard" in page.url
