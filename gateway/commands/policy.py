"""`weighbridge policy`: what a minimum quality saves and what it costs in quality, before anybody applies it."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cost.shown import percent, rounded_money
from gateway.commands.shared import ConfigOption, JsonOption, fail, open_engine, print_json
from gateway.table import print_table

if TYPE_CHECKING:
    from accounts.store import TeamRecord
    from api.policy.traffic import AutoTraffic
    from classifier.learning.requests import OwnRequests
    from classifier.prediction import Classifier
    from gateway.configuration.gateway_config import GatewayConfig
    from proxy.plan.quality_tolerance import Tolerances

policy_app = typer.Typer(
    help="How much quality `auto` keeps, and what that saves.", no_args_is_help=True, rich_markup_mode=None
)


@policy_app.callback()
def _group() -> None:
    """Keep `preview` a command of its own: a group of one would become that one."""


@policy_app.command("preview")
async def preview(
    team: Annotated[
        str | None, typer.Option(help="For this team: its models, its minimum, its own requests and its bill.")
    ] = None,
    floor: Annotated[
        list[str] | None,
        typer.Option(metavar="SHARE", help="A minimum quality such as 0.95; may be given several times."),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what minimum qualities would save. Nothing is applied."""
    from api.policy.preview import floors_from, preview_as_json
    from gateway.configuration.environment import read_environment
    from gateway.configuration.settings import load
    from gateway.wiring.catalog import classifier_of
    from proxy.plan.quality_tolerance import FLOORS

    try:
        floors = floors_from(floor or ())
    except ValueError as error:
        fail(f"--floor: {error}", 2)
    settings = load(config, read_environment(), secrets_from=None)
    record, own, tolerances, traffic = await _load_tolerances(settings, classifier_of(settings), team)
    allowed = None if record is None or record.allowed_models is None else frozenset(record.allowed_models)
    current = None if record is None else record.settings.quality_floor
    found = preview_as_json(tolerances.preview(floors or FLOORS, allowed, current=current, own=own), team, traffic)
    if as_json:
        print_json(found)
    else:
        _print(found)


async def _load_tolerances(
    settings: "GatewayConfig", classifier: "Classifier", team_id: str | None
) -> "tuple[TeamRecord | None, OwnRequests | None, Tolerances, AutoTraffic | None]":
    """Collect the team, its own requests, the tolerances with the active tuning, as a gateway has them, and what the
    team asked of `auto` lately.
    """
    from accounts.store import AccountStore
    from api.policy.traffic import auto_traffic
    from classifier.learning.requests import own_requests
    from classifier.learning.store import LearningStore
    from cost.reports.scope import ReadScope
    from cost.times import wall_us
    from gateway.wiring.catalog import catalog_of
    from gateway.wiring.policy import build_policy, informed
    from proxy.learning.tunings import TuningWatch
    from proxy.plan.quality_tolerance import Tolerances

    catalog = catalog_of(settings)
    async with open_engine() as engine:
        await TuningWatch(LearningStore(engine), classifier).refresh()
        policy = informed(build_policy(settings.policy, settings.cost), catalog, classifier)
        tolerances = Tolerances(catalog=catalog, policy=policy, classifier=classifier)
        if team_id is None:
            return None, None, tolerances, None
        record = await AccountStore(engine).get_team(team_id)
        own = await own_requests(engine, team_id, tolerances.artifact, tolerances.width)
        scope = ReadScope(organisation_id=record.organisation_id, team_id=team_id)
        return record, own, tolerances, await auto_traffic(engine, scope, wall_us())


def _print(found: dict[str, Any]) -> None:
    if found["offers"]:
        reference = " or ".join(found["reference"])
        whole = found["reference_usd_per_1000_requests"]
        costs = "" if whole is None else f", {rounded_money(float(whole), 4)} for 1,000 requests"
        typer.echo(f"compared with {reference}{costs}\n")
        names = list(dict.fromkeys(name for each in found["offers"] for name, share in each["shares"].items() if share))
        billed = ["a month", "95 %", "against now"] if found["anchored"] else []
        print_table(
            [
                "",
                "minimum",
                "pays up to",
                "kept",
                *billed,
                "cost of 1,000",
                "adds",
                "when full",
                "saving",
                "own",
                *names,
            ],
            [_row(same, names) for same in _merged(found["offers"])],
            right=range(1, 9 + len(billed) + len(names)),
        )
        typer.echo("")
    for note in found["notes"]:
        typer.echo(f"- {note}")


def _merged(offers: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return neighbours that choose the same for every prompt, together."""
    import itertools

    own = ("quality_floor", "current")
    alike = itertools.groupby(offers, key=lambda each: {name: each[name] for name in each if name not in own})
    return [list(same) for _, same in alike]


def _row(same: list[dict[str, Any]], names: list[str]) -> list[str]:
    offer = same[-1]
    saving, month = offer["saving_share"], offer["month"]
    first, last = (percent(each["quality_floor"]) for each in (same[0], offer))
    return [
        "now" if any(each["current"] for each in same) else "",
        (last if len(same) == 1 else f"{first} to {last}") + ("" if offer["reached"] else " not reached"),
        rounded_money(float(offer["willing_usd"]), 4),
        f"{percent(offer['quality_kept'])} ±{percent(offer['quality_kept_error'])}",
        *(() if month is None else _month(month)),
        rounded_money(float(offer["usd_per_1000_requests"]), 4),
        rounded_money(float(offer["margin_usd_per_1000_requests"]), 4),
        rounded_money(float(offer["without_room"]["usd_per_1000_requests"]), 4),
        "unknown" if saving is None else percent(saving),
        percent(offer["own_share"], 0),
        *(percent(offer["shares"].get(name, 0), 0) for name in names),
    ]


def _month(month: dict[str, Any]) -> list[str]:
    cost, low, high, change = (float(month[f"{name}usd"]) for name in ("", "low_", "high_", "change_"))
    return [
        rounded_money(cost),
        f"{rounded_money(low)} to {rounded_money(high)}",
        f"{'+' if change >= 0 else ''}{rounded_money(change)}",
    ]
