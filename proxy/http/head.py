"""A request's head: one block of bytes, parsed by llhttp once it is whole, and judged strictly.

Only whole heads are parsed, so an unfinished one costs its bytes and nothing else. The body is framed by this head, and
a head that two readers could frame differently is refused.
"""

from typing import Final, Literal

import httptools
import msgspec

from proxy.errors import HeadTooLarge, InvalidHttp, Refused, UnsupportedCoding, UnsupportedVersion

Header = tuple[bytes, bytes]
Version = Literal["1.0", "1.1"]

END: Final = b"\r\n\r\n"
_LINE_END: Final = b"\r\n"
_LINES_BESIDE_FIELDS: Final = 2
"""The request line, and the empty line at the end."""
_VERSION_BYTES: Final = len(b" HTTP/1.1")
_VERSIONS: Final[dict[bytes, Version]] = {b" HTTP/1.1": "1.1", b" HTTP/1.0": "1.0"}
_UPGRADE: Final = frozenset({b"upgrade", b"http2-settings"})
_SINGLE: Final = frozenset(
    {b"host", b"content-length", b"transfer-encoding", b"content-encoding", b"origin", *_UPGRADE}
)
"""Fields that a request may have once: the server reads them, and another reader might read another one."""
_NO_REQUEST: Final = "This is not an HTTP request that the gateway can read."
_ONE_OF_EACH: Final = "Send one `host`, and of each field that describes the body at most one."


class Head(msgspec.Struct, frozen=True, gc=False):
    """A parsed head. Names of fields are lower-case, and those of an upgrade are left out."""

    method: str
    path: str
    """The path as it was sent: routes match the bytes that a proxy before the gateway has seen, so that no encoding
    leads around that proxy's rules on paths.
    """
    query: bytes
    version: Version
    headers: list[Header]
    length: int | None
    """The body's length in bytes, 0 without a body; None when it comes in chunks."""
    keeps: bool
    """True when the caller wants to keep the connection."""
    noted: dict[bytes, bytes]
    """The first field of each name, those of an upgrade too: the server looks up here the fields that it reads
    itself.
    """


def check_unfinished(data: bytes, max_bytes: int, max_fields: int) -> None:
    """Check the beginning of a head that has no end yet. Raises HeadTooLarge or InvalidHttp."""
    lines = data.count(b"\n")
    if len(data) > max_bytes or lines > max_fields + 1:
        raise too_large(max_bytes, max_fields)
    if lines != data.count(_LINE_END) or not 0x41 <= data[0] <= 0x5A:  # noqa: PLR2004 - methods are upper-case
        raise InvalidHttp(_NO_REQUEST)


def parse_head(data: bytes, max_bytes: int, max_fields: int) -> Head:
    """Parse a block that ends with the first empty line. Raises a Refused: HeadTooLarge, InvalidHttp or the like."""
    if len(data) > max_bytes or data.count(b"\n") > max_fields + _LINES_BESIDE_FIELDS:
        raise too_large(max_bytes, max_fields)
    fields = _Fields()
    parser = fields.parser = httptools.HttpRequestParser(fields)
    try:
        parser.feed_data(data)
    except httptools.HttpParserUpgrade:
        # A server may ignore the wish; a tunnel is nothing else.
        if parser.get_method() == b"CONNECT":
            raise InvalidHttp(_NO_REQUEST) from None
    except httptools.HttpParserError:
        # A coding that we do not know comes as an error of the body, before whose first byte the head was whole.
        noted = dict(reversed(fields.headers))
        raise (_of_codings(noted) if fields.whole else None) or InvalidHttp(_NO_REQUEST) from None
    finally:
        # The two know each other, which only the collector would undo.
        fields.parser = None
    if not fields.whole:
        raise InvalidHttp(_NO_REQUEST)
    end = data.index(_LINE_END)
    version = _VERSIONS.get(data[end - _VERSION_BYTES : end])
    if version is None:
        raise UnsupportedVersion("This server speaks HTTP/1.1 and HTTP/1.0.")
    headers = fields.headers
    noted = dict(reversed(headers))
    if len(noted) < len(headers):
        _check_repeated(headers)
    length = _length(noted, version)
    if b"upgrade" in noted or b"http2-settings" in noted:
        headers = [header for header in headers if header[0] not in _UPGRADE]
    path, query = _target(fields.url)
    return Head(
        method=parser.get_method().decode("ascii"),
        path=path.decode("ascii"),
        query=query,
        version=version,
        headers=headers,
        length=length,
        keeps=version == "1.1" and fields.keeps,
        noted=noted,
    )


def too_large(max_bytes: int, max_fields: int) -> HeadTooLarge:
    return HeadTooLarge(
        f"The request line and the header fields may have {max_bytes} bytes together, and there may be {max_fields} "
        "fields; send fewer or shorter ones."
    )


class _Fields:
    """The callbacks of llhttp, and the fields they collect."""

    __slots__ = ("headers", "keeps", "parser", "url", "whole")

    def __init__(self) -> None:
        self.parser: httptools.HttpRequestParser | None = None
        self.keeps = False
        self.url = b""
        self.headers: list[Header] = []
        self.whole = False

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        self.whole = True
        # Once a request without a body is over, the parser no longer knows.
        self.keeps = self.parser is not None and bool(self.parser.should_keep_alive())


def _check_repeated(headers: list[Header]) -> None:
    """Check that no field that the server reads stands twice. Raises InvalidHttp where another reader could take the
    other one.
    """
    names = [name for name, _ in headers]
    if any(names.count(name) > 1 for name in _SINGLE):
        raise InvalidHttp(_ONE_OF_EACH)


def _of_codings(noted: dict[bytes, bytes]) -> Refused | None:
    coding = noted.get(b"transfer-encoding")
    if coding is None or coding.lower() == b"chunked":
        return None
    return UnsupportedCoding("The one transfer coding that is read here is `chunked`, alone.")


def _length(noted: dict[bytes, bytes], version: Version) -> int | None:
    """Return the body's length in bytes, None for chunks. Raises InvalidHttp where another reader could find another
    length.
    """
    if b"host" not in noted and version == "1.1":
        raise InvalidHttp(_ONE_OF_EACH)
    length, coding = noted.get(b"content-length"), noted.get(b"transfer-encoding")
    if coding is None:
        if length is None:
            return 0
        if not length.isdigit():
            raise InvalidHttp(_NO_REQUEST)
        return int(length)
    if length is not None or version != "1.1":
        raise InvalidHttp("A body has a `content-length` or comes in chunks, and in HTTP/1.0 it has a length.")
    refused = _of_codings(noted)
    if refused is not None:
        raise refused
    return None


def _target(url: bytes) -> tuple[bytes, bytes]:
    """Return the path and the query of a request target in any of its forms."""
    if url.startswith(b"/") and b"#" not in url and not url.startswith(b"//"):
        path, _, query = url.partition(b"?")
        return path, query
    if url == b"*":
        return url, b""
    try:
        parsed = httptools.parse_url(url)
    except httptools.HttpParserError:
        raise InvalidHttp(_NO_REQUEST) from None
    path = parsed.path or b"/"
    if not path.startswith(b"/"):
        # Such as `*x`, of which the parser makes a path.
        raise InvalidHttp(_NO_REQUEST)
    return path, parsed.query or b""
