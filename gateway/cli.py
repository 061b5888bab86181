"""The command line: registers all commands, and prints expected failures as a line or two on standard error."""

import socket
import ssl
import sys
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from gateway.commands.audit import audit_app
from gateway.commands.batch import batch_app
from gateway.commands.budgets import budgets_app
from gateway.commands.classifier import classifier_app
from gateway.commands.config import config_app
from gateway.commands.focus import focus_app
from gateway.commands.keys import keys_app
from gateway.commands.ledger import ledger_app
from gateway.commands.limits import limits_app
from gateway.commands.models import models_app
from gateway.commands.organisations import organisations_app
from gateway.commands.people import people_app
from gateway.commands.policy import policy_app
from gateway.commands.pools import pools_app
from gateway.commands.prices import prices_app
from gateway.commands.reconcile import reconcile
from gateway.commands.report import report_app
from gateway.commands.route import route
from gateway.commands.savings import savings_app
from gateway.commands.selfhosted import selfhosted_app
from gateway.commands.serve import demo, serve, version
from gateway.commands.shared import FAILED, USAGE, fail, prepare
from gateway.commands.teams import teams_app
from gateway.commands.top import top
from gateway.commands.webhooks import webhooks_app

_INTERRUPTED = 130
# What these find has the status 1; that they could not look has another.
_FINDERS = frozenset({"audit", "ledger", "reconcile", "savings"})
_EXPECTED: Final = (
    # Subclasses that know a next step stand before the errors that they are kinds of.
    (
        "accounts.errors",
        "UnknownOrganisation",
        "organisations list` has them all, `weighbridge organisations create` makes one",
    ),
    ("accounts.errors", "UnknownTeam", "teams list` has them all, `weighbridge teams create` makes one"),
    ("accounts.errors", "UnknownKeyId", "keys list` has them all, `weighbridge keys create` makes one"),
    (
        "accounts.people.people_errors",
        "UnknownPerson",
        "people list` has them all, `weighbridge people invite` adds one",
    ),
    ("cost.budgets.budget_errors", "UnknownBudget", "budgets list` has them all, `weighbridge budgets set` makes one"),
    ("classifier.learning.store", "UnknownTuning", "classifier tunings` has them all"),
    ("gateway.configuration.file", "ConfigError", ""),
    ("gateway.database_address", "UnknownDatabase", ""),
    ("providers.catalog", "SecretMissing", ""),
    ("gateway.process.listener", "PortTaken", ""),
    ("proxy.http.server", "TlsInvalid", ""),
    ("gateway.demo.engine", "EngineMissing", ""),
    ("gateway.demo.run", "DemoFailed", ""),
    ("proxy.errors", "Refused", ""),
    ("proxy.admit.limits.rules", "LimitError", ""),
    ("api.webhooks.signature", "BadSecret", ""),
    ("accounts.errors", "AccountsError", ""),
    ("cost.errors", "PriceError", ""),
    ("selfhosted.registry.store", "RegistryError", ""),
    ("selfhosted.rollouts.versions", "RolloutError", ""),
    ("selfhosted.config", "PoolUnfit", ""),
    ("cost.ledger.postings", "PostingRefused", ""),
    ("cost.budgets.budget_errors", "BudgetError", ""),
    ("cost.fleet.fleet_errors", "FleetError", ""),
    ("cost.reports.report_errors", "BadQuery", ""),
    ("cost.reconcile.ledger_side", "TooManyRows", ""),
    ("cost.reconcile.posting", "TooManyEntries", ""),
    ("classifier.learning.recalibrate", "TooFewLabels", ""),
    ("classifier.learning.store", "LearningError", ""),
    ("proxy.learning.tunings", "TuningRefused", ""),
    ("planner.plans.plan_errors", "PlanRefused", ""),
    ("planner.simulate.simulation_errors", "SimulationRefused", ""),
    ("classifier.manifest", "ArtifactError", ""),
    ("classifier.training.data", "BadData", ""),
    ("classifier.training.splits", "NotDisjoint", ""),
    ("classifier.training.commands", "NothingToJudge", ""),
)
"""Errors that the user can correct, by module and name, each with the command that lists what there is, if any."""


class _Weighbridge(TyperGroup):
    """The root command group; prints expected errors in place of tracebacks."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(_INTERRUPTED) from None
        except Exception as error:
            told = _expected(error)
            if told is None:
                raise
            fail(told, USAGE if ctx.invoked_subcommand in _FINDERS else FAILED)


def _expected(error: Exception) -> str | None:
    """Return the message of an error that the user can correct; None for an unexpected one.

    Error classes are looked up in loaded modules only: a command that raised one has imported its module.
    """
    for module, name, listed in _EXPECTED:
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None and isinstance(error, kind):
            return _with_next_step(str(error), listed)
    refused = getattr(sys.modules.get("cost.errors"), "EntriesRefused", None)
    if refused is not None and isinstance(error, refused):
        return f"the database does not take these entries ({error}); are the amounts larger than anybody could owe?"
    database = getattr(sys.modules.get("sqlalchemy.exc"), "SQLAlchemyError", None)
    if database is not None and isinstance(error, database):
        return f"the database cannot be used ({_reason(error)}); is its address right?"
    if isinstance(error, TimeoutError):
        return "no answer in time; is the database's address right?"
    return _of_the_system(error) if isinstance(error, OSError) else None


def _with_next_step(told: str, listed: str) -> str:
    if not listed:
        return told
    return f"{told}{' ' if told.endswith('?') else '; '}`weighbridge {listed}"


def _reason(error: Exception) -> str:
    """Return what the driver says of connecting, such as "password authentication failed"; else only the kind of error.

    Of a statement, its message would repeat what is in it.
    """
    said = getattr(error, "orig", None)
    if said is None or getattr(error, "statement", None) is not None:
        return type(error).__name__
    return str(said).partition("\n")[0][:300]


def _of_the_system(error: OSError) -> str | None:
    if isinstance(error, BrokenPipeError):
        # Whoever read the output has enough, as `head` does; typer ends quietly.
        return None
    if isinstance(error, ssl.SSLError):
        return (
            f"the database's server cannot be trusted ({error.strerror or error}); does `sslrootcert` of its address name the "
            "authority that signed its certificate, and has that the name of the host?"
        )
    if isinstance(error, ConnectionError | socket.gaierror) or "Connect call failed" in str(error):
        return f"the database cannot be reached ({error}); is it running, and is its address right (DATABASE_URL)?"
    if error.strerror is None:
        return None
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror


app = typer.Typer(
    cls=_Weighbridge,
    help="Classify each prompt, send it to the cheapest capable model, and book every token.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)


def _print_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Classify each prompt, send it to the cheapest capable model, and book every token."""


_COMMANDS: Final[dict[str, typer.Typer | Callable[..., object]]] = {
    "serve": serve,
    "demo": demo,
    "route": route,
    "version": version,
    "keys": keys_app,
    "organisations": organisations_app,
    "teams": teams_app,
    "config": config_app,
    "reconcile": reconcile,
    "savings": savings_app,
    "top": top,
    "pools": pools_app,
    "models": models_app,
    "selfhosted": selfhosted_app,
    "report": report_app,
    "people": people_app,
    "policy": policy_app,
    "batch": batch_app,
    "budgets": budgets_app,
    "limits": limits_app,
    "prices": prices_app,
    "ledger": ledger_app,
    "audit": audit_app,
    "webhooks": webhooks_app,
    "focus": focus_app,
    "classifier": classifier_app,
}
"""Every command and group, in the order of `--help`."""
for _name, _command in _COMMANDS.items():
    if isinstance(_command, typer.Typer):
        app.add_typer(_command, name=_name)
    else:
        app.command(_name)(_command)
prepare(app)


if __name__ == "__main__":
    app()
