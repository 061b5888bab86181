"""`weighbridge import`: other gateways' configurations and databases, and what became of each of their lines."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.commands.shared import FAILED, USAGE, JsonOption, fail, print_json
from gateway.table import counted, print_table

if TYPE_CHECKING:
    from gateway.from_litellm.told import Account

import_app = typer.Typer(help="From another gateway to this one.", no_args_is_help=True, rich_markup_mode=None)

_DRY = typer.Option("--dry-run", help="Tell what would become of each line, and write nothing.")


@import_app.command("litellm")
async def import_litellm(
    file: Annotated[Path | None, typer.Argument(metavar="CONFIG_YAML", help="LiteLLM's configuration.")] = None,
    dry_run: Annotated[bool, _DRY] = False,
    out: Annotated[Path, typer.Option(help="Where our configuration is written.")] = Path("weighbridge.yaml"),
    secrets: Annotated[
        Path | None,
        typer.Option(help="A new file for literal secrets, as NAME=value lines that only its owner can read."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write our configuration for LiteLLM's. Exit status 1: something was not possible, which the table names."""
    if file is None:
        fail("name LiteLLM's config.yaml", USAGE)
    account = _translated(file, out, secrets, dry_run=dry_run)
    _show(account, as_json=as_json)
    if account.counts()["not possible"]:
        raise typer.Exit(FAILED)


def _translated(file: Path, out: Path, secrets: Path | None, *, dry_run: bool) -> "Account":
    """Translate the file, and write what came of it unless it is only to be told."""
    from gateway.configuration.environment import read_environment
    from gateway.from_litellm.checked import sound
    from gateway.from_litellm.configuration import as_yaml, translate
    from gateway.from_litellm.secrets import Secrets
    from gateway.from_litellm.source import Variables, read_source
    from gateway.from_litellm.told import Account

    account, variables = Account(), Variables(os.environ)
    source = read_source(file, account, variables)
    moved = Secrets(account, variables)
    written = sound(translate(source, account, moved, variables).written, read_environment(), account)
    if not dry_run:
        _write(out, as_yaml(written))
        if secrets is not None and moved.moved:
            _write(secrets, _lines(moved.moved), mode=0o600)
    _say_what_to_set(moved.moved, moved.referred, secrets, dry_run=dry_run)
    return account


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a new file; one that says the same may be there already."""
    try:
        if path.exists():
            if path.read_text(encoding="utf-8") == text:
                return
            fail(f"{path} is there already and says something else: name another file, or move it", USAGE)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror}", USAGE)
    typer.echo(f"wrote {path}", err=True)


def _lines(moved: dict[str, str]) -> str:
    """Return lines that a shell and an environment file of containers read alike."""
    return "".join(
        f"{name}={value}\n" if value.isalnum() else f"{name}='{value}'\n"
        for name, value in sorted(moved.items())
        if "'" not in value and value.isprintable()
    )


def _say_what_to_set(moved: dict[str, str], referred: set[str], secrets: Path | None, *, dry_run: bool) -> None:
    if moved:
        where = (
            f" (they are in {secrets})"
            if secrets is not None and not dry_run
            else "; --secrets FILE writes them to a file"
        )
        typer.echo(f"literal secrets that have to be set: {', '.join(sorted(moved))}{where}", err=True)
    missing = sorted(name for name in referred if name not in moved and not os.environ.get(name))
    if missing:
        typer.echo(f"not set in this environment, and needed to serve: {', '.join(missing)}", err=True)


def _show(account: "Account", *, as_json: bool) -> None:
    """Print what became of each line, and how many became what."""
    import msgspec

    from gateway.from_litellm.told import rows_of

    told = account.in_order()
    if as_json:
        found: list[dict[str, Any]] = [msgspec.structs.asdict(each) for each in told]
        print_json(found)
    else:
        print_table(["line", "where", "became", "how"], rows_of(told), shrink=3)
    counts = account.counts()
    lines = ", ".join(f"{number} {outcome}" for outcome, number in counts.items() if number)
    typer.echo(f"{counted(len(told), 'line')}: {lines}", err=True)
