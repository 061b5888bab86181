"""Erasure of persons and of teams' content: what goes, what stays, for whom, and when it is cut off."""

import asyncio
import contextlib
import datetime as dt
import itertools
import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import JSON, Boolean, DateTime, Float, Integer, LargeBinary, String, Table, insert, select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts import transactions
from accounts.audit.entry import Actor
from accounts.audit.log import AuditLog, Scope
from accounts.errors import UnknownTeam
from accounts.people.people import PeopleStore
from accounts.people.person import Person
from accounts.store import AccountStore
from accounts.tables import UtcDateTime
from api.erasure.change import erase_content, erase_person
from api.erasure.holdings import holdings
from api.people.change import put_person
from cost.end_users import booked
from cost.ledger.rollups import LOCK_ORDER
from cost.ledger.verify import check
from cost.times import DAY_US, wall_us
from gateway.database import make_engine, metadata
from proxy.batch.blobs import LocalBlobs
from proxy.errors import BadRequest, LastAdmin, TeamNotFound
from tests.postgres import Postgres
from tests.sqlite import newest_sqlite

pytestmark = pytest.mark.story

BOSS = Actor(kind="console", actor_id="root", name="root", organisation_id="acme")
ADA = "ada@acme.example"
USER = "cust-4711"
OTHER = "cust-4712"
_NUMBERS = itertools.count()


def values_of(table: Table, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with the given values, and anything for the others."""
    row: dict[str, Any] = {}
    for column in table.columns:
        if column.name in given:
            row[column.name] = given[column.name]
        elif isinstance(column.type, UtcDateTime | DateTime):
            row[column.name] = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
        elif isinstance(column.type, String):
            row[column.name] = f"x{next(_NUMBERS)}"[: column.type.length]
        elif isinstance(column.type, LargeBinary):
            row[column.name] = b"x"
        elif isinstance(column.type, JSON):
            row[column.name] = None
        elif isinstance(column.type, Boolean):
            row[column.name] = False
        else:
            assert isinstance(column.type, Integer | Float), column
            row[column.name] = 1
    return row


async def put(engine: AsyncEngine, table_name: str, /, **given: Any) -> None:
    table = metadata.tables[table_name]
    async with engine.begin() as connection:
        await connection.execute(insert(table).values(values_of(table, given)))


async def everything(engine: AsyncEngine, name: str) -> list[str]:
    async with engine.connect() as connection:
        return [str(tuple(row)) for row in await connection.execute(select(metadata.tables[name]))]


@pytest.fixture
async def ada(engine: AsyncEngine) -> Person:
    """Two organisations with a team each; Ada administers acme, as Ben does."""
    accounts = AccountStore(engine)
    for name in ("acme", "rival"):
        with contextlib.suppress(Exception):
            await accounts.create_organisation(name)
        await accounts.create_team(f"team_{name}", organisation_id=name)
    log = AuditLog(engine)
    await put_person(log, BOSS, "acme", "ben@acme.example", operator="acme", role="admin")
    person, _ = await put_person(log, BOSS, "acme", ADA, operator="acme", name="Ada Lovelace", role="admin")
    return person


async def fill(engine: AsyncEngine, person: Person, ends: tuple[str, str]) -> list[tuple[str, str]]:
    """Give each table of `holdings.toml` that a rule erases a row of the person and one of somebody else; return tables with a text that
    only the first has.
    """
    mine, others = ends
    await put(
        engine,
        "ledger_entry",
        request_id="req_mine",
        entry="settle",
        organisation_id="acme",
        team_id="team_acme",
        end_user=mine,
    )
    await put(
        engine,
        "ledger_entry",
        request_id="req_other",
        entry="settle",
        organisation_id="acme",
        team_id="team_acme",
        end_user=others,
    )
    await put(
        engine,
        "ledger_entry",
        request_id="req_rival",
        entry="settle",
        organisation_id="rival",
        team_id="team_rival",
        end_user=mine,
    )
    filled = []
    for number, action in enumerate(holdings().of_person()):
        name = action.table.name
        pairs = {
            "person_id": (person.person_id, None),
            "principal": (f"person/{person.person_id}", "person/other"),
            "end_user": (mine, others),
            "spender": (f"team_acme/{mine}", f"team_acme/{others}"),
            "request": ("req_mine", "req_other"),
            "response": ("resp_mine", "resp_other"),
            None: ("Ada Lovelace", "Ben"),
        }[action.value]
        for side, value in enumerate(pairs):
            if value is None:
                continue
            unique = {key.name: f"{number}-{side}" for key in action.table.primary_key if isinstance(key.type, String)}
            given = {"organisation_id": "acme", "team_id": "team_acme", "scope": "end_user", action.column: value}
            await put(engine, name, **(unique | {each: it for each, it in given.items() if each in action.table.c}))
        filled.append((name, pairs[0]))
    return filled


async def test_every_rule_takes_the_persons_rows_and_no_others(engine: AsyncEngine, ada: Person) -> None:
    """Of an account with its mail address as end user, too; amounts stay, the rest is somebody else's."""
    mine = booked(ADA)
    filled = await fill(engine, ada, (mine, OTHER))
    before = {name: len(await everything(engine, name)) for name, _ in filled}
    would = await erase_person(engine, AuditLog(engine), BOSS, "acme", ADA, operator="acme", dry_run=True)
    assert {name: len(await everything(engine, name)) for name, _ in filled} == before
    did = await erase_person(engine, AuditLog(engine), BOSS, "acme", ADA, operator="acme", dry_run=False)
    assert would.rows == did.rows
    for name, value in filled:
        rows = await everything(engine, name)
        assert not any(repr(value) in row for row in rows), name
        deletes = holdings().tables[name].person.startswith("delete")
        assert len(rows) == before[name] - deletes, name
    ledger = await everything(engine, "ledger_entry")
    assert len(ledger) == 3
    assert [mine in row for row in sorted(ledger)].count(True) == 1, "the rival's end user is another one"


async def test_nothing_of_a_person_is_left_in_any_table(engine: AsyncEngine, ada: Person) -> None:
    """Every column of every table is read, whatever the rules say."""
    log = AuditLog(engine)
    await fill(engine, ada, (booked(ADA), OTHER))
    await put_person(log, BOSS, "acme", ADA, operator="acme", name="Ada Byron", reason=f"{ADA} married")
    me = Actor(kind="person", actor_id=ada.person_id, name="Ada Byron", organisation_id="acme", address="192.0.2.9")
    await log.note(me, "key.created", "key", "key_1", after={"role": "member"})
    await erase_person(engine, log, me, "acme", ada.person_id, operator="acme", dry_run=False, reason=f"asked by {ADA}")
    for name in metadata.tables:
        for row in await everything(engine, name):
            for gone in (ADA, "Lovelace", "Byron", "192.0.2.9"):
                assert gone not in row, name
    verdict = await log.verify()
    assert verdict.sound, verdict.breaks
    noted = [entry for entry in await log.page(Scope(organisation_id="acme")) if entry.action == "person.erased"]
    assert len(noted) == 1


@pytest.mark.parametrize("who", [ADA, USER])
async def test_once_more_finds_nothing_and_says_nothing(engine: AsyncEngine, ada: Person, who: str) -> None:
    """It may be repeated each night."""
    await fill(engine, ada, (booked(who), OTHER))
    await erase_person(engine, AuditLog(engine), BOSS, "acme", who, operator="acme", dry_run=False)
    head = await AuditLog(engine).head()
    again = await erase_person(engine, AuditLog(engine), BOSS, "acme", who, operator="acme", dry_run=False)
    assert again.rows == {}
    assert await AuditLog(engine).head() == head


async def test_an_end_user_is_the_organisations_own(engine: AsyncEngine, ada: Person) -> None:
    """Another organisation's person or end user of the same name is not found."""
    await put(engine, "ledger_entry", organisation_id="acme", team_id="team_acme", end_user=USER)
    told = await erase_person(engine, AuditLog(engine), BOSS, "rival", USER, operator="acme", dry_run=False)
    assert told.rows == {}
    for who in (ADA, ada.person_id):
        told = await erase_person(engine, AuditLog(engine), BOSS, "rival", who, operator="acme", dry_run=False)
        assert told.rows == {}
    assert USER in (await everything(engine, "ledger_entry"))[0]
    assert await PeopleStore(engine).find(ADA) is not None


async def test_the_last_administrator_stays(engine: AsyncEngine, ada: Person) -> None:
    """Nothing of them goes."""
    await erase_person(engine, AuditLog(engine), BOSS, "acme", "ben@acme.example", operator="acme", dry_run=False)
    head = await AuditLog(engine).head()
    with pytest.raises(LastAdmin):
        await erase_person(engine, AuditLog(engine), BOSS, "acme", ADA, operator="acme", dry_run=False)
    assert await AuditLog(engine).head() == head
    assert (await PeopleStore(engine).find(ADA)) == ada


async def test_a_role_is_no_name(engine: AsyncEngine, ada: Person) -> None:
    """An end user called `admin` takes no role out of the log."""
    await put(engine, "ledger_entry", organisation_id="acme", team_id="team_acme", end_user="admin")
    told = await erase_person(engine, AuditLog(engine), BOSS, "acme", "admin", operator="acme", dry_run=False)
    assert told.rows == {"ledger_entry": 1}


async def test_the_books_agree_with_themselves_afterwards(engine: AsyncEngine, ada: Person) -> None:
    """Sums of the end user go with their entries."""
    await put(
        engine, "ledger_entry", request_id="req_1", entry="settle", organisation_id="acme", team_id="team_acme", end_user=USER, at_us=5 * DAY_US
    )  # fmt: skip
    for name, at in (("spend_day", "day_us"), ("spend_quarter", "start_us")):
        await put(engine, name, scope="end_user", scope_id=f"team_acme/{USER}", spent_nanousd=1, **{at: 5 * DAY_US})
    await put(engine, "end_user_month", team_id="team_acme", end_user=USER)
    await erase_person(engine, AuditLog(engine), BOSS, "acme", USER, operator="acme", dry_run=False)
    found = await check(engine, 5 * DAY_US, 6 * DAY_US, now_us=7 * DAY_US)
    assert not [each for each in found.told if "end_user" in str(each)]


@pytest.mark.parametrize("who", [ADA, USER])
async def test_several_at_once_are_one(engine: AsyncEngine, ada: Person, who: str) -> None:
    """Each is answered, the person is gone, others are there, and the chain verifies."""
    await fill(engine, ada, (booked(who), OTHER))
    log = AuditLog(engine)
    erasing = [erase_person(engine, log, BOSS, "acme", who, operator="acme", dry_run=False) for _ in range(3)]
    told = await asyncio.gather(*erasing)
    assert any(each.rows for each in told)
    again = await erase_person(engine, log, BOSS, "acme", who, operator="acme", dry_run=False)
    assert again.rows == {}
    assert (await log.verify()).sound
    assert (await PeopleStore(engine).find(ADA) is None) == (who == ADA)
    assert await PeopleStore(engine).find("ben@acme.example") is not None


@pytest.mark.parametrize(
    "who", ["%", "_", "\\", "'; DROP TABLE person; --", '"', "{}", "\u202eadmin", "x" * 254, "ß", "team_acme/", "a\nb"]
)
async def test_odd_ids_are_ids(engine: AsyncEngine, ada: Person, who: str) -> None:
    """They match themselves and nothing else."""
    for end_user in (booked(who), OTHER):
        await put(engine, "ledger_entry", organisation_id="acme", team_id="team_acme", end_user=end_user)
    told = await erase_person(engine, AuditLog(engine), BOSS, "acme", who, operator="acme", dry_run=False)
    assert told.rows == {"ledger_entry": 1}
    assert (await AuditLog(engine).verify()).sound
    assert await PeopleStore(engine).find(ADA) == ada


@pytest.mark.parametrize("who", ["\0", "a\0b", "\ud800"])
async def test_what_is_no_id_is_refused(engine: AsyncEngine, ada: Person, who: str) -> None:
    """No database is asked for it."""
    with pytest.raises(BadRequest, match="`person`"):
        await erase_person(engine, AuditLog(engine), BOSS, "acme", who, operator="acme", dry_run=True)


async def test_it_waits_for_who_books_and_deadlocks_with_nobody(postgres: Postgres) -> None:
    """Both lock the sums: whoever does so in another order ends the other's transaction, an erasure with an error that helps nobody."""
    engine = make_engine(await postgres.database())
    try:
        await AccountStore(engine).create_organisation("acme")
        await AccountStore(engine).create_team("team_acme", organisation_id="acme")
        entry = {
            "entry": "settle",
            "organisation_id": "acme",
            "team_id": "team_acme",
            "end_user": USER,
            "at_us": 5 * DAY_US,
        }
        await put(engine, "ledger_entry", request_id="req_1", **entry)
        async with engine.begin() as booking:
            for name in LOCK_ORDER:
                await booking.execute(text(f"LOCK TABLE {name} IN ROW EXCLUSIVE MODE"))
                if name == "spend_day":
                    erasing = asyncio.create_task(
                        erase_person(engine, AuditLog(engine), BOSS, "acme", USER, operator="acme", dry_run=False)
                    )
                    await _until_somebody_waits(engine)
        assert (await erasing).rows["ledger_entry"] == 1
    finally:
        await engine.dispose()


async def _until_somebody_waits(engine: AsyncEngine) -> None:
    waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'spend_day'::regclass")
    async with asyncio.timeout(30):
        while True:
            async with engine.connect() as connection:
                if await connection.scalar(waiting):
                    return
            await asyncio.sleep(0.02)


async def _cut_off_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """End the process, as it were, at the n-th transaction."""
    taken = 0
    real = transactions.overwriting

    @contextlib.asynccontextmanager
    async def overwriting(engine: AsyncEngine) -> Any:
        nonlocal taken
        taken += 1
        if taken == step:
            raise KeyboardInterrupt
        async with real(engine) as connection:
            yield connection

    for module in ("rows", "person", "team"):
        monkeypatch.setattr(f"api.erasure.{module}.overwriting", overwriting)
    monkeypatch.setattr("accounts.audit.redaction.overwriting", overwriting)


@pytest.mark.parametrize("step", [1, 2, 5, 9, 14, 18, 20, 21, 22, 23, 24])
async def test_one_that_is_cut_off_is_finished_by_the_next(
    engine: AsyncEngine, ada: Person, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Wherever it ends: what is left can still be found, and the log says that it was begun."""
    await fill(engine, ada, (booked(ADA), OTHER))
    with monkeypatch.context() as cut:
        await _cut_off_at(cut, step)
        with contextlib.suppress(KeyboardInterrupt):
            await erase_person(engine, AuditLog(engine), BOSS, "acme", ADA, operator="acme", dry_run=False)
    entries = await AuditLog(engine).page(Scope(organisation_id="acme"))
    assert "person.erased" in {entry.action for entry in entries}
    await erase_person(engine, AuditLog(engine), BOSS, "acme", ADA, operator="acme", dry_run=False)
    left = await erase_person(engine, AuditLog(engine), BOSS, "acme", ADA, operator="acme", dry_run=True)
    assert left.rows == {}
    assert await PeopleStore(engine).find(ADA) is None
    assert (await AuditLog(engine).verify()).sound


async def _content(engine: AsyncEngine, folder: Path, team_id: str, at_us: int, mark: str) -> None:
    """One of everything that a team's callers leave behind."""
    own = {"team_id": team_id, "organisation_id": team_id.removeprefix("team_")}
    blobs = LocalBlobs(folder)
    async with blobs.writing(f"file-{mark}") as writer:
        await writer.write(b"prompt " + mark.encode())
    await put(engine, "stored_file", file_id=f"file-{mark}", purpose="batch", created_us=at_us, expires_us=None, **own)
    await put(engine, "batch", batch_id=f"batch-{mark}", status="completed", created_us=at_us, labels=mark, **own)
    await put(engine, "batch_line", batch_id=f"batch-{mark}", custom_id=mark)
    await put(engine, "batch_result", batch_id=f"batch-{mark}", body=mark.encode())
    await put(engine, "background_response", response_id=f"resp_{mark}", created_us=at_us, team_id=team_id)
    await put(engine, "background_events", response_id=f"resp_{mark}", sealed=mark.encode())
    await put(engine, "idempotent_request", team_id=team_id, key_digest=mark, status=200, body=mark.encode())
    for table, at in holdings().of_team():
        if table.name == "background_response":
            continue
        unique = {key.name: mark for key in table.primary_key if isinstance(key.type, String) and key.name not in own}
        await put(
            engine, table.name, **unique, **{each: it for each, it in own.items() if each in table.c}, **{at: at_us}
        )


CONTENT = (
    "stored_file",
    "batch",
    "batch_line",
    "batch_result",
    "background_response",
    "background_events",
    "idempotent_request",
)


async def _marks(engine: AsyncEngine, folder: Path) -> dict[str, int]:
    tables = {*CONTENT, *(table.name for table, _ in holdings().of_team())}
    found = {name: await everything(engine, name) for name in tables}
    marks = {mark: sum(mark in row for rows in found.values() for row in rows) for mark in ("old-", "new-", "theirs-")}
    names = os.listdir(folder)  # noqa: PTH208 - names are enough
    return {mark: count + sum(mark in name for name in names) for mark, count in marks.items()}


async def test_a_teams_content_goes_and_anothers_stays(engine: AsyncEngine, ada: Person, tmp_path: Path) -> None:
    """From before a day, then all of it; its books, settings and people stay."""
    folder = tmp_path / "files"
    folder.mkdir()
    await _content(engine, folder, "team_acme", 5 * DAY_US, "old-1")
    await _content(engine, folder, "team_acme", 9 * DAY_US, "new-1")
    await _content(engine, folder, "team_rival", 5 * DAY_US, "theirs-1")
    await put(engine, "ledger_entry", organisation_id="acme", team_id="team_acme", end_user=USER)
    before = await _marks(engine, folder)
    common: dict[str, Any] = {"blobs": LocalBlobs(folder), "dry_run": False}
    log = AuditLog(engine)
    would = await erase_content(
        engine, log, BOSS, "acme", "team_acme", before_us=7 * DAY_US, **(common | {"dry_run": True})
    )
    assert await _marks(engine, folder) == before
    did = await erase_content(engine, log, BOSS, "acme", "team_acme", before_us=7 * DAY_US, **common)
    assert did.rows == would.rows
    left = await _marks(engine, folder)
    # An answer under an Idempotency-Key has no day of its own.
    assert left == {"old-": 1, "new-": before["new-"], "theirs-": before["theirs-"]}
    await erase_content(engine, log, BOSS, "acme", "team_acme", before_us=None, **common)
    assert await _marks(engine, folder) == {"old-": 0, "new-": 0, "theirs-": before["theirs-"]}
    assert len(await everything(engine, "ledger_entry")) == 1
    assert (await AccountStore(engine).get_team("team_acme")).settings.cache_epoch == 2
    assert (await log.verify()).sound


async def test_what_a_batch_still_reads_is_left_and_told(engine: AsyncEngine, ada: Person, tmp_path: Path) -> None:
    """The batch can be cancelled, and then it goes, too."""
    await put(engine, "stored_file", file_id="file-1", purpose="batch", created_us=1, expires_us=None, team_id="team_acme", organisation_id="acme")  # fmt: skip
    await put(engine, "batch", batch_id="b", status="in_progress", input_file_id="file-1", created_us=1, team_id="team_acme", organisation_id="acme")  # fmt: skip
    for dry_run in (True, False):
        told = await erase_content(
            engine, AuditLog(engine), BOSS, "acme", "team_acme", before_us=None, blobs=LocalBlobs(tmp_path), dry_run=dry_run
        )  # fmt: skip
        assert told.left == {"batch": 1, "stored_file": 1}
        assert told.rows == {}


async def test_an_upload_under_way_is_left_and_told(engine: AsyncEngine, ada: Person, tmp_path: Path) -> None:
    """Its bytes are there before its row says what it is; that of a process that died is free after an hour, and goes by itself."""
    await put(engine, "stored_file", file_id="file-1", purpose="reserved", created_us=1, expires_us=None, team_id="team_acme", organisation_id="acme")  # fmt: skip
    for dry_run in (True, False):
        told = await erase_content(
            engine, AuditLog(engine), BOSS, "acme", "team_acme", before_us=None, blobs=LocalBlobs(tmp_path), dry_run=dry_run
        )  # fmt: skip
        assert (told.rows, told.left) == ({}, {"stored_file": 1})


async def test_what_a_killed_process_had_begun_of_a_file_goes_with_it(
    engine: AsyncEngine, ada: Person, tmp_path: Path
) -> None:
    """A batch's output has one id, so two processes may have written it."""
    for name in ("file-1", "file-1.0a1b2c3d.part", "file-10.0a1b2c3d.part"):
        (tmp_path / name).write_bytes(b"prompt")
    await put(engine, "stored_file", file_id="file-1", purpose="batch_output", created_us=1, expires_us=None, team_id="team_acme", organisation_id="acme")  # fmt: skip
    await erase_content(
        engine, AuditLog(engine), BOSS, "acme", "team_acme", before_us=None, blobs=LocalBlobs(tmp_path), dry_run=False
    )
    names = os.listdir(tmp_path)  # noqa: PTH208 - names are enough
    assert [each for each in names if each.startswith("file-")] == ["file-10.0a1b2c3d.part"]


async def test_texts_that_are_written_after_their_entry_go_too(engine: AsyncEngine, ada: Person) -> None:
    """Prompts to learn from come a second after the books, which then no longer say whose they are."""
    entry = {"entry": "settle", "organisation_id": "acme", "team_id": "team_acme", "end_user": USER}
    await put(engine, "ledger_entry", request_id="req_1", at_us=wall_us(), **entry)
    rests: list[float] = []

    async def rest(seconds: float) -> None:
        rests.append(seconds)
        number = len(rests)
        await put(engine, "weighing", request_id=f"req_{number}", team_id="team_acme", prompt="what was said")
        # Somebody goes on calling.
        await put(engine, "ledger_entry", request_id=f"req_{number + 1}", at_us=wall_us(), **entry)

    log = AuditLog(engine)
    told = await erase_person(engine, log, BOSS, "acme", USER, operator="acme", dry_run=False, rest=rest)
    assert told.rows["weighing"] == 2
    assert await everything(engine, "weighing") == []
    assert len(rests) == 2
    assert all(0 < each <= 5 for each in rests)
    await put(engine, "ledger_entry", request_id="req_old", at_us=5, **entry)
    assert sum(USER in row for row in await everything(engine, "ledger_entry")) == 2


async def test_another_organisations_team_is_not_there(engine: AsyncEngine, ada: Person, tmp_path: Path) -> None:
    """Whoever asks."""
    with pytest.raises((TeamNotFound, UnknownTeam)):
        await erase_content(
            engine, AuditLog(engine), BOSS, "rival", "team_acme", before_us=None, blobs=LocalBlobs(tmp_path), dry_run=False
        )  # fmt: skip


async def test_sqlites_file_has_nothing_left_of_it(tmp_path: Path, sqlite_file: Path) -> None:
    """Not in a page that is free, nor in the log beside it: whoever copies the file finds no address and no prompt."""
    engine = make_engine(f"sqlite+aiosqlite:///{sqlite_file}")
    try:
        accounts = AccountStore(engine)
        await accounts.create_team("team_acme", organisation_id="default")
        log = AuditLog(engine)
        boss = Actor(kind="console", actor_id="root", name="root", organisation_id="default")
        await put_person(log, boss, "default", ADA, operator="default", name="Ada Lovelace")
        for number in range(50):
            await put(
                engine, "weighing", team_id="team_acme", request_id=f"r{number}", prompt="a very private prompt " * 200
            )
        await erase_person(engine, log, boss, "default", ADA, operator="default", dry_run=False)
        await erase_content(engine, log, boss, "default", "team_acme", before_us=None, blobs=None, dry_run=False)
    finally:
        await engine.dispose()
    for path in sqlite_file.parent.glob(f"{sqlite_file.name}*"):
        kept = path.read_bytes()
        for gone in (ADA.encode(), b"Lovelace", b"very private"):
            assert gone not in kept, path.name
    with sqlite3.connect(sqlite_file) as plain:
        assert plain.execute("PRAGMA quick_check").fetchone() == ("ok",)


@pytest.fixture
def sqlite_file(tmp_path: Path) -> Path:
    path = tmp_path / "one.sqlite"
    newest_sqlite(path)
    return path
