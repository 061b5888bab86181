"""`weighbridge import litellm` and `weighbridge keys import`: what they print and write, with which exit status, and what they never do."""

import json
import os
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from accounts.keys import token_of
from gateway.cli import app
from tests.sqlite import newest_sqlite

GOOD = """\
model_list:
  - model_name: gpt-4o
    litellm_params: {model: openai/gpt-4o, api_key: os.environ/OPENAI_API_KEY}
litellm_settings: {drop_params: true}
"""
SECRET = "sk-proj-aaaaBBBBccccDDDDeeeeFFFF"
LITERAL = GOOD.replace("os.environ/OPENAI_API_KEY", SECRET)


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("WEIGHBRIDGE_") or name in {"DATABASE_URL", "OPENAI_API_KEY", "LITELLM_MASTER_KEY"}:
            monkeypatch.delenv(name)
    monkeypatch.setenv("WEIGHBRIDGE_PEPPER", "0123456789abcdef" * 2)
    monkeypatch.setenv("WEIGHBRIDGE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    newest_sqlite(tmp_path / "data" / "weighbridge.sqlite")


def run(*words: str) -> Result:
    """Run the command line."""
    return CliRunner().invoke(app, list(words))


def test_it_writes_what_the_check_passes(tmp_path: Path) -> None:
    """The table has a line for each value, and what was written is sound; nothing not possible is status 0."""
    (tmp_path / "config.yaml").write_text(GOOD)
    done = run("import", "litellm", "config.yaml")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["line", "where", "became", "how"]
    # Aligned: the third column begins at the same place everywhere.
    place = lines[0].index("became")
    assert {line[place - 1] for line in lines} == {" "}
    assert {line[place:].split("  ")[0] for line in lines[1:]} == {"kept", "not needed"}
    assert run("config", "check", "weighbridge.yaml").exit_code == 0
    assert "OPENAI_API_KEY" in done.stderr


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    """The same words, and no file."""
    (tmp_path / "config.yaml").write_text(LITERAL)
    done = run("import", "litellm", "config.yaml", "--dry-run", "--secrets", "secrets.env")
    assert done.exit_code == 0
    assert {each.name for each in tmp_path.iterdir()} == {"config.yaml", "data"}


def test_what_is_not_possible_is_status_1(tmp_path: Path) -> None:
    """A script sees that something was left out; the file is written all the same."""
    (tmp_path / "config.yaml").write_text(GOOD + "a_key_of_tomorrow: 1\n")
    assert run("import", "litellm", "config.yaml", "--out", "ours.yaml").exit_code == 1
    assert (tmp_path / "ours.yaml").is_file()


def test_literal_secrets_go_to_a_file_of_the_owner_alone(tmp_path: Path) -> None:
    """A secret is printed nowhere; where a file is named, it is there, for its owner."""
    (tmp_path / "config.yaml").write_text(LITERAL)
    done = run("import", "litellm", "config.yaml", "--secrets", "secrets.env")
    assert SECRET not in done.output
    assert SECRET not in (tmp_path / "weighbridge.yaml").read_text()
    assert "literal secrets that have to be set: OPENAI_API_KEY" in done.stderr
    kept = tmp_path / "secrets.env"
    assert kept.read_text() == f"OPENAI_API_KEY={SECRET}\n"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_the_file_of_secrets_is_there_where_there_are_none(tmp_path: Path) -> None:
    """What the page has next reads it."""
    (tmp_path / "config.yaml").write_text(GOOD)
    assert run("import", "litellm", "config.yaml", "--secrets", "secrets.env").exit_code == 0
    assert (tmp_path / "secrets.env").read_text() == ""


def test_on_the_day_of_the_switch_it_runs_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a new shell, in the folder that has our database, pepper and file by then: they are found by the file, and nothing is taken for lost."""
    monkeypatch.delenv("WEIGHBRIDGE_DATA_DIR")
    monkeypatch.delenv("WEIGHBRIDGE_PEPPER")
    (tmp_path / "config.yaml").write_text(GOOD)
    assert run("import", "litellm", "config.yaml").exit_code == 0
    before = (tmp_path / "weighbridge.yaml").read_text()
    newest_sqlite(tmp_path / "var" / "weighbridge.sqlite")
    (tmp_path / "var" / "journal").mkdir()
    (tmp_path / "var" / "journal" / "1.log").write_text("something")
    again = run("import", "litellm", "config.yaml")
    assert again.exit_code == 0, again.output
    assert (tmp_path / "weighbridge.yaml").read_text() == before
    monkeypatch.setenv("THEIRS", "postgresql://litellm:secret-pw@127.0.0.1:1/litellm")
    with_database = run("import", "litellm", "config.yaml", "--database", "env:THEIRS", "--dry-run")
    assert "WEIGHBRIDGE_DATA_DIR" not in f"{with_database.output}{with_database.exception}"


def test_a_secret_that_fits_no_line_is_named(tmp_path: Path) -> None:
    """What no environment file can hold is not lost in silence."""
    (tmp_path / "config.yaml").write_text(GOOD.replace("os.environ/OPENAI_API_KEY", '"it\'s-a-secret-0123456789"'))
    done = run("import", "litellm", "config.yaml", "--secrets", "secrets.env")
    assert "set them yourself: OPENAI_API_KEY" in done.stderr
    assert "it's" not in done.output


def test_a_file_that_says_something_else_stays(tmp_path: Path) -> None:
    """Twice is once; a file that somebody has changed is never written over."""
    (tmp_path / "config.yaml").write_text(GOOD)
    assert run("import", "litellm", "config.yaml").exit_code == 0
    assert run("import", "litellm", "config.yaml").exit_code == 0
    (tmp_path / "weighbridge.yaml").write_text("# mine\n")
    done = run("import", "litellm", "config.yaml")
    assert done.exit_code == 2
    assert "is there already" in done.stderr
    assert (tmp_path / "weighbridge.yaml").read_text() == "# mine\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [("a: [1\n", "not valid YAML"), ("- a\n", "must be a mapping"), ("a: !!python/object:os.system x\n", "tag")],
)
def test_a_file_that_is_none_is_a_sentence(tmp_path: Path, text: str, words: str) -> None:
    """What cannot be read is told in a line, without a traceback."""
    (tmp_path / "config.yaml").write_text(text)
    done = run("import", "litellm", "config.yaml")
    assert done.exit_code == 1
    assert words in done.stderr
    assert "Traceback" not in done.output


def test_as_json_for_programs(tmp_path: Path) -> None:
    """Each line as an object."""
    (tmp_path / "config.yaml").write_text(GOOD)
    told = json.loads(run("import", "litellm", "config.yaml", "--json").stdout)
    assert {"file", "line", "place", "outcome", "words"} == told[0].keys()


def test_their_database_is_never_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both read DATABASE_URL: whoever has LiteLLM's there is told before anything is opened; a reference that is not set is a line."""
    monkeypatch.setenv("DATABASE_URL", "postgresql://litellm:secret-pw@127.0.0.1/litellm")
    done = run("import", "litellm", "--database", "env:DATABASE_URL")
    assert done.exit_code == 2
    assert "our own database" in done.stderr
    assert "secret-pw" not in done.output
    assert "NOWHERE is not set" in run("import", "litellm", "--database", "env:NOWHERE").stderr
    assert run("import", "litellm").exit_code == 2


def test_config_check_names_the_command(tmp_path: Path) -> None:
    """Whoever starts the gateway with LiteLLM's file is told what to do."""
    (tmp_path / "config.yaml").write_text(GOOD)
    done = run("config", "check", "config.yaml")
    assert done.exit_code == 1
    assert "weighbridge import litellm config.yaml" in done.stderr


def test_a_key_of_ones_own_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A master key becomes a key of the role admin, by the variable that has it, and is printed nowhere."""
    monkeypatch.setenv("LITELLM_MASTER_KEY", "sk-my-own-master-key-2024")
    assert run("teams", "create", "ops").exit_code == 0
    done = run("keys", "import", "ops", "--role", "admin", "--name", "master", "--from-env", "LITELLM_MASTER_KEY")
    assert done.exit_code == 0, done.output
    assert "master-key" not in done.output
    assert "imported_keys: true" in done.stderr
    (key,) = json.loads(run("keys", "list", "--json").stdout)
    assert (key["role"], key["last4"], key["name"]) == ("admin", "2024", "master")
    assert run("audit", "list", "--action", "key.imported").stdout.count("key.imported") == 1


def test_a_hash_of_litellm_is_imported_once() -> None:
    """The token of LiteLLM's database is enough; the same one again is refused in a line."""
    run("teams", "create", "payments")
    words = ("keys", "import", "payments", "--sha256", token_of("sk-some-key-0123456789"))
    assert run(*words).exit_code == 0
    again = run(*words)
    assert again.exit_code == 1
    assert "known already" in again.stderr


@pytest.mark.parametrize(
    "key", ["sk-1234", "sk-aaaaaaaaaaaaaaaaaaaa", "wb-0123456789ab-xyz", "", "sk-with space-0123456789\n\x01"]
)
def test_a_key_that_can_be_guessed_is_none(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    """The keys of tutorials, keys of our form and what is no key are refused."""
    run("teams", "create", "ops")
    monkeypatch.setenv("LITELLM_MASTER_KEY", key.replace("\x00", ""))
    done = run("keys", "import", "ops", "--from-env", "LITELLM_MASTER_KEY")
    assert done.exit_code == 2
    assert not key or key not in done.output


@pytest.mark.parametrize("words", [(), ("--from-env", "A", "--sha256", "b" * 64), ("--sha256", "zz")])
def test_it_says_what_it_needs(words: tuple[str, ...]) -> None:
    """One of the two, and a hash that is one."""
    run("teams", "create", "ops")
    assert run("keys", "import", "ops", *words).exit_code in {1, 2}
