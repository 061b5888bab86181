"""The head of a reply as bytes."""

import http
from collections.abc import Sequence
from typing import Final

from proxy.http.head import Header

_FRAMING: Final = frozenset({b"connection", b"content-length", b"transfer-encoding", b"date", b"keep-alive"})
"""Fields that the server writes itself."""
_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in http.HTTPStatus
}
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


def reply_head(status: int, headers: Sequence[Header], tail: bytes) -> bytes:
    """The status line, the fields and `tail`. Raises ValueError for a field that would not stay in its line."""
    line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
    parts = [line]
    count = 1
    for name, value in headers:
        if name not in _FRAMING:
            parts += (name, b": ", value, b"\r\n")
            count += 1
    head = b"".join(parts)
    if head.count(b"\n") != count or head.count(b"\r") != count or b"\0" in head:
        raise ValueError("a field of a reply may have no line ends")
    return head + tail
