"""What every change shares: one transaction, and refusals in words."""

from pathlib import Path

import pytest
from sqlalchemy import text

from accounts.audit.log import AuditLog
from accounts.errors import AccountsError, BadName
from accounts.store import AccountStore
from api.teams.change import put_team
from api.web.changing import changing, checked_reason, looking, refusals
from gateway.database import make_engine
from proxy.errors import BadRequest, ChangesUnavailable, Refused
from tests.api.changes.bench import ANN, PEPPER, Bench
from tests.postgres import Postgres


async def test_a_change_that_fails_leaves_nothing(bench: Bench) -> None:
    """Neither what its stores did nor its entry, however late it fails."""

    async def fail_late() -> None:
        async with changing(bench.log, ANN, "team.set", "acme", team_id="red") as change:
            store = AccountStore(change.within)
            await store.update_team("red", name="Crimson")
            await store.create_key("red", "ci", PEPPER)
            change.tell("team", "red", {"name": "red"}, {"name": "Crimson"})
            await store.update_team("red", name="")

    with pytest.raises(BadRequest, match="printable"):
        await fail_late()
    assert await bench.accounts.get_team("red") == bench.team
    assert await bench.accounts.list_keys() == []
    assert await bench.entries() == []


async def test_after_a_failure_the_log_goes_on(bench: Bench) -> None:
    """The head is free again, and its numbers have no gap."""
    for name in ("", "Crimson", "", "Ruby"):
        try:
            await put_team(bench.log, ANN, "acme", "red", name=name)
        except BadRequest:
            continue
    assert [after["name"] for _, _, _, after in await bench.entries()] == ["Crimson", "Ruby"]
    assert (await bench.log.verify()).sound


async def test_a_database_that_does_not_answer_is_told(tmp_path: Path) -> None:
    """As something to be tried again, without the driver's words."""
    engine = make_engine(f"sqlite:///{tmp_path}/nowhere/weighbridge.sqlite")
    with pytest.raises(ChangesUnavailable, match="try again") as told:
        await put_team(AuditLog(engine), ANN, "acme", "red")
    assert "sqlite" not in told.value.message
    with pytest.raises(ChangesUnavailable):
        async with looking():
            await AccountStore(engine).teams_of("acme")
    await engine.dispose()


def test_every_error_of_accounts_is_a_refusal() -> None:
    """Also one that nobody thought of: it becomes a sentence, and never a failure of the gateway."""

    class New(AccountsError):
        pass

    for error, said in ((New("it is so"), "It is so."), (BadName("a name has characters."), "A name has characters.")):
        with pytest.raises(Refused) as told, refusals():
            raise error
        assert told.value.message == said


@pytest.mark.parametrize("reason", ["x" * 501, "a\x00b", "a\u202eb"])
def test_a_reason_is_bounded_text(reason: str) -> None:
    """What would spoil the log is refused."""
    with pytest.raises(BadRequest):
        checked_reason(reason)


def test_a_reason_stands_on_one_line() -> None:
    """Line ends and spaces become one space."""
    assert checked_reason("  because\r\n of\tit ") == "because of it"


async def test_a_value_that_no_database_takes_is_the_callers(postgres: Postgres) -> None:
    """Trying again would not help."""
    engine = make_engine(await postgres.empty_database())
    with pytest.raises(BadRequest, match="NUL character"):
        async with looking(), engine.connect() as connection:
            await connection.execute(text("SELECT CAST(:value AS VARCHAR)"), {"value": "a\0b"})
    await engine.dispose()
