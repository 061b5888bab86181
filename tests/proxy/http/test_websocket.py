"""WebSockets against another implementation's frames, in any pieces, and against bytes that are none."""

import asyncio
import random
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, Pong, TextMessage

from providers.held_bytes import HeldBytes
from proxy.errors import BadRequest
from proxy.http.exchange import Exchange, ProtocolUpgrade
from proxy.http.head import parse_head
from proxy.http.websocket import WebSocket

_HANDSHAKE: Final = (
    b"GET /v1/responses HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
MOST: Final = 64


class Line:
    """A connection that keeps what is written, and a caller at its other end."""

    peer = None
    tls = False

    def __init__(self, held: int = 10_000) -> None:
        self.written = b""
        self.blocked_since: float | None = None
        self.is_paused = self.is_closed = False
        self.times_lost = 0
        self.caller = Connection(ConnectionType.CLIENT)
        self.held = HeldBytes(held)
        self.exchange = Exchange(parse_head(_HANDSHAKE, 10_000, 100), self, self.held)
        self.socket = WebSocket(self.exchange, MOST, self._lost)
        head, _, self.written = self.written.partition(b"\r\n\r\n")
        self.head = head

    def _lost(self) -> None:
        self.times_lost += 1

    def say(self, *events: Event) -> None:
        """The caller sends these, in pieces."""
        data = b"".join(self.caller.send(event) for event in events)
        cut = random.Random(len(data)).randint(0, len(data))
        self.socket.data_received(data[:cut])
        self.socket.data_received(data[cut:])

    def heard(self) -> list[Event]:
        """What the caller has been sent since the last time."""
        data, self.written = self.written, b""
        self.caller.receive_data(data)
        return list(self.caller.events())

    async def next(self) -> str | None:
        return await self.socket.message(lambda: 0.0 if not self.socket.is_open else 5.0)

    # The connection.

    def write(self, data: bytes) -> None:
        self.written += data

    async def drained(self) -> None:
        """Nothing is waited for."""

    def abort(self) -> None:
        self.is_closed = True

    def close(self) -> None:
        self.is_closed = True

    def more_wanted(self, *, whole: bool) -> None:
        """A handshake has no body."""

    def tail(self, exchange: Exchange, *, closes: bool) -> bytes:
        """No further fields."""
        return b"\r\n"

    def reply_ended(self) -> None:
        """It was switched."""

    def switched(self, upgraded: ProtocolUpgrade) -> None:
        """The test hands over the bytes."""

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False


async def test_the_handshake_is_answered_as_published() -> None:
    """With the token of RFC 6455's own example."""
    line = Line()
    assert line.head.startswith(b"HTTP/1.1 101 ")
    assert b"sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in line.head
    assert line.exchange.status == 101


async def test_messages_come_whole_and_in_order() -> None:
    """Fragmented or not, in any pieces of bytes; a ping between is answered."""
    line = Line()
    line.say(
        TextMessage("on", message_finished=False),
        Ping(b"there?"),
        TextMessage("e é", message_finished=True),
        TextMessage("two"),
    )
    assert [await line.next(), await line.next()] == ["one é", "two"]
    assert line.heard() == [Pong(b"there?")]
    line.socket.send("three 😀")
    assert line.heard() == [TextMessage("three 😀")]


async def test_what_waits_is_bounded() -> None:
    """At 16 messages nothing more is taken; when they are read it goes on. What is held is given back."""
    line = Line()
    line.say(*(TextMessage(str(number)) for number in range(16)))
    was_paused = line.is_paused
    assert [await line.next() for _ in range(16)] == [str(number) for number in range(16)]
    assert (was_paused, line.is_paused) == (True, False)
    assert line.held.take(10_000)


@pytest.mark.parametrize(
    ("events", "held", "code"),
    [
        ([TextMessage("x" * (MOST + 1))], 10_000, 1009),
        ([TextMessage("x" * 40, message_finished=False), TextMessage("x" * 40)], 10_000, 1009),
        ([TextMessage("x" * 40)], 39, 1013),
        ([BytesMessage(b"x")], 10_000, 1003),
        ([CloseConnection(1000, "bye")], 10_000, 1000),
        ([CloseConnection(4001)], 10_000, 4001),
    ],
)
async def test_an_end_has_its_code(events: list[Event], held: int, code: int) -> None:
    """Who was under way is told once, and nothing is read after."""
    line = Line(held)
    line.say(*events)
    assert await line.next() is None
    (closed,) = line.heard()
    assert isinstance(closed, CloseConnection)
    assert (closed.code, line.times_lost, line.is_closed) == (code, 1, True)
    line.socket.data_received(b"more")
    line.exchange.lost("hung_up")
    assert line.times_lost == 1


@pytest.mark.parametrize("frame", [b"\x8a\x80\0\0\0\0", b"\x89\x80\0\0\0\0", b"\x00\x80\0\0\0\0"])
def test_frames_that_say_nothing_keep_the_loop_from_nobody(frame: bytes) -> None:
    """Pongs, pings and empty parts are taken one by one: of a read that is full of them no more than a few hundred are."""
    line = Line()
    line.socket.data_received(b"\x01\x80\0\0\0\0" + frame * 400)
    assert line.socket.is_open
    line.socket.data_received(frame * 40_000)
    (told,) = [event for event in line.heard() if isinstance(event, CloseConnection)]
    assert told.code == 1008
    assert (line.is_closed, line.times_lost) == (True, 1)


def test_a_message_has_a_bounded_number_of_parts() -> None:
    """Each is kept until the last, so parts without text may not go on for ever; a message of usual parts is whole."""
    line = Line()
    line.socket.data_received(b"\x01\x81\0\0\0\0x")
    for _ in range(10):
        line.socket.data_received(b"\x00\x80\0\0\0\0" * 100)
    assert line.socket.is_open
    line.socket.data_received(b"\x00\x80\0\0\0\0" * 100)
    (told,) = line.heard()
    assert isinstance(told, CloseConnection)
    assert told.code == 1008
    assert line.socket._parts == []


async def test_a_caller_that_is_lost_ends_the_waiting() -> None:
    """Whoever waits for its next message."""
    line = Line()
    waiting = asyncio.create_task(line.next())
    await asyncio.sleep(0)
    line.exchange.lost("hung_up")
    assert await waiting is None
    assert line.times_lost == 1


async def test_one_that_does_not_read_is_sent_no_pongs() -> None:
    """Else its pings would fill the memory."""
    line = Line()
    line.blocked_since = 1.0
    line.say(*(Ping(b"x" * 100) for _ in range(100)))
    assert line.written == b""


@given(st.lists(st.binary(max_size=40), max_size=8), st.booleans())
def test_any_bytes_break_nothing(pieces: list[bytes], masked: bool) -> None:
    """Whatever comes, the socket goes on, or has ended once, with a code where one can be sent."""

    async def play() -> None:
        line = Line()
        for piece in pieces:
            line.socket.data_received((b"\x81\x85\x00\x00\x00\x00" if masked else b"") + piece)
        assert line.times_lost == (0 if line.socket.is_open else 1)
        assert line.exchange.ended is not line.socket.is_open
        line.socket.close(1001)
        assert line.is_closed

    asyncio.run(play())


@pytest.mark.parametrize(
    "changed",
    [
        (b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n", b""),
        (b"dGhlIHNhbXBsZSBub25jZQ==", b"%%%"),
        (b"version: 13", b"version: 8"),
        (b"HTTP/1.1", b"HTTP/1.0"),
    ],
)
async def test_what_is_no_handshake_is_not_answered(changed: Any) -> None:
    """Nothing is written, so that the refusal can be."""
    line = Line()
    exchange = Exchange(parse_head(_HANDSHAKE.replace(*changed), 10_000, 100), line, HeldBytes(100))
    with pytest.raises(BadRequest):
        WebSocket(exchange, MOST, lambda: None)
    assert (exchange.started, line.written) == (False, b"")
