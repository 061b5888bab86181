"""Stored bytes in an S3-compatible store. obstore, the extra `s3`, is imported when this module is.

A blob is one object. Up to a part's size it is put in one request; beyond it in parts, which cannot be read until the
last one is there. Reads ask range by range, so no request lasts as long as a slow reader.
"""

import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from proxy.batch.batch_config import S3Section
from proxy.batch.batch_errors import FileNotFound, StorageUnavailable
from proxy.batch.blobs import GONE, BlobWriter, is_name
from settings.s3_credentials import s3_credentials

_log: Final = logging.getLogger("weighbridge.batch")
_PART_BYTES: Final = 5 * 1024 * 1024
"""The least that S3 takes as a part: a file of 1 GB has 200 of 10,000 that are allowed."""
_PARTS_AT_ONCE: Final = 2
_WINDOW_BYTES: Final = 1024 * 1024
_CONNECT_S: Final = 5
_REPEATS: Final = 3
_LISTED: Final = 1_000
_NO_BUCKET: Final = "NoSuchBucket"
_UNWRITTEN: Final = (
    "The file could not be written: the object store does not take it. Nothing of it was kept; try again later."
)
_UNREAD: Final = "The file cannot be read now: the object store does not answer; try again shortly."


class _Writer:
    def __init__(self, file: Any) -> None:
        self._file = file
        self.size = 0

    async def write(self, data: bytes) -> None:
        await self._file.write(data)
        self.size += len(data)


class S3Blobs:
    """Blobs as objects of one bucket, under one prefix."""

    def __init__(
        self, section: S3Section, access_key_id: str | None = None, secret_access_key: str | None = None
    ) -> None:
        """Read the key that the section refers to. Nothing is contacted yet."""
        named: dict[str, Any] = {} if section.endpoint is None else {"endpoint": section.endpoint}
        if access_key_id is not None and secret_access_key is not None:
            named |= s3_credentials(access_key_id, secret_access_key)
        self._store = S3Store(
            section.bucket,
            prefix=section.prefix,
            region=section.region,
            client_options={
                "timeout": timedelta(seconds=section.timeout_s),
                "connect_timeout": timedelta(seconds=min(_CONNECT_S, section.timeout_s)),
                "allow_http": True,
            },
            retry_config={"max_retries": _REPEATS, "retry_timeout": timedelta(seconds=section.timeout_s)},
            **named,
        )

    @contextlib.asynccontextmanager
    async def writing(self, name: str) -> AsyncIterator[BlobWriter]:
        """Return a writer. The object is there once the store has confirmed all of it."""
        _check(name)
        with _translated(_UNWRITTEN):
            file = obstore.open_writer_async(self._store, name, buffer_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE)
            try:
                yield _Writer(file)
                await file.close()
            except BaseException as error:
                # A store that is away cannot be told either; its own rule for unfinished uploads removes what is left.
                with contextlib.suppress(BaseError, OSError):
                    await file.__aexit__(type(error), error, error.__traceback__)
                raise

    async def size(self, name: str) -> int:
        """Return the size in bytes."""
        _check(name)
        with _translated(_UNREAD):
            return int((await obstore.head_async(self._store, name))["size"])

    async def reading(self, name: str, start: int = 0, stop: int | None = None) -> AsyncIterator[bytes]:
        """Return the bytes of a range, in pieces."""
        end = await self.size(name) if stop is None else stop
        _check(name)
        while start < end:
            with _translated(_UNREAD):
                until = min(end, start + _WINDOW_BYTES)
                piece = bytes(await obstore.get_range_async(self._store, name, start=start, end=until))
            if not piece:
                return
            start += len(piece)
            yield piece

    async def remove(self, name: str) -> None:
        """Delete an object."""
        _check(name)
        with _translated(_UNREAD), contextlib.suppress(FileNotFoundError):
            await obstore.delete_async(self._store, name)

    async def names(self) -> list[tuple[str, float]]:
        """Return all objects under the prefix that may be ours, with their age in seconds."""
        now = datetime.now(UTC)
        found: list[tuple[str, float]] = []
        with _translated(_UNREAD):
            async for some in obstore.list(self._store, chunk_size=_LISTED):
                found += [
                    (each["path"], (now - each["last_modified"]).total_seconds())
                    for each in some
                    if is_name(each["path"])
                ]
        return found


def _check(name: str) -> None:
    if not is_name(name):
        raise FileNotFound(GONE)


@contextlib.contextmanager
def _translated(unavailable: str) -> Iterator[None]:
    """Map errors of the store to the tier's. Callers are not told its own words, which name the bucket."""
    try:
        yield
    except (BaseError, OSError) as error:
        if isinstance(error, FileNotFoundError) and _NO_BUCKET not in str(error):
            raise FileNotFound(GONE) from error
        _log.warning("batch: the object store fails: %s", type(error).__name__)
        raise StorageUnavailable(unavailable, retry_after_s=5) from error
