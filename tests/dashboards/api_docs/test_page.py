"""/dashboard/api: every route that is no page stands on it, on pages of a size that a browser likes."""

import json
import re
from collections.abc import AsyncIterator
from html import unescape
from pathlib import Path

import pytest

from benchmarks.pages import MOST_PAGE_BYTES
from tests.running_gateway import Running, model, running_gateway
from tests.signed_in import signed_in


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Running]:
    models = [model("small", [{"kind": "scripted", "upstream_model": "ok"}])]
    async with running_gateway(tmp_path, models) as running:
        yield running


async def test_every_call_stands_on_the_first_page_and_on_its_parts(gateway: Running) -> None:
    """With its address and what it is for on both; on its part's, an example and links that lead somewhere."""
    async with signed_in(gateway, role="admin") as browser:
        document = json.loads((await browser.get("/dashboard/api/openapi.json")).text)
        first = unescape((await browser.get("/dashboard/api")).text)
        linked = set(re.findall(r'href="(/dashboard/api/[a-z-]+)#([^"]+)"', first))
        parts = {path: unescape((await browser.get(path)).text) for path in {path for path, _ in linked}}
    assert len(document["paths"]) > 5
    assert all(f'id="{anchor}"' in parts[path] for path, anchor in linked)
    whole = "".join(parts.values())
    for path, operations in document["paths"].items():
        assert f"<code>{path}</code>" in first
        assert f'"{gateway.url}{path}"' in whole
        for operation in operations.values():
            assert operation["summary"] in first
            assert operation["summary"] in whole
    for page in (first, *parts.values()):
        anchors = {part.partition('"')[0] for part in page.split('href="#')[1:]}
        assert {anchor for anchor in anchors if f'id="{anchor}"' not in page} == set()
        assert len(page.encode()) < MOST_PAGE_BYTES


async def test_a_search_finds_calls_by_address_word_and_field(gateway: Running) -> None:
    """All words must be found, wherever; a search without a hit says so."""
    async with signed_in(gateway, role="admin") as browser:
        for asked, found in (
            ("rotate", "/v1/admin/teams/{team_id}/keys/{key}/rotate"),
            ("PUT limit_usd", "/v1/admin/budgets/{budget_id}"),
            ("put CALENDAR", "/v1/admin/calendar"),
        ):
            page = unescape((await browser.get(f"/dashboard/api?q={asked}")).text)
            assert f"<code>{found}</code>" in page
            assert "<code>/v1/prices</code>" not in page
        assert "No call has “zebra <b>”" in unescape((await browser.get("/dashboard/api?q=zebra+<b>")).text)


async def test_an_unknown_part_is_not_found(gateway: Running) -> None:
    """Rather than empty."""
    async with signed_in(gateway, role="admin") as browser:
        assert (await browser.get("/dashboard/api/zebra")).status == 404


async def test_it_is_for_who_may_use_it(gateway: Running) -> None:
    """Finance changes nothing, so it has no use for it."""
    async with signed_in(gateway, role="finance") as browser:
        assert (await browser.get("/dashboard/api")).status == 403
        assert (await browser.get("/dashboard/api/teams")).status == 403
        assert (await browser.get("/dashboard/api/openapi.json")).status == 403
