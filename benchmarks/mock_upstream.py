"""An OpenAI-shaped upstream that costs next to nothing, so that what is measured is in front of it.

A raw asyncio protocol with replies made once. The request's body steers it: `max_tokens` is the
number of content events of a stream, `seed` their pace in tokens a second (0: as fast as it goes; below
0: the milliseconds from one to the next).
"""

import argparse
import asyncio
import re
import sys
from typing import Final, cast

import uvloop

CONTENT_EVENTS: Final = 100
"""Content events of a stream whose request names no `max_tokens`."""
FRAMING_EVENTS: Final = 2
"""A role at the beginning and a finish reason at the end."""

_MAX_REQUEST_BYTES: Final = 1 << 20
_LEAST_SLOTS: Final = 10
_LONGEST_TICK_S: Final = 0.01
_HEAD_END: Final = b"\r\n\r\n"
_LENGTH: Final = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
_STREAM: Final = re.compile(rb'"stream":\s*true')
_INCLUDE_USAGE: Final = re.compile(rb'"include_usage":\s*true')
_MAX_TOKENS: Final = re.compile(rb'"max_(?:completion_)?tokens":\s*(\d+)')
_SEED: Final = re.compile(rb'"seed":\s*(-?\d+)')

_ANSWER: Final = "The ferry leaves the northern pier at seven, and the ticket office opens an hour before. " * 4
_COMPLETION: Final = (
    b'{"id":"chatcmpl-bench","object":"chat.completion","created":1700000000,"model":"mock","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"' + _ANSWER.encode() + b'","refusal":null},"logprobs":null,'
    b'"finish_reason":"stop"}],"usage":{"prompt_tokens":812,"completion_tokens":76,"total_tokens":888,'
    b'"prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}},'
    b'"system_fingerprint":"fp_bench"}'
)
_REPLY: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
    len(_COMPLETION),
    _COMPLETION,
)
_READY: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
_REFUSAL: Final = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_STREAM_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
_CHUNK_HEAD: Final = b'{"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1700000000,"model":"mock",'


def _framed(payload: bytes) -> bytes:
    event = b"data: " + payload + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(event), event)


def _choice(delta: bytes, finish: bytes = b"null") -> bytes:
    return _framed(
        _CHUNK_HEAD + b'"choices":[{"index":0,"delta":' + delta + b',"logprobs":null,"finish_reason":' + finish + b"}]}"
    )


_ROLE_EVENT: Final = _choice(b'{"role":"assistant","content":""}')
_CONTENT_EVENTS: Final = tuple(_choice(b'{"content":" ' + word + b'"}') for word in (b"word", b"text"))
"""Events that take turns: LiteLLM ends a stream that says the same a hundred times."""
_FINISH_EVENT: Final = _choice(b"{}", b'"stop"')
_DONE: Final = _framed(b"[DONE]") + b"0\r\n\r\n"


def _usage_event(tokens: int) -> bytes:
    usage = b'"usage":{"prompt_tokens":812,"completion_tokens":%d,"total_tokens":%d}}' % (tokens, 812 + tokens)
    return _framed(_CHUNK_HEAD + b'"choices":[],' + usage)


class Stream:
    """One reply being streamed, an event a step."""

    __slots__ = ("_left", "_tail", "_transport")

    def __init__(self, transport: asyncio.Transport, body: bytes) -> None:
        wanted = _MAX_TOKENS.search(body)
        self._left = int(wanted[1]) if wanted else CONTENT_EVENTS
        usage = _usage_event(self._left) if _INCLUDE_USAGE.search(body) else b""
        self._tail = _FINISH_EVENT + usage + _DONE
        self._transport = transport
        transport.write(_STREAM_HEAD + _ROLE_EVENT)

    def step(self) -> bool:
        """Write the next event; return False when there is none left."""
        if self._transport.is_closing():
            return False
        if self._left > 0:
            self._left -= 1
            self._transport.write(_CONTENT_EVENTS[self._left & 1])
            return True
        self._transport.write(self._tail)
        return False


class Flood:
    """The stepping of every stream as fast as it goes, but an event at a time, so that each is a write of its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def add(self, stream: Stream) -> None:
        self._loop.call_soon(self._step, stream)

    def _step(self, stream: Stream) -> None:
        if stream.step():
            self._loop.call_soon(self._step, stream)


class Wheel:
    """The stepping of many streams at one pace with one timer: each tick of it steps the streams of one slot.

    A slow pace has more slots, so that thousands of slow streams do not all speak at once.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, every_s: float) -> None:
        self._loop = loop
        slots = max(_LEAST_SLOTS, round(every_s / _LONGEST_TICK_S))
        self._tick_s = every_s / slots
        self._slots: list[list[Stream]] = [[] for _ in range(slots)]
        self._turn = 0
        self._next_at = 0.0
        self._turning = False

    def add(self, stream: Stream) -> None:
        # The slot that was stepped last comes again after one whole interval.
        self._slots[(self._turn - 1) % len(self._slots)].append(stream)
        if not self._turning:
            self._turning = True
            self._next_at = self._loop.time()
            self._schedule()

    def _schedule(self) -> None:
        self._next_at += self._tick_s
        self._loop.call_at(self._next_at, self._tick)

    def _tick(self) -> None:
        slot = self._turn % len(self._slots)
        self._turn += 1
        self._slots[slot] = [stream for stream in self._slots[slot] if stream.step()]
        if any(self._slots):
            self._schedule()
        else:
            self._turning = False


class Paces:
    """The flood and a wheel for each pace that was asked for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._flood = Flood(loop)
        self._wheels: dict[int, Wheel] = {}

    def add(self, stream: Stream, body: bytes) -> None:
        seed = _SEED.search(body)
        pace = int(seed[1]) if seed else 0
        if pace == 0:
            self._flood.add(stream)
            return
        if pace not in self._wheels:
            self._wheels[pace] = Wheel(self._loop, 1 / pace if pace > 0 else -pace / 1000)
        self._wheels[pace].add(stream)


class Connection(asyncio.Protocol):
    """A connection with requests of a content-length, answered one after the other."""

    def __init__(self, paces: Paces) -> None:
        self._paces = paces
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._received = received = self._received + data if self._received else data
        head_end = received.find(_HEAD_END)
        if head_end < 0:
            self._refuse_if(len(received) > _MAX_REQUEST_BYTES)
            return
        length = _LENGTH.search(received, 0, head_end)
        body_at = head_end + len(_HEAD_END)
        body_end = body_at + (int(length[1]) if length else 0)
        if len(received) < body_end:
            self._refuse_if(body_end > _MAX_REQUEST_BYTES)
            return
        self._received = received[body_end:]
        self._answer(received[body_at:body_end])

    def _answer(self, body: bytes) -> None:
        if not body:
            self._transport.write(_READY)
        elif _STREAM.search(body):
            self._paces.add(Stream(self._transport, body), body)
        else:
            self._transport.write(_REPLY)

    def _refuse_if(self, too_large: bool) -> None:
        if too_large:
            self._transport.write(_REFUSAL)
            self._transport.close()


async def listen(port: int) -> asyncio.Server:
    """Serve on the loopback address; port 0 lets the system choose."""
    loop = asyncio.get_running_loop()
    paces = Paces(loop)
    return await loop.create_server(lambda: Connection(paces), "127.0.0.1", port, backlog=4096)


async def _serve(port: int) -> None:
    server = await listen(port)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    uvloop.run(_serve(parser.parse_args().port))


if __name__ == "__main__":
    main()
