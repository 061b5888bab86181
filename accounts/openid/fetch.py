"""HTTP requests to a provider: bounded in time and size, without redirects, and with errors that never repeat its
content.
"""

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any, Final

import aiohttp
import msgspec

from accounts.openid.openid_errors import ProviderFailed, SsoUnusable
from accounts.people.oidc_config import OidcSection

MAX_BYTES: Final = 1_000_000
"""Largest reply; many times the size of real metadata, key sets and claims."""
_CONNECTIONS: Final = 16
_OK: Final = 200
_CLIENT_ERROR: Final = 400
_SERVER_ERROR: Final = 500


class ProviderHttp:
    """The HTTP session of one provider."""

    def __init__(self, section: OidcSection) -> None:
        self._label = section.label
        self._timeout_s = section.timeout_s
        self._tls = _tls(section)
        self._session: aiohttp.ClientSession | None = None

    async def get(self, what: str, address: str, *, bearer: str | None = None) -> dict[str, Any]:
        """Return the JSON object at an address. Raises ProviderFailed."""
        headers = {} if bearer is None else {"authorization": f"Bearer {bearer}"}
        status, found = await self._request(what, "GET", address, headers, None)
        if status != _OK:
            raise ProviderFailed(f"{what}: status {status}", self._label)
        return found

    async def post(self, what: str, address: str, headers: Mapping[str, str], form: str) -> dict[str, Any]:
        """Return the JSON object of the reply, also of refusals (400 to 499). Raises ProviderFailed."""
        status, found = await self._request(what, "POST", address, headers, form)
        if status != _OK and not _CLIENT_ERROR <= status < _SERVER_ERROR:
            raise ProviderFailed(f"{what}: status {status}", self._label)
        return found

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _request(
        self, what: str, method: str, address: str, headers: Mapping[str, str], form: str | None
    ) -> tuple[int, dict[str, Any]]:
        try:
            # Not aiohttp's own limits: this one holds for the whole answer, however slowly it drips.
            async with asyncio.timeout(self._timeout_s):
                return await self._exchange(what, method, address, headers, form)
        except TimeoutError as late:
            raise ProviderFailed(f"{what}: no answer within {self._timeout_s:g} s", self._label, late=True) from late
        except (aiohttp.ClientError, OSError, ValueError) as failure:
            raise ProviderFailed(f"{what}: {type(failure).__name__}", self._label) from failure

    async def _exchange(
        self, what: str, method: str, address: str, headers: Mapping[str, str], form: str | None
    ) -> tuple[int, dict[str, Any]]:
        # No compression: a small answer must not become a large one here.
        sent = {"accept": "application/json", "accept-encoding": "identity", **headers}
        async with self._opened().request(method, address, headers=sent, data=form, allow_redirects=False) as answer:
            body = bytearray()
            async for piece in answer.content.iter_any():
                body += piece
                if len(body) > MAX_BYTES:
                    raise ProviderFailed(f"{what}: more than {MAX_BYTES} bytes", self._label)
            return answer.status, self._object(what, answer.status, bytes(body))

    def _object(self, what: str, status: int, body: bytes) -> dict[str, Any]:
        try:
            found = msgspec.json.decode(body)
        except (ValueError, RecursionError) as failure:
            raise ProviderFailed(f"{what}: status {status}, and no JSON", self._label) from failure
        if not isinstance(found, dict):
            raise ProviderFailed(f"{what}: status {status}, and no JSON object", self._label)
        return found

    def _opened(self) -> aiohttp.ClientSession:
        # Created on first use: a session needs a running event loop.
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=_CONNECTIONS, ssl=self._tls),
                timeout=aiohttp.ClientTimeout(total=None),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
            )
        return self._session


def _tls(section: OidcSection) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if section.ca_file is not None:
        try:
            context.load_verify_locations(section.ca_file)
        except OSError as failure:
            raise SsoUnusable(
                f"sign-in provider {section.name}: ca_file {section.ca_file} holds no certificates that can be read"
            ) from failure
    return context
