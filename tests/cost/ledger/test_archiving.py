"""A month of the ledger goes into files and comes back: nothing is lost, nothing counts twice, and nothing says zero for it."""

import asyncio
import os
import random
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import pyarrow.parquet
import pytest
from sqlalchemy import insert, text
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.calendars import set_calendar
from cost.dimensions import UsageFilters
from cost.errors import EntriesRefused
from cost.events.outbox import EventOutbox
from cost.ledger.archive_files import ArchiveReader, Codec, FileDamaged, Place, PlaceUnreachable
from cost.ledger.archived import ArchivedTime, archived_note
from cost.ledger.archiving import ArchiveImpossible, Archiving, archived_list
from cost.ledger.entries import Entry, adjustment, orphan_settlement, void_of
from cost.ledger.orphan_reaper import expiry_of
from cost.ledger.rebuild import rebuild
from cost.ledger.rows import COLUMNS
from cost.ledger.store import LedgerStore
from cost.ledger.verify import Verification, check
from cost.meters import METER_COLUMNS
from cost.price_book.correction import find_correction
from cost.prices import price_from_usd
from cost.reconcile.ledger_side import booked
from cost.reports.attempts import AttemptReader
from cost.reports.minutes import read_minutes
from cost.reports.recent import RecentQuery, RecentReader
from cost.reports.report_errors import BadQuery
from cost.reports.scope import ReadScope
from cost.reports.usage import UsageQuery, UsageReader
from cost.tables import ClosedMonth
from cost.times import DAY_US, HOUR_US, next_month, start_of
from gateway.ledger_places import FolderPlace, open_archive, open_place
from tests.cost.entries import reserve, settle
from tests.object_store import BUCKET, KEY_ID, SECRET, ObjectStore

pytestmark = pytest.mark.story

APRIL: Final = start_of(datetime(2026, 4, 1, tzinfo=UTC).date())
MAY: Final = next_month(APRIL)
JUNE: Final = next_month(MAY)
NOW_US: Final = JUNE + 20 * DAY_US


async def no_rest(_: float) -> None:
    """Go on at once."""


def archiving(engine: AsyncEngine, place: Place, **given: Any) -> Archiving:
    """It, with small files and without pauses."""
    return Archiving(engine, place, Codec(), **{"now_us": lambda: NOW_US, "rest": no_rest, "most": 7, **given})


async def sign(engine: AsyncEngine, organisation: str, *months: int) -> None:
    """Sign months off."""
    rows = [
        {
            "organisation_id": organisation,
            "start_us": month_us,
            "end_us": next_month(month_us),
            "closed_us": NOW_US,
            "closed_by": "ada",
            "comment": "",
            "figures": "{}",
            "statement": "",
        }
        for month_us in months
    ]
    async with engine.begin() as connection:
        await connection.execute(insert(ClosedMonth), rows)


def attempts(count: int, start_us: int = APRIL, end_us: int = MAY) -> list[Entry]:
    """Whole attempts of all kinds, some of which end after another hour, day or month begins."""
    chance, entries = random.Random(count), []
    for number in range(count):
        # A check looks at each hour of a day with entries: three days of a month are enough.
        first_us = (
            start_us
            if end_us - start_us <= 3 * DAY_US
            else chance.choice((start_us, start_us + DAY_US, end_us - DAY_US))
        )
        at_us = chance.randrange(first_us, min(first_us + DAY_US, end_us) - HOUR_US)
        held = reserve(
            f"req_{start_us}_{number:04}", at_us=at_us, team_id=chance.choice("ab"), end_user=chance.choice(("", "u1"))
        )
        cost = chance.randrange(1, 10**9)
        end = settle(
            held.request_id,
            at_us=at_us + chance.randrange(HOUR_US),
            team_id=held.team_id,
            end_user=held.end_user,
            cost_nanousd=cost,
            input_nanousd=cost,
            output_nanousd=0,
            served=True,
        )
        entries += [held, chance.choice((end, end, void_of(held), orphan_settlement(held)))]
    return entries


async def rows_of(engine: AsyncEngine) -> list[tuple[Any, ...]]:
    """All of the ledger."""
    async with engine.connect() as connection:
        query = "SELECT * FROM ledger_entry ORDER BY request_id, attempt, entry"
        return [tuple(row) for row in await connection.execute(text(query))]


async def rolled(engine: AsyncEngine) -> list[tuple[Any, ...]]:
    """What reports read of it."""
    async with engine.connect() as connection:
        return sorted(tuple(row) for row in await connection.execute(text("SELECT * FROM rollup_hour")))


def files_in(folder: Path | str) -> list[Path]:
    """The Parquet files below it, in order."""
    return sorted(Path(folder).rglob("*.parquet"))


async def verified(engine: AsyncEngine, *, files: bool = True) -> Verification:
    """The check of all."""
    return await check(engine, APRIL - DAY_US, NOW_US, now_us=NOW_US, open_archive=open_archive if files else None)


async def test_a_month_goes_and_comes_back_as_it_was(engine: AsyncEngine, tmp_path: Path) -> None:
    """The roll-ups stay to the nano-dollar, the books agree at each step, and other months are left alone."""
    await LedgerStore(engine).insert([*attempts(120), *attempts(30, MAY, JUNE)])
    await sign(engine, "default", APRIL)
    before, sums = await rows_of(engine), await rolled(engine)
    done = await archiving(engine, FolderPlace(tmp_path / "kept")).archive(APRIL)
    left = await rows_of(engine)
    assert 0 < len(left) < len(before)
    assert len(left) + done.rows == len(before)
    assert set(left) <= set(before)
    assert await rolled(engine) == sums
    found = await verified(engine)
    assert (found.differences, found.unread, found.open_reserves, found.archived) == (0, (), 0, done.rows)
    assert found.cost_nanousd == sum(row[_column("cost_nanousd")] or 0 for row in before if row[2] != "reserve")
    await archiving(engine, FolderPlace(tmp_path / "kept")).restore(APRIL)
    assert await rows_of(engine) == before
    assert (await verified(engine)).archived == 0
    assert await archived_list(engine) == []


def _column(name: str) -> int:
    return list(Entry.__struct_fields__).index(name)


async def test_files_have_whole_nano_dollars_and_a_manifest_that_adds_up(engine: AsyncEngine, tmp_path: Path) -> None:
    """Anybody reads them with other tools: int64, zstd, one UTC day a file; the manifest has each file's digest and sums."""
    await LedgerStore(engine).insert(attempts(60))
    await sign(engine, "default", APRIL)
    done = await archiving(engine, FolderPlace(tmp_path)).archive(APRIL)
    folder = Path(done.where)
    manifest = msgspec.json.decode((folder / "manifest.json").read_bytes())
    files = files_in(folder)
    assert [each["name"] for each in manifest["files"]] == [str(each.relative_to(folder)) for each in files]
    tables = [pyarrow.parquet.read_table(each, partitioning=None) for each in files]
    assert sum(each.num_rows for each in tables) == manifest["rows"] == done.rows
    kinds = {field.name: str(field.type) for field in tables[0].schema}
    assert {kinds[name] for name in ("cost_nanousd", "at_us", *METER_COLUMNS)} == {"int64"}
    assert pyarrow.parquet.ParquetFile(files[0]).metadata.row_group(0).column(0).compression == "ZSTD"
    cost = sum(row["cost_nanousd"] or 0 for each in tables for row in each.to_pylist() if row["entry"] != "reserve")
    assert manifest["sums"]["cost_nanousd"] == cost
    assert sum(manifest["sums"][name] for name in METER_COLUMNS) == cost
    assert manifest["schema"] == 1


@pytest.mark.parametrize(
    ("why", "spoil"),
    [
        ("not over", lambda _: None),
        ("has not signed off 2026-04", lambda _: None),
        ("open", lambda entries: entries.append(reserve("req_open", at_us=APRIL + DAY_US))),
    ],
    ids=["not over", "not signed", "open"],
)
async def test_what_may_still_change_is_not_archived(
    engine: AsyncEngine, tmp_path: Path, why: str, spoil: Callable[[list[Entry]], None]
) -> None:
    """The refusal says why, and nothing is gone."""
    entries = attempts(5)
    spoil(entries)
    await LedgerStore(engine).insert(entries)
    if "signed" not in why:
        await sign(engine, "default", APRIL)
    now_us = MAY + HOUR_US if why == "not over" else NOW_US
    with pytest.raises(ArchiveImpossible, match=why):
        await archiving(engine, FolderPlace(tmp_path), now_us=lambda: now_us).archive(APRIL)
    assert len(await rows_of(engine)) == len(entries)


async def test_months_are_signed_where_the_organisation_is(engine: AsyncEngine, tmp_path: Path) -> None:
    """The last hours of April in UTC are May in Berlin, so both have to be signed off."""
    await LedgerStore(engine).insert(attempts(5))
    await set_calendar(engine, "default", "Europe/Berlin", "monday", APRIL - 90 * DAY_US, NOW_US)
    await sign(engine, "default", APRIL)
    with pytest.raises(ArchiveImpossible, match="has not signed off 2026-05"):
        await archiving(engine, FolderPlace(tmp_path)).archive(APRIL)
    await sign(engine, "default", MAY)
    assert (await archiving(engine, FolderPlace(tmp_path)).archive(APRIL)).rows == 10


async def test_hours_that_days_begin_within_stay(engine: AsyncEngine, tmp_path: Path) -> None:
    """India's midnight is half past an hour, which reports sum up from entries."""
    at_midnight = APRIL + 10 * DAY_US + 18 * HOUR_US
    await LedgerStore(engine).insert([*attempts(50), *attempts(9, at_midnight, at_midnight + HOUR_US + 1)])
    await set_calendar(engine, "default", "Asia/Kolkata", "monday", APRIL - 90 * DAY_US, NOW_US)
    await sign(engine, "default", APRIL, MAY)
    await archiving(engine, FolderPlace(tmp_path)).archive(APRIL)
    left = [row[3] for row in await rows_of(engine) if row[2] != "reserve"]
    assert len([each for each in left if at_midnight <= each < at_midnight + HOUR_US]) >= 9
    assert all(each % DAY_US // HOUR_US == 18 for each in left)
    assert (await verified(engine)).differences == 0


async def test_events_that_wait_for_a_sink_keep_the_month(engine: AsyncEngine, tmp_path: Path) -> None:
    """A sink is told of the entry itself, so it has to be there."""
    outbox = EventOutbox(engine)
    await outbox.begin()
    await LedgerStore(engine).insert(attempts(3))
    await sign(engine, "default", APRIL)
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE event_stream SET seen_us = :now"), {"now": NOW_US})
    with pytest.raises(ArchiveImpossible, match="events about it wait for a sink: 3"):
        await archiving(engine, FolderPlace(tmp_path)).archive(APRIL)


async def test_what_comes_late_counts_once_or_is_refused(engine: AsyncEngine, tmp_path: Path) -> None:
    """A replayed entry would count twice and is refused; a posting and a found host's settlement are booked; the books agree."""
    store = LedgerStore(engine)
    entries = attempts(20)
    lost = reserve("req_lost", at_us=APRIL + DAY_US)
    posting = adjustment(
        "correction/x/1/1",
        at_us=APRIL + 2 * DAY_US,
        origin="correction",
        meters_nanousd=[5] + [0] * (len(METER_COLUMNS) - 1),
        organisation_id="default",
        team_id="a",
        key_id="",
        tier="interactive",
        target_id="llama-3-70b",
        provider="vllm",
        price_version="1",
    )
    await store.insert([*entries, lost, expiry_of(lost), posting])
    await sign(engine, "default", APRIL)
    done = await archiving(engine, FolderPlace(tmp_path)).archive(APRIL)
    sums = await rolled(engine)
    for again in (entries, entries[:1], entries[1:2]):
        with pytest.raises(EntriesRefused, match="archived"):
            await store.insert(again)
    assert await store.insert([posting]) == 0
    assert await rolled(engine) == sums
    true_end = settle("req_lost", at_us=APRIL + DAY_US, cost_nanousd=7, input_nanousd=7, output_nanousd=0)
    assert await store.insert([true_end], careful=True) == 2
    later = msgspec.structs.replace(posting, request_id="correction/y/1/1")
    assert await store.insert([later]) == 1
    found = await verified(engine)
    assert (found.differences, found.archived) == (0, done.rows)


async def test_a_rebuild_never_zeroes_an_archived_month(engine: AsyncEngine, tmp_path: Path) -> None:
    """It refuses with the months' names; other months are built anew."""
    await LedgerStore(engine).insert([*attempts(20), *attempts(5, MAY, JUNE)])
    await sign(engine, "default", APRIL)
    await archiving(engine, FolderPlace(tmp_path)).archive(APRIL)
    sums = await rolled(engine)
    for start_us, end_us in ((APRIL, MAY), (0, 2**62), (APRIL + 3 * DAY_US, APRIL + 4 * DAY_US)):
        with pytest.raises(ArchivedTime, match="2026-04 are archived"):
            await rebuild(engine, start_us, end_us)
    assert await rebuild(engine, MAY, JUNE) > 0
    assert await rolled(engine) == sums


@pytest.mark.parametrize(
    "deed",
    [
        "flip",
        "remove",
        "manifest",
        "sums",
        "other files",
        "away",
        "cut",
        "empty",
        "another's",
        "folder",
        "pipe",
        "endless",
        "endless manifest",
    ],
)
async def test_verification_names_what_is_wrong_with_the_files(engine: AsyncEngine, tmp_path: Path, deed: str) -> None:
    """One byte, a missing file or manifest, or one that tells otherwise, is a difference with its name; a place that is away is said,
    and totals are compared.
    """
    await LedgerStore(engine).insert(attempts(40))
    await sign(engine, "default", APRIL)
    done = await archiving(engine, FolderPlace(tmp_path / "kept")).archive(APRIL)
    file = files_in(done.where)[2]
    if deed == "flip":
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    elif deed == "remove":
        file.unlink()
    elif deed == "manifest":
        file = Path(done.where, "manifest.json")
        file.unlink()
    elif deed in ("sums", "other files"):
        file = Path(done.where, "manifest.json")
        told = msgspec.json.decode(file.read_bytes())
        if deed == "sums":
            told["sums"]["cost_nanousd"] -= 1
        else:
            told["files"][0]["name"] = "../../etc/passwd"
        file.write_bytes(msgspec.json.encode(told))
    elif deed == "away":
        (tmp_path / "kept").rename(tmp_path / "away")
    else:
        file = _spoilt(file, deed)
    async with asyncio.timeout(60):
        found = await verified(engine)
    if deed == "away":
        assert (found.differences, found.damaged) == (0, ())
        assert "there is no folder" in found.unread[0]
    else:
        assert found.differences == 1
        assert file.name in found.damaged[0]
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE rollup_day SET cost_nanousd = cost_nanousd + 1"))
    assert (await verified(engine)).differences > found.differences
    assert (await verified(engine, files=False)).differences > 0


def _spoilt(file: Path, deed: str) -> Path:
    """Do what somebody may do who can write to the place; return the file that is spoilt."""
    other = file.parents[1].glob(f"*/{file.name[:5]}*")
    data = {"cut": file.read_bytes()[:-100], "another's": max(other).read_bytes()}.get(deed, b"")
    if deed == "endless manifest":
        file = file.parents[1] / "manifest.json"
    file.unlink()
    match deed:
        case "folder":
            file.mkdir()
        case "pipe":
            os.mkfifo(file)
        case "endless" | "endless manifest":
            # Terabytes of nothing, which are on no disk.
            with file.open("wb") as opened:
                opened.truncate(1 << 42)
        case _:
            file.write_bytes(data)
    return file


class Stopped(BaseException):
    """The process is killed."""


class Killed:
    """A place whose process dies at its n-th call, before or after the deed."""

    def __init__(self, place: Place, at: int) -> None:
        self._place, self._left = place, at
        self.text = place.text

    def _step(self) -> None:
        self._left -= 1
        if self._left <= 0:
            raise Stopped

    def put(self, name: str, data: bytes) -> None:
        """Write, and die before or after."""
        self._step()
        self._place.put(name, data)
        self._step()

    def get(self, name: str, most: int) -> bytes | None:
        """Read, and die before."""
        self._step()
        return self._place.get(name, most)


async def test_a_run_that_dies_anywhere_is_gone_on_with(engine: AsyncEngine, tmp_path: Path) -> None:
    """At each step of archive and of restore: every entry is in the ledger or in a file that is noted, and the books agree."""
    await LedgerStore(engine).insert(attempts(12, APRIL, APRIL + DAY_US))
    await sign(engine, "default", APRIL)
    before = await rows_of(engine)
    place = FolderPlace(tmp_path)
    at, died = 1, 0
    while True:
        try:
            await archiving(engine, Killed(place, at), most=5).archive(APRIL)
        except Stopped:
            died += 1
            if died % 3 == 0:
                found = await verified(engine)
                assert (found.differences, found.unread) == (0, ())
                assert found.archived + len(await rows_of(engine)) == len(before)
            at = at % 9 + 2
            continue
        break
    assert died > 3
    assert await rows_of(engine) == []
    assert (await verified(engine)).archived == len(before)
    at, died = 1, 0
    while True:
        try:
            await archiving(engine, Killed(place, at), most=5).restore(APRIL)
        except Stopped:
            died, at = died + 1, at + 1
            assert (await verified(engine)).differences == 0
            continue
        break
    assert died > 1
    assert await rows_of(engine) == before


async def test_two_processes_do_not_archive_a_month_at_once(engine: AsyncEngine, tmp_path: Path) -> None:
    """The second is told so, and how long to wait where the first was killed; a first that slept too long changes nothing more."""
    await LedgerStore(engine).insert(attempts(24))
    await sign(engine, "default", APRIL)
    place = FolderPlace(tmp_path)

    first = archiving(engine, place)
    await first._begin(APRIL)
    with pytest.raises(ArchiveImpossible, match=r"another process works at 2026-04.* in 120 s"):
        await archiving(engine, place).archive(APRIL)
    second = archiving(engine, place, now_us=lambda: NOW_US + 121_000_000)
    done = await second.archive(APRIL)
    with pytest.raises(ArchiveImpossible, match="another process"):
        await first._set(APRIL, "removing")
    assert done.rows == 48
    assert (await verified(engine)).differences == 0


async def test_a_process_that_slept_overwrites_nothing(engine: AsyncEngine, tmp_path: Path) -> None:
    """Another one went on meanwhile, to the end: what the sleeper then writes is in no manifest, and it changes nothing more."""
    await LedgerStore(engine).insert(attempts(24))
    await sign(engine, "default", APRIL)
    before, loop = await rows_of(engine), asyncio.get_running_loop()
    other = archiving(engine, FolderPlace(tmp_path), most=5, now_us=lambda: NOW_US + 121_000_000)

    class Sleeper(FolderPlace):
        calls = 0

        def put(self, name: str, data: bytes) -> None:
            self.calls += 1
            if self.calls == 2:
                asyncio.run_coroutine_threadsafe(other.archive(APRIL), loop).result(60)
            super().put(name, data)

    with pytest.raises(ArchiveImpossible, match="another process"):
        await archiving(engine, Sleeper(tmp_path)).archive(APRIL)
    found = await verified(engine)
    assert (found.differences, found.damaged, found.archived) == (0, (), len(before))
    await archiving(engine, FolderPlace(tmp_path)).restore(APRIL)
    assert await rows_of(engine) == before


async def test_nothing_is_deleted_for_a_place_that_loses_what_it_takes(engine: AsyncEngine, tmp_path: Path) -> None:
    """A full disk, and a store that says yes and keeps something else."""
    await LedgerStore(engine).insert(attempts(10))
    await sign(engine, "default", APRIL)
    before = await rows_of(engine)

    class Full(FolderPlace):
        def put(self, name: str, data: bytes) -> None:
            raise PlaceUnreachable("no space left on device")

    class Liar(FolderPlace):
        def put(self, name: str, data: bytes) -> None:
            super().put(name, data[:-1])

    for kind, error in ((Full, PlaceUnreachable), (Liar, FileDamaged)):
        with pytest.raises(error):
            await archiving(engine, kind(tmp_path)).archive(APRIL)
        assert await rows_of(engine) == before
    assert (await archiving(engine, FolderPlace(tmp_path)).archive(APRIL)).rows == len(before)


async def test_a_file_that_changed_after_it_was_written_deletes_nothing(engine: AsyncEngine, tmp_path: Path) -> None:
    """Entries are deleted by what is read from the archive then, and by nothing else."""
    await LedgerStore(engine).insert(attempts(10))
    await sign(engine, "default", APRIL)
    before = await rows_of(engine)
    work = archiving(engine, FolderPlace(tmp_path))
    state, run = await work._begin(APRIL)
    await work._write(APRIL, run)
    await work._write_manifest(APRIL, run)
    await work._set(APRIL, "removing")
    await work._release(APRIL)
    files_in(tmp_path)[0].write_bytes(b"PAR1")
    with pytest.raises(FileDamaged, match="SHA-256"):
        await archiving(engine, FolderPlace(tmp_path)).archive(APRIL)
    assert (state, await rows_of(engine)) == ("writing", before)


def test_older_files_lack_columns_and_have_their_defaults() -> None:
    """A file of a version with fewer columns is read as a journal of it is."""
    codec = Codec()
    row = tuple(msgspec.structs.astuple(msgspec.structs.replace(reserve(), flags=())))
    values = [*row]
    values[_column("flags")] = "[]"
    table = pyarrow.parquet.read_table(pyarrow.BufferReader(codec.encode([values])))
    older = table.drop_columns(["cache_saved_nanousd", "end_user"])
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(older, sink)
    assert codec.decode(sink.getvalue().to_pybytes()) == [tuple(values)]


def test_every_value_that_the_ledger_takes_comes_back_as_it_was() -> None:
    """The limits of 64 bits, beside NULL, where others go over floats; times are integers, so no zone moves them; any text."""
    codec, kinds = Codec(), Entry.__annotations__
    row = list(msgspec.structs.astuple(reserve()))
    row[_column("flags")] = '["a"]'
    rows = []
    for number, amount in enumerate((2**63 - 1, -(2**63), None, 0, 2**53 + 1)):
        values = [*row]
        for name in COLUMNS:
            if "int" in str(kinds[name]) and "nanousd" in name:
                values[_column(name)] = amount if "None" in str(kinds[name]) else (amount or 0)
        values[_column("complexity")] = (0.1, 5e-324, None, 1.0, 1 / 3)[number]
        values[_column("tag")] = ("", 'a"b,c\n', "é🜁\u202e", "NULL", " ")[number]
        values[_column("at_us")] = APRIL + number
        rows.append(tuple(values))
    found = codec.decode(codec.encode(rows))
    assert found == rows
    assert [[type(each) for each in one] for one in found] == [[type(each) for each in one] for one in rows]
    assert codec.decode(codec.encode(rows), ("entry", "cost_nanousd"))[0] == ("reserve", 2**63 - 1)
    for amount in cast("tuple[Any, ...]", (2**63, 0.5)):
        values = [*row]
        values[_column("cost_nanousd")] = amount
        with pytest.raises((OverflowError, FileDamaged)):
            codec.encode([tuple(values)])


async def test_a_reader_says_which_file_is_missing(tmp_path: Path, engine: AsyncEngine) -> None:
    """Restoring from a place that lacks a file stops there, and can be gone on with once it is back."""
    await LedgerStore(engine).insert(attempts(20))
    await sign(engine, "default", APRIL)
    before = await rows_of(engine)
    done = await archiving(engine, FolderPlace(tmp_path)).archive(APRIL)
    file = files_in(done.where)[1]
    kept = file.read_bytes()
    file.unlink()
    with pytest.raises(FileDamaged, match=file.name):
        await archiving(engine, FolderPlace(tmp_path)).restore(APRIL)
    file.write_bytes(kept)
    with pytest.raises(ArchiveImpossible, match="is being restored"):
        await archiving(engine, FolderPlace(tmp_path)).archive(APRIL)
    await archiving(engine, FolderPlace(tmp_path)).restore(APRIL)
    assert await rows_of(engine) == before
    assert isinstance(open_archive(str(tmp_path), "x"), ArchiveReader)


async def test_a_bucket_keeps_a_month_as_a_folder_does(
    engine: AsyncEngine, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`s3://…` with AWS's own variables; what is not there is told from what does not answer."""
    for name, value in {
        "AWS_ENDPOINT_URL": object_store.endpoint,
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    await LedgerStore(engine).insert(attempts(10, APRIL, APRIL + DAY_US))
    await sign(engine, "default", APRIL)
    before = await rows_of(engine)
    place = open_place(f"s3://{BUCKET}/books/{engine.dialect.name}")
    assert place.get("nothing.parquet", 1 << 30) is None
    done = await archiving(engine, place).archive(APRIL)
    assert (done.rows, await rows_of(engine)) == (len(before), [])
    assert (await verified(engine)).differences == 0
    await archiving(engine, open_place(place.text)).restore(APRIL)
    assert await rows_of(engine) == before


async def test_what_needs_the_entries_says_that_they_are_archived(engine: AsyncEngine, tmp_path: Path) -> None:
    """Sums of whole hours and days go on; lists, minutes, parts of hours, corrections and events told anew say so instead of nothing."""
    await LedgerStore(engine).insert(attempts(10, APRIL, APRIL + DAY_US))
    await sign(engine, "default", APRIL)
    await archiving(engine, FolderPlace(tmp_path)).archive(APRIL)
    scope = ReadScope(organisation_id="default", team_id=None)
    reader = UsageReader(engine)
    days = UsageQuery(scope=scope, start_us=APRIL, end_us=MAY)
    assert (await reader.page(days)).rows[0].sums.requests == 10
    hours = UsageQuery(scope=scope, start_us=APRIL + HOUR_US, end_us=APRIL + 2 * HOUR_US)
    await reader.page(hours)
    for refused in (
        UsageQuery(scope=scope, start_us=APRIL + HOUR_US // 4, end_us=APRIL + HOUR_US),
        UsageQuery(scope=scope, start_us=APRIL, end_us=APRIL + DAY_US, group_by=("end_user",)),
    ):
        with pytest.raises(BadQuery, match="2026-04 are archived; `weighbridge ledger restore"):
            await reader.page(refused)
    with pytest.raises(BadQuery, match="archived"):
        await AttemptReader(engine).by_minute(scope, APRIL, APRIL + DAY_US, filters=UsageFilters(), limit=9)
    with pytest.raises(BadQuery, match="archived"):
        await read_minutes(engine, scope, UsageFilters(), APRIL, APRIL + HOUR_US)
    with pytest.raises(ArchivedTime, match="cannot be told again"):
        await EventOutbox(engine).replay(APRIL, APRIL + DAY_US)
    price = price_from_usd(version="v2", input_usd=1, output_usd=2)
    with pytest.raises(ArchivedTime, match="cannot be corrected"):
        await find_correction(engine, "x", "", price, date(2026, 4, 1), date(2026, 4, 2))
    requests = RecentReader(engine)
    for query in (
        RecentQuery(scope=scope),
        RecentQuery(scope=scope, order="-cost"),
        RecentQuery(scope=scope, target="x"),
    ):
        assert (await requests.page(query)).archived == (APRIL,)
    assert (await requests.page(RecentQuery(scope=scope, since_us=MAY))).archived == ()
    assert (await requests.page(RecentQuery(scope=scope, until_us=APRIL))).archived == ()
    assert await requests.knows_end_user(scope, "u1")
    for team in ("a", "b"):
        known = ReadScope(organisation_id="default", team_id=team)
        assert await requests.knows_end_user(known, "u1")
    assert not await requests.knows_end_user(ReadScope(organisation_id="default", team_id="c"), "u1")
    assert not await requests.knows_end_user(ReadScope(organisation_id="other", team_id=None), "u1")
    with pytest.raises(ArchivedTime, match="cannot be reconciled"):
        async with engine.connect() as connection:
            await booked(connection, first_day_us=APRIL, last_day_us=APRIL, providers=["vllm"], organisation_id=None)
    assert "archived" in await archived_note(engine, APRIL, MAY)
    assert await archived_note(engine, MAY, JUNE) == ""
