"""Parse stage: turns a body into a validated request of its caller, with values that every later stage needs."""

from collections import OrderedDict
from collections.abc import Container
from typing import Final

import msgspec

from accounts.caller import Caller, Escalation
from classifier.prediction import Prompt
from providers.provider_tools import AsWritten
from providers.upload import Upload
from providers.wire import ChatRequest
from proxy.errors import BadRequest, WrongTeam
from proxy.parse.chat_request import AUTO, input_tokens, prompt_of
from proxy.parse.headers import RequestHeaders, parse_escalation
from proxy.parse.wires.wire import Later, Understood
from proxy.shared.deadline import Deadline, DeadlinesSection, client_timeout, deadline_of, own_timeout_s

_MAX_TAGS: Final = 1_000
"""The most tags per team and process. Stops request ids that are sent as tags by mistake."""
_MAX_TEAMS: Final = 10_000


class TagBounds:
    """The tags in use of each team: each tag makes ledger roll-up rows of its own, so their number is bounded. A restart, or eviction beyond the bound of teams, forgets them."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, set[str]] = OrderedDict()

    def admit(self, team_id: str, tag: str) -> None:
        """Record a tag. Raises BadRequest when the team has too many."""
        tags = self._seen.get(team_id)
        if tags is None:
            tags = self._seen[team_id] = set()
            if len(self._seen) > _MAX_TEAMS:
                self._seen.popitem(last=False)
        if tag in tags:
            return
        if len(tags) >= _MAX_TAGS:
            raise BadRequest(
                f"Your team already uses {_MAX_TAGS} different tags. A tag names a feature or a project, not a request; "
                "send one of those in use, or none.",
                param="x-weighbridge-tag",
                code="too_many_tags",
            )
        tags.add(tag)


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
    """The answer's later delivery, for a request whose caller does not wait for it."""
    to_count: AsWritten | None = None
    """The body for a target that counts in its dialect, for a request that asks for its tokens alone."""


def parsed_request(
    understood: Understood,
    body: bytes,
    headers: RequestHeaders,
    caller: Caller,
    *,
    aliases: Container[str],
    deadlines: DeadlinesSection,
    started_at: float,
    tags: TagBounds,
    upload: Upload | None = None,
) -> ParsedRequest:
    """Return the request that a wire understood, with the values of its headers and its caller's rights.

    `aliases` are the names that stand for a choice among chat models; `started_at` is on the monotonic clock. Raises
    BadRequest, or WrongTeam when the request names another team than the key's.
    """
    request = understood.request
    if upload is not None:
        request = msgspec.structs.replace(request, upload=upload)
    if request.model in aliases:
        if request.operation != "chat":
            raise BadRequest(
                f"`model` must name a model from GET /v1/models that serves this route; `{request.model}` chooses among "
                "models that chat.",
                param="model",
            )
        request = msgspec.structs.replace(request, model=AUTO, alias=request.model)
    if request.team_id is not None and request.team_id != caller.team_id:
        raise WrongTeam(
            "`x-team-id` is not the team of this key; leave it out or use that team's key.", param="x-team-id"
        )
    if request.tag:
        tags.admit(caller.team_id, request.tag)
    deadline = deadline_of(
        None if headers.timeout_ms is None else own_timeout_s(headers.timeout_ms),
        request.tier,
        deadlines,
        started_at,
        client_timeout(headers.read_timeout, headers.client_timeout),
    )
    prompt = prompt_of(request)
    return ParsedRequest(
        request=request,
        body=body,
        prompt=prompt,
        input_tokens=input_tokens(request, prompt),
        deadline=deadline,
        wants_escalation=None if headers.escalate is None else parse_escalation(headers.escalate),
        idempotency_key=headers.idempotency_key,
        later=understood.later,
        to_count=understood.to_count,
    )
