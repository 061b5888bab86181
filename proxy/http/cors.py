"""CORS: the other origins whose pages may call the API from a browser, none unless configured.

A key is sent in a header, never in a cookie, so nothing here allows credentials: pages of the gateway stay closed.
"""

from collections.abc import Iterable
from typing import Final

from proxy.http.exchange import Exchange

ANY: Final = "*"
_API: Final = ("/v1/", "/openai/", "/rerank", "/v2/rerank")
"""Beginnings of the paths of the API, Azure's and Cohere's among them."""
_EXPOSED: Final = (
    b"x-request-id, retry-after, retry-after-ms, x-should-retry, x-weighbridge-model-used, x-weighbridge-target, "
    b"x-weighbridge-reason, x-weighbridge-cost-usd, x-weighbridge-baseline-usd, x-weighbridge-cache, age"
)
_MAX_AGE_S: Final = 600


class Cors:
    """The origins that are allowed, and the reply fields that tell a browser so."""

    __slots__ = ("_any", "_origins")

    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = frozenset(origin.encode() for origin in origins)
        self._any = ANY.encode() in self._origins

    def fields(self, exchange: Exchange) -> bytes:
        """Return header fields for the reply, as bytes with their line ends; empty for a caller that is no such page."""
        origin = self._allowed(exchange)
        if origin is None:
            return b""
        return b"access-control-allow-origin: %b\r\nvary: origin\r\naccess-control-expose-headers: %b\r\n" % (
            origin,
            _EXPOSED,
        )

    def is_preflight(self, exchange: Exchange) -> bool:
        """Return True for a preflight from an allowed origin."""
        return (
            exchange.method == "OPTIONS"
            and exchange.field(b"access-control-request-method") is not None
            and self._allowed(exchange) is not None
        )

    async def answer_preflight(self, exchange: Exchange) -> None:
        """Answer a preflight by allowing the method and the fields that it asks for: the route itself judges them."""
        headers = [
            (b"access-control-allow-methods", exchange.field(b"access-control-request-method") or b"GET"),
            (b"access-control-max-age", str(_MAX_AGE_S).encode()),
        ]
        if (asked := exchange.field(b"access-control-request-headers")) is not None:
            headers.append((b"access-control-allow-headers", asked))
        exchange.respond(204, headers)

    def _allowed(self, exchange: Exchange) -> bytes | None:
        origin = exchange.field(b"origin") if self._origins and exchange.path.startswith(_API) else None
        return origin if origin is not None and (self._any or origin in self._origins) else None
