"""A standstill makes timers due; what came in time is read before they end anything. On asyncio's loop, and on uvloop's, which serves."""

import asyncio
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from providers.connections.connection import Connection
from providers.connections.errors import ReplySilent
from providers.connections.gathering import Gathering
from proxy.dispatch.attempt_timeout import AttemptTimeouts

Loop = Callable[[], asyncio.AbstractEventLoop]
LIMIT_S = 0.05
LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])


def on(loop: Loop, story: Coroutine[Any, Any, bytes]) -> bytes:
    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(story)


def stand_still(peer: socket.socket, said: bytes) -> None:
    """The peer speaks in time, and this process goes on only when it is too late."""
    peer.sendall(said)
    time.sleep(2 * LIMIT_S)


async def first_word(said: bytes) -> bytes:
    ours, peer = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    try:
        with peer, AttemptTimeouts().within(LIMIT_S):
            asyncio.get_running_loop().call_soon(stand_still, peer, said)
            return await reader.read(10)
    finally:
        writer.close()


@LOOPS
def test_who_stood_still_reads_first(loop: Loop) -> None:
    assert on(loop, first_word(b"token")) == b"token"


@LOOPS
def test_who_has_nothing_to_read_is_late(loop: Loop) -> None:
    with pytest.raises(TimeoutError):
        on(loop, first_word(b""))


async def second_word(said: bytes) -> bytes:
    ours, peer = socket.socketpair()
    running = asyncio.get_running_loop()
    _, connection = await running.create_connection(
        lambda: Connection(running, lambda gone: None, Gathering(0.0)), sock=ours
    )
    with peer:
        connection.send(b"GET / HTTP/1.1\r\n\r\n", running.time() + 60)
        peer.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\none")
        await connection.reply_begins()
        assert await connection.read() == b"one"
        connection.limit_silence(LIMIT_S)
        running.call_soon(stand_still, peer, said)
        try:
            return await connection.read()
        finally:
            connection.cut()


@LOOPS
def test_a_reply_is_not_silent_while_nobody_listens(loop: Loop) -> None:
    assert on(loop, second_word(b"two")) == b"two"


@LOOPS
def test_a_silent_reply_ends(loop: Loop) -> None:
    with pytest.raises(ReplySilent):
        on(loop, second_word(b""))
