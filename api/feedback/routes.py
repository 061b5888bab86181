"""POST /v1/feedback: a caller's verdict on an answer; GET /v1/feedback/summary: counts and means of verdicts."""

import asyncio
import re
import time
from typing import Any, Final, Literal

import msgspec
from fastapi import APIRouter, Request
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import Response

from accounts.caller import Caller
from api.web.changing import TEAM_ASKED, team_asked
from api.web.gateway import ActingCaller, AuthenticatedCaller, Gateway, gateway_of
from api.web.openapi import described
from api.web.parameters import Parameters
from api.web.patience import patience
from api.web.request_body import read_body
from classifier.learning.store import ClassifiedRequest, Verdict
from cost.times import wall_us
from proxy.errors import (
    BadRequest,
    FeedbackUnavailable,
    LearningOff,
    RequestNotFound,
)
from proxy.plan.route_plan import may_use
from settings.decoding import DECODE_ERRORS

router = APIRouter(tags=["feedback"])

MAX_BODY_BYTES: Final = 4_096
_PATIENCE_S: Final = 5.0
# A request that ended a moment ago may still wait in another worker's queue, which is written every second.
_LATE_S: Final = 1.5
_YOUNG_MS: Final = 900_000
_REQUEST_ID: Final = re.compile(r"req_([0-9a-f]{12})[0-9a-f]{16}", re.ASCII)
_MAX_ID_CHARS: Final = 200


class GiveFeedback(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A caller's verdict on an answer: exactly one of `rating`, from 0 to 1, and `passed`."""

    request_id: str
    rating: float | None = None
    passed: bool | None = None
    better_target: str | None = None


class FeedbackOut(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict that was stored."""

    object: Literal["feedback"]
    request_id: str
    target: str
    rating: float
    better_target: str | None


class VerdictsOut(msgspec.Struct, frozen=True, kw_only=True):
    """Number of a target's verdicts of one kind, and their mean."""

    target: str
    source: str
    signal: str
    verdicts: int
    adequate: float


class FeedbackSummary(msgspec.Struct, frozen=True, kw_only=True):
    """All kinds of verdicts of a team."""

    object: Literal["feedback.summary"]
    team_id: str
    learning: str
    data: list[VerdictsOut]


_decoder = msgspec.json.Decoder(GiveFeedback)


@router.post(
    "/v1/feedback",
    **described(
        "Rate an answer",
        takes=GiveFeedback,
        gives={200: FeedbackOut},
        example={"request_id": "req_0199a7c0f2b44c1f9d3e5a6b7c8d", "rating": 0.8},
    ),
)
async def give_feedback(request: Request, caller: ActingCaller) -> Response:
    """Store a verdict on the answer to one of the team's `auto` requests."""
    gateway = gateway_of(request)
    feedback = _decoded(await read_body(request, timeout_s=gateway.rules().body_timeout_s, most_bytes=MAX_BODY_BYTES))
    _check(feedback, gateway, caller)
    if caller.settings.learning == "off":
        raise LearningOff(
            "Your team's learning is off, so nothing is kept that feedback could be booked to. "
            f"Ask an operator for `weighbridge teams set {caller.team_id} --learning numbers`."
        )
    try:
        async with patience(_PATIENCE_S):
            weighing = await _find(gateway, caller.team_id, feedback.request_id)
            if weighing is None:
                raise RequestNotFound(
                    "There is no such request of your team: feedback is for answered requests with `model: auto`, "
                    "by the `x-request-id` of their reply, as long as they are kept.",
                    param="request_id",
                )
            verdict = _verdict(feedback, weighing, wall_us())
            if feedback.better_target == weighing.target_id:
                raise BadRequest(
                    "`better_target` is the model that gave this answer; name another one.", param="better_target"
                )
            await gateway.learning.add_verdicts([verdict])
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        raise FeedbackUnavailable("The database does not answer; send the feedback again shortly.") from error
    gateway.metrics.learning.count_verdict(verdict.source, verdict.signal)
    return _json(
        {
            "object": "feedback",
            "request_id": verdict.request_id,
            "target": verdict.target_id,
            "rating": verdict.adequate,
            "better_target": verdict.better_target,
        }
    )


@router.get("/v1/feedback/summary", **described("Sum up what was said", gives={200: FeedbackSummary}, query=TEAM_ASKED))
async def feedback_summary(request: Request, caller: AuthenticatedCaller) -> Response:
    """Return number and mean of the verdicts of each kind, for one team."""
    gateway = gateway_of(request)
    team = await team_asked(gateway, caller, Parameters(request.query_params, TEAM_ASKED))
    try:
        async with patience(_PATIENCE_S):
            counts = await gateway.learning.counts(team.team_id)
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        raise FeedbackUnavailable("The database does not answer; try again shortly.") from error
    rows = [
        {
            "target": each.target_id,
            "source": each.source,
            "signal": each.signal,
            "verdicts": each.verdicts,
            "adequate": round(each.adequate, 4),
        }
        for each in counts
    ]
    return _json(
        {"object": "feedback.summary", "team_id": team.team_id, "learning": team.settings.learning, "data": rows}
    )


def _decoded(body: bytes) -> GiveFeedback:
    try:
        return _decoder.decode(body)
    except msgspec.ValidationError as error:
        raise BadRequest(
            f"The feedback is not valid: {error}. It has `request_id`, one of `rating` and `passed`, "
            "and may have `better_target`."
        ) from error
    except DECODE_ERRORS as error:
        raise BadRequest("The body is not JSON.") from error


def _check(feedback: GiveFeedback, gateway: Gateway, caller: Caller) -> None:
    if not 1 <= len(feedback.request_id) <= _MAX_ID_CHARS:
        raise BadRequest(f"`request_id` must have 1 to {_MAX_ID_CHARS} characters.", param="request_id")
    if (feedback.rating is None) == (feedback.passed is None):
        raise BadRequest(
            "Send exactly one of `rating` (0 to 1) and `passed` (true or false).",
            param="rating" if feedback.passed is None else "passed",
        )
    if feedback.rating is not None and not 0 <= feedback.rating <= 1:
        raise BadRequest("`rating` must be between 0 (useless) and 1 (as good as it can be).", param="rating")
    better = feedback.better_target
    known = None if better is None else gateway.rules().catalog.named(better)
    if better is not None and (known is None or not may_use(caller.allowed_models, known)):
        raise BadRequest(
            "`better_target` is no model that your team may use; GET /v1/models lists them.", param="better_target"
        )


async def _find(gateway: Gateway, team_id: str, request_id: str) -> ClassifiedRequest | None:
    """Return the team's request, also when it ended a moment ago and is not yet written to the database."""
    shape = _REQUEST_ID.fullmatch(request_id)
    if shape is None:
        return None
    found = await gateway.learning.find_weighing(team_id, request_id)
    if found is None:
        await gateway.finance.write_down()
        found = await gateway.learning.find_weighing(team_id, request_id)
    if found is None and abs(time.time_ns() // 1_000_000 - int(shape[1], 16)) < _YOUNG_MS:
        await asyncio.sleep(_LATE_S)
        found = await gateway.learning.find_weighing(team_id, request_id)
    return found


def _verdict(feedback: GiveFeedback, weighing: ClassifiedRequest, now_us: int) -> Verdict:
    """Return a caller's verdict, with full weight. Ratings and passes are one signal, so that the latest replaces the earlier
    one.
    """
    return Verdict(
        request_id=weighing.request_id,
        at_us=now_us,
        organisation_id=weighing.organisation_id,
        team_id=weighing.team_id,
        target_id=weighing.target_id,
        source="feedback",
        signal="rating",
        adequate=float(bool(feedback.passed)) if feedback.rating is None else feedback.rating,
        better_target=feedback.better_target,
    )


def _json(value: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
