"""What a server makes of bytes: the requests that its application sees, without sockets, and whether it then refused.

The former server was uvicorn with httptools; here it is asked as it is.
"""

import asyncio
import random
import re
from collections.abc import Callable
from typing import Any, Final

import msgspec
from starlette.types import Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from proxy.http.connection import Connection, ConnectionLimits
from proxy.http.exchange import Exchange
from proxy.http.server import HttpServer

_TURNS: Final = 12
_STATUS: Final = re.compile(rb"HTTP/1\.1 (\d{3}) ")


class Seen(msgspec.Struct, frozen=True):
    """One request as an application sees it, once it is whole."""

    method: str
    path: str
    query: bytes
    version: str
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def field(self, name: bytes) -> bytes | None:
        return next((value for found, value in self.headers if found == name), None)


class Verdict(msgspec.Struct, frozen=True):
    """The whole requests in their order, and the status of each reply."""

    seen: list[Seen]
    statuses: list[int]

    @property
    def refused(self) -> bool:
        return bool(self.statuses) and self.statuses[-1] >= 400


class Wireless(asyncio.Transport):
    """A transport that ends nowhere."""

    def __init__(self, protocol: Any) -> None:
        super().__init__()
        self.written = bytearray()
        self.closing = False
        self._protocol = protocol

    def write(self, data: Any) -> None:
        if not self.closing:
            self.written += data

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    abort = close

    def is_closing(self) -> bool:
        return self.closing

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """What is sent after it is told elsewhere."""

    def pause_reading(self) -> None:
        """Everything is there already."""

    resume_reading = pause_reading


class Ours:
    """The server of this project."""

    def __init__(self) -> None:
        self._seen: list[Seen] = []
        self.server = HttpServer({}, self._answer, ConnectionLimits())

    async def _answer(self, exchange: Exchange) -> None:
        body = await exchange.body(1_000_000)
        head = exchange._head
        self._seen.append(Seen(head.method, head.path, head.query, head.version, head.headers, body))
        exchange.respond(200, [])

    async def verdict(self, pieces: list[bytes]) -> Verdict:
        self._seen = []
        protocol = Connection(self.server, asyncio.get_running_loop())
        return await _driven(protocol, pieces, lambda: self._seen)


class Former:
    """Uvicorn."""

    def __init__(self) -> None:
        self._seen: list[Seen] = []
        # Its warnings are expected.
        self._config = Config(
            self._app, ws="none", lifespan="off", log_config=None, log_level="critical", interface="asgi3"
        )
        self._config.load()

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
        # It leaves blanks behind a value, which do not belong to it.
        headers = [(name, value.rstrip(b" \t")) for name, value in scope["headers"]]
        self._seen.append(
            Seen(
                scope["method"], scope["raw_path"].decode(), scope["query_string"], scope["http_version"], headers, body
            )
        )
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async def verdict(self, pieces: list[bytes]) -> Verdict:
        self._seen = []
        return await _driven(HttpToolsProtocol(self._config, ServerState(), {}), pieces, lambda: self._seen)


async def _driven(protocol: Any, pieces: list[bytes], seen: Callable[[], list[Seen]]) -> Verdict:
    transport = Wireless(protocol)
    protocol.connection_made(transport)
    for piece in pieces:
        if not transport.closing:
            protocol.data_received(piece)
        await asyncio.sleep(0)
    before = -1
    while before != len(transport.written):
        before = len(transport.written)
        for _ in range(_TURNS):
            await asyncio.sleep(0)
    transport.close()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    statuses = [int(status) for status in _STATUS.findall(bytes(transport.written))]
    return Verdict(list(seen()), [status for status in statuses if status >= 200])


_METHODS: Final = [b"GET", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"get", b"FOO", b"HEAD"]
_TARGETS: Final = [
    b"/",
    b"/a/b",
    b"/a%20b?x=1&y",
    b"/?",
    b"*",
    b"a",
    b"http://h:1/p?q",
    b"//x",
    b"/a#b",
    b"/\x80",
    b"/ x",
]
_VERSIONS: Final = [b"HTTP/1.1"] * 60 + [
    b"HTTP/1.0",
    b"HTTP/1.0",
    b"HTTP/2.0",
    b"HTTP/0.9",
    b"HTTP/1.2",
    b"http/1.1",
    b"",
]
_FIELDS: Final = [
    b"X-A: b", b"X-A:b ", b"x-a:", b"Accept: */*", b"Authorization: Bearer k", b"X-A: \xe9", b"Content-Type: application/json",
    b"X A: b", b"X-A : b", b" X-A: b", b"X-A: b\r\n c", b"X-A: \x00", b"X-A", b": b", b"X-A: b\x01", b"Connection: close",
    b"Connection: keep-alive", b"Host: b", b"Cookie: a=b", b"X-\x7f: a",
]  # fmt: skip
_FRAMINGS: Final = [
    b"Content-Length: %d", b"Content-Length: %d", b"Content-Length: %d", b"content-length:%d", b"Content-Length: 0%d",
    b"Content-Length: +%d", b"Content-Length: %d, %d", b"Content-Length: %d\r\nContent-Length: %d", b"Content-Length: 1%d",
    b"Content-Length: %d\r\nTransfer-Encoding: chunked", b"Transfer-Encoding: chunked\r\nContent-Length: %d",
]  # fmt: skip
_CODINGS: Final = [b"chunked"] * 30 + [
    b"Chunked",
    b"gzip, chunked",
    b"chunked, chunked",
    b"identity",
    b"xchunked",
    b"chunked ",
]
_LINE_ENDS: Final = [b"\r\n"] * 300 + [b"\n", b"\r", b"\r\r\n", b"\n\r"]
_SIZE_ENDS: Final = [b""] * 60 + [b";a=b", b";a", b' ;a="b;c"', b';a="b"', b" ", b";", b"\t", b"x"]


class Generator:
    """Makes requests that are right, nearly right, or broken; whatever it makes hangs on its seed alone."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def case(self) -> list[bytes]:
        """Bytes of one or more requests, in pieces."""
        data = b"".join(self._request() for _ in range(self._rng.choice((1, 1, 1, 2, 3))))
        for _ in range(self._rng.choice((0, 0, 0, 0, 1, 2))):
            data = self._mutated(data)
        return self._in_pieces(data)

    def noise(self) -> list[bytes]:
        """Bytes that are no request, or a few of which are."""
        if self._rng.random() < 0.5:
            return self._in_pieces(self._rng.randbytes(self._rng.randrange(1, 300)))
        data = self._request()
        for _ in range(self._rng.randrange(1, 30)):
            data = self._mutated(data)
        return self._in_pieces(data)

    def _request(self) -> bytes:
        rng = self._rng
        body = rng.randbytes(rng.choice((0, 1, 5, 40)))
        lines = [rng.choice(_METHODS[:4] * 30 + _METHODS) + b" " + rng.choice(_TARGETS[:3] * 30 + _TARGETS)]
        version = rng.choice(_VERSIONS)
        lines[0] += b" " + version if version else b""
        lines += [b"Host: a"] * rng.choice((1,) * 50 + (0, 2))
        lines += [rng.choice(_FIELDS[:7] * 20 + _FIELDS) for _ in range(rng.randrange(3))]
        kind = rng.random()
        if kind < 0.4:
            pattern = rng.choice(_FRAMINGS[:5] * 10 + _FRAMINGS)
            lines.append(pattern % ((len(body),) * pattern.count(b"%d")))
        elif kind < 0.7:
            lines.append(b"Transfer-Encoding: " + rng.choice(_CODINGS))
            body = self._chunks(body)
        else:
            body = b""
        fields = lines[1:]
        rng.shuffle(fields)
        lines[1:] = fields
        return b"".join(line + rng.choice(_LINE_ENDS) for line in lines) + rng.choice(_LINE_ENDS) + body

    def _chunks(self, body: bytes) -> bytes:
        rng = self._rng
        made = b""
        while body:
            size = rng.randrange(1, len(body) + 1)
            spelled = rng.choice((b"%x", b"%X", b"0%x")) % size
            made += spelled + rng.choice(_SIZE_ENDS) + rng.choice(_LINE_ENDS) + body[:size] + rng.choice(_LINE_ENDS)
            body = body[size:]
        trailer = rng.choice((b"",) * 20 + (b"X-T: a\r\n", b"X-T : a\r\n", b"X-T\r\n"))
        return made + b"0" + rng.choice(_SIZE_ENDS) + b"\r\n" + trailer + rng.choice(_LINE_ENDS)

    def _mutated(self, data: bytes) -> bytes:
        rng = self._rng
        at = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0:
                return data[:at] + data[at + 1 :]
            case 1:
                return data[:at] + rng.choice((b"\r", b"\n", b"\0", b" ", b":", b"a", b"0", b"\xff")) + data[at:]
            case 2:
                return data[:at] + rng.randbytes(1) + data[at + 1 :]
            case _:
                return data[:at] + data[at : at + rng.randrange(1, 20)] + data[at:]

    def _in_pieces(self, data: bytes) -> list[bytes]:
        rng = self._rng
        pieces = []
        while data:
            size = rng.choice((len(data), len(data), rng.randrange(1, len(data) + 1), rng.randrange(1, 4)))
            pieces.append(data[:size])
            data = data[size:]
        return pieces
