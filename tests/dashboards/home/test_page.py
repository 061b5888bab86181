"""The files that pages load, as they are sent."""

import gzip
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from dashboards.home.page import takes_gzip
from dashboards.ui.rendering import asset, assets
from tests.running_gateway import Running, model, running_gateway


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with running_gateway(tmp_path, [model("m", [{"kind": "scripted", "upstream_model": "x"}])]) as found:
        yield found


@pytest.mark.parametrize(
    ("accepted", "takes"),
    [
        ("", False),
        ("gzip, deflate, br, zstd", True),
        ("br;q=1.0, GZIP;q=0.8, *;q=0.1", True),
        ("gzip; q=0.5", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000, br", False),
        ("x-gzip", False),
        ("br", False),
    ],
)
def test_who_takes_gzip(accepted: str, takes: bool) -> None:
    """Only who names it, and does not refuse it by a weight of nothing."""
    assert takes_gzip(accepted) is takes


@pytest.mark.parametrize("name", ["app.css", "htmx-2.0.11.min.js"])
async def test_files_are_sent_packed(running: Running, name: str) -> None:
    """Who takes gzip gets the same file in fewer bytes, with a tag of its own; caches are told that there are two."""
    path = asset(name)
    whole = assets()[path].body
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        url = f"{running.url}{path}"
        async with session.get(url, headers={"accept-encoding": "gzip, br"}) as reply:
            sent, packed_tag = await reply.read(), reply.headers["etag"]
            assert reply.headers["content-encoding"] == "gzip"
            assert reply.headers["vary"] == "accept-encoding"
        async with session.get(url, headers={"accept-encoding": "identity"}) as reply:
            assert await reply.read() == whole
            assert "content-encoding" not in reply.headers
            assert reply.headers["etag"] != packed_tag
        async with session.get(url, headers={"accept-encoding": "gzip", "if-none-match": packed_tag}) as reply:
            assert reply.status == 304
    assert gzip.decompress(sent) == whole
    assert len(sent) < len(whole) / 2


async def test_pages_are_not_packed(running: Running) -> None:
    """A page has a secret beside what the address says; packed, its length would tell of it."""
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        url = f"{running.url}/dashboard/sign-in?next=/dashboard/teams"
        async with session.get(url, headers={"accept-encoding": "gzip"}) as reply:
            assert "content-encoding" not in reply.headers
