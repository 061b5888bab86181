"""Files in OpenAI's shape."""

from typing import Literal

import msgspec

from proxy.batch.files import FileRecord


class FileOut(msgspec.Struct, frozen=True, kw_only=True):
    """A file. Times are seconds since 1970."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    status_details: str | None = None


class FilesOut(msgspec.Struct, frozen=True, kw_only=True):
    """A page of files."""

    object: Literal["list"] = "list"
    data: list[FileOut]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to the deletion of a file."""

    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


def file_out(record: FileRecord) -> FileOut:
    """Return a stored file in OpenAI's shape."""
    return FileOut(
        id=record.file_id,
        bytes=record.bytes,
        created_at=record.created_us // 1_000_000,
        expires_at=None if record.expires_us is None else record.expires_us // 1_000_000,
        filename=record.filename,
        purpose=record.purpose,
    )
