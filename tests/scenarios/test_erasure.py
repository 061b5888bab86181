"""Erasure over the admin API and by command, of what a running gateway keeps of real requests."""

import json
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import openai
import pytest
from typer.testing import CliRunner

from gateway.cli import app
from tests.api.admin_api.calls import call, globex, key_of
from tests.providers.wires import provider
from tests.running_gateway import DEAR_PRICES, PEPPER, running_gateway
from tests.scenarios.test_lying_upstreams import telling
from tests.scenarios.test_model_facts import bare, client
from tests.sqlite import newest_sqlite

_USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
_SECRET = "a very private question"


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MADE_UP_KEY", "made-up")


async def _ask(ask: openai.AsyncOpenAI, user: str) -> str:
    """Leave behind of this end user a kept response, an answer under an Idempotency-Key, and the books; return the response's id."""
    kept = await ask.responses.create(model="some-model", input=_SECRET, user=user)
    await ask.chat.completions.create(
        model="some-model",
        messages=[{"role": "user", "content": _SECRET}],
        user=user,
        extra_headers={"idempotency-key": f"of-{user}"},
    )
    return kept.id


async def test_an_end_user_is_erased_over_the_api(tmp_path: Path) -> None:
    """Their response is gone, another's is there, and the books have the amounts; only administrators of their own organisation may."""
    async with provider(telling(_USAGE)) as served:
        entry = bare("some-model", served, provider="elsewhere", prices=DEAR_PRICES)
        async with running_gateway(tmp_path, [entry]) as gateway, client(gateway) as ask:
            theirs, others = await _ask(ask, "cust-4711"), await _ask(ask, "cust-4712")
            booked = sum(row["cost_nanousd"] for row in await gateway.rows("entry = 'settle'"))
            admin, stranger = await key_of(gateway, "admin"), await globex(gateway)
            wanted = {"person": "cust-4711", "dry_run": False}
            for key in (await key_of(gateway, "member"), await key_of(gateway, "finance")):
                assert (await call(gateway, "POST", "/erasures", key, wanted)).status == 403
            assert (await call(gateway, "POST", "/erasures", stranger, wanted)).body["rows"] == {}
            counted = await call(gateway, "POST", "/erasures", admin, {"person": "cust-4711"})
            assert (await ask.responses.retrieve(theirs)).id == theirs
            told = await call(gateway, "POST", "/erasures", admin, wanted)
            assert told.status == 200
            assert counted.body["rows"] == told.body["rows"]
            assert {"stored_response": 1, "idempotent_request": 1} | told.body["rows"] == told.body["rows"]
            with pytest.raises(openai.NotFoundError):
                await ask.responses.retrieve(theirs)
            assert (await ask.responses.retrieve(others)).id == others
            rows = await gateway.rows("entry = 'settle'")
            assert sum(row["cost_nanousd"] for row in rows) == booked
            assert sorted({row["end_user"] for row in rows}) == ["", "cust-4712"]


async def test_a_teams_content_is_erased_over_the_api(tmp_path: Path) -> None:
    """By its organisation's administrators; a stranger does not even learn that there is such a team."""
    async with provider(telling(_USAGE)) as served:
        entry = bare("some-model", served, provider="elsewhere", prices=DEAR_PRICES)
        async with running_gateway(tmp_path, [entry]) as gateway, client(gateway) as ask:
            kept = await _ask(ask, "cust-4711")
            file = await ask.files.create(file=("in.jsonl", b'{"a": 1}\n'), purpose="batch")
            admin, stranger, member = (
                await key_of(gateway, "admin"),
                await globex(gateway),
                await key_of(gateway, "member"),
            )
            path, wanted = "/teams/team_a/erasures", {"dry_run": False}
            assert (await call(gateway, "POST", path, stranger, wanted)).status == 404
            assert (await call(gateway, "POST", path, member, wanted)).status == 403
            assert (await call(gateway, "POST", path, admin, {"before": "tomorrow"})).param == "before"
            early = await call(gateway, "POST", path, admin, {"before": "2026-01-01", **wanted})
            assert early.body["rows"] == {}
            told = await call(gateway, "POST", path, admin, wanted)
            assert {"stored_response": 1, "idempotent_request": 1, "stored_file": 1} | told.body["rows"] == told.body[
                "rows"
            ]
            with pytest.raises(openai.NotFoundError):
                await ask.responses.retrieve(kept)
            with pytest.raises(openai.NotFoundError):
                await ask.files.content(file.id)
            assert not [name for _, _, names in os.walk(tmp_path) for name in names if name == file.id]
            assert len(await gateway.rows("entry = 'settle'")) == 2


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder for commands."""
    for name in [each for each in os.environ if each.startswith("WEIGHBRIDGE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WEIGHBRIDGE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("WEIGHBRIDGE_PEPPER", PEPPER)
    newest_sqlite(tmp_path / "data" / "weighbridge.sqlite")
    return tmp_path / "data" / "weighbridge.sqlite"


def _run(*arguments: str) -> Any:
    return CliRunner().invoke(app, arguments)


def test_the_command_counts_first_and_says_what_stays(site: Path) -> None:
    """And leaves nothing of the person in the file."""
    for name in ("ada", "ben"):
        _run("people", "invite", f"{name}@acme.example", "--role", "admin", "--name", f"{name.title()} Example")
    counted = _run("erase", "person", "--email", "ada@acme.example", "--dry-run")
    assert counted.exit_code == 0, counted.output
    assert "would be erased; nothing was" in counted.stderr
    assert "who signed the books" not in counted.stdout
    told = json.loads(_run("erase", "person", "--email", "ada@acme.example", "--json").stdout)
    assert told["rows"]["person"] == 1
    assert _run("audit", "verify").exit_code == 0
    for path in site.parent.glob(f"{site.name}*"):
        assert b"ada@acme" not in path.read_bytes()
    again = _run("erase", "person", "--email", "ada@acme.example")
    assert again.exit_code == 0
    assert "nobody and nothing of default is known by 'ada@acme.example'" in again.output
    assert "kept:" not in again.output
    assert _run("erase", "person").exit_code == 2
    assert _run("erase", "team", "team_x", "everything").exit_code == 2


_ENTRY = (
    "INSERT INTO ledger_entry (request_id, attempt, entry, at_us, boot_id, organisation_id, team_id, key_id, tier, alias, target_id, "
    "deployment_id, provider, price_version, input_tokens, cached_input_tokens, cache_write_tokens, output_tokens, reasoning_tokens, "
    "usage_source, flags, status, stream, reason, end_user) VALUES (?, 1, 'settle', ?, '', 'default', 'team_x', '', '', '', '', '', '', "
    "'', 0, 0, 0, 0, 0, '', '[]', 200, 0, '', 'cust-1')"
)


def test_a_command_that_is_killed_is_finished_by_the_next(site: Path) -> None:
    """Killed in the middle, the database is sound, and the second run leaves nothing."""
    _run("teams", "create", "team_x")
    with sqlite3.connect(site) as plain:
        plain.executemany(_ENTRY, [(f"r{number}", number) for number in range(20_000)])

    def erased() -> int:
        with sqlite3.connect(site) as plain:
            return int(plain.execute("SELECT count(*) FROM ledger_entry WHERE end_user = ''").fetchone()[0])

    running = subprocess.Popen([sys.executable, "-m", "gateway.cli", "erase", "person", "cust-1"])
    try:
        while running.poll() is None and not erased():
            time.sleep(0.01)
    finally:
        running.kill()
        running.wait()
    assert 0 < erased() < 20_000
    assert _run("erase", "person", "cust-1").exit_code == 0
    assert erased() == 20_000
    assert _run("audit", "verify").exit_code == 0
