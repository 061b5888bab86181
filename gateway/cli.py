"""The command line: registers all commands, and prints expected failures as a line or two on standard error."""

import logging
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from gateway.commands.ask import ask
from gateway.commands.audit import audit_app
from gateway.commands.backup import backup, restore
from gateway.commands.batch import batch_app
from gateway.commands.budgets import budgets_app
from gateway.commands.classifier import classifier_app
from gateway.commands.config import config_app
from gateway.commands.database import database_app
from gateway.commands.erase import erase_app
from gateway.commands.events import events_app
from gateway.commands.focus import focus_app
from gateway.commands.guard import guard_app
from gateway.commands.health import health
from gateway.commands.importing import import_app
from gateway.commands.keys import keys_app
from gateway.commands.ledger import ledger_app
from gateway.commands.limits import limits_app
from gateway.commands.migrate import migrate
from gateway.commands.models import models_app
from gateway.commands.organisations import organisations_app
from gateway.commands.people import people_app
from gateway.commands.policy import policy_app
from gateway.commands.pools import pools_app
from gateway.commands.prices import prices_app
from gateway.commands.providers import providers_app
from gateway.commands.reconcile import reconcile
from gateway.commands.reload import reload
from gateway.commands.report import report_app
from gateway.commands.route import route
from gateway.commands.savings import savings_app
from gateway.commands.selfhosted import selfhosted_app
from gateway.commands.serve import demo, serve, version
from gateway.commands.shared import FAILED, USAGE, fail, prepare
from gateway.commands.teams import teams_app
from gateway.commands.top import top
from gateway.commands.webhooks import webhooks_app
from gateway.expected_errors import expected

_INTERRUPTED = 130
# What these find has the status 1; that they could not look has another.
_FINDERS = frozenset({"audit", "ledger", "migrate", "reconcile", "savings"})


class _Weighbridge(TyperGroup):
    """The root command group; prints expected errors in place of tracebacks."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(_INTERRUPTED) from None
        except Exception as error:
            told = expected(error)
            if told is None:
                raise
            fail(told, USAGE if ctx.invoked_subcommand in _FINDERS else FAILED)


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
    # A server's log prints the hashes of the audit log's entries, its next one also those of commands: in a terminal they hide what was done.
    logger = logging.getLogger("weighbridge.audit")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


_COMMANDS: Final[dict[str, typer.Typer | Callable[..., object]]] = {
    "serve": serve,
    "demo": demo,
    "route": route,
    "version": version,
    "health": health,
    "reload": reload,
    "keys": keys_app,
    "organisations": organisations_app,
    "teams": teams_app,
    "config": config_app,
    "reconcile": reconcile,
    "savings": savings_app,
    "top": top,
    "ask": ask,
    "pools": pools_app,
    "models": models_app,
    "providers": providers_app,
    "selfhosted": selfhosted_app,
    "report": report_app,
    "people": people_app,
    "policy": policy_app,
    "batch": batch_app,
    "budgets": budgets_app,
    "limits": limits_app,
    "guard": guard_app,
    "prices": prices_app,
    "ledger": ledger_app,
    "migrate": migrate,
    "database": database_app,
    "backup": backup,
    "restore": restore,
    "audit": audit_app,
    "erase": erase_app,
    "import": import_app,
    "webhooks": webhooks_app,
    "events": events_app,
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
