"""`weighbridge focus`: the books as the FinOps Foundation's FOCUS 1.2 dataset."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.commands.shared import fail, open_engine

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from cost.reports.focus import FocusQuery

focus_app = typer.Typer(help="Exports for FinOps tools.", no_args_is_help=True, rich_markup_mode=None)


@focus_app.callback()
def _group() -> None:
    """Keep `export` a command of its own: a group of one would become that one."""


@focus_app.command("export")
async def export(
    start: Annotated[datetime, typer.Option("--from", formats=["%Y-%m-%d"], help="The first day, UTC.")],
    end: Annotated[datetime, typer.Option("--to", formats=["%Y-%m-%d"], help="The last day.")],
    out: Annotated[Path, typer.Option("--out", help="The file to write; `-` is standard output.")],
    organisation: Annotated[
        str | None, typer.Option(help="The organisation; `default` if left out, and not needed with a team.")
    ] = None,
    team: Annotated[str | None, typer.Option(help="Only this team's.")] = None,
    by_hour: Annotated[bool, typer.Option("--by-hour", help="A row an hour instead of a day.")] = False,
) -> None:
    """Write the FOCUS 1.2 dataset of some days as CSV."""
    from cost.reports.report_errors import BadQuery

    try:
        from cost.calendars import calendar_of
        from cost.reports.focus import FocusQuery
        from gateway.commands.scopes import scope_of

        async with open_engine() as engine:
            scope = await scope_of(engine, organisation, team)
            query = FocusQuery(
                scope=scope,
                start=start.date(),
                end=end.date() + timedelta(days=1),
                by_hour=by_hour,
                calendar=await calendar_of(engine, scope.organisation_id),
            )
            await _write(engine, query.checked(), out)
    except BadQuery as error:
        fail(f"--{'to' if error.param == 'end' else 'from'}: {error}", 2)
    if str(out) != "-":
        typer.echo(f"wrote {out}")


async def _write(engine: "AsyncEngine", query: "FocusQuery", out: Path) -> None:
    """Write the file atomically: it appears whole or not at all."""
    import os
    import sys
    from contextlib import suppress

    from api.focus.focus_export import focus_export

    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    to_screen = str(out) == "-"
    file = sys.stdout if to_screen else partial.open("w", newline="", encoding="utf-8")
    try:
        async for piece in (await focus_export(engine)).csv(query):
            file.write(piece)
        if not to_screen:
            file.close()
            partial.replace(out)
    finally:
        if not to_screen:
            file.close()
            with suppress(FileNotFoundError):
                partial.unlink()
