"""What a team stores is bounded to the byte, whoever uploads at once, and room that was reserved is given back."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlmodel import col

from gateway.database import make_engine
from proxy.batch.batch_errors import FileNotFound, FileTooLarge
from proxy.batch.files import FileStore
from proxy.batch.tables import StoredFile
from proxy.errors import BadRequest
from proxy.http.multipart import missing_end
from tests.proxy.batch.made_up import OWNER, Clock, stores

_MEGABYTE = b"a" * 1_000_000
_HOUR_S = 3_600.0


@pytest.fixture
async def processes(database_url: str, tmp_path: Path) -> AsyncIterator[list[tuple[AsyncEngine, FileStore]]]:
    """Two processes with a database and a folder in common. A team may store ten megabytes, and one in a file."""
    engines = [make_engine(database_url) for _ in range(2)]
    yield [(engine, stores(engine, tmp_path / "files", Clock())[1]) for engine in engines]
    for engine in engines:
        await engine.dispose()


async def rows(engine: AsyncEngine) -> tuple[int, int]:
    """How many there are, and their bytes."""
    async with engine.connect() as connection:
        found = (
            await connection.execute(select(func.count(), func.coalesce(func.sum(col(StoredFile.bytes)), 0)))
        ).one()
    return int(found[0]), int(found[1])


async def upload(files: FileStore, pieces: int = 10, size: int = 100_000, declared: int = 0) -> str:
    async with files.adding(OWNER, declared) as new:
        for _ in range(pieces):
            await new.write(b"a" * size)
            await asyncio.sleep(0)
    return new.file_id


@pytest.mark.parametrize("declared", [0, 1_000_000, 1_000_300])
async def test_uploads_at_once_never_store_too_much(
    processes: list[tuple[AsyncEngine, FileStore]], declared: int
) -> None:
    """Of 24 megabytes that come at once to two processes, what is kept fits, and what is refused leaves nothing. As many as there is
    room for are taken where they say how large they are.
    """
    (engine, one), (_, other) = processes
    done = await asyncio.gather(
        *(upload(one if each % 2 else other, declared=declared) for each in range(24)), return_exceptions=True
    )
    kept = [each for each in done if isinstance(each, str)]
    assert all(isinstance(each, str | FileTooLarge) for each in done), done
    assert len(kept) <= 10
    assert len(kept) >= 9 or not declared
    assert await rows(engine) == (len(kept), 1_000_000 * len(kept))
    # What is left may be used to the last byte.
    for _ in range(10 - len(kept)):
        await upload(other)
    with pytest.raises(FileTooLarge):
        await upload(one, 1, 1)
    assert await rows(engine) == (10, 10_000_000)
    assert len(await one.blobs.names()) == 10


async def test_what_is_reserved_counts_and_is_seen_by_nobody(processes: list[tuple[AsyncEngine, FileStore]]) -> None:
    """While a file is written its room is taken, and the file is not there yet."""
    (_, one), (_, other) = processes
    for _ in range(9):
        await upload(one)
    async with one.adding(OWNER) as new:
        await new.write(_MEGABYTE)
        with pytest.raises(FileTooLarge):
            await upload(other, 1, 1)
        with pytest.raises(FileNotFound):
            await other.find(OWNER, new.file_id)
        page = await other.page(OWNER, purpose=None, after=None, limit=100, ascending=True)
        assert len(page.files) == 9
    assert (await other.find(OWNER, new.file_id)).bytes == 1_000_000


async def test_room_comes_back_when_an_upload_fails(processes: list[tuple[AsyncEngine, FileStore]]) -> None:
    """Whether it is broken off, too large or cancelled."""
    (engine, one), _ = processes

    async def broken() -> None:
        async with one.adding(OWNER) as new:
            await new.write(_MEGABYTE)
            raise missing_end()

    with pytest.raises(BadRequest):
        await broken()
    with pytest.raises(FileTooLarge):
        await upload(one, 11)
    begun = asyncio.Event()

    async def waits() -> None:
        async with one.adding(OWNER) as new:
            await new.write(_MEGABYTE)
            begun.set()
            await asyncio.Event().wait()

    waiting = asyncio.create_task(waits())
    await begun.wait()
    assert (await rows(engine))[0] == 1
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await rows(engine) == (0, 0)


async def test_room_of_a_process_that_died_is_free_after_an_hour(engine: AsyncEngine, tmp_path: Path) -> None:
    """Nothing of it counts then, and the sweep takes it away; whoever comes back later may still find no room."""
    clock = Clock()
    _, files = stores(engine, tmp_path, clock)
    async with files.adding(OWNER) as slow:
        await slow.write(_MEGABYTE)
        for _ in range(9):
            await upload(files)
        with pytest.raises(FileTooLarge):
            await upload(files, 1, 1)
        clock.passes(_HOUR_S + 1)
        await files.sweep()
        assert (await rows(engine))[0] == 9
    await files.remove(OWNER, slow.file_id)

    async def comes_too_late() -> None:
        async with files.adding(OWNER) as slow:
            await slow.write(_MEGABYTE)
            clock.passes(_HOUR_S + 1)
            await upload(files)

    with pytest.raises(FileTooLarge):
        await comes_too_late()
    assert (await rows(engine))[0] == 10
