"""The audit log's writing and reading, on SQLite and on PostgreSQL."""

import asyncio
import itertools
import json
import logging
import math

import pytest
from sqlalchemy import delete, func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.access import Principal
from accounts.audit.audit_errors import AuditHeadMissing
from accounts.audit.chain import FIRST, hash_of
from accounts.audit.entry import Actor, Difference
from accounts.audit.log import MAX_STATE_CHARS, AuditLog, Filters, Scope
from accounts.audit.tables import AuditHeadRow
from accounts.errors import TeamExists, UnknownTeam
from accounts.keys import Pepper
from accounts.store import AccountStore
from accounts.tables import Team

pytestmark = pytest.mark.story

NOON_US = 1_775_390_400_000_000
ANNA = Actor(kind="person", actor_id="person_anna", name="Anna", organisation_id="acme", address="203.0.113.9")
BEN = Actor(kind="key", actor_id="key_ben", name="Ben's 100% key", organisation_id="other")
ALL = Scope(organisation_id=None)
PEPPER = Pepper(id="p1", secret=b"a" * 32)
WRITERS = 12
EACH = 8


@pytest.fixture
def log(engine: AsyncEngine) -> AuditLog:
    ticks = iter(range(NOON_US, NOON_US + 1_000_000))
    return AuditLog(engine, now_us=lambda: next(ticks))


async def test_a_change_and_its_entry_are_one(engine: AsyncEngine, log: AuditLog) -> None:
    """What was done is there with who did it, why, from where, and how it was before and after."""
    async with log.change(ANNA, "team.created", team_id="team_a", reason="a new product") as change:
        made = await AccountStore(change.within).create_team("team_a", "A", allowed_models=["b", "a"])
        change.tell("team", "team_a", None, {"name": made.name, "allowed_models": made.allowed_models})
    assert (await AccountStore(engine).get_team("team_a")).name == "A"
    (entry,) = await log.page(Scope(organisation_id="acme"))
    assert change.entries == (entry,)
    assert (entry.number, entry.at_us, entry.organisation_id, entry.team_id) == (1, NOON_US, "acme", "team_a")
    assert (entry.actor_kind, entry.actor_id, entry.actor_name) == ("person", "person_anna", "Anna")
    assert (entry.action, entry.object_kind, entry.object_id) == ("team.created", "team", "team_a")
    assert (entry.reason, entry.address, entry.before) == ("a new product", "203.0.113.9", "")
    assert json.loads(entry.after) == {"allowed_models": ["a", "b"], "name": "A"}
    assert (entry.previous_hash, entry.hash) == (FIRST, hash_of(entry))
    assert await log.head() == (1, entry.hash)


async def test_what_fails_leaves_nothing(engine: AsyncEngine, log: AuditLog) -> None:
    """A change that breaks off leaves neither its effect nor an entry, and the next entry takes its number."""
    with pytest.raises(UnknownTeam):
        await _half_a_change(log)
    assert await AccountStore(engine).list_teams() == []
    assert await log.page(ALL) == []
    assert (await log.note(ANNA, "person.signed_in", "person", "person_anna")).number == 1
    assert (await log.verify()).sound


async def _half_a_change(log: AuditLog) -> None:
    async with log.change(ANNA, "team.created") as change:
        store = AccountStore(change.within)
        await store.create_team("team_a")
        change.tell("team", "team_a", None, {"name": "A"})
        await store.create_key("team_nowhere", "ci", PEPPER)


async def test_a_refusal_inside_can_be_survived(engine: AsyncEngine, log: AuditLog) -> None:
    """A store's failed statement is undone alone, so that a change may go on after it."""
    await AccountStore(engine).create_team("team_a")
    async with log.change(ANNA, "team.changed") as change:
        store = AccountStore(change.within)
        with pytest.raises(TeamExists):
            await store.create_team("team_a")
        await store.create_team("team_b")
        change.tell("team", "team_b", None, {"name": "team_b"})
    assert [team.team_id for team in await AccountStore(engine).list_teams()] == ["team_a", "team_b"]
    assert len(await log.page(ALL)) == 1


async def test_what_changes_nothing_is_not_told(log: AuditLog) -> None:
    """The same before and after, in whatever order and type it comes, makes no entry."""
    async with log.change(ANNA, "team.changed") as change:
        change.tell(
            "team", "team_a", {"models": frozenset({"b", "a"}), "weight": 1.0}, {"weight": 1.0, "models": ["a", "b"]}
        )
    assert change.entries == ()
    assert await log.head() == (0, FIRST)


async def test_several_objects_are_several_entries(log: AuditLog) -> None:
    """Each object has its own entry, in its own team and organisation where it says so."""
    async with log.change(ANNA, "person.disabled", organisation_id="acme") as change:
        change.tell("person", "p", {"disabled": False}, {"disabled": True})
        change.tell("member", "p", {"role": "admin"}, None, team_id="team_a", organisation_id="other")
    assert [(each.number, each.team_id, each.organisation_id) for each in change.entries] == [
        (1, "", "acme"),
        (2, "team_a", "other"),
    ]
    assert (await log.verify()).sound


async def test_each_entry_leaves_an_anchor_in_the_log(log: AuditLog, caplog: pytest.LogCaptureFixture) -> None:
    """Number and hash leave the database; what the entry says of the object does not, and nothing of what failed."""
    caplog.set_level(logging.WARNING, "weighbridge.audit")
    with pytest.raises(UnknownTeam):
        await _half_a_change(log)
    entry = await log.note(ANNA, "key.revoked", "key", "key_1", before={"name": "the name"})
    (said,) = [record.getMessage() for record in caplog.records if record.name == "weighbridge.audit"]
    assert said == f"entry 1 {entry.hash}: person person_anna of acme, key.revoked key key_1"


async def test_an_organisation_sees_its_own(log: AuditLog) -> None:
    """No filter gets past the scope; a team's scope is narrower still."""
    await log.note(ANNA, "key.created", "key", "key_1", team_id="team_a")
    await log.note(BEN, "key.created", "key", "key_2", team_id="team_b")
    await log.note(ANNA, "key.revoked", "key", "key_3")
    acme = Scope(organisation_id="acme")
    assert [entry.object_id for entry in await log.page(acme)] == ["key_3", "key_1"]
    assert await log.page(acme, Filters(object="key_2")) == []
    assert await log.page(acme, Filters(team_id="team_b")) == []
    assert [entry.number for entry in await log.page(Scope(organisation_id="acme", team_id="team_a"))] == [1]
    assert await log.entry(acme, 2) is None
    assert await log.entry(Scope(organisation_id="other"), 2) is not None
    assert [entry.number async for entry in log.export(acme)] == [1, 3]


@pytest.mark.parametrize(
    ("filters", "numbers"),
    [
        (Filters(), [5, 4, 3, 2, 1]),
        (Filters(actor="ANN"), [4, 2, 1]),
        (Filters(actor="key_ben"), [5, 3]),
        (Filters(actor="100%"), [5, 3]),
        (Filters(actor="%"), [5, 3]),
        (Filters(actor="_"), []),
        (Filters(action="key"), [3, 2, 1]),
        (Filters(action="key.revoked"), [3]),
        (Filters(action="k"), []),
        (Filters(object="team"), [5]),
        (Filters(object="key_1"), [3, 1]),
        (Filters(team_id="team_a"), [1]),
        (Filters(first_us=NOON_US + 2), [5, 4, 3]),
        (Filters(until_us=NOON_US + 2), [2, 1]),
        (Filters(actor="'; DROP TABLE audit_entry; --"), []),
    ],
)
async def test_what_is_looked_for_is_found(log: AuditLog, filters: Filters, numbers: list[int]) -> None:
    """By who, what, on what, in which team and when; what stands for anything in a database stands for itself."""
    await log.note(ANNA, "key.created", "key", "key_1", team_id="team_a")
    await log.note(ANNA, "key.created", "key", "key_2")
    await log.note(BEN, "key.revoked", "key", "key_1")
    await log.note(ANNA, "person.signed_in", "person", "person_anna")
    await log.note(BEN, "team.changed", "team", "team_b")
    assert [entry.number for entry in await log.page(ALL, filters)] == numbers
    assert [entry.number async for entry in log.export(ALL, filters)] == numbers[::-1]


async def _found(log: AuditLog, filters: Filters, limit: int, *, forward: bool) -> tuple[list[int], int]:
    """All numbers that a search finds page by page, and how many pages that took."""
    numbers: list[int] = []
    place, pages = (0 if forward else None), 0
    while True:
        ends = {"after_number": place} if forward else {"before_number": place}
        found = await log.search(ALL, filters, **ends, limit=limit)
        told = [entry.number for entry in found.entries]
        assert told == sorted(told, reverse=True)
        numbers += sorted(told) if forward else told
        pages += 1
        place = found.reached if len(told) < limit else (told[0] if forward else told[-1])
        if place is None:
            return numbers, pages


@pytest.mark.parametrize("forward", [False, True])
@pytest.mark.parametrize("limit", [1, 2, 50])
async def test_searches_end_in_time(log: AuditLog, engine: AsyncEngine, limit: int, forward: bool) -> None:
    """However little time there is, each page goes on where the last one ended, and all of them find everything once."""
    for each in range(1, 24):
        await log.note(ANNA, "key.created", "key", "wanted" if each in {2, 3, 4, 11, 19} else "other")
    moments = itertools.count()
    hasty = AuditLog(engine, span=4, search_s=0.0, clock=lambda: float(next(moments)))
    wanted = [2, 3, 4, 11, 19] if forward else [19, 11, 4, 3, 2]
    numbers, pages = await _found(hasty, Filters(object="wanted"), limit, forward=forward)
    assert numbers == wanted
    assert pages >= 5
    numbers, pages = await _found(hasty, Filters(object="nothing"), limit, forward=forward)
    assert numbers == []
    assert pages == 6
    # Whoever asks may have less time than the log gives, or all.
    patient = AuditLog(engine, span=4, clock=lambda: float(next(moments)))
    assert (await patient.search(ALL, Filters(object="nothing"), most_s=0.0)).reached == 20
    assert (await hasty.search(ALL, Filters(object="nothing"), most_s=math.inf)).reached is None
    # What an index finds needs no parts, and who has time gets all at once.
    assert len((await hasty.search(ALL, limit=50)).entries) == 23
    found = await AuditLog(engine, span=4).search(ALL, Filters(object="wanted"), limit=50)
    assert ([entry.number for entry in found.entries], found.reached) == ([19, 11, 4, 3, 2], None)


async def test_pages_follow_each_other(log: AuditLog) -> None:
    """Back and forth by number, the newest first on each."""
    for each in range(1, 8):
        await log.note(ANNA, "key.created", "key", f"key_{each}")
    first = await log.page(ALL, limit=3)
    second = await log.page(ALL, before_number=first[-1].number, limit=3)
    back = await log.page(ALL, after_number=second[0].number, limit=3)
    assert [entry.number for entry in first] == [7, 6, 5]
    assert [entry.number for entry in second] == [4, 3, 2]
    assert back == first
    assert [entry.number async for entry in log.export(ALL, limit=2)] == [1, 2]


async def test_what_people_write_fits_and_says_no_secret(log: AuditLog) -> None:
    """Control characters, lone surrogates, endless and secret texts are kept as something a database takes and a person reads."""
    nasty = "a\x00b\x1b[31m\ud800" + "x" * 5_000
    actor = Actor(kind="person", actor_id="p" * 900, name=nasty, organisation_id="acme", address="y" * 200)
    entry = await log.note(
        actor,
        "key.created",
        "key",
        nasty,
        reason=f"for\nBearer abcdefghijklmnop\n{'r' * 5_000}",
        before={"note": nasty},
        after={"many": [f"item {each}" for each in range(20_000)]},
    )
    assert (await log.page(ALL)) == [entry]
    assert "\x00" not in entry.object_id + entry.before + entry.reason
    assert (len(entry.actor_name), len(entry.actor_id), len(entry.address)) == (200, 200, 64)
    assert "abcdefghijklmnop" not in entry.reason
    assert entry.reason.startswith("for\nBearer •••\n")
    assert len(entry.after) < MAX_STATE_CHARS
    assert json.loads(entry.after)["too_long"]
    assert (await log.verify()).sound


async def test_differences_are_told_by_field(log: AuditLog) -> None:
    """Only what is not as it was, also deep inside; what came and what went has one side."""
    entry = await log.note(
        ANNA,
        "limit.set",
        "limit",
        "team_a",
        before={"same": 1, "limits": {"burst": 5}, "models": ["a"], "gone": None},
        after={"same": 1, "limits": {"burst": 7}, "models": ["a", "b"], "came": True},
    )
    assert entry.differences() == [
        Difference(name="came", before=None, after="true"),
        Difference(name="gone", before="null", after=None),
        Difference(name="limits.burst", before="5", after="7"),
        Difference(name="models", before="a", after="a, b"),
    ]


async def test_actions_have_one_shape(log: AuditLog) -> None:
    """A name that nobody could filter by is a programming error."""
    with pytest.raises(ValueError, match="no action"):
        await log.note(ANNA, "Revoked a key", "key", "key_1")
    with pytest.raises(ValueError, match="no kind"):
        await log.note(ANNA, "key.revoked", "a key", "key_1")


async def test_without_its_head_nothing_is_changed(engine: AsyncEngine, log: AuditLog) -> None:
    """Somebody who takes the head away stops changes; the log never begins anew by itself."""
    async with engine.begin() as connection:
        await connection.execute(delete(AuditHeadRow))
    with pytest.raises(AuditHeadMissing, match="audit_head"):
        await _half_a_change(log)
    async with engine.connect() as connection:
        assert await connection.scalar(select(func.count()).select_from(Team)) == 0
    with pytest.raises(AuditHeadMissing):
        await log.verify()


async def test_who_comes_in_by_the_front_door_is_named() -> None:
    """A person's and a key's actor is what access knows of them."""
    principal = Principal(kind="key", principal_id="key_1", name="ci", organisation_id="acme")
    assert Actor.of_principal(principal, "::1") == Actor(
        kind="key", actor_id="key_1", name="ci", organisation_id="acme", address="::1"
    )


async def test_many_writers_make_one_chain(engine: AsyncEngine, database_url: str) -> None:
    """Writers of several connections at once leave no gap and no fork, and each change is there exactly with its entry."""
    log = AuditLog(engine)

    async def write(writer: int) -> None:
        for each in range(EACH):
            team = f"team_{writer}_{each}"
            try:
                async with log.change(ANNA, "team.created", team_id=team) as change:
                    await AccountStore(change.within).create_team(team)
                    change.tell("team", team, None, {"name": team})
                    if each % 4 == 3:
                        await AccountStore(change.within).get_team("team_nowhere")
            except UnknownTeam:
                continue

    await asyncio.gather(*(write(writer) for writer in range(WRITERS)))
    verdict = await log.verify()
    assert verdict.breaks == ()
    assert verdict.entries == WRITERS * EACH * 3 // 4
    told = {entry.object_id async for entry in log.export(ALL)}
    assert told == {team.team_id for team in await AccountStore(engine).list_teams()}


async def test_verifying_and_writing_do_not_mind_each_other(engine: AsyncEngine) -> None:
    """What is appended while somebody verifies is no break."""
    log = AuditLog(engine)

    async def write() -> None:
        for each in range(20):
            await log.note(ANNA, "key.created", "key", f"key_{each}")

    async def look() -> bool:
        return all([(await log.verify()).sound for _ in range(10)])

    _, sound = await asyncio.gather(write(), look())
    assert sound
    assert (await log.verify()).entries == 20


async def test_nothing_in_the_program_rewrites_an_entry(log: AuditLog) -> None:
    """The log has words to append and to read, and none to change or take away."""
    offered = {name for name in dir(log) if not name.startswith("_")}
    assert offered == {"change", "note", "page", "search", "entry", "export", "head", "verify"}
