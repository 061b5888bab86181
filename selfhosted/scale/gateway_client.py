"""What the one who starts engines says to the gateway and hears from it, with the pool's token and nothing else."""

from typing import Any, Final, NoReturn
from urllib.parse import quote

import aiohttp
import msgspec

_TIMEOUT: Final = aiohttp.ClientTimeout(total=5.0)
_LONGEST: Final = 64 * 1024
_SHOWN: Final = 300
# From here on it is the gateway's fault, and another try is worth it.
_SERVER_ERROR: Final = 500
_FIRST_ERROR: Final = 400
_LATER: Final = frozenset({408, 409, 425, 429})


class GatewayAway(Exception):
    """No answer, or none that says anything. What is there stays as it is."""


class GatewayRefused(Exception):
    """It understood, and does not want it. The message says what it said."""


class Doorbell:
    """One pool's registrations at one gateway."""

    def __init__(self, session: aiohttp.ClientSession, gateway: str, pool: str, token: str) -> None:
        self._session = session
        self._base = f"{gateway.rstrip('/')}/v1/fleet/pools/{quote(pool, safe='')}"
        self._headers = {"authorization": f"Bearer {token}"}

    async def desired(self) -> int | None:
        """How many replicas there should be; None when nobody decided."""
        found = await self._ask("GET", "/target")
        desired = found.get("desired")
        if desired is not None and (type(desired) is not int or desired < 0):
            raise GatewayAway("the gateway's answer has no number of replicas")
        return desired

    async def register(self, name: str, url: str, instance: str, *, draining: bool) -> float:
        """Says that it is there, for the first time or again. Returns in how many seconds to say it again."""
        body = {"url": url, "instance": instance, "draining": draining}
        found = await self._ask("PUT", f"/replicas/{quote(name, safe='')}", body)
        again_s = found.get("again_s")
        return max(0.1, float(again_s)) if isinstance(again_s, int | float) else 5.0

    async def leave(self, name: str, instance: str) -> None:
        await self._ask("DELETE", f"/replicas/{quote(name, safe='')}?instance={quote(instance, safe='')}")

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
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
            _refuse(status, found)
        if not isinstance(found, dict):
            raise GatewayAway(f"the answer of status {status} is not a gateway's")
        return found


def _refuse(status: int, found: Any) -> NoReturn:
    error = found.get("error") if isinstance(found, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    told = str(message)[:_SHOWN] if message else f"status {status}"
    if status >= _SERVER_ERROR or status in _LATER:
        raise GatewayAway(told)
    raise GatewayRefused(told)


async def _body(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > _LONGEST:
            response.close()
            raise GatewayAway("the answer is too long for a gateway's")
    return bytes(body)


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
