"""`weighbridge focus export`: a file that is whole, or none."""

import asyncio
import csv
import os
from decimal import Decimal
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from accounts.store import AccountStore
from cost.prices import usd
from gateway.cli import app
from gateway.database import make_engine
from tests.cost.reports import sample_ledger as books
from tests.sqlite import newest_sqlite

DAYS = ("--from", "2026-04-01", "--to", "2026-05-31")


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("WEIGHBRIDGE_") or name == "DATABASE_URL":
            monkeypatch.delenv(name)
    monkeypatch.setenv("WEIGHBRIDGE_DATA_DIR", str(tmp_path))


def export(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["focus", "export", *arguments])


def test_the_file_adds_up_to_the_books(tmp_path: Path) -> None:
    """Everything, or one team's, to the nano-dollar; `-` prints the same."""

    async def write() -> int:
        engine = make_engine(newest_sqlite(tmp_path / "weighbridge.sqlite"))
        await AccountStore(engine).create_team("a")
        entries = await books.write(engine, 40)
        await engine.dispose()
        return sum(each.cost_nanousd or 0 for each in entries)

    booked = asyncio.run(write())
    out = tmp_path / "focus.csv"
    done = export(*DAYS, "--out", str(out))
    assert (done.exit_code, done.stdout) == (0, f"wrote {out}\n")
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file, strict=True))
    assert sum(Decimal(row["BilledCost"]) for row in rows) == usd(booked)
    assert export(*DAYS, "--out", "-").stdout.splitlines() == out.read_text().splitlines()
    assert export(*DAYS, "--out", str(out), "--team", "a", "--by-hour", "--to", "2026-05-01").exit_code == 0
    with out.open(newline="") as file:
        assert {row["SubAccountId"] for row in csv.DictReader(file)} == {"a"}
    assert not list(tmp_path.glob(".focus*"))


def test_a_wrong_range_is_told_and_nothing_written(tmp_path: Path) -> None:
    """The exit status is that of a wrong command line."""
    done = export("--from", "2026-04-02", "--to", "2026-04-01", "--out", str(tmp_path / "x.csv"))
    assert done.exit_code == 2
    assert done.stderr.startswith("weighbridge: --to: ")
    assert not (tmp_path / "x.csv").exists()


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    """A line for people, and no half of a file."""
    done = export(*DAYS, "--out", str(tmp_path / "nowhere" / "x.csv"))
    assert done.exit_code == 1
    assert "nowhere" in done.stderr


def test_a_misspelt_name_is_told(tmp_path: Path) -> None:
    """It would otherwise be a file of nothing, which looks like a month without cost."""
    for option, said in (("--team", "no team 'nobody'"), ("--organisation", "no organisation 'nobody'")):
        done = export(*DAYS, "--out", str(tmp_path / "x.csv"), option, "nobody")
        assert (done.exit_code, done.stdout) == (1, "")
        assert said in done.stderr
        assert not (tmp_path / "x.csv").exists()
