"""`weighbridge policy preview`: a table for people, JSON for programs, and nothing changed."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from api.policy.preview import preview_as_json
from gateway.cli import app
from gateway.commands.policy import _merged, _print
from proxy.plan.quality_tolerance import FLOORS
from tests.proxy.plan.test_quality_tolerance import BIG, SMALL, classifier, tolerances

CONFIG = """\
classifier: {enabled: false}
policy: {quality_floor: 0.93}
providers:
  models:
    - model_id: small
      provider: a
      max_context_tokens: 8000
      prices: {input: 0.10, output: 0.40}
      deployments: [{kind: scripted}]
"""


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("WEIGHBRIDGE_") or name == "DATABASE_URL":
            monkeypatch.delenv(name)
    (tmp_path / "c.yaml").write_text(CONFIG)
    monkeypatch.setenv("WEIGHBRIDGE_CONFIG", str(tmp_path / "c.yaml"))
    monkeypatch.setenv("WEIGHBRIDGE_DATA_DIR", str(tmp_path / "data"))


def preview(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["policy", "preview", *arguments])


def test_the_table_marks_what_holds_now(capsys: pytest.CaptureFixture[str]) -> None:
    """Tolerance, kept, cost, saving and shares; the minimum in effect is marked, and equal rows are one."""
    _print(preview_as_json(tolerances(classifier()).preview(FLOORS, None), None))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("compared with big, $")
    heading = lines[2].split()
    assert heading[0] == "minimum"
    assert heading[-2:] == ["middle", "small"] or heading[-3:] == ["big", "middle", "small"]
    (now,) = [line for line in lines if line.startswith("now")]
    assert "95.0 %" in now
    assert sum("±" in line for line in lines) == len(FLOORS)
    offers = preview_as_json(tolerances(classifier()).preview((0.001, 0.002, 1.0), None), None)["offers"]
    assert [[each["quality_floor"] for each in same] for same in _merged(offers)] == [[0.001, 0.002], [0.95], [1.0]]


def test_a_floor_out_of_reach_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody takes the best there is for what was asked."""
    _print(preview_as_json(tolerances(classifier(), BIG, SMALL).preview([1.0], frozenset({"small"})), None))
    assert "100.0 % not reached" in capsys.readouterr().out


def test_without_outcomes_the_preview_says_that_a_floor_changes_nothing() -> None:
    """The plain rule has no curve; the command still answers."""
    found = preview("--json")
    assert found.exit_code == 0, found.output
    shown = json.loads(found.stdout)
    assert (shown["basis"], shown["offers"]) == ("none", [])
    assert shown["current"] == {"quality_floor": 0.93, "willing_usd": None}
    assert "there is nothing to compare with" in preview().stdout


def test_a_teams_own_floor_is_the_current_one() -> None:
    """The preview starts from what the team chose."""
    runner = CliRunner()
    assert runner.invoke(app, ["teams", "create", "team_a"]).exit_code == 0
    assert runner.invoke(app, ["teams", "set", "team_a", "--quality-floor", "0.9"]).exit_code == 0
    shown = json.loads(preview("--team", "team_a", "--json").stdout)
    assert shown["current"]["quality_floor"] == 0.9
    assert shown["team_id"] == "team_a"


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--floor", "95"), 2, "above 0 and at most 1"),
        (("--team", "nobody"), 1, "there is no team 'nobody'"),
    ],
)
def test_slips_are_told_in_one_line(arguments: tuple[str, ...], status: int, message: str) -> None:
    """A wrong floor and an unknown team are the user's to mend."""
    found = preview(*arguments)
    assert (found.exit_code, found.stdout) == (status, "")
    assert message in found.stderr
    assert found.stderr.count("\n") == 1
