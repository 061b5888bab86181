"""The chunks of a body, taken apart as they come.

A parser of its own, and not llhttp's: it ends exactly at the body's end, so that what follows stays unparsed until the
request is answered. It is as strict: what two readers could take for different chunks ends the connection.
"""

import re
from typing import Final

from proxy.errors import HeadTooLarge, InvalidHttp

_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_QUOTED: Final = rb'"(?:[\t\x20\x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t\x20-\x7e])*"'
_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,16})(?:;%b(?:=(?:%b|%b))?)*\r\n" % (_TOKEN, _TOKEN, _QUOTED))
_LINE_BEGUN: Final = re.compile(rb"[0-9A-Fa-f]{1,16}(?:\r|;[\t\x20-\x7e\x80-\xff]*\r?)?")
_TRAILER: Final = re.compile(rb"%b:[\t\x20-\x7e\x80-\xff]*\r\n" % _TOKEN)
_MAX_LINE_BYTES: Final = 4096
"""The most bytes of a chunk's size line, with its extensions."""
_FREE_CHUNKS: Final = 20_000
_BYTES_A_CHUNK: Final = 128
"""The least mean bytes of chunks beyond the first _FREE_CHUNKS: each costs the same work, however short."""

_SIZE, _DATA, _DATA_END, _TRAILERS, _END = range(5)


class Chunks:
    """Decodes one chunked body."""

    __slots__ = (
        "_arrived",
        "_chunks",
        "_kept",
        "_left",
        "_max_bytes",
        "_max_fields",
        "_state",
        "_trailer_bytes",
        "_trailers",
    )

    def __init__(self, max_trailer_bytes: int, max_trailers: int) -> None:
        self._max_bytes = max_trailer_bytes
        self._max_fields = max_trailers
        self._state = _SIZE
        self._kept = b""
        self._left = 0
        self._chunks = 0
        self._arrived = 0
        self._trailers = 0
        self._trailer_bytes = 0

    @property
    def whole(self) -> bool:
        """True once the body has ended."""
        return self._state == _END

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the bytes of the body in `data`, and the bytes behind the body's end. Raises InvalidHttp,
        HeadTooLarge.
        """
        if self._kept:
            data, self._kept = self._kept + data, b""
        body: list[bytes] = []
        at, end = 0, len(data)
        while at < end and self._state != _END:
            if self._state == _DATA:
                piece = data[at : at + self._left]
                body.append(piece)
                at += len(piece)
                self._left -= len(piece)
                if not self._left:
                    self._state = _DATA_END
                continue
            line_end = data.find(b"\n", at, at + _MAX_LINE_BYTES + self._max_bytes) + 1
            if not line_end:
                self._keep(data[at:])
                return b"".join(body), b""
            self._line(data, at, line_end)
            at = line_end
        return (body[0] if len(body) == 1 else b"".join(body)), data[at:]

    def _keep(self, unfinished: bytes) -> None:
        """Keep an unfinished line until its rest comes. Raises InvalidHttp, HeadTooLarge."""
        if self._state == _TRAILERS:
            if len(unfinished) > self._max_bytes - self._trailer_bytes:
                raise _too_many()
        elif self._state == _DATA_END:
            if unfinished != b"\r":
                raise _bad()
        elif len(unfinished) > _MAX_LINE_BYTES or _LINE_BEGUN.fullmatch(unfinished) is None:
            raise _bad()
        self._kept = unfinished

    def _line(self, data: bytes, at: int, end: int) -> None:
        if self._state == _SIZE:
            found = _LINE.fullmatch(data, at, end)
            if found is None or end - at > _MAX_LINE_BYTES:
                raise _bad()
            self._begin_chunk(int(found[1], 16))
        elif self._state == _DATA_END:
            if data[at:end] != b"\r\n":
                raise _bad()
            self._state = _SIZE
        elif data[at:end] == b"\r\n":
            self._state = _END
        else:
            self._trailers += 1
            self._trailer_bytes += end - at
            if self._trailers > self._max_fields or self._trailer_bytes > self._max_bytes:
                raise _too_many()
            if _TRAILER.fullmatch(data, at, end) is None:
                raise _bad()

    def _begin_chunk(self, size: int) -> None:
        self._left = size
        self._arrived += size
        self._chunks += 1
        if self._chunks > _FREE_CHUNKS + self._arrived // _BYTES_A_CHUNK:
            raise InvalidHttp(
                f"The body comes in very many small chunks; send chunks of {_BYTES_A_CHUNK} bytes or more."
            )
        self._state = _DATA if size else _TRAILERS


def _too_many() -> HeadTooLarge:
    return HeadTooLarge("There are too many fields behind the body; send fewer.")


def _bad() -> InvalidHttp:
    return InvalidHttp("The body's chunks are not framed as HTTP/1.1 says.")
