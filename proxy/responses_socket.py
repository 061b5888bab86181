"""GET /v1/responses as a WebSocket: one response after the other, each as the events of its stream, without new
connections.

A message is a request's body with `type: response.create`. Each turn goes through the whole pipeline, as a POST would;
beside that, the caller's last response is remembered for as long as its socket, whether it is kept or not.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from cost.times import wall_us
from providers.held_bytes import HeldBytes
from providers.wire import ChatRequest
from proxy.errors import BadRequest, Draining, ErrorReply, MethodNotAllowed, ReadsOnly, error_reply
from proxy.http.exchange import Exchange, ProtocolUpgrade
from proxy.http.head import Header
from proxy.http.in_memory import post_of
from proxy.http.request_id import new_request_id
from proxy.http.websocket import PROTOCOL, WebSocket
from proxy.parse.headers import RequestHeaders, read_headers
from proxy.parse.wires.reading import encoded, object_of
from proxy.parse.wires.responses.parser import read_warming
from proxy.parse.wires.responses.wire import RESPONSES
from proxy.parse.wires.wire import IsModel, Kept, Understood, Wire
from proxy.pipeline import RequestPipeline

_LONGEST_S: Final = 3_600.0
_CREATE: Final = "response.create"
_PROCESSED: Final = "response.processed"
"""The type of the receipt that Codex sends for an answer."""
_OF_TRANSPORT: Final = ("stream", "background", "stream_options")
"""Fields that mean nothing here: a socket always streams."""
_NOT_OF_TURNS: Final = frozenset({b"idempotency-key", b"sec-websocket-key", b"sec-websocket-version", b"connection"})
_OK: Final = 200
_SECOND_US: Final = 1_000_000
_GOING_AWAY: Final = 1001
_RESTARTS: Final = 1012
_EVENT_END: Final = b"\n\n"
_DATA: Final = b"\ndata: "
_FAILED: Final = b"event: response.failed\n"


class ResponsesSocket:
    """The route that answers handshakes and serves their sockets."""

    def __init__(self, pipeline: RequestPipeline, clock: Callable[[], float] = time.monotonic) -> None:
        self._pipeline = pipeline
        self._clock = clock

    async def serve(self, exchange: Exchange) -> None:
        """Serve one socket to its end. Raises a refusal of the handshake."""
        if exchange.upgrade != PROTOCOL:
            raise MethodNotAllowed("POST, or GET as a WebSocket")
        if exchange.length != 0:
            raise BadRequest("A request for a WebSocket has no body.")
        if self._pipeline.draining:
            raise Draining("This gateway process is stopping; connect again.", retry_after_s=1.0)
        caller = await self._pipeline.parser.authenticate(read_headers(exchange.headers), exchange.headers)
        if caller.reads_only:
            raise ReadsOnly
        session = _Session(self._pipeline, exchange)
        ends_at = self._clock() + _LONGEST_S
        while (message := await session.socket.message(lambda: ends_at - self._clock())) is not None:
            await session.answer(message)
        session.end()


class _Session:
    """The session of one socket."""

    def __init__(self, pipeline: RequestPipeline, exchange: Exchange) -> None:
        self._pipeline = pipeline
        self._exchange = exchange
        self._turn: _Turn | None = None
        self._memory = _Memory(exchange)
        self._headers = [header for header in exchange.headers if header[0] not in _NOT_OF_TURNS]
        self.socket = WebSocket(exchange, pipeline.config.max_body_bytes, self._lost)

    async def answer(self, message: str) -> None:
        """Answer one message, to its end."""
        try:
            data = message.encode()
            fields = await self._pipeline.parser.bodies.read(data, lambda: _asked(data))
            if fields is None:
                return
            generates = fields.pop("generate", True) is not False
            body = await self._pipeline.parser.bodies.read(data, lambda: encoded({**fields, "stream": True}))
        except BadRequest as error:
            self._refuse(error_reply(error))
            return
        turn = self._turn = _Turn(body, self._headers, self._exchange, self.socket)
        wire = RESPONSES if generates else _warming(self._memory)
        try:
            await self._pipeline.serve(wire, turn, self._memory)
        finally:
            self._turn = None
            turn.release()
        if turn.has_failed:
            # A failed turn must not be continued as if its state were known.
            self._memory.forget(fields.get("previous_response_id"))

    def end(self) -> None:
        """Send the reason for which there are no more turns, unless the caller is gone."""
        if self.socket.is_leaving:
            self.socket.close(_RESTARTS, "the gateway restarts; connect again")
            return
        if self.socket.is_open:
            self._refuse(
                error_reply(
                    BadRequest(
                        f"A socket is open for {_LONGEST_S:g} s at most; connect again.",
                        code="websocket_connection_limit_reached",
                    )
                )
            )
        self.socket.close(_GOING_AWAY)

    def _refuse(self, told: ErrorReply) -> None:
        self.socket.send(_error_message(told.status, told.body))

    def _lost(self) -> None:
        if self._turn is not None:
            self._turn.lost("hung_up")


class _Turn(Exchange):
    """A request of a socket, whose reply's events are its messages."""

    def __init__(self, body: bytes, headers: Sequence[Header], outer: Exchange, socket: WebSocket) -> None:
        super().__init__(post_of(body, headers, RESPONSES.path), _SocketWire(outer), HeldBytes(len(body)))
        self._socket = socket
        self.has_failed = False
        self.add_body(body, whole=True)
        if not socket.is_open:
            self.lost("hung_up")

    def respond(self, status: int, headers: Sequence[Header], body: bytes = b"", lines: bytes = b"") -> None:
        super().respond(status, headers, body, lines)
        if status == _OK:
            self._tell(body)
        else:
            self.has_failed = True
            self._socket.send(_error_message(status, body))

    def write(self, data: bytes) -> None:
        super().write(data)
        self._tell(data)

    def end(self, data: bytes = b"") -> None:
        super().end(data)
        self._tell(data)

    def abort(self) -> None:
        self.has_failed = True
        super().abort()

    def _tell(self, events: bytes) -> None:
        """Send each event as a message."""
        for event in events.split(_EVENT_END):
            name, found, told = event.partition(_DATA)
            if found:
                self.has_failed = self.has_failed or (name + b"\n") == _FAILED
                self._socket.send(told.decode())


class _SocketWire:
    """The wire of one turn's exchange: its replies are sent as messages, and the socket goes on."""

    def __init__(self, outer: Exchange) -> None:
        self._outer = outer
        self.peer = outer.peer
        self.tls = outer.tls

    @property
    def blocked_since(self) -> float | None:
        return self._outer.blocked_since

    async def drained(self) -> None:
        await self._outer.drained()

    def abort(self) -> None:
        self._outer.abort()

    def tail(self, exchange: Exchange, *, closes: bool) -> bytes:  # noqa: ARG002 - the connection's signature
        return b"\r\n"

    def write(self, data: bytes) -> None:
        pass

    def more_wanted(self, *, whole: bool) -> None:
        pass

    def reply_ended(self) -> None:
        pass

    def switched(self, upgraded: ProtocolUpgrade) -> None:
        pass

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass

    def close(self) -> None:
        pass


class _Memory:
    """The last response of one socket, as far as there is room for it."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._name = ""
        self._record = b""

    def find(self, name: str) -> bytes | None:
        return self._record if name == self._name else None

    def remember(self, kept: Kept) -> None:
        self.forget(self._name)
        if self._exchange.hold(len(kept.record)):
            self._name, self._record = kept.response_id, kept.record

    def forget(self, name: Any) -> None:
        if name == self._name:
            self._exchange.let_go(len(self._record))
            self._name, self._record = "", b""


def _asked(message: bytes) -> dict[str, Any] | None:
    """Return the fields of a request, None for a receipt, which needs no answer. Raises BadRequest."""
    fields = object_of(message)
    kind = fields.pop("type", None)
    if kind == _PROCESSED:
        return None
    if kind != _CREATE:
        raise BadRequest(f"A message here has the `type` `{_CREATE}`.", param="type")
    if fields.get("stream_id") is not None:
        raise BadRequest(
            "A socket answers one request after the other here: open another one instead of a `stream_id`.",
            param="stream_id",
            code="unsupported_parameter",
        )
    for name in _OF_TRANSPORT:
        fields.pop(name, None)
    return fields


def _warming(memory: _Memory) -> Wire:
    """Return the wire of a turn with `generate: false`: no model is asked, and the request is remembered."""
    told = b""

    def read(body: bytes, headers: RequestHeaders, is_model: IsModel) -> Understood:
        nonlocal told
        del is_model
        understood, kept = read_warming(body, headers, new_request_id(), wall_us() // _SECOND_US)
        memory.remember(kept)
        told = kept.told
        return understood

    def answer(_request: ChatRequest, _input_tokens: int) -> tuple[bytes, tuple[Header, ...]]:
        return told, ()

    return msgspec.structs.replace(RESPONSES, read=read, answer=answer)


def _error_message(status: int, body: bytes) -> str:
    """Return an error in the shape of a WebSocket's message, and in that of a stream's event."""
    error = msgspec.json.decode(body, type=dict[str, Any])["error"]
    told = {name: error.get(name) for name in ("code", "message", "param")}
    event = {"type": "error", "sequence_number": 0, "status": status, **told, "error": error}
    return msgspec.json.encode(event).decode()
