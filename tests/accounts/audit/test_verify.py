"""What `verify` finds: every way to rewrite the log leaves a trace, in the database and in an export."""

import hashlib
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from sqlalchemy import ColumnElement, delete, insert, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from accounts.audit.audit_errors import BadAnchor, BadExport
from accounts.audit.chain import hash_of, sealed
from accounts.audit.entry import Actor, Entry
from accounts.audit.log import AuditLog, Scope
from accounts.audit.tables import AuditEntryRow, AuditHeadRow
from accounts.audit.verify import MAX_BREAKS, Anchor, parse_anchor, verify_lines

ANNA = Actor(kind="person", actor_id="person_anna", name="Anna", organisation_id="acme")
ALL = Scope(organisation_id=None)
ENTRIES = 6

Tampering = Callable[[AsyncConnection, list[Entry]], Awaitable[object]]


@pytest.fixture
async def log(engine: AsyncEngine) -> AuditLog:
    log = AuditLog(engine)
    for each in range(1, ENTRIES + 1):
        await log.note(ANNA, "key.created", "key", f"key_{each}", after={"role": "member"})
    return log


def _at(number: int) -> ColumnElement[bool]:
    return col(AuditEntryRow.number) == number


async def _rewrite(connection: AsyncConnection, entry: Entry) -> None:
    values = msgspec.structs.asdict(entry)
    await connection.execute(update(AuditEntryRow).where(_at(entry.number)).values(values))


async def _change_a_word(connection: AsyncConnection, _: list[Entry]) -> None:
    await connection.execute(update(AuditEntryRow).where(_at(3)).values(after='{"role":"admin"}'))


async def _change_and_seal(connection: AsyncConnection, entries: list[Entry]) -> None:
    await _rewrite(connection, sealed(msgspec.structs.replace(entries[2], actor_id="person_ben")))


async def _remove(connection: AsyncConnection, _: list[Entry]) -> None:
    await connection.execute(delete(AuditEntryRow).where(_at(3)))


async def _remove_and_close_the_gap(connection: AsyncConnection, entries: list[Entry]) -> None:
    await _remove(connection, entries)
    for entry in entries[3:]:
        await connection.execute(update(AuditEntryRow).where(_at(entry.number)).values(number=entry.number - 1))


async def _remove_the_first(connection: AsyncConnection, _: list[Entry]) -> None:
    await connection.execute(delete(AuditEntryRow).where(_at(1)))


async def _cut_the_tail(connection: AsyncConnection, _: list[Entry]) -> None:
    await connection.execute(delete(AuditEntryRow).where(col(AuditEntryRow.number) > 4))


async def _swap(connection: AsyncConnection, entries: list[Entry]) -> None:
    for entry, number in ((entries[1], 100), (entries[2], 2), (entries[1], 3)):
        at = 100 if number == 3 else entry.number
        await connection.execute(update(AuditEntryRow).where(_at(at)).values(number=number))


async def _insert_after_the_head(connection: AsyncConnection, entries: list[Entry]) -> None:
    last = entries[-1]
    added = sealed(msgspec.structs.replace(last, number=last.number + 1, previous_hash=last.hash))
    await connection.execute(insert(AuditEntryRow).values(msgspec.structs.asdict(added)))


async def _insert_before_the_first(connection: AsyncConnection, entries: list[Entry]) -> None:
    added = sealed(msgspec.structs.replace(entries[0], number=0))
    await connection.execute(insert(AuditEntryRow).values(msgspec.structs.asdict(added)))


async def _move_the_head(connection: AsyncConnection, _: list[Entry]) -> None:
    await connection.execute(update(AuditHeadRow).values(hash="f" * 64))


@pytest.mark.parametrize(
    ("tamper", "number", "what"),
    [
        (_change_a_word, 3, "was changed"),
        (_change_and_seal, 4, "does not follow entry 3"),
        (_remove, 3, "entry 3 is missing"),
        (_remove_and_close_the_gap, 3, "does not follow entry 2"),
        (_remove_the_first, 1, "entry 1 is missing"),
        (_cut_the_tail, 5, "the end was cut off"),
        (_swap, 2, "does not follow entry 1"),
        (_insert_after_the_head, 7, "stands after entry 6"),
        (_insert_before_the_first, 0, "out of order"),
        (_move_the_head, 6, "the head does not say its hash"),
    ],
)
async def test_whoever_rewrites_the_log_is_found_out(
    engine: AsyncEngine, log: AuditLog, tamper: Tampering, number: int, what: str
) -> None:
    """Changed, removed, inserted, cut off and reordered entries are found, and the first break says where."""
    assert (await log.verify()).sound
    entries = [entry async for entry in log.export(ALL)]
    async with engine.begin() as connection:
        await tamper(connection, entries)
    verdict = await log.verify()
    assert not verdict.sound
    assert verdict.breaks[0].number == number
    assert what in verdict.breaks[0].what


async def test_a_chain_that_was_written_anew_is_found_by_a_noted_hash(engine: AsyncEngine, log: AuditLog) -> None:
    """Who owns the database can make another sound chain; a number and hash that were noted elsewhere tell."""
    noted = Anchor(*await log.head())
    assert (await log.verify([noted])).sound
    entries = [entry async for entry in log.export(ALL)]
    entries[1] = msgspec.structs.replace(entries[1], actor_id="somebody_else")
    previous = entries[0].hash
    async with engine.begin() as connection:
        for entry in entries[1:]:
            again = sealed(msgspec.structs.replace(entry, previous_hash=previous))
            await _rewrite(connection, again)
            previous = again.hash
        await connection.execute(update(AuditHeadRow).values(hash=previous))
    assert (await log.verify()).sound
    (found,) = (await log.verify([noted])).breaks
    assert found.number == ENTRIES
    assert "written anew" in found.what


async def test_a_tail_cut_with_its_head_is_found_by_a_noted_hash(engine: AsyncEngine, log: AuditLog) -> None:
    """The last entries taken away and the head put back: only who noted the hash knows."""
    noted = Anchor(*await log.head())
    entries = [entry async for entry in log.export(ALL)]
    async with engine.begin() as connection:
        await connection.execute(delete(AuditEntryRow).where(col(AuditEntryRow.number) > 4))
        await connection.execute(update(AuditHeadRow).values(number=4, hash=entries[3].hash))
    assert (await log.verify()).sound
    (found,) = (await log.verify([noted])).breaks
    assert "not there" in found.what


async def test_an_export_is_verified_without_the_database(log: AuditLog) -> None:
    """A file holds what it needs; changed, cut out and reordered lines are found."""
    lines = [msgspec.json.encode(entry) async for entry in log.export(ALL)]
    verdict = verify_lines([*lines, b""])
    assert (verdict.sound, verdict.entries, verdict.number) == (True, ENTRIES, ENTRIES)
    assert not verify_lines([line.replace(b"key_3", b"key_9") for line in lines]).sound
    assert not verify_lines([*lines[:2], *lines[3:]]).sound
    assert not verify_lines([lines[1], lines[0], *lines[2:]]).sound
    assert not verify_lines(lines[2:]).sound
    assert not verify_lines(lines[:-1], [Anchor(verdict.number, verdict.hash)]).sound
    with pytest.raises(BadExport, match="line 2 is no entry"):
        verify_lines([lines[0], b'{"number": 1}'])


async def test_a_part_may_have_gaps_but_nothing_changed(log: AuditLog) -> None:
    """An organisation's own log leaves out the others' entries; what it has is as it was written and in order."""
    lines = [msgspec.json.encode(entry) async for entry in log.export(ALL)]
    part = [lines[1], lines[2], lines[5]]
    assert verify_lines(part, part=True).sound
    assert not verify_lines([lines[1], lines[2].replace(b"key_3", b"key_9")], part=True).sound
    assert not verify_lines([lines[2], lines[1]], part=True).sound


async def test_of_many_breaks_the_first_are_told(engine: AsyncEngine, log: AuditLog) -> None:
    """A verdict is bounded, however broken the log is."""
    for each in range(MAX_BREAKS):
        await log.note(ANNA, "key.created", "key", f"key_{each}")
    async with engine.begin() as connection:
        await connection.execute(update(AuditEntryRow).values(reason="because"))
    assert len((await log.verify()).breaks) == MAX_BREAKS


def test_a_hash_covers_every_field() -> None:
    """No field can be changed alone, and nothing can move from one field to its neighbour. That something was taken out says another entry."""
    texts = set(Entry.__struct_fields__) - {"number", "at_us", "hash", "redacted"}
    entry = Entry(number=1, at_us=2, hash="", redacted=0, **dict.fromkeys(texts, "ab"))
    seen = {hash_of(entry)}
    for name in sorted(texts):
        seen.add(hash_of(msgspec.structs.replace(entry, **{name: "abc"})))
    for name in ("number", "at_us"):
        seen.add(hash_of(msgspec.structs.replace(entry, **{name: 3})))
    seen.add(hash_of(msgspec.structs.replace(entry, actor_id="a", actor_name="bab")))
    assert len(seen) == len(texts) + 4


def test_a_hash_stays_what_it_was() -> None:
    """Logs of years are verified by later versions: the bytes that are hashed never change."""
    texts = {"organisation_id": "acme", "team_id": "", "actor_kind": "key", "actor_id": "k", "actor_name": "ä"}
    texts |= {"address": "::1", "action": "key.created", "object_kind": "key", "object_id": "o", "reason": 'a "b"'}
    entry = Entry(number=1, at_us=2, before="", after='{"a":1}', previous_hash="0" * 64, hash="", redacted=0, **texts)
    written = (
        '["weighbridge-audit-1",1,2,"acme","","key","k","ä","::1","key.created","key","o","a \\"b\\"","",'
        '"{\\"a\\":1}","' + "0" * 64 + '"]'
    )
    assert hash_of(entry) == hashlib.sha256(written.encode()).hexdigest()


@pytest.mark.parametrize("bad", ["", "3", "3:abc", f"x:{'a' * 64}", f"-1:{'a' * 64}", f"1:{'A' * 64}"])
def test_a_noted_hash_has_its_shape(bad: str) -> None:
    """What cannot be one is refused, and the refusal says how it looks."""
    assert parse_anchor(f" 12:{'a' * 64}\n") == Anchor(12, "a" * 64)
    with pytest.raises(BadAnchor, match="64 digits"):
        parse_anchor(bad)
