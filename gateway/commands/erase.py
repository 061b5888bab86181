"""`weighbridge erase`: a person, or a team's content."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.commands.shared import USAGE, ConfigOption, JsonOption, fail, open_engine, print_json

if TYPE_CHECKING:
    from pathlib import Path

    from api.erasure.change import Erased
    from proxy.batch.blobs import Blobs

erase_app = typer.Typer(
    help="Erasure of a person, and of a team's prompts, answers and files.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Count what would go, and change nothing.")]
ReasonOption = Annotated[str, typer.Option(help="For the audit log, such as a ticket's number.")]
OrganisationOption = Annotated[str, typer.Option(help="The organisation they belong to.")]


@erase_app.command("person")
async def person(
    who: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="An account's id, or an end user as callers name them.")
    ] = None,
    *,
    email: Annotated[str | None, typer.Option(help="In place of an id: their mail address.")] = None,
    organisation: OrganisationOption = "default",
    dry_run: DryRunOption = False,
    reason: ReasonOption = "",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Erase an account or an end user everywhere. What they cost and did stays, without their name. Repeat it for what comes later."""
    from api.erasure.change import erase_person
    from gateway.commands.audit import console, log_of, operators

    named = email if who is None else who
    if named is None or (who is not None and email is not None):
        fail("name one of them: ID, or --email", USAGE)
    async with open_engine() as engine:
        erased = await erase_person(
            engine,
            log_of(engine),
            console(organisation),
            organisation,
            named,
            operator=operators(config),
            dry_run=dry_run,
            reason=reason,
        )
    _print(
        erased,
        as_json=as_json,
        nowhere=f"nobody and nothing of {organisation} is known by {named!r}: is it spelt as callers and accounts have it?",
    )


@erase_app.command("team")
async def team(
    team_id: Annotated[str, typer.Argument(metavar="TEAM_ID")],
    what: Annotated[str, typer.Argument(metavar="content", help="The word `content`.")],
    *,
    before: Annotated[str | None, typer.Option(metavar="DAY", help="Only what is from before this day, UTC.")] = None,
    dry_run: DryRunOption = False,
    reason: ReasonOption = "",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Erase a team's prompts, responses, files and batches that have ended. Its books and settings stay."""
    from accounts.store import AccountStore
    from api.erasure.change import erase_content
    from gateway.commands.audit import console, log_of

    if what != "content":
        fail(f"{what!r} cannot be erased of a team: write `content`", USAGE)
    before_us = None if before is None else _start_of(before)
    async with open_engine() as engine:
        owner = (await AccountStore(engine).get_team(team_id)).organisation_id
        erased = await erase_content(
            engine,
            log_of(engine),
            console(owner),
            owner,
            team_id,
            before_us=before_us,
            blobs=_blobs(config),
            dry_run=dry_run,
            reason=reason,
        )
    _print(erased, as_json=as_json)


def _start_of(day: str) -> int:
    from datetime import date

    from cost.times import start_of

    try:
        return start_of(date.fromisoformat(day))
    except ValueError:
        fail(f"{day!r} is no day: write it as 2026-04-30", USAGE)


def _blobs(config: "Path | None") -> "Blobs":
    from gateway.commands.shared import read_config
    from gateway.configuration.environment import read_environment
    from gateway.configuration.places import Places
    from gateway.wiring.batch import open_blobs
    from proxy.batch.batch_config import BatchSection

    environment = read_environment()
    named = environment.config if config is None else config
    section = BatchSection() if named is None else read_config(named).batch
    return open_blobs(section, Places(named, environment.data_dir))


def _print(erased: "Erased", *, as_json: bool, nowhere: str = "") -> None:
    import msgspec

    from gateway.table import counted, print_table

    if as_json:
        print_json(msgspec.to_builtins(erased))
        return
    if erased.rows:
        print_table(["of", "rows"], [[name, str(count)] for name, count in erased.rows.items()])
    total = counted(sum(erased.rows.values()), "row", "rows")
    typer.echo(f"{total} would be erased; nothing was" if erased.dry_run else f"{total} erased", err=True)
    if nowhere and not erased.rows:
        typer.echo(nowhere, err=True)
        return
    for name, count in erased.left.items():
        typer.echo(
            f"{name}: {count} left, of batches and uploads under way: cancel batches, and erase again when they have ended",
            err=True,
        )
    for name, why in erased.kept.items():
        typer.echo(f"{name}: kept: {why}", err=True)
