"""The plan in our database: a transaction for each team with all that belongs to it, so that an import that was cut off goes on where it
was. What is there already stays as it is here; only a block comes along, as that makes nothing work that did not.
"""

import contextlib
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlmodel import col

from accounts.audit.entry import Actor
from accounts.audit.log import AuditLog, Change
from accounts.errors import AccountsError, BadId, OrganisationExists, UnknownTeam
from accounts.keys import Pepper, digest_token, is_token, token_of
from accounts.people.people import PeopleStore
from accounts.people.people_errors import BadEmail, PersonExists, UnknownPerson
from accounts.store import AccountStore, TeamRecord
from accounts.tables import ApiKey
from api.budgets import change as budget_changes
from api.keys.change import MAX_LIVE_KEYS
from api.keys.change import audit_record as key_record
from api.limits import change as limit_changes
from api.litellm.fields import FieldStore, Kind
from api.people.change import audit_record as person_record
from api.people.members_change import audit_record as member_record
from api.teams.change import audit_record as team_record
from cost.budgets.budget_errors import BadBudget, BudgetConflict
from cost.budgets.store import BudgetStore
from gateway.from_litellm.plan import (
    Cap,
    KeyPlan,
    PersonPlan,
    Plan,
    TeamPlan,
    cap_of,
    caps,
    limits_of,
    nanousd_in,
    rules,
)
from gateway.from_litellm.tables import FILE, mapping_in
from gateway.from_litellm.told import Account, Outcome
from proxy.admit.limits.rules import BadLimit, Rule
from proxy.admit.limits.store import LimitStore
from proxy.errors import Refused

ACTOR: Final = "litellm-import"
_REASON: Final = "imported from LiteLLM"
_PROBLEMS: Final = (AccountsError, BadEmail, PersonExists, UnknownPerson, BadBudget, BudgetConflict, BadLimit, Refused)


_GUESSED: Final = frozenset(
    token_of(key)
    for key in (
        "sk-1234",
        "sk-12345",
        "sk-123456",
        "sk-1234567",
        "sk-12345678",
        "sk-123456789",
        "sk-1234567890",
        "sk-litellm",
        "sk-master-key",
        "sk-my-key",
        "sk-password",
        "sk-secret-key",
        "sk-test-key",
    )
)
"""What LiteLLM stores of keys that stand in tutorials."""


class _DryRun(Exception):
    """Takes back what a transaction did."""


class Applied:
    """What the plan came to: our key for each of LiteLLM's, and the budgets that run on."""

    def __init__(self) -> None:
        self.keys: dict[str, tuple[str, TeamPlan]] = {}
        """Key id and team by LiteLLM's token."""
        self.caps: list[Cap] = []


class Importer:
    """Applies a plan. With `dry_run` every transaction is taken back."""

    def __init__(
        self, engine: AsyncEngine, peppers: Sequence[Pepper], account: Account, now: datetime, *, dry_run: bool
    ) -> None:
        self._log = AuditLog(engine)
        self._engine = engine
        self._peppers = peppers
        self._account = account
        self._now = now
        self._dry_run = dry_run
        self._people: Sequence[PersonPlan] = ()
        self.applied = Applied()

    async def apply(self, plan: Plan) -> Applied:
        """Write organisations, people and teams, in this order."""
        self._people = plan.people
        for organisation_id, name in plan.organisations.items():
            await self._organisation(organisation_id, name, plan.organisation_rows[organisation_id])
        for person in plan.people:
            await self._person(person)
        for team in plan.teams:
            await self._team(team)
        self._tell_left_behind(plan)
        return self.applied

    @contextlib.asynccontextmanager
    async def _changing(self, action: str, organisation_id: str, team_id: str = "") -> AsyncIterator[Change]:
        actor = Actor(kind="console", actor_id=ACTOR, name=ACTOR, organisation_id=organisation_id)
        with contextlib.suppress(_DryRun):
            async with self._log.change(actor, action, team_id=team_id, reason=_REASON) as change:
                yield change
                if self._dry_run:
                    raise _DryRun

    async def _suppose(self, change: Change, organisation_id: str, emails: Collection[str]) -> None:
        """Make what an import would have made before, for a dry run, which has taken it back."""
        if not self._dry_run:
            return
        with contextlib.suppress(*_PROBLEMS):
            await AccountStore(change.within).create_organisation(organisation_id)
        for person in self._people:
            if person.email in emails:
                with contextlib.suppress(*_PROBLEMS):
                    await PeopleStore(change.within).create(person.organisation_id, person.email, person.name)

    async def _organisation(self, organisation_id: str, name: str, row: Mapping[str, Any]) -> None:
        what = f"organisation {organisation_id}"
        async with self._changing("organisation.created", organisation_id) as change:
            store = AccountStore(change.within)
            try:
                await store.create_organisation(organisation_id, name)
            except OrganisationExists:
                self._tell(what, "kept", "it is here already")
            except (BadId, AccountsError) as error:
                self._tell(what, "not possible", str(error))
                return
            else:
                change.tell("organisation", organisation_id, None, {"name": name})
                self._tell(what, "kept")
            await self._limits(change, what, rules(limits_of(row, {}), "organisation", organisation_id))
            await self._budgets(change, what, caps(row, "organisation", organisation_id, organisation_id, self._now))

    async def _person(self, person: PersonPlan) -> None:
        what = f"user {person.email}"
        async with self._changing("person.set", person.organisation_id) as change:
            await self._suppose(change, person.organisation_id, ())
            store = PeopleStore(change.within)
            try:
                if await store.find(person.email) is not None:
                    self._tell(what, "kept", "known here already")
                    return
                role: Any = person.role
                made = await store.create(person.organisation_id, person.email, person.name, role=role)
            except _PROBLEMS as error:
                self._tell(what, "not possible", str(error))
                return
            change.tell("person", made.person_id, None, person_record(made))
            self._tell(
                what,
                "changed",
                "signs in by a link (weighbridge people link) or a provider (docs/sign-in.md), not by the old password",
            )

    async def _team(self, plan: TeamPlan) -> None:
        what = f"team {plan.team_id}"
        try:
            async with self._changing("team.imported", plan.organisation_id, plan.team_id) as change:
                await self._suppose(change, plan.organisation_id, {email for email, _ in plan.members})
                team = await self._team_itself(change, plan, what)
                await self._limits(change, what, rules(plan.limits, "team", plan.team_id))
                await self._budgets(change, what, self._team_caps(plan))
                await self._members(change, plan, what)
                room = MAX_LIVE_KEYS - len(
                    [
                        key
                        for key in await AccountStore(change.within).keys_of(team.organisation_id, team.team_id)
                        if key.works_at(self._now)
                    ]
                )
                for key in plan.keys:
                    room -= await self._key(change, team, plan, key, room=room)
        except _PROBLEMS as error:
            self._tell(what, "not possible", f"left out with its keys: {error}")

    def _team_caps(self, plan: TeamPlan) -> Iterable[Cap]:
        yield from caps(plan.row, "team", plan.team_id, plan.organisation_id, self._now)
        for model, each in mapping_in(plan.row.get("model_max_budget")).items():
            own = each if isinstance(each, dict) else {"budget_limit": each}
            limit = own.get("budget_limit", own.get("max_budget"))
            duration = own.get("time_period", own.get("budget_duration"))
            if nanousd_in(limit) is not None:
                cap = cap_of(limit, duration, None, "team_model", f"{plan.team_id}/{model}", plan.organisation_id)
                if cap is not None:
                    yield cap

    async def _team_itself(self, change: Change, plan: TeamPlan, what: str) -> TeamRecord:
        store = AccountStore(change.within)
        try:
            found = await store.get_team(plan.team_id)
        except UnknownTeam:
            made = await store.create_team(
                plan.team_id, plan.name, organisation_id=plan.organisation_id, allowed_models=plan.models
            )
            if plan.blocked:
                made = await store.block_team(plan.organisation_id, plan.team_id, blocked=True)
            change.tell("team", plan.team_id, None, team_record(made))
            await self._fields(change, "team", plan.organisation_id, plan.team_id, plan.fields)
            self._tell_kept(what, plan.losses)
            return made
        if found.organisation_id != plan.organisation_id:
            raise AccountsError(f"the id is another organisation's, {found.organisation_id}")
        if plan.blocked and found.blocked_at is None:
            blocked = await store.block_team(plan.organisation_id, plan.team_id, blocked=True)
            change.tell("team", plan.team_id, team_record(found), team_record(blocked))
        self._tell(what, "kept", "it is here already, and stays as it is")
        return found

    async def _key(self, change: Change, team: TeamRecord, plan: TeamPlan, key: KeyPlan, *, room: int) -> int:
        """Import a key; return 1 where it is new."""
        what = f"key {key.name} ({key.token[:8]})"
        if not is_token(key.token):
            self._tell(what, "not possible", "what LiteLLM has of it is no SHA-256")
            return 0
        if key.token in _GUESSED:
            self._tell(
                what, "not possible", "left out: it is a key of tutorials, which anybody guesses; make a new one"
            )
            return 0
        store = AccountStore(change.within)
        digests = [digest_token(key.token, pepper).hex() for pepper in self._peppers]
        stored = next((each for each in await store.find_keys(digests) if each is not None), None)
        if stored is not None:
            key_id = stored.key_id
            if key.blocked and stored.blocked_at is None:
                await self._block(change, team, key_id)
            self._tell(what, "kept", "it is here already, and stays as it is")
        elif room <= 0:
            self._tell(what, "not possible", f"left out: a team has at most {MAX_LIVE_KEYS} keys that work")
            return 0
        else:
            key_id = await store.import_key(
                team.team_id,
                key.name,
                self._peppers[0],
                key.token,
                last4=key.last4,
                expires_at=key.expires_at,
                models=key.models,
                blocked=key.blocked,
            )
            made = await store.key_of(team.organisation_id, team.team_id, key_id)
            change.tell("key", key_id, None, key_record(made))
            await self._fields(change, "key", team.organisation_id, key_id, key.fields)
            self._tell_kept(what, key.losses)
        self.applied.keys[key.token] = key_id, plan
        await self._limits(change, what, rules(key.limits, "key", key_id))
        await self._budgets(change, what, caps(key.row, "key", key_id, team.organisation_id, self._now))
        return int(stored is None)

    async def _block(self, change: Change, team: TeamRecord, key_id: str) -> None:
        """Block one key, and nothing that has come in its place."""
        store = AccountStore(change.within)
        before = await store.key_of(team.organisation_id, team.team_id, key_id)
        async with change.within.begin() as connection:
            await connection.execute(update(ApiKey).where(col(ApiKey.key_id) == key_id).values(blocked_at=self._now))
        after = await store.key_of(team.organisation_id, team.team_id, key_id)
        change.tell("key", key_id, key_record(before), key_record(after))

    async def _members(self, change: Change, plan: TeamPlan, what: str) -> None:
        store = PeopleStore(change.within)
        there = {each.person.email for each in await store.members_of(plan.team_id)}
        for email, role in plan.members:
            if email in there:
                continue
            person = await store.find(email, organisation_id=plan.organisation_id)
            if person is None:
                self._tell(what, "not possible", f"member {email}: nobody of this address is in the organisation")
                continue
            as_role: Any = role
            member = await store.put_member(
                person.person_id, plan.team_id, as_role, organisation_id=plan.organisation_id
            )
            change.tell("member", person.person_id, None, member_record(member))

    async def _limits(self, change: Change, what: str, found: Sequence[Rule]) -> None:
        store = LimitStore(change.within)
        for rule in found:
            try:
                if await store.at(rule.place) is None:
                    await store.put(rule)
                    change.tell("limit", str(rule.place), None, limit_changes.audit_record(rule))
            except _PROBLEMS as error:
                self._tell(what, "not possible", f"its limit: {error}")

    async def _budgets(self, change: Change, what: str, found: Iterable[Cap]) -> None:
        store = BudgetStore(change.within)
        for cap in found:
            budget = cap.budget
            there = await store.of_scope(budget.organisation_id, budget.scope, budget.scope_id)
            if not any((each.budget.period, each.budget.kind) == (budget.period, budget.kind) for each in there):
                try:
                    await store.put(budget)
                except _PROBLEMS as error:
                    self._tell(what, "not possible", f"its budget: {error}")
                    continue
                change.tell("budget", budget.budget_id, None, budget_changes.audit_record(budget))
            if cap.words:
                self._tell(what, "changed", f"budget: {cap.words}")
            self.applied.caps.append(cap)

    async def budgets(self, organisation_id: str, what: str, found: Iterable[Cap]) -> None:
        """Set budgets that belong to no team of the plan."""
        async with self._changing("budget.set", organisation_id) as change:
            await self._budgets(change, what, found)

    async def _fields(
        self, change: Change, kind: Kind, organisation_id: str, object_id: str, fields: Mapping[str, Any]
    ) -> None:
        if not fields:
            return
        try:
            await FieldStore(change.within).put(kind, organisation_id, object_id, fields)
        except Refused as error:
            self._tell(f"{kind} {object_id}", "not possible", f"its metadata: {error}")

    def _tell_kept(self, what: str, losses: Sequence[str]) -> None:
        self._tell(
            what,
            "changed" if losses else "kept",
            f"without {', '.join(losses)}, which nothing here does" if losses else "",
        )

    def _tell_left_behind(self, plan: Plan) -> None:
        for number, words in (
            (plan.sessions, "sessions of LiteLLM's pages"),
            (plan.expired, "keys that have expired"),
        ):
            if number:
                self._tell(words, "not needed", f"{number}")
        if plan.without_email:
            self._tell(
                "users",
                "not possible",
                f"{plan.without_email} have no mail address, so they cannot sign in; their keys are imported",
            )

    def _tell(self, what: str, outcome: Outcome, words: str = "") -> None:
        self._account.note(FILE, 0, what, outcome, words)
