"""`weighbridge limits`: what organisations, teams, keys, end users and models may use in a minute and at once."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.commands.shared import JsonOption, fail, open_engine, print_json, read_config
from gateway.table import print_table
from proxy.admit.limits.limit import Scope

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from proxy.admit.limits.limits_config import LimitsSection
    from proxy.admit.limits.rules import Place, Rule

limits_app = typer.Typer(
    help="What may be used in a minute and at once, where that differs from the configuration.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
ScopeArgument = Annotated[
    Scope,
    typer.Argument(help="Who is limited; a model: all its callers together."),
]
IdArgument = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="Its id; of a model, the name that callers send; of an end user TEAM/NAME, and TEAM/* for each one of a team.",
    ),
]
ModelOption = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="Only on this model, as callers name it.")
]
_NUMBER = "NUMBER|none"
_COLUMNS = (
    ("requests_per_minute", "requests/min"),
    ("request_burst", "burst"),
    ("tokens_per_minute", "tokens/min"),
    ("token_burst", "token burst"),
    ("concurrency", "at once"),
)
_USUAL_POLL_S = 2.0


@limits_app.command("list")
async def list_limits(
    organisation: Annotated[
        str | None, typer.Option(help="Only this organisation's, with its teams' and keys'.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List what was set. Everybody else has the configuration's limits."""
    from proxy.admit.limits.store import LimitStore

    async with open_engine() as engine:
        store = LimitStore(engine)
        found = await (store.all() if organisation is None else store.of_organisation(organisation))
    if as_json:
        print_json([_plain(each) for each in found])
    elif found:
        _print(found)
    else:
        typer.echo("no limits are set; the configuration's hold for all", err=True)


@limits_app.command("set")
async def set_limit(
    scope: ScopeArgument,
    scope_id: IdArgument,
    *,
    model: ModelOption = None,
    requests_per_minute: Annotated[
        str | None, typer.Option(metavar=_NUMBER, help="0: no limit; none: the configuration's again.")
    ] = None,
    request_burst: Annotated[
        str | None, typer.Option(metavar=_NUMBER, help="Requests that may come at once after a pause.")
    ] = None,
    tokens_per_minute: Annotated[
        str | None, typer.Option(metavar=_NUMBER, help="Prompt and answer together. 0 and none as above.")
    ] = None,
    token_burst: Annotated[
        str | None, typer.Option(metavar=_NUMBER, help="Tokens that may be used at once after a pause.")
    ] = None,
    concurrency: Annotated[
        str | None, typer.Option(metavar=_NUMBER, help="Requests in flight at once. 0 and none as above.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Set limits; what is not named stays. Every process follows within `limits.poll_s`, which is 2 seconds unless set."""
    given = {
        "requests_per_minute": requests_per_minute,
        "request_burst": request_burst,
        "tokens_per_minute": tokens_per_minute,
        "token_burst": token_burst,
        "concurrency": concurrency,
    }
    changes = {name: _number(name, text) for name, text in given.items() if text is not None}
    if not changes:
        fail("nothing to change: give at least one option, see --help", 2)
    place = _place(scope, scope_id, model)
    section = _section_for(place)
    poll_s = _USUAL_POLL_S if section is None else section.poll_s
    async with open_engine() as engine:
        made = await _changed(engine, place, changes)
    if as_json:
        print_json(_plain(made))
    else:
        typer.echo(f"{place}: {_described(made)}; holds in every process within {poll_s:g} s")
    if section is not None:
        _warn_of_idle_bursts(made, section)
    elif place.model:
        typer.echo(
            f"whether callers can name {place.model!r} is not known here: WEIGHBRIDGE_CONFIG is not set", err=True
        )


@limits_app.command("remove")
async def remove_limit(scope: ScopeArgument, scope_id: IdArgument, model: ModelOption = None) -> None:
    """Take the configuration's limits again. Every process follows within `limits.poll_s`."""
    place = _place(scope, scope_id, model)
    async with open_engine() as engine:
        rule = await _changed(engine, place, None)
    typer.echo(f"removed what was set for {place}: {_described(rule)}")


async def _changed(engine: "AsyncEngine", place: "Place", changes: "dict[str, int | None] | None") -> "Rule":
    """Write the change with its audit entry; without changes the rule is removed."""
    from api.limits.change import audit_record
    from gateway.commands.audit import audited
    from proxy.admit.limits.store import LimitStore

    team_id, owner = await _owner(engine, place)
    async with audited(engine, "limit.removed" if changes is None else "limit.set", owner, team_id=team_id) as change:
        store = LimitStore(change.within)
        before = next((rule for rule in await store.all() if rule.place == place), None)
        if changes is None:
            removed = await store.remove(place)
            change.tell("limit", str(place), None if before is None else audit_record(before), None)
            return removed
        made = await store.change(place, changes)
        change.tell("limit", str(place), None if before is None else audit_record(before), audit_record(made))
        return made


async def _owner(engine: "AsyncEngine", place: "Place") -> tuple[str, str]:
    """Return the team and the organisation that the limit concerns; a model's limit is the operators'."""
    from accounts.store import AccountStore
    from gateway.commands.audit import operators
    from proxy.admit.limits.rules import team_of

    if place.scope == "model":
        return "", operators()
    if place.scope == "organisation":
        return "", place.scope_id
    accounts = AccountStore(engine)
    team_id = team_of(place)
    if place.scope == "key":
        team_id = next((key.team_id for key in await accounts.list_keys() if key.key_id == place.scope_id), "")
    teams = {team.team_id: team.organisation_id for team in await accounts.list_teams()}
    # What is there of nobody is refused by the store.
    return team_id, teams.get(team_id, "")


def _place(scope: Scope, scope_id: str, model: str | None) -> "Place":
    from proxy.admit.limits.rules import ANY_ID, Place, with_booked_user

    if scope == "model":
        if model is not None:
            fail("a model's name is its ID; --model is for an organisation, a team or a key", 2)
        return Place(scope, ANY_ID, scope_id)
    if model == "":
        fail("--model needs a name; leave it out for all models together", 2)
    return with_booked_user(Place(scope, scope_id, model or ""))


def _number(name: str, text: str) -> int | None:
    if text.strip().lower() == "none":
        return None
    try:
        return int(text)
    except ValueError:
        option = name.replace("_", "-")
        fail(f"--{option} is a whole number, or none for the configuration's, not {text[:40]!r}", 2)


def _section_for(place: "Place") -> "LimitsSection | None":
    """Return the configured limits where a configuration is at hand, to reject a misspelt model, which would limit
    nobody.
    """
    from gateway.configuration.environment import read_environment
    from gateway.wiring.policy import names_of

    if read_environment().config is None:
        return None
    config = read_config(None)
    if place.model and (problem := names_of(config).limit_problem(place)):
        fail(problem, 2)
    return config.limits


def _warn_of_idle_bursts(rule: "Rule", section: "LimitsSection") -> None:
    """Warn of a burst without a rate: it is stored, but has no effect yet."""
    from proxy.admit.limits.rules import over

    limits = over(rule.limits, section.default_of(rule.place))
    for burst, rate, option in (
        (rule.limits.request_burst, limits.requests_per_minute, "--requests-per-minute"),
        (rule.limits.token_burst, limits.tokens_per_minute, "--tokens-per-minute"),
    ):
        if burst is not None and not rate:
            typer.echo(f"the burst does nothing yet: nothing limits {rule.place} in a minute; set {option}", err=True)


def _plain(rule: "Rule") -> dict[str, Any]:
    import msgspec

    from cost.times import iso

    place = rule.place
    return {
        "scope": place.scope,
        "scope_id": place.model if place.scope == "model" else place.scope_id,
        "model": None if place.scope == "model" else place.model or None,
        **msgspec.structs.asdict(rule.limits),
        "updated_at": iso(rule.updated_us) if rule.updated_us else None,
    }


def _described(rule: "Rule") -> str:
    limits = rule.limits
    said = [
        _as_cell(limits.requests_per_minute, "requests a minute"),
        _as_cell(limits.request_burst, "requests at once after a pause"),
        _as_cell(limits.tokens_per_minute, "tokens a minute"),
        _as_cell(limits.token_burst, "tokens at once after a pause"),
        _as_cell(limits.concurrency, "requests in flight"),
    ]
    return ", ".join(part for part in said if part) or "the configuration's limits again"


def _as_cell(value: int | None, of: str) -> str:
    if value is None:
        return ""
    if value == 1:
        unit, _, rest = of.partition(" ")
        return f"1 {unit.removesuffix('s')} {rest}"
    return f"{value:,} {of}" if value else f"no limit on {of}"


def _print(found: "Sequence[Rule]") -> None:
    plain = [_plain(each) for each in found]
    rows = [
        [
            each["scope"],
            each["scope_id"],
            each["model"] or "-",
            *(_cell(each[name]) for name, _ in _COLUMNS),
            each["updated_at"] or "-",
        ]
        for each in plain
    ]
    headings = ["scope", "of", "on model", *(heading for _, heading in _COLUMNS), "changed"]
    print_table(headings, rows, right=tuple(range(3, 3 + len(_COLUMNS))))


def _cell(value: int | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if value else "no limit"
