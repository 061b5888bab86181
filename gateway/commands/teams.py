"""`weighbridge teams`: teams, which costs are booked to, and what each of them chose."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

from typing import TYPE_CHECKING, Annotated, Any

import typer

from accounts.caller import CacheUse, Escalation, Learning
from gateway.commands.shared import (
    USAGE,
    JsonOption,
    cell,
    fail,
    open_accounts,
    open_engine,
    plain,
    print_json,
    print_rows,
)

if TYPE_CHECKING:
    from accounts.store import TeamRecord

teams_app = typer.Typer(help="Teams, which costs are booked to.", no_args_is_help=True, rich_markup_mode=None)


@teams_app.command("create")
async def create_team(
    team_id: Annotated[str, typer.Argument(metavar="TEAM_ID", help="Such as team_payments.")],
    name: Annotated[str | None, typer.Option(help="A name for people.")] = None,
    organisation: Annotated[str, typer.Option(help="The organisation it belongs to.")] = "default",
    models: Annotated[
        str | None, typer.Option(help="The only models it may use, separated by commas; all when left out.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Create a team."""
    from accounts.store import AccountStore
    from gateway.commands.audit import audited

    allowed = [model.strip() for model in models.split(",") if model.strip()] if models is not None else None

    async with open_engine() as engine, audited(engine, "team.set", organisation, team_id=team_id) as change:
        store = AccountStore(change.within)
        team = await store.create_team(team_id, name, organisation_id=organisation, allowed_models=allowed)
        change.tell("team", team_id, None, _team_state(team))
        made = plain(team)
    if as_json:
        print_json(made)
    else:
        typer.echo(f"created team {made['team_id']}; next: weighbridge keys create {made['team_id']}")


@teams_app.command("list")
async def list_teams(as_json: JsonOption = False) -> None:
    """List the teams."""
    columns = {"team_id": "team", "name": "name", "organisation_id": "organisation", "allowed_models": "models"}
    columns |= {
        "quality_floor": "minimum",
        "escalation": "escalation",
        "learning": "learning",
        "shadow_share": "shadow",
    }
    columns |= {"weight": "weight", "spill_over": "overflow", "continue_streams": "continue", "cache": "cache"}
    async with open_accounts() as store:
        rows = [plain(team) for team in await store.list_teams()]
    print_rows(
        rows, {**columns, "created_at": "created", "blocked_at": "blocked"}, as_json=as_json, empty="no teams yet"
    )


@teams_app.command("set")
async def set_team(
    team_id: Annotated[str, typer.Argument(metavar="TEAM_ID", help="The team to change.")],
    *,
    quality_floor: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE|none",
            help="The minimum quality: the share to keep of the best answers that the baseline model's money buys; none: the gateway's.",
        ),
    ] = None,
    escalation: Annotated[
        Escalation | None,
        typer.Option(
            help="Ask a better model after a weak answer: never, for whole replies, or for streams too; `agreement` also asks two "
            "cheap models before a dear one, where their answers can be compared."
        ),
    ] = None,
    learning: Annotated[
        Learning | None,
        typer.Option(
            help="What may be kept to learn from: nothing, numbers, or the prompts too. Less deletes the rest."
        ),
    ] = None,
    shadow_share: Annotated[
        float | None, typer.Option(help="The share of requests that the baseline model answers too, to be compared.")
    ] = None,
    weight: Annotated[
        float | None,
        typer.Option(help="Its share of a model that is short, beside the other teams' weights; 1 unless set."),
    ] = None,
    spill_over: Annotated[
        bool | None,
        typer.Option(
            "--spill-over/--no-spill-over",
            help="Whether its requests may overflow to a paid provider when our own would keep them waiting.",
        ),
    ] = None,
    continue_streams: Annotated[
        bool | None,
        typer.Option(
            "--continue-streams/--no-continue-streams",
            help="Whether another replica goes on with a streamed text whose replica died.",
        ),
    ] = None,
    cache: Annotated[
        CacheUse | None,
        typer.Option(
            help="Whether its answers at temperature 0, and its vectors, are kept and given again; default: as the configuration says."
        ),
    ] = None,
    cache_ttl: Annotated[
        str | None,
        typer.Option(metavar="SECONDS|none", help="How long they are kept, at most the gateway's time; none: that."),
    ] = None,
    reason: Annotated[str, typer.Option(help="Why, for the audit log.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Change what a team chose. Every server follows within seconds."""
    given: dict[str, Any] = {"escalation": escalation, "learning": learning, "shadow_share": shadow_share}
    given |= {"weight": weight, "spill_over": spill_over, "continue_streams": continue_streams, "cache": cache}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if quality_floor is not None:
        changes["quality_floor"] = _floor(quality_floor)
    if cache_ttl is not None:
        changes["cache_ttl_s"] = _seconds(cache_ttl)
    if not changes:
        fail("nothing to change: give at least one option, see --help", USAGE)
    async with open_engine() as engine:
        from accounts.store import AccountStore
        from classifier.learning.store import LearningStore
        from gateway.commands.audit import audited

        action = "team.policy_changed" if set(changes) - {"weight"} else "team.set"
        async with audited(engine, action, team_id=team_id, reason=reason) as change:
            store = AccountStore(change.within)
            before = await store.get_team(team_id)
            team = await store.update_team(team_id, **changes)
            change.tell("team", team_id, _team_state(before), _team_state(team), organisation_id=team.organisation_id)
        kept = LearningStore(engine)
        # At once, and on every call: a deletion that was interrupted is finished by asking again.
        if learning == "off":
            await kept.forget_team(team_id)
        elif learning == "numbers":
            await kept.forget_prompts(team_id)
        changed = plain(team)
    if as_json:
        print_json(changed)
    else:
        shown = ["quality_floor", "escalation", "learning", "shadow_share", "weight", "spill_over", "continue_streams"]
        shown += ["cache", "cache_ttl_s"]
        typer.echo(f"{team_id}: " + ", ".join(f"{name} {cell(name, changed[name])}" for name in shown))


ReasonOption = Annotated[str, typer.Option(help="Why, for the audit log.")]
TeamArgument = Annotated[str, typer.Argument(metavar="TEAM_ID", help="From `teams list`.")]


@teams_app.command("block")
async def block_team(team_id: TeamArgument, reason: ReasonOption = "") -> None:
    """Refuse all keys of a team until `teams unblock`. Every server follows within 5 seconds."""
    await _block(team_id, reason, blocked=True)


@teams_app.command("unblock")
async def unblock_team(team_id: TeamArgument, reason: ReasonOption = "") -> None:
    """Let a blocked team's keys work again."""
    await _block(team_id, reason, blocked=False)


async def _block(team_id: str, reason: str, *, blocked: bool) -> None:
    from accounts.store import AccountStore
    from gateway.commands.audit import audited

    action = "team.blocked" if blocked else "team.unblocked"
    async with open_engine() as engine, audited(engine, action, team_id=team_id, reason=reason) as change:
        store = AccountStore(change.within)
        before = await store.get_team(team_id)
        after = await store.block_team(before.organisation_id, team_id, blocked=blocked)
        change.tell("team", team_id, _team_state(before), _team_state(after), organisation_id=after.organisation_id)
    typer.echo(f"{'blocked' if blocked else 'unblocked'} {team_id}")


@teams_app.command("flush-cache")
async def flush_cache(team_id: TeamArgument, reason: ReasonOption = "") -> None:
    """Have none of a team's kept answers given again. Every server follows within seconds."""
    from accounts.store import AccountStore
    from gateway.commands.audit import audited

    async with (
        open_engine() as engine,
        audited(engine, "team.cache_flushed", team_id=team_id, reason=reason) as change,
    ):
        store = AccountStore(change.within)
        before = await store.get_team(team_id)
        after = await store.flush_cache(before.organisation_id, team_id)
        told = [{"name": each.name, "cache_epoch": each.settings.cache_epoch} for each in (before, after)]
        change.tell("team", team_id, *told, organisation_id=after.organisation_id)
    typer.echo(f"flushed the kept answers of {team_id}")


def _seconds(text: str) -> int | None:
    if text.strip().lower() == "none":
        return None
    if not text.isdecimal():
        fail(f"--cache-ttl is a number of seconds, or none, not {text[:40]!r}", USAGE)
    return int(text)


def _floor(text: str) -> float | None:
    if text.strip().lower() == "none":
        return None
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        fail(f"--quality-floor is a number above 0 and at most 1, or none, not {text[:40]!r}", USAGE)


def _team_state(team: "TeamRecord") -> dict[str, Any]:
    """Return a team with its policy, as the audit log stores it."""
    from api.policy.change import policy_of
    from api.teams.change import audit_record

    return audit_record(team) | policy_of(team)
