"""A team's members on their page, and who may change them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from accounts.people.people import PeopleStore
from tests.running_gateway import Running, model, running_gateway
from tests.signed_in import Browser, signed_in

MEMBERS = "/dashboard/teams/team_a/members"


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with running_gateway(tmp_path, [model("m", [{"kind": "scripted", "upstream_model": "x"}])]) as found:
        yield found


@pytest.fixture
async def tess(running: Running) -> AsyncIterator[Browser]:
    """An administrator of the team, and nothing else."""
    async with signed_in(running, "tess@example.com", teams={"team_a": "admin"}) as found:
        yield found


async def roles(running: Running) -> dict[str, str]:
    return {each.person.email: each.role for each in await PeopleStore(running.engine).members_of("team_a")}


async def test_a_member_is_added_promoted_and_removed(running: Running, tess: Browser) -> None:
    """By address, whatever its case; the page says what happened."""
    await PeopleStore(running.engine).create("default", "milo@example.com", "Milo")
    for role in ("member", "admin"):
        assert (await tess.post(MEMBERS, {"email": "Milo@Example.com", "role": role})).location == MEMBERS
        assert await roles(running) == {"tess@example.com": "admin", "milo@example.com": role}
    assert "milo@example.com" in (await tess.get(MEMBERS)).text
    assert (await tess.post(f"{MEMBERS}/remove", {"email": "milo@example.com"})).location == MEMBERS
    assert await roles(running) == {"tess@example.com": "admin"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"email": "", "role": "member"}, "This is needed."),
        ({"email": "nobody@example.com", "role": "member"}, "invite them first"),
        ({"email": "gus@example.com", "role": "member"}, "invite them first"),
        ({"email": "nobody@example.com", "role": "owner"}, "Choose one of"),
    ],
)
async def test_what_is_wrong_stands_at_its_field(
    running: Running, tess: Browser, fields: dict[str, str], said: str
) -> None:
    """Somebody of another organisation looks like nobody."""
    await running.accounts.create_organisation("globex")
    await PeopleStore(running.engine).create("globex", "gus@example.com", "Gus")
    page = await tess.post(MEMBERS, fields)
    assert page.status == 400
    assert said in page.text
    assert await roles(running) == {"tess@example.com": "admin"}


async def test_only_administrators_are_shown_who_else_there_is(running: Running, tess: Browser) -> None:
    """A team's administrator types an address; the organisation's picks from its people."""
    await PeopleStore(running.engine).create("default", "milo@example.com", "Milo")
    assert "milo@example.com" not in (await tess.get(MEMBERS)).text
    async with signed_in(running, "ada@example.com", role="admin") as ada:
        assert '<option value="milo@example.com"' in (await ada.get(MEMBERS)).text


async def test_who_may_not_changes_nobody(running: Running) -> None:
    """A member reads and finds no forms; finance, too; another team's administrator finds nothing."""
    await running.accounts.create_team("team_b")
    change = {"email": "milo@example.com", "role": "admin"}
    async with signed_in(running, "milo@example.com", teams={"team_a": "member"}) as milo:
        assert "<form" not in (await milo.get(MEMBERS)).text.partition("<main")[2].replace('<form method="get"', "")
        assert (await milo.post(MEMBERS, change)).status == 403
        assert (await milo.post(f"{MEMBERS}/remove", change)).status == 403
    async with signed_in(running, "finn@example.com", role="finance") as finn:
        assert (await finn.get(MEMBERS)).status == 200
        assert (await finn.post(MEMBERS, change)).status == 403
    async with signed_in(running, "bert@example.com", teams={"team_b": "admin"}) as bert:
        assert (await bert.get(MEMBERS)).status == 404
        assert (await bert.post(MEMBERS, change)).status == 404
    assert await roles(running) == {"milo@example.com": "member"}


async def test_who_leaves_is_led_away(running: Running, tess: Browser) -> None:
    """The page of a team that one has left is not one's own any more."""
    assert (await tess.post(f"{MEMBERS}/remove", {"email": "tess@example.com"})).location == "/dashboard"
    assert (await tess.get(MEMBERS)).status == 404
    assert await roles(running) == {}


async def test_a_team_admin_invites_somebody_new_into_the_team(running: Running, tess: Browser) -> None:
    """They get a link and this team's role, and no other; the link is shown once, and leads back to the members."""
    fields = {"new_email": "Nia@Example.com", "name": "Nia", "new_role": "member"}
    page = await tess.post(f"{MEMBERS}/invite", fields)
    assert page.status == 200
    assert "Nia is invited" in page.text
    assert 'id="new-link"' in page.text
    assert f'href="{MEMBERS}"' in page.text
    nia = await PeopleStore(running.engine).find("nia@example.com")
    assert nia is not None
    assert (nia.role, nia.organisation_id) == ("", "default")
    assert await roles(running) == {"tess@example.com": "admin", "nia@example.com": "member"}
    again = await tess.post(f"{MEMBERS}/invite", fields)
    assert (again.status, "new-link" in again.text) == (400, False)


async def test_an_invitation_is_no_way_to_somebody_elses_password(running: Running, tess: Browser) -> None:
    """Who is there already, here or in another organisation, gets no link; members and other teams' admins invite nobody."""
    await running.accounts.create_organisation("globex")
    await running.accounts.create_team("team_b", "B")
    people = PeopleStore(running.engine)
    await people.create("globex", "gus@example.com", "Gus")
    await people.create("default", "ada@example.com", "Ada", role="admin")
    for email in ("gus@example.com", "ada@example.com"):
        page = await tess.post(f"{MEMBERS}/invite", {"new_email": email, "name": "X", "new_role": "admin"})
        assert (page.status, "new-link" in page.text) == (400, False), email
    fields = {"new_email": "new@example.com", "name": "X", "new_role": "member"}
    assert (await tess.post("/dashboard/teams/team_b/members/invite", fields)).status == 404
    async with signed_in(running, "mem@example.com", teams={"team_a": "member"}) as member:
        assert (await member.post(f"{MEMBERS}/invite", fields)).status == 403
    assert await people.find("new@example.com") is None
