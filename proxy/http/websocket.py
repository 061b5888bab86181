"""A WebSocket on a connection that began with HTTP: whole text messages in order, within bounds. No extensions."""

import asyncio
import base64
import binascii
from collections import deque
from collections.abc import Callable
from typing import Final

from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, Pong, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError, generate_accept_token

from proxy.errors import BadRequest
from proxy.http.exchange import Exchange

PROTOCOL: Final = b"websocket"
_VERSION: Final = b"13"
_KEY_BYTES: Final = 16
_MAX_WAITING: Final = 16
"""The number of unread messages at which no more are read from the caller."""
_MOST_EVENTS: Final = 512
"""The most frames in one read of at most 256 kB: each costs the same work, however short, and a read is one turn of
the loop.
"""
_FREE_PARTS: Final = 1_024
_BYTES_A_PART: Final = 256
"""The least mean bytes of the parts of a message beyond the first _FREE_PARTS."""
_PING_S: Final = 30.0
"""Seconds of silence after which a caller is pinged; one that does not answer the ping is gone."""


class WebSocket:
    """One caller's WebSocket. `lost` is called once when the caller is gone or has said that it goes."""

    def __init__(self, exchange: Exchange, max_message_bytes: int, lost: Callable[[], None]) -> None:
        """Answer the handshake. Raises BadRequest for one that is none."""
        token = _accepted(exchange)
        self._exchange = exchange
        self._max_bytes = max_message_bytes
        self._lost = lost
        self._frames = Connection(ConnectionType.SERVER)
        self._parts: list[str] = []
        self._size = 0
        self._messages: deque[str] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._has_heard = True
        self._is_paused = False
        self.is_leaving = False
        """True once the server wants to stop."""
        self.is_open = True
        exchange.on_gone = self._gone
        exchange.switch(((b"sec-websocket-accept", token),), self)

    async def message(self, until: Callable[[], float]) -> str | None:
        """Return the next message; None once the caller is gone, the server wants to stop, or no time is left.
        `until` returns the seconds that are left.
        """
        while not self._messages:
            left_s = until()
            if not self.is_open or self.is_leaving or left_s <= 0:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            await asyncio.wait({self._waiter}, timeout=min(left_s, _PING_S))
            if not self._waiter.done() and left_s > _PING_S:
                self._look()
        message = self._messages.popleft()
        self._exchange.let_go(len(message))
        if self._is_paused and len(self._messages) < _MAX_WAITING:
            self._is_paused = False
            self._exchange.resume()
        return message

    def send(self, text: str) -> None:
        """Send a message. Wait for the exchange's `drained` before more of it."""
        if self.is_open:
            self._send(TextMessage(data=text))

    def close(self, code: int, reason: str = "") -> None:
        """Close with a code of RFC 6455 and its reason."""
        if self.is_open:
            self.is_open = False
            self._send(CloseConnection(code=code, reason=reason))
        self._exchange.finish()
        self._wake()

    # The connection's side.

    def data_received(self, data: bytes) -> None:
        """Read bytes from the caller."""
        self._has_heard = True
        if not self.is_open:
            return
        self._frames.receive_data(data)
        for number, event in enumerate(self._frames.events()):
            if number >= _MOST_EVENTS:
                self._end(CloseReason.POLICY_VIOLATION, "there are very many small frames")
                return
            self._take(event)

    def leave(self) -> None:
        """End as soon as nothing is under way."""
        self.is_leaving = True
        self._wake()

    def _take(self, event: Event) -> None:
        if not self.is_open:
            # Closed by a frame of the same read.
            return
        match event:
            case TextMessage():
                self._take_text(event)
            case Ping():
                # One that does not take what it is sent is not asked to take more.
                if self._exchange.blocked_since is None:
                    self._send(event.response())
            case Pong():
                pass
            case CloseConnection():
                self._closed_by_caller(event)
            case BytesMessage():
                self._end(CloseReason.UNSUPPORTED_DATA, "messages are text here")

    def _take_text(self, event: TextMessage) -> None:
        self._size += len(event.data)
        if self._size > self._max_bytes:
            self._end(CloseReason.MESSAGE_TOO_BIG, f"a message has at most {self._max_bytes} bytes")
            return
        if len(self._parts) > _FREE_PARTS + self._size // _BYTES_A_PART:
            self._end(CloseReason.POLICY_VIOLATION, "a message comes in very many small parts")
            return
        if not self._exchange.hold(len(event.data)):
            self._end(CloseReason.TRY_AGAIN_LATER, "the gateway holds as many bytes as it may")
            return
        self._parts.append(event.data)
        if not event.message_finished:
            return
        self._messages.append("".join(self._parts))
        self._parts, self._size = [], 0
        if len(self._messages) >= _MAX_WAITING and not self._is_paused:
            self._is_paused = True
            self._exchange.pause()
        self._wake()

    def _closed_by_caller(self, event: CloseConnection) -> None:
        """Close after the caller did, or after a violation of the protocol, which the event's code names."""
        self.is_open = False
        if self._frames.state in {ConnectionState.OPEN, ConnectionState.REMOTE_CLOSING}:
            code = event.code if event.code != CloseReason.NO_STATUS_RCVD else CloseReason.NORMAL_CLOSURE
            self._send(CloseConnection(code=code))
        self._exchange.finish()
        self._gone()

    def _end(self, code: int, reason: str) -> None:
        self.close(code, reason)
        self._gone()

    def _gone(self) -> None:
        self.is_open = False
        self._messages.clear()
        self._parts = []
        lost, self._lost = self._lost, _nothing
        lost()
        self._wake()

    def _look(self) -> None:
        if not self._has_heard:
            self._exchange.abort()
            self._gone()
            return
        self._has_heard = False
        self._send(Ping())

    def _send(self, event: Event) -> None:
        try:
            self._exchange.send(self._frames.send(event))
        except LocalProtocolError:
            # The caller has ended it by now.
            self._gone()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _nothing() -> None:
    """Do nothing: the caller needs no second notice."""


def _accepted(exchange: Exchange) -> bytes:
    """Return the token that answers the handshake. Raises BadRequest."""
    key = exchange.field(b"sec-websocket-key") or b""
    try:
        is_sound = len(base64.b64decode(key, validate=True)) == _KEY_BYTES
    except binascii.Error:
        is_sound = False
    if not is_sound or exchange.version != "1.1" or exchange.field(b"sec-websocket-version") != _VERSION:
        raise BadRequest("This is no handshake of a WebSocket of version 13 (RFC 6455).")
    return generate_accept_token(key)
