"""People of an organisation and their places in teams."""

import asyncio

import pytest

from accounts.access import OrganisationRole
from api.people.change import disable_person, enable_person, put_person, read_people, read_person
from api.people.members_change import put_member, read_members, remove_member
from proxy.errors import BadRequest, LastAdmin, NameTaken, PersonNotFound
from tests.api.changes.bench import ANN, Bench


async def person(bench: Bench, email: str, role: OrganisationRole = "") -> None:
    await put_person(bench.log, ANN, "acme", email, operator="default", name=email, role=role)


async def test_somebody_is_invited_and_changed(bench: Bench) -> None:
    """What is left out stays; putting the same twice logs it once; the address is one whatever its case."""
    made, created = await put_person(bench.log, ANN, "acme", "Ada@Example.com", operator="default", role="finance")
    assert (made.email, made.name, made.role, created) == ("ada@example.com", "ada", "finance", True)
    for _ in range(2):
        changed, created = await put_person(
            bench.log, ANN, "acme", "ada@example.com", operator="default", name="Ada Lovelace"
        )
        assert (changed.name, changed.role, created) == ("Ada Lovelace", "finance", False)
    assert [entry[3]["name"] for entry in await bench.entries()] == ["ada", "Ada Lovelace"]


async def test_another_organisations_people_are_unknown(bench: Bench) -> None:
    """They can be neither invited nor read nor changed, and nothing is told of where they are."""
    await put_person(bench.log, ANN, "globex", "gus@example.com", operator="default")
    with pytest.raises(NameTaken, match="cannot be used here"):
        await put_person(bench.log, ANN, "acme", "gus@example.com", operator="default")
    with pytest.raises(PersonNotFound):
        await read_person(bench.people, "acme", "gus@example.com")
    with pytest.raises(PersonNotFound):
        await disable_person(bench.log, ANN, "acme", "gus@example.com")
    with pytest.raises(PersonNotFound):
        await put_member(bench.log, ANN, bench.team, "gus@example.com", "admin")
    assert await read_people(bench.people, "acme") == []
    assert await bench.entries() == []


async def test_operators_are_the_operators_organisations(bench: Bench) -> None:
    """Elsewhere the role is refused: it would look like a right that it is not."""
    with pytest.raises(BadRequest, match="organisation that runs"):
        await put_person(bench.log, ANN, "acme", "ola@example.com", operator="default", role="operator")
    made, _ = await put_person(bench.log, ANN, "acme", "ola@example.com", operator="acme", role="operator")
    assert made.role == "operator"


@pytest.mark.parametrize("email", ["", "nobody", "a b@example.com", "x" * 300 + "@example.com"])
async def test_what_is_no_address_is_refused(bench: Bench, email: str) -> None:
    """The message names the field."""
    with pytest.raises(BadRequest) as refused:
        await put_person(bench.log, ANN, "acme", email, operator="default")
    assert refused.value.param == "email"


async def test_the_last_administrator_stays(bench: Bench) -> None:
    """It can be neither disabled nor given another role; with a second one it can, and then that one stays."""
    await person(bench, "ann@example.com", "admin")
    with pytest.raises(LastAdmin):
        await disable_person(bench.log, ANN, "acme", "ann@example.com")
    with pytest.raises(LastAdmin):
        await put_person(bench.log, ANN, "acme", "ann@example.com", operator="default", role="")
    await person(bench, "bob@example.com", "admin")
    await disable_person(bench.log, ANN, "acme", "ann@example.com")
    with pytest.raises(LastAdmin):
        await disable_person(bench.log, ANN, "acme", "bob@example.com")
    await enable_person(bench.log, ANN, "acme", "ann@example.com")
    await disable_person(bench.log, ANN, "acme", "bob@example.com")


async def test_two_administrators_cannot_leave_at_once(bench: Bench) -> None:
    """Changes come one after the other, so one of the two stays."""
    await person(bench, "ann@example.com", "admin")
    await person(bench, "bob@example.com", "admin")
    found = await asyncio.gather(
        *(disable_person(bench.log, ANN, "acme", f"{name}@example.com") for name in ("ann", "bob")),
        return_exceptions=True,
    )
    assert sorted(type(each).__name__ for each in found) == ["LastAdmin", "Person"]


async def test_disabling_twice_is_the_same(bench: Bench) -> None:
    """The log has it once; enabling, too."""
    await person(bench, "ada@example.com")
    for _ in range(2):
        await disable_person(bench.log, ANN, "acme", "ada@example.com", reason="left us")
    for _ in range(2):
        await enable_person(bench.log, ANN, "acme", "ada@example.com")
    assert [entry[0] for entry in await bench.entries()] == ["person.set", "person.disabled", "person.enabled"]


async def test_a_place_in_a_team_is_given_changed_and_taken(bench: Bench) -> None:
    """Each once in the log, however often it is asked for."""
    await person(bench, "ada@example.com")
    assert (await put_member(bench.log, ANN, bench.team, "ada@example.com", "member"))[1]
    assert not (await put_member(bench.log, ANN, bench.team, "ada@example.com", "member"))[1]
    member, _ = await put_member(bench.log, ANN, bench.team, "ADA@example.com", "admin")
    assert (member.role, member.team_id) == ("admin", "red")
    assert [each.role for each in await read_members(bench.people, bench.team)] == ["admin"]
    assert await remove_member(bench.log, ANN, bench.team, "ada@example.com")
    assert not await remove_member(bench.log, ANN, bench.team, "ada@example.com")
    actions = [entry[0] for entry in await bench.entries()]
    assert actions == ["person.set", "member.set", "member.set", "member.removed"]


async def test_who_is_unknown_is_no_member(bench: Bench) -> None:
    """The message says to invite them first; a role that is none is refused."""
    with pytest.raises(PersonNotFound, match="invite"):
        await put_member(bench.log, ANN, bench.team, "nobody@example.com", "member")
    with pytest.raises(BadRequest, match="member, admin"):
        await put_member(bench.log, ANN, bench.team, "nobody@example.com", "owner")  # type: ignore[arg-type]
