"""`weighbridge webhooks`: where messages go, what became of them, and whether a receiver takes one."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from proxy.configuration.settings import GatewayConfig

webhooks_app = typer.Typer(help="Receivers of warnings and reports.", no_args_is_help=True, rich_markup_mode=None)
ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="The configuration file; otherwise WEIGHBRIDGE_CONFIG.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@webhooks_app.command("list")
def list_webhooks(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List the configured destinations and what became of their messages."""
    import asyncio

    from proxy.cli import _config_only, _print_json
    from proxy.table import print_table

    found = asyncio.run(_states(_config_only(config)))
    if as_json:
        _print_json(found)
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
def send_test(
    name: Annotated[str, typer.Argument(help="The destination's name in the configuration.")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send one message now. A destination that had said it is gone is used again when it takes this one."""
    import asyncio

    from proxy.cli import _config_only, _fail, _print_json

    settings = _config_only(config)
    if name not in settings.webhooks.names():
        known = ", ".join(settings.webhooks.names()) or "none are configured"
        _fail(f"there is no destination {name[:64]!r}; there are: {known}", 2)
    status = asyncio.run(_sent(settings, name))
    taken = 200 <= status < 300  # noqa: PLR2004 - what Standard Webhooks calls success
    if as_json:
        _print_json({"name": name, "delivered": taken, "status": status or None})
    elif taken:
        typer.echo(f"{name} has taken it ({status})")
    if not taken:
        _fail(f"{name} did not answer" if status == 0 else f"{name} answered {status}; only 2xx is success")


async def _states(settings: "GatewayConfig") -> list[dict[str, Any]]:
    from urllib.parse import urlsplit

    import msgspec

    from proxy.cli import _engine
    from proxy.webhooks.outbox import Outbox

    async with _engine() as engine:
        outbox = Outbox(engine)
        # A path may hold a token; the host alone tells enough.
        return [
            {"name": each.name, "host": urlsplit(each.url).netloc}
            | msgspec.structs.asdict(await outbox.state(each.name))
            for each in settings.webhooks.destinations
        ]


async def _sent(settings: "GatewayConfig", name: str) -> int:
    from contextlib import aclosing
    from uuid import uuid4

    from proxy.cli import _engine
    from proxy.configuration.settings import resolve_secret
    from proxy.webhooks.outbox import Outbox
    from proxy.webhooks.sender import Sender, destinations_of

    chosen = [each for each in settings.webhooks.destinations if each.name == name]
    destinations = destinations_of(chosen, resolve_secret)
    async with _engine() as engine, aclosing(Sender(Outbox(engine), destinations)) as sender:
        return await sender.test(name, f"test/{uuid4().hex}")
