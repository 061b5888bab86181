"""/dashboard/finance/reports: configuration and deliveries of daily reports, and downloads of any day's."""

import asyncio
import datetime as dt
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Depends
from starlette.responses import Response

from api.web.reading import reading
from api.webhooks.outbox import DestinationState, Outbox
from cost.reports.report_config import ReportSection
from cost.times import start_of
from dashboards.finance.daily_reports import FORMATS, Format, ReportReader, Subject, rendered, subject_of
from dashboards.ui.tables import Column, Table
from dashboards.web.access import allowed
from dashboards.web.headers import SAFE
from dashboards.web.period import whole_organisation
from dashboards.web.view import PageRequest
from proxy.errors import BadRequest

router: Final = APIRouter(include_in_schema=False)

PATH: Final = "/dashboard/finance/reports"
_DAYS_SHOWN: Final = 31
_KINDS: Final = {"html": "text/html; charset=utf-8", "csv": "text/csv; charset=utf-8"}
_DELIVERED: Final = (
    Column("day", "Day", "day"),
    Column("subject", "Whose", "link"),
    Column("html", "Page", "link", sortable=False),
    Column("csv", "Figures", "link", sortable=False),
    Column("delivered_us", "Written", "time"),
)


@router.get(PATH)
async def show(view: Annotated[PageRequest, Depends(allowed("finance.read"))]) -> Response:
    """Show the configuration, the reports written lately, and a form for any day."""
    section = view.gateway.config().cost.report
    async with reading(view.gateway, on=True):
        subjects = await _subjects(view)
        webhook = await _webhook(view, section)
        calendar = await view.calendar()
    yesterday = calendar.day(view.now_us) - dt.timedelta(days=1)
    rows = []
    if section is not None and section.folder is not None:
        rows = await asyncio.to_thread(_delivered, section.folder, subjects, yesterday)
    table = Table.of(
        _DELIVERED,
        rows,
        view.query,
        name="reports",
        caption="Reports",
        sort="-day",
        search=("subject",),
        empty="None was written in the last month. A day's reports follow at the configured time of the next day.",
    )
    return view.csv_asked("reports", table) or view.page(
        "finance/reports.html",
        title="Reports",
        section=section,
        webhook=webhook,
        table=table,
        yesterday=yesterday.isoformat(),
        time_zone=calendar.at(view.now_us).time_zone,
        subjects=[(each.file_stem, each.title) for each in subjects],
    )


@router.get(f"{PATH}/made")
async def made(view: Annotated[PageRequest, Depends(allowed("finance.read"))]) -> Response:
    """Send any day's report, computed from the books as they are now."""
    day, kind = _day(view.query.get("day", "")), _kind(view.query.get("format", "html"))
    async with reading(view.gateway, on=True):
        if (await view.calendar()).start(day) > view.now_us:
            raise BadRequest("`day` must be a day that has begun.", param="day")
        subject = _subject_of_stem(await _subjects(view), view.query.get("subject", ""))
        report = await ReportReader(view.gateway.database, lambda: view.gateway.finance.savings.pools).read(
            subject, day
        )
    text = await asyncio.to_thread(rendered, report, kind, dt.datetime.now(dt.UTC))
    return _as_download(text, kind, f"report-{day}-{subject.file_stem}.{kind}")


@router.get(f"{PATH}/written")
async def written(view: Annotated[PageRequest, Depends(allowed("finance.read"))]) -> Response:
    """Show a report as it was written to the folder."""
    section = view.gateway.config().cost.report
    day, kind = _day(view.query.get("day", "")), _kind(view.query.get("format", "html"))
    async with reading(view.gateway, on=True):
        if (await view.calendar()).start(day) > view.now_us:
            raise BadRequest("`day` must be a day that has begun.", param="day")
        subject = _subject_of_stem(await _subjects(view), view.query.get("subject", ""))
    text = None
    if section is not None and section.folder is not None:
        # No path traversal: the day was parsed, and the stem is an existing subject's.
        place = section.folder / day.isoformat() / f"{subject.file_stem}.{kind}"
        text = await asyncio.to_thread(_read, place)
    if text is None:
        raise BadRequest(f"No report of {day} was written here; make one from the books instead.", code="not_found")
    return _as_download(text, kind, f"report-{day}-{subject.file_stem}.{kind}")


async def _subjects(view: PageRequest) -> list[Subject]:
    """Return the organisation, then its teams by title."""
    scope = whole_organisation(view)
    teams = await view.gateway.identity.accounts.teams_of(scope.organisation_id)
    whole = Subject(scope=scope, title="The whole organisation")
    return [whole, *sorted((subject_of(team) for team in teams), key=lambda each: each.title.casefold())]


async def _webhook(view: PageRequest, section: ReportSection | None) -> DestinationState | None:
    if section is None or section.webhook is None:
        return None
    # The destination receives every organisation's messages, so only the operator sees the counts.
    return await Outbox(view.gateway.database).state(section.webhook) if view.principal.of_operators else None


def _subject_of_stem(subjects: list[Subject], stem: str) -> Subject:
    found = next((each for each in subjects if each.file_stem == stem), None)
    if found is None:
        raise BadRequest("There is no such team in your organisation.", param="subject", code="not_found")
    return found


def _day(given: str) -> dt.date:
    try:
        found = dt.date.fromisoformat(given)
    except ValueError as error:
        raise BadRequest("`day` is written like 2026-11-05.", param="day") from error
    if not dt.date(1971, 1, 1) <= found < dt.date(9990, 1, 1):
        raise BadRequest("`day` must be a day that has begun.", param="day")
    return found


def _kind(given: str) -> Format:
    for kind in FORMATS:
        if kind == given:
            return kind
    raise BadRequest(f"`format` is one of {', '.join(FORMATS)}.", param="format")


def _delivered(folder: Path, subjects: list[Subject], last: dt.date) -> list[dict[str, Any]]:
    """Return rows of this organisation's files of the last days."""
    rows = []
    by_stem = {each.file_stem: each for each in subjects}
    endings = {f".{kind}" for kind in FORMATS}
    for back in range(_DAYS_SHOWN):
        day = last - dt.timedelta(days=back)
        times: dict[str, int] = {}
        for path in _files(folder / day.isoformat()):
            if path.stem in by_stem and path.suffix in endings:
                times[path.stem] = max(times.get(path.stem, 0), path.stat().st_mtime_ns // 1_000)
        rows += [_row(day, by_stem[stem], at_us) for stem, at_us in times.items()]
    return rows


def _files(folder: Path) -> list[Path]:
    """Return the files of a folder; none where there is no such folder."""
    return [path for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []


def _row(day: dt.date, subject: Subject, at_us: int) -> dict[str, Any]:
    def href(kind: str) -> str:
        return f"{PATH}/written?{urlencode({'day': day.isoformat(), 'subject': subject.file_stem, 'format': kind})}"

    team = subject.scope.team_id
    return {
        "day": start_of(day),
        "subject": subject.title,
        "subject_href": None if team is None else f"/dashboard/teams/{team}",
        "html": "HTML",
        "html_href": href("html"),
        "csv": "CSV",
        "csv_href": href("csv"),
        "delivered_us": at_us,
    }


def _read(place: Path) -> str | None:
    return place.read_text("utf-8") if place.is_file() else None


def _as_download(text: str, kind: Format, name: str) -> Response:
    """Return the report as a download. It is never shown inline: its own styles would violate the pages' content security
    policy.
    """
    headers = {**SAFE, "content-disposition": f'attachment; filename="{name}"', "cache-control": "no-store"}
    return Response(text, media_type=_KINDS[kind], headers=headers)
