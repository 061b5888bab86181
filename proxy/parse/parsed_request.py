"""Parse stage: turns a body into a validated request of its caller, with values that every later stage needs."""

import msgspec

from accounts.caller import Caller, Escalation
from classifier.prediction import Prompt
from providers.provider_tools import AsWritten
from providers.wire import ChatRequest
from proxy.context import RequestContext
from proxy.errors import BadRequest, WrongTeam
from proxy.parse.chat_request import (
    RequestHeaders,
    input_tokens,
    prompt_of,
    wants_escalation,
)
from proxy.parse.tags import TagBounds
from proxy.parse.wires.wire import Later
from proxy.plan.route_plan import AUTO, refuse_unrun_tools
from proxy.shared.deadline import Deadline, client_timeout, deadline_of, own_timeout_s


class ParsedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request as its caller made it, before any routing decision."""

    request: ChatRequest
    body: bytes
    prompt: Prompt
    input_tokens: int
    """The estimated prompt tokens."""
    deadline: Deadline
    wants_escalation: Escalation | None
    """The request's own choice; None leaves it to the alias and the team."""
    idempotency_key: str | None
    later: Later | None = None
    """How it is put off, where its caller does not wait for the answer."""
    to_count: AsWritten | None = None
    """The body for a target that counts in its dialect, where tokens are all that is asked for."""


def parsed_request(
    context: RequestContext, caller: Caller, headers: RequestHeaders, body: bytes, tags: TagBounds
) -> ParsedRequest:
    """Parses the body and headers. Raises BadRequest, or WrongTeam when the request names another team than the key's."""
    understood = context.wire.read(body, headers, context.config.has_model)
    request, context.dialect = understood.request, understood.dialect
    if context.upload is not None:
        request = msgspec.structs.replace(request, upload=context.upload)
    if request.model == AUTO or context.config.has_model(request.model):
        context.asked_model = request.model
    if request.model in context.config.policy.autos:
        if request.operation != "chat":
            raise BadRequest(
                f"`model` must name a model from GET /v1/models that serves this route; `{request.model}` chooses among "
                "models that chat.",
                param="model",
            )
        request = msgspec.structs.replace(request, model=AUTO, alias=request.model)
    if request.as_written is not None:
        refuse_unrun_tools(request.as_written, context.config.catalog)
    if request.team_id is not None and request.team_id != caller.team_id:
        raise WrongTeam(
            "`x-team-id` is not the team of this key; leave it out or use that team's key.", param="x-team-id"
        )
    if request.tag:
        tags.admit(caller.team_id, request.tag)
    deadline = deadline_of(
        None if headers.timeout_ms is None else own_timeout_s(headers.timeout_ms),
        request.tier,
        context.config.deadlines,
        context.started_at,
        client_timeout(headers.read_timeout, headers.client_timeout),
    )
    prompt = prompt_of(request)
    return ParsedRequest(
        request=request,
        body=body,
        prompt=prompt,
        input_tokens=input_tokens(request, prompt),
        deadline=deadline,
        wants_escalation=None if headers.escalate is None else wants_escalation(headers.escalate),
        idempotency_key=headers.idempotency_key,
        later=understood.later,
        to_count=understood.to_count,
    )
