"""`weighbridge webhooks`: where messages go, what became of them, and whether a receiver takes one."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.commands.shared import ConfigOption, JsonOption, fail, open_engine, print_json, read_config
from gateway.table import print_table

if TYPE_CHECKING:
    from gateway.configuration.gateway_config import GatewayConfig

webhooks_app = typer.Typer(help="Receivers of warnings and reports.", no_args_is_help=True, rich_markup_mode=None)


@webhooks_app.command("list")
async def list_webhooks(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List the configured destinations and what became of their messages."""
    found = await _states(read_config(config))
    if as_json:
        print_json(found)
    elif not found:
        typer.echo("no destinations: name them under `webhooks.destinations` in the configuration", err=True)
    else:
        rows = [
            [
                each["name"],
                each["host"],
                "disabled" if each["disabled"] else "enabled",
                str(each["waiting"]),
                str(each["delivered"]),
                str(each["given_up"]),
                {None: "-", 0: "none"}.get(each["last_status"], str(each["last_status"])),
            ]
            for each in found
        ]
        headings = ["name", "host", "state", "waiting", "delivered", "given up", "last answer"]
        print_table(headings, rows, right=(3, 4, 5, 6))


@webhooks_app.command("test")
async def send_test(
    name: Annotated[str, typer.Argument(help="The destination's name in the configuration.")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send one message now. A destination that had said it is gone is used again when it takes this one."""
    from contextlib import aclosing
    from uuid import uuid4

    from api.webhooks.outbox import Outbox
    from api.webhooks.sender import Sender, destinations_of
    from gateway.configuration.environment import resolve_secret

    settings = read_config(config)
    if name not in settings.webhooks.names():
        known = ", ".join(settings.webhooks.names()) or "none are configured"
        fail(f"there is no destination {name[:64]!r}; there are: {known}", 2)

    chosen = [each for each in settings.webhooks.destinations if each.name == name]
    destinations = destinations_of(chosen, resolve_secret, settings.webhooks.mail)
    async with open_engine() as engine, aclosing(Sender(Outbox(engine), destinations)) as sender:
        status = await sender.test(name, f"test/{uuid4().hex}")
    taken = 200 <= status < 300  # noqa: PLR2004 - what Standard Webhooks calls success
    if as_json:
        print_json({"name": name, "delivered": taken, "status": status or None})
    elif taken:
        typer.echo(f"{name} has taken it ({status})")
    if not taken:
        fail(f"{name} did not answer" if status == 0 else f"{name} answered {status}; only 2xx is success")


async def _states(settings: "GatewayConfig") -> list[dict[str, Any]]:
    from urllib.parse import urlsplit

    import msgspec

    from api.webhooks.outbox import Outbox

    async with open_engine() as engine:
        outbox = Outbox(engine)
        # A path may hold a token; the host alone tells enough.
        return [
            {"name": each.name, "host": urlsplit(each.url or "").netloc or each.shape}
            | msgspec.structs.asdict(await outbox.state(each.name))
            for each in settings.webhooks.destinations
        ]
