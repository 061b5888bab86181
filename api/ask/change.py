"""Switching Ask on and off for an organisation, with audit entries: its team, its key and its budget are made with it."""

import contextlib
from decimal import Decimal
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.audit.entry import Actor
from accounts.audit.log import AuditLog
from accounts.errors import UnknownTeam
from accounts.keys import Pepper
from accounts.store import DEFAULT_ORGANISATION, AccountStore, TeamRecord
from api.ask.store import AskSetting, read_setting, remove_setting, write_setting
from api.budgets.change import put_budget
from api.keys.change import put_key
from api.teams.change import put_team
from api.web.changing import changing, looking, refusals
from cost.budgets.budget import Budget, limit_from_usd
from cost.times import wall_us
from proxy.errors import BudgetTaken
from proxy.plan.known_names import KnownNames

USUAL_QUESTIONS: Final = 20
MOST_QUESTIONS: Final = 1_000
USUAL_BUDGET_USD: Final = Decimal(20)
_KEY_NAME: Final = "Ask"
_ID_CHARS: Final = 60


def usual_team(organisation_id: str) -> str:
    """Return the id of the team that Ask is booked to unless another is named: ids of teams are unique over all organisations."""
    return "ask" if organisation_id == DEFAULT_ORGANISATION else f"ask-{organisation_id[:_ID_CHARS]}"


async def switch_on(
    engine: AsyncEngine,
    log: AuditLog,
    actor: Actor,
    pepper: Pepper,
    organisation_id: str,
    *,
    team_id: str,
    questions_an_hour: int = USUAL_QUESTIONS,
    budget_usd: Decimal | None = USUAL_BUDGET_USD,
    reason: str = "",
) -> AskSetting:
    """Let the people of an organisation ask. What models cost is booked to the team, which is made where there is none, by a key that
    nobody is given; a hard monthly budget of that key bounds it, and None leaves its budgets as they are. Raises TeamNotFound for another
    organisation's team, and BadRequest.
    """
    with refusals():
        limit_nanousd = None if budget_usd is None else limit_from_usd(budget_usd)
    team = await _team(engine, log, actor, organisation_id, team_id, reason)
    key, _ = await put_key(log, actor, team, _KEY_NAME, pepper, may_all=True)
    if limit_nanousd is not None:
        budget = Budget(
            budget_id=f"ask-{key.key_id}",
            organisation_id=organisation_id,
            # Never the team's, which may be one that has other work.
            scope="key",
            scope_id=key.key_id,
            period="month",
            kind="hard",
            limit_nanousd=limit_nanousd,
            on_exhausted="refuse",
            webhook="",
        )
        # A key that has another one is bounded. It names no model.
        with contextlib.suppress(BudgetTaken):
            names = KnownNames.empty()
            await put_budget(log, actor, budget, webhooks=frozenset(), names=names, reason=reason)
    setting = AskSetting(
        organisation_id=organisation_id,
        team_id=team_id,
        key_id=key.key_id,
        questions_an_hour=questions_an_hour,
    )
    async with changing(log, actor, "ask.switched_on", organisation_id, team_id=team_id, reason=reason) as change:
        before = await read_setting(change.within, organisation_id)
        await write_setting(change.within, setting, wall_us())
        change.tell("ask", organisation_id, None if before is None else audit_record(before), audit_record(setting))
    return setting


async def switch_off(log: AuditLog, actor: Actor, organisation_id: str, *, reason: str = "") -> None:
    """Answer no more questions of an organisation. The team, its key and what it spent stay. Idempotent."""
    async with changing(log, actor, "ask.switched_off", organisation_id, reason=reason) as change:
        before = await read_setting(change.within, organisation_id)
        await remove_setting(change.within, organisation_id)
        change.tell("ask", organisation_id, None if before is None else audit_record(before), None)


async def _team(
    engine: AsyncEngine, log: AuditLog, actor: Actor, organisation_id: str, team_id: str, reason: str
) -> TeamRecord:
    """Return the organisation's team of this id, made where there is none: one that is there stays as it is."""
    async with looking():
        with contextlib.suppress(UnknownTeam):
            return await AccountStore(engine).team_of(organisation_id, team_id)
    made, _ = await put_team(log, actor, organisation_id, team_id, name=_KEY_NAME, reason=reason)
    return made


def audit_record(setting: AskSetting) -> dict[str, Any]:
    """Return a setting as its audit entry stores it."""
    return {
        "team_id": setting.team_id,
        "key_id": setting.key_id,
        "questions_an_hour": setting.questions_an_hour,
    }
