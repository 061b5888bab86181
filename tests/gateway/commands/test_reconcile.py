"""`weighbridge reconcile`: compares, tells by its exit status, posts once, and then agrees."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from cost.ledger.store import LedgerStore
from gateway.cli import app
from gateway.database import make_engine
from tests.cost.entries import settle
from tests.cost.reconcile.exports import (
    DAY_US,
    anthropic_bucket,
    anthropic_usage,
    openai_bucket,
    openai_cost,
    openai_usage,
    page,
)
from tests.sqlite import newest_sqlite

CONFIG = """\
classifier: {enabled: false}
providers:
  models:
    - model_id: gpt-4o
      provider: openai
      max_context_tokens: 8000
      deployments: [{kind: scripted}]
    - model_id: sonnet
      provider: Anthropic
      max_context_tokens: 8000
      deployments: [{kind: litellm, upstream_model: anthropic/claude-sonnet-4-5}]
"""
# The exports' day, a year before: a day that is over whenever this runs.
YEAR = 365


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("WEIGHBRIDGE_") or name == "DATABASE_URL":
            monkeypatch.delenv(name)
    (tmp_path / "c.yaml").write_text(CONFIG)
    monkeypatch.setenv("WEIGHBRIDGE_CONFIG", str(tmp_path / "c.yaml"))
    monkeypatch.setenv("WEIGHBRIDGE_DATA_DIR", str(tmp_path / "data"))


@pytest.fixture
def booked(tmp_path: Path) -> None:
    """Two teams' requests on the day."""
    usual = {"provider": "openai", "target_id": "gpt-4o", "at_us": DAY_US - YEAR * 86_400_000_000 + 5}

    async def book() -> None:
        (tmp_path / "data").mkdir()
        engine = make_engine(newest_sqlite(tmp_path / "data" / "weighbridge.sqlite"))
        await LedgerStore(engine).insert(
            [
                settle("r1", **usual, team_id="team_a", input_nanousd=1_000_000),
                settle("r2", **usual, team_id="team_b", input_nanousd=1_000_000),
            ]
        )
        await engine.dispose()

    asyncio.run(book())


def reconcile(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["reconcile", *arguments])


def written(folder: Path, value: Any, name: str = "export.json") -> str:
    (folder / name).write_text(json.dumps(value))
    return str(folder / name)


@pytest.mark.usefixtures("booked")
def test_differences_are_shown_posted_once_and_gone(tmp_path: Path) -> None:
    """Exit status 1 while the sides differ; after --post the same files agree, and posting again posts nothing."""
    usage = written(tmp_path, page(openai_bucket(openai_usage("gpt-4o-2024-08-06", 1700, 401), day=-YEAR)), "u.json")
    costs = written(tmp_path, page(openai_bucket(openai_cost("gpt-4o-2024-08-06, input", 0.0025), day=-YEAR)), "c.json")
    first = reconcile("openai", usage, costs)
    assert first.exit_code == 1, first.output
    assert "gpt-4o-2024-08-06 is taken for gpt-4o" in first.stdout
    assert first.stdout.splitlines()[0].split() == ["day", "model", "key", "meter", "theirs", "ours", "difference"]
    assert "1 of 1 lines differ" in first.stdout
    assert reconcile("openai", usage, costs, "--tolerance", "25%").exit_code == 0
    post = json.loads(reconcile("openai", usage, costs, "--post", "--json").stdout)
    assert post["posted"] == {"entries": 2, "note": None}
    again = reconcile("openai", costs, usage, "--json")
    assert again.exit_code == 0
    assert json.loads(again.stdout)["lines"][0]["cost_usd"] == {
        "theirs": "0.002500000",
        "ours": "0.002500000",
        "difference": "0.000000000",
    }
    twice = reconcile("openai", usage, costs, "--post")
    assert twice.exit_code == 0
    assert "posted 0 entries; these files were posted before" in twice.stdout
    (entry,) = json.loads(CliRunner().invoke(app, ["audit", "list", "--json"]).stdout)
    assert (entry["action"], entry["after"]["entries"]) == ("posting.posted", 2)


@pytest.mark.usefixtures("booked")
def test_what_has_two_names_is_not_posted_by_mistake(tmp_path: Path) -> None:
    """Lines on one side only, on both sides: posting them would take the cost from its teams, so it needs a word more."""
    costs = written(tmp_path, page(openai_bucket(openai_cost("house-model, input", 0.002), day=-YEAR)))
    refused = reconcile("openai", costs, "--post")
    assert refused.exit_code == 1
    assert "--model or --map THEIRS=OURS says so" in refused.stdout
    assert "posted 0 entries; name the lines that are the same, or give --unmatched" in refused.stdout
    named = reconcile("openai", costs, "--model", "house-model=gpt-4o")
    assert named.exit_code == 0, named.output
    assert reconcile("openai", costs, "--post", "--unmatched").exit_code == 0


def test_names_of_litellm_are_the_providers(tmp_path: Path) -> None:
    """`anthropic/claude-sonnet-4-5` is what the provider calls claude-sonnet-4-5."""
    usage = written(tmp_path, page(anthropic_bucket(anthropic_usage("claude-sonnet-4-5-20250929", 5, 5))))
    found = reconcile("anthropic", usage)
    assert found.exit_code == 1
    assert "claude-sonnet-4-5-20250929 is taken for claude-sonnet-4-5" in found.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--tolerance", "much"], "is no tolerance"),
        (["--map", "key_1"], "--map is their name and ours"),
        (["--map", "=key_1"], "--map is their name and ours"),
        (["--map", "pk_1=key_1"], "group_by=api_key_id"),
        (["--from", "2030-01-01"], "not in the range"),
    ],
)
def test_what_cannot_be_done_is_said(tmp_path: Path, arguments: list[str], told: str) -> None:
    """Exit status 2, and a line that names it."""
    found = reconcile("openai", written(tmp_path, page(openai_bucket(openai_usage("gpt-4o", 1, 1)))), *arguments)
    assert (found.exit_code, told in found.stderr) == (2, True), found.output


def test_a_bad_file_is_named_with_the_place(tmp_path: Path) -> None:
    """The file, the place and the reason."""
    found = reconcile("openai", written(tmp_path, {"data": [{}]}))
    assert found.exit_code == 2
    assert "export.json: $.data[0].start_time: a Unix time" in found.stderr
    missing = reconcile("openai", str(tmp_path / "nowhere.json"))
    assert (missing.exit_code, "nowhere.json: No such file" in missing.stderr) == (2, True)
