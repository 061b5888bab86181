"""The head of a reply as bytes."""

import http
from collections.abc import Collection, Sequence
from typing import Final

from proxy.http.head import Header

_FRAMING: Final = frozenset({b"connection", b"content-length", b"transfer-encoding", b"date", b"keep-alive"})
"""Fields that the server writes itself."""
_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in http.HTTPStatus
}
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


def reply_head(status: int, headers: Sequence[Header], tail: bytes) -> bytes:
    """Return the status line, the fields and `tail`. Raises ValueError for a field that would not stay in its line."""
    line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
    if not headers:
        return line + tail
    return line + field_lines([header for header in headers if header[0] not in _FRAMING]) + tail


def field_lines(headers: Collection[Header]) -> bytes:
    """Return the fields as lines of a head, each with its end. Raises ValueError for one that would not stay in its
    line.
    """
    lines = b"\r\n".join([*map(b": ".join, headers), b""])
    if len(lines) - len(lines.translate(None, b"\r\n\0")) != 2 * len(headers):
        raise ValueError("a field of a reply may have no line ends")
    return lines


def fields_of(lines: bytes) -> list[Header]:
    """Return the fields of such lines."""
    return [(name, value) for name, _, value in (line.partition(b": ") for line in lines.split(b"\r\n")[:-1])]
