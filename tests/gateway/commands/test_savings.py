"""`weighbridge savings` and `weighbridge pools`: tables for people, exact JSON and CSV for programs."""

import asyncio
import csv
import io
import json
import os
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from accounts.store import AccountStore
from cost.ledger.entries import Entry
from cost.ledger.store import LedgerStore
from cost.times import HOUR_US, start_of
from gateway.cli import app
from gateway.database import make_engine
from tests.cost.fleet.pools import work
from tests.sqlite import newest_sqlite

CONFIG = """\
classifier: {enabled: false}
cost:
  reference_target: large
  gateway_usd_per_hour: 0.01
  pools:
    - name: h100
      targets: [llama]
      gpus_per_replica: 2
      usd_per_gpu_hour: 2.95
      up_since: %s
      seconds_per_million: {input: 37.812, cached_input: 2, output: 200}
providers:
  models:
    - {model_id: llama, provider: a, max_context_tokens: 8000, deployments: [{kind: scripted}]}
    - {model_id: large, provider: a, max_context_tokens: 8000, deployments: [{kind: scripted}]}
"""
YESTERDAY = (datetime.now(UTC) - timedelta(days=1)).date()
START = start_of(YESTERDAY)
RANGE = ("--from", YESTERDAY.isoformat(), "--to", YESTERDAY.isoformat())


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("WEIGHBRIDGE_") or name == "DATABASE_URL":
            monkeypatch.delenv(name)
    (tmp_path / "c.yaml").write_text(CONFIG % YESTERDAY)
    monkeypatch.setenv("WEIGHBRIDGE_CONFIG", str(tmp_path / "c.yaml"))
    monkeypatch.setenv("WEIGHBRIDGE_DATA_DIR", str(tmp_path))


def keep(folder: Path, entries: list[Entry]) -> None:
    async def write() -> None:
        engine = make_engine(newest_sqlite(folder / "weighbridge.sqlite"))
        await AccountStore(engine).create_team("team_payments")
        await LedgerStore(engine).insert(entries)
        await engine.dispose()

    asyncio.run(write())


def served(count: int, **changes: Any) -> list[Entry]:
    return [work(f"r{number}", at_us=START + 5 * HOUR_US, **changes) for number in range(count)]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def table_row(output: str, first: str) -> list[str]:
    line = next(line for line in output.splitlines() if line.startswith(first))
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_not_met_is_as_visible_as_met(tmp_path: Path) -> None:
    """One replica that idles all day for a hundred requests: the words stand in the same place, in capitals."""
    keep(tmp_path, served(100))
    found = run("savings", *RANGE)
    assert found.exit_code == 0, found.output
    assert table_row(found.output, "large (baseline model)")[-1] == "NOT MET"
    assert "NOT ENOUGH DATA" in found.output
    assert "spent $141.84: requests $0.300000" in found.output
    assert "pool h100: bill $141.60 for 24.00 replica-hours up, <0.1 % of them busy" in found.output
    assert f"provisional: the GPU bill of {YESTERDAY} is not posted yet" in found.output
    assert run("savings", *RANGE, "--check").exit_code == 1


def test_met_is_told_with_what_it_rests_on(tmp_path: Path) -> None:
    """150 requests of a million tokens each way are worth 1,875 $ at the reference; a busy replica makes them for less."""
    keep(tmp_path, served(150, input_tokens=1_000_000, output_tokens=1_000_000, baseline_nanousd=12_500_000_000))
    # Nothing is known of either model, so it cannot be said to be met.
    doubtful = run("savings", *RANGE, "--check")
    assert doubtful.exit_code == 1
    assert table_row(doubtful.output, "large (baseline model)")[-1] == "NOT MEASURED"
    assert "`weighbridge classifier measure llama`" in doubtful.output
    known = (CONFIG % YESTERDAY).replace("classifier: {enabled: false}\n", "")
    for name, row_name in (("llama", "llama-3-70b-instruct"), ("large", "gpt-4o")):
        known = known.replace(f"model_id: {name},", f"model_id: {name}, ability: {row_name},")
    (tmp_path / "c.yaml").write_text(known)
    found = run("savings", *RANGE, "--check")
    assert found.exit_code == 0, found.output
    row = table_row(found.output, "large (baseline model)")
    assert row[-1] == "MET"
    assert "$1,875.00" in row
    assert "quality: no answer was judged" in found.output


def test_json_and_csv_have_exact_money(tmp_path: Path) -> None:
    """The same figures, to the nano-dollar; the days of the CSV add up to the JSON's cost."""
    keep(tmp_path, served(100, cost_nanousd=3_000_001, input_nanousd=1_000_001))
    shown = json.loads(run("savings", *RANGE, "--json").stdout, parse_float=Decimal)
    assert shown["cost_usd"] == Decimal("141.84")
    assert shown["comparisons"][0]["verdict"] == "not met"
    rows = list(csv.DictReader(io.StringIO(run("savings", *RANGE, "--csv").stdout)))
    assert [row["day"] for row in rows] == [YESTERDAY.isoformat()]
    assert Decimal(rows[0]["cost_usd"]) == shown["cost_usd"]
    assert Decimal(rows[0]["idle_usd"]) == shown["cost"]["idle_usd"]


def test_a_team_sees_neither_idle_gpus_nor_the_gateway(tmp_path: Path) -> None:
    """What is nobody's is not a team's."""
    keep(tmp_path, served(3))
    shown = json.loads(run("savings", *RANGE, "--team", "team_payments", "--json").stdout, parse_float=Decimal)
    assert (shown["team_id"], shown["fleet"]) == ("team_payments", [])
    assert shown["cost"]["idle_usd"] == shown["cost"]["gateway_usd"] == 0
    # 3,000 tokens each way are 713.436 ms of 5.90 $ an hour.
    assert shown["cost_usd"] == Decimal("0.001169242")


def test_hours_are_entered_shown_and_trued_up(tmp_path: Path) -> None:
    """A day of GPUs from the record to the posting, and again after a correction."""
    keep(tmp_path, served(2))
    first = run("pools", "true-up", "--day", YESTERDAY.isoformat(), "--json")
    assert first.exit_code == 0, first.output
    (posted,) = json.loads(first.stdout, parse_float=Decimal)
    assert (posted["posted"], posted["revision"], posted["bill_usd"]) == (True, 1, Decimal("141.6"))
    entered = run(
        "pools", "hours", "h100", "--from", f"{YESTERDAY}T06:00", "--to", f"{YESTERDAY}T12:00", "--replicas", "0"
    )
    assert (entered.exit_code, "0 replicas up in 6 hours" in entered.stdout) == (0, True)
    second = run("pools", "true-up", "h100", "--day", YESTERDAY.isoformat())
    assert "revision 2 posted" in second.output
    assert "$106.20" in second.output
    assert "-$35.40" in second.output
    assert "adds up already" in run("pools", "true-up", "h100", "--day", YESTERDAY.isoformat()).output
    told = [each["action"] for each in json.loads(run("audit", "list", "--json").stdout)]
    assert told == ["pool.trued_up", "pool.hours_entered", "pool.trued_up"]
    table = run("pools", "show", "--days", "3").output
    assert "h100: llama; 1 x 2 GPUs at $2.95 an hour, overhead 1; idle hours are default's" in table
    day = table_row(table, YESTERDAY.isoformat())
    assert day == [
        YESTERDAY.isoformat(), "18.00", "0.00", "$106.20", "$106.20", "$106.20", "2",
    ]  # fmt: skip
    (pool,) = json.loads(run("pools", "show", "--json").stdout, parse_float=Decimal)
    assert (pool["usd_per_replica_hour"], len(pool["days"])) == (Decimal("5.9"), 7)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("pools", "true-up", "l4"), 1, "there is no pool `l4`; the configuration has under `cost.pools`: "),
        (("pools", "true-up", "--day", (YESTERDAY + timedelta(days=3)).isoformat()), 1, "is not over yet"),
        (("pools", "hours", "l4", "--from", "2026-11-01", "--to", "2026-11-02", "--replicas", "1"), 1, "no pool `l4`"),
        (
            ("pools", "hours", "h100", "--from", "2026-11-02", "--to", "2026-11-01", "--replicas", "1"),
            1,
            "after the start",
        ),
        (("pools", "hours", "h100", "--from", "2026-11-01T00:30", "--to", "2026-11-02", "--replicas", "1"), 1, "whole"),
        (("savings", "--from", "2026-11-03", "--to", "2026-11-01"), 2, "after the start"),
        (("savings", "--csv", "--json"), 2, "not both"),
        (("savings", "--team", "nobody"), 2, "no team 'nobody'"),
        (("savings", "--organisation", "nobody"), 2, "no organisation 'nobody'"),
    ],
)
def test_slips_are_told_in_one_line(arguments: tuple[str, ...], status: int, message: str) -> None:
    """What a person can mend is told plainly."""
    found = run(*arguments)
    assert (found.exit_code, found.stdout) == (status, "")
    assert message in found.stderr
    assert found.stderr.count("\n") == 1


def test_without_pools_there_is_nothing_to_show(tmp_path: Path) -> None:
    """A configuration without GPUs says so."""
    (tmp_path / "c.yaml").write_text(CONFIG[: CONFIG.index("cost:")] + CONFIG[CONFIG.index("providers:") :])
    for command in ("show", "true-up"):
        assert "no pools" in run("pools", command).stderr
