"""CloudEvents by HTTP: a batch a POST, signed where the sink has a secret."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import aiohttp

from api.webhooks.sender import retry_after_s
from api.webhooks.signature import signed_headers
from cost.events.event import sequence_text
from cost.events.sink import Batch, BatchRefused, SinkFailed
from cost.times import wall_us
from providers.connections.address import address_of
from providers.connections.forward_proxy import ForwardProxy

_BATCH: Final = "application/cloudevents-batch+json"
_SINGLE: Final = "application/cloudevents+json"
"""Without a charset, which JSON has none of anyway: OpenMeter compares the whole field."""
_REFUSALS: Final = frozenset({400, 409, 413, 422})
"""What is about the events in a batch; anything else is about the sink, and the whole batch waits."""


class HttpSink:
    """One address. A reply's body is not read, and no redirect is followed: it may lead anywhere."""

    def __init__(
        self,
        url: str,
        *,
        keys: Sequence[bytes] = (),
        token: str | None = None,
        single: bool = False,
        proxy: ForwardProxy | None = None,
        now_us: Callable[[], int] = wall_us,
    ) -> None:
        self._url = url
        self._keys = tuple(keys)
        self._single = single
        self._now_us = now_us
        self._headers = {"user-agent": "weighbridge-events/1", "content-type": _SINGLE if single else _BATCH}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"
        self._way = {} if proxy is None else _way(url, proxy)
        self._session: aiohttp.ClientSession | None = None

    async def send(self, batch: Batch) -> None:
        """Post a batch. Raises SinkFailed, and BatchRefused for what is about its events."""
        if self._single:
            for event, encoded in zip(batch.events, batch.encoded, strict=True):
                await self._post(sequence_text(event.sequence), encoded)
            return
        first, last = batch.events[0].sequence, batch.events[-1].sequence
        await self._post(f"{sequence_text(first)}-{sequence_text(last)}", b"[" + b",".join(batch.encoded) + b"]")

    async def aclose(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def _post(self, name: str, body: bytes) -> None:
        headers = dict(self._headers)
        if self._keys:
            headers |= signed_headers(name, self._now_us() // 1_000_000, body, self._keys)
        # A receiver's cookies have no business in another batch. The delivery bounds the time.
        session = self._session = self._session or aiohttp.ClientSession(
            cookie_jar=aiohttp.DummyCookieJar(), timeout=aiohttp.ClientTimeout(total=None)
        )
        try:
            async with session.post(self._url, data=body, headers=headers, allow_redirects=False, **self._way) as reply:
                status, wait = reply.status, reply.headers.get("retry-after")
        except (aiohttp.ClientError, OSError) as error:
            # Its text may hold the whole address, and an address may hold a token.
            raise SinkFailed(type(error).__name__) from None
        if 200 <= status < 300:  # noqa: PLR2004 - success, and nothing else is
            return
        failure = BatchRefused if status in _REFUSALS else SinkFailed
        raise failure(f"status {status}", retry_after_s(wait, self._now_us()))


def _way(url: str, proxy: ForwardProxy) -> dict[str, Any]:
    """Return how a request goes there: through the proxy, or past it."""
    if not proxy.serves(address_of(url).origin):
        return {}
    host = f"[{proxy.host}]" if ":" in proxy.host else proxy.host
    headers = {"proxy-authorization": proxy.authorization} if proxy.authorization else {}
    return {"proxy": f"http://{host}:{proxy.port}", "proxy_headers": headers}
