"""The command line: what it prints, where, with which exit status, and that nobody ever sees a traceback."""

import contextlib
import json
import os
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gateway.cli import app
from tests.sqlite import newest_sqlite

ROOT = Path(__file__).parents[2]
PEPPER = "0123456789abcdef" * 2

CONFIG = """\
providers:
  models:
    - model_id: small
      provider: a
      max_context_tokens: 8000
      capability: 0.0
      prices: {input: 0.10, output: 0.40}
      deployments: [{kind: vllm, base_url: "http://127.0.0.1:1/v1", api_key: "env:NOT_SET_ANYWHERE"}]
    - model_id: large
      provider: b
      max_context_tokens: 8000
      capability: 1.0
      prices: {input: 2.50, output: 10.00}
      deployments: [{kind: vllm, base_url: "http://127.0.0.1:1/v1"}]
    - model_id: batch-only
      provider: b
      tier_eligibility: [batch]
      max_context_tokens: 8000
      deployments: [{kind: vllm, base_url: "http://127.0.0.1:1/v1"}]
"""


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("WEIGHBRIDGE_") or name in {"DATABASE_URL", "OPENAI_API_KEY"}:
            monkeypatch.delenv(name)
    monkeypatch.setenv("WEIGHBRIDGE_PEPPER", PEPPER)
    monkeypatch.setenv("WEIGHBRIDGE_DATA_DIR", str(tmp_path / "data"))
    newest_sqlite(tmp_path / "data" / "weighbridge.sqlite")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration whose one secret is not set."""
    path = tmp_path / "c.yaml"
    path.write_text(CONFIG)
    return path


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def _ok(*arguments: str) -> str:
    result = _run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def _fails(*arguments: str, status: int = 1) -> str:
    result = _run(*arguments)
    assert result.exit_code == status, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr


def test_teams_and_keys_from_first_to_last() -> None:
    """A team and its key are made, listed and revoked; the key is shown on creation and never again."""
    assert "created team team_a" in _ok("teams", "create", "team_a", "--models", "small, large")
    key = _ok("keys", "create", "team_a", "--name", "ci").strip()
    assert key.startswith("wb-")
    (team,) = json.loads(_ok("teams", "list", "--json"))
    assert (team["team_id"], team["allowed_models"]) == ("team_a", ["large", "small"])
    listed = _ok("keys", "list", "--json")
    assert key not in listed
    (record,) = json.loads(listed)
    assert (record["name"], record["last4"], record["revoked_at"]) == ("ci", key[-4:], None)
    assert "revoked" in _ok("keys", "revoke", record["key_id"])
    assert json.loads(_ok("keys", "list", "--team", "team_a", "--json"))[0]["revoked_at"] is not None
    assert json.loads(_ok("keys", "list", "--team", "team_b", "--json")) == []


def test_an_organisations_calendar_is_set_from_a_day_on() -> None:
    """By a zone's name; a day that has begun, and what is no zone, are refused; UTC stays what was told before."""
    (usual,) = json.loads(_ok("organisations", "calendar", "--json"))
    assert (usual["time_zone"], usual["week_start"], usual["from"]) == ("UTC", "monday", None)
    zone = ("organisations", "calendar", "default", "--time-zone")
    told = _ok(*zone, "Asia/Kolkata", "--week-start", "sunday", "--from", "2090-01-01")
    assert "2089-12-31T18:30:00Z" in told
    assert "IANA" in _fails(*zone, "India")
    assert "later day" in _fails(*zone, "Asia/Kolkata", "--from", "2020-01-01")
    assert "no organisation" in _fails("organisations", "calendar", "acme", "--time-zone", "UTC")


def test_keys_and_teams_are_blocked_and_keys_end() -> None:
    """Blocked and unblocked by id, and a key's end set, moved and lifted by date or by time from now."""
    _ok("teams", "create", "team_a")
    made = json.loads(_ok("keys", "create", "team_a", "--expires-in", "90d", "--json"))["key_id"]

    def key() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(_ok("keys", "list", "--json"))[0]
        return found

    assert key()["expires_at"] is not None
    assert "no end" in _ok("keys", "set", made, "--expires-in", "never")
    assert key()["expires_at"] is None
    assert "until 2090-01-31" in _ok("keys", "set", made, "--expires-at", "2090-01-31")
    for bad in (["--expires-in", "soon"], ["--expires-in", "0d"], ["--expires-at", "2020-01-01"], []):
        _fails("keys", "set", made, *bad, status=2)
    _fails("keys", "set", made, "--expires-in", "1d", "--expires-at", "2090-01-31", status=2)
    assert "blocked" in _ok("keys", "block", made, "--reason", "it leaked")
    assert key()["blocked_at"] is not None
    _ok("keys", "unblock", made)
    assert key()["blocked_at"] is None
    _ok("teams", "block", "team_a")
    assert json.loads(_ok("teams", "list", "--json"))[0]["blocked_at"] is not None
    _ok("teams", "unblock", "team_a")
    assert json.loads(_ok("teams", "list", "--json"))[0]["blocked_at"] is None
    assert "there is no key" in _fails("keys", "block", "key_none")
    assert "no team" in _fails("teams", "block", "team_none")


def test_organisations_are_made_and_listed() -> None:
    """A team of another organisation needs that one first; making it twice is told."""
    assert "no organisation 'acme'" in _fails("teams", "create", "team_x", "--organisation", "acme")
    assert "created organisation acme" in _ok("organisations", "create", "acme", "--name", "Acme Söhne")
    _ok("teams", "create", "team_x", "--organisation", "acme")
    (listed,) = json.loads(_ok("organisations", "list", "--json"))
    assert (listed["organisation_id"], listed["name"]) == ("acme", "Acme Söhne")
    assert "exists already" in _fails("organisations", "create", "acme")


def test_a_keys_role_is_chosen_and_shown() -> None:
    """A member's unless said otherwise, in its own column; a role that there is not is told."""
    _ok("teams", "create", "team_a")
    _ok("keys", "create", "team_a")
    assert json.loads(_ok("keys", "create", "team_a", "--role", "finance", "--json"))["role"] == "finance"
    heading, *rows = _ok("keys", "list").splitlines()
    place = heading.index("role")
    assert sorted(row[place:].split()[0] for row in rows) == ["finance", "member"]
    assert "--role" in _fails("keys", "create", "team_a", "--role", "root", status=2)


def test_a_teams_settings_are_changed_and_shown() -> None:
    """What is set is listed, what is not named stays, and none gives the floor back to the gateway."""
    _ok("teams", "create", "team_a")
    told = _ok("teams", "set", "team_a", "--quality-floor", "0.95", "--escalation", "whole")
    assert told == (
        "team_a: quality_floor 0.95, escalation whole, learning numbers, shadow_share 0.0, weight 1.0, spill_over yes, "
        "continue_streams no, cache default, cache_ttl_s -\n"
    )
    _ok("teams", "set", "team_a", "--weight", "2.5", "--no-spill-over")
    _ok("teams", "set", "team_a", "--learning", "prompts", "--shadow-share", "0.1")
    (team,) = json.loads(_ok("teams", "list", "--json"))
    expected = {"quality_floor": 0.95, "escalation": "whole", "learning": "prompts", "shadow_share": 0.1}
    expected |= {"weight": 2.5, "spill_over": False}
    assert {name: team[name] for name in expected} == expected
    assert json.loads(_ok("teams", "set", "team_a", "--quality-floor", "none", "--json"))["quality_floor"] is None
    heading, row = _ok("teams", "list").splitlines()
    assert row[heading.index("learning") :].startswith("prompts")
    assert row[heading.index("weight") :].split()[:2] == ["2.5", "no"]
    assert "spill_over yes" in _ok("teams", "set", "team_a", "--spill-over")
    assert "continue_streams yes" in _ok("teams", "set", "team_a", "--continue-streams")


def test_a_teams_kept_answers_are_set_and_flushed() -> None:
    """With their time, which none gives back to the gateway."""
    _ok("teams", "create", "team_a")
    assert "cache on, cache_ttl_s 600" in _ok("teams", "set", "team_a", "--cache", "on", "--cache-ttl", "600")
    assert "cache on, cache_ttl_s -" in _ok("teams", "set", "team_a", "--cache-ttl", "none")
    for wrong, status in (("0", 1), ("9999999", 1), ("-1", 2), ("an hour", 2)):
        assert "seconds" in _fails("teams", "set", "team_a", "--cache-ttl", wrong, status=status)
    assert _ok("teams", "flush-cache", "team_a", "--reason", "a wrong answer") == "flushed the kept answers of team_a\n"
    assert json.loads(_ok("teams", "list", "--json"))[0]["cache_epoch"] == 1
    assert "team.cache_flushed" in _ok("audit", "list", "--json")


def test_bad_settings_are_one_line() -> None:
    """A value out of range, a word that is not one, nothing to change, and a team that is not there."""
    _ok("teams", "create", "team_a")
    assert "quality_floor 0.97," in _ok("teams", "set", "team_a", "--quality-floor", "97%")
    assert "above 0 and at most 1, not 1.5" in _fails("teams", "set", "team_a", "--quality-floor", "1.5")
    assert "or none, not 'high'" in _fails("teams", "set", "team_a", "--quality-floor", "high", status=2)
    assert "from 0 to 1, not -1.0" in _fails("teams", "set", "team_a", "--shadow-share", "-1")
    assert "above 0 and at most 1000, not nan" in _fails("teams", "set", "team_a", "--weight", "nan")
    assert "--learning" in _fails("teams", "set", "team_a", "--learning", "text", status=2)
    assert "nothing to change" in _fails("teams", "set", "team_a", status=2)
    assert "no team 'nobody'" in _fails("teams", "set", "nobody", "--learning", "off")


def test_less_learning_deletes_what_was_kept(tmp_path: Path) -> None:
    """Texts go when a team turns to numbers, and the numbers too when it turns learning off."""
    _ok("teams", "create", "team_a")
    with contextlib.closing(sqlite3.connect(tmp_path / "data" / "weighbridge.sqlite")) as database:
        names = "team_id, request_id, at_us, organisation_id, target_id, artifact, vector, complexity"
        values = "'team_a', 'req_1', 1, 'o', 't', 'a', x'00', 0.5, 1, 1, 'c', 'd', 'the text'"
        names += ", input_tokens, output_tokens, conversation, request_digest, prompt"
        database.execute(f"INSERT INTO weighing ({names}) VALUES ({values})")  # noqa: S608
        database.commit()
        _ok("teams", "set", "team_a", "--learning", "numbers")
        assert database.execute("SELECT prompt FROM weighing").fetchall() == [(None,)]
        _ok("teams", "set", "team_a", "--learning", "off")
        assert database.execute("SELECT prompt FROM weighing").fetchall() == []


def test_tables_are_plain_and_aligned_when_nobody_looks() -> None:
    """Without a terminal a list has no colour and no lines, and its columns begin at the same place."""
    _ok("teams", "create", "a")
    _ok("teams", "create", "a_much_longer_team")
    heading, first, second = _ok("teams", "list").splitlines()
    assert heading.index("name") == first.index("a", 1) == second.index("a_much", 1)
    assert "\x1b" not in heading + first + second


_TEAMS_LISTED = "`weighbridge teams list` has them all, `weighbridge teams create` makes one"


def test_what_the_user_can_mend_is_one_line() -> None:
    """Unknown teams, double teams and bad ids are told on standard error with status 1."""
    _ok("teams", "create", "team_a")
    for arguments, message in (
        (("teams", "create", "team_a"), "weighbridge: team 'team_a' exists already\n"),
        (("keys", "create", "nobody"), f"weighbridge: there is no team 'nobody'; {_TEAMS_LISTED}\n"),
        (("keys", "create", "tema"), f"weighbridge: there is no team 'tema'; did you mean 'team_a'? {_TEAMS_LISTED}\n"),
        (
            ("keys", "revoke", "key_none"),
            "weighbridge: there is no key 'key_none'; `weighbridge keys list` has them all, `weighbridge keys create` makes one\n",
        ),
    ):
        assert _fails(*arguments) == message


def test_usage_errors_have_status_2(config: Path) -> None:
    """An unknown command, a missing argument and options that exclude each other are usage errors."""
    assert "Did you mean 'serve'" in _fails("serv", status=2)
    assert "TEAM_ID" in _fails("keys", "create", status=2)
    assert "--demo brings its own" in _fails("serve", "--demo", "--config", str(config), status=2)


def test_no_pepper_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a pepper no key is made, and the message says where one may come from."""
    _ok("teams", "create", "team_a")
    monkeypatch.delenv("WEIGHBRIDGE_PEPPER")
    told = _fails("keys", "create", "team_a")
    assert "no pepper: set WEIGHBRIDGE_PEPPER" in told
    assert "is named by --config FILE or WEIGHBRIDGE_CONFIG" in told


def test_a_database_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The database's address may hold a password, so it is not repeated."""
    monkeypatch.setenv("WEIGHBRIDGE_DATABASE_URL", "postgresql+asyncpg://u:hunter2@127.0.0.1:1/x")
    message = _fails("teams", "list")
    assert message.startswith("weighbridge: ")
    assert "hunter2" not in message


def test_route_explains_without_calling(config: Path) -> None:
    """Every target is either a candidate with its cost or rejected with its reason; no secret is needed."""
    told = json.loads(_ok("route", "Prove that there are infinitely many primes.", "--config", str(config), "--json"))
    assert 0 <= told["complexity"] <= 1
    assert [each["target"] for each in told["candidates"]] == ["large"]
    assert told["candidates"][0]["reason"] == "cheapest-capable"
    assert float(told["candidates"][0]["expected_cost_usd"]) > 0
    assert {each["target"]: each["obstacle"] for each in told["rejected"]} == {
        "small": "too-hard",
        "batch-only": "tier",
    }
    text = _ok("route", "Prove that there are infinitely many primes.", "--config", str(config))
    assert all(part in text for part in ("complexity", "large", "cheapest-capable", "not candidates:", "batch-only"))


def test_route_explains_a_whole_request(config: Path, tmp_path: Path) -> None:
    """Its messages alone do, and what is no request is told so."""
    body = tmp_path / "body.json"
    body.write_text(json.dumps([{"role": "user", "content": "Who is on call?"}]))
    told = json.loads(_ok("route", "--request", str(body), "--config", str(config), "--json"))
    assert (told["loop_steps"], told["struggle"]) == (0, None)
    for text, said in (("no", "cannot be read as JSON"), ("[]", "`messages` is empty")):
        body.write_text(text)
        result = CliRunner().invoke(app, ["route", "--request", str(body), "--config", str(config)])
        assert result.exit_code == 1
        assert said in result.output
    assert CliRunner().invoke(app, ["route", "--config", str(config)]).exit_code == 1


def test_route_reads_standard_input_and_tells_what_fits_nowhere(config: Path) -> None:
    """A prompt that no target can hold is refused with the reason and status 1."""
    result = CliRunner().invoke(app, ["route", "-", "--config", str(config)], input="word " * 20_000)
    assert result.exit_code == 1
    assert "fits no target" in result.stderr


def test_config_check(config: Path) -> None:
    """A right file is ok, its unset secrets are named; a wrong one is told whole."""
    result = _run("config", "check", str(config))
    assert (result.exit_code, result.stdout) == (0, f"{config}: ok\n")
    assert "NOT_SET_ANYWHERE" in result.stderr
    assert "api_key: env:NOT_SET_ANYWHERE (NOT SET)" in _ok("config", "check", str(config), "--show")
    config.write_text(CONFIG + "server: {prot: 1}\npolicy: {auto: [larg]}\n")
    assert (
        _fails("config", "check", str(config)).splitlines()[0].startswith(f"{config}:20: server.prot: is not a known")
    )


def test_config_check_tries_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is loaded and called once; one that is broken hides no other (SignalK 1637), and each is told with its line."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "made_up_for_check.py").write_text(
        "import asyncio\n"
        "class Good:\n    protocol = 1\n    def score(self, facts, candidates): return []\n"
        "class Raises:\n    protocol = 1\n    def score(self, facts, candidates): raise KeyError('no table')\n"
        "class Wrong:\n    protocol = 1\n    def score(self, facts, candidates): return 3\n"
        "class Hangs:\n    protocol = 1\n    async def finished(self, outcomes): await asyncio.sleep(60)\n"
    )
    uses = [
        ("good", "scorer", "Good"),
        ("raises", "scorer", "Raises"),
        ("wrong", "scorer", "Wrong"),
        ("hangs", "exporter", "Hangs"),
    ]
    lines = [
        f"  - {{name: {name}, kind: {kind}, use: 'made_up_for_check:{use}', deadline_ms: 1}}"
        for name, kind, use in uses
    ]
    sound = CONFIG.replace("env:NOT_SET_ANYWHERE", "env:HOME")
    path = tmp_path / "c.yaml"
    path.write_text("\n".join([sound, "plugins:", lines[0], ""]))
    assert f"{path}: ok" in _ok("config", "check", str(path))
    path.write_text(
        "\n".join([sound, "plugins:", *lines, "  - {name: gone, kind: scorer, use: 'not_there_for_check:A'}", ""])
    )
    told = _fails("config", "check", str(path))
    assert "plugins[0]" not in told
    assert (
        "plugins[1].use: made_up_for_check:Raises raises KeyError: 'no table' when it is called with sample facts"
        in told
    )
    assert "plugins[2].use: made_up_for_check:Wrong: `score` returns a list of Score objects" in told
    assert "plugins[3].use: made_up_for_check:Hangs did not answer a call with sample facts within 1 s" in told
    assert "plugins[4].use: there is no module not_there_for_check here" in told


def test_config_check_names_targets_that_are_not_measured(config: Path) -> None:
    """With the command that measures one; where the plain rule classifies, with what that goes by."""
    told = _run("config", "check", str(config)).stderr
    # Those that declare what they can do are told apart from the one that does not.
    assert told.count("hint: Not measured") == 2
    assert "weighbridge classifier measure " in told
    config.write_text(CONFIG + "classifier: {enabled: false}\n")
    told = _run("config", "check", str(config)).stderr
    assert "classifier measure" not in told
    assert "declare `capability`" in told


def test_config_check_warns_of_what_has_no_effect(config: Path) -> None:
    """A key that means nothing any more is no fault: one warning, and status 0."""
    config.write_text(CONFIG + "classifier: {second_weigher: true}\n")
    result = _run("config", "check", str(config))
    assert (result.exit_code, result.stdout) == (0, f"{config}: ok\n")
    (warning,) = [line for line in result.stderr.splitlines() if "second_weigher" in line]
    assert warning.startswith(
        f"warning: {config}:{CONFIG.count(chr(10)) + 1}: classifier.second_weigher: has no effect"
    )


def test_config_check_looks_at_where_secrets_lead(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once all of them are there: an address of Redis that is none is told, and not shown."""
    address = config.with_name("address")
    address.write_text("http://:hunter2@there")
    config.write_text(CONFIG + f"redis: {{url: 'file:{address}'}}\n")
    assert _ok("config", "check", str(config)) == f"{config}: ok\n"
    monkeypatch.setenv("NOT_SET_ANYWHERE", "set")
    told = _fails("config", "check", str(config))
    assert "redis.url: leads to an address that is wrong" in told
    assert "hunter2" not in told


def test_serve_refuses_what_it_cannot_serve(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unset secret, a missing file and a taken port stop the start with their reason."""
    assert "refers to NOT_SET_ANYWHERE, which is not set" in _fails("serve", "--config", str(config))
    assert "no configuration" in _fails("serve")
    assert "No such file" in _fails("serve", "--config", "none.yaml")
    monkeypatch.setenv("NOT_SET_ANYWHERE", "x")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert "another server is already there" in _fails("serve", "--config", str(config), "--port", port)
    config.write_text(CONFIG + "server: {tls: {certificate: absent.pem, key: absent.key}}\n")
    assert f"cannot use {config.parent}/absent.pem with {config.parent}/absent.key" in _fails(
        "serve", "--config", str(config)
    )


def test_help_and_version_load_nothing_heavy() -> None:
    """The program answers at once: neither the web framework nor the database is imported for it."""
    script = (
        "import sys; from typer.testing import CliRunner; from gateway.cli import app\n"
        "result = CliRunner().invoke(app, ['version']); print(result.output.strip())\n"
        "print([name for name in ('fastapi', 'sqlalchemy', 'uvicorn', 'onnxruntime', 'numpy') if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    version, heavy = told.splitlines()
    assert version[0].isdigit()
    assert heavy == "[]"
    assert all(command in _ok("--help") for command in ("serve", "demo", "keys", "teams", "route", "config", "version"))


def test_every_command_takes_a_configuration(config: Path) -> None:
    """The same option everywhere, whether a command reads the file or not; one that is not there is told."""
    assert _run("teams", "create", "team_b", "--config", str(config)).exit_code == 0
    assert _run("teams", "list", "-c", str(config)).exit_code == 0
    assert _run("config", "check", "--config", str(config)).exit_code == 0
    missing = _run("teams", "list", "--config", "no-such-file.yaml")
    assert (missing.exit_code, "no-such-file.yaml: there is no such file" in missing.stderr) == (2, True)


def test_the_version_is_an_option_too() -> None:
    """As other programs have it."""
    assert _run("--version").stdout == _run("version").stdout


def test_a_strict_check_fails_for_what_is_missing(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pipeline a hint, or a secret that is not set, is no success."""
    for name in ("KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    assert _run("config", "check", str(config)).exit_code == 0
    assert _run("config", "check", str(config), "--strict").exit_code == 1


def test_a_keys_models_are_chosen_changed_and_shown() -> None:
    """By its creator, and later."""
    _ok("teams", "create", "team_a")
    made = json.loads(_ok("keys", "create", "team_a", "--models", "small, large", "--json"))
    assert made["models"] == ["large", "small"]
    assert "small" in _ok("keys", "set", made["key_id"], "--models", "small")
    (listed,) = json.loads(_ok("keys", "list", "--json"))
    assert listed["models"] == ["small"]
    assert "all models of its team" in _ok("keys", "set", made["key_id"], "--models", "all")
    (listed,) = json.loads(_ok("keys", "list", "--json"))
    assert listed["models"] is None
    assert "`weighbridge keys list` has them all" in _fails("keys", "set", "key_nobodys", "--models", "small")


def test_a_keys_models_are_ones_that_there_are(config: Path) -> None:
    """Where a configuration is named: a misspelt one would allow nothing while its author believes it does."""
    named = ("--config", str(config))
    _ok("teams", "create", "team_a")
    assert "did you mean large?" in _fails("keys", "create", "team_a", "--models", "small,larg", *named, status=2)
    assert "`providers.models`" in _fails("keys", "create", "team_a", "--models", "gpt", *named, status=2)
    made = json.loads(_ok("keys", "create", "team_a", "--models", "small", "--json", *named))
    assert "did you mean small?" in _fails("keys", "set", made["key_id"], "--models", "smal", *named, status=2)


def test_a_reader_that_has_enough_is_told_nothing_of_a_database() -> None:
    """`… | head -1` ends without a word, as what it read was all that it wanted."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "gateway.cli", "classifier", "explain", "--all", "hi"]
    with os.fdopen(writing, "wb") as nobody:
        done = subprocess.run(command, cwd=ROOT, stdout=nobody, stderr=subprocess.PIPE, text=True, check=False)
    assert "database" not in done.stderr
    assert "Traceback" not in done.stderr
