"""`weighbridge models add|list|canary|promote|rollback`: versions of our own models, and rollouts of new ones."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.commands.shared import ConfigOption, JsonOption, open_engine, print_json, read_config
from gateway.table import print_table

if TYPE_CHECKING:
    from selfhosted.rollouts.versions import ModelVersion, Rollout

models_app = typer.Typer(
    help="Our own models' versions, and the share that a new one gets.", no_args_is_help=True, rich_markup_mode=None
)
ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="The model_id: the first of its pool's targets.")]
ReasonOption = Annotated[str, typer.Option(help="Why, for the audit log.")]
_FOLLOWS = "every process follows within 2 s"


@models_app.command("add")
async def add(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Its model_id; of an adapter, the adapter's target.")],
    version: Annotated[str, typer.Argument(metavar="VERSION", help="The version's name; it never changes.")],
    *,
    weights: Annotated[str, typer.Option(help="Where the weights are: a repository, an address or a path.")],
    digest: Annotated[str, typer.Option(help="sha256:… of the weights, or their repository's commit.")] = "",
    precision: Annotated[str, typer.Option(help="Such as bf16, fp8 or awq.")] = "",
    layout: Annotated[str, typer.Option(help="A replica's GPUs, such as tp4 or tp8-pp2.")] = "",
    tokenizer: Annotated[str, typer.Option(help="Where the tokenizer is, if not with the weights.")] = "",
    argument: Annotated[
        list[str] | None, typer.Option(help="An argument of the engine; may be given several times.")
    ] = None,
    adapter: Annotated[
        list[str] | None, typer.Option(help="A LoRA adapter of this version, by its target; several times.")
    ] = None,
    base: Annotated[str, typer.Option(metavar="MODEL", help="This is a LoRA adapter of that model.")] = "",
    note: Annotated[str, typer.Option(help="What is new about it.")] = "",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Register a version of a model or of a LoRA adapter. Nothing is sent there yet."""
    from api.fleet.rollouts import add_version, check_registrable
    from gateway.commands.audit import console, log_of
    from selfhosted.rollouts.versions import ModelVersion

    made = ModelVersion(
        model=model,
        version=version,
        kind="adapter" if base else "weights",
        weights=weights,
        digest=digest,
        precision=precision,
        layout=layout,
        tokenizer=tokenizer,
        arguments=tuple(argument or ()),
        adapters=tuple(adapter or ()),
        base=base,
        note=note,
    )
    settings = read_config(config)
    check_registrable(settings.selfhosted.pools, made)
    async with open_engine() as engine:
        made = await add_version(log_of(engine), console(settings.accounts.operator), made)
    if as_json:
        print_json(_plain(made))
    else:
        typer.echo(f"{made.model} has the version {made.version}")


@models_app.command("list")
async def list_models(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help="Only this one.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List versions, the newest first, with what each gets now."""
    versions, rollouts = await _listed(model)
    by_model = {each.model: each for each in rollouts}
    if as_json:
        print_json(
            {"versions": [_plain(each) for each in versions], "rollouts": [_told(each) for each in rollouts]},
        )
    elif versions:
        _print(versions, by_model)
    else:
        typer.echo("no versions are registered; see weighbridge models add --help", err=True)


async def _listed(model: str | None) -> "tuple[tuple[ModelVersion, ...], tuple[Rollout, ...]]":
    from selfhosted.rollouts.store import RolloutStore

    async with open_engine() as engine:
        store = RolloutStore(engine)
        rollouts = await store.rollouts()
        return await store.versions(model), tuple(each for each in rollouts if model in {None, each.model})


@models_app.command("canary")
async def canary(
    model: ModelArgument,
    version: Annotated[str, typer.Argument(metavar="VERSION", help="A version that was added.")],
    *,
    percent: Annotated[float, typer.Option(help="Its share of conversations, such as 5.")],
    errors: Annotated[
        bool,
        typer.Option("--rollback-on-errors/--no-rollback-on-errors", help="When more attempts fail."),
    ] = True,
    ttft_worse: Annotated[
        float,
        typer.Option(
            "--rollback-on-ttft",
            metavar="PERCENT",
            min=0,
            help="When first tokens take longer by more than this; 0: never.",
        ),
    ] = 50.0,
    tpot_worse: Annotated[
        float,
        typer.Option(
            "--rollback-on-tpot",
            metavar="PERCENT",
            min=0,
            help="When further tokens take longer by more than this; 0: never.",
        ),
    ] = 50.0,
    quality: Annotated[
        bool,
        typer.Option(
            "--rollback-on-quality/--no-rollback-on-quality",
            help="When more answers are escalated or judged inadequate.",
        ),
    ] = True,
    promote_after: Annotated[
        int | None,
        typer.Option(metavar="ATTEMPTS", min=100, help="Promote after so many attempts where nothing is worse."),
    ] = None,
    reason: ReasonOption = "",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a version a share of conversations, or the one on trial another share. Its replicas must run already."""
    from api.fleet.rollouts import pool_of_model, start_canary
    from gateway.commands.audit import console, log_of
    from selfhosted.rollouts.versions import Rule, share_of

    share_ppm = share_of(percent)
    rule = Rule(
        errors=errors,
        ttft_worse=ttft_worse / 100 if ttft_worse else None,
        promote_after=promote_after,
        tpot_worse=tpot_worse / 100 if tpot_worse else None,
        quality=quality,
    )
    settings = read_config(config)
    pool = pool_of_model(settings.selfhosted.pools, model)
    async with open_engine() as engine:
        actor = console(settings.accounts.operator)
        after = await start_canary(
            log_of(engine), actor, model, pool, version, share_ppm=share_ppm, rule=rule, reason=reason
        )
    _tell(
        after, as_json, f"{model}: {percent:g} % of conversations go to {version} where a replica runs it; {_FOLLOWS}"
    )


@models_app.command("promote")
async def promote_version(
    model: ModelArgument,
    version: Annotated[
        str | None, typer.Argument(metavar="VERSION", help="Which one; otherwise the version on trial.")
    ] = None,
    *,
    reason: ReasonOption = "",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a version all conversations."""
    from api.fleet.rollouts import pool_of_model, promote
    from gateway.commands.audit import console, log_of

    settings = read_config(config)
    pool = pool_of_model(settings.selfhosted.pools, model)
    async with open_engine() as engine:
        actor = console(settings.accounts.operator)
        after = await promote(log_of(engine), actor, model, pool, version, reason=reason)
    _tell(after, as_json, f"{model}: all conversations go to {after.stable}; {_FOLLOWS}")


@models_app.command("rollback")
async def rollback(
    model: ModelArgument, *, reason: ReasonOption = "", config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """Take all conversations from the version on trial."""
    from api.fleet.rollouts import roll_back
    from gateway.commands.audit import console, log_of

    settings = read_config(config)
    async with open_engine() as engine:
        after = await roll_back(log_of(engine), console(settings.accounts.operator), model, reason=reason)
    _tell(after, as_json, f"{model}: no conversations go to {after.candidate} any more; {_FOLLOWS}")


def _tell(after: "Rollout", as_json: bool, told: str) -> None:
    if as_json:
        print_json(_told(after))
    else:
        typer.echo(told)


def _plain(version: "ModelVersion") -> dict[str, Any]:
    from api.fleet.rollouts import version_as_json

    return version_as_json(version)


def _told(rollout: "Rollout") -> dict[str, Any]:
    from api.fleet.rollouts import rollout_as_json

    return rollout_as_json(rollout)


def _print(versions: "Sequence[ModelVersion]", rollouts: "dict[str, Rollout]") -> None:
    from api.fleet.rollouts import gets
    from cost.times import iso

    rows = [
        [
            each.model,
            each.version,
            gets(rollouts.get(each.model), each),
            each.weights,
            each.digest[:19] or "-",
            each.precision or "-",
            each.layout or "-",
            iso(each.added_us),
            each.added_by,
        ]
        for each in versions
    ]
    headings = ["model", "version", "gets", "weights", "digest", "precision", "layout", "added", "by"]
    print_table(headings, rows, shrink=3)
