"""`weighbridge audit`: what commands write into the log, and how it is listed, exported and verified."""

import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gateway.cli import app
from tests.sqlite import newest_sqlite

CONFIG = """
accounts: {operator: platform}
providers:
  models:
    - model_id: small
      capability: 0.5
      max_context_tokens: 8000
      provider: own
      prices: {input: 1, output: 2, version: v1}
      deployments: []
selfhosted:
  pools:
    - name: own
      engine: vllm
      targets: [small]
      replicas: [{name: one, url: "http://10.0.0.1:8000"}]
"""


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("WEIGHBRIDGE_") or name == "DATABASE_URL":
            monkeypatch.delenv(name)
    monkeypatch.setenv("WEIGHBRIDGE_DATA_DIR", str(tmp_path / "data"))
    newest_sqlite(tmp_path / "data" / "weighbridge.sqlite")
    monkeypatch.setenv("WEIGHBRIDGE_PEPPER", "p" * 32)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def ok(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def listed(*arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(ok("audit", "list", "--json", *arguments))
    return found[::-1]


def test_every_command_that_changes_something_is_in_the_log() -> None:
    """With the user of the operating system, the object, its team and organisation, and what was before and after."""
    ok("organisations", "create", "acme", "--name", "Acme")
    ok("teams", "create", "team_a", "--organisation", "acme", "--models", "small")
    ok("teams", "set", "team_a", "--weight", "2")
    ok("teams", "set", "team_a", "--weight", "2")
    ok("teams", "set", "team_a", "--quality-floor", "0.98", "--reason", "too many complaints")
    key = json.loads(ok("keys", "create", "team_a", "--name", "ci", "--json"))
    ok("limits", "set", "team", "team_a", "--requests-per-minute", "60")
    ok("limits", "set", "team", "team_a", "--requests-per-minute", "90")
    ok("limits", "remove", "team", "team_a")
    budget = ok("budgets", "set", "team", "team_a", "--period", "month", "--limit", "5").partition(":")[0]
    ok("budgets", "remove", budget)
    ok("keys", "revoke", key["key_id"])
    found = listed()
    assert [(each["action"], each["object_id"]) for each in found] == [
        ("organisation.created", "acme"),
        ("team.set", "team_a"),
        ("team.set", "team_a"),
        ("team.policy_changed", "team_a"),
        ("key.created", key["key_id"]),
        ("limit.set", "team team_a"),
        ("limit.set", "team team_a"),
        ("limit.removed", "team team_a"),
        ("budget.set", budget),
        ("budget.removed", budget),
        ("key.revoked", key["key_id"]),
    ]
    assert {each["organisation_id"] for each in found} == {"acme"}
    assert {each["team_id"] for each in found[1:]} == {"team_a"}
    assert {each["actor"]["kind"] for each in found} == {"console"}
    assert [each["reason"] for each in found if each["action"] == "team.policy_changed"] == ["too many complaints"]
    assert all(each["actor"]["id"] and each["actor"]["address"] for each in found)
    assert (found[2]["before"]["weight"], found[2]["after"]["weight"]) == (1, 2)
    assert found[6]["before"] == {"requests_per_minute": 60}
    assert found[7]["after"] is None
    assert found[10]["before"]["revoked_at"] is None
    assert found[10]["after"]["revoked_at"]
    assert key["key"] not in ok("audit", "export")


def test_what_holds_for_everybody_stands_in_the_operators_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices and drains are nobody's but theirs who run the gateway."""
    (tmp_path / "weighbridge.yaml").write_text(CONFIG)
    monkeypatch.setenv("WEIGHBRIDGE_CONFIG", str(tmp_path / "weighbridge.yaml"))
    version = json.loads(ok("prices", "set", "small", "--input", "3", "--output", "4", "--note", "why", "--json"))[
        "version"
    ]
    ok("prices", "set", "small", "--input", "3", "--output", "4", "--note", "why")
    ok("prices", "withdraw", "small", version)
    ok("selfhosted", "drain", "own", "one")
    ok("selfhosted", "drain", "own", "one")
    ok("selfhosted", "undrain", "own", "one")
    ok("limits", "set", "model", "small", "--concurrency", "5")
    found = listed("--organisation", "platform")
    assert [(each["action"], each["object_id"]) for each in found] == [
        ("price.set", f"small {version}"),
        ("price.withdrawn", f"small {version}"),
        ("replica.drained", "own/one"),
        ("replica.undrained", "own/one"),
        ("limit.set", "model small"),
    ]
    assert found[0]["after"]["usd_per_million_tokens"]["input"] == "3"
    assert found[0]["reason"] == "why"
    assert len(listed()) == len(found)


def test_what_was_refused_is_not_in_the_log() -> None:
    """Nothing changed, so nothing is told."""
    ok("teams", "create", "team_a")
    assert run("teams", "create", "team_a").exit_code == 1
    assert run("keys", "create", "team_z").exit_code == 1
    assert run("keys", "revoke", "key_z").exit_code == 1
    assert run("limits", "remove", "team", "team_z").exit_code == 1
    assert [each["action"] for each in listed()] == ["team.set"]


def test_people_read_a_table_and_filters_narrow_it() -> None:
    """By actor, action, object, team and day; a filter that cannot be meant says how it looks."""
    ok("teams", "create", "team_a")
    ok("keys", "create", "team_a")
    heading, row = ok("audit", "list", "--action", "team").splitlines()
    assert heading.split() == ["number", "at", "organisation", "who", "what", "of", "team", "changed", "why"]
    assert "team.set" in row
    assert len(listed("--object", "key")) == 1
    assert listed("--team", "team_b") == []
    assert len(listed("--from", "2020-01-01", "--limit", "1")) == 1
    assert [each["number"] for each in listed("--before", "2")] == [1]
    assert run("audit", "list", "--to", "2020-01-01").output == "no such entries\n"
    refused = run("audit", "list", "--from", "yesterday")
    assert (refused.exit_code, "UTC day" in refused.output) == (2, True)


def test_a_sound_log_says_what_to_note(tmp_path: Path) -> None:
    """Its last hash, which the next verification takes; a longer log still has it."""
    ok("teams", "create", "team_a")
    said = ok("audit", "verify")
    assert said.startswith("1 entry, all intact")
    head = said.split()[-1]
    ok("teams", "create", "team_b")
    assert json.loads(ok("audit", "verify", "--head", head, "--json"))["entries"] == 2
    ok("audit", "export", "--output", str(tmp_path / "log.ndjson"))
    ok("audit", "verify", "--file", str(tmp_path / "log.ndjson"), "--head", head)
    assert run("audit", "export", "--output", str(tmp_path / "log.ndjson")).exit_code != 0
    assert run("audit", "verify", "--head", "1:x").exit_code == 2
    assert run("audit", "verify", "--part").exit_code == 2


def test_a_changed_log_ends_with_status_1_and_says_where(tmp_path: Path) -> None:
    """In the database and in a file; that it could not be looked at is another status."""
    for team in ("team_a", "team_b", "team_c"):
        ok("teams", "create", team)
    ok("audit", "export", "--output", str(tmp_path / "log.ndjson"))
    lines = (tmp_path / "log.ndjson").read_text().splitlines(keepends=True)
    (tmp_path / "part.ndjson").write_text(lines[0] + lines[2])
    refused = run("audit", "verify", "--file", str(tmp_path / "part.ndjson"))
    assert (refused.exit_code, "entry 2 is missing" in refused.output) == (1, True)
    ok("audit", "verify", "--file", str(tmp_path / "part.ndjson"), "--part")
    with sqlite3.connect(next((tmp_path / "data").glob("*.sqlite*"))) as database:
        database.execute("UPDATE audit_entry SET actor_name = 'somebody else' WHERE number = 2")
    refused = run("audit", "verify")
    assert refused.exit_code == 1
    assert "entry 2: it was changed" in refused.output
    assert not json.loads(run("audit", "verify", "--json").stdout)["sound"]
    assert run("audit", "verify", "--file", str(tmp_path / "nowhere")).exit_code == 2


def test_a_spreadsheet_gets_no_formula() -> None:
    """What somebody called a team is text in the CSV too."""
    ok("teams", "create", "team_a", "--name", "=HYPERLINK(1)")
    heading, row = ok("audit", "export", "--format", "csv").splitlines()
    assert heading.startswith("number,at,organisation_id,team_id,actor_kind")
    assert ',"{""' in row
    assert "\n=" not in row
