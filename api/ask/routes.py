"""POST /v1/ask: a question in words about spend and requests, answered with its figures linked to their rows."""

from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from accounts.access import principal_of
from api.ask.answer_types import AskAnswer, answer_of
from api.ask.asking import begun
from api.ask.conversation import MOST_QUESTION_CHARS, Answered, Step
from api.web.admin_access import parsed
from api.web.api_types import RequestBody
from api.web.gateway import AuthenticatedCaller, gateway_of
from api.web.openapi import described
from api.web.reading import json_reply
from api.web.request_body import read_body
from proxy.errors import AskUnanswered

router = APIRouter(tags=["usage"])

_MAX_BODY_BYTES: Final = 16 * 1024


class AskQuestion(RequestBody, frozen=True):
    """The question."""

    question: Annotated[str, msgspec.Meta(min_length=1, max_length=MOST_QUESTION_CHARS)]


@router.post(
    "/v1/ask",
    **described(
        "Ask about spend and requests",
        takes=AskQuestion,
        gives={200: AskAnswer},
        example={"question": "Which key's spend rose most in the last 7 days?"},
    ),
)
async def ask(request: Request, caller: AuthenticatedCaller) -> Response:
    """Answer a question in words, with what the key may read: a member key its team, a finance or admin key its organisation. It takes up
    to 90 s and is booked to the team that Ask was switched on with.
    """
    gateway = gateway_of(request)
    body = await read_body(request, timeout_s=gateway.rules().body_timeout_s, most_bytes=_MAX_BODY_BYTES)
    asked = parsed(body, AskQuestion)
    conversation = await begun(gateway, principal_of(caller, gateway.operator), asked.question)
    steps: list[Step] = []
    answered = Answered(problem="The model gave no answer.")
    async for event in conversation.events():
        if isinstance(event, Step):
            steps.append(event)
        elif isinstance(event, Answered):
            answered = event
    if answered.problem:
        raise AskUnanswered(answered.problem, should_retry=False)
    made = json_reply(answer_of(steps, answered))
    made.headers["cache-control"] = "no-store"
    return made
