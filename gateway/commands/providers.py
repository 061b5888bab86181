"""`weighbridge providers compare`: what our table of quirks and the installed litellm say of the same models."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.commands.shared import JsonOption, fail, print_json
from gateway.table import counted, print_table

if TYPE_CHECKING:
    from providers.quirks_compared import Comparison

providers_app = typer.Typer(
    help="What providers, models and engines take.", no_args_is_help=True, rich_markup_mode=None
)
_NAMED = 3
"""The most models that a line of the table names."""


@providers_app.command("compare")
def compare(
    provider: Annotated[
        str | None, typer.Argument(metavar="PROVIDER", help="Only this one, by litellm's name, such as xai.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare our table of what models take with the installed litellm's, and list where they differ."""
    from cost.price_book.litellm_table import read_table
    from providers.litellm_client import parameters_by_litellm
    from providers.quirks import read_table as read_quirks
    from providers.quirks_compared import compared, provider_of

    known = sorted(read_quirks().litellm)
    if provider is not None and provider not in known:
        fail(f"no provider `{provider}` is compared; there are {', '.join(known)}")

    table = read_table()
    try:
        supported, has_litellm = parameters_by_litellm(), True
    except ImportError:
        supported, has_litellm = (lambda _model: None), False
    rows = {name: row for name, row in table.rows.items() if provider in (None, provider_of(row))}
    found = compared(rows, supported)
    if as_json:
        from msgspec import to_builtins

        print_json({"litellm": table.release, "parameters_compared": has_litellm, **to_builtins(found)})
        return
    _print(found)
    typer.echo(
        f"\n{counted(found.compared, 'model')} of litellm {table.release} compared, "
        f"{counted(len(found.differences), 'difference')}."
    )
    if not has_litellm:
        typer.echo(
            "litellm is not installed (`pip install 'weighbridge[litellm]'`): flags alone were compared, no parameters."
        )
    _tell(found.unknown, "of a family that no row names, so nothing is known and all is sent as asked")
    _tell(found.inherited, "newer than any row: taken for ones like the newest of their family")
    typer.echo("Neither table is right by itself: a row of providers/data/quirks.toml needs the provider's own word.")


def _print(found: "Comparison") -> None:
    rows = [
        [
            each.provider,
            each.what,
            each.ours,
            each.theirs,
            str(len(each.models)),
            ", ".join(each.models[:_NAMED]) + (", …" if len(each.models) > _NAMED else ""),
        ]
        for each in found.differences
    ]
    if rows:
        print_table(["provider", "what", "ours", "litellm's", "models", "such as"], rows, right=(4,), shrink=5)


def _tell(models: tuple[str, ...], what: str) -> None:
    if models:
        shown = ", ".join(models[:_NAMED]) + (", …" if len(models) > _NAMED else "")
        typer.echo(f"{counted(len(models), 'model')} {what}: {shown}")
