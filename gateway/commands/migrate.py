"""`weighbridge migrate`: the schema made this version's, once for all that will serve."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

from typing import Annotated

import typer

from gateway.commands.shared import open_database

_BEHIND = 1


async def migrate(
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit status 1 where `migrate` would have work to do.")
    ] = False,
    wait_s: Annotated[
        float, typer.Option(min=0, max=3_600, help="How long a database that is away is waited for, in seconds.")
    ] = 60.0,
) -> None:
    """Create or upgrade the database's schema, and end; of several at once one does it, and the others wait. For the job before a
    rollout, whose gateways serve with WEIGHBRIDGE_MIGRATE=false.
    """
    from gateway.database import require_writes
    from gateway.process.prepare_database import once_it_is_there
    from gateway.schema import SchemaRefused, SchemaState, read_state, refusal, upgrade_with_backup

    found: list[SchemaState] = []
    async with open_database() as engine:

        async def work() -> None:
            found.append(await read_state(engine))
            if not check:
                await require_writes(engine)
                found.append(await upgrade_with_backup(engine, typer.echo))

        await once_it_is_there(work, within_s=wait_s)
        sqlite = engine.dialect.name == "sqlite"
    state = found[-1]
    if state.serves:
        typer.echo(f"nothing to do: the database has schema {state.revision}")
    elif not check:
        if state.fit == "empty":
            typer.echo(f"the empty database has schema {state.newest} now")
    elif state.fit in ("empty", "older"):
        typer.echo(f"to do: the database has {_of(state.revision)}, and this version needs {state.newest}")
        raise typer.Exit(_BEHIND)
    else:
        raise SchemaRefused(refusal(state, sqlite=sqlite))


def _of(revision: str | None) -> str:
    return "no schema" if revision is None else f"the schema {revision}"
