"""Signing a month off: what people said of its steps, its figures as they were signed, and the lock.

A signed month is locked: whatever comes for it later is posted into the next open one (`cost.ledger.late_entries`).
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from sqlalchemy import insert, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlmodel import col

from cost.close.checklist import Mark
from cost.close.month import Month
from cost.ledger.late_entries import hold_closings
from cost.reports.period import Part
from cost.tables import ClosedMonth, MonthMark
from cost.times import wall_us

COMMENT_CHARS: Final = 1_000
_MOST_NAME: Final = 200
_MOST_STATEMENT_CHARS: Final = 64 * 1024 * 1024


class NotClosable(Exception):
    """A month cannot be signed off; the message says why."""


class SignedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step as it stood when the month was signed."""

    key: str
    title: str
    said: str
    ticked_by: str = ""
    comment: str = ""


class SignedFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A month's figures as they were signed. Money is nano-dollars."""

    parts: Mapping[Part, int]
    requests: int
    served: int
    attempts: int
    input_tokens: int
    output_tokens: int
    baseline_nanousd: int
    gateway_nanousd: int
    """Cost of the gateway's own machines, which the ledger does not contain."""
    verdict: str
    saved_share: str
    """Saving by the reference's cost as an exact decimal; empty where nothing could be compared."""
    steps: tuple[SignedStep, ...]

    @property
    def cost_nanousd(self) -> int:
        """Sum of the parts: the bill."""
        return sum(self.parts.values())


class SignedMonth(msgspec.Struct, frozen=True, kw_only=True):
    """A month that was signed off."""

    closed_us: int
    closed_by: str
    comment: str
    figures: SignedFigures


class MonthClosing:
    """The reader and only writer of the marks and sign-offs of months."""

    def __init__(self, engine: AsyncEngine, now_us: Callable[[], int] = wall_us) -> None:
        self._engine = engine
        self._now_us = now_us

    async def marks(self, organisation_id: str, month: Month) -> dict[str, Mark]:
        """Return people's marks on the month's steps, by the steps' keys."""
        names = ("step", "ticked", "said", "comment", "marked_by", "marked_us")
        query = select(*(getattr(MonthMark, name) for name in names)).where(
            col(MonthMark.organisation_id) == organisation_id, col(MonthMark.start_us) == month.mark_us
        )
        async with self._engine.connect() as connection:
            rows = (await connection.execute(query)).all()
        return {
            step: Mark(ticked=ticked, said=said, comment=comment, by=by, at_us=at_us)
            for step, ticked, said, comment, by, at_us in rows
        }

    async def mark(
        self, organisation_id: str, month: Month, step: str, *, ticked: bool, said: str, comment: str, by: str
    ) -> Mark:
        """Set the mark of a step, in place of the earlier one. Raises NotClosable when the month is signed already."""
        await self._refuse_signed(organisation_id, month)
        mark = Mark(ticked=ticked, said=said, comment=comment[:COMMENT_CHARS], by=by[:_MOST_NAME], at_us=self._now_us())
        row: dict[str, Any] = {
            "organisation_id": organisation_id,
            "start_us": month.mark_us,
            "step": step,
            "ticked": mark.ticked,
            "said": mark.said,
            "comment": mark.comment,
            "marked_by": mark.by,
            "marked_us": mark.at_us,
        }
        kind: Any = sqlite.insert if self._engine.dialect.name == "sqlite" else postgresql.insert
        upsert = kind(MonthMark).values(row)
        changed = {name: row[name] for name in ("ticked", "said", "comment", "marked_by", "marked_us")}
        key = ["organisation_id", "start_us", "step"]
        async with self._engine.begin() as connection:
            await connection.execute(upsert.on_conflict_do_update(index_elements=key, set_=changed))
        return mark

    async def signed(self, organisation_id: str, month: Month) -> SignedMonth | None:
        """Return the month as it was signed; None while it is open."""
        names = ("closed_us", "closed_by", "comment", "figures")
        query = select(*(getattr(ClosedMonth, name) for name in names)).where(*_of(organisation_id, month))
        async with self._engine.connect() as connection:
            row = (await connection.execute(query)).first()
        if row is None:
            return None
        figures = msgspec.json.decode(row[3], type=SignedFigures)
        return SignedMonth(closed_us=row[0], closed_by=row[1], comment=row[2], figures=figures)

    async def statement(self, organisation_id: str, month: Month) -> str | None:
        """Return the statement as it was signed; None while the month is open."""
        query = select(col(ClosedMonth.statement)).where(*_of(organisation_id, month))
        async with self._engine.connect() as connection:
            found: str | None = await connection.scalar(query)
        return found

    async def hold(self) -> None:
        """Wait, within a transaction, until nobody posts to an old month, and let nobody begin to until it ends."""
        async with self._engine.connect() as connection:
            await hold_closings(connection, alone=True)

    async def sign(
        self, organisation_id: str, month: Month, figures: SignedFigures, statement: str, *, by: str, comment: str
    ) -> None:
        """Sign a month off and lock it, within a transaction that has called `hold` before it read the figures.

        Raises NotClosable when it is not over, or signed already.
        """
        now_us = self._now_us()
        if not month.is_over(now_us):
            raise NotClosable(f"{month.title} is not over")
        if len(statement) > _MOST_STATEMENT_CHARS:
            raise NotClosable(f"the statement of {month.title} is larger than 64 MB")
        await self._refuse_signed(organisation_id, month)
        row = {
            "organisation_id": organisation_id,
            "start_us": month.mark_us,
            "end_us": month.end_us,
            "closed_us": now_us,
            "closed_by": by[:_MOST_NAME],
            "comment": comment[:COMMENT_CHARS],
            "figures": msgspec.json.encode(figures).decode(),
            "statement": statement,
        }
        async with self._engine.begin() as connection:
            await connection.execute(insert(ClosedMonth).values(row))

    async def _refuse_signed(self, organisation_id: str, month: Month) -> None:
        query = select(col(ClosedMonth.closed_by)).where(*_of(organisation_id, month))
        async with self._engine.connect() as connection:
            by = await connection.scalar(query)
        if by is not None:
            raise NotClosable(f"{month.title} was signed off by {by}")


def _of(organisation_id: str, month: Month) -> tuple[Any, ...]:
    return (col(ClosedMonth.organisation_id) == organisation_id, col(ClosedMonth.start_us) == month.mark_us)
