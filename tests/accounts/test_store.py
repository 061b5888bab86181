"""Organisations, teams and keys, on SQLite and on PostgreSQL."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.caller import TeamSettings
from accounts.errors import (
    BadId,
    BadName,
    BadSetting,
    OrganisationExists,
    TeamExists,
    UnknownKeyId,
    UnknownOrganisation,
    UnknownTeam,
)
from accounts.keys import Pepper, digest_key
from accounts.store import AccountStore

PEPPER = Pepper(id="p1", secret=b"a" * 32)
NOON = datetime(2026, 4, 5, 12, 0, 0, 123456, tzinfo=UTC)


@pytest.fixture
def store(engine: AsyncEngine) -> AccountStore:
    return AccountStore(engine, clock=lambda: NOON)


async def test_a_team_is_kept(store: AccountStore) -> None:
    """What was created is what is read: names, models and the moment with its zone."""
    made = await store.create_team("team_payments", "Payments", allowed_models=["gpt-4o", "llama-3-70b"])
    everything = await store.create_team("team_all")
    assert await store.get_team("team_payments") == made
    assert made.allowed_models == frozenset({"gpt-4o", "llama-3-70b"})
    assert everything.allowed_models is None
    assert await store.list_teams() == [everything, made]
    assert made.created_at == NOON


async def test_no_models_is_not_all_models(store: AccountStore) -> None:
    """An empty allow-list stays empty and does not turn into permission."""
    await store.create_team("team_none", allowed_models=[])
    assert (await store.get_team("team_none")).allowed_models == frozenset()


async def test_what_exists_or_is_unknown_is_named(store: AccountStore) -> None:
    """Each refusal has its own error."""
    await store.create_organisation("acme", "Acme")
    with pytest.raises(OrganisationExists):
        await store.create_organisation("acme")
    await store.create_team("team_a", organisation_id="acme")
    with pytest.raises(TeamExists, match="team_a"):
        await store.create_team("team_a", organisation_id="acme")
    with pytest.raises(UnknownOrganisation, match="nobody"):
        await store.create_team("team_b", organisation_id="nobody")
    with pytest.raises(UnknownTeam, match="team_z"):
        await store.get_team("team_z")
    with pytest.raises(UnknownTeam, match="team_z"):
        await store.create_key("team_z", "ci", PEPPER)
    with pytest.raises(UnknownKeyId, match="key_z"):
        await store.revoke_key("key_z")


_PASTED = "wb-0123456789ab-CanaryCanaryCanaryCanaryCanaryCanary"


@pytest.mark.parametrize("bad", ["", "Team", "a b", "a" * 65, "a'; DROP TABLE team; --", "tëam", "a\n"])
async def test_bad_ids_are_refused(store: AccountStore, bad: str) -> None:
    """An id has its alphabet and its length."""
    with pytest.raises(BadId):
        await store.create_team(bad)
    with pytest.raises(BadId):
        await store.create_organisation(bad)


@pytest.mark.parametrize("bad", [" ", "x" * 201, "a\x00b", "sk-proj-0123456789abcdef", f"old {_PASTED}"])
async def test_bad_names_are_refused(store: AccountStore, bad: str) -> None:
    """A name is printable and not endless, and no key that somebody pasted."""
    await store.create_team("team_a")
    with pytest.raises(BadName):
        await store.create_key("team_a", bad, PEPPER)


async def test_a_key_is_found_by_its_digest_with_its_team(store: AccountStore) -> None:
    """One lookup gives the key and what its team may use."""
    await store.create_team("team_a", allowed_models=["gpt-4o"])
    minted = await store.create_key("team_a", "ci", PEPPER, expires_at=NOON + timedelta(days=1))
    (found,) = await store.find_keys([digest_key(minted.plaintext, PEPPER).hex()])
    assert found is not None
    assert (found.key_id, found.name, found.team_id, found.organisation_id) == (
        minted.key_id,
        "ci",
        "team_a",
        "default",
    )
    assert found.allowed_models == frozenset({"gpt-4o"})
    assert found.expires_at == NOON + timedelta(days=1)
    assert found.revoked_at is None
    assert await store.find_keys(["0" * 64]) == [None]
    assert await store.find_keys(["' OR 1=1 --"]) == [None]


async def test_a_keys_role_is_kept(store: AccountStore) -> None:
    """A key is a member's unless it is said otherwise; its role is found with it and listed; others are refused."""
    await store.create_team("team_a")
    plain = await store.create_key("team_a", "ci", PEPPER)
    finance = await store.create_key("team_a", "controlling", PEPPER, role="finance")
    for minted, role in ((plain, "member"), (finance, "finance")):
        (found,) = await store.find_keys([digest_key(minted.plaintext, PEPPER).hex()])
        assert found is not None
        assert found.role == role
    listed = {key.key_id: key.role for key in await store.list_keys()}
    assert listed == {plain.key_id: "member", finance.key_id: "finance"}
    nobody: Any = "root"
    with pytest.raises(BadSetting, match="member, finance, admin"):
        await store.create_key("team_a", "ci", PEPPER, role=nobody)


async def test_moments_of_other_zones_are_kept_in_utc(store: AccountStore) -> None:
    """An expiry given in another zone is the same moment when it is read."""
    await store.create_team("team_a")
    moment = datetime(2026, 4, 5, 14, 0, tzinfo=timezone(timedelta(hours=2)))
    await store.create_key("team_a", "ci", PEPPER, expires_at=moment)
    assert (await store.list_keys())[0].expires_at == datetime(2026, 4, 5, 12, 0, tzinfo=UTC)


async def test_lists_show_neither_key_nor_digest(store: AccountStore) -> None:
    """A list tells the last four characters of a key and nothing more of it."""
    await store.create_team("team_a")
    await store.create_team("team_b")
    first = await store.create_key("team_a", "ci", PEPPER)
    await store.create_key("team_b", "cd", PEPPER)
    shown = msgspec.json.encode(await store.list_keys()).decode()
    assert first.last4 in shown
    assert first.digest not in shown
    assert first.plaintext[16:-4] not in shown
    assert [key.key_id for key in await store.list_keys("team_a")] == [first.key_id]


async def test_the_database_never_holds_a_key(store: AccountStore, engine: AsyncEngine) -> None:
    """No column of any row holds the key or its secret part."""
    await store.create_team("team_a")
    minted = await store.create_key("team_a", "ci", PEPPER)
    async with engine.connect() as connection:
        rows = (await connection.execute(text("SELECT * FROM api_key"))).all()
    assert minted.plaintext[16:] not in str(rows)


async def test_revoking_twice_keeps_the_first_moment(store: AccountStore, engine: AsyncEngine) -> None:
    """A revoked key stays revoked since when it was."""
    await store.create_team("team_a")
    minted = await store.create_key("team_a", "ci", PEPPER)
    await store.revoke_key(minted.key_id)
    await AccountStore(engine, clock=lambda: NOON + timedelta(days=1)).revoke_key(minted.key_id)
    assert (await store.list_keys())[0].revoked_at == NOON


async def test_settings_change_one_at_a_time(store: AccountStore) -> None:
    """What is not named stays as it was, a floor can be taken away again, and a key's caller sees the newest."""
    made = await store.create_team("team_a", allowed_models=["gpt-4o"])
    assert made.settings == TeamSettings()
    minted = await store.create_key("team_a", "ci", PEPPER)
    await store.update_team("team_a", quality_floor=0.95, escalation="whole")
    changed = await store.update_team("team_a", learning="prompts", shadow_share=0.125)
    expected = TeamSettings(quality_floor=0.95, escalation="whole", learning="prompts", shadow_share=0.125)
    assert changed == await store.get_team("team_a")
    assert (changed.settings, changed.allowed_models) == (expected, frozenset({"gpt-4o"}))
    (found,) = await store.find_keys([minted.digest])
    assert found is not None
    assert found.settings == expected
    assert (await store.update_team("team_a", quality_floor=None)).settings.quality_floor is None
    heavy = (await store.update_team("team_a", weight=2.5, spill_over=False)).settings
    assert (heavy.weight, heavy.spill_over, heavy.learning) == (2.5, False, "prompts")
    assert (await store.get_team("team_a")).settings == heavy
    assert await store.update_team("team_a") == await store.get_team("team_a")


async def test_bad_settings_are_refused(store: AccountStore) -> None:
    """Each says what is allowed, and nothing is changed."""
    await store.create_team("team_a")
    bad: tuple[tuple[dict[str, Any], str], ...] = (
        ({"quality_floor": 0.0}, "above 0 and at most 1"),
        ({"quality_floor": 1.01}, "above 0 and at most 1"),
        ({"quality_floor": float("nan")}, "above 0 and at most 1"),
        ({"shadow_share": -0.1}, "from 0 to 1"),
        ({"shadow_share": float("nan")}, "from 0 to 1"),
        ({"escalation": "always"}, "off, whole, all, agreement, agreement-all, not 'always'"),
        ({"learning": "text"}, "off, numbers, prompts, not 'text'"),
        ({"learning": "off", "shadow_share": 0.1}, "keeps no verdicts"),
        *(({"weight": bad}, "above 0 and at most 1000") for bad in (0.0, -1.0, 1000.1, float("inf"), float("nan"))),
    )
    for changes, message in bad:
        with pytest.raises(BadSetting, match=message):
            await store.update_team("team_a", **changes)
    assert (await store.get_team("team_a")).settings == TeamSettings()


async def test_settings_of_nobody(store: AccountStore) -> None:
    """A team that is not there cannot be changed, and has no word in what may be kept."""
    with pytest.raises(UnknownTeam, match="team_z"):
        await store.update_team("team_z", escalation="off")
    await store.create_team("team_a")
    await store.update_team("team_a", learning="off")
    assert await store.learning_of(["team_a", "team_z", "team_a"]) == {"team_a": "off"}
    assert await store.learning_of([]) == {}


async def test_an_organisations_teams_and_keys_are_its_own(store: AccountStore) -> None:
    """What is another's is as unknown as nothing, whether it is listed, read or changed."""
    await store.create_organisation("acme")
    await store.create_organisation("globex")
    red = await store.create_team("red", organisation_id="acme")
    await store.create_team("blue", organisation_id="globex")
    minted = await store.create_key("blue", "ci", PEPPER)
    assert await store.teams_of("acme") == [red]
    assert await store.team_of("acme", "red") == red
    assert await store.names_of("acme", ("red", "blue", "nothing")) == {"red": red.name}
    assert await store.keys_of("acme", "blue") == []
    assert [key.key_id for key in await store.keys_of("globex", "blue")] == [minted.key_id]
    assert (await store.key_of("globex", None, minted.key_id)).team_id == "blue"
    with pytest.raises(UnknownTeam):
        await store.team_of("acme", "blue")
    with pytest.raises(UnknownTeam):
        await store.update_team("blue", organisation_id="acme", name="Mine")
    with pytest.raises(UnknownKeyId):
        await store.key_of("acme", None, minted.key_id)
    with pytest.raises(UnknownKeyId):
        await store.key_of("globex", "red", minted.key_id)
    with pytest.raises(UnknownKeyId):
        await store.set_expiry("acme", "blue", minted.key_id, NOON)
    with pytest.raises(UnknownKeyId):
        await store.rotate_key("acme", "blue", minted.key_id, PEPPER, overlap_s=0)


async def test_a_teams_name_and_models_change(store: AccountStore) -> None:
    """Together with what it chose; None gives all models back."""
    await store.create_team("red", "Red", allowed_models=["a"])
    team = await store.update_team("red", name="Crimson", allowed_models=["b", "a", "b"], weight=2.0)
    assert (team.name, team.allowed_models, team.settings.weight) == ("Crimson", frozenset({"a", "b"}), 2.0)
    assert await store.get_team("red") == team
    assert (await store.update_team("red", allowed_models=None)).allowed_models is None
    assert (await store.get_team("red")).allowed_models is None
    with pytest.raises(BadName):
        await store.update_team("red", name="")


async def test_a_key_works_until_its_end(store: AccountStore) -> None:
    """Not at the moment itself any more; a revoked one never."""
    await store.create_team("red")
    minted = await store.create_key("red", "ci", PEPPER)
    key = await store.set_expiry("default", "red", minted.key_id, NOON + timedelta(hours=1))
    assert key.works_at(NOON + timedelta(minutes=59))
    assert not key.works_at(NOON + timedelta(hours=1))
    await store.revoke_key(minted.key_id)
    assert not (await store.key_of("default", "red", minted.key_id)).works_at(NOON)
    with pytest.raises(UnknownKeyId, match="not revoked"):
        await store.set_expiry("default", "red", minted.key_id, None)


async def test_a_rotated_key_overlaps(store: AccountStore) -> None:
    """The old one works for the overlap and no longer; the new one is found by its own digest."""
    await store.create_team("red")
    old = await store.create_key("red", "ci", PEPPER, role="finance")
    new = await store.rotate_key("default", "red", old.key_id, PEPPER, overlap_s=60)
    keys = {key.key_id: key for key in await store.keys_of("default", "red")}
    assert keys[old.key_id].expires_at == NOON + timedelta(seconds=60)
    assert (keys[new.key_id].expires_at, keys[new.key_id].role, keys[new.key_id].name) == (None, "finance", "ci")
    (found,) = await store.find_keys([digest_key(new.plaintext, PEPPER).hex()])
    assert found is not None
    assert found.key_id == new.key_id
    last = await store.rotate_key("default", "red", new.key_id, PEPPER, overlap_s=0)
    assert (await store.key_of("default", "red", new.key_id)).revoked_at == NOON
    with pytest.raises(UnknownKeyId, match="revoked or expired"):
        await store.rotate_key("default", "red", new.key_id, PEPPER, overlap_s=0)
    assert (await store.key_of("default", "red", last.key_id)).works_at(NOON)


async def test_a_block_is_of_all_keys_of_a_rotation(store: AccountStore) -> None:
    """Whoever has the new key has the old one, too; other keys, and those that are revoked, stay as they are."""
    await store.create_team("red")
    first = await store.create_key("red", "ci", PEPPER)
    other = await store.create_key("red", "other", PEPPER)
    gone = await store.rotate_key("default", "red", first.key_id, PEPPER, overlap_s=60)
    last = await store.rotate_key("default", "red", gone.key_id, PEPPER, overlap_s=0)
    for blocked, by in ((True, last), (False, first), (True, first)):
        await store.block_key("default", "red", by.key_id, blocked=blocked)
        found = {key.key_id: key.blocked_at is not None for key in await store.keys_of("default", "red")}
        assert found == {first.key_id: blocked, last.key_id: blocked, gone.key_id: False, other.key_id: False}
        assert [await store.is_blocked(key.key_id) for key in (first, last, gone, other)] == [
            blocked,
            blocked,
            False,
            False,
        ]
    with pytest.raises(UnknownKeyId, match="not revoked"):
        await store.block_key("default", "red", gone.key_id, blocked=True)
    # Work that was ordered waits for the end of a block, also of the team's.
    assert await store.caller_of(first.key_id) is not None
    await store.block_team("default", "red", blocked=True)
    assert await store.is_blocked(other.key_id)
    assert not await store.is_blocked("key_nothing")


async def test_thousands_of_keys_and_teams_are_read_in_part(store: AccountStore) -> None:
    """The newest that work, of one role, without those of other organisations; keys by their ids; and names alone."""
    await store.create_organisation("acme")
    await store.create_team("red", "Red", organisation_id="acme")
    await store.create_team("blue", "Blue", organisation_id="acme")
    names = [f"service {number}" for number in range(4)]
    minted = [
        await store.create_key("red", name, PEPPER, role="admin" if name == names[1] else "member") for name in names
    ]
    await store.create_key("red", "ended", PEPPER, expires_at=datetime(2020, 1, 1, tzinfo=UTC))
    await store.create_key("blue", "another team's", PEPPER)
    await store.revoke_key(minted[3].key_id)
    ids = {each.key_id: name for each, name in zip(minted, names, strict=True)}
    found = await store.working_keys("acme", "red")
    assert {(key_id, name) for key_id, name, _ in found} == {each for each in ids.items() if each[1] != names[3]}
    assert all(
        last4 == each.last4
        for (_, _, last4), each in zip(found, await store.keys_of("acme", "red", [found[0][0]]), strict=False)
    )
    assert {name for _, name, _ in await store.working_keys("acme", "red", role="member")} == {names[0], names[2]}
    assert await store.working_keys("acme", "red", most=2) == found[:2]
    assert await store.working_keys("other", "red") == []
    both = [minted[0].key_id, minted[3].key_id]
    assert {key.key_id for key in await store.keys_of("acme", "red", [*both, "key_of_nobody"])} == set(both)
    assert await store.keys_of("acme", "blue", both) == await store.keys_of("other", "red", both) == []
    assert await store.team_names("acme") == {"blue": "Blue", "red": "Red"}
