"""An engine that can be overloaded: so many sequences at once, each at its pace, and a line of its own for the others.

    python -m benchmarks.engine --port 9000 --slots 32 --tokens-per-s 100

A request for `max_tokens` tokens holds a slot for as long as they take. Whoever finds no slot free waits, first come,
first served, and for as long as it takes: that is what a real engine does, and what a gateway is to keep it from. A
caller that hangs up gives its place back. A stream brings its first token when it gets a slot and the others in one
event at the end. GET answers with what the engine has done so far.
"""

import argparse
import asyncio
import re
import sys
from collections import deque
from typing import Final, cast

import msgspec
import uvloop

_MAX_REQUEST_BYTES: Final = 1 << 20
_HEAD_END: Final = b"\r\n\r\n"
_LENGTH: Final = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
_STREAM: Final = re.compile(rb'"stream":\s*true')
_INCLUDE_USAGE: Final = re.compile(rb'"include_usage":\s*true')
_MAX_TOKENS: Final = re.compile(rb'"max_(?:completion_)?tokens":\s*(\d+)')
_DEFAULT_TOKENS: Final = 50

EVENTS: Final = 4
"""Events of a whole stream: a role, the first token, the others, a finish reason."""

_STREAM_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_REFUSAL: Final = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_HEAD: Final = '"id":"chatcmpl-bench","created":1700000000,"model":"engine",'


def _framed(payload: bytes) -> bytes:
    event = b"data: " + payload + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(event), event)


def _choice(delta: str, finish: str = "null") -> bytes:
    choice = f'"choices":[{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":{finish}}}]'
    return _framed(f'{{{_HEAD}"object":"chat.completion.chunk",{choice}}}'.encode())


def _usage(prompt_tokens: int, tokens: int) -> str:
    total = prompt_tokens + tokens
    return f'"usage":{{"prompt_tokens":{prompt_tokens},"completion_tokens":{tokens},"total_tokens":{total}}}'


_ROLE: Final = _choice('{"role":"assistant","content":""}')
_FIRST: Final = _choice('{"content":"The"}')
_FINISH: Final = _choice("{}", '"stop"')
_DONE: Final = _framed(b"[DONE]") + b"0\r\n\r\n"


def _others(tokens: int) -> bytes:
    return _choice('{"content":"' + " ferry" * (tokens - 1) + '"}')


class Done(msgspec.Struct):
    """The engine's work so far."""

    served: int = 0
    cut: int = 0
    """Requests whose caller hung up, waiting or running."""
    served_tokens: int = 0
    running: int = 0
    waiting: int = 0
    most_waiting: int = 0
    busy_slot_s: float = 0.0
    """Slots in use, times how long."""


class Job:
    """One request."""

    __slots__ = ("connection", "started_at", "stream", "timer", "tokens", "usage")

    def __init__(self, connection: "Connection", body: bytes) -> None:
        wanted = _MAX_TOKENS.search(body)
        self.connection = connection
        self.tokens = max(1, int(wanted[1])) if wanted else _DEFAULT_TOKENS
        self.stream = _STREAM.search(body) is not None
        self.usage = not self.stream or _INCLUDE_USAGE.search(body) is not None
        self.started_at = 0.0
        self.timer: asyncio.TimerHandle | None = None


class Engine:
    """The slots, and who waits for one."""

    def __init__(self, loop: asyncio.AbstractEventLoop, slots: int, tokens_per_s: float, prompt_tokens: int) -> None:
        self._loop = loop
        self._free = slots
        self._tokens_per_s = tokens_per_s
        self._prompt_tokens = prompt_tokens
        self._waiting: deque[Job] = deque()
        self._done = Done()

    def add(self, job: Job) -> None:
        if self._free:
            self._start(job)
            return
        self._waiting.append(job)
        self._done.most_waiting = max(self._done.most_waiting, len(self._waiting))

    def drop(self, job: Job) -> None:
        """Drop a request whose caller has hung up."""
        self._done.cut += 1
        if job.timer is None:
            self._waiting.remove(job)
            return
        job.timer.cancel()
        self._leave(job)

    def told(self) -> Done:
        self._done.waiting = len(self._waiting)
        return self._done

    def _start(self, job: Job) -> None:
        self._free -= 1
        self._done.running += 1
        job.started_at = self._loop.time()
        job.timer = self._loop.call_later(job.tokens / self._tokens_per_s, self._finish, job)
        if job.stream:
            job.connection.write(_STREAM_HEAD + _ROLE + _FIRST)

    def _finish(self, job: Job) -> None:
        self._done.served += 1
        self._done.served_tokens += job.tokens
        job.connection.finish(self._reply(job))
        self._leave(job)

    def _leave(self, job: Job) -> None:
        self._free += 1
        self._done.running -= 1
        self._done.busy_slot_s += self._loop.time() - job.started_at
        if self._waiting:
            self._start(self._waiting.popleft())

    def _reply(self, job: Job) -> bytes:
        usage = _usage(self._prompt_tokens, job.tokens)
        if job.stream:
            told = _framed(f'{{{_HEAD}"object":"chat.completion.chunk","choices":[],{usage}}}'.encode())
            return _others(job.tokens) + _FINISH + (told if job.usage else b"") + _DONE
        message = '{"role":"assistant","content":"The' + " ferry" * (job.tokens - 1) + '","refusal":null}'
        choice = f'"choices":[{{"index":0,"message":{message},"logprobs":null,"finish_reason":"stop"}}]'
        return _whole(f'{{{_HEAD}"object":"chat.completion",{choice},{usage}}}'.encode())


def _whole(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


class Connection(asyncio.Protocol):
    """A connection with requests of a content-length, one after the other."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._received = b""
        self._job: Job | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        if self._job is not None:
            job, self._job = self._job, None
            self._engine.drop(job)

    def data_received(self, data: bytes) -> None:
        self._received = received = self._received + data if self._received else data
        head_end = received.find(_HEAD_END)
        length = _LENGTH.search(received, 0, head_end) if head_end >= 0 else None
        body_at = head_end + len(_HEAD_END)
        body_end = body_at + (int(length[1]) if length else 0)
        if head_end < 0 or len(received) < body_end:
            if max(len(received), body_end) > _MAX_REQUEST_BYTES:
                self.write(_REFUSAL)
                self._transport.close()
            return
        self._received = received[body_end:]
        if body_at == body_end:
            self.write(_whole(msgspec.json.encode(self._engine.told())))
            return
        self._job = Job(self, received[body_at:body_end])
        self._engine.add(self._job)

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def finish(self, data: bytes) -> None:
        self._job = None
        self._transport.write(data)


async def listen(port: int, *, slots: int, tokens_per_s: float, prompt_tokens: int) -> asyncio.Server:
    """Serve on the loopback address; port 0 lets the system choose."""
    loop = asyncio.get_running_loop()
    engine = Engine(loop, slots, tokens_per_s, prompt_tokens)
    return await loop.create_server(lambda: Connection(engine), "127.0.0.1", port, backlog=4096)


async def _serve(given: argparse.Namespace) -> None:
    server = await listen(
        given.port, slots=given.slots, tokens_per_s=given.tokens_per_s, prompt_tokens=given.prompt_tokens
    )
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--tokens-per-s", type=float, default=100.0)
    parser.add_argument("--prompt-tokens", type=int, default=100, help="what a prompt is told to have had")
    uvloop.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
