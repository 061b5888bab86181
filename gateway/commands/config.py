"""`weighbridge config`: whether a configuration file is sound, and what is in effect."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.commands.shared import ConfigOption

if TYPE_CHECKING:
    from collections.abc import Container

    from gateway.configuration.environment import Environment
    from gateway.configuration.gateway_config import GatewayConfig
    from providers.catalog import Catalog
    from proxy.plan.evidence import Evidence

_DATABASE_S = 5.0
config_app = typer.Typer(help="The configuration file.", no_args_is_help=True, rich_markup_mode=None)


@config_app.command("check")
def check_config(
    file: Annotated[Path | None, typer.Argument(help="The file to check; otherwise --config.")] = None,
    config: ConfigOption = None,
    show: Annotated[bool, typer.Option("--show", help="Print what is in effect, with secrets masked.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Also exit 1 for hints and for secrets that are not set here.")
    ] = False,
) -> None:
    """Check a configuration file: everything that is wrong is told at once."""
    import asyncio
    import os

    from gateway.configuration.doubts import lacks_pepper, other_variables
    from gateway.configuration.environment import read_environment
    from gateway.configuration.settings import load, without_effect
    from gateway.wiring.catalog import catalog_of
    from providers.secret_references import secrets_in, settings_as_shown

    environment = read_environment(file or config)
    file = environment.config
    settings = load(file, environment, secrets_from=None)
    assert file is not None  # noqa: S101 - `load` refuses to go on without a file
    for warning in without_effect(file):
        typer.echo(f"warning: {warning}", err=True)
    missing = sorted({secret.name for secret in secrets_in(settings, os.environ) if not secret.is_set})
    _check_start(file, environment, settings, all_set=not missing)
    if show:
        import yaml

        typer.echo(
            yaml.safe_dump(settings_as_shown(settings, os.environ), sort_keys=False, allow_unicode=True), nl=False
        )
    else:
        typer.echo(f"{file}: ok")
    catalog = catalog_of(settings)
    bounds = asyncio.run(_idle_bounds(settings, environment))
    hints = [*_hints(settings, catalog), *other_variables(missing, os.environ), *bounds]
    if lacks_pepper(settings, environment):
        missing.append("WEIGHBRIDGE_PEPPER (or `accounts.pepper_file`)")
    for hint in hints:
        typer.echo(f"hint: {hint}", err=True)
    for note in _notes(settings, catalog):
        typer.echo(f"note: {note}", err=True)
    if missing:
        typer.echo(f"not set in this environment, and needed to serve: {', '.join(missing)}", err=True)
    if strict and (hints or missing):
        raise typer.Exit(1)


def _check_start(file: Path, environment: "Environment", settings: "GatewayConfig", *, all_set: bool) -> None:
    """Raise ConfigError for what would end a start: extras that are not installed and, where all secrets are set, what they
    lead to, plug-ins that do not load or do not answer, and a pepper that is missing or cut short.
    """
    from gateway.configuration.environment import resolve_secret
    from gateway.configuration.file import ConfigError, read_document
    from gateway.configuration.peppers import pepper_to_make, peppers
    from gateway.configuration.settings import load, not_installed
    from gateway.plugins.trying import plugin_problems

    if not all_set:
        if absent := not_installed(file, settings):
            raise ConfigError(absent)
        return
    load(file, environment)
    if settings.plugins and (broken := plugin_problems(settings.plugins, read_document(file), resolve_secret)):
        raise ConfigError(broken)
    if pepper_to_make(settings, environment) is None:
        peppers(settings, environment)


def _hints(settings: "GatewayConfig", catalog: "Catalog") -> list[str]:
    """List facts of models that nobody stated, addresses and prices that were probably meant otherwise, and steps for targets of
    `auto` that were not measured.
    """
    from gateway.configuration.doubts import fallback_hints
    from providers.address_hints import address_hints
    from providers.catalog import unknown_facts
    from providers.price_units import price_hints
    from proxy.plan.evidence import UNMEASURED

    return [
        *address_hints(settings.providers, settings.server.port),
        *fallback_hints(settings),
        *price_hints(settings.providers),
        *unknown_facts(settings.providers, catalog, unpriced=settings.cost.unpriced),
        *_evidence(settings, catalog, UNMEASURED),
    ]


async def _idle_bounds(settings: "GatewayConfig", environment: "Environment") -> list[str]:
    """List the budgets and limits in the database that name what this file does not have. A database that is not there yet, or
    does not answer here, is no fault of a file.
    """
    import asyncio

    from sqlalchemy.exc import SQLAlchemyError

    from cost.budgets.store import BudgetStore
    from gateway.database import make_engine
    from gateway.schema import read_state
    from gateway.wiring.policy import names_of
    from proxy.admit.limits.store import LimitStore

    url = database_at_hand(environment)
    if url is None:
        return []
    engine = make_engine(url)
    try:
        async with asyncio.timeout(_DATABASE_S):
            if (await read_state(engine)).fit != "newest":
                return []
            budgets = [each.budget for each in await BudgetStore(engine).all()]
            limits = [each.place for each in await LimitStore(engine).all()]
    except (SQLAlchemyError, OSError, TimeoutError):
        return []
    finally:
        await engine.dispose()
    names = names_of(settings)
    found = [(f"the budget {each.budget_id}", names.budget_problem(each)) for each in budgets]
    found += [(f"the limit of {each}", names.limit_problem(each)) for each in limits]
    return [f"{what} bounds nobody: {problem}" for what, problem in found if problem]


def database_at_hand(environment: "Environment") -> str | None:
    """Return the database's address; None for a file that is not there, which opening would make."""
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    from gateway.database_address import UnknownDatabase, database_kind

    url = environment.database()
    try:
        file = make_url(url).database if database_kind(url) == "sqlite" else None
    except (ArgumentError, UnknownDatabase):
        return None
    return None if file is not None and not Path(file).is_file() else url


def _notes(settings: "GatewayConfig", catalog: "Catalog") -> list[str]:
    """List targets of `auto` that are known by published scores alone, which is no fault of a file."""
    from proxy.plan.evidence import PUBLISHED

    return _evidence(settings, catalog, PUBLISHED)


def _evidence(settings: "GatewayConfig", catalog: "Catalog", states: "Container[Evidence]") -> list[str]:
    """Return sentences about targets of `auto` in these states, by the file alone."""
    from gateway.wiring.policy import ShippedRows, build_policy, informed
    from proxy.plan.evidence import evidence_notes
    from proxy.plan.route_plan import evidence_for_auto

    policy = informed(build_policy(settings.policy, settings.cost), catalog, ShippedRows(settings.classifier, catalog))
    known = {name: each for name, each in evidence_for_auto(policy, catalog).items() if each in states}
    return list(evidence_notes(known, trained=settings.classifier.enabled))
