"""`weighbridge classifier score`: a row for each line, and a picture for people."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gateway.cli import app

EXAMPLE = Path(__file__).parents[3] / "config" / "gateway.yaml"
TIMER = {
    "messages": [{"role": "user", "content": "set a timer"}],
    "tools": [{"type": "function", "function": {"name": "t"}}],
}
PROOF = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Prove the Riemann hypothesis."}]}


@pytest.fixture(autouse=True)
def _no_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEIGHBRIDGE_CONFIG", raising=False)


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return lines(tmp_path, json.dumps(TIMER), "", json.dumps(PROOF))


def lines(folder: Path, *content: str) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(content) + "\n")
    return path


def score(*arguments: str | Path, given: str | None = None) -> Result:
    return CliRunner().invoke(app, ["classifier", "score", *map(str, arguments)], input=given)


def rows_of(result: Result) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def test_rows_come_in_the_order_of_the_lines(good: Path) -> None:
    """A list with `complexity`; blank lines are passed over and keep their number."""
    result = score(good, "--json")
    assert result.exit_code == 0
    easy, hard = rows_of(result)
    assert (easy["line"], hard["line"]) == (1, 3)
    assert easy["complexity"] < 0.3
    assert hard["complexity"] > 0.7
    assert easy["choice"] is None
    assert easy["outlooks"]


def test_standard_input_is_read(good: Path) -> None:
    """`-` is standard input, and scores are the same."""
    assert rows_of(score("-", "--json", given=good.read_text())) == rows_of(score(good, "--json"))


def test_a_configuration_adds_its_targets_and_the_choice(good: Path) -> None:
    """Outlooks are those of the configured targets, and the choice is that of `weighbridge route`."""
    found = rows_of(score(good, "--config", EXAMPLE, "--json"))
    assert all(row["choice"] and row["why"] for row in found)
    assert "gpt-4o" in found[0]["outlooks"]


def test_a_table_has_a_row_for_each_line(good: Path) -> None:
    """CSV has a column for each target's outlook."""
    found = list(csv.DictReader(io.StringIO(score(good, "--csv").stdout)))
    assert [row["line"] for row in found] == ["1", "3"]
    assert 0 < float(found[0]["adequate gpt-4o-2024-05-13"]) < 1


def test_people_get_a_histogram(good: Path) -> None:
    """Ten bars with the tiers' names, and the kinds of task."""
    told = score(good, "--config", EXAMPLE).stdout
    assert "2 prompts, mean complexity" in told
    assert "look-up or pleasantry" in told
    assert "kind of task" in told
    assert "would go to" in told


@pytest.mark.parametrize("line", ["nonsense", "[1]", '{"messages": 3}', '{"prompt": "hi"}', '{"messages": []}'])
def test_a_bad_line_is_named_and_the_others_are_scored(tmp_path: Path, line: str) -> None:
    """Nothing is lost, nothing is silent: the row has the error, and the status is 1."""
    result = score(lines(tmp_path, json.dumps(PROOF), line), "--json")
    assert result.exit_code == 1
    assert "line 2: " in result.stderr
    good, bad = rows_of(result)
    assert good["complexity"] > 0.7
    assert bad["complexity"] is None
    assert bad["error"]


def test_wrong_use_is_told(tmp_path: Path, good: Path) -> None:
    """A file that is not there, or two forms at once."""
    assert "cannot be read" in score(tmp_path / "none.jsonl").stderr
    assert "not both" in score(good, "--json", "--csv").stderr
