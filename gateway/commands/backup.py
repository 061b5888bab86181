"""`weighbridge backup` and `restore`: the database and this host's journals in one file, and back."""
# ruff: noqa: PLC0415 - imports stand in the commands, so that `--help` answers at once

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gateway.commands.shared import JsonOption, journal_dir, open_database, print_json
from gateway.table import counted

if TYPE_CHECKING:
    from gateway.backup import Restored

_SHOWN: Final = 5


async def backup(
    file: Annotated[
        Path, typer.Argument(help="The archive to write, such as weighbridge.tar.gz; the file must not exist yet.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Write the database and this host's journals to one file, while the gateway serves.

    The pepper and the configuration are not in it: keep them elsewhere.
    """
    from gateway.backup import back_up

    journals = journal_dir()
    async with open_database() as engine:
        manifest = await back_up(engine, journals, file)
    rows = sum(table.rows for table in manifest.tables)
    if as_json:
        print_json(manifest)
    else:
        size = file.stat().st_size
        typer.echo(
            f"{file}: {counted(rows, 'row')} of {counted(len(manifest.tables), 'table')}, schema {manifest.revision}, {size:,} bytes"
        )
    if manifest.left_out:
        typer.echo(
            f"not in it, as this version's schema has no place for them: {', '.join(manifest.left_out)}", err=True
        )
    if journals is None:
        typer.echo("journals are not included: WEIGHBRIDGE_CONFIG is not set, so their folder is unknown", err=True)


async def restore(
    file: Annotated[Path, typer.Argument(help="An archive that `weighbridge backup` has written.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Archive a database that is not empty beside FILE, and replace it.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Put an archive's database into an empty one, and bring back its journals' files. The gateway must not run.

    What journals here have and the archive has not is booked at the gateway's next start.
    """
    from gateway.backup import restore as put_back
    from gateway.commands.audit import note, operators

    async with open_database() as engine:
        folder = journal_dir()
        done = await put_back(engine, folder, file, replace=replace, say=lambda line: typer.echo(line, err=True))
        if done.is_newest:
            made = done.manifest
            told: dict[str, Any] = {
                "made_at": made.made_at,
                "made_on": made.host,
                "schema": made.revision,
                "replaced": done.replaced,
            }
            if done.erased_since:
                told["erased_since"] = [each.command or each.at for each in done.erased_since]
            await note(engine, operators(), "database.restored", "database", made.kind, told)
    if as_json:
        print_json(done)
    else:
        _print(done, folder)


def _print(done: "Restored", folder: Path | None) -> None:
    rows = sum(table.rows for table in done.manifest.tables)
    typer.echo(
        f"restored: {counted(rows, 'row')} as of {done.manifest.made_at}, schema {done.manifest.revision}; "
        f"{counted(done.segments, 'file')} of journals"
    )
    if not done.is_newest:
        typer.echo(
            "its schema is older than this version's, so the audit log tells nothing of this: run `weighbridge database upgrade`",
            err=True,
        )
    if done.waiting:
        typer.echo(
            f"{counted(done.waiting, 'line')} of journals here are not known to be in it; the gateway books what is missing when it starts",
            err=True,
        )
    if done.strangers:
        files = ", ".join(f"boot-{each}-*" for each in done.strangers[:_SHOWN])
        typer.echo(
            f"{counted(len(done.strangers), 'journal')} in {folder} were written before this backup by processes that it does not know, as those "
            f"of another gateway are: move the files away before the gateway starts, or it books them into these books ({files}"
            f"{', …' if len(done.strangers) > _SHOWN else ''})",
            err=True,
        )
    if done.erased_since:
        typer.echo("erased since that backup, and back now; erase again:", err=True)
    for each in done.erased_since:
        why = f" ({each.reason})" if each.reason else ""
        nobody = f"an end user of `{each.organisation_id}`, whom the log does not name"
        typer.echo(f"  {each.at}  {each.command or nobody}{why}", err=True)
    for gap in done.gaps:
        lost = "an unknown number of entries" if gap.entries is None else counted(gap.entries, "entry", "entries")
        typer.echo(
            f"missing: {lost} of {gap.boot_id} were booked after the backup and are in no journal any more; "
            "`weighbridge ledger verify` says more",
            err=True,
        )
