"""The demo, with its real engines: what it prints adds up, agrees with the ledger, and nothing of it is left."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import yaml

from gateway.configuration.environment import Environment
from gateway.configuration.settings import load
from gateway.demo.demo_report import Closing, Row, Totals, agreement, cut, totals, verdict, verified
from gateway.demo.prompts import PROMPTS
from gateway.demo.run import DemoFailed, persistently
from gateway.demo.stage import choose_stage, write_config

_TIMEOUT_S = 240.0
_FEWER = """
from gateway.cli import app
from gateway.demo import run
run.PROMPTS = run.PROMPTS[:{}]
app()
"""
_PRICES = {"llama-3-70b": ("0.845", "0.845", "0.845"), "gpt-4o": ("2.50", "1.25", "10.00")}


class _Place:
    """A temporary folder of the demo's own; its name in their environment marks the demo's processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
        # Another gateway's settings must not lead the demo astray.
        self.environ = {
            **kept,
            "TMPDIR": str(folder),
            "DATABASE_URL": "postgresql://nowhere/x",
            "WEIGHBRIDGE_PORT": "1",
        }

    def start(self, *arguments: str, prompts: int | None = None) -> "subprocess.Popen[str]":
        """The command line; with the demo's first prompts alone where it is said how many."""
        command = ["-m", "gateway.cli"] if prompts is None else ["-c", _FEWER.format(prompts)]
        return subprocess.Popen(
            [sys.executable, *command, *arguments],
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def processes(self) -> list[int]:
        """Every process that was started in this place and still runs."""
        return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and self._is_ours(entry)]

    def _is_ours(self, entry: Path) -> bool:
        try:
            return f"TMPDIR={self.folder}\0".encode() in (entry / "environ").read_bytes()
        except OSError:
            return False

    def is_clean(self) -> bool:
        return not self.processes() and not list(self.folder.iterdir())


@pytest.fixture
def place(tmp_path: Path) -> Iterator[_Place]:
    """Ends whatever a failed test left running."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    made = _Place(folder)
    yield made
    for pid in made.processes():
        os.kill(pid, signal.SIGKILL)


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def _read_until(process: "subprocess.Popen[str]", part: str) -> str:
    assert process.stdout is not None
    read = ""
    while part not in read:
        line = process.stdout.readline()
        assert line, f"it ended before {part!r}"
        read += line
    return read


@pytest.mark.parametrize("count", [4, pytest.param(len(PROMPTS), marks=pytest.mark.long)])
def test_the_demo_adds_up_and_leaves_nothing(place: _Place, tmp_path: Path, count: int) -> None:
    """A row a prompt, each cost recomputed from its tokens, the totals those of GET /v1/usage, exit status 0."""
    report_file, prompts = tmp_path / "report.json", PROMPTS[:count]
    process = place.start("demo", "--json", str(report_file), prompts=count if count < len(PROMPTS) else None)
    output, errors = process.communicate(timeout=_TIMEOUT_S)
    assert (process.returncode, errors) == (0, "")
    assert place.is_clean()
    report = json.loads(report_file.read_text(), parse_float=Decimal)
    rows = report["rows"]
    assert [row["prompt"] for row in rows] == [prompt.text for prompt in prompts]
    assert [row["stream"] for row in rows] == [prompt.stream for prompt in prompts]
    assert sum(row["stream"] for row in rows) == len(rows) // 2
    assert {row["target"] for row in rows} == {"llama-3-70b", "gpt-4o"}
    for row in rows:
        _check_row(row)
    for name in ("input_tokens", "output_tokens"):
        assert report["totals"][name] == sum(row[name] for row in rows)
        assert report["usage_api"][name] == report["totals"][name] + report["unserved"][name]
    for name in ("cost_usd", "baseline_usd"):
        total = sum(Decimal(row[name]) for row in rows)
        assert Decimal(report["totals"][name]) == total
        assert Decimal(report["usage_api"][name]) == total + Decimal(report["unserved"][name])
    assert Decimal(report["totals"]["savings_usd"]) > 0
    assert report["agrees"] is True
    for part in (
        "complexity",
        "cheapest-capable",
        "saved",
        "tells the same",
        "the books agree",
        "not enough data",
        "135 million",
        "not to be judged",
        "calls no tools",
        "make serve",
    ):
        assert part in output
    assert all(cut(prompt.text) in output for prompt in prompts)


def _check_row(row: dict[str, Any]) -> None:
    """What the reply said it cost is what its tokens cost at the demo's prices, at most the cache's discount less."""
    assert 0 <= float(row["complexity"]) <= 1
    assert row["input_tokens"] > 0
    assert 0 < row["output_tokens"] <= 48
    for name, target in (("cost_usd", row["target"]), ("baseline_usd", "gpt-4o")):
        full, cached, out = (Decimal(price) for price in _PRICES[target])
        output = row["output_tokens"] * out
        most, least = (row["input_tokens"] * each + output for each in (full, cached))
        assert least <= Decimal(row[name]) * 1_000_000 <= most


@pytest.mark.long
def test_ctrl_c_leaves_nothing(place: _Place) -> None:
    """Interrupted in the middle, the demo ends with status 130, its children and its folder gone."""
    process = place.start("demo")
    _read_until(process, "1/12")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=_TIMEOUT_S)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert place.is_clean()


@pytest.mark.long
def test_killed_it_takes_its_children_along(place: _Place) -> None:
    """Even SIGKILL leaves no process: the children notice that their parent is gone."""
    process = place.start("demo")
    _read_until(process, "1/12")
    # Itself, two engines, and the gateway's supervisor, control plane and worker.
    assert len(place.processes()) == 6
    process.kill()
    process.communicate(timeout=_TIMEOUT_S)
    _until(lambda: not place.processes())


@pytest.mark.long
def test_serve_demo_serves_until_it_is_told_to_stop(place: _Place) -> None:
    """It prints a URL, a key and a link to the dashboard that work, and SIGTERM ends everything with status 0."""
    process = place.start("serve", "--demo", "--port", "0")
    printed = _read_until(process, "print(reply")
    url = re.search(r"URL +(\S+)", printed)
    key = re.search(r"key +(wb-\S+)", printed)
    assert url is not None
    assert key is not None
    with openai.OpenAI(base_url=url[1], api_key=key[1]) as client:
        assert {"llama-3-70b", "gpt-4o"} <= {model.id for model in client.models.list()}
    link = re.search(r"dashboard +(http\S+)", printed)
    assert link is not None
    with urllib.request.urlopen(link[1], timeout=_TIMEOUT_S) as page:  # noqa: S310 - our own child
        assert "admin@demo.example" in page.read().decode()
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=_TIMEOUT_S)
    assert process.returncode == 0
    assert "Traceback" not in errors
    assert place.is_clean()


@pytest.mark.parametrize(
    ("environ", "dear", "engines", "reference"),
    [
        ({}, "gpt-4o", 2, None),
        ({"OPENAI_API_KEY": "sk-1", "ANTHROPIC_API_KEY": "sk-2"}, "gpt-4o", 1, "env:OPENAI_API_KEY"),
        ({"ANTHROPIC_API_KEY": "sk-2"}, "claude-sonnet-4-5", 1, "env:ANTHROPIC_API_KEY"),
    ],
)
def test_a_real_provider_takes_the_stand_ins_place(
    tmp_path: Path, environ: dict[str, str], dear: str, engines: int, reference: str | None
) -> None:
    """With a provider's key in the environment one engine fewer is needed, and the file refers to the key."""
    stage, model = choose_stage(environ)
    assert (stage.dear, len(stage.engines), stage.real) == (dear, engines, reference is not None)
    path = write_config(tmp_path, model, dict.fromkeys(stage.engines, "http://127.0.0.1:1/v1"))
    assert "sk-" not in path.read_text()
    config = load(path, Environment(), secrets_from=environ)
    assert config.cost.reference_target == dear
    cheap, real = yaml.safe_load(path.read_text())["providers"]["models"]
    assert real["deployments"][0].get("api_key") == reference
    # The stand-ins say what they can do; of a real model it is known.
    assert (cheap["capabilities"], real.get("capabilities")) == (["json"], None if stage.real else ["json"])


def test_totals_and_agreement() -> None:
    """Sums are exact, the share is rounded, and a ledger that tells otherwise is called out."""
    row = Row(
        prompt="p",
        stream=False,
        complexity=0.5,
        target="t",
        reason="r",
        input_tokens=1,
        output_tokens=2,
        cost_usd=Decimal("0.000000001"),
        baseline_usd=Decimal("0.000000003"),
    )
    summed = totals([row, row, row])
    assert summed == Totals(
        requests=3,
        input_tokens=3,
        output_tokens=6,
        cost_usd=Decimal("0.000000003"),
        baseline_usd=Decimal("0.000000009"),
    )
    assert summed.savings_percent == Decimal("66.7")
    assert totals([]).savings_percent == 0
    nothing = totals([])
    assert "tells the same" in agreement(summed, summed, nothing)
    assert "DISAGREES" in agreement(summed, totals([row]), nothing)
    # What was late and sent again is booked twice, and is no disagreement.
    assert agreement(totals([row, row]), summed, totals([row])).endswith("which cost something, too.")


def test_a_late_answer_is_sent_for_again_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Twice at most; what the request is at fault for ends the demo at once."""
    request = httpx.Request("POST", "http://127.0.0.1/v1/chat/completions")
    late = openai.APITimeoutError(request)
    row = object()
    answers: list[Any] = [late, late, row]

    def send() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert persistently(send, "prompt 3 (Hello)") is row
    assert capsys.readouterr().out.count("prompt 3 (Hello): Request timed out. Sending it again.") == 2
    answers += [late, late, late, row]
    with pytest.raises(DemoFailed, match=r"prompt 3 .* failed: Request timed out"):
        persistently(send, "prompt 3 (Hello)")
    answers[:] = [openai.BadRequestError("no", response=httpx.Response(400, request=request), body=None), row]
    with pytest.raises(DemoFailed):
        persistently(send, "prompt 3 (Hello)")
    assert answers == [row]


def test_the_books_are_closed_with_a_verdict() -> None:
    """Books that agree are told with their size, others called out; the verdict is told with its reasons."""
    sound = Closing(
        target_share=Decimal("0.4"), verdict="met", reasons=(), entries=12, differences=0, unserved=totals([])
    )
    assert verified(sound) == "weighbridge ledger verify: the books agree, 12 entries summed up anew."
    assert verdict(sound) == "weighbridge savings: the target of 40 % is `met`."
    doubtful = Closing(
        target_share=Decimal("0.4"),
        verdict="not met",
        reasons=("a", "b"),
        entries=12,
        differences=3,
        unserved=totals([]),
    )
    assert "3 figures are WRONG" in verified(doubtful)
    assert verdict(doubtful).endswith("`not met` (a; b).")


def test_long_prompts_are_cut_to_one_line() -> None:
    """The table shows a prompt's beginning and never a second line."""
    assert cut("a\nb") == "a b"
    assert len(cut("word " * 40)) <= 38
