"""The commands of the books: what they print, and how they end."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from cost.ledger.segments import BootLock, Drained, encode_line, segment_path, write_drained
from cost.ledger.store import LedgerStore
from gateway.cli import app
from gateway.database import make_engine
from tests.cost.entries import reserve, settle
from tests.sqlite import newest_sqlite

invoke = CliRunner().invoke
PROVIDERS = "{models: [{model_id: m, provider: a, max_context_tokens: 8000, deployments: [{kind: scripted}]}]}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Books with one priced attempt, on 5 April 2026."""
    monkeypatch.setenv("WEIGHBRIDGE_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("WEIGHBRIDGE_CONFIG", raising=False)
    monkeypatch.delenv("DATABASE_URL", raising=False)
    entries = [reserve(), settle(input_nanousd=1_000_000), reserve("open")]

    async def book() -> None:
        engine = make_engine(newest_sqlite(tmp_path / "weighbridge.sqlite"))
        await LedgerStore(engine).insert(entries)
        await engine.dispose()

    asyncio.run(book())
    return tmp_path


def damage(folder: Path, statement: str) -> None:
    """Changes the books behind their back."""

    async def change() -> None:
        engine = make_engine(f"sqlite:///{folder}/weighbridge.sqlite")
        async with engine.begin() as connection:
            await connection.execute(text(statement))
        await engine.dispose()

    asyncio.run(change())


def test_books_that_agree(folder: Path) -> None:
    """One plain line with what was checked, and a word on what is still open."""
    assert folder.exists()
    done = invoke(app, ["ledger", "verify"])
    assert (done.exit_code, done.stdout) == (0, "the books agree: 1 entry, $0.001\n")
    assert done.stderr.splitlines() == [
        "open for longer than an hour: 1 reserve",
        "journals were not counted: WEIGHBRIDGE_CONFIG is not set",
    ]
    found = json.loads(invoke(app, ["ledger", "verify", "--json", "--from", "2026-04-05", "--to", "2026-04-05"]).stdout)
    assert found == {
        "agree": True,
        "entries": 1,
        "cost_usd": "0.001",
        "open_reserves": 1,
        "differences": 0,
        "rows": [],
        "waiting": None,
        "missing": [],
        "archived": 0,
        "damaged": [],
        "unread": [],
    }


def test_what_waits_in_journals_is_no_part_of_the_books(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Books that agree are not all there is, as long as journals have more: of the living, and of the dead."""
    journals = folder / "journals"
    (folder / "c.yaml").write_text(f"cost: {{journal_dir: {journals}}}\nproviders: {PROVIDERS}\n")
    monkeypatch.setenv("WEIGHBRIDGE_CONFIG", str(folder / "c.yaml"))
    none = {"entries": 0, "processes": 0, "dead_processes": 0, "oldest_s": 0.0}
    assert json.loads(invoke(app, ["ledger", "verify", "--json"]).stdout)["waiting"] == none
    journals.mkdir()
    for boot_id in ("dead", "alive"):
        segment_path(journals, boot_id, 0).write_bytes(encode_line(reserve()) + encode_line(settle()))
    first = len(encode_line(reserve()))
    write_drained(journals, "alive", Drained(0, first, 1, total=1))
    damage(folder, f"INSERT INTO journal_place VALUES ('alive', 0, {first}, 1, 1, 0)")  # noqa: S608  Ours.
    lock = BootLock.take(journals, "alive")
    done = invoke(app, ["ledger", "verify"])
    assert (done.exit_code, done.stdout) == (0, "the books agree: 1 entry, $0.001\n")
    told = done.stderr.splitlines()[-1]
    assert told.startswith("not in the database yet: 3 entries in journals of 2 processes, the oldest for ")
    assert told.endswith(" s; 1 of them dead")
    found = json.loads(invoke(app, ["ledger", "verify", "--json"]).stdout)["waiting"]
    assert (found["entries"], found["processes"], found["dead_processes"]) == (3, 2, 1)
    assert lock is not None
    lock.release(delete=True)


def test_books_that_differ_are_told_and_mended(folder: Path) -> None:
    """The rows stand in a table, the command fails, and a rebuild makes it succeed; other days are not looked at."""
    damage(folder, "UPDATE rollup_day SET cost_nanousd = 1000001, served = 2")
    done = invoke(app, ["ledger", "verify"])
    assert done.exit_code == 1
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0] == ["table", "when", "where", "figure", "ledger", "found", "difference"]
    assert lines[1][:2] == ["rollup_day", "2026-04-05T00:00Z"]
    assert lines[1][-4:] == ["served", "0", "2", "2"]
    assert lines[2][-4:] == ["cost_usd", "0.001000000", "0.001000001", "0.000000001"]
    assert "the books do not agree: 2 figures wrong; checked: 1 entry, $0.001" in done.stderr
    assert invoke(app, ["ledger", "verify", "--from", "2026-04-06"]).exit_code == 0
    told = json.loads(invoke(app, ["ledger", "verify", "--json"]).stdout)
    assert (told["agree"], told["differences"]) == (False, 2)
    assert (told["rows"][1]["ledger"], told["rows"][1]["found"]) == (1_000_000, 1_000_001)
    mended = invoke(app, ["ledger", "rebuild", "--from", "2026-04-05", "--to", "2026-04-05"])
    assert mended.stdout == "the roll-ups of 1 day were rebuilt from the ledger\n"
    assert invoke(app, ["ledger", "verify"]).exit_code == 0


def test_entries_that_are_nowhere_are_a_difference(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Books whose figures agree do not agree with a journal of which a restore lost a part."""
    journals = folder / "journals"
    (folder / "c.yaml").write_text(f"cost: {{journal_dir: {journals}}}\nproviders: {PROVIDERS}\n")
    monkeypatch.setenv("WEIGHBRIDGE_CONFIG", str(folder / "c.yaml"))
    journals.mkdir()
    segment_path(journals, "old", 4).write_bytes(encode_line(reserve()))
    write_drained(journals, "old", Drained(4, len(encode_line(reserve())), 1, total=201))
    done = invoke(app, ["ledger", "verify"])
    assert (done.exit_code, done.stdout) == (1, "the books agree: 1 entry, $0.001\n")
    assert "missing: 200 entries of old are in no journal any more, and not in the ledger" in done.stderr
    told = json.loads(invoke(app, ["ledger", "verify", "--json"]).stdout)
    assert (told["agree"], told["differences"], told["missing"][0]["entries"]) == (False, 0, 200)


@pytest.mark.parametrize("command", ["verify", "rebuild"])
def test_days_in_the_wrong_order_are_refused(command: str) -> None:
    """The last day cannot be before the first."""
    done = invoke(app, ["ledger", command, "--from", "2026-04-05", "--to", "2026-04-04"])
    assert done.exit_code == 2
    assert "--to is before --from" in done.stderr


def test_a_range_may_end_with_time_itself(folder: Path) -> None:
    """The last day that a calendar has is one like any other."""
    assert folder.exists()
    done = invoke(app, ["ledger", "verify", "--from", "0001-01-01", "--to", "9999-12-31"])
    assert (done.exit_code, done.stdout) == (0, "the books agree: 1 entry, $0.001\n")


def test_books_that_cannot_be_read_are_not_books_that_differ(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that looks at the exit status tells the two apart."""
    assert folder.exists()
    monkeypatch.setenv("DATABASE_URL", "sqlite:////dev/null/nowhere")
    done = invoke(app, ["ledger", "verify"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


def test_a_posting_is_listed_and_taken_back(folder: Path) -> None:
    """The list names what can be taken back, the command says what it did, and the books agree afterwards."""
    assert invoke(app, ["ledger", "postings"]).stderr == "nothing was posted for these days\n"
    wrong = settle(
        "correction/abc/1",
        entry="adjust",
        boot_id="books",
        origin="correction",
        cost_nanousd=250_000_000,
        input_nanousd=250_000_000,
        input_tokens=0,
        output_tokens=0,
        baseline_nanousd=None,
        reason="corrects v1",
    )

    async def post() -> None:
        engine = make_engine(f"sqlite:///{folder}/weighbridge.sqlite")
        await LedgerStore(engine).insert([wrong])
        await engine.dispose()

    asyncio.run(post())
    (row,) = json.loads(invoke(app, ["ledger", "postings", "--json"]).stdout)
    assert (row["posting"], row["entries"], row["cost_usd"]) == ("correction/abc", 1, "0.25")
    done = invoke(app, ["ledger", "reverse", "correction/abc"])
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "correction/abc is taken back: 1 entry, -$0.250000",
        "to have it again: weighbridge ledger reverse correction/abc/reversal",
    ]
    lines = [line.split() for line in invoke(app, ["ledger", "postings"]).stdout.splitlines()]
    assert [line[0] for line in lines] == ["posting", "correction/abc", "correction/abc/reversal"]
    assert invoke(app, ["ledger", "verify"]).exit_code == 0
    refused = invoke(app, ["ledger", "reverse", "true-up/h100/2026-04-05/1"])
    assert refused.exit_code == 2
    assert "`weighbridge ledger postings` lists them" in refused.stderr
    (entry,) = json.loads(invoke(app, ["audit", "list", "--json"]).stdout)
    assert (entry["action"], entry["object_id"]) == ("posting.reversed", "correction/abc")


def test_a_month_is_archived_listed_and_restored(folder: Path) -> None:
    """Each refusal is a sentence; a signed month goes, `verify` tells it apart, and it comes back."""
    place = str(folder / "kept")
    archive = ["ledger", "archive", "--month", "2026-04"]
    assert invoke(app, ["ledger", "archive"]).stderr == "no month is archived\n"
    assert invoke(app, archive).exit_code == 2
    assert "like 2026-05" in invoke(app, ["ledger", "archive", "--month", "May", "--to", place]).stderr
    refused = invoke(app, [*archive, "--to", place])
    assert refused.exit_code == 2, refused.output
    assert "`default` has not signed off 2026-04" in refused.stderr
    damage(
        folder,
        "INSERT INTO closed_month (organisation_id, start_us, end_us, closed_us, closed_by, comment, figures, statement) "
        "VALUES ('default', 1775001600000000, 1777593600000000, 1, 'ada', '', '{}', '')",
    )
    assert "attempts of it are open" in invoke(app, [*archive, "--to", place]).stderr
    damage(folder, "DELETE FROM ledger_entry WHERE request_id = 'open'")
    done = invoke(app, [*archive, "--to", place])
    assert (done.exit_code, done.stdout.partition(" in 1 file")[0]) == (0, "2026-04: 2 entries")
    listed = json.loads(invoke(app, ["ledger", "archive", "--json"]).stdout)
    assert [(each["month"], each["state"], each["rows"]) for each in listed] == [("2026-04", "archived", 2)]
    found = invoke(app, ["ledger", "verify"])
    assert found.exit_code == 0
    assert "beside them in archived months: 2 entries" in found.stderr
    rebuilt = invoke(app, ["ledger", "rebuild", "--from", "2026-04-05", "--to", "2026-04-05"])
    assert "2026-04 are archived" in rebuilt.stderr
    assert "2 entries are in the ledger again" in invoke(app, ["ledger", "restore", "--month", "2026-04"]).stdout
    assert "2026-04 is not archived" in invoke(app, ["ledger", "restore", "--month", "2026-04"]).stderr
    assert invoke(app, ["ledger", "verify"]).stdout == "the books agree: 1 entry, $0.001\n"


def test_all_months_that_are_due_go_and_each_that_stays_says_why(folder: Path) -> None:
    """The command that goes by itself: one answer in JSON, exit status 1 while a month stays, and a rest for what was restored."""
    due = ["ledger", "archive", "--keep-months", "1", "--to", str(folder / "kept"), "--json"]
    assert invoke(app, [*due, "--month", "2026-04"]).exit_code == 2
    refused = invoke(app, due)
    assert refused.exit_code == 1
    assert json.loads(refused.stdout)["archived"] == []
    assert "has not signed off" in json.loads(refused.stdout)["left"]["2026-04"]
    damage(folder, "DELETE FROM ledger_entry WHERE request_id = 'open'")
    damage(
        folder,
        "INSERT INTO closed_month (organisation_id, start_us, end_us, closed_us, closed_by, comment, figures, statement) "
        "VALUES ('default', 1775001600000000, 1777593600000000, 1, 'ada', '', '{}', '')",
    )
    done = invoke(app, due)
    assert (done.exit_code, json.loads(done.stdout)) == (0, {"archived": ["2026-04"], "left": {}})
    assert "no month is due" in invoke(app, due[:-1]).stderr
    invoke(app, ["ledger", "restore", "--month", "2026-04"])
    assert "no month is due" in invoke(app, due[:-1]).stderr


@pytest.mark.parametrize("what", ["archive", "restore"])
def test_without_pyarrow_nothing_begins_and_what_installs_it_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """No month is half begun for it, and other commands do without."""
    place = str(folder / "kept")
    if what == "restore":
        damage(
            folder,
            "INSERT INTO archived_month (month_us, place, run, state, holder, held_until_us, changed_us) "
            "VALUES (1775001600000000, '/x', 'r', 'archived', '', 0, 0)",
        )
    for name in [each for each in sys.modules if each == "pyarrow" or each.startswith("pyarrow.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    told = invoke(app, ["ledger", what, "--month", "2026-04", "--to", place])
    assert told.exit_code == 2, told.output
    assert "archived months are Parquet files, which need pyarrow: pip install 'weighbridge[s3]'" in told.stderr
    assert not (folder / "kept").exists()
    assert invoke(app, ["ledger", "verify"]).exit_code == 0
