"""A parser of multipart bodies while they arrive: it holds a piece of the network's, never a file."""

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from proxy.errors import BadRequest

_BOUNDARY: Final = re.compile(r";\s*boundary=\"?(?P<boundary>[0-9A-Za-z'()+_,./:=?-]{1,70})\"?\s*(;|$)", re.IGNORECASE)
_DISPOSITION: Final = re.compile(r"^content-disposition:\s*form-data(?P<rest>[^\r\n]*)", re.IGNORECASE | re.MULTILINE)
_CONTENT_TYPE: Final = re.compile(
    r"^content-type:[ \t]*(?P<type>[a-z0-9]+/[a-z0-9.+-]+(;[ a-z0-9=._-]+)?)[ \t]*\r?$", re.IGNORECASE | re.MULTILINE
)
_NAMED: Final = re.compile(r';\s*(?P<key>name|filename)="(?P<value>[^"]*)"', re.IGNORECASE)
_MAX_HEAD_BYTES: Final = 4_096
_MAX_PARTS: Final = 40
_UNREADABLE: Final = "The body is no sound multipart/form-data."


class Head(msgspec.Struct, frozen=True):
    """The beginning of a part. `filename` is None for a plain field."""

    name: str
    filename: str | None
    content_type: str = ""


class Multipart:
    """A parser that is fed with the bytes that arrive. `is_complete` once the closing boundary was there."""

    def __init__(self, content_type: str) -> None:
        """Read the boundary. Raises BadRequest for anything but multipart/form-data."""
        found = _BOUNDARY.search(content_type)
        if found is None or not content_type.lower().startswith("multipart/form-data"):
            raise BadRequest("Send the form, with its file, as multipart/form-data.")
        self._delimiter = b"\r\n--" + found["boundary"].encode()
        # The first boundary may stand at the very beginning.
        self._held = b"\r\n"
        self._in_body = False
        self._parts = 0
        self._after_delimiter = False
        self.is_complete = False

    def feed(self, data: bytes) -> Iterator[Head | bytes]:
        """Yield the news in `data`: a part's head, or a piece of the present part's content. Raises BadRequest."""
        self._held += data
        while not self.is_complete:
            if self._after_delimiter:
                head = self._head()
                if head is None:
                    return
                yield head
                continue
            content, found, rest = self._held.partition(self._delimiter)
            if not found:
                # The end of what is held may be the beginning of a delimiter.
                safe = len(self._held) - len(self._delimiter) + 1
                if safe > 0:
                    content, self._held = self._held[:safe], self._held[safe:]
                    if self._in_body:
                        yield content
                return
            if self._in_body and content:
                yield content
            self._held, self._after_delimiter, self._in_body = rest, True, False

    def _head(self) -> Head | None:
        """Return the next part's head, None while it is not whole. The closing boundary completes the body."""
        if self._held.startswith(b"--"):
            self.is_complete = True
            return None
        end = self._held.find(b"\r\n\r\n")
        if end < 0:
            if len(self._held) > _MAX_HEAD_BYTES:
                raise BadRequest(_UNREADABLE)
            return None
        head, self._held = self._held[:end], self._held[end + 4 :]
        self._parts += 1
        text = head.decode("utf-8", "replace")
        told = _DISPOSITION.search(text)
        if told is None or len(head) > _MAX_HEAD_BYTES or self._parts > _MAX_PARTS:
            raise BadRequest(_UNREADABLE)
        names = {each["key"].lower(): each["value"] for each in _NAMED.finditer(told["rest"])}
        self._after_delimiter, self._in_body = False, True
        kind = _CONTENT_TYPE.search(text)
        return Head(names.get("name", ""), names.get("filename"), "" if kind is None else kind["type"])


def missing_end() -> BadRequest:
    """Return the error for a body that ended before its closing boundary."""
    return BadRequest("The upload ended before it was complete; nothing of it was kept, send it again.")
