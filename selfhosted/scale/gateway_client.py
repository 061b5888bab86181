"""Client for the gateway's fleet API, used by whatever starts engines. Authenticates with the pool's token."""

from typing import Any, Final, NoReturn
from urllib.parse import quote

import aiohttp
import msgspec

from selfhosted.config import PREFILL
from settings.decoding import DECODE_ERRORS

_TIMEOUT: Final = aiohttp.ClientTimeout(total=5.0)
_MAX_BODY_BYTES: Final = 64 * 1024
_MESSAGE_CHARS: Final = 300
# From here on it is the gateway's fault, and another try is worth it.
_SERVER_ERROR: Final = 500
_FIRST_ERROR: Final = 400
_RETRYABLE: Final = frozenset({408, 409, 425, 429})


class GatewayAway(Exception):
    """The gateway gave no usable answer. Everything should stay as it is until the next try."""


class GatewayRefused(Exception):
    """The gateway refused the request, and a retry would not help. The message is the gateway's."""


class GatewayClient:
    """Registrations of one pool at one gateway."""

    def __init__(self, session: aiohttp.ClientSession, gateway: str, pool: str, token: str) -> None:
        self._session = session
        self._base = f"{gateway.rstrip('/')}/v1/fleet/pools/{quote(pool, safe='')}"
        self._headers = {"authorization": f"Bearer {token}"}

    async def desired(self, *, reads: bool = False) -> int | None:
        """Return the desired number of replicas, or of those that only read; None when none was decided yet. Raises GatewayAway or
        GatewayRefused.
        """
        found = await self._request("GET", f"/target?part={PREFILL}" if reads else "/target")
        desired = found.get("desired")
        if desired is not None and (type(desired) is not int or desired < 0):
            raise GatewayAway("the gateway's answer has no number of replicas")
        return desired

    async def register(self, name: str, url: str, instance: str, *, draining: bool, version: str = "") -> float:
        """Register a replica, or renew its registration. Returns the seconds until the next renewal. Raises
        GatewayAway or GatewayRefused.
        """
        body = {"url": url, "instance": instance, "draining": draining, **({"version": version} if version else {})}
        found = await self._request("PUT", f"/replicas/{quote(name, safe='')}", body)
        again_s = found.get("again_s")
        return max(0.1, float(again_s)) if isinstance(again_s, int | float) else 5.0

    async def leave(self, name: str, instance: str) -> None:
        await self._request("DELETE", f"/replicas/{quote(name, safe='')}?instance={quote(instance, safe='')}")

    async def _request(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        try:
            async with self._session.request(
                method, self._base + path, json=body, headers=self._headers, allow_redirects=False, timeout=_TIMEOUT
            ) as response:
                told = await _body(response)
                status = response.status
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise GatewayAway(f"the gateway does not answer ({type(error).__name__})") from None
        found = _decoded(told)
        if status >= _FIRST_ERROR:
            _raise_error(status, found)
        if not isinstance(found, dict):
            raise GatewayAway(f"the answer of status {status} is not a gateway's")
        return found


def _raise_error(status: int, found: Any) -> NoReturn:
    error = found.get("error") if isinstance(found, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    told = str(message)[:_MESSAGE_CHARS] if message else f"status {status}"
    if status >= _SERVER_ERROR or status in _RETRYABLE:
        raise GatewayAway(told)
    raise GatewayRefused(told)


async def _body(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > _MAX_BODY_BYTES:
            response.close()
            raise GatewayAway("the answer is too long for a gateway's")
    return bytes(body)


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except DECODE_ERRORS:
        return None
