"""Erasures with their audit entry, which is made before anything goes, so that none goes unsaid whatever happens then."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import date

import msgspec
from sqlalchemy import delete
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlmodel import col

from accounts.audit.entry import Actor
from accounts.audit.log import AuditLog
from accounts.people.people import PeopleStore
from accounts.people.tables import OneTimeLinkRow, SessionRow
from accounts.store import AccountStore, TeamRecord
from api.erasure.holdings import holdings
from api.erasure.past import CONTENT, NOBODY, PERSON
from api.erasure.person import Named, PersonErasure, find_named
from api.erasure.rows import Rows, settle
from api.erasure.team import ContentErasure
from api.people.change import check_another_admin
from api.web.changing import changing, looking
from api.web.gateway import Gateway
from cost.times import start_of
from proxy.batch.blobs import Blobs
from proxy.errors import BadRequest

MOST_CHARS = 254


class Erased(msgspec.Struct, frozen=True, kw_only=True):
    """What an erasure did, or would do."""

    dry_run: bool
    rows: dict[str, int]
    """By table; only those that had something."""
    left: dict[str, int]
    """Of a team: what could not go now, as a batch still needs it."""
    kept: dict[str, str]
    """What stays by its nature, and why."""


async def erase_person(
    engine: AsyncEngine,
    log: AuditLog,
    actor: Actor,
    organisation_id: str,
    who: str,
    *,
    operator: str,
    dry_run: bool,
    reason: str = "",
    rest: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Erased:
    """Erase somebody by the id of their account, their mail address, or the id by which callers name them as end user. Once more erases what
    came since. Takes some seconds where a request of theirs has just ended. Raises BadRequest, LastAdmin.
    """
    who = who.strip()
    if not who or len(who) > MOST_CHARS or not _is_text(who):
        raise BadRequest(
            f"`person` is an id or a mail address, of at most {MOST_CHARS} characters, without a NUL.", param="person"
        )
    async with looking():
        named = await find_named(engine, organisation_id, who)
    of_operators = organisation_id == operator
    found = await PersonErasure(Rows(engine, dry=True), named, of_operators=of_operators).run()
    if dry_run or not any(found.values()):
        return _told(found, {}, dry_run=dry_run)
    await _begin(log, actor, named, found, reason)
    done = await PersonErasure(Rows(engine, dry=False), named, of_operators=of_operators, rest=rest).run()
    await settle(engine)
    # Sessions ended with the entry.
    return _told(found | {name: count for name, count in done.items() if count}, {}, dry_run=False)


def _is_text(who: str) -> bool:
    """Return False for what no database keeps: a NUL, and half of a pair of surrogates, as a terminal of another encoding gives it."""
    return not any(char == "\0" or "\ud800" <= char <= "\udfff" for char in who)


async def _begin(log: AuditLog, actor: Actor, named: Named, found: dict[str, int], reason: str) -> None:
    """Write the entry, without the person's data, and shut the person out."""
    person, owner = named.person, named.organisation_id
    said = named.subject.text_without(reason)
    async with changing(log, actor, PERSON, owner, reason=said) as change:
        if person is not None:
            await check_another_admin(PeopleStore(change.within), person)
            if person.disabled_at is None:
                await PeopleStore(change.within).disable(person.person_id, organisation_id=owner)
            async with change.within.begin() as connection:
                for table in (SessionRow, OneTimeLinkRow):
                    await connection.execute(delete(table).where(col(table.person_id) == person.person_id))
        rows = {name: count for name, count in sorted(found.items()) if count}
        change.add("person", NOBODY if person is None else person.person_id, None, {"erased": rows})


async def erase_content(
    engine: AsyncEngine,
    log: AuditLog,
    actor: Actor,
    organisation_id: str,
    team_id: str,
    *,
    before_us: int | None,
    blobs: Blobs | None,
    dry_run: bool,
    reason: str = "",
) -> Erased:
    """Erase a team's prompts, answers, files and batches, or those from before a moment. Raises TeamNotFound."""
    async with looking():
        await AccountStore(engine).team_of(organisation_id, team_id)
    counting = ContentErasure(Rows(engine, dry=True), organisation_id, team_id, before_us, blobs)
    found = await counting.run()
    if dry_run:
        return _told(found, counting.left, dry_run=True)
    async with changing(log, actor, CONTENT, organisation_id, team_id=team_id, reason=reason) as change:
        # What is given again of earlier answers is anybody's guess of age, so all of it goes.
        await AccountStore(change.within).flush_cache(organisation_id, team_id)
        rows = {name: count for name, count in sorted(found.items()) if count}
        change.add("team", team_id, None, {"erased": rows, "before_us": before_us})
    erasing = ContentErasure(Rows(engine, dry=False), organisation_id, team_id, before_us, blobs)
    done = await erasing.run()
    await settle(engine)
    return _told(done, erasing.left, dry_run=False)


async def erase_content_of(
    gateway: Gateway, actor: Actor, team: TeamRecord, *, before: date | None, dry_run: bool, reason: str = ""
) -> Erased:
    """Do so in a running gateway, where batches may have files; `before` is a day in UTC. Raises TeamNotFound."""
    batch = gateway.jobs.batch
    return await erase_content(
        gateway.database,
        gateway.identity.audit,
        actor,
        team.organisation_id,
        team.team_id,
        before_us=None if before is None else start_of(before),
        blobs=None if batch is None else batch.files.blobs,
        dry_run=dry_run,
        reason=reason,
    )


def _told(rows: dict[str, int], left: dict[str, int], *, dry_run: bool) -> Erased:
    return Erased(
        dry_run=dry_run, rows={name: count for name, count in rows.items() if count}, left=left, kept=holdings().kept()
    )
