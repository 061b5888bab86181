"""When daily reports are due, and that each is delivered once, whole, and to where it belongs."""

import asyncio
import fcntl
import os
import stat
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.store import AccountStore
from api.webhooks.outbox import Outbox
from cost.budgets.budget import Budget
from cost.budgets.store import BudgetStore
from cost.ledger.store import LedgerStore
from cost.reports.report_config import ReportSection
from cost.reports.scope import ReadScope
from dashboards.finance.daily_reports import DailyReports, ReportReader, Subject, due_days, rendered, write
from gateway.configuration.file import ConfigError
from tests.cost.reports.days import DAY, DAY_LENGTH_US, DAY_US, HOSTILE, books
from tests.running_gateway import model, running_gateway

SIX = 6 * 3_600_000_000
NEXT_MORNING_US = DAY_US + DAY_LENGTH_US + SIX
MADE_AT = datetime(2026, 11, 21, 6, 0, tzinfo=UTC)


def days(*numbers: int) -> list[date]:
    return [date(2026, 11, number) for number in numbers]


@pytest.mark.parametrize(
    ("now_us", "delivered", "due"),
    [
        (NEXT_MORNING_US, days(), days(18, 19, 20)),
        (NEXT_MORNING_US - 1, days(), days(17, 18, 19)),
        (NEXT_MORNING_US - 1, days(17, 18, 19), []),
        (NEXT_MORNING_US, days(17, 18, 19), days(20)),
        (NEXT_MORNING_US, days(18, 19, 20), []),
        (NEXT_MORNING_US + 10 * DAY_LENGTH_US, days(18, 19, 20), days(28, 29, 30)),
        (NEXT_MORNING_US, days(19), days(18, 20)),
    ],
)
def test_what_is_due(now_us: int, delivered: list[date], due: list[date]) -> None:
    """Nothing before the time of day; the last day after it; and at most three days of what was missed."""
    assert due_days(now_us, 360, delivered) == due


def found(folder: Path, pattern: str) -> list[Path]:
    return list(folder.rglob(pattern))


@pytest.fixture
async def booked(engine: AsyncEngine) -> AsyncEngine:
    """Two teams with books and one without, and a budget of one."""
    await LedgerStore(engine).insert(books())
    accounts = AccountStore(engine)
    await accounts.create_team("team_a", name=HOSTILE)
    await accounts.create_team("team_b", name="Team B")
    await accounts.create_team("team_idle", name="Idle")
    for scope_id in ("team_a", "team_b"):
        await BudgetStore(engine).put(
            Budget(
                budget_id=f"budget_{scope_id}",
                organisation_id="default",
                scope="team",
                scope_id=scope_id,
                period="month",
                kind="soft",
                limit_nanousd=5_000_000_000_000,
            )
        )
    return engine


async def messages(engine: AsyncEngine) -> dict[str, Any]:
    """The outbox, by id."""
    async with engine.connect() as connection:
        rows = await connection.execute(text("SELECT message_id, body, destination FROM webhook_message"))
        return {row.message_id: msgspec.json.decode(row.body) for row in rows}


async def test_a_day_is_written_and_sent_once(booked: AsyncEngine, tmp_path: Path) -> None:
    """A file and a message for the organisation and each team that has books; a second process adds nothing."""
    section = ReportSection(folder=tmp_path / "reports", webhook="finance")
    first, second = (DailyReports(booked, section, Outbox(booked)) for _ in range(2))
    assert await first.deliver_due(NEXT_MORNING_US) == days(18, 19, 20)
    names = {path.name for path in (tmp_path / "reports" / "2026-11-20").iterdir()}
    stems = ("organisation.default", "team_a", "team_b")
    assert names == {f"{stem}.{kind}" for stem in stems for kind in ("html", "csv")} | {".delivered"}
    sent = await messages(booked)
    # Two days of three, and a first one on which team_a had nothing yet.
    assert len(sent) == 8
    data = sent["report/team_a/2026-11-20"]["data"]
    assert (data["team_id"], data["cost_usd"]) == ("team_a", "3.001000001")
    assert [each["scope_id"] for each in data["budgets"]] == ["team_a"]
    whole = sent["report/organisation/default/2026-11-20"]["data"]
    assert (whole["team_id"], [each["name"] for each in whole["teams"]]) == (None, ["team_a", "team_b", ""])
    before = {path: path.stat().st_mtime_ns for path in found(tmp_path, "*.html")}
    assert await second.deliver_due(NEXT_MORNING_US) == []
    assert await first.deliver_due(NEXT_MORNING_US + 1) == []
    assert {path: path.stat().st_mtime_ns for path in found(tmp_path, "*.html")} == before
    assert await second.deliver_due(NEXT_MORNING_US + DAY_LENGTH_US) == days(21)


async def test_reports_are_nobody_elses_to_read(booked: AsyncEngine, tmp_path: Path) -> None:
    """Whatever the umask, each file is 0600 and each folder 0700: reports, the mark of a day and the lock."""
    before = os.umask(0)
    try:
        await DailyReports(booked, ReportSection(folder=tmp_path / "reports"), None).deliver_due(NEXT_MORNING_US)
    finally:
        os.umask(before)
    made = [tmp_path / "reports", *found(tmp_path / "reports", "*")]
    assert {".lock", ".delivered", "team_a.html", "team_a.csv"} <= {path.name for path in made}
    assert {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in made} == {(True, 0o700), (False, 0o600)}


async def test_only_one_process_delivers(booked: AsyncEngine, tmp_path: Path) -> None:
    """While another holds the folder, nothing is done; later it is found done, or done then."""
    section = ReportSection(folder=tmp_path)
    reports = DailyReports(booked, section, None)
    with (tmp_path / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert await reports.deliver_due(NEXT_MORNING_US) == []
        assert not found(tmp_path, "2026*")
    both = await asyncio.gather(
        *(each.deliver_due(NEXT_MORNING_US) for each in (reports, DailyReports(booked, section, None)))
    )
    assert sorted(map(len, both)) == [0, 3]


async def test_without_a_folder_the_outbox_keeps_it_single(booked: AsyncEngine) -> None:
    """Two processes put the same ids, so each report is there once."""
    section = ReportSection(webhook="finance")
    await asyncio.gather(
        *(DailyReports(booked, section, Outbox(booked)).deliver_due(NEXT_MORNING_US) for _ in range(2))
    )
    assert len(await messages(booked)) == 8


async def test_a_failure_leaves_the_day_due(booked: AsyncEngine, tmp_path: Path) -> None:
    """A day is marked when all of it is delivered, and not before."""

    class Full(Outbox):
        async def put(self, *_arguments: Any, **_named: Any) -> bool:
            raise OSError("no room")

    section = ReportSection(folder=tmp_path, webhook="finance")
    with pytest.raises(OSError, match="no room"):
        await DailyReports(booked, section, Full(booked)).deliver_due(NEXT_MORNING_US)
    assert not found(tmp_path, ".delivered")
    assert await DailyReports(booked, section, Outbox(booked)).deliver_due(NEXT_MORNING_US) == days(18, 19, 20)


async def test_names_cannot_leave_the_folder(booked: AsyncEngine, tmp_path: Path) -> None:
    """Whatever an id is made of, its file stands in the day's folder; and no team passes for an organisation."""
    for team_id in ("../../etc/x", "a/b", "..", "organisation.default"):
        subject = Subject(scope=ReadScope(organisation_id="default", team_id=team_id), title=team_id)
        report = await ReportReader(booked).read(subject, DAY)
        (path,) = write(tmp_path, subject, report, ["csv"], MADE_AT)
        assert path.parent == tmp_path / "2026-11-20"
        assert path.resolve().parent == path.parent.resolve()
    assert found(tmp_path, ".*") == []


async def test_both_formats_are_rendered(booked: AsyncEngine) -> None:
    """The same report as a page and as a table; the page says when it was made."""
    scope = ReadScope(organisation_id="default", team_id="team_a")
    report = await ReportReader(booked).read(Subject(scope=scope, title="A"), DAY)
    assert "Made 2026-11-21 06:00 UTC" in rendered(report, "html", MADE_AT)
    assert rendered(report, "csv", MADE_AT).startswith("day,organisation,team")


async def test_a_gateway_starts_with_reports(tmp_path: Path) -> None:
    """The section is wired, and a webhook that nobody configured is refused when the file is read."""
    async with running_gateway(tmp_path, MODELS, cost={"report": {"folder": str(tmp_path / "reports")}}) as gateway:
        assert gateway.url
    with pytest.raises(ConfigError, match="no destination of `webhooks` has this name"):
        async with running_gateway(tmp_path, MODELS, cost={"report": {"webhook": "finance"}}):
            pass


MODELS = [model("small", [{"name": "main", "kind": "scripted"}])]
