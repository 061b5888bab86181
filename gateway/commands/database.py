"""`weighbridge database`: its schema, and the way to another database."""
# ruff: noqa: PLC0415 - imports stand in the commands, so that `--help` answers at once

from typing import Annotated, Any

import typer

from gateway.commands.shared import USAGE, JsonOption, fail, journal_dir, open_database, print_json
from gateway.table import counted, print_table

database_app = typer.Typer(
    help="The database: its schema, and copying it to another one.", no_args_is_help=True, rich_markup_mode=None
)
_UNFIT = 1


@database_app.command("status")
async def status(as_json: JsonOption = False) -> None:
    """Say which schema the database has, and which this version needs. Exit status 1: another one."""
    from gateway.schema import read_state, refusal

    async with open_database() as engine:
        state = await read_state(engine)
        kind = engine.dialect.name
    if as_json:
        print_json({"database": kind, "fit": state.fit, "schema": state.revision, "needed": state.newest})
    elif state.fit == "newest":
        typer.echo(f"{kind}: schema {state.revision}, as this version needs it")
    elif state.fit == "empty":
        typer.echo(f"{kind}: empty; the first command that uses it creates schema {state.newest}")
    else:
        typer.echo(refusal(state, sqlite=kind == "sqlite"))
    if state.fit not in ("newest", "empty"):
        raise typer.Exit(_UNFIT)


@database_app.command("upgrade")
async def upgrade() -> None:
    """Upgrade the schema to this version's; of SQLite's file a copy is kept beside it."""
    from gateway.schema import upgrade_with_backup

    async with open_database() as engine:
        before = await upgrade_with_backup(engine, typer.echo)
    if before.fit == "newest":
        typer.echo(f"nothing to do: the database has schema {before.revision}")
    elif before.fit == "empty":
        typer.echo(f"the empty database has schema {before.newest} now")


@database_app.command("downgrade")
async def downgrade(
    revision: Annotated[
        str, typer.Argument(help="The schema to go back to, such as 0025: the older version says which.")
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Do it; otherwise only list what would be lost.")] = False,
) -> None:
    """Take the schema back for an older version, and lose what that has no place for. The gateway must not run."""
    from gateway.backup import check_nobody_serves
    from gateway.schema import downgrade_with_backup, losses, read_state

    async with open_database() as engine:
        lost = await losses(engine, revision)
        if lost:
            rows = [[each.table, ", ".join(each.columns) or "the whole table", f"{each.rows:,}"] for each in lost]
            print_table(["table", "lost", "rows"], rows, right=(2,), shrink=1)
        if not yes:
            fail(f"nothing was changed; with --yes the schema goes back to {revision}", USAGE)
        await check_nobody_serves(engine, await read_state(engine), journal_dir())
        await downgrade_with_backup(engine, revision, typer.echo)
    typer.echo(f"the database has schema {revision} now")


@database_app.command("copy")
async def copy(
    target: Annotated[str, typer.Option("--to", metavar="ADDRESS", help="An empty database, such as postgresql://…")],
    source: Annotated[
        str | None, typer.Option("--from", metavar="ADDRESS", help="The database to copy; otherwise the one in use.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Copy all tables to an empty database, of the same or the other kind. The gateway must not run."""
    from gateway.configuration.environment import read_environment
    from gateway.database import make_engine
    from gateway.database_copy import copy_database

    address = source or read_environment().database()
    if source is not None and (missing := _missing_file(source)):
        fail(f"{missing}: there is no such file", USAGE)
    rows: list[dict[str, Any]] = []
    reading, writing = make_engine(address), make_engine(target)
    try:
        total = await copy_database(
            reading,
            writing,
            lambda table, count: rows.append({"table": table, "rows": count}),
            journal_dir=journal_dir(),
        )
    finally:
        await reading.dispose()
        await writing.dispose()
    if as_json:
        print_json({"rows": total, "tables": rows})
    else:
        typer.echo(f"copied: {counted(total, 'row')} of {counted(len(rows), 'table')}, and as many are in the copy")
        typer.echo(
            "set WEIGHBRIDGE_DATABASE_URL to the new address before the gateway starts; journals stay where they are",
            err=True,
        )


def _missing_file(address: str) -> str | None:
    """Return the file of a SQLite address that is not there: opening it would make an empty one."""
    from pathlib import Path

    from sqlalchemy import make_url

    if not address.startswith("sqlite"):
        return None
    name = make_url(address).database
    return name if name and name != ":memory:" and not Path(name).is_file() else None
