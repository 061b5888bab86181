"""`weighbridge savings`: what was saved, against whom, and whether it is what was promised."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cost.shown import money, percent
from cost.times import wall_us
from gateway.commands.savings_simulate import simulate
from gateway.commands.shared import ConfigOption, JsonOption, fail, open_engine, print_json
from gateway.table import print_table

if TYPE_CHECKING:
    from cost.config import CostSection
    from cost.reports.scope import ReadScope
    from cost.savings.savings_reader import SavingsInputs
    from gateway.configuration.gateway_config import GatewayConfig

_DAYS = 30
_ARMS_WITHIN_S = 60.0
"""The time-out of the experiment's computation; no other work waits for this process."""


savings_app = typer.Typer(
    help="What was saved, against whom, and whether it is what was promised.",
    invoke_without_command=True,
    rich_markup_mode=None,
)


@savings_app.callback()
async def savings(  # noqa: PLR0917 - options, which typer passes by name
    context: typer.Context,
    start: Annotated[
        datetime | None, typer.Option("--from", formats=["%Y-%m-%d"], help="The first day; otherwise the last 30.")
    ] = None,
    end: Annotated[
        datetime | None,
        typer.Option(
            "--to", formats=["%Y-%m-%d"], help="The last day, in the organisation's time zone; otherwise today."
        ),
    ] = None,
    team: Annotated[
        str | None, typer.Option(help="This team's alone; without idle GPUs, which belong to no team.")
    ] = None,
    organisation: Annotated[
        str | None, typer.Option(help="The organisation; `default` if left out, and not needed with a team.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 unless the target is met.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print a row a day as CSV.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the savings by three comparisons, and the verdict on the target."""
    from gateway.configuration.environment import read_environment
    from gateway.configuration.settings import load

    if context.invoked_subcommand is not None:
        return
    if as_csv and as_json:
        fail("--csv or --json, not both", 2)
    settings = load(config, read_environment(), secrets_from=None)
    days = None if start is None else start.date(), None if end is None else end.date()
    scope, inputs, found = await _savings(settings, organisation, team, *days)
    if as_csv:
        _print_daily(settings.cost, scope, inputs)
    elif as_json:
        print_json(found)
    else:
        print_savings(found)
    if check and found["verdict"] != "met":
        raise typer.Exit(1)


async def _savings(
    settings: "GatewayConfig", organisation: str | None, team: str | None, first: date | None, last: date | None
) -> "tuple[ReadScope, SavingsInputs, dict[str, Any]]":
    from api.savings_calculator import SavingsCalculator
    from classifier.learning.store import LearningStore
    from cost.calendar import Days
    from cost.calendars import calendar_of
    from gateway.commands.scopes import scope_of
    from gateway.wiring.catalog import catalog_of, classifier_of
    from gateway.wiring.policy import build_policy, choice_evidence, informed
    from providers.catalog import costs_nothing
    from proxy.learning.tunings import TuningWatch

    catalog, classifier = catalog_of(settings), classifier_of(settings)
    async with open_engine() as engine:
        scope = await scope_of(engine, organisation, team)
        await TuningWatch(LearningStore(engine), classifier).refresh()
        policy = informed(build_policy(settings.policy, settings.cost), catalog, classifier)
        savings = SavingsCalculator(
            engine,
            lambda: settings.cost,
            wall_us,
            operator=settings.accounts.operator,
            evidence=lambda target_id: choice_evidence(target_id, policy, catalog, classifier),
            costs_nothing=lambda target_id: costs_nothing(catalog, target_id),
            arms_within_s=_ARMS_WITHIN_S,
        )
        calendar = await calendar_of(engine, scope.organisation_id)
        last = last or calendar.day(wall_us())
        inputs = await savings.inputs(scope, Days(first or last - timedelta(days=_DAYS - 1), last, calendar))
        return scope, inputs, savings.as_json(scope, await savings.report(scope, inputs))


savings_app.command("simulate")(simulate)


def _print_daily(section: "CostSection", scope: "ReadScope", inputs: "SavingsInputs") -> None:
    from cost.reports.cells import csv_line
    from cost.savings.savings_report import DAILY_COLUMNS, daily

    rate = section.gateway_usd_per_hour if scope.team_id is None else Decimal(0)
    typer.echo(csv_line(DAILY_COLUMNS), nl=False)
    for row in daily(inputs, gateway_usd_per_hour=rate, now_us=wall_us()):
        typer.echo(csv_line(row), nl=False)


def print_savings(found: dict[str, Any]) -> None:
    """Print the savings report for people; `not met` stands where `met` would."""
    whose = f"team {found['team_id']}" if found["team_id"] else f"organisation {found['organisation_id']}"
    typer.echo(
        f"{whose}, {found['start']} to before {found['end']} ({found['time_zone']}), target {percent(found['target_share'])}\n"
    )
    print_table(
        ["compared with", "would have cost", "cost", "saved", "share", "coverage", "target"],
        [_row(found, each) for each in found["comparisons"]],
        right=(1, 2, 3, 4, 5),
    )
    _print_reasons(found["comparisons"], _names(found))
    _print_cost(found)
    _print_certainty(found)
    for fleet in found["fleet"]:
        _print_fleet(found, fleet)
    if found["provisional"]:
        days = found["provisional_days"]
        which = days[0] if len(days) == 1 else f"{len(days)} days, {days[0]} to {days[-1]}"
        typer.echo(f"\nprovisional: the GPU bill of {which} is not posted yet")


def _names(found: dict[str, Any]) -> dict[str, str]:
    return {
        "reference": f"{found['reference_target'] or 'none is configured'} (baseline model)",
        "cheapest": "cheapest good enough",
        "hosted": "same weights, hosted",
    }


def _row(found: dict[str, Any], each: dict[str, Any]) -> list[str]:
    return [
        _names(found)[each["comparator"]],
        money(each["baseline_usd"]),
        money(each["cost_usd"]),
        money(each["savings_usd"]),
        percent(each["savings_share"]),
        percent(each["coverage"]),
        each["verdict"].upper(),
    ]


def _print_reasons(comparisons: list[dict[str, Any]], names: dict[str, str]) -> None:
    for each in comparisons:
        for reason in each["reasons"]:
            typer.echo(f"- {names[each['comparator']]}: {reason}")


def _print_cost(found: dict[str, Any]) -> None:
    parts = {name.removesuffix("_usd").replace("_", "-"): amount for name, amount in found["cost"].items()}
    told = ", ".join(f"{name} {money(amount)}" for name, amount in parts.items() if amount)
    typer.echo(f"\nspent {money(found['cost_usd'])}" + (f": {told}" if told else ""))
    if found["team_id"]:
        typer.echo("without idle GPUs and the gateway's machines, which are the organisation's")


def _print_certainty(found: dict[str, Any]) -> None:
    typer.echo(
        f"{found['served_requests']} requests served in {found['attempts']} attempts; "
        f"estimated {percent(found['estimated_share'])}, without a price {found['unpriced_attempts']}"
    )
    quality, measured = found["quality"], found["measured"]
    if quality is None:
        typer.echo("quality: no answer was judged")
    else:
        interval = f"{percent(quality['low'])} to {percent(quality['high'])}"
        typer.echo(f"quality: {percent(quality['share'])} of {quality['judged']} judged answers adequate ({interval})")
    if measured is not None:
        since = "" if measured["from"] == found["start"] else f", from {measured['from']} on"
        arms = f"{measured['holdout_requests']} held out, {measured['control_requests']} beside them{since}"
        if measured["savings_share"] is None:
            typer.echo(f"measured saving: too few requests yet ({arms})")
        else:
            interval = f"{percent(measured['low'])} and {percent(measured['high'])}"
            typer.echo(f"measured saving: {percent(measured['savings_share'])}, between {interval} ({arms})")


def _print_fleet(found: dict[str, Any], fleet: dict[str, Any]) -> None:
    today = fleet["utilisation_today"]
    typer.echo(
        f"\n{'pool ' + fleet['pool'] if fleet['pool'] else 'all pools'}: bill {money(fleet['bill_usd'])} for "
        f"{fleet['replica_hours_up']} replica-hours up, {percent(fleet['utilisation'])} of them busy"
        + ("" if today is None else f" (today {percent(today)})")
    )
    rows = [
        [
            _names(found)[each["comparator"]],
            money(each["baseline_usd"]),
            money(each["cost_usd"]),
            percent(each["cost_share"]),
            percent(each["needed_utilisation"]),
            each["verdict"].upper(),
        ]
        for each in fleet["comparisons"]
    ]
    headings = ["compared with", "its tokens elsewhere", "here", "here / elsewhere", "needed utilisation", "target"]
    print_table(headings, rows, right=(1, 2, 3, 4))
    _print_reasons(fleet["comparisons"], _names(found))
    if fleet["overfull"]:
        typer.echo("! on some day tokens took longer than replicas were up: the weights or the hours are wrong")
