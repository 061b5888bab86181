"""`weighbridge focus`: the books as the FinOps Foundation's FOCUS 1.2 dataset."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from cost.reports.focus import FocusQuery

focus_app = typer.Typer(help="Exports for FinOps tools.", no_args_is_help=True, rich_markup_mode=None)


@focus_app.callback()
def _group() -> None:
    """Keeps `export` a command of its own: a group of one would become that one."""


@focus_app.command("export")
def export(
    start: Annotated[datetime, typer.Option("--from", formats=["%Y-%m-%d"], help="The first day, UTC.")],
    end: Annotated[datetime, typer.Option("--to", formats=["%Y-%m-%d"], help="The first day that is left out.")],
    out: Annotated[Path, typer.Option("--out", help="The file to write; `-` is standard output.")],
    organisation: Annotated[str, typer.Option(help="Whose books.")] = "default",
    team: Annotated[str | None, typer.Option(help="Only this team's.")] = None,
    by_hour: Annotated[bool, typer.Option("--by-hour", help="A row an hour instead of a day.")] = False,
) -> None:
    """Write the FOCUS 1.2 dataset of some days as CSV."""
    import asyncio

    from cost.reports.errors import BadQuery
    from cost.reports.focus import FocusQuery
    from cost.reports.scope import ReadScope
    from proxy.cli import _fail

    scope = ReadScope(organisation_id=organisation, team_id=team)
    query = FocusQuery(scope=scope, start=start.date(), end=end.date(), by_hour=by_hour)
    try:
        query.checked()
    except BadQuery as error:
        _fail(f"--{'to' if error.param == 'end' else 'from'}: {error}", 2)
    asyncio.run(_write(query, out))
    if str(out) != "-":
        typer.echo(f"wrote {out}")


async def _write(query: "FocusQuery", out: Path) -> None:
    """The file appears whole or not at all."""
    import os
    import sys
    from contextlib import suppress

    from proxy.books.focus_export import focus_export
    from proxy.cli import _engine

    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    to_screen = str(out) == "-"
    async with _engine() as engine:
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
