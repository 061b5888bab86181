"""`weighbridge limits`: set, list and remove, for people and for programs."""

import json
import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli import app
from tests.sqlite import newest_sqlite

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("WEIGHBRIDGE_") or name == "DATABASE_URL":
            monkeypatch.delenv(name)
    monkeypatch.setenv("WEIGHBRIDGE_DATA_DIR", str(tmp_path / "data"))
    newest_sqlite(tmp_path / "data" / "weighbridge.sqlite")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def ok(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_from_first_to_last() -> None:
    """A limit is set, changed, listed and removed; each answer says what holds and from when."""
    ok("teams", "create", "team_a")
    told = ok("limits", "set", "team", "team_a", "--requests-per-minute", "3000", "--request-burst", "100")
    assert told == (
        "team team_a: 3,000 requests a minute, 100 requests at once after a pause; holds in every process within 2 s\n"
    )
    told = ok("limits", "set", "team", "team_a", "--request-burst", "none", "--concurrency", "0")
    assert told.startswith("team team_a: 3,000 requests a minute, no limit on requests in flight; holds")
    told = ok("limits", "set", "team", "team_a", "--model", "gpt-4o", "--tokens-per-minute", "5", "--token-burst", "9")
    assert told.startswith("team team_a on model gpt-4o: 5 tokens a minute, 9 tokens at once after a pause;")
    assert ok("limits", "set", "model", "gpt-4o", "--concurrency", "1").startswith("model gpt-4o: 1 request in flight;")
    alone = run("limits", "set", "model", "gpt-4o", "--concurrency", "8")
    assert alone.stdout.startswith("model gpt-4o: 8 requests in flight;")
    assert "WEIGHBRIDGE_CONFIG is not set" in alone.stderr
    heading, *rows = ok("limits", "list").splitlines()
    assert heading.split("  ")[0] == "scope"
    assert [row.split()[:3] for row in rows] == [
        ["model", "gpt-4o", "-"],
        ["team", "team_a", "-"],
        ["team", "team_a", "gpt-4o"],
    ]
    assert rows[1].split()[3:8] == ["3,000", "-", "-", "-", "no"]
    assert heading.index("at once") + len("at once") == rows[0].index(" 8") + len(" 8")
    assert ok("limits", "remove", "model", "gpt-4o") == "removed what was set for model gpt-4o: 8 requests in flight\n"
    ok("limits", "remove", "team", "team_a", "--model", "gpt-4o")
    told = ok("limits", "set", "team", "team_a", "--requests-per-minute", "none", "--concurrency", "none")
    assert told.startswith("team team_a: the configuration's limits again;")
    assert "no limits are set" in run("limits", "list").stderr


def test_for_programs() -> None:
    """JSON has whole numbers; null is the configuration's, and an organisation's list has no other's."""
    ok("organisations", "create", "rival")
    ok("limits", "set", "organisation", "rival", "--concurrency", "1")
    ok("limits", "set", "model", "gpt-4o", "--concurrency", "1")
    made = json.loads(ok("limits", "set", "organisation", "default", "--tokens-per-minute", "2_000_000", "--json"))
    assert made.pop("updated_at").endswith("Z")
    assert made == {
        "scope": "organisation",
        "scope_id": "default",
        "model": None,
        "requests_per_minute": None,
        "request_burst": None,
        "tokens_per_minute": 2_000_000,
        "token_burst": None,
        "concurrency": None,
    }
    listed = json.loads(ok("limits", "list", "--json"))
    assert [(each["scope"], each["scope_id"]) for each in listed] == [
        ("model", "gpt-4o"),
        ("organisation", "default"),
        ("organisation", "rival"),
    ]
    assert len(json.loads(ok("limits", "list", "--organisation", "rival", "--json"))) == 1
    assert json.loads(ok("limits", "list", "--organisation", "nobody", "--json")) == []


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("set", "team", "nobody", "--concurrency", "1"), 1, "no team 'nobody'"),
        (("set", "key", "nobody", "--concurrency", "1"), 1, "no key 'nobody'"),
        (("set", "organisation", "nobody", "--concurrency", "1"), 1, "no organisation 'nobody'"),
        (("set", "organisation", "default"), 2, "nothing to change"),
        (("set", "organisation", "default", "--concurrency", "many"), 2, "--concurrency is a whole number, or none"),
        (("set", "organisation", "default", "--concurrency=-1"), 1, "from 0 to 1000000, not -1"),
        (("set", "organisation", "default", "--token-burst", "0"), 1, "from 1 to 100000000000, not 0"),
        (("set", "organisation", "default", "--token-burst", "9" * 30), 1, "from 1 to 100000000000"),
        (("set", "organisation", "default", "--model", "", "--concurrency", "1"), 2, "--model needs a name"),
        (("set", "model", "gpt-4o", "--model", "gpt-4o", "--concurrency", "1"), 2, "a model's name is its ID"),
        (("set", "model", "m" * 129, "--concurrency", "1"), 1, "1 to 128 printable characters"),
        (("set", "organisation", "default", "--model", "m", "--request-burst", "5"), 1, "does nothing for"),
        (("remove", "team", "nobody"), 1, "there is no limit for 'team nobody'"),
        (("set", "city", "default", "--concurrency", "1"), 2, "city"),
    ],
)
def test_what_cannot_be_set_is_told(arguments: tuple[str, ...], status: int, said: str) -> None:
    """One line on standard error, and nothing is kept."""
    result = run("limits", *arguments)
    assert (result.exit_code, result.stdout) == (status, "")
    assert said in result.stderr
    assert "no limits are set" in run("limits", "list").stderr


def test_a_misspelt_model_is_told_where_a_configuration_is_at_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would limit nobody. Targets, aliases and `auto` are what callers can name."""
    place = tmp_path / "gateway.yaml"
    shutil.copy(ROOT / "config" / "gateway.yaml", place)
    place.write_text(place.read_text().replace("limits:\n", "limits:\n  poll_s: 1.5\n", 1))
    monkeypatch.setenv("WEIGHBRIDGE_CONFIG", str(place))
    result = run("limits", "set", "model", "gpt-40", "--concurrency", "1")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "the configuration has no model `gpt-40`; did you mean `gpt-4o`" in result.stderr
    for name in ("auto", "fast", "gpt-4o"):
        assert "within 1.5 s" in ok("limits", "set", "model", name, "--concurrency", "1")
    result = run("limits", "set", "organisation", "default", "--request-burst", "7")
    assert (result.exit_code, result.stderr) == (
        0,
        "the burst does nothing yet: nothing limits organisation default in a minute; set --requests-per-minute\n",
    )
    assert run("limits", "set", "key", "zzz", "--request-burst", "7").exit_code == 1
    assert run("limits", "set", "organisation", "default", "--token-burst", "7").stderr.count("does nothing") == 1
    assert run("limits", "set", "organisation", "default", "--model", "zzz", "--concurrency", "1").exit_code == 2
    assert ok("limits", "remove", "model", "fast")
