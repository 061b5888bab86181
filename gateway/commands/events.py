"""`weighbridge events`: what sinks are told, how far each was told, and days told once more."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated

import typer

from gateway.commands.shared import ConfigOption, JsonOption, fail, open_engine, print_json, read_config
from gateway.table import counted, print_table

events_app = typer.Typer(help="Events about finished requests.", no_args_is_help=True, rich_markup_mode=None)

_MOST_DAYS = 31


@events_app.command("schema")
def print_schema() -> None:
    """Print the JSON schema of an event."""
    from cost.events.event import schema_file

    typer.echo(schema_file(), nl=False)


@events_app.command("list")
async def list_sinks(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List the sinks, how far each was told, and what waits for it."""
    from cost.events.outbox import EventOutbox
    from cost.times import moment

    kinds = {sink.name: sink.kind for sink in read_config(config).events.sinks}
    async with open_engine() as engine:
        places = {place.name: place for place in await EventOutbox(engine).places()}
    found = [
        {
            "name": name,
            "kind": kinds.get(name),
            "sequence": place and place.sequence,
            "waiting": place and place.waiting,
            "moved": place and moment(place.moved_us).isoformat(timespec="seconds"),
        }
        for name in sorted({*kinds, *places})
        for place in (places.get(name),)
    ]
    if as_json:
        print_json(found)
    elif not found:
        typer.echo("no sinks: name them under `events.sinks` in the configuration", err=True)
    else:
        rows = [[str(each["name"]), str(each["kind"] or "not configured"), *_cells(each)] for each in found]
        print_table(["name", "kind", "told up to", "waiting", "moved"], rows, right=(2, 3))


def _cells(found: Mapping[str, object]) -> list[str]:
    return ["-" if found[name] is None else str(found[name]) for name in ("sequence", "waiting", "moved")]


@events_app.command("replay")
async def replay(
    start: Annotated[datetime, typer.Option("--from", formats=["%Y-%m-%d"], help="The first day, UTC.")],
    end: Annotated[datetime, typer.Option("--to", formats=["%Y-%m-%d"], help="The last day.")],
) -> None:
    """Have the entries of some days told once more, to every sink, under the same ids."""
    from cost.events.outbox import EventOutbox
    from cost.times import DAY_US, start_of

    days = (end - start) // timedelta(days=1) + 1
    if not 1 <= days <= _MOST_DAYS:
        fail(f"--to: has to be from --from to {_MOST_DAYS - 1} days later", 2)
    total, first = 0, start_of(start.date())
    async with open_engine() as engine:
        outbox = EventOutbox(engine)
        if not await outbox.is_told():
            fail("nobody tells events: is a gateway with `events.sinks` running on this database?")
        for day in range(days):
            total += await outbox.replay(first + day * DAY_US, first + (day + 1) * DAY_US)
    typer.echo(f"{counted(total, 'entry', 'entries')} will be told again")
