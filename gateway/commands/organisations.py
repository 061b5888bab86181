"""`weighbridge organisations`: tenants that share nothing but the prices."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from cost.calendar import Weekday
from gateway.commands.shared import USAGE, JsonOption, fail, open_accounts, open_engine, plain, print_rows

if TYPE_CHECKING:
    from decimal import Decimal

organisations_app = typer.Typer(
    help="Organisations: tenants that share nothing but the prices.", no_args_is_help=True, rich_markup_mode=None
)


@organisations_app.command("create")
async def create_organisation(
    organisation_id: Annotated[str, typer.Argument(metavar="ORGANISATION_ID", help="Such as acme.")],
    name: Annotated[str | None, typer.Option(help="A name for people.")] = None,
) -> None:
    """Create an organisation. The one called `default` needs not be created."""
    from accounts.store import AccountStore
    from gateway.commands.audit import audited

    async with open_engine() as engine, audited(engine, "organisation.created", organisation_id) as change:
        await AccountStore(change.within).create_organisation(organisation_id, name)
        change.tell("organisation", organisation_id, None, {"name": name or organisation_id})
    typer.echo(
        f"created organisation {organisation_id}; next: weighbridge teams create TEAM_ID --organisation {organisation_id}"
    )


@organisations_app.command("calendar")
async def calendar(
    organisation_id: Annotated[str, typer.Argument(metavar="ORGANISATION_ID")] = "default",
    time_zone: Annotated[str | None, typer.Option(help="An IANA name, such as Europe/Berlin; UTC for UTC.")] = None,
    week_start: Annotated[Weekday, typer.Option(help="The day that weeks begin on.")] = "monday",
    first: Annotated[
        datetime | None, typer.Option("--from", help="The day from whose midnight on it holds; tomorrow unless given.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show or set the time zone and week by which budgets and reports are cut."""
    from accounts.store import AccountStore
    from api.calendar.change import audit_record, dated
    from cost.calendar import UTC_CALENDAR
    from cost.calendars import DatedCalendar, calendar_of, calendars_of, set_calendar
    from cost.times import wall_us
    from gateway.commands.audit import audited

    async with open_engine() as engine:
        await AccountStore(engine).check_organisation(organisation_id)
        if time_zone is not None:
            now_us = wall_us()
            async with audited(engine, "calendar.set", organisation_id) as change:
                before = await calendar_of(change.within, organisation_id)
                made = dated(time_zone, week_start, None if first is None else first.date(), now_us, before)
                await set_calendar(change.within, organisation_id, time_zone, week_start, made.from_us, now_us)
                told = audit_record(DatedCalendar(0, before.at(now_us)))
                change.tell("calendar", organisation_id, told, audit_record(made))
        own = (await calendars_of(engine)).dated.get(organisation_id, ())
    rows = [audit_record(each) for each in (DatedCalendar(0, UTC_CALENDAR), *own)]
    columns = {"from": "from", "time_zone": "time zone", "week_start": "weeks begin on"}
    print_rows(rows, columns, as_json=as_json, empty="")


@organisations_app.command("ask")
async def ask(
    organisation_id: Annotated[str, typer.Argument(metavar="ORGANISATION_ID")] = "default",
    on: Annotated[bool | None, typer.Option("--on/--off", help="Switch it; show it when left out.")] = None,
    team: Annotated[
        str | None, typer.Option(help="The team that it is booked to, made where there is none; `ask` unless given.")
    ] = None,
    budget: Annotated[
        str,
        typer.Option(metavar="USD", help="A hard monthly budget of its key; empty leaves its budgets as they are."),
    ] = "20",
    questions: Annotated[int, typer.Option(min=1, max=1_000, help="Questions of each person and key an hour.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """Show or switch Ask: questions in words about spend, which a model answers within what the asker may read."""
    from accounts.store import AccountStore
    from api.ask.change import audit_record, switch_off, switch_on, usual_team
    from api.ask.store import read_setting
    from gateway.commands.audit import console, log_of
    from gateway.commands.keys import configured, pepper_for_a_key

    async with open_engine() as engine:
        store = AccountStore(engine)
        await store.check_organisation(organisation_id)
        log, actor = log_of(engine), console(organisation_id)
        if on:
            await switch_on(
                engine,
                log,
                actor,
                pepper_for_a_key(configured(None), await store.keys_by_pepper()),
                organisation_id,
                team_id=team or usual_team(organisation_id),
                questions_an_hour=questions,
                budget_usd=_dollars(budget),
            )
        elif on is False:
            await switch_off(log, actor, organisation_id)
        setting = await read_setting(engine, organisation_id)
    columns = {"team_id": "booked to", "key_id": "key", "questions_an_hour": "questions an hour"}
    rows = [] if setting is None else [audit_record(setting)]
    print_rows(
        rows, columns, as_json=as_json, empty=f"ask is off; next: weighbridge organisations ask {organisation_id} --on"
    )


def _dollars(text: str) -> "Decimal | None":
    from decimal import Decimal, InvalidOperation

    try:
        return Decimal(text) if text else None
    except InvalidOperation:
        fail("--budget is an amount of dollars such as 20, or empty for none", USAGE)


@organisations_app.command("list")
async def list_organisations(as_json: JsonOption = False) -> None:
    """List the organisations."""
    columns = {"organisation_id": "organisation", "name": "name", "created_at": "created"}
    async with open_accounts() as store:
        rows = [plain(each) for each in await store.list_organisations()]
    print_rows(rows, columns, as_json=as_json, empty="no organisations yet")
