"""Multipart bodies of calls: a caller's fields, and its file in pieces behind them."""

import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import msgspec

from providers.upload import Upload

FILE: Final = "file"
_LINE_ENDS: Final = str.maketrans({"\r": "%0D", "\n": "%0A", '"': "%22"})


class Form(msgspec.Struct, frozen=True):
    """One body: what stands before the file and behind it."""

    content_type: str
    before: bytes
    after: bytes
    upload: Upload

    @property
    def length(self) -> int:
        return len(self.before) + self.upload.size + len(self.after)

    async def rest(self) -> AsyncIterator[bytes]:
        """Yield the bytes after `before`."""
        async for piece in self.upload.pieces():
            yield piece
        yield self.after


def form_of(fields: Mapping[str, msgspec.Raw], model: str, upload: Upload) -> Form:
    """Return the body of a call with the upstream's model. A field that came several times goes on as often."""
    boundary = f"weighbridge-{secrets.token_hex(16)}"
    parts: list[bytes] = []
    for name, raw in {**fields, "model": msgspec.Raw(msgspec.json.encode(model))}.items():
        if name == FILE:
            continue
        value: Any = msgspec.json.decode(raw)
        head = _head(boundary, f'name="{_quoted(name)}"')
        parts += [head + str(each).encode() + b"\r\n" for each in (value if isinstance(value, list) else [value])]
    named = f'name="{FILE}"; filename="{_quoted(upload.filename)}"'
    parts.append(_head(boundary, named, upload.content_type))
    return Form(
        f"multipart/form-data; boundary={boundary}", b"".join(parts), f"\r\n--{boundary}--\r\n".encode(), upload
    )


def _head(boundary: str, named: str, content_type: str = "") -> bytes:
    kind = f"content-type: {content_type}\r\n" if content_type else ""
    return f"--{boundary}\r\ncontent-disposition: form-data; {named}\r\n{kind}\r\n".encode()


def _quoted(name: str) -> str:
    return name.translate(_LINE_ENDS)
