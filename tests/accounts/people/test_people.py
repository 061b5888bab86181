"""People and their places in teams, on SQLite and on PostgreSQL."""

from typing import Any

import pytest

from accounts.errors import BadName, BadSetting, UnknownOrganisation, UnknownTeam
from accounts.people.people import normal_email
from accounts.people.people_errors import BadEmail, PersonExists, UnknownPerson
from tests.accounts.people.cheap import Door


async def _two_organisations(door: Door) -> None:
    for organisation_id in ("acme", "rival"):
        await door.accounts.create_organisation(organisation_id)
        await door.accounts.create_team(f"{organisation_id}_team", organisation_id=organisation_id)


async def test_a_person_is_kept(door: Door) -> None:
    """What was created is what is read, by id, by address in any case, and in the organisation's list."""
    made = await door.people.create("default", " Ada@Acme.Test ", "Ada Lovelace", role="admin")
    assert made.email == "ada@acme.test"
    assert made.created_at == door.clock.moment()
    assert not made.has_password
    assert await door.people.get(made.person_id) == made
    assert await door.people.find("ADA@acme.test") == made
    assert await door.people.of_organisation("default") == [made]
    assert await door.people.all() == [made]


async def test_an_address_is_one_persons(door: Door) -> None:
    """An address is taken once over all organisations, in whatever case it is written."""
    await _two_organisations(door)
    await door.people.create("acme", "ada@acme.test", "Ada")
    with pytest.raises(PersonExists, match=r"ada@acme\.test"):
        await door.people.create("rival", "Ada@acme.test", "Eve")


async def test_a_person_needs_an_organisation(door: Door) -> None:
    """Nobody belongs to an organisation that is not there."""
    with pytest.raises(UnknownOrganisation, match="nowhere"):
        await door.people.create("nowhere", "ada@acme.test", "Ada")
    assert await door.people.all() == []


async def test_somebody_elses_person_is_not_found(door: Door) -> None:
    """Whatever names another organisation neither sees nor changes the person."""
    await _two_organisations(door)
    ada = await door.people.create("acme", "ada@acme.test", "Ada")
    people = door.people
    assert await people.find("ada@acme.test", organisation_id="rival") is None
    attempts: list[Any] = [
        people.get(ada.person_id, organisation_id="rival"),
        people.rename(ada.person_id, "Eve", organisation_id="rival"),
        people.set_role(ada.person_id, "admin", organisation_id="rival"),
        people.disable(ada.person_id, organisation_id="rival"),
        people.enable(ada.person_id, organisation_id="rival"),
        people.link_subject(ada.person_id, "https://id.test", "7", organisation_id="rival"),
        people.put_member(ada.person_id, "rival_team", "admin", organisation_id="rival"),
        people.put_member(ada.person_id, "acme_team", "admin", organisation_id="rival"),
    ]
    for attempt in attempts:
        with pytest.raises(UnknownPerson):
            await attempt
    await people.put_member(ada.person_id, "acme_team", "member", organisation_id="acme")
    assert not await people.remove_member(ada.person_id, "acme_team", organisation_id="rival")
    assert await people.get(ada.person_id) == ada
    assert await people.of_organisation("rival") == []


async def test_places_are_in_teams_of_ones_own_organisation(door: Door) -> None:
    """A team of another organisation looks as if it were not there."""
    await _two_organisations(door)
    ada = await door.people.create("acme", "ada@acme.test", "Ada")
    for team_id in ("rival_team", "no_team"):
        with pytest.raises(UnknownTeam):
            await door.people.put_member(ada.person_id, team_id, "member", organisation_id="acme")
    assert await door.people.teams_of([ada.person_id]) == {ada.person_id: {}}


async def test_places_are_put_changed_and_taken(door: Door) -> None:
    """Putting twice changes the role; the lists by team and by person agree."""
    await _two_organisations(door)
    ada = await door.people.create("acme", "ada@acme.test", "Ada")
    bob = await door.people.create("acme", "bob@acme.test", "Bob")
    await door.people.put_member(ada.person_id, "acme_team", "member", organisation_id="acme")
    await door.people.put_member(bob.person_id, "acme_team", "member", organisation_id="acme")
    place = await door.people.put_member(ada.person_id, "acme_team", "admin", organisation_id="acme")
    assert (place.role, place.source) == ("admin", "local")
    assert [(each.person.email, each.role) for each in await door.people.members_of("acme_team")] == [
        ("ada@acme.test", "admin"),
        ("bob@acme.test", "member"),
    ]
    assert await door.people.memberships_of(ada.person_id) == [place]
    assert (await door.people.teams_of([ada.person_id, bob.person_id]))[bob.person_id] == {"acme_team": "member"}
    assert await door.people.remove_member(ada.person_id, "acme_team", organisation_id="acme")
    assert not await door.people.remove_member(ada.person_id, "acme_team", organisation_id="acme")


async def test_a_provider_takes_back_only_what_it_gave(door: Door) -> None:
    """A group never replaces nor removes a place that somebody here gave; the other way round it works."""
    await _two_organisations(door)
    ada = await door.people.create("acme", "ada@acme.test", "Ada")
    put, remove = door.people.put_member, door.people.remove_member
    await put(ada.person_id, "acme_team", "admin", organisation_id="acme")
    place = await put(ada.person_id, "acme_team", "member", organisation_id="acme", source="oidc")
    assert (place.role, place.source) == ("admin", "local")
    assert not await remove(ada.person_id, "acme_team", organisation_id="acme", source="oidc")
    await remove(ada.person_id, "acme_team", organisation_id="acme")
    await put(ada.person_id, "acme_team", "member", organisation_id="acme", source="oidc")
    assert (await put(ada.person_id, "acme_team", "admin", organisation_id="acme", source="oidc")).role == "admin"
    place = await put(ada.person_id, "acme_team", "member", organisation_id="acme")
    assert (place.role, place.source) == ("member", "local")


async def test_roles_and_names_change(door: Door) -> None:
    """A role keeps who decides it unless told otherwise; what is no role or name is refused."""
    ada = await door.people.create("default", "ada@acme.test", "Ada", role="finance", source="oidc")
    changed = await door.people.set_role(ada.person_id, "admin", organisation_id="default")
    assert (changed.role, changed.source) == ("admin", "oidc")
    changed = await door.people.set_role(ada.person_id, "", organisation_id="default", source="local")
    assert (changed.role, changed.source) == ("", "local")
    assert (await door.people.rename(ada.person_id, " Countess ", organisation_id="default")).name == "Countess"
    bad: Any = "owner"
    with pytest.raises(BadSetting, match="admin, finance, operator"):
        await door.people.set_role(ada.person_id, bad, organisation_id="default")
    with pytest.raises(BadName):
        await door.people.rename(ada.person_id, "\x07", organisation_id="default")


async def test_whom_a_provider_knows_is_found(door: Door) -> None:
    """A subject is one person's, of one issuer."""
    ada = await door.people.create("default", "ada@acme.test", "Ada", issuer="https://id.test", subject="7")
    bob = await door.people.create("default", "bob@acme.test", "Bob")
    assert await door.people.find_subject("https://id.test", "7") == ada
    assert await door.people.find_subject("https://other.test", "7") is None
    with pytest.raises(PersonExists):
        await door.people.link_subject(bob.person_id, "https://id.test", "7", organisation_id="default")
    await door.people.link_subject(bob.person_id, "https://other.test", "7", organisation_id="default")
    assert await door.people.find_subject("https://other.test", "7") == bob


async def test_disabling_ends_sessions_and_links(door: Door) -> None:
    """Who is disabled is out at once, has no link left to come back with, and keeps the first moment."""
    ada = await door.person()
    cookie, link = await door.cookie(ada), await door.links.make(ada.person_id)
    disabled = await door.people.disable(ada.person_id, organisation_id="default")
    door.clock.turn(60)
    assert await door.people.disable(ada.person_id, organisation_id="default") == disabled
    assert await door.sessions.find(cookie) is None
    assert await door.links.peek(link) is None
    enabled = await door.people.enable(ada.person_id, organisation_id="default")
    assert enabled.disabled_at is None
    assert await door.sessions.find(cookie) is None


@pytest.mark.parametrize(
    "bad",
    ["", "ada", "ada@", "@acme.test", "a b@acme.test", "ada@acme..test", "ada@-acme.test", "a/b@acme.test",
     "ada@acme.test\nbcc:eve@acme.test", '"><script>@acme.test', "ada@acme.test" + "x" * 250, "àda@acme.test"],
)  # fmt: skip
def test_what_is_no_address_is_refused(bad: str) -> None:
    """An address has nothing in it that would need care elsewhere."""
    with pytest.raises(BadEmail, match=r"name@example\.com"):
        normal_email(bad)
