"""`weighbridge reload`: have the gateway of this machine read its configuration, and say what came of it."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

from typing import TYPE_CHECKING, Annotated, Final

import typer

from gateway.commands.shared import FAILED, ConfigOption, fail

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.configuration.settings import Outcome

NEEDS_RESTART: Final = 3
"""The exit status where something that changed is not in effect."""


def reload(
    config: ConfigOption = None,
    timeout: Annotated[float, typer.Option(min=0.1, max=600, help="Seconds that all processes may take.")] = 30.0,
) -> None:
    """Have the gateway of this machine read its configuration anew, as SIGHUP does.

    Exit status 0: all of it is in effect; 1: it was refused, nobody runs or answers; 3: what is named needs a restart, the rest is in effect.
    """
    from gateway.configuration.environment import read_environment
    from gateway.configuration.file import ConfigError, Problem
    from gateway.process import announced, reloads

    environment = read_environment(config)
    if environment.config is None:
        raise ConfigError([Problem("", 0, "", "pass --config FILE or set WEIGHBRIDGE_CONFIG, as the gateway has it")])
    folder = environment.places.kept(announced.SERVING)
    found = announced.running(folder, environment.config)
    if not found:
        fail(
            f"no gateway runs with {environment.config}: none is told of in {folder} (it needs the gateway's own --config and "
            "WEIGHBRIDGE_DATA_DIR)",
            FAILED,
        )
    status = 0
    for gateway in found:
        told = reloads.reload(gateway, timeout)
        if told is None:
            fail(
                f"gateway {gateway.pid}: not all of its processes answered in {timeout:g} s; its log says more", FAILED
            )
        status = max(status, _say(gateway.pid, told.values()), key=(0, NEEDS_RESTART, FAILED).index)
    raise typer.Exit(status)


def _say(pid: int, outcomes: "Iterable[Outcome]") -> int:
    """Print what came of it, each thing once. Return the exit status."""
    told = list(outcomes)
    refused = sorted({each.refused for each in told if each.refused})
    if refused:
        for each in refused:
            typer.echo(f"gateway {pid}: refused, the old configuration stays: {each}", err=True)
        return FAILED
    changed, waiting, at_start = (
        sorted({name for each in told for name in getattr(each, field)})
        for field in ("changed", "needs_restart", "at_start")
    )
    typer.echo(f"gateway {pid}: reloaded by {len(told)} processes; {', '.join(changed) or 'nothing'} changed")
    if at_start:
        typer.echo(f"read at the start alone, so changed by a restart: {', '.join(at_start)}")
    for name in waiting:
        typer.echo(f"needs a restart: {name}", err=True)
    return NEEDS_RESTART if waiting else 0
