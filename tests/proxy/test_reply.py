"""Reading a body within its limits, and writing a reply once."""

import asyncio
from typing import Any

import pytest
from starlette.types import Message

from proxy.errors import BodyTooLarge
from proxy.reply import Reply, read_body


def scope(length: int | None) -> dict[str, Any]:
    return {"headers": [] if length is None else [(b"content-length", str(length).encode())]}


def incoming(*messages: Message) -> Any:
    queue = iter(messages)

    async def receive() -> Message:
        message = next(queue, None)
        if message is None:
            await asyncio.sleep(60)
        assert message is not None
        return message

    return receive


def piece(data: bytes, *, more: bool) -> Message:
    return {"type": "http.request", "body": data, "more_body": more}


@pytest.mark.parametrize("length", [5, None])
async def test_a_body_in_pieces_is_put_together(length: int | None) -> None:
    """With and without a declared length."""
    receive = incoming(piece(b"ab", more=True), piece(b"cde", more=False))
    assert await read_body(scope(length), receive, max_bytes=5) == b"abcde"


async def test_a_declared_length_above_the_limit_is_refused_unread() -> None:
    """Nothing is received at all."""
    with pytest.raises(BodyTooLarge):
        await read_body(scope(6), incoming(), max_bytes=5)


async def test_a_body_that_grows_above_the_limit_is_refused() -> None:
    """Chunked uploads cannot hide their size."""
    with pytest.raises(BodyTooLarge):
        await read_body(scope(None), incoming(piece(b"abc", more=True), piece(b"def", more=True)), max_bytes=5)


async def test_a_caller_that_leaves_while_uploading_is_a_cancellation() -> None:
    """There is nobody left to tell."""
    with pytest.raises(asyncio.CancelledError):
        await read_body(scope(5), incoming({"type": "http.disconnect"}), max_bytes=5)


async def test_an_abort_resets_the_servers_transport() -> None:
    """Uvicorn's send is a bound method of what holds the transport; another server's is not, and that is fine."""

    class Transport:
        aborted = False

        def abort(self) -> None:
            self.aborted = True

    class Cycle:
        transport = Transport()

        async def send(self, message: Message) -> None:
            raise AssertionError(message)

    cycle = Cycle()
    Reply(cycle.send, lambda: 0.0).abort()
    assert cycle.transport.aborted

    async def plain(_message: Message) -> None: ...

    Reply(plain, lambda: 0.0).abort()
