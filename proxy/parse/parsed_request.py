"""Parse stage: tells whose key was sent, and turns a body into a validated request with the values that every later stage needs."""

import functools
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from accounts.caller import Caller, Escalation
from accounts.directory import Directory
from accounts.keys import PREFIX
from classifier.prediction import Prompt
from providers.provider_tools import AsWritten
from providers.target import Capability
from providers.upload import Upload
from providers.wire import SERVED_BY, ChatRequest
from proxy.errors import BadRequest, NotAuthenticated, WrongTeam
from proxy.http.exchange import Exchange
from proxy.parse.chat_request import AUTO, input_tokens, prompt_of
from proxy.parse.headers import RequestHeaders
from proxy.parse.json_bounds import BodyReader, is_heavy
from proxy.parse.uploads import Uploads
from proxy.parse.wires.wire import EarlierTurns, Kept, Later, Memory, Understood, Wire
from proxy.shared.deadline import Deadline, DeadlinesSection, client_timeout, deadline_of, own_timeout_s

RawHeaders = Sequence[tuple[bytes, bytes]]
"""Headers as they came, with names in lower case."""
_ESCALATIONS: Final[Mapping[str, Escalation]] = {"true": "all", "false": "off", "agreement": "agreement-all"}
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
    parse_escalation: Escalation | None
    """The request's own choice; None leaves it to the alias and the team."""
    idempotency_key: str | None
    later: Later | None = None
    """The answer's later delivery, for a request whose caller does not wait for it."""
    to_count: AsWritten | None = None
    """The body for a target that counts in its dialect, where tokens are all that is asked for."""
    keeper: Callable[[Kept], Awaitable[bool]] | None = None
    """Keeps the answer for its caller, on a wire whose answers can be kept."""
    again: Callable[[bytes], "ParsedRequest"] | None = None
    """Reads another body in its place, as the guard changed it. Raises BadRequest."""


async def caller_by_key(directory: Directory, headers: RequestHeaders) -> Caller:
    """Return the owner of the key in `Authorization`, `x-api-key` or `api-key`; of several keys, of the first that looks like one of
    this gateway's, as clients send their provider's beside it. Raises NotAuthenticated or an accounts error.
    """
    sent = _keys_sent(headers)
    if not sent:
        raise NotAuthenticated("No API key was sent; use the header `Authorization: Bearer wb-…`.")
    key = next((each for each in sent if each.startswith(PREFIX)), sent[0])
    return directory.lookup_fresh(key) or await directory.authenticate(key)


def _keys_sent(headers: RequestHeaders) -> list[str]:
    words = (headers.authorization or "").split()
    # Some clients send the key alone, and some people write the scheme into the key's field once more.
    is_key = len(words) == 1 or (bool(words) and words[0].lower() == _BEARER)
    all_sent = words[-1] if is_key else None, headers.api_key, headers.azure_key
    return [each for each in all_sent if each and each.lower() != _BEARER]


_BEARER: Final = "bearer"


class ParseConfig(Protocol):
    """The part of the configuration that a request is parsed by."""

    @property
    def max_body_bytes(self) -> int: ...
    @property
    def max_upload_bytes(self) -> int: ...
    @property
    def deadlines(self) -> DeadlinesSection: ...
    @property
    def aliases(self) -> Container[str]:
        """The names that stand for a choice among chat models."""
        ...

    def has_model(self, name: str) -> bool: ...

    def first_serving(self, capability: Capability, allowed: frozenset[str] | None) -> str | None:
        """Return the first model that has the capability and is allowed; None where there is none."""
        ...

    def check_tools(self, written: AsWritten) -> None:
        """Refuse tools that no target runs, with BadRequest."""
        ...


class OutsideCallers(Protocol):
    """Knows callers who bring no key of this gateway."""

    async def caller(self, headers: RawHeaders) -> Caller | None:
        """Return the caller; None where nobody knows it. Raises a refusal or an accounts error."""
        ...


class RequestParser:
    """The parse stage of one process, with what it knows from one request to the next."""

    def __init__(
        self, directory: Directory, earlier: EarlierTurns | None = None, outside: OutsideCallers | None = None
    ) -> None:
        """`earlier` has the kept answers; None where none are kept. `outside` knows callers without a key of this gateway."""
        self.bodies = BodyReader()
        self._outside = outside
        self._directory = directory
        self._earlier = earlier
        self._tags = TagBounds()
        self._uploads = Uploads()

    def authenticate(self, headers: RequestHeaders, raw: RawHeaders | None = None) -> Awaitable[Caller]:
        """Return the key's owner or, where no key of this gateway was sent, whom others know by the `raw` headers. Raises
        NotAuthenticated, an accounts error or a refusal.
        """
        if self._outside is None or raw is None:
            return caller_by_key(self._directory, headers)
        return self._by_key_or_outside(self._outside, headers, raw)

    async def _by_key_or_outside(self, outside: OutsideCallers, headers: RequestHeaders, raw: RawHeaders) -> Caller:
        # Our own keys come first, and nobody else is shown them.
        if not any(key.startswith(PREFIX) for key in _keys_sent(headers)):
            found = await outside.caller(raw)
            if found is not None:
                return found
        return await caller_by_key(self._directory, headers)

    async def understand(
        self,
        wire: Wire,
        exchange: Exchange,
        headers: RequestHeaders,
        caller: Caller,
        config: ParseConfig,
        *,
        started_at: float,
        memory: Memory | None,
        understood: Callable[[Understood], None],
    ) -> ParsedRequest:
        """Read the body within its bounds and understand it.

        `started_at` is on the monotonic clock; `memory` is that of the connection. `understood` is told of what the wire read
        before the rest is checked.
        Raises BodyTooLarge, UploadTimeout, CallerGone, Overloaded, BadRequest, or WrongTeam when the request names another team
        than the key's.
        """
        keeper, upload = None, None
        if wire.files:
            body, upload = await self._uploads.take(exchange, config.max_upload_bytes, wire.files)
        else:
            body = await exchange.body(config.max_body_bytes)
        if wire.continuing is not None and self._earlier is not None:
            keeper = functools.partial(self._earlier.keep, caller)
            body = await self._earlier.body_with_earlier(
                caller.team_id,
                body,
                wire.continuing,
                self.bodies.read,
                most_bytes=config.max_body_bytes,
                memory=memory,
            )

        def read(body: bytes = body, understood: Callable[[Understood], None] = _nothing) -> ParsedRequest:
            found = wire.read(body, headers, config.has_model)
            understood(found)
            request = _of_caller(found.request, upload, config, caller)
            if request.tag:
                self._tags.admit(caller.team_id, request.tag)
            wanted = None if headers.escalate is None else parse_escalation(headers.escalate)
            deadline = deadline_of(
                None if headers.timeout_ms is None else own_timeout_s(headers.timeout_ms),
                request.tier,
                config.deadlines,
                started_at,
                client_timeout(headers.read_timeout, headers.client_timeout),
            )
            prompt = prompt_of(request)
            if request.as_written is not None:
                config.check_tools(request.as_written)
            return ParsedRequest(
                request=request,
                body=body,
                prompt=prompt,
                input_tokens=input_tokens(request, prompt),
                deadline=deadline,
                parse_escalation=wanted,
                idempotency_key=headers.idempotency_key,
                later=found.later,
                to_count=found.to_count,
                keeper=keeper,
                again=read,
            )

        try:
            # Nearly all are read here and now, which a coroutine of its own would make dearer.
            if is_heavy(body):
                return await self.bodies.read(body, lambda: read(understood=understood))
            return read(understood=understood)
        except BaseException:
            if upload is not None:
                upload.close()
            raise


def _nothing(_found: Understood) -> None:
    """Tell nobody: who writes the answer was told of the body as its caller sent it."""


def _of_caller(request: ChatRequest, upload: Upload | None, config: ParseConfig, caller: Caller) -> ChatRequest:
    """Return the request with its file, and with the name by which its model is chosen. Raises BadRequest or WrongTeam."""
    if upload is not None:
        request = msgspec.structs.replace(request, upload=upload)
    if not request.model:
        usual = config.first_serving(SERVED_BY[request.operation], caller.allowed_models)
        if usual is None:
            raise BadRequest(
                "`model` is left out, and no model of GET /v1/models serves this route: ask an operator for one.",
                param="model",
            )
        request = msgspec.structs.replace(request, model=usual)
    if request.model in config.aliases:
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
    return request


def parse_escalation(header: str) -> Escalation:
    """Return the request's choice of escalation. Raises BadRequest."""
    said = _ESCALATIONS.get(header.lower())
    if said is None:
        raise BadRequest(
            "`x-weighbridge-escalate` must be `true`, `false` or `agreement`.", param="x-weighbridge-escalate"
        )
    return said
