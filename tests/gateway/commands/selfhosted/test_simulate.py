"""`weighbridge selfhosted simulate`: its table, its file, its picture, and what it refuses."""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli import app

DATA = Path(__file__).parents[3] / "planner" / "simulate" / "data"
CHAT, CODE = str(DATA / "conversation.jsonl"), str(DATA / "coding.csv")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["selfhosted", "simulate", *arguments])


def test_side_by_side(tmp_path: Path) -> None:
    """Several policies and scalings in one run, a line each, and everything as data beside it."""
    file = tmp_path / "out.json"
    result = run(
        *("--trace", CHAT, "--replicas", "2", "--policy", "prefix", "--policy", "oracle", "--scaling", "fixed"),
        *("--scaling", "keda", "--json", str(file), "--target-rps", "100000", "--overflow", "gpt-4o"),
    )
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert "5 requests, 6,912 tokens in and 92 out" in lines[0]
    assert lines[2].split()[:4] == ["policy", "scaling", "replicas", "hit"]
    assert [line.split()[:2] for line in lines[3:7]] == [
        ["prefix", "fixed"], ["prefix", "keda"], ["oracle", "fixed"], ["oracle", "keda"]
    ]  # fmt: skip
    assert "on paper, prefix, fixed: 100,000 requests/s" in result.stdout
    told = json.loads(file.read_bytes())
    assert [each["served"] for each in told["runs"]] == [5, 5, 5, 5]
    assert isinstance(told["runs"][0]["gpu_usd"], str)
    assert told["machine"]["engine"]["block_tokens"] == 16
    assert told["trace"]["format"] == "mooncake"


def test_printed_as_data() -> None:
    """`--json -` prints nothing but the data."""
    result = run("--trace", CODE, "--replicas", "1", "--json", "-")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["trace"]["requests"] == 4


def test_same_command_same_figures() -> None:
    """A run can be repeated."""
    arguments = ("--trace", CHAT, "--policy", "power-of-two", "--users", "5", "--spread", "--seed", "3", "--json", "-")
    assert run(*arguments).stdout == run(*arguments).stdout


def test_picture(tmp_path: Path) -> None:
    """A PNG of the runs, drawn without a screen."""
    result = run("--trace", CHAT, "--scaling", "fixed", "--scaling", "perfect", "--plot", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert (tmp_path / "fleet.png").read_bytes().startswith(b"\x89PNG")


def test_picture_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra it says what to install, after the figures."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run("--trace", CHAT, "--plot", str(tmp_path))
    assert result.exit_code == 1
    assert "weighbridge[plots]" in result.stderr
    assert "prefix" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--policy", "best"), "no policy"),
        (("--scaling", "best"), "no way to scale"),
        (("--model", "gpt-9"), "gpt-9"),
        (("--overflow", "nobody"), "nobody"),
        (("--gpu-usd-hour", "cheap"), "is no number"),
        (("--min-replicas", "9", "--max-replicas", "2"), "above"),
        (("--tp", "1", "--precision", "bf16"), "does not fit"),
    ],
)
def test_refused(arguments: tuple[str, ...], said: str) -> None:
    """What makes no sense is refused with a line that says why."""
    result = run("--trace", CHAT, *arguments)
    assert result.exit_code == 1, result.output
    assert said in result.stderr
    assert "Traceback" not in result.stderr


def test_bad_trace(tmp_path: Path) -> None:
    """A bad line is named by file and line."""
    file = tmp_path / "bad.jsonl"
    file.write_text('{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": []}\nrubbish\n')
    result = run("--trace", str(file))
    assert (result.exit_code, f"{file}:2:" in result.stderr) == (1, True)
