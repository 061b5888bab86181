"""The transaction of a change with its audit entry, and the mapping of store errors to replies."""

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from accounts.audit.entry import Actor
from accounts.audit.log import AuditLog, Change
from accounts.caller import Caller
from accounts.errors import (
    AccountsError,
    BadId,
    BadName,
    BadSetting,
    KeyExists,
    OrganisationExists,
    TeamExists,
    UnknownKeyId,
    UnknownOrganisation,
    UnknownTeam,
)
from accounts.people.people_errors import BadEmail, PersonExists, UnknownPerson
from accounts.store import KeyRecord, TeamRecord
from api.web.gateway import Gateway, check_reads, narrowed, read_scope
from api.web.parameters import Parameters, text
from api.web.patience import patience
from cost.budgets.budget_errors import BadBudget, BudgetConflict, UnknownBudget
from cost.reports.scope import ReadScope
from proxy.admit.limits.rules import BadLimit, UnknownLimit
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
    RolloutRefused,
    TeamNotFound,
    VersionNotFound,
)
from selfhosted.rollouts.versions import BadVersion, RolloutConflict, VersionExists, VersionUnknown

_log: Final = logging.getLogger("weighbridge.changes")
_PATIENCE_S: Final = 5.0
_NO_VALUE: Final = "22"
"""PostgreSQL's class of states for a value that it does not take."""
REASON_CHARS: Final = 500
"""Most characters of a change's reason."""


@contextlib.asynccontextmanager
async def changing(
    log: AuditLog, actor: Actor, action: str, organisation_id: str, *, team_id: str = "", reason: str = ""
) -> AsyncIterator[Change]:
    """Make one change and its audit entry in one transaction, with a timeout. Raises refusals, and ChangesUnavailable."""
    with refusals():
        async with (
            patience(_PATIENCE_S),
            log.change(
                actor, action, team_id=team_id, reason=checked_reason(reason), organisation_id=organisation_id
            ) as change,
        ):
            yield change


@contextlib.asynccontextmanager
async def looking() -> AsyncIterator[None]:
    """Bound a read of the accounts by a timeout. Raises refusals, and ChangesUnavailable."""
    with refusals():
        async with patience(_PATIENCE_S):
            yield


async def check_teams(gateway: Gateway, scope: ReadScope, team_ids: Iterable[str]) -> None:
    """Raise TeamNotFound for a team that the scope does not have: figures of nobody would be zeros. The empty name is that of no
    team, which idle GPUs are booked to. Raises ChangesUnavailable.
    """
    for team_id in team_ids:
        check_reads(scope, team_id)
        if not team_id or scope.team_id is not None:
            continue
        try:
            async with looking():
                await gateway.identity.accounts.team_of(scope.organisation_id, team_id)
        except TeamNotFound:
            raise no_such_team(team_id) from None


TEAM_ASKED: Final = {"team_id": text("A team that the key reads; its own where none is named.")}


async def team_asked(gateway: Gateway, caller: Caller, asked: Parameters) -> Caller | TeamRecord:
    """Return the team of TEAM_ASKED: the caller itself for its own. Raises TeamNotFound for one that the key may not read or that
    is not there, and ChangesUnavailable.
    """
    team_id = asked.text("team_id")
    if team_id is None or team_id == caller.team_id:
        return caller
    scope = narrowed(read_scope(caller), team_id)
    with contextlib.suppress(TeamNotFound):
        async with looking():
            return await gateway.identity.accounts.team_of(scope.organisation_id, team_id)
    raise no_such_team(team_id)


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Map errors of stores to the errors that callers get. Raises ChangesUnavailable where the database does not
    answer.
    """
    try:
        yield
    except tuple(_TOLD) as error:
        told = next(_TOLD[kind] for kind in type(error).__mro__ if kind in _TOLD)
        refused = told(sentence(error))
        if isinstance(error, BadVersion):
            refused.param = error.field
        raise refused from error
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        if str(getattr(getattr(error, "orig", None), "sqlstate", "")).startswith(_NO_VALUE):
            raise BadRequest(
                "The database takes no such value: is a text too long, or is there a NUL character in it?"
            ) from error
        # Only the type: the driver's message repeats the statement with its values.
        _log.warning("the database did not answer a change or a look: %s", type(error).__name__)
        raise ChangesUnavailable("The database does not answer; nothing was changed, try again shortly.") from error


def may_change_key(key: KeyRecord, *, may_all: bool) -> bool:
    """Return True for a member's key, and for any where the actor may change the whole organisation (`may_all`)."""
    return may_all or key.role == "member"


def check_may_change(key: KeyRecord, *, may_all: bool) -> None:
    """Raise NotAllowed for a key that is not a member's, unless the actor may change the whole organisation
    (`may_all`).
    """
    if not may_change_key(key, may_all=may_all):
        raise NotAllowed(f"A key of the role {key.role} is for the organisation's administrators to change.")


def no_such_team(team_id: str) -> TeamNotFound:
    """Return the refusal of a team that is not there, or that a key may not read: the two must look the same."""
    return TeamNotFound(
        f"There is no team `{team_id[:80]}`; GET /v1/admin/teams lists those that this key may read.", param="team_id"
    )


def no_such_place(scope: str, scope_id: str) -> BadRequest:
    """Return the refusal of a limit or a budget of a team or a key that the organisation does not have."""
    lists = "GET /v1/admin/teams" if scope == "team" else "GET /v1/admin/teams/{team_id}/keys"
    return BadRequest(f"There is no {scope} `{scope_id[:80]}`; {lists} lists them.", param="scope_id")


def checked_reason(reason: str) -> str:
    """Return the reason in one line. Raises BadRequest."""
    found = " ".join(reason.split())
    if len(found) > REASON_CHARS or not found.isprintable():
        raise BadRequest(f"A reason has at most {REASON_CHARS} printable characters.", param="reason")
    return found


def _bad_request(param: str | None = None) -> Callable[[str], Refused]:
    return lambda message: BadRequest(message, param=param)


_TOLD: Final[dict[type[Exception], Callable[[str], Refused]]] = {
    BadId: _bad_request("id"),
    BadName: _bad_request("name"),
    BadSetting: _bad_request(),
    BadEmail: _bad_request("email"),
    UnknownOrganisation: _bad_request("organisation_id"),
    UnknownTeam: TeamNotFound,
    UnknownKeyId: KeyNotFound,
    UnknownPerson: PersonNotFound,
    TeamExists: NameTaken,
    KeyExists: NameTaken,
    OrganisationExists: NameTaken,
    PersonExists: NameTaken,
    BadBudget: _bad_request(),
    UnknownBudget: BudgetNotFound,
    BudgetConflict: BudgetTaken,
    BadLimit: _bad_request(),
    UnknownLimit: LimitNotFound,
    AccountsError: _bad_request(),
    BadVersion: _bad_request(),
    VersionExists: NameTaken,
    VersionUnknown: VersionNotFound,
    RolloutConflict: RolloutRefused,
}


def sentence(error: Exception | str) -> str:
    """Return the error's text as a sentence."""
    text = str(error).rstrip(".")
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('?') else '.'}"
