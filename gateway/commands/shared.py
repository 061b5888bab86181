"""Shared helpers of commands: loading configuration and database, printing, and failing."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

import asyncio
import functools
import inspect
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from gateway.table import print_table

if TYPE_CHECKING:
    from decimal import Decimal

    from sqlalchemy.ext.asyncio import AsyncEngine

    from accounts.store import AccountStore
    from gateway.configuration.environment import Environment
    from gateway.configuration.gateway_config import GatewayConfig

USAGE: Final = 2
FAILED: Final = 1

_CONFIG: Final = "WEIGHBRIDGE_CONFIG"
ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="The configuration file; otherwise WEIGHBRIDGE_CONFIG.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def prepare(app: typer.Typer) -> None:
    """Let commands be coroutines, and give `--config` to every command that has none: nobody has to remember which read a file."""
    for command in app.registered_commands:
        if command.callback is not None:
            command.callback = _taking_config(_awaited(command.callback))
    if app.registered_callback is not None and app.registered_callback.callback is not None:
        app.registered_callback.callback = _awaited(app.registered_callback.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            prepare(group.typer_instance)


def _awaited(run: Callable[..., Any]) -> Callable[..., Any]:
    if not inspect.iscoroutinefunction(run):
        return run

    @functools.wraps(run)
    def command(*arguments: Any, **options: Any) -> None:
        asyncio.run(run(*arguments, **options))

    return command


def _taking_config(run: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(run, eval_str=True)
    reads_file = "config" in signature.parameters

    @functools.wraps(run)
    def command(*arguments: Any, config: Path | None = None, **options: Any) -> Any:
        if reads_file:
            options["config"] = config
        elif config is not None and not config.is_file():
            fail(f"{config}: there is no such file", USAGE)
        if config is None:
            return run(*arguments, **options)
        # Whatever reads the environment below finds relative paths from the same file.
        before = os.environ.get(_CONFIG)
        os.environ[_CONFIG] = str(config)
        try:
            return run(*arguments, **options)
        finally:
            os.environ.pop(_CONFIG) if before is None else os.environ.update({_CONFIG: before})

    if reads_file:
        return command
    taken = inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=ConfigOption)
    parameters = [*signature.parameters.values(), taken]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def load_config(config: Path | None, overrides: dict[str, Any]) -> "tuple[Environment, GatewayConfig, Path]":
    """Return the environment overlaid with the command line, the configuration, and its path."""
    from gateway.configuration.environment import read_environment
    from gateway.configuration.settings import load

    given = {name: value for name, value in overrides.items() if value is not None}
    environment = read_environment(config).model_copy(update=given)
    settings = load(None, environment)
    assert environment.config is not None  # noqa: S101 - `load` refuses to go on without a file
    return environment, settings, environment.config


def read_config(config: Path | None) -> "GatewayConfig":
    """Load the configuration without resolving providers' secrets, which this command does not use."""
    from gateway.configuration.environment import read_environment
    from gateway.configuration.settings import load

    return load(config, read_environment(), secrets_from=None)


@asynccontextmanager
async def open_accounts() -> "AsyncIterator[AccountStore]":
    from accounts.store import AccountStore

    async with open_engine() as engine:
        yield AccountStore(engine)


@asynccontextmanager
async def open_engine() -> "AsyncIterator[AsyncEngine]":
    """Open the database, which has this version's schema: an empty one gets it. Raises SchemaRefused for any other."""
    from gateway.schema import require_schema

    async with open_database() as engine:
        await require_schema(engine)
        yield engine


@asynccontextmanager
async def open_database() -> "AsyncIterator[AsyncEngine]":
    """Open the database, whatever its schema is."""
    from gateway.configuration.environment import read_environment
    from gateway.configuration.file import ConfigError
    from gateway.database import make_engine

    environment = read_environment()
    lost = environment.moved_data()
    if lost:
        raise ConfigError(lost)
    engine = make_engine(environment.database())
    try:
        yield engine
    finally:
        await engine.dispose()


def journal_dir() -> Path | None:
    """Return the folder of this host's journals; None without a configuration that names it."""
    from gateway.configuration.environment import read_environment

    return None if read_environment().config is None else read_config(None).cost.journal_dir


def plain(record: Any) -> dict[str, Any]:
    """Convert a record to plain JSON values."""
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(record)
    if isinstance(plain.get("allowed_models"), list):
        plain["allowed_models"].sort()
    plain.update(plain.pop("settings", {}))
    return plain


def amount_option(text: str, option: str, least: int, most: "int | Decimal") -> "Decimal":
    """Return the exact amount that an option gives. Raises PlanRefused outside the bounds, which are of the option."""
    from cost.amounts import BadAmount, amount_in
    from planner.plans.plan_errors import PlanRefused

    try:
        value = amount_in(text)
    except BadAmount as error:
        raise PlanRefused(f"{option}: {error}") from None
    if not least <= value <= most:
        raise PlanRefused(f"{option} is from {least} to {most}")
    return value


def print_json(value: Any) -> None:
    """Print JSON; money held as Decimal is written as the exact number."""
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.Encoder(decimal_format="number").encode(value), indent=2).decode())


def print_rows(rows: list[dict[str, Any]], columns: dict[str, str], *, as_json: bool, empty: str) -> None:
    if as_json:
        print_json(rows)
    elif not rows:
        typer.echo(empty, err=True)
    else:
        print_table(list(columns.values()), [[cell(name, row[name]) for name in columns] for row in rows])


def cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name.endswith("_at"):
        # Whole seconds are enough for people; JSON has the rest.
        return str(value).partition(".")[0].removesuffix("Z") + "Z"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(value) if isinstance(value, list) else str(value)


def fail(message: str, status: int = FAILED) -> NoReturn:
    typer.echo(f"weighbridge: {message}" if "\n" not in message else message, err=True)
    raise typer.Exit(status)
