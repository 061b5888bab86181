"""`weighbridge organisations`: tenants that share nothing but the prices."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

from typing import Annotated

import typer

from gateway.commands.shared import JsonOption, open_accounts, open_engine, plain, print_rows

organisations_app = typer.Typer(
    help="Organisations: tenants that share nothing but the prices.", no_args_is_help=True, rich_markup_mode=None
)


@organisations_app.command("create")
async def create_organisation(
    organisation_id: Annotated[str, typer.Argument(metavar="ORGANISATION_ID", help="Such as acme.")],
    name: Annotated[str | None, typer.Option(help="A name for people.")] = None,
) -> None:
    """Create an organisation. The one called `default` needs not be created."""
    from accounts.store import AccountStore
    from gateway.commands.audit import audited

    async with open_engine() as engine, audited(engine, "organisation.created", organisation_id) as change:
        await AccountStore(change.within).create_organisation(organisation_id, name)
        change.tell("organisation", organisation_id, None, {"name": name or organisation_id})
    typer.echo(
        f"created organisation {organisation_id}; next: weighbridge teams create TEAM_ID --organisation {organisation_id}"
    )


@organisations_app.command("list")
async def list_organisations(as_json: JsonOption = False) -> None:
    """List the organisations."""
    columns = {"organisation_id": "organisation", "name": "name", "created_at": "created"}
    async with open_accounts() as store:
        rows = [plain(each) for each in await store.list_organisations()]
    print_rows(rows, columns, as_json=as_json, empty="no organisations yet")
