"""`weighbridge guard`: a dry run, and the rules of organisations and teams."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli import app
from tests.sqlite import newest_sqlite

CONFIG = """
providers:
  models:
    - {model_id: m, provider: p, deployments: [{kind: scripted, upstream_model: ok}]}
guard:
  rules:
    - {name: cards, kind: pii, entities: [card], input: block}
    - {name: mails, kind: pii, entities: [email], input: mask}
"""
CARD = "4111 1111 1111 1111"


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in list(os.environ):
        if name.startswith("WEIGHBRIDGE_") or name == "DATABASE_URL":
            monkeypatch.delenv(name)
    monkeypatch.setenv("WEIGHBRIDGE_DATA_DIR", str(tmp_path / "data"))
    newest_sqlite(tmp_path / "data" / "weighbridge.sqlite")
    path = tmp_path / "gateway.yaml"
    path.write_text(CONFIG)
    monkeypatch.setenv("WEIGHBRIDGE_CONFIG", str(path))
    return path


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(app, ["guard", *arguments], input=stdin)


def ok(*arguments: str, stdin: str = "") -> str:
    result = run(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_dry_run_tells_what_is_found_by_its_ends(tmp_path: Path) -> None:
    """From an argument, a file or standard input; no value is printed whole."""
    text = f"card {CARD}, mail jane.doe@example.com"
    (tmp_path / "text.txt").write_text(text)
    told = ok("check", text)
    assert (
        told
        == ok("check", "--file", str(tmp_path / "text.txt"))
        == ok("check", stdin=text)
        == ok("check", "-", stdin=text)
    )
    heading, *rows = told.splitlines()
    assert heading.split() == ["found", "then", "in", "where", "value"]
    assert [row.split()[:3] for row in rows] == [["card", "block", "user"], ["email", "mask", "user"]]
    assert "41…11 (19 characters)" in rows[0]
    assert CARD not in told
    assert "jane" not in told
    assert "nothing is found" in run("check", "Good morning!").stderr


def test_a_request_is_walked_as_its_wire() -> None:
    """With the place of each text, and what nobody looks at."""
    body = {
        "input": [
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": CARD},
                    {"type": "input_image", "image_url": "data:image/png;base64,AA"},
                ],
            },
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": json.dumps({"to": "a@example.com"})},
            {"type": "function_call_output", "call_id": "c", "output": CARD},
        ]
    }
    found = json.loads(ok("check", "--wire", "responses", "--json", stdin=json.dumps(body)))
    assert [(each["kind"], each["action"], each["role"], each["place"]) for each in found] == [
        ("card", "mask", "user", "input.0.content.0.text"),
        ("email", "mask", "assistant", "input.1.arguments.to"),
        ("card", "block", "tool", "input.2.output"),
        ("image", "unseen", "-", "-"),
    ]
    assert "no JSON object" in run("check", "--wire", "chat", "plain text").stderr


def test_rules_are_set_shown_and_taken_away(tmp_path: Path) -> None:
    """An organisation's and a team's; a dry run for a team has all that hold for it."""
    CliRunner().invoke(app, ["teams", "create", "team_a"])
    file = tmp_path / "rules.yaml"
    file.write_text("rules:\n  - {name: project, kind: words, words: [bluebird], input: own}\n")
    assert "set: 1; the rules hold" in ok("set", str(file), "--team", "team_a")
    assert ok("show", "--team", "team_a").splitlines()[1].split() == ["project", "words", "own", "-", "-"]
    assert "no rules are added" in run("show").stderr
    assert ok("check", "bluebird", "--team", "team_a").splitlines()[1].split()[:2] == ["project", "own"]
    assert "nothing is found" in run("check", "bluebird").stderr
    ok("remove", "--team", "team_a")
    assert "no rules are added" in run("show", "--team", "team_a").stderr
    audited = CliRunner().invoke(app, ["audit", "list", "--json"]).stdout
    assert "guard.set" in audited
    assert "bluebird" not in audited


def test_what_cannot_be_is_refused(tmp_path: Path, config: Path) -> None:
    """(51) Rules, files, teams; and the configuration itself, by `config check`."""
    file = tmp_path / "rules.yaml"
    for written, told in (
        ("rules: [{name: x, kind: presidio, input: mask}]", "here it is `pii`"),
        ("{", "cannot be read"),
        ("a: 1", "no list `rules`"),
    ):
        file.write_text(written)
        refused = run("set", str(file))
        assert refused.exit_code != 0
        assert told in refused.stderr
    assert run("show", "--team", "nobody").exit_code != 0
    config.write_text(CONFIG.replace("entities: [card]", "entities: [CREDIT_CARD]"))
    checked = CliRunner().invoke(app, ["config", "check"])
    assert checked.exit_code != 0
    assert "`CREDIT_CARD` is another gateway's word; here it is `card`" in checked.output
    config.write_text(CONFIG.split("guard:", maxsplit=1)[0])
    assert "no rules" in run("check", "text").stderr


def test_kinds_are_listed() -> None:
    assert "card" in ok("kinds")
