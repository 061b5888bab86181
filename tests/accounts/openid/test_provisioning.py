"""Who somebody from a provider becomes here, on SQLite and on PostgreSQL."""

import asyncio
from typing import Any, Final

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.audit.entry import Entry
from accounts.audit.log import AuditLog, Scope
from accounts.openid.provisioning import arrive
from accounts.people.oidc import Identity, IdentityRefused
from accounts.people.oidc_config import OidcSection
from accounts.people.people import PeopleStore
from accounts.people.person import Person
from accounts.store import AccountStore

ISSUER: Final = "https://id.example.com"
ADDRESS: Final = "192.0.2.7"


class Site:
    """A database with two organisations, three teams, and nobody in them."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.people = PeopleStore(engine)
        self.audit = AuditLog(engine, now_us=lambda: 1)
        self.accounts = AccountStore(engine)

    async def furnish(self) -> None:
        for organisation in ("acme", "other"):
            await self.accounts.create_organisation(organisation)
        for team, organisation in (("payments", "acme"), ("search", "acme"), ("foreign", "other")):
            await self.accounts.create_team(team, organisation_id=organisation)

    async def arrives(self, identity: Identity, **fields: Any) -> Person:
        return await arrive(self.audit, identity, section(**fields), ADDRESS)

    async def refused(self, identity: Identity, **fields: Any) -> str:
        before = await self.everybody()
        with pytest.raises(IdentityRefused) as refusal:
            await self.arrives(identity, **fields)
        assert await self.everybody() == before
        return refusal.value.reason

    async def everybody(self) -> list[Person]:
        return await self.people.all()

    async def places(self, person: Person) -> dict[str, tuple[str, str]]:
        return {
            place.team_id: (place.role, place.source) for place in await self.people.memberships_of(person.person_id)
        }

    async def entries(self) -> list[Entry]:
        return await self.audit.page(Scope(organisation_id="acme"))


def section(**fields: Any) -> OidcSection:
    return OidcSection(
        **{
            "name": "idp",
            "label": "the IdP",
            "issuer": ISSUER,
            "client_id": "wb",
            "organisation": "acme",
            "groups": (
                {"group": "admins", "role": "admin"},
                {"group": "pay", "team": "payments", "team_role": "admin"},
                {"group": "find", "team": "search"},
                {"group": "far", "team": "foreign"},
                {"group": "gone", "team": "no_such_team"},
            ),
            **fields,
        }
    )


def ann(*groups: str, subject: str = "7", email: str | None = "ann@example.com") -> Identity:
    return Identity(issuer=ISSUER, subject=subject, email=email, name="Ann", groups=frozenset(groups))


@pytest.fixture
async def site(engine: AsyncEngine) -> Site:
    made = Site(engine)
    await made.furnish()
    return made


async def test_a_stranger_stays_out_unless_people_are_made(site: Site) -> None:
    """Being known to the provider is not enough by itself."""
    assert await site.refused(ann("admins")) == "unknown"
    assert await site.refused(ann("admins", email=None), create_people=True) == "email_unverified"
    person = await site.arrives(ann("admins", "pay"), create_people=True)
    assert (person.organisation_id, person.email, person.role, person.source) == (
        "acme",
        "ann@example.com",
        "admin",
        "oidc",
    )
    assert not person.has_password
    assert await site.places(person) == {"payments": ("admin", "oidc")}


async def test_groups_are_looked_at_each_time(site: Site) -> None:
    """What groups gave is taken back when they are left; the account and its subject stay."""
    first = await site.arrives(ann("admins", "pay", "find"), create_people=True)
    second = await site.arrives(ann("find"))
    assert second.person_id == first.person_id
    assert second.role == ""
    assert await site.places(second) == {"search": ("member", "oidc")}
    third = await site.arrives(ann(email=None))
    assert third.person_id == first.person_id
    assert await site.places(third) == {}


async def test_what_was_given_here_stays(site: Site) -> None:
    """Groups neither raise, lower nor take away a place or a role that somebody here gave."""
    invited = await site.people.create("acme", "ann@example.com", "Ann", role="finance")
    await site.people.put_member(invited.person_id, "payments", "member", organisation_id="acme")
    linked = await site.arrives(ann("admins", "pay", "find"), link_by_email=True)
    assert linked.role == "finance"
    assert await site.places(linked) == {"payments": ("member", "local"), "search": ("member", "oidc")}
    left = await site.arrives(ann())
    assert left.role == "finance"
    assert await site.places(left) == {"payments": ("member", "local")}


async def test_without_rules_about_roles_they_are_decided_here(site: Site) -> None:
    """A role that an administrator gave is not taken back by a provider that gives none."""
    fields: dict[str, Any] = {"groups": ({"group": "pay", "team": "payments"},)}
    person = await site.arrives(ann(), create_people=True, **fields)
    assert person.source == "local"
    await site.people.set_role(person.person_id, "finance", organisation_id="acme")
    assert (await site.arrives(ann(), **fields)).role == "finance"


async def test_an_address_is_linked_only_when_allowed(site: Site) -> None:
    """Somebody with an account here gets it by their verified address, once that is switched on; then by subject."""
    invited = await site.people.create("acme", "ann@example.com", "Ann")
    assert await site.refused(ann()) == "not_linked"
    assert await site.refused(ann(), create_people=True) == "not_linked"
    assert await site.refused(ann(email=None), link_by_email=True) == "unknown"
    assert (await site.arrives(ann(), link_by_email=True)).person_id == invited.person_id
    # The address may change at the provider: it is still the same subject.
    assert (await site.arrives(ann(email="ann.b@example.com"))).person_id == invited.person_id


async def test_an_address_that_changed_hands_opens_nothing(site: Site) -> None:
    """Another subject with the address of somebody who is linked is refused, whatever is switched on."""
    await site.arrives(ann("admins"), create_people=True)
    newcomer = ann("admins", subject="8")
    assert await site.refused(newcomer, create_people=True, link_by_email=True) == "email_of_another"
    elsewhere = Identity(issuer="https://second.example", subject="7", email="ann@example.com", name="Ann")
    assert (
        await site.refused(elsewhere, issuer="https://second.example", link_by_email=True, create_people=True)
        == "email_of_another"
    )


async def test_other_organisations_are_closed(site: Site) -> None:
    """Somebody of another organisation is a stranger here, by address and by subject."""
    other = await site.people.create("other", "ann@example.com", "Ann")
    assert await site.refused(ann(), create_people=True, link_by_email=True) == "other_organisation"
    await site.people.link_subject(other.person_id, ISSUER, "7", organisation_id="other")
    assert await site.refused(ann(), create_people=True, link_by_email=True) == "other_organisation"


async def test_who_is_disabled_stays_out(site: Site) -> None:
    """By subject and by address, and nothing is given on the way."""
    person = await site.arrives(ann(), create_people=True)
    await site.people.disable(person.person_id, organisation_id="acme")
    assert await site.refused(ann("admins", "pay")) == "disabled"
    assert await site.places(person) == {}
    invited = await site.people.create("acme", "bob@example.com", "Bob")
    await site.people.disable(invited.person_id, organisation_id="acme")
    bob = Identity(issuer=ISSUER, subject="9", email="bob@example.com", name="Bob")
    assert await site.refused(bob, link_by_email=True, create_people=True) == "disabled"


async def test_groups_open_no_other_organisations_teams(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """A rule that names another organisation's team, or none that exists, gives nothing and is told to operators."""
    person = await site.arrives(ann("far", "gone", "find"), create_people=True)
    assert await site.places(person) == {"search": ("member", "oidc")}
    assert "the team foreign, which does not exist" in caplog.text
    assert "the team no_such_team, which does not exist" in caplog.text


async def test_changes_are_in_the_audit_log(site: Site) -> None:
    """One entry for the account, one for each sign-in that changes something, none for the others."""
    await site.arrives(ann("pay"), create_people=True)
    await site.arrives(ann("pay"))
    assert len(await site.entries()) == 1
    await site.arrives(ann("admins"))
    entries = await site.entries()
    assert len(entries) == 2
    newest, first = entries
    assert first.before == ""
    assert '"payments"' in first.after
    assert {each.name for each in newest.differences()} >= {"role"}
    assert (newest.actor_kind, newest.actor_name, newest.address) == ("gateway", "Sign-in with the IdP", ADDRESS)
    assert (await site.audit.verify()).sound


async def test_two_first_sign_ins_at_once_make_one_person(site: Site) -> None:
    """The one that comes second finds whom the first has made."""
    people = await asyncio.gather(*(site.arrives(ann("pay"), create_people=True) for _ in range(4)))
    assert len({person.person_id for person in people}) == 1
    assert len(await site.everybody()) == 1
