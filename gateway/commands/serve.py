"""`weighbridge serve`, `demo` and `version`: run the gateway, see it work, say which it is."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal

import typer

from gateway.commands.shared import USAGE, ConfigOption, fail, load_config


def serve(
    config: ConfigOption = None,
    host: Annotated[str | None, typer.Option(help="Instead of server.host.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65_535, help="Instead of server.port.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, max=128, help="Processes that serve.")] = None,
    migrate: Annotated[
        bool | None,
        typer.Option(
            "--migrate/--no-migrate", help="Upgrade the schema of a PostgreSQL database, if need be; or change none."
        ),
    ] = None,
    logs: Annotated[
        Literal["json", "text"] | None,
        typer.Option(help="The form of log lines; otherwise text on a terminal and JSON everywhere else."),
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Serve two small local engines; needs no configuration.")
    ] = False,
    sample: Annotated[
        bool,
        typer.Option("--sample", help="Serve a made-up company's last thirty days, for looking at the dashboards."),
    ] = False,
) -> None:
    """Serve until Ctrl-C or SIGTERM. On a terminal it says where, and which command comes next."""
    if sample:
        if config is not None or demo:
            fail("--sample brings its own configuration; leave --config and --demo out", USAGE)
        from gateway.demo.sample import serve_sample

        raise typer.Exit(serve_sample(host=host, port=port, workers=workers, requests=None))
    if demo:
        if config is not None:
            fail("--demo brings its own configuration; leave --config out", USAGE)
        from gateway.demo.run import serve_demo

        raise typer.Exit(serve_demo(host=host, port=port, workers=workers))
    from gateway.process.serve import serve as run

    environment, settings, path = load_config(
        config, {"host": host, "port": port, "workers": workers, "migrate": migrate, "logs": logs}
    )
    raise typer.Exit(run(settings, environment, path, option=config))


def demo(
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the rows and totals here.")] = None,
) -> None:
    """Send a dozen prompts through two small real engines and show the bill."""
    from gateway.demo.run import run_demo

    raise typer.Exit(run_demo(json_file))


def version() -> None:
    """Print the version."""
    typer.echo(metadata.version("weighbridge"))
