"""A person's erasure: who is meant, and every step. Begun again after a crash it goes on, as each step finds what is left of it.

What names the person to us is found: an account, an end user's id as the books have it, mail addresses and names in texts. The account
itself goes last, so that until then it can be found.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, Table, and_, delete, false, func, or_, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import SQLModel, col

from accounts.audit.redacting import Subject
from accounts.audit.redaction import RedactedLog
from accounts.people.people import PeopleStore
from accounts.people.people_errors import UnknownPerson
from accounts.people.person import Person
from accounts.people.tables import OneTimeLinkRow, PersonRow, SessionRow
from accounts.tables import Team
from accounts.transactions import overwriting
from api.erasure.holdings import Action, Value, holdings
from api.erasure.rows import BATCH, Rows
from cost.end_users import booked
from cost.ledger.rollups import LOCK_ORDER, end_user_month, spend_day, spend_quarter
from cost.tables import LedgerEntry
from cost.times import wall_us
from proxy.responses.background.tables import BackgroundEvents, BackgroundResponse

_SUMS: Final = (spend_day, spend_quarter)
_LOCKED: Final = sorted((end_user_month.name, *(each.name for each in _SUMS)), key=LOCK_ORDER.index)
_LOCK: Final = text(f"LOCK TABLE {', '.join(_LOCKED)} IN SHARE ROW EXCLUSIVE MODE")
_SETTLES_US: Final = 5_000_000
"""Until so long after its entry a request's texts may still be written: `proxy.settle.observers.learning` does so once a second."""
_OF_REQUEST: Final = frozenset({"request", "response"})


class Named(msgspec.Struct, frozen=True, kw_only=True):
    """Who is to be erased, as each part of the gateway knows them."""

    organisation_id: str
    person: Person | None
    """The account; None for somebody who only is an end user of callers."""
    end_users: tuple[str, ...]
    """As the books have them."""
    subject: Subject
    """As texts have them."""
    teams: tuple[str, ...]
    """All teams of the organisation."""

    def values(self, value: Value) -> tuple[str, ...]:
        """Return what a column of this kind says of the person."""
        own = "" if self.person is None else self.person.person_id
        match value:
            case "person_id":
                return (own,) if own else ()
            case "principal":
                return (f"person/{own}",) if own else ()
            case "end_user":
                return self.end_users
            case "spender":
                return tuple(f"{team}/{each}" for team in self.teams for each in self.end_users)
            case "request" | "response":
                return ()


async def find_named(engine: AsyncEngine, organisation_id: str, who: str) -> Named:
    """Return who is meant by an id, a mail address or an end user's id, within the organisation."""
    people = PeopleStore(engine)
    person = await people.find(who, organisation_id=organisation_id)
    if person is None:
        with contextlib.suppress(UnknownPerson):
            person = await people.get(who, organisation_id=organisation_id)
    texts = {who} if person is None else {person.email, person.name, *(await _earlier(engine, person)), who}
    mails = {each for each in texts if "@" in each}
    ends = {booked(each) for each in ({who} if person is None else {who, *mails, person.person_id})}
    async with engine.connect() as connection:
        teams = (
            await connection.scalars(select(col(Team.team_id)).where(col(Team.organisation_id) == organisation_id))
        ).all()
    whole = (texts - mails) | ends
    if person is not None:
        whole.discard(person.person_id)
    spenders = {f"{team}/{each}" for team in teams for each in ends}
    return Named(
        organisation_id=organisation_id,
        person=person,
        end_users=tuple(sorted(ends)),
        subject=Subject(
            person_id="" if person is None else person.person_id,
            anywhere=tuple(sorted(mails)),
            whole=tuple(sorted(whole | spenders)),
        ),
        teams=tuple(sorted(teams)),
    )


async def _earlier(engine: AsyncEngine, person: Person) -> set[str]:
    """Return the names and addresses that the person had before, by the audit log."""
    return await RedactedLog(engine).known_names(Subject(person_id=person.person_id))


class PersonErasure:
    """The steps, in their order. Dry, it counts what they would do."""

    def __init__(
        self,
        rows: Rows,
        named: Named,
        *,
        of_operators: bool,
        now_us: Callable[[], int] = wall_us,
        rest: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`rest` awaits some seconds."""
        self._now_us = now_us
        self._rest = rest
        self._rows = rows
        self._named = named
        self._of_operators = of_operators
        self._log = RedactedLog(rows.engine)
        self._last = ("", 0, "")

    async def run(self) -> dict[str, int]:
        """Do them, and return the rows by table."""
        actions = holdings().of_person()
        of_request = [each for each in actions if each.value in _OF_REQUEST]
        await self._by_request(of_request)
        if not self._rows.dry and (left_us := await self._unsettled_us()) > 0:
            # Only the ledger knows whose texts they are, and below it forgets.
            await self._rest(left_us / 1_000_000)
            self._last = ("", 0, "")
            await self._by_request(of_request)
        for action in actions:
            if action.value not in _OF_REQUEST:
                await self._by_value(action)
        late = await self._ledger()
        await self._account()
        if late:
            await self._rest(_SETTLES_US / 1_000_000)
            await self._of_requests(of_request, late)
        return self._rows.counts

    async def _by_value(self, action: Action) -> None:
        table, column = action.table, action.table.c[action.column]
        owned = self._owned(table)
        if owned is None:
            return
        if action.verb == "scrub":
            found = or_(false(), *self._named.subject.within(column))
            await self._rows.scrub(table, and_(owned, found), action.column, self._named.subject.json_without)
            return
        assert action.value is not None  # noqa: S101 - `holdings` has seen to it
        where = and_(owned, column.in_(self._named.values(action.value)))
        if action.value == "spender":
            where = and_(where, table.c.scope == "end_user")
        if action.verb == "delete":
            await self._rows.delete(table, where)
        else:
            await self._rows.blank(table, where, action.column)

    def _owned(self, table: Table) -> ColumnElement[bool] | None:
        """Return the condition of the organisation's rows; None where the table is none of its business."""
        if "organisation_id" in table.c:
            return table.c.organisation_id == self._named.organisation_id
        if "team_id" in table.c:
            return table.c.team_id.in_(self._named.teams)
        if "person_id" in table.c:
            return table.c.person_id == self._named.subject.person_id
        if "scope_id" in table.c:
            # `spender` values begin with a team of the organisation.
            return func.length(table.c.scope_id) > 0
        return func.length(next(iter(table.primary_key.columns))) > 0 if self._of_operators else None

    async def _by_request(self, actions: Sequence[Action]) -> None:
        """Delete what hangs on the end user's requests, which the ledger still knows."""
        while self._named.end_users and (page := await self._requests()):
            await self._of_requests(actions, page)

    async def _unsettled_us(self) -> int:
        """Return how long the texts of the end user's last request may still be written."""
        if not self._named.end_users:
            return 0
        async with self._rows.engine.connect() as connection:
            last_us = await connection.scalar(select(func.max(col(LedgerEntry.at_us))).where(self._in_ledger()))
        # A host's clock may be ahead.
        return 0 if last_us is None else min(_SETTLES_US, last_us + _SETTLES_US - self._now_us())

    async def _requests(self) -> list[tuple[str, str]]:
        """Return the next page of (team, request) of the end user, by end user, time and id."""
        after = self._last
        end_user, at_us, request_id = col(LedgerEntry.end_user), col(LedgerEntry.at_us), col(LedgerEntry.request_id)
        beyond = or_(
            end_user > after[0],
            and_(end_user == after[0], at_us > after[1]),
            and_(end_user == after[0], at_us == after[1], request_id > after[2]),
        )
        query = (
            select(end_user, at_us, request_id, col(LedgerEntry.team_id))
            .where(self._in_ledger(), beyond)
            .order_by(end_user, at_us, request_id)
            .limit(BATCH)
        )
        async with self._rows.engine.connect() as connection:
            found = (await connection.execute(query)).all()
        if found:
            self._last = (found[-1][0], found[-1][1], found[-1][2])
        return sorted({(row[3], row[2]) for row in found})

    async def _of_requests(self, actions: Sequence[Action], requests: Sequence[tuple[str, str]]) -> None:
        for team_id in {each[0] for each in requests}:
            mine = [request_id for team, request_id in requests if team == team_id]
            for start in range(0, len(mine), BATCH):
                await self._of_team(actions, team_id, mine[start : start + BATCH])

    async def _of_team(self, actions: Sequence[Action], team_id: str, request_ids: list[str]) -> None:
        responses = [f"resp_{each.removeprefix('req_')}" for each in request_ids]
        mine = and_(col(BackgroundResponse.team_id) == team_id, col(BackgroundResponse.response_id).in_(responses))
        events = col(BackgroundEvents.response_id).in_(select(col(BackgroundResponse.response_id)).where(mine))
        await self._rows.delete(SQLModel.metadata.tables["background_events"], events)
        for action in actions:
            values = responses if action.value == "response" else request_ids
            where = and_(action.table.c.team_id == team_id, action.table.c[action.column].in_(values))
            await self._rows.delete(action.table, where)

    def _in_ledger(self) -> ColumnElement[bool]:
        return and_(
            col(LedgerEntry.organisation_id) == self._named.organisation_id,
            col(LedgerEntry.end_user).in_(self._named.end_users),
            # As its index says it.
            col(LedgerEntry.end_user) != "",
        )

    async def _ledger(self) -> list[tuple[str, str]]:
        """Take the end user out of the books. Amounts stay. The last entries go with the sums, so that these agree in the end; where it is cut off
        before, `ledger verify` tells their difference until it is finished.

        Return the requests (team, id) whose texts may come yet.
        """
        table = SQLModel.metadata.tables["ledger_entry"]
        spenders = self._named.values("spender")
        of_sums = [(each, and_(each.c.scope == "end_user", each.c.scope_id.in_(spenders))) for each in _SUMS]
        month = and_(
            end_user_month.c.team_id.in_(self._named.teams), end_user_month.c.end_user.in_(self._named.end_users)
        )
        of_sums.append((end_user_month, month))
        if self._rows.dry:
            self._rows.note(table.name, await self._rows.count(table, self._in_ledger()))
            for each, where in of_sums:
                self._rows.note(each.name, await self._rows.count(each, where))
            return []
        fresh = col(LedgerEntry.at_us) > self._now_us() - _SETTLES_US
        await self._rows.blank(table, and_(self._in_ledger(), ~fresh), "end_user")
        async with overwriting(self._rows.engine) as connection:
            await _lock(connection)
            of_fresh = select(col(LedgerEntry.team_id), col(LedgerEntry.request_id)).where(self._in_ledger(), fresh)
            late = {(row[0], row[1]) for row in await connection.execute(of_fresh)}
            changed = await connection.execute(update(table).where(self._in_ledger()).values(end_user=""))
            self._rows.note(table.name, changed.rowcount)
            for each, where in of_sums:
                self._rows.note(each.name, (await connection.execute(delete(each).where(where))).rowcount)
        return sorted(late)

    async def _account(self) -> None:
        named, person = self._named, self._named.person
        of_all = person is not None
        if self._rows.dry:
            entries = await self._log.count_redactable(named.subject, named.organisation_id, of_all=of_all)
            self._rows.note("audit_entry", entries)
            self._rows.note("person", int(of_all))
            return
        entries = await self._log.redact(named.subject, named.organisation_id, of_all=of_all)
        self._rows.note("audit_entry", entries)
        if person is None:
            return
        async with overwriting(self._rows.engine) as connection:
            mine: Any
            for mine in (OneTimeLinkRow, SessionRow):
                await connection.execute(delete(mine).where(col(mine.person_id) == person.person_id))
            gone = delete(PersonRow).where(
                col(PersonRow.person_id) == person.person_id, col(PersonRow.organisation_id) == named.organisation_id
            )
            self._rows.note("person", (await connection.execute(gone)).rowcount)


async def _lock(connection: AsyncConnection) -> None:
    """Keep entries from being booked until the transaction ends."""
    if connection.dialect.name == "sqlite":
        await connection.exec_driver_sql("BEGIN IMMEDIATE")
    else:
        await connection.execute(_LOCK)
