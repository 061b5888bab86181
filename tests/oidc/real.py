"""A real OpenID provider (node-oidc-provider) as a process of its own, and a browser's way through its pages."""

import asyncio
import contextlib
import html
import json
import os
import re
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urljoin

import aiohttp
import msgspec
import pytest

HERE: Final = Path(__file__).parent
MODULES: Final = HERE.parents[1] / "build" / "oidc"
PUBLIC_URL: Final = "https://weighbridge.example"
"""Where people reach the gateway under test; browsers of tests know that it is elsewhere."""
_WAIT_S: Final = 60.0
_MAX_STEPS: Final = 12
_ACTION: Final = re.compile(r'<form[^>]*\baction="([^"]+)"')
_HIDDEN: Final = re.compile(r'<input[^>]*\btype="hidden"[^>]*\bname="([^"]+)"[^>]*\bvalue="([^"]*)"')
_ABORT: Final = re.compile(r'href="([^"]+/abort)"')

Account = Mapping[str, Any]


class RealProvider:
    """A running one."""

    def __init__(self, process: asyncio.subprocess.Process, issuer: str) -> None:
        self._process = process
        self.issuer: Final = issuer

    async def rotate(self) -> None:
        """From now on it signs with new keys and publishes only these."""
        await self._tell({"rotate": True})

    async def know(self, accounts: Mapping[str, Account]) -> None:
        """Other accounts, or others' claims."""
        await self._tell({"accounts": accounts})

    async def _tell(self, command: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        await _line(self._process)


def client(name: str, provider: str, **fields: Any) -> dict[str, Any]:
    """A client as the provider registers it."""
    return {
        "client_id": name,
        "client_secret": "a secret + of/the tests%, 32 bytes and more",
        "redirect_uris": [f"{PUBLIC_URL}/dashboard/sign-in/{provider}/callback"],
        "response_types": ["code"],
        "grant_types": ["authorization_code"],
        **fields,
    }


@contextlib.asynccontextmanager
async def real_provider(
    clients: Sequence[Mapping[str, Any]], accounts: Mapping[str, Account], *, thin: bool = True
) -> AsyncIterator[RealProvider]:
    """`thin`: its ID tokens hold no claims about the person; those come from the userinfo endpoint."""
    node = shutil.which("node")
    if node is None or not (MODULES / "node_modules" / "oidc-provider").is_dir():
        told = "these tests need node and `make build/oidc/.ready`"
        if os.environ.get("CI"):
            pytest.fail(told)
        pytest.skip(told)
    settings = {"modules": str(MODULES), "clients": clients, "accounts": accounts, "thin": thin}
    process = await asyncio.create_subprocess_exec(
        node,
        str(HERE / "provider.mjs"),
        json.dumps(settings),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield RealProvider(process, (await _line(process))["issuer"])
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        # The pipes' transports are closed only once everything was read.
        await process.communicate()


async def _line(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), _WAIT_S)
    if not line:
        raise RuntimeError("the provider ended")
    found: dict[str, Any] = json.loads(line)
    return found


class Came(msgspec.Struct, frozen=True):
    """How the browser came back: the address with the provider's answer."""

    address: str

    @property
    def path(self) -> str:
        """As the gateway sees it."""
        return self.address.removeprefix(PUBLIC_URL)


class Browser:
    """Somebody at the provider's pages. What it knows of them (cookies) it keeps."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def sign_in(self, address: str, login: str, *, abort: bool = False) -> Came:
        """From the address that the gateway sent us to, until the provider sends us back."""
        method, form = "GET", None
        for _ in range(_MAX_STEPS):
            async with self._session.request(method, address, data=form, allow_redirects=False) as answer:
                page, status = await answer.text(), answer.status
                location = answer.headers.get("location")
            method, form = "GET", None
            if location is not None:
                address = urljoin(address, location)
                if address.startswith(PUBLIC_URL):
                    return Came(address)
            elif abort:
                address = urljoin(address, _found(_ABORT, page, status))
            else:
                address = urljoin(address, _found(_ACTION, page, status))
                # The first form asks who one is, the second whether the gateway may know.
                method = "POST"
                form = {**dict(_HIDDEN.findall(page)), "login": login, "password": "any"}
        raise AssertionError("the provider never sent the browser back")


def _found(pattern: re.Pattern[str], page: str, status: int) -> str:
    match = pattern.search(page)
    assert match is not None, f"status {status}: {page[:2_000]}"
    return html.unescape(match[1])


@contextlib.asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """A new one."""
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(cookie_jar=jar, timeout=aiohttp.ClientTimeout(total=_WAIT_S)) as session:
        yield Browser(session)
