"""`weighbridge classifier measure` beside a running gateway: what it prints, draws, refuses and puts in use."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gateway.cli import app
from gateway.commands import measure
from gateway.wiring import measuring
from tests.examinee import examinee, like
from tests.running_gateway import TRAINED, Running, model, running_gateway


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(measuring, "POLL_S", 0.02)
    monkeypatch.setattr(measure, "_POLL_S", 0.05)
    monkeypatch.setenv("WEIGHBRIDGE_DATA_DIR", str(tmp_path))


async def invoked(running: Running, *arguments: str) -> Result:
    config = ["--config", str(running.config_path)]
    return await asyncio.to_thread(CliRunner().invoke, app, ["classifier", "measure", *arguments, *config])


async def test_the_whole_story(tmp_path: Path) -> None:
    """Measured, shown beside known models, drawn, accepted, listed, taken back, and in the audit log."""
    async with (
        examinee(like("llama-3.1-70b-instruct")) as student,
        running_gateway(
            tmp_path, [model("fresh", [{"kind": "vllm", "base_url": student.url}])], classifier=TRAINED
        ) as running,
    ):
        told = await invoked(running, "fresh", "--questions", "100", "--plot", str(tmp_path / "beside.svg"))
        assert told.exit_code == 0, told.output
        assert "never measured before" in told.stdout
        assert "→ fresh" in told.stdout
        assert "measure fresh --accept` puts it in use" in told.stdout
        assert "ordered mea_" in told.stderr
        drawn = (tmp_path / "beside.svg").read_text()
        assert drawn.startswith("<svg")
        assert ">fresh<" in drawn
        asked = len(student.asked)
        assert asked == 100
        accepted = await invoked(running, "fresh", "--accept")
        assert accepted.exit_code == 0, accepted.output
        assert "tuning 1 was made of it" in accepted.stdout
        assert len(student.asked) == asked
        shown: dict[str, Any] = json.loads((await invoked(running, "fresh", "--show", "--json")).stdout)
        assert shown["tuning_version"] == 1
        assert shown["result"]["scored"] == 100
        listed = await asyncio.to_thread(CliRunner().invoke, app, ["classifier", "tunings"])
        assert listed.stdout.splitlines()[1].split()[2:5] == ["yes", "100", "fresh"]
        back = await asyncio.to_thread(CliRunner().invoke, app, ["classifier", "rollback"])
        assert "no tuning is in use now" in back.stdout
        log = json.loads((await asyncio.to_thread(CliRunner().invoke, app, ["audit", "list", "--json"])).stdout)
        assert [each["action"] for each in log[:4]] == [
            "tuning.rolled_back",
            "tuning.accepted",
            "measurement.ordered",
            "measurement.ordered",
        ]


async def test_what_it_refuses(tmp_path: Path) -> None:
    """Targets that are not there, bounds that nobody means, and what was never measured."""
    async with running_gateway(tmp_path, [model("fresh", [{"kind": "scripted", "upstream_model": "ok"}])]) as running:
        for arguments, status, why in (
            (["stale"], 2, "there is no model stale"),
            (["fresh", "--budget", "0"], 1, "`budget` is an amount above 0"),
            (["fresh", "--questions", "5000"], 1, "`questions` is between 1 and 1260"),
            (["fresh", "--show"], 1, "was never measured"),
            (["fresh", "--stop"], 1, "was never measured"),
        ):
            found = await invoked(running, *arguments)
            assert (found.exit_code, why in found.stderr) == (status, True), found.output


async def test_a_target_that_cannot_be_placed(tmp_path: Path) -> None:
    """It ends with a failure, and says why and what was said."""
    async with running_gateway(
        tmp_path, [model("fresh", [{"kind": "scripted", "upstream_model": "ok"}])], classifier=TRAINED
    ) as running:
        found = await invoked(running, "fresh", "--questions", "50")
        assert found.exit_code == 1
        assert "answers without the asked form" in found.stdout
        assert "w0 w1 w2" in found.stdout
        assert "look at the unparsed answers" in found.stderr
