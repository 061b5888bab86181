"""Stored bytes: written whole or not at all, read in pieces, never executed.

`LocalBlobs` keeps them in a folder, `s3_blobs` in an S3-compatible store.
"""

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from proxy.batch.batch_errors import FileNotFound, StorageUnavailable

PIECE_BYTES: Final = 256 * 1024
_PART: Final = ".part"
_FOLDER_MODE: Final = 0o700
_FILE_MODE: Final = 0o600
GONE: Final = "The content of this file is not there any more."
_FULL: Final = (
    "The file could not be written: the disk is full or does not answer. Nothing of it was kept; try again later."
)


class BlobWriter(Protocol):
    """A blob that is being written. It cannot be read before it is complete."""

    @property
    def size(self) -> int: ...

    async def write(self, data: bytes) -> None:
        """Append to the blob. Raises StorageUnavailable."""
        ...


class Blobs(Protocol):
    """Stored bytes by name."""

    def writing(self, name: str) -> "contextlib.AbstractAsyncContextManager[BlobWriter]":
        """Return a writer. The blob is there, whole, once the block has ended, and not at all when it failed."""
        ...

    async def size(self, name: str) -> int:
        """Return the size in bytes. Raises FileNotFound or StorageUnavailable."""
        ...

    def reading(self, name: str, start: int = 0, stop: int | None = None) -> AsyncIterator[bytes]:
        """Return the bytes from `start` to before `stop`, which lie within it, in pieces. Raises FileNotFound or StorageUnavailable."""
        ...

    async def remove(self, name: str) -> None:
        """Delete a blob; one that is gone already is no error."""
        ...

    async def names(self) -> list[tuple[str, float]]:
        """Return all blobs, and the remains of broken uploads, with their age in seconds."""
        ...


class _LocalWriter:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = 0

    async def write(self, data: bytes) -> None:
        await asyncio.to_thread(self._file.write, data)
        self.size += len(data)


class LocalBlobs:
    """Blobs as files of one folder that only this user may enter."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextlib.asynccontextmanager
    async def writing(self, name: str) -> AsyncIterator[BlobWriter]:
        """Return a writer; the file gets its name when it is whole and on the disk."""
        final = self._path(name)
        part = final.with_name(f"{name}.{secrets.token_hex(4)}{_PART}")
        try:
            file = await asyncio.to_thread(self._create, part)
            try:
                yield _LocalWriter(file)
                await asyncio.to_thread(_finish, file, part, final)
            finally:
                # Closing may fail again with the unwritten rest, which is not needed.
                with contextlib.suppress(OSError):
                    file.close()
                part.unlink(missing_ok=True)
        except OSError as error:
            raise StorageUnavailable(_FULL, retry_after_s=60) from error

    async def size(self, name: str) -> int:
        """Return the size in bytes."""
        with _readable():
            return (await asyncio.to_thread(self._path(name).stat)).st_size

    async def reading(self, name: str, start: int = 0, stop: int | None = None) -> AsyncIterator[bytes]:
        """Return the bytes of a range, in pieces."""
        with _readable():
            file = await asyncio.to_thread(self._path(name).open, "rb")
        try:
            file.seek(start)
            left = None if stop is None else stop - start
            while left is None or left > 0:
                with _readable():
                    piece = await asyncio.to_thread(file.read, PIECE_BYTES if left is None else min(PIECE_BYTES, left))
                if not piece:
                    return
                left = None if left is None else left - len(piece)
                yield piece
        finally:
            file.close()

    async def remove(self, name: str) -> None:
        """Delete a file."""
        with _readable():
            await asyncio.to_thread(self._path(name).unlink, missing_ok=True)

    async def names(self) -> list[tuple[str, float]]:
        """Return all names in the folder, with their age in seconds."""
        return await asyncio.to_thread(self._names)

    def _names(self) -> list[tuple[str, float]]:
        found = []
        now = time.time()
        with contextlib.suppress(FileNotFoundError):
            for each in self._folder.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    found.append((each.name, now - each.stat().st_mtime))
        return found

    def _create(self, part: Path) -> BinaryIO:
        self._folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        return os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE_MODE), "wb")

    def _path(self, name: str) -> Path:
        if not is_name(name):
            raise FileNotFound(GONE)
        return self._folder / name


def is_name(name: str) -> bool:
    """Return True for a name that a blob may have. Names are ids of ours; others may not lead out of the folder of blobs."""
    return bool(name) and not name.startswith(".") and "/" not in name and "\x00" not in name


def _finish(file: BinaryIO, part: Path, final: Path) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()
    part.replace(final)


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """Map errors of the disk to the tier's."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFound(GONE) from error
    except OSError as error:
        raise StorageUnavailable("The file cannot be read now; try again shortly.", retry_after_s=10) from error
