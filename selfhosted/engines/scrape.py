"""HTTP client for engines' small pages, with limits on time and size."""

import asyncio
from typing import Final

import aiohttp

from selfhosted.engines.fetching import EngineKey, Fetched, FetchFailed, no_key

# A connection is kept from one probe to the next, and not for ever after the replica is gone.
_KEEP_ALIVE_S: Final = 30.0
_CONTENT_ENCODING: Final = "content-encoding"


def engine_session() -> aiohttp.ClientSession:
    """Return an HTTP session for probes and scrapes: no cookies, nothing from the environment, and no decompression, so no
    gzip bomb.
    """
    return aiohttp.ClientSession(
        auto_decompress=False,
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        trust_env=False,
    )


class HttpFetch:
    """A fetch over aiohttp. It follows no redirect: the engine's key goes to the engine's address alone."""

    def __init__(self, session: aiohttp.ClientSession, api_key: EngineKey = no_key) -> None:
        self._session = session
        # The plain text format, without OpenMetrics' exemplars; and uncompressed, as a compressed page could swell.
        self._headers = {"accept": "text/plain;version=0.0.4", "accept-encoding": "identity"}
        self._api_key = api_key

    async def __call__(self, url: str, *, timeout_s: float, max_bytes: int, with_key: bool = True) -> Fetched:
        return await self._with_timeout(
            timeout_s, "GET", url, max_bytes, self._keyed() if with_key else self._headers, None
        )

    async def post(self, url: str, body: bytes, *, timeout_s: float, max_bytes: int) -> Fetched:
        """Post a JSON body. Raises FetchFailed."""
        headers = {**self._keyed(), "accept": "application/json", "content-type": "application/json"}
        return await self._with_timeout(timeout_s, "POST", url, max_bytes, headers, body)

    def _keyed(self) -> dict[str, str]:
        key = self._api_key()
        return self._headers if key is None else {**self._headers, "authorization": f"Bearer {key}"}

    async def _with_timeout(
        self, timeout_s: float, method: str, url: str, max_bytes: int, headers: dict[str, str], body: bytes | None
    ) -> Fetched:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._request(method, url, max_bytes, headers, body)
        except TimeoutError:
            raise FetchFailed("slow", f"there was no whole answer within {timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # Its class only: the message may hold what the engine sent.
            raise FetchFailed(
                "unreachable", f"it cannot be reached, or speaks no HTTP ({type(error).__name__})"
            ) from None

    async def _request(
        self, method: str, url: str, max_bytes: int, headers: dict[str, str], body: bytes | None
    ) -> Fetched:
        async with self._session.request(method, url, data=body, headers=headers, allow_redirects=False) as response:
            if response.headers.get(_CONTENT_ENCODING, "identity").lower() not in ("identity", ""):
                response.close()
                raise FetchFailed("encoded", "the answer is compressed, which was not asked for")
            try:
                return Fetched(response.status, await _body(response, max_bytes))
            except (aiohttp.ClientError, OSError):
                raise FetchFailed("cut", "the answer was cut off") from None


async def _body(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > max_bytes:
            # Closed, not read to its end: the rest may never end.
            response.close()
            raise FetchFailed("too_large", f"the answer is longer than {max_bytes} bytes")
    return bytes(body)
