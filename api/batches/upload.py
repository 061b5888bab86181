"""A file's upload: a multipart body that is written while it arrives, within limits of size, time and number."""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Final

from starlette.requests import ClientDisconnect, Request

from proxy.batch.batch_errors import FileTooLarge
from proxy.batch.files import FileRecord, FileStore, NewFile, Owner
from proxy.errors import BadRequest, Overloaded, UploadTimeout
from proxy.http.multipart import Head, Multipart, missing_end
from proxy.http.slots import Slots

_AT_ONCE: Final = 32
_AT_ONCE_EACH: Final = 4
"""Uploads at once, in all and of one team."""
_LONGEST_S: Final = 3_600.0
_MAX_FIELD_BYTES: Final = 1_000
_SECONDS: Final = re.compile(r"\d{1,9}", re.ASCII)
LEAST_EXPIRY_S: Final = 3_600
MOST_EXPIRY_S: Final = 2_592_000

_slots: Final = Slots(_AT_ONCE, _AT_ONCE_EACH)


async def take_upload(request: Request, files: FileStore, owner: Owner, pause_s: float) -> FileRecord:
    """Store the part `file` of a multipart body. Of an upload that fails, or is broken off, nothing is kept.

    `pause_s` is the longest that nothing may arrive. Raises BadRequest, FileTooLarge, StorageUnavailable, UploadTimeout
    or Overloaded.
    """
    parser = Multipart(request.headers.get("content-type", ""))
    _check_declared(request, files.max_file_bytes)
    if not _slots.take(owner.team_id):
        raise Overloaded(
            f"This gateway takes {_AT_ONCE_EACH} uploads of a team at once, and {_AT_ONCE} in all; try again shortly.",
            retry_after_s=5,
        )
    try:
        async with files.adding(owner, _declared(request)) as new:
            fields = await _write_file(parser, _arriving(request, pause_s), new)
            _apply(fields, new)
        return await files.find(owner, new.file_id)
    finally:
        _slots.give_back(owner.team_id)


def _check_declared(request: Request, most_bytes: int) -> None:
    """Refuse a body whose declared length is far too large, before a byte of it is read."""
    if _declared(request) > most_bytes + _MAX_FIELD_BYTES * 20:
        raise FileTooLarge(f"The file is larger than {most_bytes} bytes, the limit of this gateway; split it.")


def _declared(request: Request) -> int:
    """Return the body's bytes, form and all; 0 where it comes in chunks."""
    declared = request.headers.get("content-length", "")
    return int(declared[:19]) if declared.isdigit() else 0


async def _arriving(request: Request, pause_s: float) -> AsyncIterator[bytes]:
    """Yield the body as it arrives. Raises UploadTimeout, or BadRequest when the client is gone."""
    pieces = request.stream().__aiter__()
    ends = asyncio.get_running_loop().time() + _LONGEST_S
    while True:
        left_s = ends - asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(min(pause_s, left_s)):
                piece = await anext(pieces)
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            raise UploadTimeout(f"Nothing of the file arrived for {pause_s:g} s; nothing was kept.") from error
        except ClientDisconnect as error:
            raise missing_end() from error
        yield piece


async def _write_file(parser: Multipart, arriving: AsyncIterator[bytes], new: NewFile) -> dict[str, str]:
    """Write the part `file`, and return the other fields."""
    fields: dict[str, bytes] = {}
    part = ""
    seen = False
    async for data in arriving:
        for found in parser.feed(data):
            if isinstance(found, Head):
                part = found.name
                if part != "file":
                    fields[part[:100]] = b""
                    continue
                if seen:
                    raise BadRequest("There are two parts `file`; send one file at a time.", param="file")
                seen = True
                new.filename = (found.filename or "upload.jsonl").rpartition("/")[2].rpartition("\\")[2]
            elif part == "file":
                await new.write(found)
            else:
                fields[part[:100]] += found
                if len(fields[part[:100]]) > _MAX_FIELD_BYTES:
                    raise BadRequest(f"The field `{part[:40]}` is too long.", param=part[:40])
    if not parser.is_complete:
        raise missing_end()
    if not seen:
        raise BadRequest("There is no part `file`.", param="file")
    return {name: value.decode("utf-8", "replace").strip() for name, value in fields.items()}


def _apply(fields: dict[str, str], new: NewFile) -> None:
    """Apply the fields beside the file. Raises BadRequest."""
    if fields.get("purpose") != "batch":
        raise BadRequest("`purpose` must be `batch`: files are taken for batches alone.", param="purpose")
    if not new.filename.isprintable():
        raise BadRequest("The file's name has characters that cannot be printed.", param="file")
    seconds = fields.get("expires_after[seconds]")
    if seconds is None:
        return
    if fields.get("expires_after[anchor]", "created_at") != "created_at":
        raise BadRequest("`expires_after[anchor]` must be `created_at`.", param="expires_after[anchor]")
    if _SECONDS.fullmatch(seconds) is None or not LEAST_EXPIRY_S <= int(seconds) <= MOST_EXPIRY_S:
        raise BadRequest(
            f"`expires_after[seconds]` must be a whole number from {LEAST_EXPIRY_S} to {MOST_EXPIRY_S}.",
            param="expires_after[seconds]",
        )
    new.expires_us = new.made_us + int(seconds) * 1_000_000
