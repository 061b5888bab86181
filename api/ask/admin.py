"""/v1/admin/ask: whether people of the organisation may ask, and to which team it is booked."""

from decimal import Decimal
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Depends
from starlette.responses import Response

from api.ask.asking import setting_of
from api.ask.change import MOST_QUESTIONS, USUAL_BUDGET_USD, USUAL_QUESTIONS, switch_off, switch_on
from api.ask.store import AskSetting
from api.web.admin_access import AdminRequest, admin
from api.web.api_types import Deleted, Reason, RequestBody
from api.web.openapi import PREFIX, described

router = APIRouter(tags=["usage"])


class PutAsk(RequestBody, frozen=True):
    """Switches Ask on. The team is made where there is none; a hard monthly budget of the key `Ask` bounds what answers cost, null sets none."""

    team_id: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    questions_an_hour: Annotated[
        int, msgspec.Meta(ge=1, le=MOST_QUESTIONS, description="Of each person, and of each key.")
    ] = USUAL_QUESTIONS
    budget_usd: Decimal | None = USUAL_BUDGET_USD
    reason: Reason = ""


class AskOut(msgspec.Struct, frozen=True, kw_only=True):
    """The setting; while Ask is off it has no team and no key."""

    on: bool
    team_id: str | None
    key_id: str | None
    questions_an_hour: int | None
    object: Literal["ask"] = "ask"


@router.get(f"{PREFIX}/ask", **described("Read whether people may ask", gives={200: AskOut}))
async def read_it(desk: Annotated[AdminRequest, Depends(admin("organisation.read"))]) -> Response:
    """Return the organisation's setting of Ask."""
    return desk.reply(_out(await setting_of(desk.gateway, desk.organisation_id)))


@router.put(
    f"{PREFIX}/ask",
    **described("Switch Ask on", takes=PutAsk, gives={200: AskOut}, example={"team_id": "ask", "budget_usd": 20}),
)
async def switch_it_on(desk: Annotated[AdminRequest, Depends(admin("organisation.change"))]) -> Response:
    """Let people ask questions in words, booked to a team."""
    asked = await desk.body(PutAsk)
    setting = await switch_on(
        desk.gateway.database,
        desk.gateway.identity.audit,
        desk.actor,
        desk.gateway.identity.peppers[0],
        desk.organisation_id,
        team_id=asked.team_id,
        questions_an_hour=asked.questions_an_hour,
        budget_usd=asked.budget_usd,
        reason=asked.reason,
    )
    return desk.reply(_out(setting))


@router.delete(f"{PREFIX}/ask", **described("Switch Ask off", gives={200: Deleted}))
async def switch_it_off(desk: Annotated[AdminRequest, Depends(admin("organisation.change"))]) -> Response:
    """Answer no more questions. The team, its key and what it spent stay."""
    await switch_off(desk.gateway.identity.audit, desk.actor, desk.organisation_id)
    return desk.reply(Deleted(id=desk.organisation_id, object="ask"))


def _out(setting: AskSetting | None) -> AskOut:
    return AskOut(
        on=setting is not None,
        team_id=None if setting is None else setting.team_id,
        key_id=None if setting is None else setting.key_id,
        questions_an_hour=None if setting is None else setting.questions_an_hour,
    )
