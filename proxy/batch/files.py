"""Files of teams: their rows beside their bytes, so that neither is seen without the other.

The bytes come first and the row last; bytes that a crash leaves between the two have no row, and are deleted after a
day.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, Literal

import msgspec
from sqlalchemy import ColumnElement, and_, delete, exists, func, insert, or_, select
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from accounts.transactions import one_at_a_time
from proxy.batch.batch_errors import FileInUse, FileNotFound, FileTooLarge
from proxy.batch.blobs import Blobs, BlobWriter
from proxy.batch.tables import NAME_CHARS, BatchRow, StoredFile
from proxy.shared.database_clock import DatabaseTime

Purpose = Literal["batch", "batch_output"]
MAX_LISTED: Final = 10_000
_READ_BY: Final = ("validating", "in_progress", "finalizing", "cancelling")
_ORPHAN_S: Final = 86_400.0
_SWEPT: Final = 500
_RESERVED: Final = "reserved"
"""The purpose of a row that stands for a file that is being written; no look-up finds it."""
_RESERVED_US: Final = 3_600_000_000
"""The time for which room is reserved for a file that does not grow: the room of a process that died comes back so."""
_FRAMING_BYTES: Final = 4_096
"""The bytes that a form may hold beside its file."""
_LEAST_AHEAD: Final = 256 * 1024
"""The least bytes that are reserved ahead of those that have come; as many again, if that is more, as each step takes
a transaction.
"""
_log: Final = logging.getLogger("weighbridge.batch")


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The owner of files and batches. Every query has both ids in its condition."""

    organisation_id: str
    team_id: str


class FileRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A file as stored."""

    file_id: str
    filename: str
    purpose: str
    bytes: int
    created_us: int
    expires_us: int | None


class FilePage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a list, and whether another one follows."""

    files: list[FileRecord]
    has_more: bool


_COLUMNS: Final = tuple(col(getattr(StoredFile, name)) for name in FileRecord.__struct_fields__)


class NewFile:
    """A file that is being written."""

    def __init__(
        self,
        owner: Owner,
        file_id: str,
        writer: BlobWriter,
        made_us: int,
        most_bytes: int,
        reserve: "Callable[[NewFile, int, int], Awaitable[int]]",
    ) -> None:
        self.owner = owner
        self.file_id = file_id
        self._writer = writer
        self._most = most_bytes
        self._reserve = reserve
        self._reserved = 0
        self.made_us = made_us
        self.filename = ""
        self.purpose: Purpose = "batch"
        self.expires_us: int | None = None

    @property
    def size(self) -> int:
        return self._writer.size

    async def write(self, data: bytes) -> None:
        """Append to the file. Raises FileTooLarge or StorageUnavailable."""
        size = self._writer.size + len(data)
        if size > self._most:
            raise FileTooLarge(f"The file is larger than {self._most} bytes, the limit of this gateway; split it.")
        if size > self._reserved:
            await self.reserve(size, size + max(size, _LEAST_AHEAD))
        await self._writer.write(data)

    async def reserve(self, least: int, most: int) -> None:
        """Reserve room so that the file may come to `least` bytes, or up to `most` where there is room. Raises
        FileTooLarge.
        """
        self._reserved = await self._reserve(self, least, most)


class FileStore:
    """The only writer of the table `stored_file`."""

    def __init__(
        self,
        engine: AsyncEngine,
        blobs: Blobs,
        time: DatabaseTime,
        *,
        max_file_bytes: int,
        max_stored_bytes: int,
        keep_us: int,
    ) -> None:
        self.blobs = blobs
        self._engine = engine
        self._time = time
        self._max_file_bytes = max_file_bytes
        self._max_stored_bytes = max_stored_bytes
        self._keep_us = keep_us

    @property
    def max_file_bytes(self) -> int:
        return self._max_file_bytes

    def now_us(self) -> int:
        """Return microseconds since 1970, for times that callers see."""
        return self._time.here_us()

    @contextlib.asynccontextmanager
    async def adding(self, owner: Owner, declared: int = 0) -> AsyncIterator[NewFile]:
        """Return a new file to write. It is there once the block has ended, and nothing of it when the block failed.
        Where its approximate size is `declared`, room for all of it is reserved before it is written, so that of many
        that come at once as many are taken as have room. Raises FileTooLarge or StorageUnavailable.
        """
        file_id = f"file-{secrets.token_hex(16)}"
        try:
            async with self.blobs.writing(file_id) as writer:
                new = NewFile(owner, file_id, writer, self.now_us(), self._max_file_bytes, self._reserve)
                new.expires_us = new.made_us + self._keep_us
                await new.reserve(max(0, declared - _FRAMING_BYTES), declared)
                yield new
            await self._store(new, writer.size)
        except BaseException:
            await asyncio.shield(self._give_back(owner, file_id))
            raise

    async def _store(self, new: NewFile, size: int) -> None:
        """Replace the reservation by the file's row. Raises FileTooLarge where it had expired and others took the
        room.
        """
        async with self._room_of(new.owner, new.file_id) as (connection, left):
            if size <= left:
                await connection.execute(insert(StoredFile).values(**self._row(new, size)))
                return
        await self.blobs.remove(new.file_id)
        raise _no_room()

    async def _reserve(self, new: NewFile, least: int, most: int) -> int:
        """Return the size that the file may come to before it must ask again. Raises FileTooLarge."""
        async with self._room_of(new.owner, new.file_id) as (connection, left):
            if least > left:
                raise _no_room()
            reserved = min(left, self._max_file_bytes, most)
            row = {**self._row(new, reserved), "purpose": _RESERVED, "expires_us": self._time.now() + _RESERVED_US}
            await connection.execute(insert(StoredFile).values(**row))
        return reserved

    async def _give_back(self, owner: Owner, file_id: str) -> None:
        """Give back the reservation of a file that does not come. Where the database is away it is free after an
        hour.
        """
        try:
            async with self._room_of(owner, file_id):
                pass
        except (OSError, SQLAlchemyError) as error:
            _log.warning("room that was reserved for a file is free later: %s", type(error).__name__)

    @contextlib.asynccontextmanager
    async def _room_of(self, owner: Owner, file_id: str) -> AsyncIterator[tuple[AsyncConnection, int]]:
        """Return a transaction in which no other one changes the team's stored bytes, and the bytes that are left for
        a file whose reservation, if it has one, is taken away.
        """
        async with self._engine.begin() as connection:
            await one_at_a_time(connection, "stored_file", owner.organisation_id, owner.team_id)
            mine = and_(col(StoredFile.file_id) == file_id, col(StoredFile.purpose) == _RESERVED)
            await connection.execute(delete(StoredFile).where(mine))
            stored = await connection.scalar(select(func.sum(col(StoredFile.bytes))).where(self._held_by(owner)))
            yield connection, self._max_stored_bytes - int(stored or 0)

    async def find(self, owner: Owner, file_id: str, param: str = "file_id") -> FileRecord:
        """Return a file, which `param` names. Raises FileNotFound, also for another team's."""
        query = select(*_COLUMNS).where(self._of(owner), col(StoredFile.file_id) == file_id)
        async with self._engine.connect() as connection:
            row = (await connection.execute(query)).mappings().first()
        if row is None:
            raise FileNotFound(f"There is no file `{file_id[:80]}`; GET /v1/files lists your team's.", param=param)
        return FileRecord(**row)

    async def page(
        self, owner: Owner, *, purpose: str | None, after: str | None, limit: int, ascending: bool
    ) -> FilePage:
        """Return a page of the team's files by the time they were made. Raises FileNotFound for an unknown `after`."""
        made, name = col(StoredFile.created_us), col(StoredFile.file_id)
        where = [self._of(owner)]
        if purpose is not None:
            where.append(col(StoredFile.purpose) == purpose)
        if after is not None:
            last = await self.find(owner, after, "after")
            beyond = (made > last.created_us) if ascending else (made < last.created_us)
            further = (name > after) if ascending else (name < after)
            where.append(or_(beyond, and_(made == last.created_us, further)))
        order = (made.asc(), name.asc()) if ascending else (made.desc(), name.desc())
        query = select(*_COLUMNS).where(*where).order_by(*order).limit(limit + 1)
        async with self._engine.connect() as connection:
            rows = [FileRecord(**row) for row in (await connection.execute(query)).mappings()]
        return FilePage(files=rows[:limit], has_more=len(rows) > limit)

    async def remove(self, owner: Owner, file_id: str) -> None:
        """Delete a file. Raises FileNotFound, or FileInUse while a batch reads it."""
        reads = exists().where(col(BatchRow.input_file_id) == file_id, col(BatchRow.status).in_(_READ_BY))
        gone = delete(StoredFile).where(self._of(owner), col(StoredFile.file_id) == file_id, ~reads)
        async with self._engine.begin() as connection:
            is_gone = (await connection.execute(gone)).rowcount == 1
        if not is_gone:
            await self.find(owner, file_id)
            raise FileInUse("A batch that has not ended reads this file; cancel the batch first.", param="file_id")
        # Nobody finds it any more; if this fails, the sweep removes it.
        await self.blobs.remove(file_id)

    async def put_in(self, connection: AsyncConnection, owner: Owner, record: FileRecord) -> None:
        """Store the row of a file whose bytes are there, within the caller's transaction. Idempotent."""
        made = sqlite_insert if self._engine.dialect.name == "sqlite" else postgresql_insert
        values = {**msgspec.structs.asdict(record), **msgspec.structs.asdict(owner)}
        await connection.execute(made(StoredFile).values(**values).on_conflict_do_nothing())

    async def sweep(self) -> int:
        """Delete expired files that no batch reads, and bytes that have no row; return their number."""
        reads = exists().where(
            col(BatchRow.input_file_id) == col(StoredFile.file_id), col(BatchRow.status).in_(_READ_BY)
        )
        expired = (
            select(col(StoredFile.file_id)).where(col(StoredFile.expires_us) <= self._time.now(), ~reads).limit(_SWEPT)
        )
        async with self._engine.begin() as connection:
            found = list((await connection.execute(expired)).scalars())
            await connection.execute(delete(StoredFile).where(col(StoredFile.file_id).in_(found)))
        for file_id in found:
            await self.blobs.remove(file_id)
        return len(found) + await self._sweep_orphans()

    async def _sweep_orphans(self) -> int:
        old = [name for name, age_s in await self.blobs.names() if age_s > _ORPHAN_S]
        swept = 0
        for start in range(0, len(old), _SWEPT):
            some = old[start : start + _SWEPT]
            async with self._engine.connect() as connection:
                query = select(col(StoredFile.file_id)).where(col(StoredFile.file_id).in_(some))
                kept = set((await connection.execute(query)).scalars())
            for name in some:
                if name not in kept:
                    await self.blobs.remove(name)
                    swept += 1
        return swept

    def _row(self, new: NewFile, size: int) -> dict[str, Any]:
        return {
            **msgspec.structs.asdict(new.owner),
            "file_id": new.file_id,
            "filename": new.filename[:NAME_CHARS],
            "purpose": new.purpose,
            "bytes": size,
            "created_us": new.made_us,
            "expires_us": new.expires_us,
        }

    def _of(self, owner: Owner) -> ColumnElement[bool]:
        """Return the team's files that have not expired."""
        return and_(self._held_by(owner), col(StoredFile.purpose) != _RESERVED)

    def _held_by(self, owner: Owner) -> ColumnElement[bool]:
        """Return the same, and the reservations of files that are being written."""
        return and_(
            col(StoredFile.organisation_id) == owner.organisation_id,
            col(StoredFile.team_id) == owner.team_id,
            or_(col(StoredFile.expires_us).is_(None), col(StoredFile.expires_us) > self._time.now()),
        )


def _no_room() -> FileTooLarge:
    return FileTooLarge(
        "Together with this one, your team's files would be larger than this gateway keeps; delete some first."
    )
