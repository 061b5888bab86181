"""ASGI applications behind the data plane's server: their start and end, and one request of theirs."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final, cast

from starlette.types import ASGIApp, Message, Scope

from proxy.http.exchange import EVENTS, CallerGone, Exchange, probe_behind
from proxy.request_id import REQUEST_ID_HEADER, new_request_id
from proxy.wires.azure import plain_path

_ASGI: Final = {"version": "3.0", "spec_version": "2.3"}
_LENGTH: Final = b"content-length"


class StartFailed(Exception):
    """The application cannot serve; its own log says why."""


class AsgiBridge:
    """Answers exchanges by an ASGI application, with bodies streamed both ways."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._state: dict[str, Any] = {}

    @contextlib.asynccontextmanager
    async def alive(self) -> AsyncIterator[None]:
        """Starts the application, and ends it. Raises StartFailed."""
        said: asyncio.Queue[Message] = asyncio.Queue()
        answered: asyncio.Queue[Message] = asyncio.Queue()
        scope: Scope = {"type": "lifespan", "asgi": _ASGI, "state": self._state}
        life = asyncio.ensure_future(self._app(scope, said.get, answered.put))
        try:
            await _told(said, answered, life, "startup")
            yield
            await _told(said, answered, life, "shutdown")
        finally:
            life.cancel()
            await asyncio.wait({life})

    async def __call__(self, exchange: Exchange) -> None:
        """Serves one request."""
        await self._app(self._scope(exchange), _Incoming(exchange), _Outgoing(exchange))

    def _scope(self, exchange: Exchange) -> Scope:
        return {
            "type": "http",
            "asgi": _ASGI,
            "http_version": exchange.version,
            # Routes answer GET, and the exchange leaves the body out.
            "method": "GET" if exchange.method == "HEAD" else exchange.method,
            "scheme": "https" if exchange.tls else "http",
            "path": plain_path(exchange.path),
            "raw_path": exchange.raw_path,
            "query_string": exchange.query,
            "root_path": "",
            "headers": exchange.headers,
            "client": exchange.peer,
            "server": None,
            "state": self._state.copy(),
        }


async def _told(
    said: asyncio.Queue[Message], answered: asyncio.Queue[Message], life: asyncio.Future[Any], step: str
) -> None:
    await said.put({"type": f"lifespan.{step}"})
    answer = asyncio.ensure_future(answered.get())
    await asyncio.wait({answer, life}, return_when=asyncio.FIRST_COMPLETED)
    if not answer.done():
        answer.cancel()
        raise StartFailed(step) from life.exception()
    if answer.result()["type"] != f"lifespan.{step}.complete":
        raise StartFailed(str(answer.result().get("message", step))) from None


class _Incoming:
    """The `receive` of one request."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._is_read = False

    async def __call__(self) -> Message:
        exchange = self._exchange
        if not self._is_read:
            try:
                data = await exchange.read()
            except CallerGone:
                return {"type": "http.disconnect"}
            self._is_read = exchange.at_end
            return {"type": "http.request", "body": data, "more_body": not self._is_read}
        left = asyncio.get_running_loop().create_future()

        def leave() -> None:
            if not left.done():
                left.set_result(None)

        exchange.on_gone = leave
        if exchange.gone is None and not exchange.ended:
            await left
        return {"type": "http.disconnect"}


class _Outgoing:
    """The `send` of one request."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._start: Message | None = None
        self._has_events = False

    async def __call__(self, message: Message) -> None:
        exchange = self._exchange
        if message["type"] == "http.response.start":
            self._start = message
            return
        data, more = message.get("body", b""), message.get("more_body", False)
        if self._start is not None:
            start, self._start = self._start, None
            headers = [*start.get("headers", ()), (REQUEST_ID_HEADER, new_request_id().encode())]
            if not more and exchange.method != "HEAD" and not any(name == _LENGTH for name, _ in headers):
                exchange.respond(start["status"], headers, data)
                return
            self._has_events = dict(headers).get(b"content-type", b"").startswith(EVENTS)
            exchange.start(start["status"], cast("list[tuple[bytes, bytes]]", headers))
            if exchange.method == "HEAD":
                exchange.end()
                # Nobody waits for the rest, which may have no end.
                raise CallerGone
        if not more:
            exchange.end(data)
            return
        exchange.write(data)
        if self._has_events:
            exchange.probe = probe_behind(data)
        await exchange.drained()
