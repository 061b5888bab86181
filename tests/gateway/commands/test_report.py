"""`weighbridge report daily`: a table for people, files for finance, JSON for programs."""

import asyncio
import json
import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from accounts.store import AccountStore
from cost.budgets.budget import Budget
from cost.budgets.store import BudgetStore
from cost.ledger.store import LedgerStore
from gateway.cli import app
from gateway.database import make_engine
from tests.cost.reports.days import books
from tests.sqlite import newest_sqlite


@pytest.fixture(autouse=True)
def _books(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("WEIGHBRIDGE_") or name == "DATABASE_URL":
            monkeypatch.delenv(name)
    monkeypatch.setenv("WEIGHBRIDGE_DATA_DIR", str(tmp_path))

    async def book() -> None:
        engine = make_engine(newest_sqlite(tmp_path / "weighbridge.sqlite"))
        await AccountStore(engine).create_team("team_a", name="Team A")
        await AccountStore(engine).create_team("team_b", name="Team B")
        await LedgerStore(engine).insert(books())
        await engine.dispose()

    asyncio.run(book())


def report(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["report", "daily", "--date", "2026-11-20", *arguments])


def test_a_table_for_people() -> None:
    """Without a folder it is printed, aligned, with what is to know about it."""
    found = report("--team", "team_a")
    assert found.exit_code == 0, found.output
    lines = found.stdout.splitlines()
    assert lines[0] == "Team A (team_a), 2026-11-20 (UTC)"
    assert lines[1].split() == ["requests", "input", "tokens", "output", "tokens", "cost", "baseline", "saving"]
    assert lines[2].split() == ["total", "4", "3,200", "800", "$3.00", "+", "1", "unpriced", "$0.008000", "-$2.99"]
    assert "attempts without a price, which are not in the cost: 1" in lines
    assert "attempts booked at an estimate: 1 of 4" in lines


def test_a_budget_is_told_as_of_now(tmp_path: Path) -> None:
    """Whatever the day: its limit and what is spent are those of the moment."""

    async def limit() -> None:
        engine = make_engine(f"sqlite:///{tmp_path / 'weighbridge.sqlite'}")
        await BudgetStore(engine).put(
            Budget(
                budget_id="b",
                organisation_id="default",
                scope="team",
                scope_id="team_a",
                period="month",
                kind="hard",
                limit_nanousd=3_000_000,
            )
        )
        await engine.dispose()

    asyncio.run(limit())
    found = report("--team", "team_a").stdout
    assert re.search(r"^budget of team team_a, month, hard: \S+ of \$0\.003000 spent as of now$", found, re.MULTILINE)


def test_files_are_written_and_named(tmp_path: Path) -> None:
    """Each path is printed; --all writes the organisation's and each team's."""
    found = report("--all", "--out", str(tmp_path / "out"), "--format", "html")
    names = ["organisation.default.html", "team_a.html", "team_b.html"]
    assert found.stdout.split() == [str(tmp_path / "out" / "2026-11-20" / name) for name in names]
    assert sorted(path.name for path in (tmp_path / "out" / "2026-11-20").iterdir()) == names


def test_json_has_exact_amounts() -> None:
    """The organisation's figures, exact."""
    (told,) = json.loads(report("--json").stdout)
    assert (told["team_id"], told["cost_usd"]) == (None, "3.010000001")


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["--team", "team_a", "--all"], 2, "not both"),
        (["--format", "pdf"], 2, "--format is html, csv or html,csv"),
        (["--team", "nobody"], 1, "there is no team 'nobody'"),
    ],
)
def test_what_cannot_be_done_is_said(arguments: list[str], status: int, told: str) -> None:
    """A line on standard error, and a status."""
    found = report(*arguments)
    assert (found.exit_code, told in found.stderr) == (status, True)


def test_a_misspelt_organisation_is_told() -> None:
    """It would otherwise be a report of nothing."""
    for arguments in (("--organisation", "nowhere"), ("--organisation", "nowhere", "--team", "team_a")):
        found = report(*arguments)
        assert (found.exit_code, found.stdout) == (1, "")
        assert "organisation 'nowhere'" in found.stderr


def test_movers_are_told_as_sentences_and_as_the_api() -> None:
    """For people what changed, and in JSON the same; what cannot be asked says how to ask."""
    days = ["report", "movers", "--from", "2026-11-20", "--to", "2026-11-20", "--by", "model"]
    found = CliRunner().invoke(app, days)
    assert found.exit_code == 0, found.output
    head, *told, total = found.stdout.splitlines()
    assert head == "2026-11-20, beside 2026-11-19 (UTC)"
    body = json.loads(CliRunner().invoke(app, [*days, "--json"]).stdout)
    assert told == [each["sentence"] for each in body["data"]] != []
    assert (body["object"], total.startswith("total ")) == ("usage.movers", True)
    for wrong, words in (
        (["--by", "day"], "--by has each of team, key"),
        (["--by", "key,key"], "--by has each of team, key"),
        (["--to", "9999-12-31"], "--to is a day before 9999"),
        (["--from", "0001-01-01"], "cannot be compared"),
        (["--against", "year"], "--against is previous or week"),
        (["--to", "2030-01-01"], "both times together have at most"),
        (["--from", "2026-11-21"], "cannot be compared"),
    ):
        refused = CliRunner().invoke(app, [*days, *wrong])
        assert (refused.exit_code, words in refused.output) == (2, True), refused.output
