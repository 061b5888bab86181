"""/v1/admin: erasure of a person, and of a team's content."""

from datetime import date
from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.responses import Response

from api.erasure.admin_types import EraseContent, ErasePerson, ErasureOut
from api.erasure.change import Erased, erase_content_of, erase_person
from api.web.admin_access import AdminRequest, admin
from api.web.openapi import PREFIX, described
from proxy.errors import BadRequest

router = APIRouter(tags=["erasure"])


@router.post(
    f"{PREFIX}/erasures",
    **described("Erase a person", takes=ErasePerson, gives={200: ErasureOut}, example={"person": "ada@example.com"}),
)
async def erase_somebody(desk: Annotated[AdminRequest, Depends(admin("organisation.change"))]) -> Response:
    """Erase an account or an end user of the organisation everywhere, or count what that would be. Amounts and what was done stay, without
    the name. Once more erases what came since.
    """
    asked = await desk.body(ErasePerson)
    erased = await erase_person(
        desk.gateway.database,
        desk.gateway.identity.audit,
        desk.actor,
        desk.organisation_id,
        asked.person,
        operator=desk.gateway.operator,
        dry_run=asked.dry_run,
        reason=asked.reason,
    )
    return _reply(desk, erased)


@router.post(
    f"{PREFIX}/teams/{{team_id}}/erasures",
    **described(
        "Erase a team's content", takes=EraseContent, gives={200: ErasureOut}, example={"before": "2026-04-30"}
    ),
)
async def erase_team(desk: Annotated[AdminRequest, Depends(admin("team.change"))]) -> Response:
    """Erase the team's prompts, responses, files and batches, or count them. Books and settings stay."""
    asked = await desk.body(EraseContent)
    before = None if asked.before is None else _day(asked.before)
    erased = await erase_content_of(
        desk.gateway, desk.actor, desk.the_team, before=before, dry_run=asked.dry_run, reason=asked.reason
    )
    return _reply(desk, erased)


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise BadRequest("`before` is a UTC day such as 2026-04-30.", param="before") from None


def _reply(desk: AdminRequest, erased: Erased) -> Response:
    return desk.reply(ErasureOut(dry_run=erased.dry_run, rows=erased.rows, left=erased.left, kept=erased.kept))
