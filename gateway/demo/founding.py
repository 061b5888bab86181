"""Set-up of the made-up company: teams, keys, people, budgets and limits, each with its audit entry."""

import random
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import msgspec
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.audit.entry import Actor
from accounts.audit.log import AuditLog
from accounts.caller import Caller, TeamSettings
from accounts.keys import Pepper
from accounts.people.links import OneTimeLinks
from accounts.people.passwords import Passwords
from accounts.people.people import PeopleStore
from accounts.people.person import Person
from accounts.people.sign_in_config import SignInSection
from accounts.store import AccountStore, TeamRecord
from cost.budgets.budget import Budget, Kind, limit_from_usd
from cost.budgets.periods import Period
from cost.budgets.store import BudgetStore
from cost.price_book.store import PriceStore
from cost.prices import NANO_PER_USD, price_from_usd
from cost.scopes import Scope
from cost.times import DAY_US, HOUR_US, moment
from gateway.demo import company
from gateway.demo.company import SamplePerson, SampleTeam
from proxy.admit.limits.limit import Limits
from proxy.admit.limits.rules import Place, Rule
from proxy.admit.limits.store import LimitStore

_NEARLY_ALL: Final = Decimal("0.92")
_ADDRESSES: Final = ("10.20.4.17", "10.20.4.52", "10.20.9.3")
_MINUTE_US: Final = 60_000_000


class FoundedCompany(msgspec.Struct, frozen=True, kw_only=True):
    """The company's callers, keys and people after set-up."""

    callers: dict[str, list[Caller]]
    keys: dict[str, str]
    """The first key of each team, in plain text."""
    people: dict[str, Person]
    revoked_us: dict[str, int]
    """Revocation times in microseconds by key id."""


class Founding:
    """The companies' beginning: changes at past times, each step dated a little later than the one before."""

    def __init__(self, engine: AsyncEngine, pepper: Pepper, *, start_us: int, seed: int) -> None:
        self._engine = engine
        self._pepper = pepper
        self._now_us = start_us
        rng = random.Random(seed)  # noqa: S311 - it makes up a company, it guards nothing
        self._random: Callable[[int], bytes] = rng.randbytes
        self._rng = rng
        self.log = AuditLog(engine, now_us=lambda: self._now_us)

    def _clock(self) -> datetime:
        return moment(self._now_us)

    def at(self, moment_us: int) -> None:
        """Advance the clock to a later time; it never goes back."""
        self._now_us = max(self._now_us + 1, moment_us)

    def _step(self) -> None:
        self._now_us += self._rng.randrange(1, 9) * _MINUTE_US

    def accounts(self, engine: AsyncEngine | None = None) -> AccountStore:
        return AccountStore(engine or self._engine, clock=self._clock, random_bytes=self._random)

    def people(self, engine: AsyncEngine | None = None) -> PeopleStore:
        return PeopleStore(engine or self._engine, clock=self._clock, random_bytes=self._random)

    def console(self, organisation_id: str = company.ORGANISATION) -> Actor:
        return Actor(kind="console", actor_id="root", name="root", organisation_id=organisation_id)

    def acting(self, person: Person) -> Actor:
        return Actor(
            kind="person",
            actor_id=person.person_id,
            name=person.name,
            organisation_id=person.organisation_id,
            address=self._rng.choice(_ADDRESSES),
        )

    async def found(self) -> FoundedCompany:
        """Create both companies as they were on the first morning."""
        await self.accounts().create_organisation(company.ORGANISATION, company.ORGANISATION_NAME)
        await self.accounts().create_organisation(company.NEIGHBOUR, company.NEIGHBOUR_NAME)
        people = {each.email: await self._invite(each) for each in company.PEOPLE}
        founded = FoundedCompany(callers={}, keys={}, people=people, revoked_us={})
        for organisation_id, teams in (
            (company.ORGANISATION, company.TEAMS),
            (company.NEIGHBOUR, company.NEIGHBOURS),
        ):
            admin = next(
                each for each in company.PEOPLE if each.organisation_id == organisation_id and each.role == "admin"
            )
            for team in teams:
                await self._settle(team, organisation_id, self.acting(people[admin.email]), founded)
        for each in company.PEOPLE:
            await self._add_memberships(each, founded)
        await self._limit(founded)
        return founded

    async def _invite(self, each: SamplePerson) -> Person:
        self._step()
        async with self.log.change(self.console(each.organisation_id), "person.invited") as change:
            person = await self.people(change.within).create(
                each.organisation_id, each.email, each.name, role=each.role
            )
            change.tell("person", person.person_id, None, {"email": each.email, "name": each.name, "role": each.role})
        return person

    async def _settle(self, team: SampleTeam, organisation_id: str, actor: Actor, founded: FoundedCompany) -> None:
        self._step()
        async with self.log.change(actor, "team.created", team_id=team.team_id) as change:
            store = self.accounts(change.within)
            await store.create_team(
                team.team_id, team.name, organisation_id=organisation_id, allowed_models=team.allowed_models
            )
            record = await store.update_team(
                team.team_id,
                quality_floor=team.quality_floor,
                escalation=team.escalation,
                learning=team.learning,
                spill_over=team.spill_over,
            )
            change.tell("team", team.team_id, None, {"name": team.name, **msgspec.structs.asdict(record.settings)})
        founded.callers[team.team_id] = [await self._key(record, name, actor, founded) for name in team.keys]
        if team.budget_usd is not None:
            kind: Kind = "hard" if team.hard else "soft"
            await self.budget(
                "team", team.team_id, "month", kind, Decimal(team.budget_usd), actor, team_id=team.team_id
            )

    async def _key(self, team: TeamRecord, name: str, actor: Actor, founded: FoundedCompany) -> Caller:
        self._step()
        expires = self._clock() + timedelta(days=_EXPIRY_DAYS) if name in {"staging", "experiments"} else None
        async with self.log.change(actor, "key.created", team_id=team.team_id) as change:
            minted = await self.accounts(change.within).create_key(team.team_id, name, self._pepper, expires_at=expires)
            change.tell("key", minted.key_id, None, {"name": name, "role": "member", "expires_at": expires})
        founded.keys.setdefault(team.team_id, minted.plaintext)
        return Caller(
            key_id=minted.key_id,
            key_name=name,
            team_id=team.team_id,
            organisation_id=team.organisation_id,
            allowed_models=team.allowed_models,
            settings=team.settings,
        )

    async def _add_memberships(self, each: SamplePerson, founded: FoundedCompany) -> None:
        person = founded.people[each.email]
        admin = self.acting(founded.people[company.PEOPLE[0].email])
        for team_id, role in each.teams:
            self._step()
            async with self.log.change(admin, "member.added", team_id=team_id) as change:
                await self.people(change.within).put_member(
                    person.person_id, team_id, role, organisation_id=person.organisation_id
                )
                change.tell("member", person.person_id, None, {"email": each.email, "role": role})

    async def budget(
        self, scope: Scope, scope_id: str, period: Period, kind: Kind, usd: Decimal, actor: Actor, *, team_id: str = ""
    ) -> None:
        """Set a budget, or change its limit."""
        self._step()
        budget = Budget(
            budget_id=f"{scope_id}-{period}-{kind}",
            organisation_id=actor.organisation_id,
            scope=scope,
            scope_id=scope_id,
            period=period,
            kind=kind,
            limit_nanousd=limit_from_usd(usd),
            on_exhausted="downgrade" if scope == "key" else "refuse",
            webhook="finance",
        )
        async with self.log.change(actor, "budget.set", team_id=team_id) as change:
            store = BudgetStore(change.within, lambda: self._now_us)
            before = next(
                (
                    {"limit_usd": _dollars(each.budget)}
                    for each in await store.of_organisation(budget.organisation_id)
                    if each.budget.budget_id == budget.budget_id
                ),
                None,
            )
            await store.put(budget)
            after: dict[str, Any] = {"limit_usd": _dollars(budget)}
            if before is None:
                after |= {"scope": scope, "scope_id": scope_id, "period": period, "kind": kind}
            change.tell("budget", budget.budget_id, before, after)

    async def _limit(self, founded: FoundedCompany) -> None:
        """Set the company's budget, a key's budget, and two rate limits."""
        admin = self.acting(founded.people[company.PEOPLE[0].email])
        await self.budget("organisation", company.ORGANISATION, "month", "soft", Decimal(950), admin)
        staging = next(each for each in founded.callers["support"] if each.key_name == "staging")
        await self.budget("key", staging.key_id, "day", "hard", Decimal(5), admin, team_id="support")
        for place, limits in (
            (Place("team", "marketing"), Limits(requests_per_minute=120)),
            (Place("key", staging.key_id), Limits(requests_per_minute=60, tokens_per_minute=200_000)),
        ):
            self._step()
            async with self.log.change(admin, "limit.set") as change:
                await LimitStore(change.within, lambda: self._now_us).put(Rule(place=place, limits=limits))
                told = {name: value for name, value in msgspec.structs.asdict(limits).items() if value is not None}
                change.tell("limit", str(place), None, told)

    async def go_on(self, founded: FoundedCompany, end_us: int) -> None:
        """Perform the changes of the month: a price, a quality floor, budgets, keys, and somebody who leaves."""
        ada, ola = (founded.people[email] for email in ("ada@northwind.example", "ola@northwind.example"))
        tess, dina = (founded.people[email] for email in ("tess@northwind.example", "dina@northwind.example"))
        self.at(end_us - 17 * DAY_US + 9 * HOUR_US)
        await self._price(self.acting(ada), end_us)
        self.at(end_us - 11 * DAY_US + 7 * HOUR_US)
        await self._floor(
            self.acting(tess), "support", 0.96, "Answers were checked by hand for a week: none was worse."
        )
        await self.budget("team", "support", "month", "soft", Decimal(150), self.acting(ada), team_id="support")
        self.at(end_us - 6 * DAY_US + 8 * HOUR_US)
        shared = founded.callers["developers"][-1]
        await self._revoke(self.acting(dina), shared, "It stood in a notebook that was shared.")
        founded.revoked_us[shared.key_id] = self._now_us
        self.at(end_us - 4 * DAY_US + 10 * HOUR_US)
        await self._disable(self.acting(ada), founded.people["juri@northwind.example"])
        self.at(end_us - 2 * DAY_US + 5 * HOUR_US)
        await self.log.note(
            self.acting(ola), "replica.drained", "replica", f"{company.POOL}/replica-2", reason="A fan is loud."
        )
        self._step()
        await self.log.note(self.acting(ola), "replica.undrained", "replica", f"{company.POOL}/replica-2")
        for person in (ada, tess, ola, founded.people["finn@northwind.example"]):
            self.at(end_us - 1 * DAY_US)
            self._step()
            await self.log.note(self.acting(person), "person.signed_in", "person", person.person_id)

    async def _price(self, actor: Actor, end_us: int) -> None:
        """Enter a contract price, effective from the next day."""
        effective_us = end_us - 16 * DAY_US
        effective_us -= effective_us % DAY_US
        price = price_from_usd(version="contract-2026", input_usd="0.135", cached_input_usd="0.0675", output_usd="0.54")
        async with self.log.change(actor, "price.set", reason="Ten per cent off, as agreed in October.") as change:
            prices = PriceStore(change.within, lambda: self._now_us)
            kept = await prices.add_override(company.MINI, price, effective_us, note="Framework contract of October")
            change.tell(
                "price", company.MINI, None, {"version": kept.price.version, "input_usd": "0.135", "output_usd": "0.54"}
            )

    async def _floor(self, actor: Actor, team_id: str, floor: float, reason: str) -> None:
        async with self.log.change(actor, "team.policy_changed", team_id=team_id, reason=reason) as change:
            store = self.accounts(change.within)
            before = (await store.get_team(team_id)).settings
            after = (await store.update_team(team_id, quality_floor=floor)).settings
            change.tell("team", team_id, _settings(before), _settings(after))

    async def _revoke(self, actor: Actor, caller: Caller, reason: str) -> None:
        self._step()
        async with self.log.change(actor, "key.revoked", team_id=caller.team_id, reason=reason) as change:
            await self.accounts(change.within).revoke_key(caller.key_id)
            change.tell("key", caller.key_id, {"revoked": False}, {"revoked": True})

    async def _disable(self, actor: Actor, person: Person) -> None:
        async with self.log.change(actor, "person.disabled", reason="Left the company.") as change:
            await self.people(change.within).disable(person.person_id, organisation_id=person.organisation_id)
            change.tell("person", person.person_id, {"disabled": False}, {"disabled": True})

    async def raise_budget(self, founded: FoundedCompany) -> None:
        """Raise the month's budget of the team whose spend jumped to a little over what it has spent so far."""
        self._step()
        standings = await BudgetStore(self._engine, lambda: self._now_us).of_organisation(company.ORGANISATION)
        spent = next(each.spent_nanousd for each in standings if each.budget.scope_id == company.JUMP.team_id)
        limit = max(Decimal(1), (Decimal(spent) / NANO_PER_USD / _NEARLY_ALL).quantize(Decimal(1)))
        admin = self.acting(founded.people[company.PEOPLE[0].email])
        await self.budget("team", company.JUMP.team_id, "month", "soft", limit, admin, team_id=company.JUMP.team_id)

    async def posted(self, founded: FoundedCompany, posting: str) -> None:
        """Add the audit entry of a posted reconciliation."""
        self._step()
        ada = self.acting(founded.people[company.PEOPLE[0].email])
        await self.log.note(
            ada, "posting.posted", "posting", posting, reason="OpenAI's statement of the first two weeks."
        )

    async def let_in(self, founded: FoundedCompany, password: str, now_us: Callable[[], int]) -> dict[str, str]:
        """Set everybody's password, and return one-time link tokens by e-mail address for those who are shown one."""
        section = SignInSection()
        passwords = Passwords(min_chars=section.password_min_chars)
        links = OneTimeLinks(self._engine, section, (self._pepper,), passwords, now_us=now_us)
        for each in company.PEOPLE:
            if each.email != "juri@northwind.example":
                await links.use(await links.make(founded.people[each.email].person_id), password)
        return {each.email: await links.make(founded.people[each.email].person_id) for each in company.SHOWN}


_EXPIRY_DAYS: Final = 90


def _dollars(budget: Budget) -> str:
    return str(Decimal(budget.limit_nanousd) / 1_000_000_000)


def _settings(settings: TeamSettings) -> dict[str, Any]:
    return msgspec.structs.asdict(settings)


def first_callers(founded: FoundedCompany, teams: Sequence[SampleTeam]) -> dict[str, Sequence[Caller]]:
    """Weight each team's callers: its first keys call far more often than its last."""
    return {
        team.team_id: [
            caller
            for place, caller in enumerate(founded.callers[team.team_id])
            for _ in range(_CALLS[min(place, len(_CALLS) - 1)])
        ]
        for team in teams
    }


_CALLS: Final = (12, 4, 1)
