"""`weighbridge models`: versions and rollouts from the command line, each step in the audit log."""

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
    - model_id: llama
      capability: 0.5
      max_context_tokens: 8000
      provider: own
      prices: {input: 1, output: 2, version: v1}
      deployments: []
    - model_id: sql
      capability: 0.5
      max_context_tokens: 8000
      provider: own
      prices: {input: 1, output: 2, version: v1}
      deployments: []
selfhosted:
  pools:
    - name: own
      targets: [llama]
      replicas: [{name: one, url: "http://127.0.0.1:9"}]
      adapters: [{name: sql-lora, target: sql, path: /loras/sql}]
"""


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("WEIGHBRIDGE_") or name == "DATABASE_URL":
            monkeypatch.delenv(name)
    (tmp_path / "gateway.yaml").write_text(CONFIG)
    monkeypatch.setenv("WEIGHBRIDGE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("WEIGHBRIDGE_CONFIG", str(tmp_path / "gateway.yaml"))
    newest_sqlite(tmp_path / "data" / "weighbridge.sqlite")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["models", *arguments])


def ok(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def gets() -> dict[str, object]:
    told = json.loads(ok("list", "llama", "--json"))
    return {"versions": [each["version"] for each in told["versions"]], **(told["rollouts"] or [{}])[0]}


def test_from_first_to_last() -> None:
    """Versions are added, one is tried, grown, rolled back and promoted after all; the audit log has each step."""
    ok("add", "llama", "v1", "--weights", "hf://meta/llama", "--precision", "bf16", "--layout", "tp4")
    ok("add", "llama", "v2", "--weights", "/models/llama-fp8", "--argument=--max-model-len=8192", "--note", "fp8")
    ok("add", "sql", "1", "--weights", "/loras/sql", "--base", "llama")
    assert [row.split()[:3] for row in ok("list").splitlines()[1:]] == [
        ["llama", "v2", "whatever"],
        ["llama", "v1", "whatever"],
        ["sql", "1", "as"],
    ]
    told = ok("canary", "llama", "v2", "--percent", "5", "--reason", "half the memory")
    assert told == "llama: 5 % of conversations go to v2 where a replica runs it; every process follows within 2 s\n"
    ok("canary", "llama", "v2", "--percent", "20", "--no-rollback-on-errors", "--rollback-on-ttft", "0")
    found = gets()
    assert (found["state"], found["candidate"], found["percent"]) == ("canary", "v2", 20.0)
    assert found["rule"] == {
        "errors": False,
        "ttft_worse": None,
        "promote_after": None,
        "tpot_worse": 0.5,
        "quality": True,
    }
    assert ok("rollback", "llama").startswith("llama: no conversations go to v2 any more")
    assert "nothing, rolled back" in ok("list")
    assert json.loads(ok("promote", "llama", "v2", "--json"))["stable"] == "v2"
    audit = CliRunner().invoke(app, ["audit", "list", "--json"]).stdout
    actions = [each["action"] for each in json.loads(audit)]
    assert actions == [
        "rollout.promoted",
        "rollout.rolled_back",
        "rollout.canary",
        "rollout.canary",
        *["model_version.added"] * 3,
    ]
    assert "half the memory" in audit


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["add", "lama", "v2", "--weights", "/x"], "no pool serves lama; models of our own: llama"),
        (["add", "llama", "v1", "--weights", "/x", "--digest", "abc"], "a digest is"),
        (
            ["add", "llama", "v1", "--weights", "nonsense"],
            "a repository (owner/name), an address (s3://bucket/llama) or",
        ),
        (["add", "sql", "2", "--weights", "/x", "--base", "gpt"], "sql is an adapter of llama, not of gpt"),
        (["canary", "llama", "v9", "--percent", "5"], "llama has no version v9; `weighbridge models add`"),
        (["canary", "llama", "v9", "--percent", "100"], "`promote` gives a version all"),
        (["canary", "sql", "1", "--percent", "5"], "has no replicas of its own"),
        (["promote", "llama"], "say which one to promote"),
        (["rollback", "llama"], "no version of llama is on trial"),
    ],
)
def test_refusals_say_what_to_do(arguments: list[str], told: str) -> None:
    """In one line, and nothing is changed."""
    result = run(*arguments)
    assert (result.exit_code, told in result.stderr) == (1, True), result.output
    assert gets() == {"versions": []}
