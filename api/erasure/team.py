"""The erasure of a team's content: prompts, answers, files, batches, and what was derived from them. Its books and settings stay."""

from typing import Any, Final

from sqlalchemy import ColumnElement, and_, delete, exists, false, select, true
from sqlmodel import SQLModel, col

from accounts.transactions import overwriting
from api.erasure.holdings import holdings
from api.erasure.rows import BATCH, Rows
from proxy.admit.idempotency.tables import IdempotentRequest
from proxy.batch.blobs import Blobs
from proxy.batch.tables import BatchLine, BatchResult, BatchRow, ProviderBatchRow, StoredFile
from proxy.responses.background.tables import BackgroundEvents, BackgroundResponse

_ENDED: Final = ("completed", "failed", "expired", "cancelled")
_READ_BY: Final = ("validating", "in_progress", "finalizing", "cancelling")
_IN_FLIGHT: Final = 0
_RESERVED: Final = "reserved"


class ContentErasure:
    """The steps. Dry, it counts what they would do."""

    def __init__(
        self, rows: Rows, organisation_id: str, team_id: str, before_us: int | None, blobs: Blobs | None
    ) -> None:
        """Take a team that the caller has found in the organisation. `blobs` has files' bytes; without, files stay."""
        self._rows = rows
        self._organisation_id = organisation_id
        self._team_id = team_id
        self._before_us = before_us
        self._blobs = blobs
        self.left: dict[str, int] = {}
        """What could not be erased now, by table."""

    async def run(self) -> dict[str, int]:
        """Do them, and return the rows by table."""
        await self._batches()
        await self._files()
        await self._events()
        for table, at in holdings().of_team():
            await self._rows.delete(table, and_(table.c.team_id == self._team_id, self._is_before(table.c[at])))
        await self._answers_kept()
        return self._rows.counts

    def _is_before(self, at: Any) -> ColumnElement[bool]:
        return true() if self._before_us is None else at < self._before_us

    async def _batches(self) -> None:
        """Delete batches that have ended, their lines first."""
        mine = and_(
            col(BatchRow.organisation_id) == self._organisation_id,
            col(BatchRow.team_id) == self._team_id,
            self._is_before(col(BatchRow.created_us)),
        )
        has_ended = col(BatchRow.status).in_(_ENDED)
        ended = select(col(BatchRow.batch_id)).where(mine, has_ended)
        of_batch: Any
        for of_batch in (BatchResult, BatchLine, ProviderBatchRow):
            await self._rows.delete(_table(of_batch), col(of_batch.batch_id).in_(ended))
        await self._rows.delete(_table(BatchRow), and_(mine, has_ended))
        self._leave("batch", await self._rows.count(_table(BatchRow), and_(mine, ~has_ended)))

    async def _files(self) -> None:
        """Delete files that no batch reads: the bytes first, so that a row says what is to be done until it is."""
        of_team = and_(
            col(StoredFile.organisation_id) == self._organisation_id,
            col(StoredFile.team_id) == self._team_id,
            self._is_before(col(StoredFile.created_us)),
        )
        reads = exists().where(
            col(BatchRow.input_file_id) == col(StoredFile.file_id), col(BatchRow.status).in_(_READ_BY)
        )
        table = _table(StoredFile)
        # What is being written is told as left: its bytes would come after its row had gone.
        is_whole = col(StoredFile.purpose) != _RESERVED
        free = and_(of_team, is_whole, ~reads) if self._blobs is not None else and_(of_team, false())
        if self._rows.dry:
            self._rows.note(table.name, await self._rows.count(table, free))
        else:
            await self._remove(free)
        left = await self._rows.count(table, of_team)
        self._leave("stored_file", left - self._rows.counts["stored_file"] if self._rows.dry else left)

    async def _remove(self, free: ColumnElement[bool]) -> None:
        self._rows.note("stored_file", 0)
        if self._blobs is None:
            return
        gone_ids: set[str] = set()
        while True:
            async with self._rows.engine.connect() as connection:
                found = (await connection.scalars(select(col(StoredFile.file_id)).where(free).limit(BATCH))).all()
            gone_ids.update(found)
            for file_id in found:
                await self._blobs.remove(file_id)
            async with overwriting(self._rows.engine) as connection:
                gone = delete(StoredFile).where(free, col(StoredFile.file_id).in_(found))
                self._rows.note("stored_file", (await connection.execute(gone)).rowcount)
            if len(found) < BATCH:
                break
        # A process that was killed may have begun to write the same file: a batch's output has one id, whoever writes it.
        begun = (
            [name for name, _ in await self._blobs.names() if name.partition(".")[0] in gone_ids] if gone_ids else []
        )
        for name in begun:
            await self._blobs.remove(name)

    async def _events(self) -> None:
        mine = and_(
            col(BackgroundResponse.team_id) == self._team_id, self._is_before(col(BackgroundResponse.created_us))
        )
        of_mine = select(col(BackgroundResponse.response_id)).where(mine)
        await self._rows.delete(_table(BackgroundEvents), col(BackgroundEvents.response_id).in_(of_mine))

    async def _answers_kept(self) -> None:
        """Forget answers under Idempotency-Keys. They have no time of their own and last a day, so of those before a day none is left."""
        if self._before_us is None:
            answered = col(IdempotentRequest.status) != _IN_FLIGHT
            await self._rows.delete(
                _table(IdempotentRequest), and_(col(IdempotentRequest.team_id) == self._team_id, answered)
            )

    def _leave(self, name: str, rows: int) -> None:
        if rows:
            self.left[name] = rows


def _table(row: Any) -> Any:
    return SQLModel.metadata.tables[row.__tablename__]
