"""The output and error files of a batch: every line of the input in exactly one of them, in the input's order.

Both are written from the database, under ids that follow from the batch's: a process that is interrupted, or does it a
second time, writes the same bytes under the same names.
"""

import contextlib
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from typing import Any, Final

import msgspec

from proxy.batch.batch import Batch, LineState, Outcome
from proxy.batch.blobs import BlobWriter
from proxy.batch.files import FileRecord, FileStore
from proxy.batch.store import BatchStore

_OK: Final = 200
_PAGE: Final = 500
_CANCELLED: Final = ("batch_cancelled", "The batch was cancelled before this request was begun.")
_EXPIRED: Final = ("batch_expired", "The batch's time was over before this request was begun.")


class OutputFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a batch; None where no line belongs into one."""

    output: FileRecord | None
    errors: FileRecord | None


class _Response(msgspec.Struct, frozen=True, kw_only=True):
    status_code: int
    request_id: str
    body: msgspec.Raw


class _LineError(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    message: str


class _OutputLine(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    custom_id: str
    response: _Response | None
    error: _LineError | None


def is_output(outcome: Outcome) -> bool:
    """Return True for a line of the output file; every other one stands in the error file."""
    return outcome.state == LineState.ANSWERED and outcome.status == _OK


def output_line(batch: Batch, outcome: Outcome) -> bytes:
    """Return one line of either file, in OpenAI's shape."""
    response, error = None, None
    if outcome.state == LineState.ANSWERED:
        body = msgspec.Raw(outcome.body or b"null")
        response = _Response(status_code=outcome.status, request_id=outcome.request_id, body=body)
    else:
        code, message = _EXPIRED if batch.ending == "expired" else _CANCELLED
        error = _LineError(code=code, message=message)
    digest = blake2b(f"{batch.batch_id}:{outcome.number}".encode(), digest_size=12).hexdigest()
    line = _OutputLine(id=f"batch_req_{digest}", custom_id=outcome.custom_id, response=response, error=error)
    return msgspec.json.encode(line) + b"\n"


async def write_files(
    batch: Batch, store: BatchStore, files: FileStore, *, keep_us: int, still_mine: Callable[[], Awaitable[None]]
) -> OutputFiles:
    """Write both files. `still_mine` is awaited now and then, and raises to give up. Raises StorageUnavailable."""
    has_output = batch.completed > 0
    has_errors = batch.total > batch.completed
    async with contextlib.AsyncExitStack() as stack:
        output = await _open(stack, files, batch, "output") if has_output else None
        errors = await _open(stack, files, batch, "error") if has_errors else None
        last = 0
        while batch.total and (outcomes := await store.outcomes(batch.batch_id, last, _PAGE)):
            last = outcomes[-1].number
            await _write(output, batch, [each for each in outcomes if is_output(each)])
            await _write(errors, batch, [each for each in outcomes if not is_output(each)])
            await still_mine()
    seconds = batch.output_expires_s
    expires_us = store.now_us() + (keep_us if seconds is None else seconds * 1_000_000)
    return OutputFiles(
        output=_record(store, batch, "output", output, expires_us),
        errors=_record(store, batch, "error", errors, expires_us),
    )


def output_file_id(batch_id: str, kind: str) -> str:
    """Return the id of a batch's file. It is as hard to guess as the batch's own."""
    return f"file-{blake2b(f'{kind}:{batch_id}'.encode(), digest_size=16).hexdigest()}"


async def _open(stack: contextlib.AsyncExitStack, files: FileStore, batch: Batch, kind: str) -> BlobWriter:
    return await stack.enter_async_context(files.blobs.writing(output_file_id(batch.batch_id, kind)))


async def _write(writer: BlobWriter | None, batch: Batch, outcomes: list[Outcome]) -> None:
    if writer is not None and outcomes:
        await writer.write(b"".join(output_line(batch, each) for each in outcomes))


def _record(
    store: BatchStore, batch: Batch, kind: str, writer: BlobWriter | None, expires_us: int
) -> FileRecord | None:
    if writer is None:
        return None
    values: dict[str, Any] = {
        "file_id": output_file_id(batch.batch_id, kind),
        "filename": f"{batch.batch_id}_{kind}.jsonl",
        "purpose": "batch_output",
        "bytes": writer.size,
        "created_us": store.now_us(),
        "expires_us": expires_us,
    }
    return FileRecord(**values)
