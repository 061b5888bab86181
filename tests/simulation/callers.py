"""Callers in the simulated network: each asks once over a connection of its own, and some are impolite."""

import asyncio
import json
from typing import Any, Literal

import httptools
import msgspec

from tests.simulation.upstream import WORD

Manner = Literal["patient", "hangs_up", "slow_reader", "half_closes"]


class Asked(msgspec.Struct, kw_only=True):
    """One request, and what came of it."""

    nonce: int
    team: str
    key: str
    model: str
    stream: bool
    max_tokens: int
    manner: Manner
    idempotency_key: str = ""
    began_at: float = 0.0
    ended_at: float | None = None
    end: Literal["", "whole", "cut", "refused_connection", "gave_up"] = ""
    status: int = 0
    request_id: str = ""
    body: bytes = b""
    first_word_at: float | None = None

    @property
    def words(self) -> list[str]:
        """The answer's words, as far as they came."""
        return WORD.findall(self.body.decode(errors="replace"))

    @property
    def answered(self) -> bool:
        """True for a good answer that came whole."""
        broken = b'"error"' in self.body
        done = not self.stream or b"[DONE]" in self.body
        return self.end == "whole" and self.status == 200 and done and not broken


class _Reply(asyncio.Protocol):
    def __init__(self, asked: Asked, loop: asyncio.AbstractEventLoop) -> None:
        self._asked = asked
        self._loop = loop
        self._parser = httptools.HttpResponseParser(self)
        self.over: asyncio.Future[None] = loop.create_future()
        self.transport: asyncio.Transport

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)
        if self._asked.manner == "slow_reader":
            self.transport.pause_reading()
            self._loop.call_later(0.2, self.transport.resume_reading)

    def eof_received(self) -> None:
        self._end("cut")

    def connection_lost(self, exc: Exception | None) -> None:
        self._end("cut")

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-request-id":
            self._asked.request_id = value.decode()

    def on_headers_complete(self) -> None:
        self._asked.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self._asked.body += data
        if self._asked.first_word_at is None and WORD.search(self._asked.body.decode(errors="replace")):
            self._asked.first_word_at = self._loop.time()

    def on_message_complete(self) -> None:
        self._end("whole")

    def _end(self, how: Literal["whole", "cut"]) -> None:
        if not self._asked.end:
            self._asked.end = how
        if not self.over.done():
            self.over.set_result(None)


async def ask(asked: Asked, address: tuple[str, int], hang_up_s: float) -> None:
    """Send a request and read its answer to its end, or to the caller's."""
    loop = asyncio.get_running_loop()
    asked.began_at = loop.time()
    try:
        async with asyncio.timeout(5.0):
            transport, reply = await loop.create_connection(lambda: _Reply(asked, loop), *address)
    except OSError:
        asked.end, asked.ended_at = "refused_connection", loop.time()
        return
    transport.write(_request_of(asked))
    if asked.manner == "half_closes":
        transport.write_eof()
    try:
        async with asyncio.timeout(hang_up_s if asked.manner == "hangs_up" else 130.0):
            await reply.over
    except TimeoutError:
        asked.end = asked.end or "gave_up"
    asked.ended_at = loop.time()
    transport.abort()


def _request_of(asked: Asked) -> bytes:
    body = json.dumps(
        {
            "model": asked.model,
            "stream": asked.stream,
            "max_tokens": asked.max_tokens,
            "messages": [{"role": "user", "content": f"n{asked.nonce}q please answer"}],
        }
    ).encode()
    once = b"idempotency-key: %b\r\n" % asked.idempotency_key.encode() if asked.idempotency_key else b""
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n"
        b"authorization: Bearer %b\r\n%bcontent-length: %d\r\n\r\n%b" % (asked.key.encode(), once, len(body), body)
    )
