"""/dashboard/people: inviting, roles, teams, links, and who comes in no more."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from accounts.access import OrganisationRole
from accounts.audit.log import AuditLog, Scope
from accounts.people.people import PeopleStore
from tests.in_turn import in_turn
from tests.running_gateway import Running, model, running_gateway
from tests.signed_in import Browser, cookie_of, signed_in

NASTY = "<img src=x onerror=alert(1)>"
_LINK = re.compile(r"https?://[^<\s]+/dashboard/welcome/[A-Za-z0-9_-]+")


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Running]:
    models = [model("small", [{"kind": "scripted", "upstream_model": "ok"}])]
    async with running_gateway(tmp_path, models) as running:
        yield running


@pytest.fixture
def people(gateway: Running) -> PeopleStore:
    return PeopleStore(gateway.engine)


async def _invite(browser: Browser, email: str = "bob@example.com", **fields: str) -> tuple[int, str]:
    sent = {"email": email, "name": "Bob", "role": "", "team": "", "team_role": "member", **fields}
    reply = await browser.post("/dashboard/people", sent)
    return reply.status, reply.text


async def _actions(gateway: Running) -> list[str]:
    found = await AuditLog(gateway.engine).page(Scope(organisation_id="default"))
    return [entry.action for entry in found[::-1]]


async def test_an_invitation_is_a_link_that_is_shown_once(gateway: Running, people: PeopleStore) -> None:
    """It leads to choosing a password; no page shows it again, no log keeps it, and the entry says who invited whom."""
    async with signed_in(gateway, role="admin") as browser:
        status, page = await _invite(browser, role="finance", team="team_a", team_role="admin")
        assert status == 200
        link = _LINK.search(page)
        assert link is not None
        bob = await people.find("bob@example.com")
        assert bob is not None
        assert (bob.role, await people.teams_of([bob.person_id])) == ("finance", {bob.person_id: {"team_a": "admin"}})
        welcome = await browser.get(link[0].removeprefix(gateway.url))
        assert welcome.status == 200
        for path in ("/dashboard/people", f"/dashboard/people/{bob.person_id}"):
            shown = await browser.get(path)
            assert "bob@example.com" in shown.text
            assert _LINK.search(shown.text) is None
    assert await _actions(gateway) == ["person.set", "member.set", "person.link_made"]
    token = link[0].rpartition("/")[2]
    entries = await AuditLog(gateway.engine).page(Scope(organisation_id="default"))
    assert token not in "".join(entry.before + entry.after + entry.reason for entry in entries)


@in_turn(
    "fields, told",
    [
        ({"email": "nonsense"}, "address"),
        ({"email": ""}, "needed"),
        ({"name": ""}, "needed"),
        ({"role": "king"}, "Choose one of"),
        ({"team": "team_nowhere"}, "no team"),
        ({"team": "team_a", "team_role": "king"}, "Choose one of"),
        ({"email": "ann@example.com"}, "in the organisation already"),
    ],
)
async def test_a_form_that_is_wrong_is_shown_again(
    gateway: Running, people: PeopleStore, fields: dict[str, str], told: str
) -> None:
    """With what was typed, and what to do about it; nobody is made halfway."""
    async with signed_in(gateway, role="admin") as browser:
        status, page = await _invite(browser, **fields)
        assert status == 400
        assert told in page
        assert 'value="Bob"' in page or not fields.get("name", "x")
    assert await people.find("bob@example.com") is None


async def test_another_organisations_people_look_like_nobody(gateway: Running, people: PeopleStore) -> None:
    """Not in the list, not by id, and not changed by any form; their address says nothing of where they are."""
    await gateway.accounts.create_organisation("acme")
    await gateway.accounts.create_team("team_theirs", organisation_id="acme")
    eve = await people.create("acme", "eve@example.com", "Eve")
    async with signed_in(gateway, role="admin") as browser:
        assert "eve@example.com" not in (await browser.get("/dashboard/people")).text
        place = f"/dashboard/people/{eve.person_id}"
        assert (await browser.get(place)).status == 404
        for form in ("", "/team", "/disable", "/enable", "/link", "/sign-out"):
            fields = {"name": "Eva", "role": "admin", "team": "team_a", "team_role": "admin"}
            assert (await browser.post(place + form, fields)).status == 404
        status, page = await _invite(browser, "eve@example.com")
        assert (status, "cannot be used here" in page) == (400, True)
        assert (await _invite(browser, team="team_theirs"))[0] == 400
    assert await people.get(eve.person_id) == eve
    assert (await people.teams_of([eve.person_id]))[eve.person_id] == {}


async def test_role_name_and_teams_are_changed(gateway: Running, people: PeopleStore) -> None:
    """Each with its entry, and the reason that was given; the last administrator stays one."""
    bob = await people.create("default", "bob@example.com", "Bob")
    place = f"/dashboard/people/{bob.person_id}"
    async with signed_in(gateway, role="admin") as browser:
        saved = await browser.post(place, {"name": "Robert", "role": "finance", "reason": "he counts now"})
        assert (saved.status, saved.location) == (303, place)
        assert (await people.get(bob.person_id)).name == "Robert"
        for role in ("member", "admin", "none"):
            assert (await browser.post(f"{place}/team", {"team": "team_a", "team_role": role})).status == 303
            expected = {} if role == "none" else {"team_a": role}
            assert (await people.teams_of([bob.person_id]))[bob.person_id] == expected
        ann = await people.find("ann@example.com")
        assert ann is not None
        refused = await browser.post(f"/dashboard/people/{ann.person_id}", {"name": "Ann", "role": ""})
        assert (refused.status, "last administrator" in refused.text) == (400, True)
    assert await _actions(gateway) == ["person.set", "member.set", "member.set", "member.removed"]
    first = (await AuditLog(gateway.engine).page(Scope(organisation_id="default")))[-1]
    assert first.reason == "he counts now"


async def test_who_is_disabled_is_out_at_once(gateway: Running, people: PeopleStore) -> None:
    """Their sessions end, and enabling them brings none back; nobody disables themselves."""
    async with signed_in(gateway, role="admin") as browser:
        cookie = await cookie_of(gateway, "bob@example.com", role="finance", name="Bob")
        bob = await people.find("bob@example.com")
        ann = await people.find("ann@example.com")
        assert bob is not None
        assert ann is not None
        theirs = Browser(browser._session, gateway.url, cookie, "")
        assert (await theirs.get("/dashboard/people")).status == 200
        place = f"/dashboard/people/{bob.person_id}"
        assert (await browser.post(f"{place}/disable", {"reason": "left"})).status == 303
        assert (await theirs.get("/dashboard/people")).location.startswith("/dashboard/sign-in")
        assert "disabled" in (await browser.get(place)).text
        assert (await browser.post(f"{place}/link")).status == 303
        await browser.post(f"{place}/enable")
        assert (await theirs.get("/dashboard/people")).status == 303
        await browser.post(f"/dashboard/people/{ann.person_id}/disable")
        assert (await browser.get("/dashboard/people")).status == 200
    assert await _actions(gateway) == ["person.disabled", "person.enabled"]


async def test_signing_somebody_out_ends_every_session(gateway: Running, people: PeopleStore) -> None:
    """On all devices, and theirs alone; a second time there is nothing to tell."""
    async with signed_in(gateway, role="admin") as browser:
        cookies = [await cookie_of(gateway, "bob@example.com", role="finance") for _ in range(2)]
        bob = await people.find("bob@example.com")
        assert bob is not None
        for _ in range(2):
            assert (await browser.post(f"/dashboard/people/{bob.person_id}/sign-out")).status == 303
        for cookie in cookies:
            theirs = Browser(browser._session, gateway.url, cookie, "")
            assert (await theirs.get("/dashboard/people")).status == 303
        assert (await browser.get("/dashboard/people")).status == 200
    assert await _actions(gateway) == ["person.signed_out_everywhere"]


async def test_a_new_link_ends_the_one_before(gateway: Running, people: PeopleStore) -> None:
    """Only the last one works."""
    async with signed_in(gateway, role="admin") as browser:
        _, page = await _invite(browser)
        first = _LINK.search(page)
        bob = await people.find("bob@example.com")
        assert bob is not None
        second = _LINK.search((await browser.post(f"/dashboard/people/{bob.person_id}/link")).text)
        assert first is not None
        assert second is not None
        assert (await browser.get(second[0].removeprefix(gateway.url))).status == 200
        assert (await browser.get(first[0].removeprefix(gateway.url))).status != 200


@pytest.mark.parametrize(("role", "reads", "changes"), [("", 403, 403), ("finance", 200, 403), ("operator", 403, 403)])
async def test_who_may_not_cannot(
    gateway: Running, people: PeopleStore, role: OrganisationRole, reads: int, changes: int
) -> None:
    """Finance reads; members, team administrators and operators do not; the forms are only there for who may use them."""
    bob = await people.create("default", "bob@example.com", "Bob")
    async with signed_in(gateway, role=role, teams={"team_a": "admin"}) as browser:
        page = await browser.get("/dashboard/people")
        assert page.status == reads
        assert "Invite somebody" not in page.text
        assert (await browser.get(f"/dashboard/people/{bob.person_id}")).status == reads
        assert (await _invite(browser))[0] == changes
        for form in ("", "/team", "/disable", "/enable", "/link", "/sign-out"):
            assert (await browser.post(f"/dashboard/people/{bob.person_id}{form}")).status == changes


async def test_payloads_stay_text(gateway: Running) -> None:
    """A name is never markup, in the list, on the page, and where the link is shown."""
    async with signed_in(gateway, role="admin") as browser:
        _, page = await _invite(browser, name=NASTY, team="team_a")
        listed = (await browser.get("/dashboard/people")).text
        found = re.search(r"/dashboard/people/(person_\w+)", page)
        assert found is not None
        for text in (page, listed, (await browser.get(found[0])).text):
            assert NASTY not in text
            assert "&lt;img src=x" in text
