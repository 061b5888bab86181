"""Erasures in the audit log, and what a restore of an older backup says of them."""

import shlex
from datetime import date
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest
import typer
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.audit.log import AuditLog
from accounts.people.person import Person
from accounts.store import AccountStore
from api.erasure.change import erase_content, erase_person
from api.erasure.past import past_erasures
from cost.times import start_of
from gateway.backup import back_up, restore
from gateway.commands.erase import erase_app
from proxy.batch.blobs import LocalBlobs
from tests.api.erasure.test_erasure import ADA, BOSS, OTHER, USER, ada, everything, fill

__all__ = ["ada"]
pytestmark = pytest.mark.story


async def test_a_restore_says_what_was_erased_since(engine: AsyncEngine, ada: Person, tmp_path: Path) -> None:
    """An older backup brings people and prompts back; whoever restores it is told which, by the commands that erase them again."""
    log = AuditLog(engine)
    await fill(engine, ada, (USER, OTHER))
    await erase_person(engine, log, BOSS, "acme", OTHER, operator="acme", dry_run=False)
    await back_up(engine, None, tmp_path / "old.tar.gz")
    await erase_person(engine, log, BOSS, "acme", ADA, operator="acme", dry_run=False)
    await erase_person(engine, log, BOSS, "acme", USER, operator="acme", dry_run=False, reason="ticket 812")
    await erase_content(
        engine,
        log,
        BOSS,
        "acme",
        "team_acme",
        before_us=start_of(date(2026, 6, 1)),
        blobs=LocalBlobs(tmp_path),
        dry_run=False,
    )
    done = await restore(engine, None, tmp_path / "old.tar.gz", replace=True, say=lambda _: None)
    assert any(ADA in row for row in await everything(engine, "person"))
    assert [(each.command, each.reason) for each in done.erased_since] == [
        (f"weighbridge erase person {ada.person_id} --organisation acme", ""),
        ("", "ticket 812"),
        ("weighbridge erase team --before 2026-06-01 team_acme content", ""),
    ]
    # As of the newest backup nothing is back.
    newest = tmp_path / "new" / "new.tar.gz"
    newest.parent.mkdir()
    await back_up(engine, None, newest)
    again = await restore(engine, None, newest, replace=True, say=lambda _: None)
    assert again.erased_since == ()
    assert len(await past_erasures(engine)) == 1


@pytest.mark.parametrize("team_id", ["--dry-run", "-h", "team-x"])
async def test_a_teams_id_is_no_option_of_the_command(engine: AsyncEngine, team_id: str, tmp_path: Path) -> None:
    """An administrator chooses ids; the operator copies the command, which must erase what it says."""
    log, accounts = AuditLog(engine), AccountStore(engine)
    await accounts.create_team(team_id)
    found = await erase_content(
        engine,
        log,
        BOSS,
        "default",
        team_id,
        before_us=start_of(date(2026, 6, 1)),
        blobs=LocalBlobs(tmp_path),
        dry_run=False,
    )
    assert not found.dry_run
    (past,) = await past_erasures(engine)
    given: list[dict[str, object]] = []
    asked = cast(Any, typer.main.get_command(erase_app))
    with mock.patch.object(asked.commands["team"], "callback", lambda **told: given.append(told)):
        asked.main(shlex.split(past.command)[2:], standalone_mode=False)
    assert [(told["team_id"], told["what"], told["before"], told["dry_run"]) for told in given] == [
        (team_id, "content", "2026-06-01", False)
    ]
