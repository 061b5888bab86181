"""Daily reports: made for every team and organisation, written to a folder, put into the outbox; and when they are due.

What was delivered is remembered where it went: a folder has a mark in it, the outbox takes each report once. So of
several processes any may deliver, and none does it twice.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal, Protocol
from urllib.parse import quote

import msgspec
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.store import AccountStore, TeamRecord
from cost.budgets.budget import BudgetStatus
from cost.budgets.store import BudgetStore
from cost.reports.daily import DailyReader, DailyReport, plain_within
from cost.reports.daily_csv import daily_csv
from cost.reports.daily_html import daily_html
from cost.reports.report_config import ReportSection
from cost.reports.scope import ReadScope
from cost.times import DAY_US, day_of

_log = logging.getLogger("weighbridge.reports")

Format = Literal["html", "csv"]
FORMATS: Final[tuple[Format, ...]] = ("html", "csv")
MOST_MISSED_DAYS: Final = 3
MESSAGE_TYPE: Final = "report.daily"
_MAX_FIGURES_BYTES: Final = 18_000
"""Leaves room for the envelope: a message must be smaller than 20 kB."""
_DELIVERED: Final = ".delivered"
_LOCK: Final = ".lock"
_MINUTES_US: Final = 60_000_000


class OutboxWriter(Protocol):
    """The outbox, as far as reports need it."""

    async def put(self, message_id: str, destination: str, type: str, body: Mapping[str, Any]) -> bool:  # noqa: A002 - the standard's word
        """Keep a message once, whoever puts it."""
        ...


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """Whose report it is: a team's, or without one the organisation's."""

    scope: ReadScope
    title: str

    @property
    def file_stem(self) -> str:
        """A safe name. No team's has a dot, so none can pass for an organisation's."""
        whose = self.scope.organisation_id if self.scope.team_id is None else self.scope.team_id
        name = quote(whose, safe="").replace(".", "%2E")
        return f"organisation.{name}" if self.scope.team_id is None else name

    @property
    def message_name(self) -> str:
        if self.scope.team_id is None:
            return f"report/organisation/{self.scope.organisation_id}"
        return f"report/{self.scope.team_id}"


def due_days(now_us: int, at_minute: int, delivered: Collection[date]) -> list[date]:
    """The days to report now, the oldest first: the last one that is over, and what was missed shortly before. Pure."""
    today = day_of(now_us)
    early = now_us % DAY_US < at_minute * _MINUTES_US
    last = today - timedelta(days=2 if early else 1)
    days = [last - timedelta(days=back) for back in reversed(range(MOST_MISSED_DAYS))]
    return [day for day in days if day not in delivered]


def subjects_of(teams: Iterable[TeamRecord]) -> list[Subject]:
    """Every organisation, and each of its teams."""
    kept = sorted(teams, key=lambda team: (team.organisation_id, team.team_id))
    organisations = dict.fromkeys(team.organisation_id for team in kept)
    whole = [
        Subject(scope=ReadScope(organisation_id=each, team_id=None), title=f"organisation {each}")
        for each in organisations
    ]
    return whole + [subject_of(team) for team in kept]


def subject_of(team: TeamRecord) -> Subject:
    """One team."""
    title = team.name if team.name == team.team_id else f"{team.name} ({team.team_id})"
    return Subject(scope=ReadScope(organisation_id=team.organisation_id, team_id=team.team_id), title=title)


def rendered(report: DailyReport, kind: Format, made_at: datetime) -> str:
    """The content of one file."""
    if kind == "csv":
        return daily_csv(report)
    return daily_html(report, made_at.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC"))


def write(
    folder: Path, subject: Subject, report: DailyReport, formats: Sequence[Format], made_at: datetime
) -> list[Path]:
    """Writes `<folder>/<day>/<team>.<format>`. A reader finds the old file or the whole new one."""
    place = folder / report.day.isoformat()
    place.mkdir(parents=True, exist_ok=True)
    written = []
    for kind in formats:
        path = place / f"{subject.file_stem}.{kind}"
        _replace(path, rendered(report, kind, made_at))
        written.append(path)
    return written


class ReportReader:
    """Reads reports of any subject, with the budgets that it should know of."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._daily = DailyReader(engine)
        self._budgets = BudgetStore(engine)

    async def read(self, subject: Subject, day: date) -> DailyReport:
        """One subject's day."""
        standings = await self._budgets.of_organisation(subject.scope.organisation_id)
        return await self._daily.read(subject.scope, day, subject.title, _of(subject.scope, standings))


class DailyReports:
    """Delivers what is due: observes the time and what was delivered, decides, acts."""

    def __init__(self, engine: AsyncEngine, section: ReportSection, outbox: OutboxWriter | None) -> None:
        self._accounts = AccountStore(engine)
        self._reader = ReportReader(engine)
        self._section = section
        self._outbox = outbox
        self._delivered: set[date] = set()

    async def deliver_due(self, now_us: int) -> list[date]:
        """Delivers what is due at this moment; the days that were delivered by this call."""
        if not due_days(now_us, self._section.at_minute, self._delivered):
            return []
        with self._alone() as alone:
            if not alone:
                return []
            delivered = await asyncio.to_thread(self._marked)
            days = due_days(now_us, self._section.at_minute, delivered)
            for day in days:
                await self._deliver(day, now_us)
            self._delivered = {*delivered, *days}
            return days

    async def _deliver(self, day: date, now_us: int) -> None:
        made_at = datetime.fromtimestamp(now_us // 1_000_000, UTC)
        for subject in subjects_of(await self._accounts.list_teams()):
            report = await self._reader.read(subject, day)
            if report.is_empty:
                continue
            if self._section.folder is not None:
                await asyncio.to_thread(write, self._section.folder, subject, report, FORMATS, made_at)
            await self._put(subject, report)
        if self._section.folder is not None:
            await asyncio.to_thread(self._mark, self._section.folder / day.isoformat())
        _log.info("the reports of %s are delivered", day)

    async def _put(self, subject: Subject, report: DailyReport) -> None:
        if self._outbox is not None and self._section.webhook is not None:
            name = f"{subject.message_name}/{report.day}"
            await self._outbox.put(name, self._section.webhook, MESSAGE_TYPE, plain_within(report, _MAX_FIGURES_BYTES))

    @contextlib.contextmanager
    def _alone(self) -> Iterator[bool]:
        """Whether nobody else writes to the folder now. The system ends a lock with the process that held it."""
        folder = self._section.folder
        if folder is None:
            yield True
            return
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / _LOCK).open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    def _marked(self) -> set[date]:
        """What this process or, by the marks, any other has delivered."""
        folder = self._section.folder
        if folder is None:
            return set(self._delivered)
        found = set()
        for mark in folder.glob(f"????-??-??/{_DELIVERED}"):
            with contextlib.suppress(ValueError):
                found.add(date.fromisoformat(mark.parent.name))
        return found

    def _mark(self, place: Path) -> None:
        place.mkdir(parents=True, exist_ok=True)
        (place / _DELIVERED).touch()


def _of(scope: ReadScope, standings: Sequence[BudgetStatus]) -> list[BudgetStatus]:
    """A team's report shows its own budgets, the organisation's those of all but single keys."""
    if scope.team_id is None:
        return [each for each in standings if each.budget.scope != "key"]
    return [each for each in standings if each.budget.scope == "team" and each.budget.scope_id == scope.team_id]


def _replace(path: Path, content: str) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(content)
        # Such a file is only its owner's at first; a report is as readable as its folder.
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
