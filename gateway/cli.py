"""The command line: registers all commands, and prints expected failures as a line or two on standard error."""

import socket
import sys
from typing import Annotated, Any

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
from gateway.commands.shared import FAILED, USAGE, fail, take_config_everywhere
from gateway.commands.teams import teams_app
from gateway.commands.top import top
from gateway.commands.webhooks import webhooks_app

_INTERRUPTED = 130
# What these find has the status 1; that they could not look has another.
_FINDERS = frozenset({"audit", "ledger", "reconcile", "savings"})
_LISTED = {
    (
        "accounts.errors",
        "UnknownOrganisation",
    ): "organisations list` has them all, `weighbridge organisations create` makes one",
    ("accounts.errors", "UnknownTeam"): "teams list` has them all, `weighbridge teams create` makes one",
    ("accounts.errors", "UnknownKeyId"): "keys list` has them all, `weighbridge keys create` makes one",
    (
        "accounts.people.people_errors",
        "UnknownPerson",
    ): "people list` has them all, `weighbridge people invite` adds one",
    ("cost.budgets.budget_errors", "UnknownBudget"): "budgets list` has them all, `weighbridge budgets set` makes one",
    ("classifier.learning.store", "UnknownTuning"): "classifier tunings` has them all",
}
"""Which command lists the things of which one is not there, by the error's module and name."""


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
    """Returns the message of an error that the user can correct; None for an unexpected one.

    Error classes are looked up in loaded modules only: a command that raised one has imported its module.
    """
    kinds = {
        "gateway.configuration.file": "ConfigError",
        "providers.catalog": "SecretMissing",
        "gateway.process.listener": "PortTaken",
        "proxy.http.tls": "TlsInvalid",
        "gateway.demo.engine": "EngineMissing",
        "gateway.demo.run": "DemoFailed",
        "proxy.errors": "Refused",
        "proxy.admit.limits.rules": "LimitError",
        "dashboards.webhooks.signature": "BadSecret",
        "accounts.errors": "AccountsError",
        "cost.errors": "PriceError",
        "selfhosted.registry.store": "RegistryError",
        "selfhosted.rollouts.versions": "RolloutError",
        "selfhosted.config": "PoolUnfit",
        "cost.ledger.postings": "PostingRefused",
        "cost.budgets.budget_errors": "BudgetError",
        "cost.fleet.fleet_errors": "FleetError",
        "cost.reports.report_errors": "BadQuery",
        "cost.reconcile.ledger_side": "TooManyRows",
        "cost.reconcile.posting": "TooManyEntries",
        "classifier.learning.recalibrate": "TooFewLabels",
        "classifier.learning.store": "LearningError",
        "proxy.learning.tunings": "TuningRefused",
        "selfhosted.offline.plans.plan_errors": "PlanRefused",
        "selfhosted.offline.simulate.simulation_errors": "SimulationRefused",
        "classifier.manifest": "ArtifactError",
        "classifier.training.data": "BadData",
        "classifier.training.splits": "NotDisjoint",
        "classifier.training.commands": "NothingToJudge",
    }
    for module, name in kinds.items():
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None and isinstance(error, kind):
            return _with_next_step(error)
    refused = getattr(sys.modules.get("cost.errors"), "EntriesRefused", None)
    if refused is not None and isinstance(error, refused):
        return f"the database does not take these entries ({error}); are the amounts larger than anybody could owe?"
    database = getattr(sys.modules.get("sqlalchemy.exc"), "SQLAlchemyError", None)
    if database is not None and isinstance(error, database):
        # The driver's own message repeats the statement and sometimes the address with its password.
        return f"the database cannot be used ({type(error).__name__}); is its address right?"
    if isinstance(error, TimeoutError):
        return "no answer in time; is the database's address right?"
    return _of_the_system(error) if isinstance(error, OSError) else None


def _with_next_step(error: Exception) -> str:
    """The error's message; of a thing that is not there, followed by the command that lists what is."""
    told = str(error)
    listed = _LISTED.get((type(error).__module__, type(error).__name__))
    if listed is None:
        return told
    return f"{told}{' ' if told.endswith('?') else '; '}`weighbridge {listed}"


def _of_the_system(error: OSError) -> str | None:
    if isinstance(error, BrokenPipeError):
        # Whoever read the output has enough, as `head` does; typer ends quietly.
        return None
    if isinstance(error, ConnectionError | socket.gaierror) or "Connect call failed" in str(error):
        return f"the database cannot be reached ({error}); is it running, and is its address right (DATABASE_URL)?"
    if error.strerror is None:
        return None
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror


app = typer.Typer(
    cls=_Weighbridge,
    help="Classifies each prompt, sends it to the cheapest capable model, and books every token.",
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
    """Classifies each prompt, sends it to the cheapest capable model, and books every token."""


app.command()(serve)
app.command()(demo)
app.command()(route)
app.command()(version)
app.add_typer(keys_app, name="keys")
app.add_typer(organisations_app, name="organisations")
app.add_typer(teams_app, name="teams")
app.add_typer(config_app, name="config")
app.command("reconcile")(reconcile)
app.add_typer(savings_app, name="savings")
app.command("top")(top)
app.add_typer(pools_app, name="pools")
app.add_typer(models_app, name="models")
app.add_typer(selfhosted_app, name="selfhosted")
app.add_typer(report_app, name="report")
app.add_typer(people_app, name="people")
app.add_typer(policy_app, name="policy")
app.add_typer(batch_app, name="batch")
app.add_typer(budgets_app, name="budgets")
app.add_typer(limits_app, name="limits")
app.add_typer(prices_app, name="prices")
app.add_typer(ledger_app, name="ledger")
app.add_typer(audit_app, name="audit")
app.add_typer(webhooks_app, name="webhooks")
app.add_typer(focus_app, name="focus")
app.add_typer(classifier_app, name="classifier")
take_config_everywhere(app)


if __name__ == "__main__":
    app()
