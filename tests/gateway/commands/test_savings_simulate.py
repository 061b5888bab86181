"""`weighbridge savings simulate`: what a trace would have cost under each fleet."""

import json
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gateway.cli import app

CONFIG = """\
classifier: {enabled: false}
cost:
  reference_target: large
  pools:
    - name: own
      targets: [llama]
      usd_per_gpu_hour: 3
      seconds_per_million: {input: 70, output: 160}
policy: {auto: [llama, middle, large]}
selfhosted:
  pools:
    - name: own
      targets: [llama]
      upstream_model: meta-llama/Meta-Llama-3-8B-Instruct
      replicas: [{name: one, url: "http://127.0.0.1:9"}]
      scale: {min_replicas: %d, max_replicas: 6, cold_start_s: 120}
providers:
  models:
    - {model_id: llama, provider: own, capability: 0.6, max_context_tokens: 8192, prices: {input: 0.8, output: 0.8}}
    - model_id: middle
      provider: a
      capability: 0.7
      max_context_tokens: 100000
      prices: {input: %s, output: 5}
      deployments: [{kind: scripted}]
    - model_id: large
      provider: a
      capability: 1.0
      max_context_tokens: 100000
      prices: {input: 5, output: 20}
      deployments: [{kind: scripted}]
"""


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("WEIGHBRIDGE_") or name == "DATABASE_URL":
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def trace(folder: Path, *, minutes: int = 60, per_minute: int = 60, tokens: int = 4_000) -> Path:
    """Bursts of two minutes in four, as a coding service's."""
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for second in range(minutes * 60):
        if second // 120 % 2 == 0:
            at = f"2023-11-16 {18 + second // 3600}:{second // 60 % 60:02d}:{second % 60:02d}"
            rows += [f"{at}.{each:03d}0000,{tokens},30" for each in range(per_minute // 60)]
    path = folder / "trace.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def run(folder: Path, path: Path, *more: str, least: int = 0, price: str = "1") -> Result:
    config = folder / "c.yaml"
    config.write_text(CONFIG % (least, price))
    return CliRunner().invoke(app, ["savings", "simulate", "--trace", str(path), "--config", str(config), *more])


def told(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout, parse_float=Decimal)
    return found


def bills(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["fleet"]: each for each in found["bills"]}


@pytest.mark.parametrize("price", ["0.1", "1", "4", "20"])
@pytest.mark.parametrize("least", [0, 2])
def test_the_economic_scaler_is_about_as_cheap_as_the_best_fixed_fleet(tmp_path: Path, least: int, price: str) -> None:
    """Whatever the work costs elsewhere."""
    path = trace(tmp_path, per_minute=240)
    found = told(run(tmp_path, path, "--json", "--no-lateness", least=least, price=price))
    every = bills(found)
    best = every[f"fixed {found['best_fixed']}"]
    assert best["allowed"]
    assert Decimal(found["economic_to_best_fixed"]) <= Decimal("1.05")
    assert every["economic scaler"]["replica_hours"] >= least * Decimal("0.95")


def test_the_bills_are_the_prices_times_the_tokens(tmp_path: Path) -> None:
    """To the nano-dollar: the baseline is every token at the large model's price, and a fixed fleet's hours the books'."""
    found = told(run(tmp_path, trace(tmp_path), "--json", "--no-lateness"))
    every = bills(found)
    baseline = (Decimal(found["input_tokens"]) * 5 + Decimal(found["output_tokens"]) * 20) / 1_000_000
    assert Decimal(every["everything at the baseline model"]["usd"]) == baseline
    assert Decimal(every["fixed 2"]["gpu_usd"]) == 2 * Decimal(every["fixed 1"]["gpu_usd"])
    assert found["pool_requests"] == pytest.approx(0.6 * found["requests"], rel=0.01)


HERE = (4_000 * 70 + 30 * 160) / 1e6 * 3 / 3_600
"""Dollars of one of the trace's requests on a replica that is always busy."""


@pytest.mark.parametrize("price", ["0.02", "1"])
def test_both_verdicts_are_told_by_how_busy_replicas_are(tmp_path: Path, price: str) -> None:
    """Against the baseline model, and against what routing buys without GPUs: at each utilisation, and where they are crossed, as a
    calculation by hand has it.
    """
    found = told(run(tmp_path, trace(tmp_path), "--json", "--no-lateness", price=price))
    elsewhere = {
        "reference": (4_000 * 5 + 30 * 20) / 1e6,
        "routed": (4_000 * float(price) + 30 * 5) / 1e6,
    }
    assert [each["busy"] for each in found["by_utilisation"]] == [
        Decimal(each) / 100 for each in (*range(10, 100, 10), 95)
    ]
    for against, dollars in elsewhere.items():
        crossed = found["crossings"][against]
        assert float(crossed["elsewhere_usd"]) == pytest.approx(dollars * found["pool_requests"])
        assert float(crossed["break_even"]) == pytest.approx(HERE / dollars, abs=1e-4)
        assert float(crossed["target"]) == pytest.approx(HERE / dollars / 0.6, abs=1e-4)
        for each in found["by_utilisation"]:
            saved = 1 - HERE / float(each["busy"]) / dollars
            assert float(each[against]["savings_share"]) == pytest.approx(saved, abs=2e-4)
            assert each[against]["verdict"] == ("met" if saved >= 0.4 else "not met")


def test_a_fleet_may_beat_the_baseline_model_and_lose_to_routing(tmp_path: Path) -> None:
    """Where a cheap model does the same: the bill tells both, and so does the text."""
    path = trace(tmp_path)
    found = told(run(tmp_path, path, "--json", "--no-lateness", least=1, price="0.02"))
    every = bills(found)
    economic, routed = every["economic scaler"], every["commercial only, with routing"]
    assert (economic["verdict"], economic["routed"]["verdict"]) == ("met", "not met")
    saved = float(economic["routed"]["savings_share"])
    assert saved == pytest.approx(1 - float(economic["usd"] / routed["usd"]), abs=1e-4)
    assert saved < 0
    text = run(tmp_path, path, "--no-lateness", least=1, price="0.02").stdout
    assert "40 % less than large with the economic scaler: MET" in text
    assert "40 % less than routing without GPUs with the economic scaler: NOT MET" in text
    assert "which is impossible" in text


def test_people_get_a_table_with_the_verdict_and_the_utilisation_that_it_needs(tmp_path: Path) -> None:
    """Every fleet is a row, and the target's verdict says what it would take."""
    result = run(tmp_path, trace(tmp_path, minutes=20))
    assert result.exit_code == 0
    for row in (
        "everything at the baseline model",
        "commercial only, with routing",
        "fixed 1",
        "today's scaler",
        "economic",
    ):
        assert row in result.stdout
    assert "best fixed fleet in hindsight" in result.stdout
    assert "against large" in result.stdout
    assert "busy on" in result.stdout
    assert "every request was simulated" in result.stdout
    assert "the economic scaler misses no more than the best fixed fleet" in result.stdout


@pytest.mark.parametrize(("least", "price"), [(0, "1"), (2, "4")])
def test_the_economic_scaler_misses_no_more_than_the_best_fixed_fleet(tmp_path: Path, least: int, price: str) -> None:
    """Within the interval, on engines behind the real balancer; and there is something to miss."""
    path = trace(tmp_path, minutes=12, per_minute=720)
    found = told(run(tmp_path, path, "--json", "--seed", "3", least=least, price=price))
    every, late = bills(found), found["lateness"]
    best = every[f"fixed {found['best_fixed']}"]
    assert late["misses_no_more"] is True
    difference = late["economic_less_best_fixed"]
    assert difference["low"] <= 0
    assert difference["share"] == pytest.approx(every["economic scaler"]["late"]["share"] - best["late"]["share"])
    assert every["fixed 1"]["overflow"]["share"] > every["fixed 2"]["overflow"]["share"] > 0
    assert every["fixed 1"]["late"]["share"] > 0
    assert every["commercial only, with routing"]["late"] is None


def test_a_long_trace_is_judged_by_windows_of_it(tmp_path: Path) -> None:
    """The busiest and two others at least, and every fleet has an interval."""
    found = told(run(tmp_path, trace(tmp_path), "--sample", "700", "--json", least=1))
    late = found["lateness"]
    assert late["whole_trace"] is False
    assert late["windows"] >= 3
    assert 0 < late["requests"] < found["pool_requests"]
    for each in found["bills"][2:]:
        assert each["late"]["low"] <= each["late"]["share"] <= each["late"]["high"]


def test_without_lateness_there_are_bills_alone(tmp_path: Path) -> None:
    """And no engine is needed for them."""
    found = told(run(tmp_path, trace(tmp_path), "--no-lateness", "--gpu", "abacus", "--json"))
    assert found["lateness"] is None
    assert {each["late"] for each in found["bills"]} == {None}


def test_engines_that_do_not_fit_are_refused_with_what_to_do(tmp_path: Path) -> None:
    """A model of 405 thousand million parameters on one GPU."""
    result = run(tmp_path, trace(tmp_path), "--model", "llama-3.1-405b")
    assert result.exit_code == 2
    assert "--model" in result.stderr
    assert "--no-lateness" in result.stderr


@pytest.mark.long
def test_days_are_made_of_the_first_hour(tmp_path: Path) -> None:
    """Two days by an office's profile, twice the users."""
    found = told(run(tmp_path, trace(tmp_path), "--days", "2", "--users", "2", "--json", "--no-lateness"))
    assert found["duration_s"] == pytest.approx(2 * 86_400, abs=15)
    assert found["economic_to_best_fixed"] <= 1


def test_a_bad_line_is_named_with_its_number(tmp_path: Path) -> None:
    """And nothing is simulated."""
    path = trace(tmp_path)
    lines = path.read_text().splitlines()
    lines[41] = "2023-11-16 18:00:41,many,3"
    path.write_text("\n".join(lines))
    result = run(tmp_path, path)
    assert result.exit_code == 2
    assert f"{path}:42: not a time and two whole numbers" in result.stderr


def test_without_a_priced_pool_nothing_can_be_compared(tmp_path: Path) -> None:
    """It says what the configuration lacks."""
    config = tmp_path / "none.yaml"
    models = [each for each in (CONFIG % (0, "1")).split("providers:")[1].splitlines() if "llama" not in each]
    config.write_text(CONFIG.split("  pools:", maxsplit=1)[0] + "providers:" + "\n".join(models))
    result = CliRunner().invoke(app, ["savings", "simulate", "--trace", str(trace(tmp_path)), "--config", str(config)])
    assert result.exit_code == 2
    assert "cost.pools" in result.stderr
