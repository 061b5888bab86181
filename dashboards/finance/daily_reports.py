"""Daily reports of every team and organisation: scheduled, written to a folder, and put into the webhook outbox.

Delivery is recorded at its destination: a folder gets a mark file, and the outbox takes each message id once. So any
process may deliver, and none delivers twice.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final, Literal
from urllib.parse import quote

import msgspec
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.store import AccountStore, TeamRecord
from api.webhooks.outbox import Outbox
from cost.budgets.budget import BudgetStatus
from cost.budgets.store import BudgetStore
from cost.calendars import calendar_of, calendars_of
from cost.fleet.earnings import EarningsReader
from cost.fleet.pool_config import PoolSection
from cost.reports.daily import DailyReader, DailyReport, plain_within
from cost.reports.daily_csv import daily_csv
from cost.reports.daily_html import daily_html
from cost.reports.report_config import ReportSection
from cost.reports.scope import ReadScope
from cost.scopes import SCOPES
from cost.times import DAY_US, day_of, start_of, wall_us
from settings.private import private_file, private_folder

_log = logging.getLogger("weighbridge.reports")

Format = Literal["html", "csv"]
FORMATS: Final[tuple[Format, ...]] = ("html", "csv")
MOST_MISSED_DAYS: Final = 3
MESSAGE_TYPE: Final = "report.daily"
_MAX_FIGURES_BYTES: Final = 18_000
"""Most bytes of a message's figures; leaves room for the envelope, as a message must be smaller than 20 kB."""
_DELIVERED: Final = ".delivered"
_LOCK: Final = ".lock"
_MINUTES_US: Final = 60_000_000


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """A report's subject: a team, or an organisation where `scope.team_id` is None."""

    scope: ReadScope
    title: str

    @property
    def file_stem(self) -> str:
        """File name without suffix, percent-encoded. Teams' names have no dot, so none can collide with an
        organisation's.
        """
        whose = self.scope.organisation_id if self.scope.team_id is None else self.scope.team_id
        name = quote(whose, safe="").replace(".", "%2E")
        return f"organisation.{name}" if self.scope.team_id is None else name

    @property
    def message_name(self) -> str:
        if self.scope.team_id is None:
            return f"report/organisation/{self.scope.organisation_id}"
        return f"report/{self.scope.team_id}"


def due_days(now_us: int, at_minute: int, delivered: Collection[date]) -> list[date]:
    """Return days to report now, oldest first: the last complete day, and missed ones shortly before. Pure."""
    today = day_of(now_us)
    early = now_us % DAY_US < at_minute * _MINUTES_US
    last = today - timedelta(days=2 if early else 1)
    days = [last - timedelta(days=back) for back in reversed(range(MOST_MISSED_DAYS))]
    return [day for day in days if day not in delivered]


def subjects_of(teams: Iterable[TeamRecord]) -> list[Subject]:
    """Return every organisation of these teams, then each team."""
    kept = sorted(teams, key=lambda team: (team.organisation_id, team.team_id))
    organisations = dict.fromkeys(team.organisation_id for team in kept)
    whole = [
        Subject(scope=ReadScope(organisation_id=each, team_id=None), title=f"organisation {each}")
        for each in organisations
    ]
    return whole + [subject_of(team) for team in kept]


def subject_of(team: TeamRecord) -> Subject:
    """Return a team as a subject."""
    title = team.name if team.name == team.team_id else f"{team.name} ({team.team_id})"
    return Subject(scope=ReadScope(organisation_id=team.organisation_id, team_id=team.team_id), title=title)


def rendered(report: DailyReport, kind: Format, made_at: datetime) -> str:
    """Return a report as the content of a CSV or HTML file."""
    if kind == "csv":
        return daily_csv(report)
    return daily_html(report, made_at.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC"))


def write(
    folder: Path, subject: Subject, report: DailyReport, formats: Sequence[Format], made_at: datetime
) -> list[Path]:
    """Write `<folder>/<day>/<team>.<format>` and return the paths. Each file is replaced atomically.

    Files, and folders that are made, are for the gateway's account alone.
    """
    place = folder / report.day.isoformat()
    private_folder(place)
    written = []
    for kind in formats:
        path = place / f"{subject.file_stem}.{kind}"
        _replace(path, rendered(report, kind, made_at))
        written.append(path)
    return written


class ReportReader:
    """A reader of reports of any subject, with the subject's budgets."""

    def __init__(self, engine: AsyncEngine, pools: Callable[[], Sequence[PoolSection]] = tuple) -> None:
        """`pools` returns our own GPUs; each is in the report of the organisation that pays for it."""
        self._engine = engine
        self._daily = DailyReader(engine)
        self._budgets = BudgetStore(engine)
        self._earnings = EarningsReader(engine)
        self._pools = pools

    async def read(self, subject: Subject, day: date) -> DailyReport:
        """Return one subject's report of a day."""
        scope, calendar = subject.scope, await calendar_of(self._engine, subject.scope.organisation_id)
        report = await self._daily.read(scope, day, subject.title, await self._budgets_of(scope), calendar)
        # Our own GPUs are billed by UTC days.
        start_us = start_of(day)
        pools = [each for each in self._pools() if scope.team_id is None and each.organisation == scope.organisation_id]
        found = await self._earnings.read(pools, start_us, start_us + DAY_US, wall_us()) if pools else []
        return msgspec.structs.replace(report, pools=tuple(found))

    async def _budgets_of(self, scope: ReadScope) -> list[BudgetStatus]:
        """Return budgets for a report: a team's own, or for an organisation all but those of single keys."""
        if scope.team_id is not None:
            return await self._budgets.of_scope(scope.organisation_id, "team", scope.team_id)
        # Of keys and end users there may be thousands.
        scopes = [each.name for each in SCOPES if each.dimension not in {"key", "end_user"}]
        return await self._budgets.standings_of(scope.organisation_id, scopes)


class DailyReports:
    """The delivery of due reports, once across processes."""

    def __init__(
        self,
        engine: AsyncEngine,
        section: ReportSection,
        outbox: Outbox | None,
        pools: Callable[[], Sequence[PoolSection]] = tuple,
    ) -> None:
        self._engine = engine
        self._accounts = AccountStore(engine)
        self._reader = ReportReader(engine, pools)
        self._section = section
        self._outbox = outbox
        self._delivered: set[date] = set()

    async def deliver_due(self, now_us: int) -> list[date]:
        """Deliver the reports due at this moment, and return the days that this call delivered."""
        if not due_days(now_us, self._section.at_minute, self._delivered):
            return []
        with self._folder_lock() as alone:
            if not alone:
                return []
            delivered = await asyncio.to_thread(self._delivered_days)
            calendars = (await calendars_of(self._engine)).others()
            days = [
                day
                for day in due_days(now_us, self._section.at_minute, delivered)
                # Further west a day may still run at that time.
                if all(each.start(day + timedelta(days=1)) <= now_us for each in calendars)
            ]
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
    def _folder_lock(self) -> Iterator[bool]:
        """Hold the folder's lock; yield False while another process has it. The system releases the lock when its
        process ends.
        """
        folder = self._section.folder
        if folder is None:
            yield True
            return
        private_folder(folder)
        private_file(folder / _LOCK)
        with (folder / _LOCK).open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    def _delivered_days(self) -> set[date]:
        """Return days delivered by this process or, according to the marks in the folder, by any other."""
        folder = self._section.folder
        if folder is None:
            return set(self._delivered)
        found = set()
        for mark in folder.glob(f"????-??-??/{_DELIVERED}"):
            with contextlib.suppress(ValueError):
                found.add(date.fromisoformat(mark.parent.name))
        return found

    def _mark(self, place: Path) -> None:
        private_folder(place)
        private_file(place / _DELIVERED)


def _replace(path: Path, content: str) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(content)
        # mkstemp makes files for their owner only, and so they stay: they tell what each team spends.
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
