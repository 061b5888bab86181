"""Events by HTTP: a batch a POST, signed where the sink has a secret."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import aiohttp

from api.webhooks.sender import retry_after_s
from api.webhooks.signature import signed_headers
from cost.events.event import sequence_text
from cost.events.sink import Batch, BatchRefused, SinkFailed
from cost.times import wall_us
from gateway.events.tls import Tls
from providers.connections.address import address_of
from providers.connections.forward_proxy import ForwardProxy


class Shape(NamedTuple):
    """How a batch is written."""

    content_type: str
    """Without a charset, which JSON has none of anyway: OpenMeter compares the whole field."""
    begins: bytes = b""
    ends: bytes = b""
    most: int = 10_000
    """Events in a batch."""
    known: bytes = b""
    """What a refusal says of an event that the receiver has already."""


BATCHED: Final = Shape("application/cloudevents-batch+json", b"[", b"]")
STRUCTURED: Final = Shape("application/cloudevents+json", most=1)
LAGO: Final = Shape("application/json", b'{"events":[', b"]}", 100, b"value_already_exist")

_CONFLICT: Final = 409
_REFUSALS: Final = frozenset({400, _CONFLICT, 413, 422})
"""What is about the events in a batch; anything else is about the sink, and the whole batch waits."""
_MOST_REPLY: Final = 16_384
_REPLY_S: Final = 2.0


class HttpSink:
    """One address. No redirect is followed: it may lead anywhere."""

    def __init__(
        self,
        url: str,
        *,
        keys: Sequence[bytes] = (),
        headers: Callable[[], Mapping[str, str]] = dict,
        shape: Shape = BATCHED,
        tls: Tls | None = None,
        proxy: ForwardProxy | None = None,
        now_us: Callable[[], int] = wall_us,
    ) -> None:
        """`headers` and `tls` are asked again after each failure: tokens and certificates are renewed in their files."""
        self._url = url
        self._keys = tuple(keys)
        self._own_headers = headers
        self._shape = shape
        self._tls = tls
        self._now_us = now_us
        self._way = {} if proxy is None else _way(url, proxy)
        self._session: aiohttp.ClientSession | None = None

    async def send(self, batch: Batch) -> None:
        """Post a batch. Raises SinkFailed, and BatchRefused for what is about its events."""
        try:
            await self._post(batch)
        except BatchRefused:
            raise
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _opened(self) -> aiohttp.ClientSession:
        headers = {
            "user-agent": "weighbridge-events/1",
            # A reply is read as it comes: a small one may be written to become a huge one.
            "accept-encoding": "identity",
            **self._own_headers(),
            "content-type": self._shape.content_type,
        }
        return aiohttp.ClientSession(
            connector=None if self._tls is None else aiohttp.TCPConnector(ssl=self._tls()),
            # A receiver's cookies have no business in another batch. The delivery bounds the time.
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None),
            headers=headers,
        )

    async def _post(self, batch: Batch) -> None:
        body = self._shape.begins + b",".join(batch.encoded) + self._shape.ends
        signed: Mapping[str, str] = {}
        if self._keys:
            signed = signed_headers(_name(batch), self._now_us() // 1_000_000, body, self._keys)
        session = self._session = self._session or self._opened()
        try:
            async with session.post(self._url, data=body, headers=signed, allow_redirects=False, **self._way) as reply:
                status, wait = reply.status, reply.headers.get("retry-after")
                is_known = len(batch.events) == 1 and status in _REFUSALS and await self._has_it(reply)
        except (aiohttp.ClientError, OSError) as error:
            # Its text may hold the whole address, and an address may hold a token.
            raise SinkFailed(type(error).__name__) from None
        if 200 <= status < 300 or is_known:  # noqa: PLR2004 - success, and nothing else is
            return
        failure = BatchRefused if status in _REFUSALS else SinkFailed
        raise failure(f"status {status}", retry_after_s(wait, self._now_us()))

    async def _has_it(self, reply: aiohttp.ClientResponse) -> bool:
        """Return True where an event is refused as it came before: a sink that has everything must not wait for ever."""
        if reply.status == _CONFLICT:
            return True
        if not self._shape.known:
            return False
        told = b""
        # By its status the event is refused: a body that comes slowly, or breaks off, must not make it a fault of the sink.
        with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError):
            async with asyncio.timeout(_REPLY_S):
                async for part in reply.content.iter_any():
                    told += part
                    if len(told) >= _MOST_REPLY:
                        break
        return self._shape.known in told


def _name(batch: Batch) -> str:
    first, last = (sequence_text(each.sequence) for each in (batch.events[0], batch.events[-1]))
    return first if first == last else f"{first}-{last}"


def _way(url: str, proxy: ForwardProxy) -> dict[str, Any]:
    """Return how a request goes there: through the proxy, or past it."""
    if not proxy.serves(address_of(url).origin):
        return {}
    host = f"[{proxy.host}]" if ":" in proxy.host else proxy.host
    headers = {"proxy-authorization": proxy.authorization} if proxy.authorization else {}
    return {"proxy": f"http://{host}:{proxy.port}", "proxy_headers": headers}
