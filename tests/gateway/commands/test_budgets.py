"""`weighbridge budgets`: set, list, show and remove, for people and for programs."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli import app
from tests.sqlite import newest_sqlite


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("WEIGHBRIDGE_") or name == "DATABASE_URL":
            monkeypatch.delenv(name)
    monkeypatch.setenv("WEIGHBRIDGE_DATA_DIR", str(tmp_path / "data"))
    newest_sqlite(tmp_path / "data" / "weighbridge.sqlite")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def ok(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_budget_is_raised_and_topped_up() -> None:
    """A raise has an amount and an end, or ends; a prepaid budget is paid into, once for each id, and lists it."""
    ok("teams", "create", "team_payments")
    ok("budgets", "set", "team", "team_payments", "--limit", "500", "--period", "year", "--hard")
    (found,) = json.loads(ok("budgets", "list", "--json"))
    name = found["id"]
    assert "$800.00 until 2090-01-31" in ok("budgets", "raise", name, "--to", "800", "--until", "2090-01-31")
    found = json.loads(ok("budgets", "show", name, "--json"))
    assert (found["limit_usd"], found["raised_limit_usd"], found["left_usd"]) == ("500", "800", "800")
    for wrong in (["--to", "1"], ["--until", "2090-01-31"], [], ["--end", "--to", "1"]):
        assert run("budgets", "raise", name, *wrong).exit_code == 2
    assert "in the future" in run("budgets", "raise", name, "--to", "1", "--until", "2020-01-01").output
    assert "has ended" in ok("budgets", "raise", name, "--end")
    assert json.loads(ok("budgets", "show", name, "--json"))["raised_until"] is None
    assert "only a prepaid one" in run("budgets", "topup", name, "5").output
    made = ok("budgets", "set", "team", "team_payments", "--limit", "20", "--period", "prepaid", "--hard")
    assert "hard, $20.00 paid in for team" in made
    name = made.partition(":")[0]
    assert "paid in as invoice-7; $25.00 left" in ok("budgets", "topup", name, "5", "--id", "invoice-7", "--note", "Q4")
    assert "was paid in before" in ok("budgets", "topup", name, "5", "--id", "invoice-7")
    assert "$24.00 left" in ok("budgets", "topup", name, "--", "-1")
    assert [each["amount_usd"] for each in json.loads(ok("budgets", "topups", name, "--json"))] == ["20", "5", "-1"]
    assert "never" in ok("budgets", "list")
    log = ok("audit", "list", "--action", "budget")
    assert all(action in log for action in ("budget.raised", "budget.topped_up"))


def test_an_end_users_standing_is_shown() -> None:
    """By the default for all and the own budget, with the limits that are set; all of them together are no one."""
    ok("teams", "create", "team_payments")
    for of in ("team_payments/*", "team_payments/ada"):
        ok("budgets", "set", "end_user", of, "--limit", "5" if of.endswith("*") else "9", "--period", "day", "--hard")
    ok("limits", "set", "end_user", "team_payments/*", "--concurrency", "2")
    told = ok("budgets", "end-user", "team_payments/bob")
    assert "team_payments/bob: $0.00 in this UTC month" in told
    assert "limits of team_payments/*: concurrency 2" in told
    for name, left, own in (("ada", "9", True), ("bob", "5", False)):
        found = json.loads(ok("budgets", "end-user", f"team_payments/{name}", "--json"))
        assert [(each["left_usd"], each["own"]) for each in found["budgets"]] == [(left, own)]
    assert run("budgets", "end-user", "team_payments/*").exit_code == 2
    assert "no team" in run("budgets", "end-user", "nowhere/bob").stderr


def test_from_first_to_last() -> None:
    """A budget is set, listed, shown, changed under the same id, and removed."""
    ok("teams", "create", "team_payments")
    usual = ("--period", "month", "--hard", "--on-exhausted", "downgrade", "--webhook", "finance")
    made = ok("budgets", "set", "team", "team_payments", "--limit", "500", *usual)
    budget_id, _, rest = made.partition(": ")
    assert rest == "hard, $500.00 a month for team `team_payments`, then the cheapest capable model\n"
    ok("budgets", "set", "tag", "search", "--period", "day", "--limit", "0.0001")
    heading, *rows = ok("budgets", "list").splitlines()
    assert heading.split() == [
        *(
            "budget",
            "scope",
            "of",
            "period",
            "kind",
            "limit",
            "spent",
            "share",
            "reserved",
            "resets",
            "at",
            "state",
            "forecast",
            "runs",
            "out",
            "then",
        )
    ]
    assert rows[1].split()[5:10] == ["$500.00", "$0.00", "0.0", "%", "$0.00"]
    assert rows[1].split()[11:15] == ["open", "-", "not", "known"]
    assert "$0.0001" in rows[0]
    changed = json.loads(ok("budgets", "set", "team", "team_payments", "--limit", "600.5", *usual, "--json"))
    assert (changed["id"], changed["limit_usd"], changed["webhook"]) == (budget_id, "600.5", "finance")
    assert json.loads(ok("budgets", "show", budget_id, "--json")) == changed
    assert "limit usd     600.5" in ok("budgets", "show", budget_id)
    assert len(json.loads(ok("budgets", "list", "--organisation", "default", "--json"))) == 2
    assert ok("budgets", "remove", budget_id).startswith(f"removed {budget_id}: hard")
    assert run("budgets", "show", budget_id).exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("team", "team_nowhere", "--limit", "1"), "no team"),
        (("key", "key_nowhere", "--limit", "1"), "no key"),
        (("organisation", "default", "--limit", "lots"), "is no number: write it like 20.50"),
        (("organisation", "default", "--limit", "20,50"), "write 20.50"),
        (("organisation", "default", "--limit", "-1"), "at least 0"),
        (("tag", "x" * 65, "--limit", "1"), "1 to 64 of letters"),
        (("tag", "a b", "--limit", "1"), "1 to 64 of letters"),
        (("tag", "search", "--limit", "1", "--organisation", "nowhere"), "no organisation"),
        (("organisation", "nowhere", "--limit", "1"), "no organisation"),
        (("organisation", "default", "--limit", "1", "--webhook", "Finance!"), "a webhook's name"),
    ],
)
def test_what_cannot_be_set_is_told(arguments: tuple[str, ...], said: str) -> None:
    """One line on standard error, and nothing is kept."""
    result = run("budgets", "set", *arguments, "--period", "day")
    assert (result.exit_code, result.stdout) == (1, "")
    assert said in result.stderr
    assert "no budgets yet" in run("budgets", "list").stderr
