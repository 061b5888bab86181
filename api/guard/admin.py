"""/v1/admin/guard and /v1/admin/teams/{team_id}/guard: the rules that an organisation and its teams add to the configuration's."""

from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Depends
from starlette.responses import Response

from accounts.tables import WHOLE_ORGANISATION
from api.guard.change import rules_of, set_rules
from api.web.admin_access import AdminRequest, admin
from api.web.api_types import Deleted, Reason, RequestBody
from api.web.openapi import PREFIX, described
from guard.guard_config import MOST_RULES, GuardRule

router = APIRouter(tags=["guard"])

_OF_ALL: Final = f"{PREFIX}/guard"
_OF_TEAM: Final = f"{PREFIX}/teams/{{team_id}}/guard"
_EXAMPLE: Final = {"rules": [{"name": "mails", "kind": "pii", "entities": ["email"], "input": "mask"}]}


class PutGuard(RequestBody, frozen=True):
    """All rules, as they are to be: as in the configuration's `guard.rules`."""

    rules: Annotated[list[dict[str, Any]], msgspec.Meta(max_length=MOST_RULES)]
    reason: Reason = ""


class GuardOut(msgspec.Struct, frozen=True, kw_only=True):
    """The rules that are added, without those above them, which hold as well."""

    rules: list[dict[str, Any]]
    object: str = "guard"


@router.get(_OF_ALL, **described("Read the organisation's guard rules", gives={200: GuardOut}))
async def show_rules(desk: Annotated[AdminRequest, Depends(admin("organisation.read"))]) -> Response:
    """Return the rules that the organisation adds to the configuration's."""
    return await _show(desk, WHOLE_ORGANISATION)


@router.put(
    _OF_ALL, **described("Set the organisation's guard rules", takes=PutGuard, gives={200: GuardOut}, example=_EXAMPLE)
)
async def put_rules(desk: Annotated[AdminRequest, Depends(admin("organisation.change"))]) -> Response:
    """Replace the organisation's rules: the floor of all its teams. Every server follows within seconds."""
    return await _set(desk, WHOLE_ORGANISATION)


@router.delete(_OF_ALL, **described("Take the organisation's guard rules away", gives={200: Deleted}))
async def remove_rules(desk: Annotated[AdminRequest, Depends(admin("organisation.change"))]) -> Response:
    """Remove the organisation's rules; the configuration's still hold."""
    return await _remove(desk, WHOLE_ORGANISATION)


@router.get(_OF_TEAM, **described("Read a team's guard rules", gives={200: GuardOut}))
async def show_team_rules(desk: Annotated[AdminRequest, Depends(admin("team.read"))]) -> Response:
    """Return the rules that the team adds to its organisation's."""
    return await _show(desk, desk.the_team.team_id)


@router.put(_OF_TEAM, **described("Set a team's guard rules", takes=PutGuard, gives={200: GuardOut}, example=_EXAMPLE))
async def put_team_rules(desk: Annotated[AdminRequest, Depends(admin("team.change"))]) -> Response:
    """Replace the team's own rules. They tighten: the strictest of all rules that find something counts."""
    return await _set(desk, desk.the_team.team_id)


@router.delete(_OF_TEAM, **described("Take a team's guard rules away", gives={200: Deleted}))
async def remove_team_rules(desk: Annotated[AdminRequest, Depends(admin("team.change"))]) -> Response:
    """Remove the team's own rules; its organisation's still hold."""
    return await _remove(desk, desk.the_team.team_id)


async def _show(desk: AdminRequest, team_id: str) -> Response:
    return desk.reply(_out(await rules_of(desk.gateway.identity.accounts, desk.organisation_id, team_id)))


async def _set(desk: AdminRequest, team_id: str) -> Response:
    asked = await desk.body(PutGuard)
    log, organisation_id = desk.gateway.identity.audit, desk.organisation_id
    rules = await set_rules(log, desk.actor, organisation_id, asked.rules, team_id=team_id, reason=asked.reason)
    return desk.reply(_out(rules))


async def _remove(desk: AdminRequest, team_id: str) -> Response:
    await set_rules(desk.gateway.identity.audit, desk.actor, desk.organisation_id, (), team_id=team_id)
    return desk.reply(Deleted(id=team_id or desk.organisation_id, object="guard.deleted"))


def _out(rules: tuple[GuardRule, ...]) -> GuardOut:
    return GuardOut(rules=[rule.model_dump(exclude_defaults=True) for rule in rules])
