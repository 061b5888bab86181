"""Errors that a person can correct or wait out, each as the sentence that is printed in place of a traceback."""

import errno
import socket
import sqlite3
import ssl
import sys
from typing import Any, Final

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
    ("gateway.plugins.loading", "PluginInvalid", ""),
    ("providers.catalog", "SecretMissing", ""),
    ("gateway.process.listener", "PortTaken", ""),
    ("proxy.http.server", "TlsInvalid", ""),
    ("gateway.demo.engine", "EngineMissing", ""),
    ("gateway.demo.run", "DemoFailed", ""),
    ("gateway.process.supervisor", "CannotServe", ""),
    ("gateway.database_address", "UnknownDatabase", ""),
    ("gateway.database", "TakesNoWrites", ""),
    ("gateway.schema", "SchemaRefused", ""),
    ("gateway.archive", "ArchiveRefused", ""),
    ("gateway.backup", "RestoreRefused", ""),
    ("gateway.database_copy", "CopyRefused", ""),
    ("accounts.openid.openid_errors", "SsoUnusable", ""),
    ("proxy.settle.observers.telemetry", "TelemetryUnavailable", ""),
    ("proxy.errors", "Refused", ""),
    ("proxy.admit.limits.rules", "LimitError", ""),
    ("api.webhooks.signature", "BadSecret", ""),
    ("gateway.events.sinks", "BadSink", ""),
    ("proxy.admit.moderating", "NoKey", ""),
    ("accounts.errors", "AccountsError", ""),
    ("cost.errors", "PriceError", ""),
    ("selfhosted.registry.store", "RegistryError", ""),
    ("selfhosted.rollouts.versions", "RolloutError", ""),
    ("selfhosted.config", "PoolUnfit", ""),
    ("cost.ledger.postings", "PostingRefused", ""),
    ("cost.ledger.archived", "ArchivedTime", ""),
    ("cost.ledger.archive_files", "FileDamaged", ""),
    ("cost.ledger.archive_files", "PlaceUnreachable", ""),
    ("cost.ledger.archiving", "ArchiveImpossible", ""),
    ("gateway.ledger_places", "BadPlace", ""),
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

_MENDS_ITSELF: Final = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN),
        *(errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN),
    }
)
"""Errors of the system after which the same may work later: a full disk, too many files, a network that is away."""
_NO_RIGHT: Final = "42501"
_LASTING_IN_POSTGRES: Final = {
    "28P01": "the database refuses the user or the password of its address (WEIGHBRIDGE_DATABASE_URL, else DATABASE_URL)",
    "28000": "the database does not let this user in from here (WEIGHBRIDGE_DATABASE_URL, else DATABASE_URL, pg_hba.conf)",
    "3D000": "the server has no database of the name in WEIGHBRIDGE_DATABASE_URL, else DATABASE_URL: create it first",
    "3F000": "the database has no schema of the name in `search_path` (WEIGHBRIDGE_DATABASE_URL, else DATABASE_URL): create it first",
    _NO_RIGHT: "the database's user may not do this: it needs select, insert, update and delete on the gateway's tables, and to migrate or "
    "restore the rights of their owner",
}
"""SQLSTATEs that last until somebody changes something, and what to tell."""
_PASSING_IN_POSTGRES: Final = {
    "55P03": "a table of the database is in use by a long statement (`lock_timeout`): try again when that is done",
}
"""What passes by itself, and what to tell."""
_LASTING_IN_SQLITE: Final = {
    sqlite3.SQLITE_CANTOPEN: "the database's file cannot be opened or made: is its folder there, and may this user write it?",
    sqlite3.SQLITE_READONLY: "the database's file cannot be written: is it, or its folder, read-only for this user?",
    sqlite3.SQLITE_PERM: "the database's file may not be opened by this user",
    sqlite3.SQLITE_NOTADB: "the database's file is no SQLite database",
    sqlite3.SQLITE_CORRUPT: "the database's file is damaged: restore it from a backup",
}
_PASSING_IN_SQLITE: Final = {
    sqlite3.SQLITE_FULL: "the disk of the database's file is full: make room there",
    sqlite3.SQLITE_IOERR: "the database's file cannot be read or written (disk I/O error): is its disk full, or ill?",
    sqlite3.SQLITE_BUSY: "another process keeps the database's file locked",
    sqlite3.SQLITE_LOCKED: "another process keeps the database's file locked",
    sqlite3.SQLITE_PROTOCOL: "another process keeps the database's file locked",
}
"""What waiting may mend."""
_MENDS_ITSELF_IN_POSTGRES: Final = frozenset({"08", "25", "40", "53", "55", "57", "58"})
"""Classes of SQLSTATEs: connections, a standby, conflicts, resources, locks, an operator's stop, the system."""
_PRIMARY_CODE: Final = 0xFF
"""SQLite's extended codes have the primary one in their lowest byte."""


def expected(error: Exception) -> str | None:
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
    of_database = _of_the_database(error)
    if of_database is not None:
        return of_database
    if isinstance(error, TimeoutError):
        return "no answer in time; is the database's address right?"
    return _of_the_system(error) if isinstance(error, OSError) else None


def mends_itself(error: Exception) -> bool:
    """Return True for an error that waiting may mend: a database that is away, busy or a standby, a full disk."""
    code = _sqlite_code(error)
    if code is not None:
        return code in _PASSING_IN_SQLITE
    state = _sqlstate(error)
    if state is not None:
        return state[:2] in _MENDS_ITSELF_IN_POSTGRES
    if _is("sqlalchemy.exc", "SQLAlchemyError", error):
        return _is("sqlalchemy.exc", "OperationalError", error) or _is_disconnect(error)
    if isinstance(error, OSError):
        return error.errno in _MENDS_ITSELF or _is_of_the_network(error)
    return _is("gateway.database", "TakesNoWrites", error) or _is("asyncpg.exceptions", "InternalClientError", error)


def _is(module: str, name: str, error: BaseException) -> bool:
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(error, kind)


def _is_disconnect(error: Exception) -> bool:
    return _is("sqlalchemy.exc", "InterfaceError", error) or _is("sqlalchemy.exc", "TimeoutError", error)


def _of_the_database(error: Exception) -> str | None:
    told = (_LASTING_IN_SQLITE | _PASSING_IN_SQLITE).get(_sqlite_code(error) or 0)
    if told is not None:
        return told
    told = _PASSING_IN_POSTGRES.get(_sqlstate(error) or "")
    if told is not None:
        return told
    told = _LASTING_IN_POSTGRES.get(_sqlstate(error) or "")
    if told is not None:
        return f"{told}; the server says: {_reason(error)}"
    if _is("asyncpg.exceptions", "TargetServerAttributeNotMatched", _of_driver(error)):
        return "none of the database's hosts takes writes now, or none for this user (WEIGHBRIDGE_DATABASE_URL, else DATABASE_URL, `default_transaction_read_only`)"
    if _is("sqlalchemy.exc", "SQLAlchemyError", error) or _sqlstate(error) is not None:
        return f"the database cannot be used ({_reason(error)}); is its address right?"
    return None


def _sqlite_code(error: BaseException) -> int | None:
    code: Any = getattr(getattr(error, "orig", error), "sqlite_errorcode", None)
    return None if code is None else int(code) & _PRIMARY_CODE


def _sqlstate(error: BaseException) -> str | None:
    state: Any = getattr(getattr(error, "orig", error), "sqlstate", None)
    return state if isinstance(state, str) else None


def _of_driver(error: BaseException) -> BaseException:
    """Return the driver's own error beneath SQLAlchemy's, which wraps it twice."""
    beneath = getattr(error, "orig", None) or error
    return beneath.__cause__ or beneath


def _with_next_step(told: str, listed: str) -> str:
    if not listed:
        return told
    return f"{told}{' ' if told.endswith('?') else '; '}`weighbridge {listed}"


def _is_of_the_network(error: OSError) -> bool:
    if isinstance(error, ssl.SSLError):
        return not isinstance(error, ssl.SSLCertVerificationError)
    if isinstance(error, ConnectionError | socket.gaierror | TimeoutError):
        return True
    # asyncio's words for several addresses that all refused.
    return "Connect call failed" in str(error)


def _reason(error: Exception) -> str:
    """Return what the driver says of connecting, such as "password authentication failed"; else only the kind of error.

    Of a statement, its message would repeat what is in it.
    """
    said = getattr(error, "orig", None)
    if _sqlstate(error) == _NO_RIGHT:
        # It names a table or a schema, and nothing of the statement.
        return str(_of_driver(error))[:300]
    if said is None or getattr(error, "statement", None) is not None:
        return type(error).__name__
    return str(said).partition("\n")[0][:300]


def _of_the_system(error: OSError) -> str | None:
    if isinstance(error, BrokenPipeError):
        # Whoever read the output has enough, as `head` does; typer ends quietly.
        return None
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the database's server cannot be trusted ({error.strerror or error}); does `sslrootcert` of its address name the "
            "authority that signed its certificate, and has that the name of the host?"
        )
    if _is_of_the_network(error):
        return f"the database cannot be reached ({error}); is it running, and is its address right (WEIGHBRIDGE_DATABASE_URL, else DATABASE_URL)?"
    if error.strerror is None:
        return None
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
