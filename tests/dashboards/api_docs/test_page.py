"""/dashboard/api: every route of the admin API stands on the page."""

import json
from collections.abc import AsyncIterator
from html import unescape
from pathlib import Path

import pytest

from tests.running_gateway import Running, model, running_gateway
from tests.signed_in import signed_in


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Running]:
    models = [model("small", [{"kind": "scripted", "upstream_model": "ok"}])]
    async with running_gateway(tmp_path, models) as running:
        yield running


async def test_every_call_stands_on_the_page(gateway: Running) -> None:
    """With its address, what it is for, an example, and links that lead somewhere."""
    async with signed_in(gateway, role="admin") as browser:
        document = json.loads((await browser.get("/dashboard/api/openapi.json")).text)
        page = unescape((await browser.get("/dashboard/api")).text)
    assert len(document["paths"]) > 5
    for path, operations in document["paths"].items():
        assert f"<code>{path}</code>" in page
        for operation in operations.values():
            assert operation["summary"] in page
    for path in document["paths"]:
        assert f'"{gateway.url}{path}"' in page
    anchors = {part.partition('"')[0] for part in page.split('href="#')[1:]}
    missing = {anchor for anchor in anchors if f'id="{anchor}"' not in page}
    assert missing == set()


async def test_it_is_for_who_may_use_it(gateway: Running) -> None:
    """Finance changes nothing, so it has no use for it."""
    async with signed_in(gateway, role="finance") as browser:
        assert (await browser.get("/dashboard/api")).status == 403
        assert (await browser.get("/dashboard/api/openapi.json")).status == 403
