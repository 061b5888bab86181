"""Stored bytes: whole or not at all."""

import os
from pathlib import Path
from typing import BinaryIO

import pytest

from proxy.batch.batch_errors import FileNotFound, StorageUnavailable
from proxy.batch.blobs import LocalBlobs


async def read(blobs: LocalBlobs, name: str, start: int = 0, stop: int | None = None) -> bytes:
    return b"".join([piece async for piece in blobs.reading(name, start, stop)])


async def test_a_blob_is_there_when_it_is_whole(tmp_path: Path) -> None:
    """Not before, and in any part."""
    blobs = LocalBlobs(tmp_path / "blobs")
    async with blobs.writing("one") as writer:
        await writer.write(b"0123456789" * 100_000)
        with pytest.raises(FileNotFound):
            await blobs.size("one")
    assert await blobs.size("one") == 1_000_000
    assert await read(blobs, "one", 999_995) == b"56789"
    assert await read(blobs, "one", 3, 300_013) == (b"3456789012" * 30_001)
    await blobs.remove("one")
    await blobs.remove("one")
    assert await blobs.names() == []


async def test_what_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    """Nor does it take away what was there before."""
    blobs = LocalBlobs(tmp_path)
    async with blobs.writing("one") as writer:
        await writer.write(b"before")

    async def fail() -> None:
        async with blobs.writing("one") as writer:
            await writer.write(b"after")
            await writer.write("no bytes")  # type: ignore[arg-type]

    with pytest.raises(TypeError):
        await fail()
    assert await read(blobs, "one") == b"before"
    assert [name for name, _ in await blobs.names()] == ["one"]


class _FullDisk(LocalBlobs):
    """Every write goes to a device without room."""

    def _create(self, part: Path) -> BinaryIO:
        part.parent.mkdir(parents=True, exist_ok=True)
        part.touch()
        return os.fdopen(os.open("/dev/full", os.O_WRONLY), "wb")


@pytest.mark.parametrize("size", [10, 10_000_000])
async def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, size: int) -> None:
    """Whether it shows while writing or only at the end."""
    blobs = _FullDisk(tmp_path)
    with pytest.raises(StorageUnavailable, match="Nothing of it was kept"):
        async with blobs.writing("one") as writer:
            await writer.write(b"x" * size)
    assert await blobs.names() == []


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a\x00b", ".hidden"])
async def test_no_name_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    """It is a file that is not there."""
    (tmp_path / "x").write_bytes(b"secret")
    with pytest.raises(FileNotFound):
        await read(LocalBlobs(tmp_path / "blobs"), name)
