"""Multipart bodies of calls: a caller's fields, and its file in pieces behind them."""

import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import msgspec

from providers.upload import Upload

_LINE_ENDS: Final = str.maketrans({"\r": "%0D", "\n": "%0A", '"': "%22"})


class Form(msgspec.Struct, frozen=True):
    """One body: what stands before its first file, what stands behind each, and the files."""

    content_type: str
    before: bytes
    behind: tuple[bytes, ...]
    files: tuple[Upload, ...]

    @property
    def length(self) -> int:
        return len(self.before) + sum(map(len, self.behind)) + sum(each.size for each in self.files)

    async def rest(self) -> AsyncIterator[bytes]:
        """Yield the bytes after `before`."""
        for each, behind in zip(self.files, self.behind, strict=True):
            async for piece in each.pieces():
                yield piece
            yield behind


def form_of(fields: Mapping[str, msgspec.Raw], model: str, upload: Upload) -> Form:
    """Return the body of a call with the upstream's model. A field that came several times goes on as often."""
    boundary = f"weighbridge-{secrets.token_hex(16)}"
    parts: list[bytes] = []
    of_files = {each.part for each in upload.files}
    for name, raw in {**fields, "model": msgspec.Raw(msgspec.json.encode(model))}.items():
        if name in of_files:
            continue
        value: Any = msgspec.json.decode(raw)
        head = _head(boundary, f'name="{_quoted(name)}"')
        parts += [head + str(each).encode() + b"\r\n" for each in (value if isinstance(value, list) else [value])]
    heads = [
        _head(boundary, f'name="{_quoted(each.part)}"; filename="{_quoted(each.filename)}"', each.content_type)
        for each in upload.files
    ]
    behind = (*(b"\r\n" + head for head in heads[1:]), f"\r\n--{boundary}--\r\n".encode())
    return Form(f"multipart/form-data; boundary={boundary}", b"".join(parts) + heads[0], behind, upload.files)


def _head(boundary: str, named: str, content_type: str = "") -> bytes:
    kind = f"content-type: {content_type}\r\n" if content_type else ""
    return f"--{boundary}\r\ncontent-disposition: form-data; {named}\r\n{kind}\r\n".encode()


def _quoted(name: str) -> str:
    return name.translate(_LINE_ENDS)
