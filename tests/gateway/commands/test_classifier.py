"""`weighbridge classifier`: what it prints where, and that expected trouble is a message."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from classifier.training.commands import PACKAGED
from classifier.training.splits import stem_hashes, write_stems
from gateway.cli import app
from tests.classifier.outcomes import rows, write


def _run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["classifier", *map(str, arguments)])


def _fails(*arguments: str | Path, status: int = 1) -> str:
    result = _run(*arguments)
    assert result.exit_code == status, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("data"), *rows(360))


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packaged artifact, and that it was not trained on what is made up here."""
    folder = shutil.copytree(PACKAGED, tmp_path_factory.mktemp("packaged") / "artifact")
    write_stems(folder, stem_hashes(["something else altogether"]))
    return folder


def test_evaluate_prints_rows_and_nothing_else(tmp_path: Path, data: Path, artifact: Path) -> None:
    """With --json standard output is one list of rows; progress goes to standard error, the report to its folder."""
    out = tmp_path / "report"
    result = _run("evaluate", "--data", data, "--artifact", artifact, "--no-cross-validate", "--out", out, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert list(found[0]) == ["pair", "split", "n", "apgr", "lo", "hi", "cpt50", "cpt80", "ms_p50", "ms_p99"]
    assert {row["split"] for row in found} == {"shipped"}
    assert "360 prompts" in result.stderr
    assert (out / "report.html").is_file()


def test_evaluate_prints_one_table(tmp_path: Path, data: Path, artifact: Path) -> None:
    """Without --json people get the table with the numbers to beat."""
    result = _run("evaluate", "--data", data, "--artifact", artifact, "--no-cross-validate", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "baseline" in result.stdout.splitlines()[0]
    assert "RouteLLM, best row, MMLU" in result.stdout


def test_evaluate_without_data_tells_what_training_measured() -> None:
    """The shipped manifest's own numbers need no data."""
    result = _run("evaluate")
    assert result.exit_code == 0, result.output
    assert result.stdout.strip()


def test_bad_data_is_a_message_with_rows(tmp_path: Path) -> None:
    """What is wrong with the data is told by row, without a traceback."""
    prompts, outcomes = rows(12)
    outcomes[4]["score"] = 7.0
    told = _fails("evaluate", "--data", write(tmp_path, prompts, outcomes), "--no-cross-validate")
    assert "outside [0, 1]" in told
    assert "row 5: zeroeval_crux / id0" in told
    assert "there is no such file" in _fails("train", "--data", tmp_path / "nowhere", "--out", tmp_path / "out")


def test_calibrate_shows_before_and_after_and_writes_on_request(tmp_path: Path, artifact: Path) -> None:
    """Brier and ECE stand side by side for each target; nothing is written until it is accepted."""
    prompts, outcomes = rows(720)
    data = write(tmp_path / "data", prompts, outcomes)
    shown = _run("calibrate", "--data", data, "--artifact", artifact)
    assert shown.exit_code == 0, shown.output
    assert "Brier before" in shown.stdout.splitlines()[0]
    out = tmp_path / "mended"
    result = _run("calibrate", "--data", data, "--artifact", artifact, "--out", out, "--json")
    assert {"model", "brier_before", "brier_after", "better"} <= json.loads(result.stdout)[0].keys()
    assert not out.exists()
    accepted = _run("calibrate", "--data", data, "--artifact", artifact, "--out", out, "--accept")
    assert "mended: " in accepted.stderr
    assert _run("explain", "hi", "--artifact", out, "--json").exit_code == 0
    assert (out / "manifest.json").is_file()


def test_unknown_splits_are_refused(data: Path) -> None:
    """A split that does not exist is told beside those that do."""
    told = _fails("evaluate", "--data", data, "--split", "by-moon", status=2)
    assert "there is no by-moon; known: 10-fold, leave-category-out" in told


def test_a_place_that_cannot_be_written_is_told_at_once(tmp_path: Path, data: Path) -> None:
    """Nobody waits for minutes to hear that the numbers have nowhere to go."""
    taken = tmp_path / "taken"
    taken.write_text("")
    assert "taken" in _fails("evaluate", "--data", data, "--out", taken)
    told = _fails("train", "--data", data, "--out", taken)
    assert "taken" in told
    assert "fold" not in told


def test_accepting_needs_a_place() -> None:
    """A mended artifact is written only where it was asked for."""
    assert "--out" in _fails("calibrate", "--data", ".", "--accept", status=2)


def test_explain_shows_what_a_prompt_weighs() -> None:
    """People see complexity and length; programs get the same as JSON, with the contributions."""
    shown = _run("explain", "Prove that the halting problem is undecidable.")
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.startswith("read as the question, in the user's message: ")
    assert "\ncomplexity 0." in shown.stdout
    told = json.loads(_run("explain", "--json", "hi").stdout)
    assert 0 <= told["complexity"] <= 1
    assert told["fallback_reason"] is None
    effects = [abs(each["effect"]) for each in told["contributions"]]
    assert effects == sorted(effects, reverse=True)


def test_explain_reads_standard_input() -> None:
    """`-` takes the prompt from standard input, so that it need not stand in a shell's history."""
    result = CliRunner().invoke(app, ["classifier", "explain", "-", "--json"], input="What is 2+2?")
    assert (
        json.loads(result.stdout)["complexity"]
        == json.loads(_run("explain", "What is 2+2?", "--json").stdout)["complexity"]
    )


def test_a_missing_library_says_what_to_install(tmp_path: Path) -> None:
    """Where only serving is installed, training's commands say what they need; `explain` works there."""
    blocked = tmp_path / "pyarrow"
    blocked.mkdir()
    (blocked / "__init__.py").write_text("raise ModuleNotFoundError('No module named pyarrow', name='pyarrow')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def ran(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gateway.cli", "classifier", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)

    refused = ran("evaluate", "--data", ".")
    assert refused.returncode == 1
    assert "this needs the train extra (pyarrow is not installed): pip install 'weighbridge[train]'" in refused.stderr
    assert ran("explain", "hello").returncode == 0
