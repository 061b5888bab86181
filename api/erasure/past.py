"""Erasures that the audit log tells of, and the commands that do them again where a backup has brought back what was erased."""

import shlex

import msgspec
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlmodel import col

from accounts.audit.tables import AuditEntryRow
from cost.times import day_of, iso
from settings.decoding import DECODE_ERRORS

PERSON = "person.erased"
CONTENT = "team.content_erased"
NOBODY = "end user"
"""Stands for somebody without an account, whom no entry names."""


class PastErasure(msgspec.Struct, frozen=True, kw_only=True):
    """One erasure, by its entry."""

    number: int
    at: str
    organisation_id: str
    reason: str
    command: str
    """What erases it again; empty for an end user, of whom the log has no name."""


class _After(msgspec.Struct):
    before_us: int | None = None


async def past_erasures(engine: AsyncEngine) -> list[PastErasure]:
    """Return the erasures of all organisations, the first one first."""
    row = AuditEntryRow
    names = ("number", "at_us", "organisation_id", "action", "object_id", "reason", "after")
    query = select(*(col(getattr(row, name)) for name in names)).where(col(row.action).in_((PERSON, CONTENT)))
    async with engine.connect() as connection:
        found = (await connection.execute(query.order_by(col(row.number)))).all()
    return [
        PastErasure(
            number=each.number,
            at=iso(each.at_us),
            organisation_id=each.organisation_id,
            reason=each.reason,
            command=_command(each.action, each.organisation_id, each.object_id, each.after),
        )
        for each in found
    ]


async def last_entry(engine: AsyncEngine) -> int:
    """Return the number of the audit log's last entry, 0 for an empty log."""
    async with engine.connect() as connection:
        return int(await connection.scalar(select(func.max(col(AuditEntryRow.number)))) or 0)


def _command(action: str, organisation_id: str, object_id: str, after: str) -> str:
    if action == PERSON:
        words = [] if object_id == NOBODY else ["person", object_id, "--organisation", organisation_id]
    else:
        # An id may begin with a dash.
        words = ["team", *_before(after), *(["--"] if object_id.startswith("-") else []), object_id, "content"]
    return shlex.join(["weighbridge", "erase", *words]) if words else ""


def _before(after: str) -> list[str]:
    try:
        before_us = msgspec.json.decode(after, type=_After).before_us
    except DECODE_ERRORS:
        before_us = None
    return [] if before_us is None else ["--before", str(day_of(before_us))]
