"""What every change shares: its transaction with the audit log, and what the stores refuse, as callers are told it."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from accounts.audit.entry import Actor
from accounts.audit.log import AuditLog, Change
from accounts.errors import (
    AccountsError,
    BadId,
    BadName,
    BadSetting,
    OrganisationExists,
    TeamExists,
    UnknownKeyId,
    UnknownOrganisation,
    UnknownTeam,
)
from accounts.people.people_errors import BadEmail, PersonExists, UnknownPerson
from accounts.store import KeyRecord
from cost.budgets.budget_errors import BadBudget, BudgetConflict, UnknownBudget
from proxy.errors import (
    BadRequest,
    BudgetNotFound,
    BudgetTaken,
    ChangesUnavailable,
    KeyNotFound,
    LimitNotFound,
    NameTaken,
    NotAllowed,
    PersonNotFound,
    Refused,
    TeamNotFound,
)
from proxy.limits.rules import BadLimit, UnknownLimit

_log: Final = logging.getLogger("weighbridge.changes")
_PATIENCE_S: Final = 5.0
REASON_CHARS: Final = 500
"""Of why something was changed."""


@contextlib.asynccontextmanager
async def changing(
    log: AuditLog, actor: Actor, action: str, organisation_id: str, *, team_id: str = "", reason: str = ""
) -> AsyncIterator[Change]:
    """One change and its entry in the organisation's log; all of it or nothing, and no longer than a moment."""
    with refusals():
        async with (
            asyncio.timeout(_PATIENCE_S),
            log.change(
                actor, action, team_id=team_id, reason=checked_reason(reason), organisation_id=organisation_id
            ) as change,
        ):
            yield change


@contextlib.asynccontextmanager
async def looking() -> AsyncIterator[None]:
    """A look into the accounts, no longer than a moment."""
    with refusals():
        async with asyncio.timeout(_PATIENCE_S):
            yield


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """The stores' errors in the callers' words."""
    try:
        yield
    except tuple(_TOLD) as error:
        told = next(_TOLD[kind] for kind in type(error).__mro__ if kind in _TOLD)
        raise told(_sentence(error)) from error
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        # The driver's own words repeat the statement with its values.
        _log.warning("the database did not answer a change or a look: %s", type(error).__name__)
        raise ChangesUnavailable("The database does not answer; nothing was changed, try again shortly.") from error


def check_may_change(key: KeyRecord, *, may_all: bool) -> None:
    """Whoever may only change one team's things (`may_all` false) changes and bounds its member keys alone."""
    if key.role != "member" and not may_all:
        raise NotAllowed(f"A key of the role {key.role} is for the organisation's administrators to change.")


def checked_reason(reason: str) -> str:
    """On one line. Raises BadRequest."""
    found = " ".join(reason.split())
    if len(found) > REASON_CHARS or not found.isprintable():
        raise BadRequest(f"A reason has at most {REASON_CHARS} printable characters.", param="reason")
    return found


def _bad(param: str | None = None) -> Callable[[str], Refused]:
    return lambda message: BadRequest(message, param=param)


_TOLD: Final[dict[type[Exception], Callable[[str], Refused]]] = {
    BadId: _bad("id"),
    BadName: _bad("name"),
    BadSetting: _bad(),
    BadEmail: _bad("email"),
    UnknownOrganisation: _bad("organisation_id"),
    UnknownTeam: TeamNotFound,
    UnknownKeyId: KeyNotFound,
    UnknownPerson: PersonNotFound,
    TeamExists: NameTaken,
    OrganisationExists: NameTaken,
    PersonExists: NameTaken,
    BadBudget: _bad(),
    UnknownBudget: BudgetNotFound,
    BudgetConflict: BudgetTaken,
    BadLimit: _bad(),
    UnknownLimit: LimitNotFound,
    AccountsError: _bad(),
}


def _sentence(error: Exception) -> str:
    """As it stands at the beginning of a reply."""
    text = str(error).rstrip(".")
    return f"{text[:1].upper()}{text[1:]}."
