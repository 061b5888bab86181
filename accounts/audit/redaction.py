"""Taking a person's data out of the audit log, where a person is erased: the only way in which its rows change."""

from collections.abc import Sequence
from typing import Final

import msgspec
from sqlalchemy import ColumnElement, select, update
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlmodel import col

from accounts.audit.chain import digest_of_redacted, hash_of
from accounts.audit.entry import Actor, Entry
from accounts.audit.log import COLUMNS, AuditLog, Change, entry_of, lock_head, log_anchor
from accounts.audit.redacting import Subject
from accounts.audit.tables import AuditEntryRow
from accounts.audit.verify import REDACTED, vouched_by
from accounts.transactions import overwriting

_BATCH: Final = 500
_VOUCHED: Final = 300
"""Entries that one new entry vouches for: their digests have to be within MAX_STATE_CHARS."""
_CHANGED: Final = ("actor_name", "address", "object_id", "reason", "before", "after", "salt")
_GATEWAY: Final = Actor(kind="gateway", actor_id="erasure", name="erasure", organisation_id="")


class RedactedLog(AuditLog):
    """The log, for whoever erases a person."""

    async def redact(self, subject: Subject, organisation_id: str, *, of_all: bool) -> int:
        """Take a person's data out of entries: of all organisations' (`of_all`, as a person's id and address are one person's alone), or of
        this one's. Return the number of entries. The chain holds: their hashes stay, and new entries vouch for what is left.
        """
        async with overwriting(self._engine) as connection:
            head = await lock_head(connection)
            where = [] if of_all else [col(AuditEntryRow.organisation_id) == organisation_id]
            found = await _redactions(connection, [subject.may_be_in(), *where], subject)
            by_owner: dict[str, list[Entry]] = {}
            for was, left in found:
                if await _is_sound(connection, was):
                    by_owner.setdefault(left.organisation_id, []).append(left)
                else:
                    # It was changed by somebody: nothing vouches for it, so that it goes on to be found.
                    await _write_redacted(connection, [left], was.redacted)
            changes = Change(connection, "", organisation_id)
            number = head.number
            for owner, entries in by_owner.items():
                for start in range(0, len(entries), _VOUCHED):
                    some = entries[start : start + _VOUCHED]
                    number += 1
                    await _write_redacted(connection, some, number)
                    vouched = {str(each.number): digest_of_redacted(each) for each in some}
                    changes.add("entries", f"{len(some)}", None, {"redacted": vouched}, organisation_id=owner)
            made = await self._append(connection, head, changes.object_changes, _GATEWAY, REDACTED, "")
        for entry in made:
            log_anchor(entry)
        return len(found)

    async def count_redactable(self, subject: Subject, organisation_id: str, *, of_all: bool) -> int:
        """Return the number of entries that `redact` would change."""
        where = [] if of_all else [col(AuditEntryRow.organisation_id) == organisation_id]
        async with self._engine.connect() as connection:
            return len(await _redactions(connection, [subject.may_be_in(), *where], subject))

    async def known_names(self, subject: Subject) -> set[str]:
        """Return the mail addresses and names, earlier ones too, that entries about the person give."""
        about = (col(AuditEntryRow.object_kind) == "person", col(AuditEntryRow.object_id) == subject.person_id)
        names: set[str] = set()
        async with self._engine.connect() as connection:
            for row in await connection.execute(select(*COLUMNS).where(*about)):
                names |= subject.names_in(entry_of(row))
        return names


async def _redactions(
    connection: AsyncConnection, where: Sequence[ColumnElement[bool]], subject: Subject
) -> list[tuple[Entry, Entry]]:
    """Return the entries that something is taken out of, oldest first, each with what is left of it."""
    found: list[tuple[Entry, Entry]] = []
    last = 0
    number = col(AuditEntryRow.number)
    while True:
        query = select(*COLUMNS).where(*where, number > last).order_by(number).limit(_BATCH)
        entries = [entry_of(row) for row in await connection.execute(query)]
        for entry in entries:
            left = subject.taken_out(entry)
            if left != entry:
                found.append((entry, msgspec.structs.replace(left, salt="")))
        if len(entries) < _BATCH:
            return found
        last = entries[-1].number


async def _is_sound(connection: AsyncConnection, entry: Entry) -> bool:
    """Return True for an entry that is as it was written, or as another one vouches for."""
    if not entry.redacted:
        return hash_of(entry) == entry.hash
    query = select(*COLUMNS).where(col(AuditEntryRow.number) == entry.redacted)
    row = (await connection.execute(query)).first()
    return row is not None and vouched_by(entry_of(row)).get(entry.number) == digest_of_redacted(entry)


async def _write_redacted(connection: AsyncConnection, entries: Sequence[Entry], by: int) -> None:
    for entry in entries:
        values = {name: getattr(entry, name) for name in _CHANGED} | {"redacted": by}
        row = update(AuditEntryRow).where(col(AuditEntryRow.number) == entry.number)
        await connection.execute(row.values(**values))
