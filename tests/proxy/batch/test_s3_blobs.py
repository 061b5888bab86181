"""Stored bytes in an S3-compatible store: as in a folder, whole or not at all."""

import asyncio
import secrets

import pytest

from proxy.batch.batch_config import S3Section
from proxy.batch.batch_errors import FileNotFound, StorageUnavailable
from proxy.batch.s3_blobs import S3Blobs
from tests.object_store import KEY_ID, SECRET, ObjectStore, section


def blobs(store: ObjectStore, prefix: str, **fields: object) -> S3Blobs:
    return S3Blobs(section(store, prefix=prefix, **fields), KEY_ID, SECRET)


@pytest.fixture
def prefix() -> str:
    """A place of the test's own."""
    return f"tests/{secrets.token_hex(8)}"


async def read(kept: S3Blobs, name: str, start: int = 0, stop: int | None = None) -> bytes:
    return b"".join([piece async for piece in kept.reading(name, start, stop)])


@pytest.mark.parametrize("times", [0, 1, 700_000, 1_300_000])
async def test_an_object_is_there_when_it_is_whole(object_store: ObjectStore, prefix: str, times: int) -> None:
    """Not before, and in any part, whether it was put at once or in parts."""
    kept = blobs(object_store, prefix)
    content = b"0123456789" * times
    async with kept.writing("file-1") as writer:
        for start in range(0, len(content), 1_000_000):
            await writer.write(content[start : start + 1_000_000])
        assert writer.size == len(content)
        with pytest.raises(FileNotFound):
            await kept.size("file-1")
    assert await kept.size("file-1") == len(content)
    assert await read(kept, "file-1") == content
    for start, stop in ((0, 1), (3, 2_000_013), (6_999_990, 7_000_000)):
        if stop <= len(content):
            assert await read(kept, "file-1", start, stop) == content[start:stop]
    await kept.remove("file-1")
    await kept.remove("file-1")
    with pytest.raises(FileNotFound):
        await read(kept, "file-1")
    assert await kept.names() == []


@pytest.mark.parametrize("size", [10, 12_000_000])
async def test_what_fails_half_way_leaves_nothing(object_store: ObjectStore, prefix: str, size: int) -> None:
    """Nor does it take away what was there before, or leave parts that nobody asks for."""
    kept = blobs(object_store, prefix)
    async with kept.writing("file-2") as writer:
        await writer.write(b"before")
    with pytest.raises(RuntimeError):
        await _fail(kept, size)
    cancelled = asyncio.ensure_future(_write_for_ever(kept))
    await asyncio.sleep(0.2)
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    assert await read(kept, "file-2") == b"before"
    assert object_store.unfinished(prefix) == []


async def _write_for_ever(kept: S3Blobs) -> None:
    async with kept.writing("file-2") as writer:
        while True:
            await writer.write(b"x" * 1_000_000)
            await asyncio.sleep(0.001)


async def _write_while_it_goes(kept: S3Blobs, object_store: ObjectStore) -> None:
    async with kept.writing("file-6") as writer:
        await writer.write(b"x" * 6_000_000)
        object_store.pause()
        for _ in range(10):
            await writer.write(b"x" * 6_000_000)


async def _fail(kept: S3Blobs, size: int) -> None:
    async with kept.writing("file-2") as writer:
        await writer.write(b"x" * size)
        raise RuntimeError


async def _write_one(kept: S3Blobs) -> None:
    async with kept.writing("file-4") as writer:
        await writer.write(b"x")


async def test_only_its_own_are_listed(object_store: ObjectStore, prefix: str) -> None:
    """By name and age; what lies beside the prefix or deeper is somebody else's."""
    kept, other = blobs(object_store, prefix), blobs(object_store, f"{prefix}-else")
    deeper = blobs(object_store, f"{prefix}/deeper")
    for each in (kept, other, deeper):
        async with each.writing("file-3") as writer:
            await writer.write(b"x")
    ((name, age_s),) = await kept.names()
    assert name == "file-3"
    assert -5 < age_s < 60


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a\x00b", ".hidden"])
async def test_no_name_leads_out_of_the_prefix(object_store: ObjectStore, prefix: str, name: str) -> None:
    """It is a file that is not there."""
    with pytest.raises(FileNotFound):
        await read(blobs(object_store, prefix), name)


async def test_a_bucket_that_is_not_there_is_told_apart_from_a_file_that_is_gone(
    object_store: ObjectStore, prefix: str
) -> None:
    """What may be mended does not make lines fail."""
    kept = blobs(object_store, prefix, bucket="no-such-bucket")
    with pytest.raises(StorageUnavailable, match="Nothing of it was kept"):
        await _write_one(kept)
    with pytest.raises(StorageUnavailable, match="cannot be read now"):
        await read(kept, "file-4", 0, 1)


async def test_a_store_that_goes_away_is_told_and_leaves_nothing(object_store: ObjectStore, prefix: str) -> None:
    """In the middle of an upload and while it is read; once it is back, all is as it was."""
    kept = blobs(object_store, prefix, timeout_s=0.5)
    async with kept.writing("file-5") as writer:
        await writer.write(b"there")
    with pytest.raises(StorageUnavailable, match="Nothing of it was kept"):
        await _write_while_it_goes(kept, object_store)
    with pytest.raises(StorageUnavailable, match="cannot be read now"):
        await read(kept, "file-5", 0, 5)
    with pytest.raises(StorageUnavailable, match="cannot be read now"):
        await kept.names()
    object_store.resume()
    assert await read(kept, "file-5") == b"there"
    assert [name for name, _ in await kept.names()] == ["file-5"]
    gone = S3Blobs(S3Section(bucket="batches", endpoint="http://127.0.0.1:9", timeout_s=0.5), KEY_ID, SECRET)
    with pytest.raises(StorageUnavailable, match="cannot be read now"):
        await gone.size("file-5")
