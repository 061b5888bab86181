"""The head of a reply as bytes."""

import http
from collections.abc import Sequence
from typing import Final

from proxy.http.head import Header

_FRAMING: Final = frozenset({b"connection", b"content-length", b"transfer-encoding", b"date", b"keep-alive"})
"""Fields that the server writes itself."""
_STATUS_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}".encode() for status in http.HTTPStatus}
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


def reply_head(status: int, headers: Sequence[Header], tail: bytes) -> bytes:
    """The status line, the fields and `tail`. Raises ValueError for a field that would not stay in its line."""
    line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d " % status
    lines = [line, *[b": ".join(header) for header in headers if header[0] not in _FRAMING], b""]
    head = b"\r\n".join(lines)
    if len(head) - len(head.translate(None, b"\r\n\0")) != 2 * (len(lines) - 1):
        raise ValueError("a field of a reply may have no line ends")
    return head + tail
