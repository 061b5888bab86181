"""Persons taken out of the log: nothing of them is left in it, and it still shows every other change of it."""

import json

import msgspec
import pytest
from sqlalchemy import text, update
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlmodel import col

from accounts.audit.chain import FIRST, hash_of
from accounts.audit.entry import Actor, Entry
from accounts.audit.log import Scope
from accounts.audit.redacting import Subject
from accounts.audit.redaction import RedactedLog
from accounts.audit.tables import AuditEntryRow
from accounts.audit.verify import Anchor, verify_lines
from api.audit.listing import ndjson

ADA = Actor(kind="person", actor_id="person_ada", name="Ada Byron", organisation_id="acme", address="192.0.2.7")
BEN = Actor(kind="person", actor_id="person_ben", name="Ben", organisation_id="acme", address="192.0.2.8")
ALL = Scope(organisation_id=None)
SUBJECT = Subject(person_id="person_ada", anywhere=("ada@acme.example",), whole=("Ada Byron", "Ada Lovelace"))


@pytest.fixture
async def log(engine: AsyncEngine) -> RedactedLog:
    log = RedactedLog(engine)
    async with log.change(BEN, "person.set", reason="asked by Ada@Acme.example, Ada Byron herself") as change:
        change.tell("person", "person_ada", None, {"email": "ada@acme.example", "name": "Ada Byron", "role": ""})
    async with log.change(BEN, "person.set") as change:
        change.tell(
            "person", "person_ada", {"name": "Ada Byron", "role": ""}, {"name": "Ada Lovelace", "role": "admin"}
        )
    await log.note(ADA, "key.created", "key", "key_1", after={"role": "member", "name": "for ada@acme.example"})
    await log.note(BEN, "key.created", "key", "key_2", after={"role": "member"})
    return log


async def _everything(engine: AsyncEngine) -> str:
    async with engine.connect() as connection:
        return " ".join(str(row) for row in await connection.execute(text("SELECT * FROM audit_entry")))


@pytest.mark.parametrize(
    ("told", "left"),
    [
        ("asked by ann@x.example", "asked by erased"),
        ("<ANN@X.example>, again (ann@x.example).", "<erased>, again (erased)."),
        ("team_a/ann@x.example", "team_a/erased"),
        ("joann@x.example", "joann@x.example"),
        ("jo-ann@x.example and jo.ann@x.example", "jo-ann@x.example and jo.ann@x.example"),
        ("jo+ann@x.example", "jo+ann@x.example"),
        ("ann@x.example.com, ann@x.example-co.com", "ann@x.example.com, ann@x.example-co.com"),
    ],
)
def test_of_anothers_address_no_part_is_taken_out(told: str, left: str) -> None:
    """Whoever erases Ann leaves Joann in the log; an end user may be called `@`, too."""
    assert Subject(anywhere=("ann@x.example", "@"), whole=()).text_without(told) == left


async def test_names_go_and_the_chain_holds(log: RedactedLog, engine: AsyncEngine) -> None:
    """Also against a hash that was noted before; others' entries and what was done are as before."""
    noted = Anchor(*await log.head())
    before = await log.page(ALL)
    assert await log.count_redactable(SUBJECT, "acme", of_all=True) == 3
    assert await log.redact(SUBJECT, "acme", of_all=True) == 3
    everything = await _everything(engine)
    for gone in ("ada@acme", "Ada@Acme", "Byron", "Lovelace", "192.0.2.7"):
        assert gone not in everything
    verdict = await log.verify([noted])
    assert verdict.sound, verdict.breaks
    after = {entry.number: entry for entry in await log.page(ALL)}
    for entry in before:
        left = after[entry.number]
        assert (left.action, left.actor_id, left.object_id, left.hash) == (
            entry.action,
            entry.actor_id,
            entry.object_id,
            entry.hash,
        )
    assert json.loads(after[2].after) == {"name": "erased", "role": "admin"}
    assert after[4] == next(entry for entry in before if entry.number == 4)


async def test_once_more_changes_nothing(log: RedactedLog) -> None:
    """An erasure that is begun again after a crash does not fill the log."""
    await log.redact(SUBJECT, "acme", of_all=True)
    head = await log.head()
    assert await log.redact(SUBJECT, "acme", of_all=True) == 0
    assert await log.head() == head


async def test_two_persons_of_one_entry_go_one_after_the_other(log: RedactedLog) -> None:
    """The later entry vouches, and the earlier one is no break."""
    await log.redact(SUBJECT, "acme", of_all=True)
    assert await log.redact(Subject(person_id="person_ben", whole=("Ben",)), "acme", of_all=True) == 3
    assert (await log.verify()).sound


@pytest.mark.parametrize("change", [{"after": '{"role":"finance"}'}, {"redacted": 6}, {"redacted": 0}, {"salt": "1"}])
async def test_a_redacted_entry_can_be_changed_no_more(
    log: RedactedLog, engine: AsyncEngine, change: dict[str, object]
) -> None:
    """What is left of it is vouched for, word by word. A salt alone says nothing, and is no content."""
    await log.redact(SUBJECT, "acme", of_all=True)
    await log.note(BEN, "key.revoked", "key", "key_2")
    async with engine.begin() as connection:
        await connection.execute(update(AuditEntryRow).where(col(AuditEntryRow.number) == 2).values(**change))
    verdict = await log.verify()
    assert [each.number for each in verdict.breaks] == ([] if "salt" in change else [2])


async def test_whoever_only_says_that_something_was_taken_out_is_found(log: RedactedLog, engine: AsyncEngine) -> None:
    """A mark without an entry that vouches hides nothing."""
    async with engine.begin() as connection:
        row = update(AuditEntryRow).where(col(AuditEntryRow.number) == 3)
        await connection.execute(row.values(after='{"role":"admin"}', redacted=4))
    assert [each.number for each in (await log.verify()).breaks] == [3]


async def test_an_entry_that_was_changed_before_is_still_found(log: RedactedLog, engine: AsyncEngine) -> None:
    """An erasure does not vouch for what somebody else changed."""
    async with engine.begin() as connection:
        row = update(AuditEntryRow).where(col(AuditEntryRow.number) == 3)
        await connection.execute(row.values(action="key.rotated"))
    await log.redact(SUBJECT, "acme", of_all=True)
    assert [each.number for each in (await log.verify()).breaks] == [3]
    assert "ada@acme" not in await _everything(engine)


async def test_entries_from_before_salts_are_read_verified_and_redacted(log: RedactedLog, engine: AsyncEngine) -> None:
    """Their hashes are as they were made then."""
    async with engine.begin() as connection:
        previous = FIRST
        for entry in reversed(await log.page(ALL)):
            old = msgspec.structs.replace(entry, salt="", previous_hash=previous)
            old = msgspec.structs.replace(old, hash=hash_of(old))
            previous = old.hash
            row = update(AuditEntryRow).where(col(AuditEntryRow.number) == old.number)
            await connection.execute(row.values(**msgspec.structs.asdict(old)))
        await connection.execute(text("UPDATE audit_head SET hash = :hash"), {"hash": previous})
    assert (await log.verify()).sound
    await log.redact(SUBJECT, "acme", of_all=True)
    assert (await log.verify()).sound


async def test_exports_verify_before_and_after(log: RedactedLog) -> None:
    """One from before has the names, and is out of reach; one from after has the entries that vouch."""
    before = ndjson(reversed(await log.page(ALL)))
    await log.redact(SUBJECT, "acme", of_all=True)
    entries = list(reversed(await log.page(ALL)))
    assert verify_lines(before.splitlines()).sound
    assert verify_lines(ndjson(entries).splitlines()).sound
    assert verify_lines(ndjson(entries[1:4]).splitlines(), part=True).sound
    assert not verify_lines(ndjson(entries[:4]).splitlines()).sound


async def test_another_organisations_log_is_not_touched_for_an_end_user(log: RedactedLog) -> None:
    """An id that callers chose is somebody else's elsewhere."""
    for owner in ("acme", "umbrella"):
        actor = msgspec.structs.replace(BEN, organisation_id=owner)
        await log.note(actor, "budget.set", "budget", "bud_1", after={"scope_id": "team_a/user-42", "limit": "420"})
    subject = Subject(whole=("user-42", "team_a/user-42"))
    assert await log.redact(subject, "acme", of_all=False) == 1
    left = [entry.after for entry in await log.page(ALL) if entry.action == "budget.set"]
    assert sorted("user-42" in after for after in left) == [False, True]


def test_a_word_that_is_also_a_name_stays_in_sentences() -> None:
    """Will is a person in a field, and a verb in a reason."""
    entry = Entry(
        number=1, at_us=0, organisation_id="acme", team_id="", actor_kind="person", actor_id="person_ben",
        actor_name="Will", address="", action="key.set", object_kind="key", object_id="k", reason="Will do", before="",
        after='{"owner":"Will","said":"Will do"}', previous_hash=FIRST, hash="",
    )  # fmt: skip
    left = Subject(whole=("Will",)).taken_out(entry)
    assert (left.actor_name, left.reason, left.after) == ("erased", "Will do", '{"owner":"erased","said":"Will do"}')
