"""/v1/files: files of requests, and of answers, in OpenAI's shapes."""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from fastapi import APIRouter, Request
from starlette.responses import Response

from api.batches.tier import KeyOwner, Tier, asking
from api.batches.upload import take_upload
from api.files.file_types import FileDeleted, FileOut, FilesOut, file_out
from api.web.gateway import gateway_of
from api.web.openapi import described
from api.web.parameters import Parameter, Parameters, one_of, text, whole
from api.web.reading import Export, json_reply
from proxy.batch.batch_errors import RangeNotSatisfiable
from proxy.batch.files import MAX_LISTED

router = APIRouter(tags=["batch"])

_OTHERS: Final = ("assistants", "assistants_output", "fine-tune", "fine-tune-results", "vision", "user_data", "evals")
"""Purposes that OpenAI's files have and none here: a list of them is empty."""
_PURPOSES: Final = ("batch", "batch_output", *_OTHERS)
_ORDERS: Final = ("asc", "desc")
_RANGE: Final = re.compile(r"bytes=(\d{0,15})-(\d{0,15})", re.ASCII)
JSONL: Final = "application/jsonl"
_LISTING: Final[Mapping[str, Parameter]] = {
    "purpose": one_of("Files of this purpose only.", _PURPOSES),
    "limit": whole("Files in the page.", least=1, most=MAX_LISTED),
    "order": one_of("By the time they were made: `desc`, the newest first, or `asc`.", _ORDERS),
    "after": text("The id of the last file of the page before."),
}


@router.post("/v1/files", **described("Upload a file of requests", gives={200: FileOut}))
async def upload(request: Request, owner: KeyOwner, tier: Tier) -> Response:
    """Take multipart/form-data: `file`, `purpose` (`batch`), and, if it shall expire sooner or later than usual,
    `expires_after[anchor]` and `expires_after[seconds]`. The content is looked at when a batch is made of it.
    """
    pause_s = gateway_of(request).rules().body_timeout_s
    return json_reply(file_out(await take_upload(request, tier.files, owner, pause_s)))


@router.get("/v1/files", **described("List files", gives={200: FilesOut}, query=_LISTING))
async def list_files(request: Request, owner: KeyOwner, tier: Tier) -> Response:
    """Return the team's files that have not expired."""
    asked = Parameters(request.query_params, _LISTING)
    purpose = asked.one_of("purpose", "", ("", *_PURPOSES))
    async with asking():
        page = await tier.files.page(
            owner,
            purpose=purpose or None,
            after=asked.text("after"),
            limit=asked.whole("limit", MAX_LISTED, least=1, most=MAX_LISTED),
            ascending=asked.one_of("order", "desc", _ORDERS) == "asc",
        )
    data = [file_out(each) for each in page.files]
    return json_reply(
        FilesOut(
            data=data,
            first_id=data[0].id if data else None,
            last_id=data[-1].id if data else None,
            has_more=page.has_more,
        )
    )


@router.get("/v1/files/{file_id}", **described("Look at a file", gives={200: FileOut}))
async def get_file(file_id: str, owner: KeyOwner, tier: Tier) -> Response:
    """Return one file of the team, without its content."""
    async with asking():
        return json_reply(file_out(await tier.files.find(owner, _sound(file_id))))


@router.delete("/v1/files/{file_id}", **described("Delete a file", gives={200: FileDeleted}))
async def delete_file(file_id: str, owner: KeyOwner, tier: Tier) -> Response:
    """Delete a file and its content. One that a batch still reads is refused with 409."""
    async with asking():
        await tier.files.remove(owner, _sound(file_id))
    return json_reply(FileDeleted(id=file_id))


@router.get(
    "/v1/files/{file_id}/content",
    **described("Download a file", gives={200: "The content.", 206: "The part that was asked for."}, files=[JSONL]),
)
async def content(file_id: str, request: Request, owner: KeyOwner, tier: Tier) -> Response:
    """Return the content, byte by byte as it was written. `Range: bytes=…` resumes a download that was broken off."""
    async with asking():
        record = await tier.files.find(owner, _sound(file_id))
        size = await tier.files.blobs.size(record.file_id)
    etag = f'"{record.file_id}"'
    headers = {
        "accept-ranges": "bytes",
        "cache-control": "private, no-store",
        "content-disposition": f"attachment; filename*=UTF-8''{quote(record.filename, safe='')}",
        "etag": etag,
        "x-content-type-options": "nosniff",
    }
    asked = request.headers.get("range")
    if asked is None or request.headers.get("if-range", etag) != etag:
        headers["content-length"] = str(size)
        return Export(tier.files.blobs.reading(record.file_id), headers=headers, media_type=JSONL)
    start, stop = _span(asked, size)
    headers |= {"content-length": str(stop - start), "content-range": f"bytes {start}-{stop - 1}/{size}"}
    pieces = tier.files.blobs.reading(record.file_id, start, stop)
    return Export(pieces, status_code=206, headers=headers, media_type=JSONL)


def _span(asked: str, size: int) -> tuple[int, int]:
    """Return the bytes of a single range, as `[start, stop)`. Raises RangeNotSatisfiable."""
    found = _RANGE.fullmatch(asked.strip())
    first, last = found.groups() if found is not None else ("", "")
    if first:
        start, stop = int(first), min(size, int(last) + 1 if last else size)
    else:
        start, stop = max(0, size - int(last or 0)), size
    if start >= stop:
        raise RangeNotSatisfiable(f"`Range: {asked[:60]}` is no single range of the {size} bytes of this file.")
    return start, stop


def _sound(file_id: str) -> str:
    """Return the id without characters that no id has: PostgreSQL would fail on them."""
    return file_id.replace("\x00", "")
