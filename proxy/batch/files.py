"""Files of teams: their rows beside their bytes, so that neither is seen without the other.

The bytes come first and the row last; what a crash leaves between the two has no row, and is swept away after a day.
"""

import contextlib
import secrets
from collections.abc import AsyncIterator
from typing import Any, Final, Literal

import msgspec
from sqlalchemy import ColumnElement, and_, delete, exists, func, insert, or_, select
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from proxy.batch.batch_errors import FileInUse, FileNotFound, FileTooLarge
from proxy.batch.blobs import Blobs, BlobWriter
from proxy.batch.database_time import DatabaseTime
from proxy.batch.tables import NAME_CHARS, BatchRow, StoredFile

Purpose = Literal["batch", "batch_output"]
MAX_LISTED: Final = 10_000
_READ_BY: Final = ("validating", "in_progress", "finalizing", "cancelling")
_ORPHAN_S: Final = 86_400.0
_SWEPT: Final = 500


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Whose files and batches are meant. Every query has both in its condition."""

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
        self, owner: Owner, file_id: str, writer: BlobWriter, made_us: int, most_bytes: int, left: int
    ) -> None:
        self.owner = owner
        self.file_id = file_id
        self._writer = writer
        self._most = most_bytes
        self._left = left
        self.made_us = made_us
        self.filename = ""
        self.purpose: Purpose = "batch"
        self.expires_us: int | None = None

    @property
    def size(self) -> int:
        return self._writer.size

    async def write(self, data: bytes) -> None:
        """Appends. Raises FileTooLarge or StorageUnavailable."""
        size = self._writer.size + len(data)
        if size > self._most:
            raise FileTooLarge(f"The file is larger than {self._most} bytes, the limit of this gateway; split it.")
        if size > self._left:
            raise FileTooLarge(
                "Together with this one, your team's files would be larger than this gateway keeps; delete some first."
            )
        await self._writer.write(data)


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
        """Microseconds since 1970, for times that callers see."""
        return self._time.here_us()

    @contextlib.asynccontextmanager
    async def adding(self, owner: Owner) -> AsyncIterator[NewFile]:
        """A new file to write. It is there once the block has ended, and nothing of it when the block failed.

        Raises FileTooLarge or StorageUnavailable.
        """
        left = self._max_stored_bytes - await self._stored_bytes(owner)
        file_id = f"file-{secrets.token_hex(16)}"
        async with self.blobs.writing(file_id) as writer:
            new = NewFile(owner, file_id, writer, self.now_us(), self._max_file_bytes, left)
            new.expires_us = new.made_us + self._keep_us
            yield new
        async with self._engine.begin() as connection:
            await connection.execute(insert(StoredFile).values(**self._row(new, writer.size)))

    async def find(self, owner: Owner, file_id: str) -> FileRecord:
        """One file. Raises FileNotFound, also for another team's."""
        query = select(*_COLUMNS).where(self._of(owner), col(StoredFile.file_id) == file_id)
        async with self._engine.connect() as connection:
            row = (await connection.execute(query)).mappings().first()
        if row is None:
            raise FileNotFound(f"There is no file `{file_id[:80]}`; GET /v1/files lists your team's.", param="file_id")
        return FileRecord(**row)

    async def page(
        self, owner: Owner, *, purpose: str | None, after: str | None, limit: int, ascending: bool
    ) -> FilePage:
        """A page of the team's files by the time they were made. Raises FileNotFound for an unknown `after`."""
        made, name = col(StoredFile.created_us), col(StoredFile.file_id)
        where = [self._of(owner)]
        if purpose is not None:
            where.append(col(StoredFile.purpose) == purpose)
        if after is not None:
            last = await self.find(owner, after)
            beyond = (made > last.created_us) if ascending else (made < last.created_us)
            further = (name > after) if ascending else (name < after)
            where.append(or_(beyond, and_(made == last.created_us, further)))
        order = (made.asc(), name.asc()) if ascending else (made.desc(), name.desc())
        query = select(*_COLUMNS).where(*where).order_by(*order).limit(limit + 1)
        async with self._engine.connect() as connection:
            rows = [FileRecord(**row) for row in (await connection.execute(query)).mappings()]
        return FilePage(files=rows[:limit], has_more=len(rows) > limit)

    async def remove(self, owner: Owner, file_id: str) -> None:
        """Deletes a file. Raises FileNotFound, or FileInUse while a batch reads it."""
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
        """Stores the row of a file whose bytes are there, within the caller's transaction. Twice is once."""
        made = sqlite_insert if self._engine.dialect.name == "sqlite" else postgresql_insert
        values = {**msgspec.structs.asdict(record), **msgspec.structs.asdict(owner)}
        await connection.execute(made(StoredFile).values(**values).on_conflict_do_nothing())

    async def sweep(self) -> int:
        """Deletes expired files that no batch reads, and bytes that have no row; returns how many."""
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

    async def _stored_bytes(self, owner: Owner) -> int:
        query = select(func.sum(col(StoredFile.bytes))).where(self._of(owner))
        async with self._engine.connect() as connection:
            return int(await connection.scalar(query) or 0)

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
        """The team's files that have not expired."""
        return and_(
            col(StoredFile.organisation_id) == owner.organisation_id,
            col(StoredFile.team_id) == owner.team_id,
            or_(col(StoredFile.expires_us).is_(None), col(StoredFile.expires_us) > self._time.now()),
        )
