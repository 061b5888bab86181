"""Chromium signs in through a real OpenID provider on another site: the cookies survive the way there and back."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from playwright.async_api import Browser

from tests.oidc.real import client, real_provider
from tests.running_gateway import model, running_gateway

SECRET: Final = "a secret + of/the tests%, 32 bytes and more"
ALICE: Final = {"email": "alice@example.com", "email_verified": True, "name": "Alice"}
_PATIENCE_MS: Final = 60_000


class Forwarder:
    """An address that is known before the gateway behind it runs."""

    def __init__(self) -> None:
        self.target: int | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self.target is not None
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self.target)
        self._writers |= {writer, there_writer}
        with contextlib.suppress(OSError):
            await asyncio.gather(_pump(reader, there_writer), _pump(there_reader, writer))

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(65_536):
        writer.write(piece)
        await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def forwarded() -> AsyncIterator[tuple[Forwarder, str]]:
    forwarder = Forwarder()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = await asyncio.start_server(forwarder, sock=listener)
        try:
            yield forwarder, f"http://localhost:{listener.getsockname()[1]}"
        finally:
            forwarder.close()
            server.close()


async def test_a_browser_comes_back_signed_in(tmp_path: Path, browser: Browser) -> None:
    """By the button, over the provider's own pages, to the page that was asked for, without an error on the way."""
    (tmp_path / "secret").write_text(SECRET)
    async with forwarded() as (forwarder, public_url):
        # Another host name is another site to the browser.
        registered = client("weighbridge", "idp", redirect_uris=[f"{public_url}/dashboard/sign-in/idp/callback"])
        async with real_provider([registered], {"alice": ALICE}) as real:
            provider = {
                "name": "idp",
                "label": "the IdP",
                "issuer": real.issuer,
                "client_id": "weighbridge",
                "client_secret": f"file:{tmp_path / 'secret'}",
                "create_people": True,
                "timeout_s": 30,
            }
            sign_in = {"public_url": public_url, "providers": [provider]}
            models = [model("m", [{"name": "main", "kind": "scripted"}])]
            async with running_gateway(tmp_path, models, sign_in=sign_in) as gateway:
                forwarder.target = urlsplit(gateway.url).port
                await _signs_in(browser, public_url, real.issuer)


async def _signs_in(browser: Browser, public_url: str, issuer: str) -> None:
    context = await browser.new_context()
    try:
        page = await context.new_page()
        page.set_default_timeout(_PATIENCE_MS)
        ours: list[str] = []
        page.on("console", lambda told: ours.append(told.text) if page.url.startswith(public_url) else None)
        await page.goto(f"{public_url}/dashboard/batches")
        assert urlsplit(page.url).path == "/dashboard/sign-in"
        await page.get_by_role("link", name="Sign in with the IdP").click()
        await page.wait_for_url(f"{issuer}/**")
        await page.fill("input[name=login]", "alice")
        await page.fill("input[name=password]", "any")
        await page.get_by_role("button", name="Sign-in").click()
        await page.get_by_role("button", name="Continue").click()
        await page.wait_for_url(f"{public_url}/dashboard/batches")
        assert await page.get_by_role("link", name="Alice").is_visible()
        kept = {cookie.get("name"): cookie for cookie in await context.cookies(public_url)}
        assert kept.keys() == {"__Host-weighbridge"}
        assert kept["__Host-weighbridge"].get("httpOnly")
        assert kept["__Host-weighbridge"].get("secure")
        assert ours == []
    finally:
        await context.close()
