"""`weighbridge report`: a day of a team or of an organisation, as a table or as files."""
# ruff: noqa: PLC0415 - imports stand in the commands, so that `--help` answers at once

from datetime import MAXYEAR, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.commands.shared import USAGE, ConfigOption, JsonOption, fail, open_engine, print_json
from gateway.table import print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cost.fleet.pool_config import PoolSection
    from cost.reports.daily import DailyReport, Section
    from cost.reports.usage import UsageSums
    from dashboards.finance.daily_reports import Format, Subject

report_app = typer.Typer(help="Reports for finance.", no_args_is_help=True, rich_markup_mode=None)
_HEADINGS = ("", "requests", "input tokens", "output tokens", "cost", "baseline", "saving")


@report_app.command("daily")
async def daily(
    *,
    day: Annotated[
        datetime | None,
        typer.Option(
            "--date", formats=["%Y-%m-%d"], help="The day, in the organisation's time zone; yesterday if left out."
        ),
    ] = None,
    team: Annotated[str | None, typer.Option(help="This team's; otherwise the whole organisation's.")] = None,
    all_teams: Annotated[bool, typer.Option("--all", help="The organisation's, and each team's by itself.")] = False,
    organisation: Annotated[
        str | None, typer.Option(help="Which organisation; `default` if left out, and of a team it is known.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write <day>/<team>.html and .csv here; otherwise print a table.")
    ] = None,
    formats: Annotated[
        str, typer.Option("--format", help="What to write: html, csv, or both with a comma.")
    ] = "html,csv",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Report one day: requests, tokens, cost, baseline and saving, by model and team, compared with the day before."""
    from datetime import UTC

    from dashboards.finance.daily_reports import write
    from gateway.configuration.environment import read_environment
    from gateway.configuration.settings import load

    if team is not None and all_teams:
        fail("give --team or --all, not both", USAGE)
    chosen = _formats(formats)
    if chosen is None:
        fail(f"--format is html, csv or html,csv, not {formats[:40]!r}", USAGE)
    now = datetime.now(UTC)
    wanted = None if day is None else day.date()
    environment = read_environment()
    # A report needs no configuration; with one it tells of our own GPUs too.
    known = config is not None or environment.config is not None
    pools = load(config, environment, secrets_from=None).cost.pools if known else ()
    reports = await _read(organisation, team, wanted, pools, all_teams=all_teams)
    if out is not None:
        for subject, report in reports:
            for path in write(out, subject, report, chosen, now):
                typer.echo(path)
    elif as_json:
        from cost.reports.daily import plain

        print_json([plain(report) for _, report in reports])
    else:
        for _, report in reports:
            _print(report)


@report_app.command("movers")
async def movers(
    *,
    first: Annotated[
        datetime | None,
        typer.Option("--from", formats=["%Y-%m-%d"], help="The first day; six days before the last if left out."),
    ] = None,
    last: Annotated[
        datetime | None,
        typer.Option("--to", formats=["%Y-%m-%d"], help="The last day, in the organisation's time zone; or today."),
    ] = None,
    against: Annotated[
        str, typer.Option(help="previous: as many days right before; week: the same weekdays before.")
    ] = "previous",
    by: Annotated[str, typer.Option("--by", help="What a change is of, with commas.")] = "key,model",
    limit: Annotated[int, typer.Option(min=1, max=50, help="How many of the largest changes.")] = 10,
    team: Annotated[str | None, typer.Option(help="This team's; otherwise the whole organisation's.")] = None,
    organisation: Annotated[
        str | None, typer.Option(help="Which organisation; `default` if left out, and of a team it is known.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Report what changed most against the time before, why, and since when. `--json` is as GET /v1/usage/movers."""
    from accounts.store import AccountStore
    from api.usage.movers import movers_as_json, names_of
    from cost.calendar import Days
    from cost.calendars import calendar_of
    from cost.dimensions import UsageFilters
    from cost.reports.compared import AGAINST, GROUPABLE, ComparedQuery, ComparedReader, longest_us, window_of
    from cost.reports.movers import read_movers, signed, told_window
    from cost.times import DAY_US, wall_us
    from gateway.commands.scopes import scope_of

    chosen = next((each for each in AGAINST if each == against), None)
    asked = [each.strip() for each in by.split(",")]
    group_by = tuple(each for name in asked for each in GROUPABLE if each == name)
    if chosen is None:
        fail(f"--against is {' or '.join(AGAINST)}, not {against[:40]!r}", USAGE)
    if len(group_by) != len(asked) or len(set(asked)) != len(asked):
        fail(f"--by has each of {', '.join(GROUPABLE)} at most once, not {by[:80]!r}", USAGE)
    if last is not None and last.year == MAXYEAR:
        fail(f"--to is a day before {MAXYEAR}", USAGE)
    now_us = wall_us()
    async with open_engine() as engine:
        scope = await scope_of(engine, organisation, team)
        calendar = await calendar_of(engine, scope.organisation_id)
        to = calendar.day(now_us) if last is None else last.date()
        days = Days(to - timedelta(days=6) if first is None else first.date(), to, calendar)
        longest = longest_us(UsageFilters(), group_by, days.start_us, days.end_us)
        window = window_of(days.start_us, days.end_us, now_us, chosen, calendar, longest_us=longest)
        if not window.is_compared:
            fail(
                f"{days.first} to {days.last} cannot be compared: both times together have at most {longest // DAY_US} days, "
                "and the later one has begun at least an hour ago",
                USAGE,
            )
        query = ComparedQuery(scope=scope, window=window, group_by=group_by, limit=limit)
        found = await read_movers(ComparedReader(engine), query)
        told = movers_as_json(query, found, await names_of(AccountStore(engine), query, found), now_us)
    if as_json:
        print_json(told)
        return
    typer.echo(told_window(window))
    for each in (*(row["sentence"] for row in told["data"]), f"total {signed(found.compared.whole.change_nanousd)}"):
        typer.echo(each)


async def _read(
    organisation: str | None, team: str | None, day: date | None, pools: "Sequence[PoolSection]", *, all_teams: bool
) -> "list[tuple[Subject, DailyReport]]":
    from accounts.store import AccountStore
    from cost.calendars import calendar_of
    from cost.times import wall_us
    from dashboards.finance.daily_reports import ReportReader, Subject, subject_of
    from gateway.commands.scopes import scope_of

    async with open_engine() as engine:
        scope = await scope_of(engine, organisation, team)
        if day is None:
            day = (await calendar_of(engine, scope.organisation_id)).day(wall_us()) - timedelta(days=1)
        teams = [
            each for each in await AccountStore(engine).list_teams() if each.organisation_id == scope.organisation_id
        ]
        if team is not None:
            subjects = [subject_of(each) for each in teams if each.team_id == team]
        else:
            subjects = [Subject(scope=scope, title=f"organisation {scope.organisation_id}")]
            if all_teams:
                subjects += [subject_of(each) for each in teams]
        reader = ReportReader(engine, lambda: pools)
        return [(subject, await reader.read(subject, day)) for subject in subjects]


def _formats(text: str) -> "list[Format] | None":
    from dashboards.finance.daily_reports import FORMATS

    asked = {each.strip().lower() for each in text.split(",")}
    return [each for each in FORMATS if each in asked] if asked <= set(FORMATS) else None


def _print(report: "DailyReport") -> None:
    from cost.reports.daily import WEEK, change
    from cost.shown import nano_money, percent

    typer.echo(f"{report.title}, {report.day} ({report.time_zone})")
    rows = [["total", *_figures(report.total)], ["month to date", *_figures(report.month)]]
    rows += [
        [f"{section.dimension} {name}", *_figures(sums)]
        for section in report.sections
        for name, sums in _parts(section)
    ]
    print_table(_HEADINGS, rows, right=range(1, len(_HEADINGS)), shrink=0)
    total = report.total
    to_day = percent(change(total.cost_nanousd, report.day_before.cost_nanousd), signed=True)
    to_week = percent(change(total.cost_nanousd, report.week_before.cost_nanousd, WEEK), signed=True)
    typer.echo(f"cost against the day before: {to_day}, against the 7-day mean: {to_week}")
    if total.unpriced_attempts:
        typer.echo(f"attempts without a price, which are not in the cost: {total.unpriced_attempts}")
    if total.estimated_attempts:
        typer.echo(f"attempts booked at an estimate: {total.estimated_attempts} of {total.attempts}")
    for pool in report.pools:
        found = pool.earnings
        typer.echo(
            f"pool {pool.pool}: {pool.hours} replica-hours for {nano_money(found.paid_nanousd)} avoided "
            f"{nano_money(found.avoided_nanousd)} elsewhere; best in hindsight {found.best_fixed} fixed for "
            f"{nano_money(found.best_fixed_nanousd)}"
        )
    for standing in report.standings:
        budget = standing.budget
        typer.echo(
            f"budget of {budget.scope} {budget.shown_id}, {budget.period}, {budget.kind}: "
            f"{nano_money(standing.spent_nanousd)} of {nano_money(standing.limit_nanousd)} spent as of now"
        )
    typer.echo("")


def _parts(section: "Section") -> "list[tuple[str, UsageSums]]":
    parts: list[tuple[str, Any]] = [(each.name or "(none)", each.sums) for each in section.groups]
    return parts if section.left_out is None else [*parts, ("(all others)", section.left_out)]


def _figures(sums: "UsageSums") -> list[str]:
    from cost.reports.daily import saving
    from cost.reports.daily_html import spent
    from cost.shown import nano_money

    saved = saving(sums)
    return [
        f"{sums.requests:,}",
        f"{sums.input_tokens:,}",
        f"{sums.output_tokens:,}",
        spent(sums),
        "-" if saved is None else nano_money(sums.baseline_nanousd),
        "-" if saved is None else nano_money(saved),
    ]
