"""Multipart forms, read within limits of size and time. Files stay in memory and are never written."""

import asyncio
import re
from typing import Final

from starlette.requests import ClientDisconnect, Request

from dashboards.web.forms import Form
from proxy.errors import BadRequest, BodyTooLarge, UploadTimeout, UsageUnavailable
from proxy.http.slots import Slots

MULTIPART: Final = "multipart/form-data"
MAX_UPLOAD_BYTES: Final = 16 * 1024 * 1024
_PATIENCE_S: Final = 30.0
_MAX_PARTS: Final = 50
_MAX_FIELD_CHARS: Final = 10_000
_MAX_NAME_CHARS: Final = 200
_MAX_HEAD_BYTES: Final = 4_096
_AT_ONCE: Final = 4
"""Most forms in memory at once, one of each person; each may have the largest permitted size."""
_BOUNDARY: Final = re.compile(r";\s*boundary=\"?(?P<boundary>[0-9A-Za-z'()+_,./:=?-]{1,70})\"?\s*(;|$)", re.IGNORECASE)
_DISPOSITION: Final = re.compile(r"^content-disposition:\s*form-data(?P<rest>[^\r\n]*)", re.IGNORECASE | re.MULTILINE)
_NAMED: Final = re.compile(r';\s*(?P<key>name|filename)="(?P<value>[^"]*)"', re.IGNORECASE)
_UNREADABLE: Final = "The form could not be read; load the page again and choose the files once more."

Files = tuple[tuple[str, bytes], ...]
"""Pairs of file name, as the browser sent it, and content."""


_slots: Final = Slots(_AT_ONCE, 1)


async def read_upload(request: Request, person_id: str) -> tuple[Form, Files]:
    """Return the fields and files of a person's form. Raises BadRequest, BodyTooLarge, UploadTimeout or UsageUnavailable."""
    found = _BOUNDARY.search(request.headers.get("content-type", ""))
    if found is None or not request.headers["content-type"].startswith(MULTIPART):
        raise BadRequest("The form did not come with files; load the page again and choose them once more.")
    if not _slots.take(person_id):
        raise UsageUnavailable("You or others send files right now; try again in a moment.")
    try:
        body = await _read_bounded(request)
        return await asyncio.to_thread(_parse_multipart, found["boundary"].encode(), body)
    finally:
        _slots.give_back(person_id)


async def _read_bounded(request: Request) -> bytes:
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(_PATIENCE_S):
            async for part in request.stream():
                size += len(part)
                if size > MAX_UPLOAD_BYTES:
                    most = MAX_UPLOAD_BYTES // 1024 // 1024
                    raise BodyTooLarge(f"Together the files have at most {most} MB; take a shorter range.")
                parts.append(part)
    except TimeoutError as error:
        raise UploadTimeout(f"The files did not arrive within {_PATIENCE_S:g} s; try again.") from error
    except ClientDisconnect as error:
        raise BadRequest("The connection was closed before the files were here.") from error
    return b"".join(parts)


def _parse_multipart(boundary: bytes, body: bytes) -> tuple[Form, Files]:
    """Split a body into parts. Nested multiparts are not parsed and the number of parts is bounded, so the time is
    too.
    """
    pieces = (b"\r\n" + body).split(b"\r\n--" + boundary, _MAX_PARTS + 1)
    fields: dict[str, list[str]] = {}
    files: list[tuple[str, bytes]] = []
    if len(pieces) < len(("before", "a part", "the end")) or not pieces[-1].startswith(b"--"):
        raise BadRequest(_UNREADABLE)
    for piece in pieces[1:-1]:
        names, content = _parse_part(piece)
        filename = names.get("filename")
        if filename is None:
            text = content.decode("utf-8", "replace")[:_MAX_FIELD_CHARS]
            fields.setdefault(names.get("name", "")[:_MAX_NAME_CHARS], []).append(text)
        elif content:
            files.append((filename.rpartition("/")[2].rpartition("\\")[2][:_MAX_NAME_CHARS], content))
    return Form(fields), tuple(files)


def _parse_part(piece: bytes) -> tuple[dict[str, str], bytes]:
    """Return a part's Content-Disposition parameters and its content."""
    head, end, content = piece.partition(b"\r\n\r\n")
    if not end or len(head) > _MAX_HEAD_BYTES:
        raise BadRequest(_UNREADABLE)
    told = _DISPOSITION.search(head.decode("utf-8", "replace"))
    if told is None:
        raise BadRequest(_UNREADABLE)
    return {each["key"].lower(): each["value"] for each in _NAMED.finditer(told["rest"])}, content
