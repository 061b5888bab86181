"""/v1/admin: erasure of a person, and of a team's content."""

from datetime import date
from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.responses import Response

from api.erasure.admin_types import EraseContent, ErasePerson, ErasureOut
from api.erasure.change import Erased, erase_content, erase_person
from api.web.admin_access import AdminRequest, admin
from api.web.openapi import PREFIX, described
from cost.times import start_of
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
    asked, team = await desk.body(EraseContent), desk.the_team
    batch = desk.gateway.jobs.batch
    erased = await erase_content(
        desk.gateway.database,
        desk.gateway.identity.audit,
        desk.actor,
        team.organisation_id,
        team.team_id,
        before_us=None if asked.before is None else _start_of(asked.before),
        blobs=None if batch is None else batch.files.blobs,
        dry_run=asked.dry_run,
        reason=asked.reason,
    )
    return _reply(desk, erased)


def _start_of(day: str) -> int:
    try:
        return start_of(date.fromisoformat(day))
    except ValueError:
        raise BadRequest("`before` is a UTC day such as 2026-04-30.", param="before") from None


def _reply(desk: AdminRequest, erased: Erased) -> Response:
    return desk.reply(ErasureOut(dry_run=erased.dry_run, rows=erased.rows, left=erased.left, kept=erased.kept))
