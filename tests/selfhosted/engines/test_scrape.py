"""Fetching a page from a peer that may do anything, over real sockets."""

import gzip

import pytest

from selfhosted.engines.fetching import Failure, Fetched, FetchFailed
from selfhosted.engines.scrape import HttpFetch, engine_session
from tests.selfhosted.engines.raw_server import Page, drip, endless, raw, raw_server, reply, silence

BOMB = gzip.compress(b"x 1\n" * 2_500_000)


async def fetched(page: Page, *, timeout_s: float = 5.0, max_bytes: int = 100_000) -> Fetched:
    async with raw_server(metrics=page) as server, engine_session() as session:
        return await HttpFetch(session)(f"{server.url}/metrics", timeout_s=timeout_s, max_bytes=max_bytes)


async def test_a_whole_page_comes_as_it_is() -> None:
    """Whatever its status."""
    assert await fetched(reply("up 1\n")) == Fetched(200, b"up 1\n")
    assert await fetched(reply("broken", 500)) == Fetched(500, b"broken")


async def test_a_redirect_is_an_answer_and_not_followed() -> None:
    """The key would go along."""
    async with raw_server() as other:
        assert (await fetched(reply("", 302, f"location: {other.url}/metrics\r\n"))).status == 302
        assert other.asked == {}


@pytest.mark.parametrize(
    ("page", "result"),
    [
        (silence, "slow"),
        (drip(b"vllm:num_requests_running 1\n"), "slow"),
        (endless(b"vllm:num_requests_running 1\n" * 100), "too_large"),
        (reply(b"x" * 10_000_000), "too_large"),
        (reply(BOMB, headers="content-encoding: gzip\r\n"), "encoded"),
        (raw(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nup 1\n"), "cut"),
        (raw(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nup 1\n", reset=True), "cut"),
        (raw(b"", reset=True), "unreachable"),
        (raw(b"SSH-2.0-OpenSSH_9.2\r\n"), "unreachable"),
        (raw(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000 + b"\r\n\r\n"), "unreachable"),
        (raw(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 100_000 + b"\r\n"), "unreachable"),
    ],
    ids=[
        "silent",
        "drip",
        "endless",
        "10-mb",
        "gzip-bomb",
        "cut",
        "reset-mid-page",
        "reset",
        "another-protocol",
        "long-header",
        "many-headers",
    ],
)
async def test_what_is_no_whole_page_is_told_apart(page: Page, result: Failure) -> None:
    """Within the time and the size, and without a word of what was sent."""
    with pytest.raises(FetchFailed) as caught:
        await fetched(page, timeout_s=0.2 if result == "slow" else 5.0)
    assert caught.value.result == result
    assert "SSH" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/metrics", "http://[::1/metrics", "nonsense", "http://:80/x", ""])
async def test_an_address_where_nobody_is(url: str) -> None:
    """Or that is none."""
    async with engine_session() as session:
        with pytest.raises(FetchFailed) as caught:
            await HttpFetch(session)(url, timeout_s=5.0, max_bytes=1_000)
    assert caught.value.result == "unreachable"


async def test_the_key_goes_only_where_it_belongs() -> None:
    """And compressed pages are not asked for."""
    async with raw_server(metrics=reply("up 1\n")) as server, engine_session() as session:
        fetch = HttpFetch(session, lambda: "made-up-key")
        await fetch(f"{server.url}/metrics", timeout_s=5.0, max_bytes=1_000)
        await fetch(f"{server.url}/metrics", timeout_s=5.0, max_bytes=1_000, with_key=False)
        keyed, open_ = (head.lower() for head in server.heads)
        assert "authorization: bearer made-up-key" in keyed
        assert "authorization" not in open_
        assert "accept-encoding: identity" in keyed


async def test_a_connection_is_kept_and_a_dead_one_replaced() -> None:
    """A probe does not fail because the engine closed an idle connection."""
    async with raw_server(metrics=reply("up 1\n")) as server, engine_session() as session:
        fetch = HttpFetch(session)
        for _ in range(2):
            await fetch(f"{server.url}/metrics", timeout_s=5.0, max_bytes=1_000)
        port = int(server.url.rsplit(":", 1)[1])
        await server.stop()
        await server.start(port)
        assert (await fetch(f"{server.url}/metrics", timeout_s=5.0, max_bytes=1_000)).body == b"up 1\n"
