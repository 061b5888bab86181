"""HTTP client for OpenAI-shaped upstreams (OpenAI, Azure's v1, vLLM, TGI, SGLang, llama.cpp, Together, ...) and for Anthropic.

This is the hot path: one read returns all events of one network read.
"""

import asyncio
import math
import re
import time
from collections.abc import Coroutine, Mapping
from functools import lru_cache
from typing import Any, Final, NoReturn
from urllib.parse import quote

import msgspec

from cost.usage import MOST_TOKENS
from providers.claude.reply import ClaudeReader
from providers.claude.request import claude_body
from providers.connections.address import Address, AddressInvalid, address_of
from providers.connections.connection import Connection
from providers.connections.errors import (
    ConnectionFailed,
    ConnectionTimeout,
    NotHttp,
    ReplyLost,
    ReplySilent,
    ReplyTimeout,
)
from providers.connections.forward_proxy import ForwardProxy
from providers.connections.gathering import GATHER_S
from providers.connections.pool import ConnectionPool, PoolLimits, fields
from providers.delta_coalescing import DeltaCoalescer
from providers.errors import (
    AnswerLost,
    CannotCarry,
    ConnectFailed,
    MalformedReply,
    StreamCut,
    UpstreamError,
    UpstreamRefusedUs,
)
from providers.forms import form_of
from providers.held_bytes import HeldBytes, HeldTooMuch, Share
from providers.media_links import refuse_media_links
from providers.metered_replies import decode_metered
from providers.passed_stream import PassedStream
from providers.provider_tools import address_of_dialect
from providers.refusals import load as load_refusals
from providers.regular_replies import RegularStream, regular_answer
from providers.replies_as_written import ReplyReader, reader_of
from providers.spoken_dialects import SpokenDialect
from providers.sse import DONE, MAX_EVENT_BYTES, EventTooLarge, SseParser
from providers.target import Deployment
from providers.token_counts import Question
from providers.upload import Upload
from providers.upstream import READ_ERRORS, UpstreamCall, UpstreamStream, ignore, read_error, took_too_long
from providers.upstream_faults import error_of_status, original_of
from providers.wire import (
    EMPTY_OBJECT,
    METERED,
    Event,
    completes_text,
    completion_as_chunk,
    decode_embeddings,
    decode_event,
    path_of,
    text_as_chat,
    upstream_body,
)
from settings.decoding import DECODE_ERRORS

_OK: Final = 200
"""A name of an enumeration takes longer to look up than all else that is asked of a head."""
_MAX_ERROR_BYTES = 64 * 1024
_ERROR_BODY_S = 5.0
_LARGE_BYTES: Final = 512 * 1024
"""Messages that are longer are translated on a thread."""
_MANY_BYTES: Final = 512
"""A shorter read is one event, or nearly: decoding it is quicker than looking for a run."""
_EVENT_END: Final = b"\n\n"
_MAX_IDLE_BYTES: Final = 1024 * 1024
"""Bytes of a stream without an event between them: sixty thousand comments that keep a connection alive."""
# After the end marker an upstream closes its last HTTP chunk; that is all that may still come.
_TAIL_S = 0.05
_MAX_TAIL_BYTES = 4 * 1024
_NO_USAGE_YET_S: Final = 3.0
"""Seconds for which the usage is waited for once each answer of a stream has its finish reason."""
_NO_END_YET_S: Final = 0.5
"""Seconds for which the end marker is waited for once the usage came, too: some upstreams send none, and close late."""
_MAX_CACHED_HEADS: Final = 4_096
_COUNT_S: Final = 5.0
_MAX_COUNT_BYTES: Final = 4 * 1024 * 1024
"""vLLM tells the tokens with their count."""
_MEDIA_TYPE: Final = re.compile(r"[a-z]+/[A-Za-z0-9.+-]+(; ?[a-z]+=[A-Za-z0-9._-]+){0,3}", re.ASCII)
_BYTES: Final = "application/octet-stream"
_JSON_TYPE: Final = fields([("content-type", "application/json")])


_NO_DIALECTS: Final[Mapping[str, SpokenDialect]] = {}


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits on replies, in bytes, and on the connection pool."""

    max_event_bytes: int = MAX_EVENT_BYTES
    max_reply_bytes: int = 256 * 1024 * 1024
    max_replies_bytes: int = 256 * 1024 * 1024
    """The most that is held of all replies together: of whole ones, and of a stream's event that has not ended yet. One of them
    may have half of it.
    """
    max_connections: int = 8_192
    max_connections_per_host: int = 4_096
    keepalive_s: float = 15.0
    gather_s: float = GATHER_S


class _Head(msgspec.Struct, frozen=True):
    """The part of a request's head that is the same for every call of a deployment's path."""

    deployment: Deployment
    address: Address
    fields: bytes


class HttpUpstream:
    """A client of OpenAI-shaped upstreams and of Anthropic's messages, over one pool of connections."""

    def __init__(
        self,
        limits: HttpLimits | None = None,
        proxy: ForwardProxy | None = None,
        dialects: Mapping[str, SpokenDialect] = _NO_DIALECTS,
    ) -> None:
        """`dialects` are those that deployments may name."""
        load_refusals()
        self._dialects = dialects
        self._limits = limits = limits or HttpLimits()
        self._pool = ConnectionPool(
            PoolLimits(
                max_connections=limits.max_connections,
                max_connections_per_origin=limits.max_connections_per_host,
                keepalive_s=limits.keepalive_s,
                gather_s=limits.gather_s,
            ),
            proxy=proxy,
        )
        self.held = HeldBytes(limits.max_replies_bytes)
        self._heads: dict[tuple[str, str], _Head] = {}
        """Heads by the deployment's id and the path."""

    async def open(self, call: UpstreamCall) -> UpstreamStream:
        """Open the call as `Upstream.open` does. Raises an UpstreamError."""
        refuse_media_links(call.request, call.deployment)
        deployment_id, reader = call.deployment.deployment_id, reader_of(call)
        try:
            if call.request.upload:
                connection = await self._form_sent(call, call.request.upload)
            elif call.deployment.dialect or (reader is None and call.deployment.speaks_messages):
                connection, reader = await self._translated(call)
            else:
                body = upstream_body(call.request, call.deployment, call.engine_fields, call.dropped)
                connection = await self._sent(call, body, _JSON_TYPE)
        except ConnectionTimeout as error:
            raise ConnectFailed("Connecting to the upstream took too long.", deployment_id=deployment_id) from error
        except ConnectionFailed as error:
            raise ConnectFailed("The upstream cannot be reached.", deployment_id=deployment_id) from error
        try:
            await connection.reply_begins()
            if connection.status != _OK:
                await _refuse(connection, call, Share(self.held))
            return self._stream_of(connection, call, reader)
        except ReplyTimeout as error:
            self._pool.release(connection)
            raise took_too_long(call) from error
        except ReplyLost as error:
            self._pool.release(connection)
            # The connection stood, so the request may have been read, and worked on, before it was lost.
            raise AnswerLost(
                "The upstream closed the connection before it answered.", deployment_id=deployment_id
            ) from error
        except NotHttp as error:
            self._pool.release(connection)
            raise MalformedReply("The upstream does not speak HTTP.", deployment_id=deployment_id) from error
        except BaseException:
            self._pool.release(connection)
            raise

    async def _translated(self, call: UpstreamCall) -> tuple[Connection, ReplyReader]:
        """Send a chat in another dialect, and return the reader of its reply: Anthropic's, or the one that the deployment names."""
        if call.deployment.dialect:
            return await self._spoken(call)
        # It is decoded and written anew, which takes long for what is long.
        large = len(memoryview(call.request.fields.get("messages", b""))) > _LARGE_BYTES
        asked = await asyncio.to_thread(claude_body, call) if large else claude_body(call)
        reader = ClaudeReader(call.deployment, asked.names, passes=call.request.in_messages is not None)
        return await self._sent(call, asked.body, _JSON_TYPE + fields(asked.headers)), reader

    async def _spoken(self, call: UpstreamCall) -> tuple[Connection, ReplyReader]:
        """Send the call in the dialect that its deployment names, and return the reader of the reply."""
        deployment = call.deployment
        if call.request.as_written is not None or call.request.operation != "chat":
            raise CannotCarry(
                "This model speaks a dialect of its own, which carries chats alone.",
                deployment_id=deployment.deployment_id,
                status=400,
            )
        dialect = self._dialects.get(deployment.dialect)
        if dialect is None:
            raise UpstreamRefusedUs(
                f"This gateway was started without the dialect {deployment.dialect}.",
                deployment_id=deployment.deployment_id,
            )
        asked = dialect.asked(call, upstream_body(call.request, deployment, call.engine_fields, call.dropped))
        reader = dialect.reader(call)
        head = _head_of(deployment, f"{deployment.base_url}/{asked.path.lstrip('/')}")
        own = _JSON_TYPE + fields([*call.headers.items(), *asked.headers, ("x-request-id", call.request_id)])
        connection = await self._pool.send(
            head.address,
            head.fields + own,
            asked.body,
            connect_s=call.connect_timeout_s,
            total_s=call.total_timeout_s,
            reaches=call.reaches,
        )
        return connection, reader

    async def count_tokens(self, deployment: Deployment, question: Question, request_id: str) -> int | None:
        """Put the question as `TokenCounter.count_tokens` does."""
        try:
            head = _head_of(deployment, question.url)
            own = fields([*question.headers, ("x-request-id", request_id)])
            connection = await self._pool.send(
                head.address, head.fields + own, question.body, connect_s=_COUNT_S, total_s=_COUNT_S, reaches=ignore
            )
        except (UpstreamError, ConnectionFailed, ConnectionTimeout):
            return None
        try:
            await connection.reply_begins()
            share = Share(self.held)
            try:
                body = await _read_bounded(connection, _MAX_COUNT_BYTES, share) if connection.status == _OK else None
            finally:
                share.give_back()
            found = None if body is None else msgspec.json.decode(body, type=dict[str, Any]).get(question.field)
        except (*READ_ERRORS, *DECODE_ERRORS):
            return None
        finally:
            self._pool.release(connection)
        return found if type(found) is int and 0 <= found <= MOST_TOKENS else None

    async def aclose(self) -> None:
        """Close the pool's connections."""
        await self._pool.aclose()

    async def _form_sent(self, call: UpstreamCall, upload: Upload) -> Connection:
        """Send a file in pieces, as the upstream takes them, until it is whole or the upstream answers before that."""
        form = form_of(call.request.fields, call.deployment.upstream_model, upload)
        connection = await self._sent(call, form.before, fields([("content-type", form.content_type)]), form.length)
        try:
            async for piece in form.rest():
                if not await connection.send_more(piece):
                    break
        except BaseException:
            self._pool.release(connection)
            raise
        return connection

    def _sent(
        self, call: UpstreamCall, body: bytes, media_type: bytes, length: int | None = None
    ) -> Coroutine[Any, Any, Connection]:
        """Send the call over the pool, as `ConnectionPool.send` does."""
        head = self._head(call.deployment, path_of(call.request, call.deployment))
        dialect = call.request.as_written.headers if call.request.as_written is not None else ()
        own = media_type + fields([*call.headers.items(), *dialect, ("x-request-id", call.request_id)])
        return self._pool.send(
            head.address,
            head.fields + own,
            body,
            connect_s=call.connect_timeout_s,
            total_s=call.total_timeout_s,
            reaches=call.reaches,
            length=length,
        )

    def _head(self, deployment: Deployment, path: str) -> _Head:
        key = deployment.deployment_id, path
        head = self._heads.get(key)
        # A new configuration may give the name another address or key.
        if head is None or head.deployment is not deployment:
            # Replicas come and go for months, each with a name of its own.
            if len(self._heads) >= _MAX_CACHED_HEADS:
                self._heads.clear()
            head = self._heads[key] = _head_of(deployment, _url_of(deployment, path))
        return head

    def _stream_of(self, connection: Connection, call: UpstreamCall, reader: ReplyReader | None) -> UpstreamStream:
        coding = connection.fields.get(b"content-encoding")
        if coding is not None and coding.lower() != b"identity":
            raise _malformed("The upstream compressed its reply although asked not to.", call)
        media_type = connection.fields.get(b"content-type", b"")
        kind = _kind_of(media_type)
        if b"html" in kind:
            raise _malformed("The upstream answered with a page rather than a completion.", call)
        is_metered = call.request.operation in METERED
        if is_metered and b"json" not in kind:
            return self._passed(connection, call, media_type.decode("latin-1"))
        if is_metered or not call.request.stream:
            if kind == b"text/event-stream":
                raise _malformed("The upstream streams although asked for a whole answer.", call)
            return _Body(self._pool, connection, call, self._limits.max_reply_bytes, Share(self.held), reader, False)
        # The first token may take longer than any later pause.
        connection.limit_silence(call.idle_timeout_s)
        if b"json" in kind and reader is None:
            # Some hosts ignore `stream: true` for some models: the whole answer then becomes one chunk.
            return _Body(self._pool, connection, call, self._limits.max_reply_bytes, Share(self.held), None, True)
        return _Stream(self._pool, connection, call, self._limits, Share(self.held), reader)

    def _passed(self, connection: Connection, call: UpstreamCall, media_type: str) -> PassedStream:
        connection.limit_silence(call.idle_timeout_s)
        return PassedStream(
            self._pool,
            connection,
            call,
            media_type if _MEDIA_TYPE.fullmatch(media_type) else _BYTES,
            max_reply_bytes=self._limits.max_reply_bytes,
            max_event_bytes=self._limits.max_event_bytes,
            share=Share(self.held),
        )


@lru_cache(maxsize=256)
def _kind_of(media_type: bytes) -> bytes:
    """Return the media type alone, in lower case."""
    return media_type.partition(b";")[0].strip().lower()


def _malformed(message: str, call: UpstreamCall) -> MalformedReply:
    return MalformedReply(message, deployment_id=call.deployment.deployment_id)


def _url_of(deployment: Deployment, path: str) -> str:
    base = address_of_dialect(deployment).rstrip("/")
    if not deployment.api_version:
        return f"{base}/{path}"
    model, version = quote(deployment.upstream_model, safe=""), deployment.api_version
    return f"{base.removesuffix('/openai')}/openai/deployments/{model}/{path}?api-version={version}"


def _head_of(deployment: Deployment, url: str) -> _Head:
    deployment_id = deployment.deployment_id
    try:
        address = address_of(url)
    except AddressInvalid as error:
        raise UpstreamRefusedUs("The deployment's address is not valid.", deployment_id=deployment_id) from error
    headers = [
        ("accept", "*/*"),
        # We ask for no compression, so a small reply cannot unfold into a large one.
        ("accept-encoding", "identity"),
        *deployment.headers.items(),
    ]
    if not any(name.lower() == "user-agent" for name in deployment.headers):
        headers.append(("user-agent", "weighbridge"))
    if deployment.api_key is not None:
        name = _KEY_HEADERS.get(deployment.kind)
        headers.append((name, deployment.api_key) if name else ("authorization", f"Bearer {deployment.api_key}"))
    try:
        return _Head(deployment, address, fields(headers))
    except ValueError as error:
        raise UpstreamRefusedUs("The deployment's key has a line end in it.", deployment_id=deployment_id) from error


_KEY_HEADERS: Final = {"azure": "api-key", "litellm": "x-api-key"}
"""Header of the key by kind. Of the kind litellm only Anthropic is called from here."""


async def _refuse(connection: Connection, call: UpstreamCall, share: Share) -> NoReturn:
    """Raise the error for a refused request, from a bounded part of its body; a body that cannot be read is left out."""
    deployment = call.deployment
    try:
        async with asyncio.timeout(_ERROR_BODY_S):
            body = await _read_bounded(connection, _MAX_ERROR_BYTES, share)
    except READ_ERRORS:
        body = b""
    finally:
        share.give_back()
    error = error_of_status(
        connection.status,
        body or b"",
        connection.headers,
        deployment_id=deployment.deployment_id,
        secret=deployment.api_key,
    )
    if path_of(call.request, deployment) == "messages":
        error.original = original_of(error, [body or b""], deployment.api_key)
    raise error


async def _read_bounded(connection: Connection, limit: int, share: Share) -> bytes | None:
    """Return the whole body, or None when it is longer than the limit. It is held in `share`, which the caller gives
    back.

    Raises READ_ERRORS.
    """
    body = connection.take()
    if not connection.at_eof:
        # One block that grows, as hundreds of pieces would leave the process's memory in crumbs.
        grown = bytearray(body)
        try:
            while len(grown) <= limit and not connection.at_eof:
                grown += await connection.read()
                share.grow(len(grown))
        except BaseException:
            # Its traceback holds this frame, for as long as anybody holds the error.
            grown.clear()
            raise
        body = bytes(grown)
    share.grow(len(body))
    return body if len(body) <= limit else None


def _decoded(call: UpstreamCall, body: bytes) -> Event:
    """Return a whole reply as one event. Raises an UpstreamError."""
    deployment_id, secret = call.deployment.deployment_id, call.deployment.api_key
    operation = call.request.operation
    if operation == "chat":
        return decode_event(body, deployment_id, secret)
    if operation == "embeddings":
        return decode_embeddings(body, deployment_id, secret)
    return decode_metered(body, operation, deployment_id, secret)


class _Body(msgspec.Struct, eq=False):
    """A whole reply, as one event. Closing it cuts the connection unless the reply was read to its end."""

    pool: ConnectionPool
    connection: Connection
    call: UpstreamCall
    most_bytes: int
    share: Share
    reader: ReplyReader | None
    as_chunk: bool
    ended: bool = False

    async def read(self) -> list[Event] | None:
        if self.ended:
            return None
        call = self.call
        try:
            body = await _read_bounded(self.connection, self.most_bytes, self.share)
        except READ_ERRORS as error:
            raise read_error(error, call) from error
        if body is None:
            raise _malformed("The upstream's answer is too large.", call)
        self.ended = True
        if completes_text(call.request, call.deployment):
            body = text_as_chat(body, stream=self.as_chunk)
        if self.reader is not None:
            return [self.reader.whole(body)]
        event = _decoded(call, body)
        if event.choices == 0:
            raise _malformed("The upstream's answer has no content.", call)
        event = regular_answer(event, call.request, call.request_id, call.deployment.deployment_id)
        if self.as_chunk:
            chunk = completion_as_chunk(event.payload, call.deployment.deployment_id)
            event = msgspec.structs.replace(event, payload=chunk)
        return [event]

    def unread(self) -> list[Event]:
        """Return nothing, always: a part of a body cannot be decoded."""
        return []

    async def aclose(self) -> None:
        """Close it once its last read has been used."""
        self.pool.release(self.connection)
        self.share.give_back()


_EVENT_BYTES: Final = 512
"""Bytes that an event costs beside its own."""


class _Stream:
    """A streamed reply of server-sent events."""

    __slots__ = (
        "_before",
        "_call",
        "_closed",
        "_connection",
        "_deployment_id",
        "_failure",
        "_finished",
        "_has_spoken",
        "_has_usage",
        "_idle_bytes",
        "_is_text",
        "_left",
        "_max_event_bytes",
        "_over_at",
        "_parser",
        "_pool",
        "_reader",
        "_regular",
        "_runs",
        "_secret",
        "_share",
        "ended",
    )

    def __init__(
        self,
        pool: ConnectionPool,
        connection: Connection,
        call: UpstreamCall,
        limits: HttpLimits,
        share: Share,
        reader: ReplyReader | None,
    ) -> None:
        self._pool = pool
        self._share = share
        self._connection = connection
        self._call = call
        self._deployment_id = call.deployment.deployment_id
        self._secret = call.deployment.api_key
        self._is_text = completes_text(call.request, call.deployment)
        self._reader = reader
        self._parser = SseParser(limits.max_event_bytes)
        self._max_event_bytes = limits.max_event_bytes
        self._runs = DeltaCoalescer() if reader is None and not self._is_text else None
        self._regular: RegularStream | None = None
        """Reads all events from the first odd one on."""
        self._left = limits.max_reply_bytes
        self._failure: UpstreamError | None = None
        self._finished = 0
        """Answers that have a finish reason."""
        self._has_usage = False
        """True once usage came with the last finish reason, or behind it."""
        self._over_at = math.inf
        """The time by which the stream is over, though its end marker did not come."""
        self._idle_bytes = 0
        self._before = 0
        """Bytes of the events before the first token, which the reader holds until then."""
        self._has_spoken = False
        self.ended = False
        self._closed = False

    async def read(self) -> list[Event] | None:
        while not self.ended:
            if self._failure is not None:
                raise self._failure
            try:
                data = await self._connection.read()
            except READ_ERRORS as error:
                if self._over_at == math.inf or not isinstance(error, ReplySilent):
                    raise read_error(error, self._call) from error
                # Nothing more was to come but the end marker, or a count.
                self.ended = True
                return None
            events = self._heard(data)
            if not data:
                self._end_at_eof()
            elif not events and time.monotonic() >= self._over_at:
                self.ended = True
            if events and self._has_spoken:
                return events
            try:
                self._share.grow(self._held_after(len(data), events))
            except HeldTooMuch as error:
                raise read_error(error, self._call) from error
            if events:
                return events
        return None

    def _held_after(self, read: int, events: list[Event]) -> int:
        """Return the bytes that are held of the stream: of an event that is not whole, and, until it speaks, of all events."""
        if not self._has_spoken:
            self._has_spoken = any(event.token or event.finished for event in events)
            self._before = 0 if self._has_spoken else self._before + read + _EVENT_BYTES * len(events)
        return self._before + self._parser.held_bytes

    def limit_silence(self, idle_s: float) -> None:
        self._connection.limit_silence(idle_s)

    def unread(self) -> list[Event]:
        if self.ended or self._closed or self._failure is not None:
            return []
        try:
            data = self._connection.take()
            return self._heard(data) if data else []
        except (*READ_ERRORS, MalformedReply):
            return []

    def _heard(self, data: bytes) -> list[Event]:
        """Decode a read; an empty one is the stream's end."""
        self._left -= len(data)
        if self._left < 0:
            raise MalformedReply("The upstream's stream is too long.", deployment_id=self._deployment_id)
        try:
            if len(data) < _MANY_BYTES or data.find(_EVENT_END, 0, -len(_EVENT_END)) < 0:
                events = self._events(data)
            else:
                # The upstream speaks faster than it is listened to: fewer, larger reads let it be listened to faster.
                self._connection.gather()
                events = self._many(data)
        except EventTooLarge as error:
            raise MalformedReply(
                "The upstream sent an event that is too large.", deployment_id=self._deployment_id
            ) from error
        if events:
            self._idle_bytes = 0
        else:
            self._count_idle(len(data))
        return events

    def _count_idle(self, count: int) -> None:
        """Count bytes without content: comments and empty events. A held part of an event may still become one."""
        self._idle_bytes += count
        if self._idle_bytes - self._parser.held_bytes > _MAX_IDLE_BYTES:
            raise MalformedReply("The upstream streams and says nothing.", deployment_id=self._deployment_id)

    def _many(self, data: bytes) -> list[Event]:
        """Decode a read of several events, which may hold a run of words."""
        found = self._runs.find(data) if self._runs is not None and len(data) <= self._max_event_bytes else None
        if found is None:
            return self._events(data)
        events = self._events(data[: found.start]) if found.start else []
        if self.ended or self._failure is not None:
            return events
        if self._regular is not None or not self._parser.is_between_events:
            return events + self._events(data[found.start :])
        events.append(found.event)
        if self._over_at < math.inf:
            self._goes_on()
        return events + self._events(data[found.end :]) if found.end < len(data) else events

    def _events(self, data: bytes) -> list[Event]:
        """Return events up to the end marker, or up to a broken one: what came before it was generated and counts."""
        events: list[Event] = []
        for payload in self._parser.feed(data) if data else self._parser.finish():
            if payload[:1] != b"{":
                payload = payload.strip()  # noqa: PLW2901  # Blanks around the end marker do not hide it.
                if payload == DONE:
                    self._end()
                    break
                if not payload:
                    continue
            if self._is_text:
                payload = text_as_chat(payload, stream=True)  # noqa: PLW2901  # From here on it is a chat's.
            reader = self._reader
            try:
                event = (
                    decode_event(payload, self._deployment_id, self._secret)
                    if reader is None
                    else reader.event(payload)
                )
            except UpstreamError as error:
                self._failure = error
                break
            if event.finished or self._finished:
                self._expect_end(event)
            if not self._add(event, events):
                break
            if reader is not None and reader.ended:
                self._end()
                break
        return events

    def _expect_end(self, event: Event) -> None:
        """Wait only for a moment for what may stand behind the last finish reason."""
        if event.finished:
            self._finished += event.choices
        elif event.token and self._over_at < math.inf:
            self._goes_on()
            return
        elif event.usage is None:
            return
        self._has_usage = self._has_usage or event.usage is not None
        if self._finished >= self._call.request.n:
            wait_s = _NO_END_YET_S if self._has_usage else _NO_USAGE_YET_S
            self._over_at = time.monotonic() + wait_s
            self._connection.limit_silence(wait_s)

    def _goes_on(self) -> None:
        """Wait as before: the finish reason was not the last word."""
        self._finished -= 1
        self._over_at = math.inf
        self._connection.limit_silence(self._call.idle_timeout_s)

    def _add(self, event: Event, events: list[Event]) -> bool:
        """Add an event that came. Return False where it broke the stream."""
        if event.odd or self._regular is not None:
            return self._add_regular(event, events)
        if event.payload != EMPTY_OBJECT or event.native:
            events.append(event)
        return True

    def _add_regular(self, event: Event, events: list[Event]) -> bool:
        """Add the event in OpenAI's form, and what was held back before it."""
        if self._regular is None:
            call = self._call
            self._regular, self._runs = RegularStream(call.request, call.request_id, self._deployment_id), None
        try:
            found = self._regular.events(event)
        except UpstreamError as error:
            self._failure = error
            return False
        if not found:
            # It waits for the rest of a call, so it is not silence.
            self._idle_bytes -= len(event.payload)
        events += found
        return True

    def _end(self) -> None:
        """End the stream at its end marker, which counts for nothing where no finish reason came: it was cut off."""
        if self._finished:
            self.ended = True
        else:
            self._failure = self._cut()

    def _cut(self) -> StreamCut:
        return StreamCut("The upstream ended the stream before it was finished.", deployment_id=self._deployment_id)

    def _end_at_eof(self) -> None:
        """End the stream. Raises StreamCut unless a finish reason came: some upstreams never send [DONE] after it."""
        if self.ended:
            return
        if not self._finished:
            # A half event at the end is no malformed one: it was cut off.
            raise self._cut()
        self.ended = True

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            if self.ended:
                await self._drain_tail()
        finally:
            self._pool.release(self._connection)
            self._parser.clear()
            self._share.give_back()

    async def _drain_tail(self) -> None:
        """Read the end of the HTTP body, for a moment, so that the connection can be reused."""
        if self._connection.at_eof:
            return
        size = 0
        try:
            async with asyncio.timeout(_TAIL_S):
                while size < _MAX_TAIL_BYTES and (data := await self._connection.read()):
                    size += len(data)
        except READ_ERRORS:
            return
