"""What tests of changes have in common: a database with two organisations, somebody who changes things, and what the log says."""

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.audit.entry import Actor
from accounts.audit.log import AuditLog, Scope
from accounts.keys import Pepper
from accounts.people.people import PeopleStore
from accounts.store import AccountStore, TeamRecord

PEPPER = Pepper(id="p1", secret=b"a" * 32)
NOON = datetime(2026, 4, 5, 12, 0, tzinfo=UTC)
ANN = Actor(kind="person", actor_id="person_ann", name="Ann", organisation_id="acme", address="127.0.0.1")


class Bench(msgspec.Struct, frozen=True):
    """Where a test works. `other` is a team of another organisation."""

    engine: AsyncEngine
    log: AuditLog
    accounts: AccountStore
    people: PeopleStore
    team: TeamRecord
    other: TeamRecord

    async def entries(self, organisation_id: str = "acme") -> list[tuple[str, str, Any, Any]]:
        """What the organisation's log has, oldest first: the action, the kind of object, before and after."""
        found = await self.log.page(Scope(organisation_id=organisation_id), limit=500)
        return [(e.action, e.object_kind, _read(e.before), _read(e.after)) for e in reversed(found)]


async def make_bench(engine: AsyncEngine) -> Bench:
    """Acme with the team `red`, and globex with the team `blue`."""
    accounts = AccountStore(engine)
    await accounts.create_organisation("acme")
    await accounts.create_organisation("globex")
    team = await accounts.create_team("red", organisation_id="acme")
    other = await accounts.create_team("blue", organisation_id="globex")
    return Bench(engine, AuditLog(engine, now_us=lambda: 1), accounts, PeopleStore(engine), team, other)


def _read(state: str) -> Any:
    return json.loads(state) if state else None
