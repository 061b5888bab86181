"""The page of caches in a browser: what was lost and what to change, answers given again, and their end, on a desk and on a phone."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import aiohttp
import pytest
import yaml
from playwright.async_api import Browser, expect

from cost.times import DAY_US, wall_us
from dashboards.caching.causes import CAUSES
from tests.browser.serving import copied, serving
from tests.browser.site import PHONE, Site, Visitor, visiting
from tests.processes import until

pytestmark = pytest.mark.timeout(300)

_PAGE: Final = "/dashboard/teams/support/caching"


def _cached(config: Path) -> None:
    written = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump({**written, "cache": {"default": True}}))


@pytest.fixture
def cached(history: Path, tmp_path: Path) -> Iterator[Site]:
    """A team that lost something for each cause, at a model of a long name."""
    folder = copied(history, tmp_path / "cached")
    today_us = wall_us() // DAY_US * DAY_US
    rows = [
        ("support", today_us, "gpt-4o-mini" if place % 2 else "a-model-with-a-rather-long-name-2026-11-30", cause, 40, 90_000, 10**9 // (place + 1))
        for place, cause in enumerate([*CAUSES, "looked", "skipped"])
    ]  # fmt: skip
    with contextlib.closing(sqlite3.connect(folder / "sample.sqlite")) as database, database:
        database.executemany(
            "INSERT INTO prompt_cache_loss (team_id, day_us, target_id, cause, organisation_id, requests, tokens, nanousd, unpriced)"
            " SELECT ?, ?, ?, ?, organisation_id, ?, ?, ?, 0 FROM team WHERE team_id = 'support'",
            rows,
        )
    with serving(folder, changed=_cached) as found:
        yield found


async def _ask(site: Site) -> str:
    body = {"model": "auto", "temperature": 0, "messages": [{"role": "user", "content": "the same again"}]}
    headers = {"authorization": f"Bearer {site.keys['support']}"}
    async with (
        aiohttp.ClientSession(site.url, headers=headers) as session,
        session.post("/v1/chat/completions", json=body) as reply,
    ):
        assert reply.status == 200, await reply.text()
        return reply.headers["x-weighbridge-cache"]


async def _is_fine_at_both(visitor: Visitor) -> None:
    for size in ({"width": 1440, "height": 900}, PHONE):
        await visitor.page.set_viewport_size(size)  # type: ignore[arg-type]
        await visitor.is_fine()


async def test_a_team_reads_what_it_lost_and_forgets_what_is_kept(browser: Browser, cached: Site) -> None:
    async def is_hit() -> bool:
        return await _ask(cached) == "hit"

    await until(is_hit)
    async with visiting(browser, cached, "tess@northwind.example") as visitor:
        page = visitor.page
        await visitor.open("/dashboard/teams/support")
        await visitor.press(page.get_by_role("navigation").get_by_role("link", name="Caching", exact=True))
        assert await visitor.heading() == "Caching"
        lost = page.get_by_role("table", name="What was lost, and why")
        for words in CAUSES.values():
            await expect(lost).to_contain_text(words.title)
        await expect(lost).to_contain_text("Sort tools by their names")
        await expect(page.get_by_role("table", name="Prompt tokens from caches")).to_contain_text("llama-3-70b")
        await _is_fine_at_both(visitor)

        async def shown() -> bool:
            await visitor.open(f"{_PAGE.removesuffix('/caching')}/requests?outcome=given-again")
            return await page.get_by_text("Given again", exact=True).count() > 0

        await until(shown)
        await page.set_viewport_size({"width": 1440, "height": 900})
        await visitor.press(page.locator("tbody a").first)
        await expect(page.locator("main")).to_contain_text("nobody was asked")
        await _is_fine_at_both(visitor)

        await visitor.open(_PAGE)
        await page.get_by_role("button", name="Forget what is kept").click()
        told = page.get_by_role("status").filter(has_text="is given to nobody any more")
        await expect(told).to_be_in_viewport()
        assert page.url.endswith("#answers")
        assert len(visitor.asked) == 1
        await _is_fine_at_both(visitor)

    async def is_missed() -> bool:
        return await _ask(cached) == "miss"

    await until(is_missed)
