"""The audit log: entries are appended together with the change that they tell of, and nothing is ever rewritten."""

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
from accounts.audit.masking import mask_text, masked, one_line, plain
from accounts.audit.tables import AuditEntryRow, AuditHeadRow
from accounts.audit.verify import Anchor, Verification, VerifyResult
from accounts.tables import ID_CHARS, NAME_CHARS
from accounts.transactions import within

MAX_REASON_CHARS: Final = 1_000
MAX_STATE_CHARS: Final = 32_768
"""Of what was before, and as much of what is after."""
MAX_PAGE: Final = 500
_BATCH: Final = 500
SPAN: Final = 10_000
"""Entries that one statement looks through at most."""
SEARCH_S: Final = 0.5
"""When a search has taken this long, no earlier part of the log is begun."""
_ADDRESS_CHARS: Final = 64
_ACTION: Final = re.compile(r"[a-z_]{1,30}\.[a-z_]{1,33}")
_KIND: Final = re.compile(r"[a-z_]{1,32}")
_ONLY: Final = 1
_anchors: Final = logging.getLogger("weighbridge.audit")


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """Whose entries are read. Without an organisation: everybody's, which is for who runs the gateway at its console."""

    organisation_id: str | None
    team_id: str | None = None


class Filters(msgspec.Struct, frozen=True, kw_only=True):
    """What is looked for. Empty: anything."""

    actor: str = ""
    """Its id, or a part of its name."""
    action: str = ""
    """The whole of it, or only the kind: `key` finds `key.created` and `key.revoked`."""
    object: str = ""
    """Its id, or its kind."""
    team_id: str = ""
    first_us: int | None = None
    until_us: int | None = None
    """The first microsecond that is not looked at any more."""

    @property
    def is_searching(self) -> bool:
        """Whether every entry has to be looked at: no index has what is asked for."""
        return bool(self.actor or self.action or self.object)


class LogEntries(msgspec.Struct, frozen=True):
    """Entries of the log, the newest first. `reached` is the number up to which was looked, where time was up before all
    was.
    """

    entries: list[Entry]
    reached: int | None = None


class _Head(NamedTuple):
    number: int
    hash: str


class _ObjectChange(NamedTuple):
    """What a change has said of one object."""

    object_kind: str
    object_id: str
    before: str
    after: str
    team_id: str
    organisation_id: str


class Change:
    """A change on its way: the transaction that it happens in, and what it tells of itself."""

    def __init__(self, connection: AsyncConnection, team_id: str, organisation_id: str) -> None:
        self.within: Final[AsyncEngine] = within(connection)
        """Stands in for the engine of every store that the change needs."""
        self.told: Final[list[_ObjectChange]] = []
        self.entries: tuple[Entry, ...] = ()
        """What was written, once the change is done."""
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
        """How the object was and is; None: it is not there. Where both are the same, nothing happened and nothing is told."""
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
        """An entry whether or not something changed."""
        if not _KIND.fullmatch(object_kind):
            raise ValueError(f"{object_kind!r} is no kind of object")
        self.told.append(
            _ObjectChange(
                object_kind,
                one_line(object_id, NAME_CHARS),
                _stated(masked(was)),
                _stated(masked(now, was)),
                self._team_id if team_id is None else team_id,
                self._organisation_id if organisation_id is None else organisation_id,
            )
        )


class AuditLog:
    """Appends to the log and reads it. Writers come one after the other: each holds the head's row to the end."""

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
        """One transaction: what is done with `change.within` and the entries of what was told are there together or not at all.

        The entries stand in the actor's organisation's log unless another one is named. Never begin one inside of another.
        """
        if not _ACTION.fullmatch(action):
            raise ValueError(f"{action!r} is no action: use object.what_was_done")
        owner = actor.organisation_id if organisation_id is None else organisation_id
        async with self._engine.begin() as connection:
            head = await _take_head(connection)
            change = Change(connection, team_id, owner)
            yield change
            change.entries = await self._append(connection, head, change.told, actor, action, reason)
        for entry in change.entries:
            _anchor(entry)

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
        """An entry for what changes no object, such as signing in."""
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
        """What `search` finds."""
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
    ) -> LogEntries:
        """The newest entries first: the last ones, those before a number, or the next ones after one. What no index finds is
        looked for a part of the log at a time, for as long as there is time.
        """
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
            entries += await self._between(scope, filters, begin, end, limit - len(entries), forward=forward)
            if len(entries) < limit and first <= last and self._clock() - begun > self._search_s:
                return LogEntries(entries[::-1] if forward else entries, end if forward else begin)
        return LogEntries(entries[::-1] if forward else entries)

    async def _bounds(self, scope: Scope, filters: Filters) -> tuple[int, int]:
        """The first and the last number of the scope's entries in the days that are asked for; nothing: 0 and -1."""
        days = Filters(first_us=filters.first_us, until_us=filters.until_us)
        number = col(AuditEntryRow.number)
        # Each by itself: an index has one at either end.
        ends = [select(end(number)).where(*_wanted(scope, days)).scalar_subquery() for end in (func.min, func.max)]
        async with self._engine.connect() as connection:
            first, last = (await connection.execute(select(*ends))).one()
        return (0, -1) if first is None else (int(first), int(last))

    async def _between(
        self, scope: Scope, filters: Filters, first: int, last: int, limit: int, *, forward: bool
    ) -> list[Entry]:
        number = col(AuditEntryRow.number)
        wanted = [*_wanted(scope, filters), number >= first, number <= last]
        query = select(*_COLUMNS).where(*wanted).order_by(number.asc() if forward else number.desc()).limit(limit)
        async with self._engine.connect() as connection:
            return [_entry(row) for row in await connection.execute(query)]

    async def entry(self, scope: Scope, number: int) -> Entry | None:
        """One entry, if it is the scope's."""
        query = select(*_COLUMNS).where(*_wanted(scope, Filters()), col(AuditEntryRow.number) == number)
        async with self._engine.connect() as connection:
            row = (await connection.execute(query)).first()
        return None if row is None else _entry(row)

    async def export(
        self, scope: Scope, filters: Filters | None = None, *, limit: int | None = None
    ) -> AsyncIterator[Entry]:
        """All of them, the oldest first, a few at a time; `limit` at most."""
        last, left = None, limit
        while left is None or left > 0:
            found = await self._after(scope, filters or Filters(), last, _BATCH if left is None else min(_BATCH, left))
            for entry in found:
                yield entry
            if not found:
                return
            last = found[-1].number
            left = None if left is None else left - len(found)

    async def head(self) -> tuple[int, str]:
        """The last entry's number and hash; 0 and zeros before the first."""
        async with self._engine.connect() as connection:
            return _found_head((await connection.execute(_HEAD)).first())

    async def verify(self, anchors: Sequence[Anchor] = ()) -> VerifyResult:
        """Whether every entry is there, unchanged and in its place; `anchors` are hashes that were noted elsewhere."""
        async with self._engine.connect() as connection:
            row = (await connection.execute(_HEAD_AND_LAST)).first()
        number, digest = _found_head(row)
        newest = None if row is None else row[2]
        verification = Verification(anchors)
        async for entry in self.export(Scope(organisation_id=None)):
            if entry.number > number:
                break
            verification.look(entry)
        return verification.ended(number, digest, newest=newest)

    async def _after(self, scope: Scope, filters: Filters, last: int | None, limit: int) -> list[Entry]:
        number = col(AuditEntryRow.number)
        wanted = _wanted(scope, filters)
        if last is not None:
            wanted.append(number > last)
        query = select(*_COLUMNS).where(*wanted).order_by(number).limit(limit)
        async with self._engine.connect() as connection:
            return [_entry(row) for row in await connection.execute(query)]

    async def _append(
        self,
        connection: AsyncConnection,
        head: _Head,
        told: Sequence[_ObjectChange],
        actor: Actor,
        action: str,
        reason: str,
    ) -> tuple[Entry, ...]:
        entries: list[Entry] = []
        for each in told:
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
                    reason=_reason(reason),
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
            moved = update(AuditHeadRow).where(col(AuditHeadRow.only) == _ONLY)
            await connection.execute(moved.values(number=head.number, hash=head.hash))
        return tuple(entries)


_COLUMNS: Final = tuple(col(getattr(AuditEntryRow, name)) for name in Entry.__struct_fields__)
_HEAD: Final = select(col(AuditHeadRow.number), col(AuditHeadRow.hash)).where(col(AuditHeadRow.only) == _ONLY)
# One statement sees one moment, also while others write.
_HEAD_AND_LAST: Final = _HEAD.add_columns(select(func.max(col(AuditEntryRow.number))).scalar_subquery())


def _entry(row: Row[*tuple[Any, ...]]) -> Entry:
    return Entry(**row._mapping)  # noqa: SLF001


async def _take_head(connection: AsyncConnection) -> _Head:
    """The head, which nobody else gets before this transaction ends; it begins with a write, as stores need it."""
    taking = update(AuditHeadRow).where(col(AuditHeadRow.only) == _ONLY).values(number=col(AuditHeadRow.number))
    row = (await connection.execute(taking.returning(col(AuditHeadRow.number), col(AuditHeadRow.hash)))).first()
    return _found_head(row)


def _found_head(row: Any) -> _Head:
    if row is None:
        raise AuditHeadMissing(
            "the audit log has no head: its row in audit_head was taken away. Restore it from a backup; "
            "until then nothing can be changed"
        )
    return _Head(row[0], row[1])


def _wanted(scope: Scope, filters: Filters) -> list[ColumnElement[bool]]:
    """The scope's own columns come first: nothing that is asked for gets past them."""
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


def _stated(state: Any) -> str:
    """JSON, or empty for nothing. What is too long is named by its hash: changed it is recognised all the same."""
    if state is None:
        return ""
    text = canonical(state)
    if len(text) <= MAX_STATE_CHARS:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()
    return canonical({"too_long": f"{len(text)} characters", "sha256": digest})


def _reason(reason: str) -> str:
    """It may have lines, but no other control characters, which PostgreSQL would not take."""
    lines = (one_line(line, MAX_REASON_CHARS) for line in mask_text(reason[: 2 * MAX_REASON_CHARS]).splitlines())
    return "\n".join(lines).strip()[:MAX_REASON_CHARS]


def _anchor(entry: Entry) -> None:
    """Number and hash leave for the process's log, so that who rewrites the database's chain is found out there."""
    who = f"{entry.actor_kind} {entry.actor_id} of {entry.organisation_id}"
    what = f"{entry.action} {entry.object_kind} {entry.object_id}"
    _anchors.warning("entry %d %s: %s, %s", entry.number, entry.hash, who, what)
