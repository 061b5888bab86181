"""HTTP client for OpenAI-shaped upstreams: OpenAI, Azure's v1, vLLM, TGI, SGLang, llama.cpp, Together, ...

This is the hot path. A reply's deadlines are aiohttp's own timers, so a read costs no task and no timeout context; one
read returns all events of one network read.
"""

import asyncio
import functools
import io
from collections.abc import Mapping
from http import HTTPStatus
from types import SimpleNamespace

import aiohttp
import msgspec
from aiohttp.payload import BytesIOPayload
from yarl import URL

from providers.errors import (
    AnswerLost,
    ConnectFailed,
    MalformedReply,
    StreamCut,
    UpstreamError,
    UpstreamRefusedUs,
    UpstreamTimeout,
)
from providers.media_links import refuse_media_links
from providers.sse import DONE, MAX_EVENT_BYTES, EventTooLarge, SseParser
from providers.target import Deployment
from providers.upstream import UpstreamCall, UpstreamStream
from providers.upstream_faults import error_of_status
from providers.wire import (
    EMPTY_OBJECT,
    PATHS,
    Event,
    Operation,
    completion_as_chunk,
    decode_embeddings,
    decode_event,
    upstream_body,
)

_MAX_ERROR_BYTES = 64 * 1024
_ERROR_BODY_S = 5.0
# aiohttp warns about larger bodies given as bytes: it would copy them into the socket in one go.
_MAX_INLINE_BYTES = 1024 * 1024
# After the end marker an upstream closes its last HTTP chunk; that is all that may still come.
_TAIL_S = 0.05
_MAX_TAIL_BYTES = 4 * 1024
_MAX_CACHED_URLS = 4_096


async def _on_connected(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: object) -> None:
    context.trace_request_ctx(True)


def _connection_tracing() -> aiohttp.TraceConfig:
    """Tracing that tells a call when it has its connection, a new one or a reused one."""
    tracing = aiohttp.TraceConfig()
    tracing.on_connection_create_end.append(_on_connected)
    tracing.on_connection_reuseconn.append(_on_connected)
    return tracing


# aiohttp says RuntimeError when a read begins after the connection was lost.
_READ_ERRORS = (TimeoutError, aiohttp.ClientError, OSError, RuntimeError)


class DirectLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on a reply's size, in bytes, and on the connection pool."""

    max_event_bytes: int = MAX_EVENT_BYTES
    max_reply_bytes: int = 256 * 1024 * 1024
    max_connections: int = 8_192
    max_connections_per_host: int = 4_096
    keepalive_s: float = 15.0


class DirectUpstream:
    """Calls upstreams over one connection pool, created in the running loop at the first call."""

    def __init__(self, limits: DirectLimits | None = None) -> None:
        self._limits = limits or DirectLimits()
        self._session: aiohttp.ClientSession | None = None
        self._urls: dict[tuple[str, Operation], URL] = {}

    async def open(self, call: UpstreamCall) -> UpstreamStream:
        """Opens the call as `Upstream.open` does; raises an UpstreamError."""
        refuse_media_links(call.request, call.deployment)
        response = await self._post(call, upstream_body(call.request, call.deployment, call.engine_fields))
        try:
            return await _open_reply(response, call, self._limits)
        except BaseException:
            response.close()
            raise

    async def aclose(self) -> None:
        """Closes the connection pool, if one was opened."""
        session, self._session = self._session, None
        if session is not None:
            await asyncio.shield(session.close())

    async def _post(self, call: UpstreamCall, body: bytes) -> aiohttp.ClientResponse:
        deployment_id = call.deployment.deployment_id
        timeout = _timeout(call.total_timeout_s, call.connect_timeout_s)
        call.reaches(False)
        try:
            return await self._client_session().post(
                self._url(call.deployment, call.request.operation),
                data=body if len(body) <= _MAX_INLINE_BYTES else BytesIOPayload(io.BytesIO(body)),
                headers=_headers(call),
                timeout=timeout,
                allow_redirects=False,
                trace_request_ctx=call.reaches,
            )
        except aiohttp.ClientConnectorError as error:
            raise ConnectFailed("The upstream cannot be reached.", deployment_id=deployment_id) from error
        except aiohttp.ConnectionTimeoutError as error:
            raise ConnectFailed("Connecting to the upstream took too long.", deployment_id=deployment_id) from error
        except TimeoutError as error:
            raise UpstreamTimeout("The upstream took too long to answer.", deployment_id=deployment_id) from error
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, ConnectionError) as error:
            # The connection stood, so the request may have been read, and worked on, before it was lost.
            raise AnswerLost(
                "The upstream closed the connection before it answered.", deployment_id=deployment_id
            ) from error
        except aiohttp.InvalidURL as error:
            raise UpstreamRefusedUs("The deployment's address is not valid.", deployment_id=deployment_id) from error
        except aiohttp.ClientError as error:
            raise MalformedReply("The upstream does not speak HTTP.", deployment_id=deployment_id) from error

    def _url(self, deployment: Deployment, operation: Operation) -> URL:
        key = deployment.base_url, operation
        url = self._urls.get(key)
        if url is None:
            # Replicas come and go for months, each at an address of its own.
            if len(self._urls) >= _MAX_CACHED_URLS:
                self._urls.clear()
            url = self._urls[key] = URL(f"{deployment.base_url.rstrip('/')}/{PATHS[operation]}")
        return url

    def _client_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            limits = self._limits
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=limits.max_connections,
                    limit_per_host=limits.max_connections_per_host,
                    keepalive_timeout=limits.keepalive_s,
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                # We ask for no compression, so a small reply cannot unfold into a large one.
                auto_decompress=False,
                trust_env=False,
                trace_configs=[_connection_tracing()],
            )
        return self._session


@functools.lru_cache(maxsize=64)
def _timeout(total_s: float, connect_s: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=total_s, connect=connect_s, sock_connect=connect_s)


def _headers(call: UpstreamCall) -> dict[str, str]:
    deployment = call.deployment
    headers = {
        **call.headers,
        "content-type": "application/json",
        "accept-encoding": "identity",
        "user-agent": "weighbridge",
        "x-request-id": call.request_id,
    }
    if deployment.api_key is not None:
        if deployment.kind == "azure":
            headers["api-key"] = deployment.api_key
        else:
            headers["authorization"] = f"Bearer {deployment.api_key}"
    return headers


async def _open_reply(response: aiohttp.ClientResponse, call: UpstreamCall, limits: DirectLimits) -> UpstreamStream:
    if response.status != HTTPStatus.OK:
        raise await _error_of(response, call.deployment)
    return _stream_of(response, call, limits)


async def _error_of(response: aiohttp.ClientResponse, deployment: Deployment) -> UpstreamError:
    """The error for a refused request, from a bounded part of its body; a body that cannot be read is left out."""
    try:
        async with asyncio.timeout(_ERROR_BODY_S):
            body = await _read_bounded(response, _MAX_ERROR_BYTES)
    except _READ_ERRORS:
        body = b""
    if response.content.at_eof():
        response.release()
    headers: Mapping[str, str] = response.headers
    return error_of_status(
        response.status, body or b"", headers, deployment_id=deployment.deployment_id, secret=deployment.api_key
    )


async def _read_bounded(response: aiohttp.ClientResponse, limit: int) -> bytes | None:
    """The whole body, or None when it is longer than the limit."""
    pieces: list[bytes] = []
    size = 0
    while piece := await response.content.readany():
        size += len(piece)
        if size > limit:
            return None
        pieces.append(piece)
    return b"".join(pieces)


def _stream_of(response: aiohttp.ClientResponse, call: UpstreamCall, limits: DirectLimits) -> UpstreamStream:
    deployment_id = call.deployment.deployment_id
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise MalformedReply("The upstream compressed its reply although asked not to.", deployment_id=deployment_id)
    kind = response.content_type if "content-type" in response.headers else ""
    if "html" in kind:
        raise MalformedReply("The upstream answered with a page rather than a completion.", deployment_id=deployment_id)
    is_json = "json" in kind
    if not call.request.stream:
        if kind == "text/event-stream":
            raise MalformedReply("The upstream streams although asked for a whole answer.", deployment_id=deployment_id)
        return _Body(response, call, limits, as_chunk=False)
    _start_idle_timeout(response, call.idle_timeout_s)
    # Some hosts ignore `stream: true` for some models: the whole answer then becomes one chunk.
    return _Body(response, call, limits, as_chunk=True) if is_json else _Stream(response, call, limits)


def _start_idle_timeout(response: aiohttp.ClientResponse, idle_s: float) -> None:
    """Starts the idle timeout once the reply begins: the first token may take longer than any later pause."""
    connection = response.connection
    if connection is not None and connection.protocol is not None:
        connection.protocol.read_timeout = idle_s
        connection.protocol.start_timeout()


class _Body:
    """A whole reply, as one event."""

    def __init__(
        self, response: aiohttp.ClientResponse, call: UpstreamCall, limits: DirectLimits, *, as_chunk: bool
    ) -> None:
        self._response = response
        self._deployment = call.deployment
        self._limits = limits
        self._as_chunk = as_chunk
        self._decode = decode_event if call.request.operation == "chat" else decode_embeddings
        self._ended = False

    async def read(self) -> list[Event] | None:
        if self._ended:
            return None
        deployment_id = self._deployment.deployment_id
        try:
            body = await _read_bounded(self._response, self._limits.max_reply_bytes)
        except _READ_ERRORS as error:
            raise _read_error(error, deployment_id) from error
        if body is None:
            raise MalformedReply("The upstream's answer is too large.", deployment_id=deployment_id)
        self._ended = True
        event = self._decode(body, deployment_id, self._deployment.api_key)
        if event.choices == 0:
            raise MalformedReply("The upstream's answer has no content.", deployment_id=deployment_id)
        if self._as_chunk:
            event = msgspec.structs.replace(event, payload=completion_as_chunk(event.payload, deployment_id))
        return [event]

    def unread(self) -> list[Event]:
        """Always empty: a part of a body cannot be decoded."""
        return []

    async def aclose(self) -> None:
        # A body that was read to its end has given its connection back already.
        self._response.close()


class _Stream:
    """A streamed reply of server-sent events."""

    __slots__ = (
        "_closed",
        "_content",
        "_deployment_id",
        "_ended",
        "_failure",
        "_finished",
        "_left",
        "_parser",
        "_response",
        "_secret",
    )

    def __init__(self, response: aiohttp.ClientResponse, call: UpstreamCall, limits: DirectLimits) -> None:
        self._response = response
        self._content = response.content
        self._deployment_id = call.deployment.deployment_id
        self._secret = call.deployment.api_key
        self._parser = SseParser(limits.max_event_bytes)
        self._left = limits.max_reply_bytes
        self._failure: UpstreamError | None = None
        self._finished = False
        self._ended = False
        self._closed = False

    async def read(self) -> list[Event] | None:
        while not self._ended:
            if self._failure is not None:
                raise self._failure
            try:
                data = await self._content.readany()
            except _READ_ERRORS as error:
                raise _read_error(error, self._deployment_id) from error
            events = self._events(self._payloads(data))
            if not data:
                self._end_at_eof()
            if events:
                return events
        return None

    def unread(self) -> list[Event]:
        if self._ended or self._closed or self._failure is not None:
            return []
        try:
            data = self._content.read_nowait()
            return self._events(self._payloads(data)) if data else []
        except (*_READ_ERRORS, MalformedReply):
            return []

    def _payloads(self, data: bytes) -> list[bytes]:
        self._left -= len(data)
        if self._left < 0:
            raise MalformedReply("The upstream's stream is too long.", deployment_id=self._deployment_id)
        try:
            return self._parser.feed(data) if data else self._parser.finish()
        except EventTooLarge as error:
            raise MalformedReply(
                "The upstream sent an event that is too large.", deployment_id=self._deployment_id
            ) from error

    def _events(self, payloads: list[bytes]) -> list[Event]:
        """Events up to the end marker, or up to a broken one: what came before it was generated and counts."""
        events: list[Event] = []
        for payload in payloads:
            if payload[:1] != b"{":
                payload = payload.strip()  # noqa: PLW2901  # Blanks around the end marker do not hide it.
                if payload == DONE:
                    self._ended = True
                    break
                if not payload:
                    continue
            try:
                event = decode_event(payload, self._deployment_id, self._secret)
            except UpstreamError as error:
                self._failure = error
                break
            if event.finished:
                self._finished = True
            if event.payload != EMPTY_OBJECT:
                events.append(event)
        return events

    def _end_at_eof(self) -> None:
        """Ends the stream. Raises StreamCut unless a finish reason came: some upstreams never send [DONE] after it."""
        if self._ended:
            return
        if not self._finished:
            # A half event at the end is no malformed one: it was cut off.
            raise StreamCut("The upstream ended the stream before it was finished.", deployment_id=self._deployment_id)
        self._ended = True

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            if self._ended:
                await self._drain_tail()
        finally:
            # Cuts the connection, unless the reply's end has given it back already.
            self._response.close()

    async def _drain_tail(self) -> None:
        """Reads the end of the HTTP body, for a moment, so that the connection can be reused."""
        if self._content.is_eof():
            return
        size = 0
        try:
            async with asyncio.timeout(_TAIL_S):
                while size < _MAX_TAIL_BYTES and (data := await self._content.readany()):
                    size += len(data)
        except _READ_ERRORS:
            return


def _read_error(error: Exception, deployment_id: str) -> UpstreamError:
    if isinstance(error, aiohttp.SocketTimeoutError):
        return UpstreamTimeout("The upstream fell silent in the middle of its reply.", deployment_id=deployment_id)
    if isinstance(error, TimeoutError):
        return UpstreamTimeout("The upstream's reply took too long.", deployment_id=deployment_id)
    return StreamCut("The upstream's connection broke in the middle of its reply.", deployment_id=deployment_id)
