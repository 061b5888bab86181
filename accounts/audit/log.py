"""The audit log: entries are written in the transaction of the change they describe, and are never rewritten."""

import contextlib
import hashlib
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Row, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from accounts.audit.audit_errors import AuditHeadMissing
from accounts.audit.chain import canonical, sealed
from accounts.audit.entry import Actor, Entry
from accounts.audit.masking import masked, one_line, plain
from accounts.audit.tables import AuditEntryRow, AuditHeadRow
from accounts.audit.verify import Anchor, Verification, VerifyResult
from accounts.secret_shapes import mask_text
from accounts.tables import ID_CHARS, NAME_CHARS
from accounts.transactions import within

MAX_REASON_CHARS: Final = 1_000
MAX_STATE_CHARS: Final = 32_768
"""Limit of an entry's `before`, and again of its `after`; a longer state is stored as its length and SHA-256."""
MAX_PAGE: Final = 500
_BATCH: Final = 500
SPAN: Final = 5_000
"""Entry numbers that one statement of a search covers at most."""
SEARCH_S: Final = 0.5
"""Seconds after which a search begins no further span."""
_ADDRESS_CHARS: Final = 64
_ACTION: Final = re.compile(r"[a-z_]{1,30}\.[a-z_]{1,33}")
_KIND: Final = re.compile(r"[a-z_]{1,32}")
_HEAD_KEY: Final = 1
_anchor_log: Final = logging.getLogger("weighbridge.audit")


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the log that a reader may see.

    Without an organisation it is everybody's, which is only for the gateway's own command line.
    """

    organisation_id: str | None
    team_id: str | None = None


class Filters(msgspec.Struct, frozen=True, kw_only=True):
    """Search criteria; an empty one matches anything."""

    actor: str = ""
    """The actor's id, or a part of its name in any case."""
    action: str = ""
    """A whole action, or its kind alone: `key` finds `key.created` and `key.revoked`."""
    object: str = ""
    """The object's id, or its kind."""
    team_id: str = ""
    first_us: int | None = None
    """Earliest time, inclusive, in Unix microseconds."""
    until_us: int | None = None
    """Latest time, exclusive, in Unix microseconds."""

    @property
    def is_searching(self) -> bool:
        """True when a filter is set that no index serves, so that every entry has to be read."""
        return bool(self.actor or self.action or self.object)


class LogEntries(msgspec.Struct, frozen=True):
    """One page of entries, newest first."""

    entries: list[Entry]
    reached: int | None = None
    """The entry number up to which was searched, when time ran out first; None when the search is complete."""


class _Head(NamedTuple):
    number: int
    hash: str


class _ObjectChange(NamedTuple):
    """One object's part of a change, as an entry stores it."""

    object_kind: str
    object_id: str
    before: str
    after: str
    team_id: str
    organisation_id: str


class Change:
    """A change in progress: its transaction, and the object changes that it reports."""

    def __init__(self, connection: AsyncConnection, team_id: str, organisation_id: str) -> None:
        self.within: Final[AsyncEngine] = within(connection)
        """The engine to give to every store that the change needs."""
        self.object_changes: Final[list[_ObjectChange]] = []
        self.entries: tuple[Entry, ...] = ()
        """The entries that were written; empty until the transaction has ended."""
        self._team_id = team_id
        self._organisation_id = organisation_id

    def tell(
        self,
        object_kind: str,
        object_id: str,
        before: Mapping[str, Any] | None,
        after: Mapping[str, Any] | None,
        *,
        team_id: str | None = None,
        organisation_id: str | None = None,
    ) -> None:
        """Report an object's state before and after; None means that it does not exist. Equal states are not logged."""
        was, now = plain(before), plain(after)
        if was != now:
            self.add(object_kind, object_id, was, now, team_id=team_id, organisation_id=organisation_id)

    def add(
        self,
        object_kind: str,
        object_id: str,
        was: Any,
        now: Any,
        *,
        team_id: str | None = None,
        organisation_id: str | None = None,
    ) -> None:
        """Report an object whether or not it changed. Raises ValueError for a malformed kind of object."""
        if not _KIND.fullmatch(object_kind):
            raise ValueError(f"{object_kind!r} is no kind of object")
        self.object_changes.append(
            _ObjectChange(
                object_kind,
                one_line(object_id, NAME_CHARS),
                _state_json(masked(was)),
                _state_json(masked(now, was)),
                self._team_id if team_id is None else team_id,
                self._organisation_id if organisation_id is None else organisation_id,
            )
        )


class AuditLog:
    """Appends to the log and reads it. Writers are serialised: each locks the head's row until its transaction ends."""

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1_000,
        span: int = SPAN,
        search_s: float = SEARCH_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._now_us = now_us
        self._span = span
        self._search_s = search_s
        self._clock = clock

    @contextlib.asynccontextmanager
    async def change(
        self, actor: Actor, action: str, *, team_id: str = "", reason: str = "", organisation_id: str | None = None
    ) -> AsyncIterator[Change]:
        """Open one transaction for a change and its entries: both are committed, or neither.

        The entries go to the log of the actor's organisation unless another is named. Raises ValueError for a malformed
        action. Never nest two: the second would wait for the first one's lock.
        """
        if not _ACTION.fullmatch(action):
            raise ValueError(f"{action!r} is no action: use object.what_was_done")
        owner = actor.organisation_id if organisation_id is None else organisation_id
        async with self._engine.begin() as connection:
            head = await lock_head(connection)
            change = Change(connection, team_id, owner)
            yield change
            change.entries = await self._append(connection, head, change.object_changes, actor, action, reason)
        for entry in change.entries:
            log_anchor(entry)

    async def note(
        self,
        actor: Actor,
        action: str,
        object_kind: str,
        object_id: str,
        *,
        team_id: str = "",
        reason: str = "",
        before: Mapping[str, Any] | None = None,
        after: Mapping[str, Any] | None = None,
        organisation_id: str | None = None,
    ) -> Entry:
        """Append one entry for an event that changes no object, such as signing in, and return it."""
        async with self.change(
            actor, action, team_id=team_id, reason=reason, organisation_id=organisation_id
        ) as change:
            change.add(object_kind, object_id, plain(before), plain(after))
        return change.entries[0]

    async def page(
        self,
        scope: Scope,
        filters: Filters | None = None,
        *,
        before_number: int | None = None,
        after_number: int | None = None,
        limit: int = 50,
    ) -> list[Entry]:
        """Return the entries that `search` finds."""
        found = await self.search(scope, filters, before_number=before_number, after_number=after_number, limit=limit)
        return found.entries

    async def search(
        self,
        scope: Scope,
        filters: Filters | None = None,
        *,
        before_number: int | None = None,
        after_number: int | None = None,
        limit: int = 50,
        most_s: float | None = None,
    ) -> LogEntries:
        """Return up to `limit` entries, newest first: the last ones, those before a number, or the next ones after one.

        Filters without an index are applied one span of the log at a time, and no further span is begun once `most_s`, or SEARCH_S,
        have passed.
        """
        most_s = self._search_s if most_s is None else most_s
        filters, limit = filters or Filters(), max(1, min(limit, MAX_PAGE))
        forward = after_number is not None and before_number is None
        first, last = await self._bounds(scope, filters)
        first = max(first, -1 if after_number is None else after_number + 1)
        last = min(last, last if before_number is None else before_number - 1)
        entries: list[Entry] = []
        span = self._span if filters.is_searching else last - first + 1
        begun = self._clock()
        while first <= last and len(entries) < limit:
            if forward:
                begin, end = first, min(last, first + span - 1)
                first = end + 1
            else:
                begin, end = max(first, last - span + 1), last
                last = begin - 1
            entries += await self._entries_between(scope, filters, begin, end, limit - len(entries), forward=forward)
            if len(entries) < limit and first <= last and self._clock() - begun > most_s:
                return LogEntries(entries[::-1] if forward else entries, end if forward else begin)
        return LogEntries(entries[::-1] if forward else entries)

    async def _bounds(self, scope: Scope, filters: Filters) -> tuple[int, int]:
        """Return the first and last entry number of the scope within the filters' time range; (0, -1) when there is none."""
        days = Filters(first_us=filters.first_us, until_us=filters.until_us)
        number = col(AuditEntryRow.number)
        # Each by itself: an index has one at either end.
        ends = [select(end(number)).where(*_conditions(scope, days)).scalar_subquery() for end in (func.min, func.max)]
        async with self._engine.connect() as connection:
            first, last = (await connection.execute(select(*ends))).one()
        return (0, -1) if first is None else (int(first), int(last))

    async def _entries_between(
        self, scope: Scope, filters: Filters, first: int, last: int, limit: int, *, forward: bool
    ) -> list[Entry]:
        number = col(AuditEntryRow.number)
        wanted = [*_conditions(scope, filters), number >= first, number <= last]
        query = select(*COLUMNS).where(*wanted).order_by(number.asc() if forward else number.desc()).limit(limit)
        async with self._engine.connect() as connection:
            return [entry_of(row) for row in await connection.execute(query)]

    async def entry(self, scope: Scope, number: int) -> Entry | None:
        """Return one entry by number; None when it does not exist or is outside of the scope."""
        query = select(*COLUMNS).where(*_conditions(scope, Filters()), col(AuditEntryRow.number) == number)
        async with self._engine.connect() as connection:
            row = (await connection.execute(query)).first()
        return None if row is None else entry_of(row)

    async def export(
        self, scope: Scope, filters: Filters | None = None, *, limit: int | None = None
    ) -> AsyncIterator[Entry]:
        """Return every entry of the scope, oldest first, read in batches; `limit` entries at most."""
        last, left = None, limit
        while left is None or left > 0:
            found = await self._entries_after(
                scope, filters or Filters(), last, _BATCH if left is None else min(_BATCH, left)
            )
            for entry in found:
                yield entry
            if not found:
                return
            last = found[-1].number
            left = None if left is None else left - len(found)

    async def head(self) -> tuple[int, str]:
        """Return the last entry's number and hash; 0 and zeros before the first. Raises AuditHeadMissing."""
        async with self._engine.connect() as connection:
            return _head_of((await connection.execute(_HEAD)).first())

    async def verify(self, anchors: Sequence[Anchor] = ()) -> VerifyResult:
        """Check every entry's presence, content and place; `anchors` are hashes that were noted elsewhere."""
        async with self._engine.connect() as connection:
            row = (await connection.execute(_HEAD_AND_LAST)).first()
        number, digest = _head_of(row)
        newest = None if row is None else row[2]
        verification = Verification(anchors)
        async for entry in self.export(Scope(organisation_id=None)):
            if entry.number > number:
                break
            verification.check(entry)
        return verification.result(number, digest, newest=newest)

    async def _entries_after(self, scope: Scope, filters: Filters, last: int | None, limit: int) -> list[Entry]:
        number = col(AuditEntryRow.number)
        wanted = _conditions(scope, filters)
        if last is not None:
            wanted.append(number > last)
        query = select(*COLUMNS).where(*wanted).order_by(number).limit(limit)
        async with self._engine.connect() as connection:
            return [entry_of(row) for row in await connection.execute(query)]

    async def _append(
        self,
        connection: AsyncConnection,
        head: _Head,
        object_changes: Sequence[_ObjectChange],
        actor: Actor,
        action: str,
        reason: str,
    ) -> tuple[Entry, ...]:
        entries: list[Entry] = []
        for each in object_changes:
            entry = sealed(
                Entry(
                    number=head.number + 1,
                    at_us=self._now_us(),
                    organisation_id=each.organisation_id[:ID_CHARS],
                    team_id=each.team_id[:ID_CHARS],
                    actor_kind=actor.kind,
                    actor_id=one_line(actor.actor_id, NAME_CHARS),
                    actor_name=one_line(actor.name, NAME_CHARS),
                    address=one_line(actor.address, _ADDRESS_CHARS),
                    action=action,
                    object_kind=each.object_kind,
                    object_id=each.object_id,
                    reason=_clean_reason(reason),
                    before=each.before,
                    after=each.after,
                    previous_hash=head.hash,
                    hash="",
                )
            )
            head = _Head(entry.number, entry.hash)
            entries.append(entry)
        if entries:
            await connection.execute(insert(AuditEntryRow), [msgspec.structs.asdict(entry) for entry in entries])
            moved = update(AuditHeadRow).where(col(AuditHeadRow.only) == _HEAD_KEY)
            await connection.execute(moved.values(number=head.number, hash=head.hash))
        return tuple(entries)


COLUMNS: Final = tuple(col(getattr(AuditEntryRow, name)) for name in Entry.__struct_fields__)
_HEAD: Final = select(col(AuditHeadRow.number), col(AuditHeadRow.hash)).where(col(AuditHeadRow.only) == _HEAD_KEY)
# One statement sees one moment, also while others write.
_HEAD_AND_LAST: Final = _HEAD.add_columns(select(func.max(col(AuditEntryRow.number))).scalar_subquery())


def entry_of(row: Row[*tuple[Any, ...]]) -> Entry:
    return Entry(**row._mapping)  # noqa: SLF001


async def lock_head(connection: AsyncConnection) -> _Head:
    """Lock the head for this transaction and return it.

    The lock is an UPDATE, so the transaction begins with a write, which savepoints on SQLite need.
    """
    taking = update(AuditHeadRow).where(col(AuditHeadRow.only) == _HEAD_KEY).values(number=col(AuditHeadRow.number))
    row = (await connection.execute(taking.returning(col(AuditHeadRow.number), col(AuditHeadRow.hash)))).first()
    return _head_of(row)


def _head_of(row: Any) -> _Head:
    if row is None:
        raise AuditHeadMissing(
            "the audit log has no head: its row in audit_head was taken away. Restore it from a backup; "
            "until then nothing can be changed"
        )
    return _Head(row[0], row[1])


def _conditions(scope: Scope, filters: Filters) -> list[ColumnElement[bool]]:
    """Return the WHERE conditions. The scope's come first: no filter can widen it."""
    row = AuditEntryRow
    wanted: list[ColumnElement[bool]] = []
    if scope.organisation_id is not None:
        wanted.append(col(row.organisation_id) == scope.organisation_id)
    if scope.team_id is not None:
        wanted.append(col(row.team_id) == scope.team_id)
    if filters.team_id:
        wanted.append(col(row.team_id) == filters.team_id)
    if filters.actor:
        named = func.lower(col(row.actor_name)).contains(filters.actor.lower(), autoescape=True)
        wanted.append(or_(col(row.actor_id) == filters.actor, named))
    if filters.action:
        kind = col(row.action).startswith(f"{filters.action}.", autoescape=True)
        wanted.append(or_(col(row.action) == filters.action, kind))
    if filters.object:
        wanted.append(or_(col(row.object_id) == filters.object, col(row.object_kind) == filters.object))
    if filters.first_us is not None:
        wanted.append(col(row.at_us) >= filters.first_us)
    if filters.until_us is not None:
        wanted.append(col(row.at_us) < filters.until_us)
    return wanted


def _state_json(state: Any) -> str:
    """Return a state as JSON, empty for None. One that is too long becomes its length and hash, so a change still shows."""
    if state is None:
        return ""
    text = canonical(state)
    if len(text) <= MAX_STATE_CHARS:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()
    return canonical({"too_long": f"{len(text)} characters", "sha256": digest})


def _clean_reason(reason: str) -> str:
    """Return the reason masked and bounded. Line ends stay; other control characters go, which PostgreSQL would refuse."""
    lines = (one_line(line, MAX_REASON_CHARS) for line in mask_text(reason[: 2 * MAX_REASON_CHARS]).splitlines())
    return "\n".join(lines).strip()[:MAX_REASON_CHARS]


def log_anchor(entry: Entry) -> None:
    """Log the entry's number and hash, so that a chain rewritten in the database is found out by the process's log."""
    who = f"{entry.actor_kind} {entry.actor_id} of {entry.organisation_id}"
    what = f"{entry.action} {entry.object_kind} {entry.object_id}"
    _anchor_log.warning("entry %d %s: %s, %s", entry.number, entry.hash, who, what)
