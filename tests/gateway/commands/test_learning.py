"""The commands of learning: what they print, and that nothing changes without being asked."""

import asyncio
import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from classifier.learning.judging import Change, Measures
from classifier.learning.recalibrate import Report, TargetReport
from classifier.learning.store import LearningStore
from classifier.tuning import Tuning
from gateway.cli import _Weighbridge
from gateway.cli import app as weighbridge
from gateway.commands.learning import print_report, register
from gateway.commands.shared import prepare
from gateway.database import make_engine
from tests.sqlite import newest_sqlite

CONFIG = """\
providers:
  models:
    - model_id: small
      provider: a
      max_context_tokens: 8000
      prices: {input: 0.10, output: 0.40}
      deployments: [{kind: vllm, base_url: "http://127.0.0.1:1/v1"}]
classifier: {enabled: false}
"""

app = typer.Typer(cls=_Weighbridge, pretty_exceptions_enable=False)
register(app)
prepare(app)
invoke = CliRunner().invoke


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEIGHBRIDGE_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("WEIGHBRIDGE_CONFIG", raising=False)
    return tmp_path


def keep(folder: Path, *tunings: tuple[Tuning, dict[str, object]]) -> None:
    """Stores tunings, the last one in use."""

    async def add() -> None:
        engine = make_engine(newest_sqlite(folder / "weighbridge.sqlite"))
        store = LearningStore(engine, now_us=lambda: 1_800_000_000_000_000)
        for tuning, metrics in tunings:
            await store.activate(await store.add_tuning(tuning, metrics=metrics))
        await engine.dispose()

    asyncio.run(add())


def test_tunings_are_listed_and_taken_back(folder: Path) -> None:
    """The newest first, which one is in use, and what going back says."""
    targets = [{"target_id": "small", "verdict": "better"}, {"target_id": "large", "verdict": "worse"}]
    keep(
        folder,
        (Tuning(version=0, artifact="a" * 64), {"before": None, "labels": 120, "targets": targets, "groups": {"t": 3}}),
        (Tuning(version=0, artifact="a" * 64), {"before": 1}),
    )
    listed = invoke(app, ["tunings"])
    assert listed.exit_code == 0
    lines = [line.split() for line in listed.stdout.splitlines()]
    assert lines[1][:3] == ["2", "2027-01-15T08:00:00Z", "yes"]
    assert lines[2] == ["1", "2027-01-15T08:00:00Z", "120", "small", "3", "a" * 12]
    assert "tuning 1 is in use now" in invoke(app, ["rollback"]).stdout
    assert "no tuning is in use now" in invoke(app, ["rollback"]).stdout
    assert "tuning 2 is in use now" in invoke(app, ["rollback", "2"]).stdout
    told = json.loads(invoke(app, ["tunings", "--json"]).stdout)
    assert [(each["version"], each["active"]) for each in told] == [(2, True), (1, False)]
    entries = json.loads(CliRunner().invoke(weighbridge, ["audit", "list", "--json"]).stdout)
    assert [(each["action"], each["object_id"], each["after"]["in_use"]) for each in entries] == [
        ("tuning.rolled_back", "2", 2),
        ("tuning.rolled_back", "0", None),
        ("tuning.rolled_back", "1", 1),
    ]


def test_what_cannot_be_done_is_one_line(folder: Path) -> None:
    """No traceback: no tuning to take back, an unknown version, no trained model to refit."""
    (folder / "gateway.yaml").write_text(CONFIG)
    for arguments, said in (
        (["rollback"], "no tuning is in use"),
        (["rollback", "9"], "there is no tuning 9; `weighbridge classifier tunings` has them all"),
        (["recalibrate", "--config", str(folder / "gateway.yaml")], "no trained model is in use"),
    ):
        failed = invoke(app, arguments)
        assert failed.exit_code == 1, arguments
        assert said in failed.stderr
        assert len(failed.stderr.splitlines()) == 1
    assert "no tunings yet" in invoke(app, ["tunings"]).stderr


def test_a_team_that_is_not_there_is_said(folder: Path) -> None:
    """A slip in a team's name is not taken for a team without verdicts."""
    (folder / "gateway.yaml").write_text(CONFIG)
    failed = invoke(app, ["recalibrate", "--team", "nobody", "--config", str(folder / "gateway.yaml")])
    assert failed.exit_code == 1
    assert failed.stderr == (
        "weighbridge: there is no team 'nobody'; `weighbridge teams list` has them all, `weighbridge teams create` makes one\n"
    )


def measures(log_loss: float) -> Measures:
    return Measures(log_loss=log_loss, brier=0.2, ece=0.05, pair_accuracy=0.7)


def test_a_report_tells_the_change_and_what_happens_next(capsys: pytest.CaptureFixture[str]) -> None:
    """Before and after with an interval, targets that stay, and whether anything was changed."""
    change = Change(before=measures(0.7), after=measures(0.5), low=measures(-0.3), high=measures(-0.1))
    report = Report(
        labels=200,
        requests=180,
        held_out=60,
        dropped={"vector is not finite": 2},
        targets=[
            TargetReport(target_id="small", verdict="better", is_new=True, labels=150, held_out=45, change=change),
            TargetReport(target_id="large", verdict="too-few", is_new=False, labels=9, held_out=0, change=None),
        ],
        groups={"team_a": 4},
        team_id=None,
    )
    print_report(report, None)
    told = capsys.readouterr()
    assert "0.700 -> 0.500 [-0.300, -0.100]" in told.out
    assert "small (new)" in told.out
    assert "too few verdicts" in told.out
    assert "95 % interval of the change" in told.out
    assert "team_a 4" in told.out
    assert "nothing was changed; --accept puts it in use" in told.out
    assert "left out: 2 (vector is not finite)" in told.err
    print_report(report, 7)
    assert "tuning 7 is in use now" in capsys.readouterr().out
