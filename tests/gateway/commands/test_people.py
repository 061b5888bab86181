"""`weighbridge people`: from the first administrator on."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli import app
from tests.sqlite import newest_sqlite

PEPPER = "ab" * 32


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("WEIGHBRIDGE_") or name == "DATABASE_URL":
            monkeypatch.delenv(name)
    monkeypatch.setenv("WEIGHBRIDGE_DATA_DIR", str(tmp_path / "data"))
    newest_sqlite(tmp_path / "data" / "weighbridge.sqlite")
    monkeypatch.setenv("WEIGHBRIDGE_PEPPER", PEPPER)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def ok(*arguments: str) -> str:
    result = run("people", *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_first_administrator_is_let_in() -> None:
    """The link stands alone on standard output; a second one replaces it and keeps the role."""
    first = run("people", "invite", "Ada@Acme.test", "--role", "admin", "--name", "Ada")
    assert first.stdout.startswith("http://127.0.0.1:8080/dashboard/welcome/")
    assert first.stdout.count("\n") == 1
    assert "ada@acme.test" in first.stderr
    assert "for 1 day, once" in first.stderr
    assert "sign_in.public_url" in first.stderr
    again = json.loads(ok("invite", "ada@acme.test", "--json"))
    assert (again["role"], again["name"], again["link_expires_s"]) == ("admin", "Ada", 86_400)
    assert again["link"] not in first.stdout
    assert ok("link", "ada@acme.test").startswith("http://127.0.0.1:8080/dashboard/welcome/")


def test_people_are_listed_with_their_teams() -> None:
    """By e-mail address, for people and for programs, of one organisation or of all."""
    assert "no people yet" in run("people", "list").stderr
    for organisation in ("acme", "rival"):
        run("organisations", "create", organisation)
        run("teams", "create", f"{organisation}_team", "--organisation", organisation)
    ok("invite", "bob@acme.test", "--organisation", "acme", "--team", "acme_team", "--team-role", "admin")
    ok("invite", "eve@rival.test", "--organisation", "rival", "--role", "finance")
    heading, bob, eve = ok("list").splitlines()
    assert heading.startswith("e-mail")
    assert "acme_team (admin)" in bob
    assert "finance" in eve
    [only] = json.loads(ok("list", "--organisation", "acme", "--json"))
    assert (only["email"], only["role"], only["teams"]) == ("bob@acme.test", "", {"acme_team": "admin"})
    assert not any("password" in name and only[name] not in {False, True} for name in only)


def test_what_cannot_be_is_refused() -> None:
    """Each refusal says what is wrong, and leaves nobody behind."""
    run("organisations", "create", "acme")
    run("teams", "create", "team_default")
    for arguments, told in (
        (("invite", "no-address"), "name@example.com"),
        (("invite", "eve@a.test", "--organisation", "nowhere"), "nowhere"),
        (("invite", "eve@a.test", "--team", "nope"), "nope"),
        (("invite", "eve@a.test", "--organisation", "acme", "--team", "team_default"), "has no team"),
        (("invite", "eve@a.test", "--organisation", "acme", "--role", "operator"), "runs the gateway"),
        (("link", "eve@a.test"), "people list"),
        (("disable", "eve@a.test"), "people list"),
        (("sign-out", "eve@a.test"), "people list"),
    ):
        result = run("people", *arguments)
        assert result.exit_code == 1, result.output
        assert told in result.stderr
        assert "Traceback" not in result.output
    assert json.loads(ok("list", "--json")) == []


def test_people_are_disabled_and_let_in_again() -> None:
    """The last administrator stays; who is disabled gets no link; each step is in the audit log, without a token."""
    ok("invite", "ada@acme.test", "--role", "admin")
    assert "last administrator" in run("people", "disable", "ada@acme.test").stderr
    link = ok("invite", "bob@acme.test", "--role", "admin").strip()
    assert "have ended" in ok("disable", "ada@acme.test")
    assert "enable them first" in run("people", "link", "ada@acme.test").stderr
    assert ok("enable", "ada@acme.test") == "enabled ada@acme.test\n"
    assert ok("sign-out", "ada@acme.test") == "ada@acme.test: 0 sessions ended\n"
    assert "try again" in ok("unlock", "ada@acme.test")
    log = run("audit", "list", "--json").stdout
    for action in ("person.disabled", "person.enabled", "person.unlocked", "person.link_made"):
        assert action in log
    assert link.rpartition("/")[2] not in log


def test_without_a_pepper_nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A link under a pepper that no server has would open nothing."""
    monkeypatch.delenv("WEIGHBRIDGE_PEPPER")
    result = run("people", "invite", "ada@acme.test")
    assert result.exit_code == 1
    assert "WEIGHBRIDGE_PEPPER" in result.stderr
