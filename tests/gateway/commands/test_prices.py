"""`weighbridge prices`: tables for people, JSON for programs, and no posting that was not asked for."""

import asyncio
import json
import os
import shlex
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from cost.ledger.store import LedgerStore
from cost.prices import price_from_usd
from cost.times import start_of
from cost.usage import Usage
from gateway.cli import app
from gateway.database import make_engine
from tests.cost.price_book.test_correction import booked
from tests.sqlite import newest_sqlite

CONFIG = """\
providers:
  models:
    - model_id: m
      provider: a
      max_context_tokens: 8000
      prices:
        - {input: 1, output: 2, version: v1}
        - {input: 0.5, output: 1, effective_from: 2999-01-01, batch_discount: 0.5, request: 0.01, reasoning: 3,
           long_prompts: [{above_tokens: 1000, input: 2, output: 4, reasoning: 6}]}
      deployments: [{kind: scripted}]
    - model_id: hub/own
      provider: b
      max_context_tokens: 8000
      deployments: [{kind: scripted}]
"""


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("WEIGHBRIDGE_") or name == "DATABASE_URL":
            monkeypatch.delenv(name)
    (tmp_path / "c.yaml").write_text(CONFIG)
    monkeypatch.setenv("WEIGHBRIDGE_CONFIG", str(tmp_path / "c.yaml"))
    monkeypatch.setenv("WEIGHBRIDGE_DATA_DIR", str(tmp_path))


def prices(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["prices", *arguments])


def told(*arguments: str) -> Any:
    done = prices(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


async def _book_two(tmp_path: Path) -> None:
    """Two attempts of one day at v1, by two teams."""
    engine = make_engine(newest_sqlite(tmp_path / "weighbridge.sqlite"))
    at_us = start_of(date(2026, 4, 5)) + 1
    usage = Usage(input_tokens=1_000_000, output_tokens=500_000)
    price = price_from_usd(version="v1", input_usd=1, output_usd=2)
    rows = [booked(team, usage, price, team_id=team, at_us=at_us) for team in ("team_a", "team_b")]
    await LedgerStore(engine).insert(rows)
    await engine.dispose()


def test_the_list_says_what_holds_and_why() -> None:
    """In figures for people; what is unknown is unpriced and not 0."""
    lines = prices("list").stdout.splitlines()
    assert lines[0].split() == [
        "target", "version", "source", "from", "input", "cached", "input", "cache", "write", "output", "further",
    ]  # fmt: skip
    assert lines[1].split() == ["m", "v1", "config", "-", "1", "1", "1", "2", "-"]
    assert lines[2].split()[:4] == ["hub/own", "unpriced", "-", "-"]
    later = prices("list", "--at", "2999-01-01").stdout
    assert "each request 0.01, above 1,000: 2/4, batch 0.25/0.5" in later
    assert "reasoning 3" in later
    everything = prices("list", "--all").stdout.splitlines()
    assert [line.split()[:2] for line in everything[1:4]] == [
        ["now", "m"],
        ["m", "2999-01-01"],
        ["hub/own", "unpriced"],
    ]
    assert told("list")[1]["usd_per_million_tokens"] is None


def test_a_price_is_entered_and_taken_back() -> None:
    """It comes before the configured one, from its day on."""
    entered = told("set", "m", "--input", "2.50", "--output", "10", "--cached-input", "1.25", "--note", "list price")
    today = datetime.now(UTC).date().isoformat()
    assert (entered["version"], entered["effective_from"]) == (f"override-{today}", today)
    assert told("list")[0]["usd_per_million_tokens"]["cached_input"] == "1.25"
    assert prices("set", "hub/own", "--input", "1", "--output", "1", "--effective-from", "2999-01-01").exit_code == 0
    assert told("list")[1]["version"] is None
    assert told("list", "--at", "2999-01-02")[1]["version"] == "override-2999-01-01"
    done = prices("withdraw", "m", entered["version"])
    assert (done.exit_code, done.stdout) == (0, f"m: {entered['version']} is withdrawn\n")
    assert told("list")[0]["version"] == "v1"


def test_the_history_has_what_was_taken_back() -> None:
    """What rows were booked at stays known, whatever holds now."""
    assert "nothing of m was booked yet" in prices("history", "m").stderr
    told("set", "m", "--input", "3", "--output", "4", "--version", "mistake", "--note", "typed in haste")
    prices("withdraw", "m", "mistake")
    (known,) = told("history", "m")
    today = datetime.now(UTC).date().isoformat()
    assert (known["version"], known["withdrawn"], known["note"]) == ("mistake", today, "typed in haste")
    assert known["usd_per_million_tokens"]["input"] == "3"
    row = prices("history", "m").stdout.splitlines()[1].split()
    assert row == ["mistake", "override", today, today, today, "3", "3", "3", "4", "-", "typed", "in", "haste"]


def test_a_whole_price_is_entered_as_json() -> None:
    """With everything that a configuration may say, and every digit."""
    figures = '{"input": 0.1, "output": 0.3, "long_prompts": [{"above_tokens": 5, "input": 1, "output": 1}]}'
    entered = told("set", "m", "--figures", figures, "--batch-discount", "0.5", "--version", "q4")
    assert (entered["version"], entered["usd_per_million_tokens"]["input"]) == ("q4", "0.1")
    assert entered["batch"]["usd_per_million_tokens"]["output"] == "0.15"
    assert entered["long_prompts"][0]["above_tokens"] == 5


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("set n --input 1 --output 1", "there is no model 'n'"),
        ("set hub/onw --input 1 --output 1", "did you mean hub/own?"),
        ("set m --input 1", "`output` is required"),
        ("set m --input cheap --output 1", "`input` “cheap” is no number: write it like 20.50"),
        ("""set m --output 1 --input 1 --figures '{"input": 1}'""", "`input` is given twice"),
        ("set m --figures {", "this is not JSON"),
        ("""set m --figures '{"inptu": 1}'""", "`inptu` is not known; did you mean `input`?"),
        ("withdraw m v9", "m has no price 'v9'"),
        ("correct m --version v9 --from 2026-04-05 --to 2026-04-05", "`input` is required"),
        (
            "correct m --version v9 --from 2026-04-05 --to 2026-04-05 --input 1 --output 1",
            "nothing of m was booked at 'v9'",
        ),
        (
            "correct m --version v1 --from 2026-04-06 --to 2026-04-05 --input 1 --output 1",
            "the last one not before the first",
        ),
    ],
)
def test_mistakes_are_told_in_a_line(arguments: str, says: str) -> None:
    """What is wrong and what was meant, with a status that is not 0."""
    done = prices(*shlex.split(arguments))
    assert done.exit_code != 0
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_correction_is_shown_before_it_is_posted(tmp_path: Path) -> None:
    """Nothing is posted without --post, and nothing twice."""
    asyncio.run(_book_two(tmp_path))
    wrong = ["correct", "m", "--version", "v1", "--from", "2026-04-05", "--to", "2026-04-05"]
    right = ["--input", "0.5", "--output", "2.5"]
    shown = prices(*wrong, *right)
    assert shown.exit_code == 0, shown.output
    lines = shown.stdout.splitlines()
    assert lines[1].split() == ["2026-04-05", "team_a", "key_abc", "interactive", "-", "1", "2", "1.75", "-0.25"]
    assert lines[-2].startswith("2 attempts computed again, 0 left as they are")
    assert lines[-1] == "nothing is posted yet: give --post"
    first, again = (told(*wrong, *right, "--post") for _ in range(2))
    assert (first["posted"], first["difference_usd"]) == (2, "-0.5")
    assert first["groups"][1]["difference_usd_by_meter"]["input"] == "-0.5"
    assert (again["posted"], again["groups"]) == (0, [])
    assert "the books say so already" in prices(*wrong, *right, "--post").stdout
    (entry,) = json.loads(CliRunner().invoke(app, ["audit", "list", "--json"]).stdout)
    assert (entry["action"], entry["after"]["difference_nanousd"]) == ("posting.posted", -500_000_000)
