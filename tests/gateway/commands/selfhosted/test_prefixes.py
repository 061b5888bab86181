"""`weighbridge selfhosted prefixes`: a table with advice for people, exact JSON for programs."""

import asyncio
import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from accounts.store import AccountStore
from cost.times import DAY_US, wall_us
from gateway.cli import app
from gateway.database import make_engine
from selfhosted.prefixes.store import PrefixStore
from selfhosted.prefixes.tracker import HabitDelta
from tests.sqlite import newest_sqlite

CONFIG = """\
classifier: {enabled: false}
cost:
  pools:
    - name: h100
      targets: [llama]
      usd_per_gpu_hour: 3.6
      seconds_per_million: {input: 40, cached_input: 0, output: 200}
providers:
  models:
    - {model_id: llama, provider: a, max_context_tokens: 8000, deployments: [{kind: scripted}]}
"""


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("WEIGHBRIDGE_") or name == "DATABASE_URL":
            monkeypatch.delenv(name)
    (tmp_path / "c.yaml").write_text(CONFIG)
    monkeypatch.setenv("WEIGHBRIDGE_CONFIG", str(tmp_path / "c.yaml"))
    monkeypatch.setenv("WEIGHBRIDGE_DATA_DIR", str(tmp_path))


def keep(folder: Path, *deltas: HabitDelta) -> None:
    async def write() -> None:
        engine = make_engine(newest_sqlite(folder / "weighbridge.sqlite"))
        await AccountStore(engine).create_team("team_payments")
        await PrefixStore(engine).add(deltas)
        await engine.dispose()

    asyncio.run(write())


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["selfhosted", "prefixes", *arguments])


def habit(**changes: object) -> HabitDelta:
    usual: dict[str, object] = {
        "day_us": wall_us() // DAY_US * DAY_US,
        "organisation_id": "default",
        "team_id": "team_payments",
        "target_id": "llama",
        "skeleton": "89abcdef" * 4,
        "requests": 1_000,
        "prompt_tokens": 2_000_000,
        "broken": 999,
        "broken_tokens": 1_000_000,
        "first_break_tokens": 6,
        "kinds": ("date", "time"),
    }
    return HabitDelta(**(usual | changes))  # type: ignore[arg-type]


def test_a_table_and_advice(tmp_path: Path) -> None:
    """Who breaks it, where, with what, what it costs, and what to do: 30 million tokens of 40 s each at 0.1 cents a second."""
    keep(tmp_path, habit(), habit(skeleton="", broken=0, broken_tokens=0, kinds=()))
    result = run()
    assert result.exit_code == 0, result.output
    line = next(line for line in result.stdout.splitlines() if "89abcdef" in line)
    cells = [cell.strip() for cell in line.split("  ") if cell.strip()]
    assert cells == [
        "team_payments",
        "llama",
        "89abcdef",
        "1,000",
        "99.9 %",
        "6",
        "date, time",
        "30,000,000",
        "$1.20",
    ]
    assert "(various)" in result.stdout
    assert "team_payments, prompt 89abcdef: move the date and the time to the end" in result.stdout


def test_json(tmp_path: Path) -> None:
    """The same as data, for the team that is asked for."""
    keep(tmp_path, habit(), habit(team_id="other"))
    found = json.loads(run("--json", "--team", "team_payments", "--days", "30").stdout)
    assert (found["team_id"], [each["team_id"] for each in found["findings"]]) == ("team_payments", ["team_payments"])
    assert float(found["findings"][0]["usd_a_month"]) == 1.2


def test_nothing_yet_and_nobody(tmp_path: Path) -> None:
    """No data is told as such; a team that is not there is an error."""
    keep(tmp_path)
    result = run()
    assert (result.exit_code, result.stdout) == (0, "")
    assert "nothing was counted" in result.stderr
    result = run("--team", "team_paymnets")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "team_paymnets" in result.stderr
