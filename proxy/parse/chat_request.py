"""Request parsing: bytes and headers become a ChatRequest, or a BadRequest that names the remedy. No I/O."""

import itertools
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar, get_args

import msgspec

from classifier.prediction import Prompt
from classifier.tokens import estimate_tokens
from cost.end_users import booked
from cost.ledger.entries import TAG, TAG_RULE
from cost.meters import MEDIA, NO_MEDIA, Media
from cost.prices import SERVICE_TIERS, SIZED_SEARCHES, ServiceTier
from providers.parameters import DECISIVE, MINOR, is_said
from providers.provider_tools import AsWritten
from providers.quirks import BEGUN_ANSWER
from providers.target import Capability, Tier
from providers.wire import DRAWS, SERVED_BY, ChatRequest, Message, Part, Priority
from proxy.errors import BadRequest
from proxy.parse.headers import RequestHeaders
from proxy.parse.json_bounds import check_fields
from proxy.parse.reasoning_effort import effort_of_raw
from settings.decoding import DECODE_ERRORS

AUTO: Final = "auto"
"""The alias under which the gateway chooses the target."""
_HAVE_A_USUAL_MODEL: Final = frozenset({"moderations"}) | DRAWS
"""Operations that OpenAI does not ask a model's name for: the first one that serves them answers."""

DEFAULT_OUTPUT_TOKENS = 300
"""The expected answer length of a request that was not classified (the caller named the model)."""

# These would steer the gateway's own calls to an address or with a key of the caller's choosing.
STEERING_FIELDS = frozenset(
    {
        "api_base",
        "api_key",
        "api_version",
        "azure_ad_token",
        "base_url",
        "custom_llm_provider",
        "deployment_id",
        "extra_body",
        "extra_headers",
        "extra_query",
        "headers",
        "litellm_params",
        "mock_response",
        "organization",
    }
)
_SHARING = "the gateway's configuration says who shares what is cached"
_PLACING = "the gateway places requests itself"
_NAMING = "the gateway names requests itself"
_ADAPTERS = "an adapter is asked for as `model`"
_BOUNDS = "send `max_tokens`, `max_completion_tokens` and `n`, by which the gateway knows what an answer may cost"
_STREAMING = "the gateway tells by what arrives whether an engine works, and what an answer cost that was broken off"
_PROGRAMS = "what engines run comes from whoever runs them"
# These would steer an engine of our own past its queue, into another's cache or to another engine, or past what we
# counted on: vLLM's names, SGLang's, TensorRT-LLM's and llama.cpp's. Some engines read more of them than they say.
ENGINE_FIELDS = {
    "priority": "send `x-priority` (`low`, `normal` or `high`) or `x-tier` instead",
    **dict.fromkeys(("cache_salt", "extra_key", "session_params"), _SHARING),
    **dict.fromkeys(("kv_transfer_params", "ec_transfer_params", "disaggregated_params", "id_slot"), _PLACING),
    **dict.fromkeys(("bootstrap_host", "bootstrap_port", "bootstrap_room"), _PLACING),
    **dict.fromkeys(("data_parallel_rank", "routed_dp_rank", "disagg_prefill_dp_rank"), _PLACING),
    # Engines take an older request's name for that request, and vLLM's connectors read addresses out of it.
    **dict.fromkeys(("request_id", "rid"), _NAMING),
    **dict.fromkeys(("lora", "lora_path", "lora_request"), _ADAPTERS),
    # llama.cpp's own names for `max_tokens` and `n` win; the others make tokens that nobody reserved or is told of.
    **dict.fromkeys(("n_predict", "n_cmpl", "best_of", "padding"), _BOUNDS),
    # Nothing arrives before the end, and beams overtake everybody: vLLM gives them neither priority nor our salt.
    **dict.fromkeys(("stream_interval", "use_beam_search"), _STREAMING),
    # `vllm_xargs` can hold `kv_transfer_params`, and a template can write a prompt of any length.
    **dict.fromkeys(("vllm_xargs", "custom_logit_processor", "chat_template"), _PROGRAMS),
}
STEERING_PREFIXES = ("aws_", "vertex_", "litellm_")
_STEERING: Final = STEERING_FIELDS | ENGINE_FIELDS.keys()
# Some engines embed chats too, and fetch what these link to. Here nobody would count them or look at their links.
CHAT_FIELDS = ("messages", "stream")
_NULL = b"null"
_UNSAID = frozenset({_NULL, b"false"})

# Tokens of a prompt beside its text: OpenAI's chat framing (4 a message, 3 to prime the
# answer), and a 1024-pixel image at high detail (765), both from OpenAI's published counting rules.
MESSAGE_TOKENS = 4
PRIMING_TOKENS = 3
IMAGE_TOKENS = 765
# No vendor charges more for one image: gpt-4o-mini's 2,833 with 8 tiles of 5,667 come to 48,169, others to a third of it.
MOST_IMAGE_TOKENS = 50_000
# Vendors explain tools to the model in words of their own; Anthropic's are the longest with some 350 to 800 tokens.
_MOST_TOOL_FRAMING_TOKENS = 1_000
_UNBOUNDED_TOKENS = 1_000_000_000
# The tokens of a file or a recording depend on its content. A page of text as PDF is about 20 encoded characters
# a token, speech far more; counting the dearer one keeps the reservation on the safe side.
CHARS_PER_MEDIA_TOKEN = 20

MAX_MESSAGES = 4_096
MAX_CHOICES = 16
MAX_EMBEDDED = 2_048
"""The most texts in one embeddings request, as with OpenAI."""
MAX_ID_CHARS = 256

_DEFINITIONS: Final = frozenset({"tools", "functions", "response_format"})
_DIGESTED_BYTES = 128 * 1024
_ASKED: Final = ("messages", "input", "documents", "prompt")
_TIERS: frozenset[str] = frozenset(get_args(Tier))
# OpenAI's `service_tier`: flex is its slow, cheap tier; every other value wants an answer now.
_SERVICE_TIERS: Mapping[str, Tier] = {
    "flex": "batch",
    "auto": "interactive",
    "default": "interactive",
    "priority": "interactive",
}
_SOLD: Mapping[str, ServiceTier] = {tier: tier for tier in SERVICE_TIERS}
_INSTRUCTING = frozenset({"system", "developer"})
_NOTHING: Final[frozenset[Capability]] = frozenset()
_IMAGE_PARTS = frozenset({"image_url", "input_image", "image"})
_MEASURABLE_PARTS = _IMAGE_PARTS | {"text", "input_text", "refusal", "thinking", "redacted_thinking", "input_audio"}
_PRIORITIES: Mapping[str, Priority] = {"low": -1, "normal": 0, "high": 1}
# The gateway's own fields: consumed here, never sent upstream.
OWN_FIELDS = ("x-team-id", "x-tier", "service_tier", "x-session-id", "x-weighbridge-tag", "x-priority")


_END_USER_FIELDS: Final = ("safety_identifier", "user")
"""Fields that name an end user, the newer one first."""
_NO_FIELDS: Final[Mapping[str, msgspec.Raw]] = {}


class _StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


class _ResponseFormat(msgspec.Struct, frozen=True):
    type: str = "text"


class OwnFields(msgspec.Struct, frozen=True, kw_only=True):
    """The gateway's own fields, which may be sent in the body instead of as headers."""

    service_tier: str | None = None
    team_id: str | None = msgspec.field(default=None, name="x-team-id")
    tier: str | None = msgspec.field(default=None, name="x-tier")
    session_id: str | None = msgspec.field(default=None, name="x-session-id")
    tag: str | None = msgspec.field(default=None, name="x-weighbridge-tag")
    priority: str | None = msgspec.field(default=None, name="x-priority")
    prompt_cache_key: str | None = None


_Input = str | list[str | int | list[int]]


class _EmbeddingsBody(OwnFields, frozen=True, kw_only=True):
    """The body of an embeddings request: the fields that the gateway reads."""

    model: str
    input: _Input


class ChatFields(OwnFields, frozen=True, kw_only=True):
    """The fields of a chat beside its messages that the gateway reads; all others pass through unparsed."""

    model: str
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    tools: list[msgspec.Raw] | None = None
    functions: list[msgspec.Raw] | None = None
    response_format: _ResponseFormat | None = None


class _Body(ChatFields, frozen=True, kw_only=True):
    """The body of a chat request."""

    messages: list[Message]


_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_JSON_PLACE = re.compile(r"malformed: ([a-z ,:'\[\]{}]+) \(byte ([0-9]+)\)")
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_body_decoder = msgspec.json.Decoder(_Body)
_embeddings_decoder = msgspec.json.Decoder(_EmbeddingsBody)
_messages_decoder = msgspec.json.Decoder(list[Message])
_encode = msgspec.json.Encoder().encode
_OWN_FIELDS: Final = frozenset(OWN_FIELDS)
_TYPED: Final = frozenset(field.encode_name for field in msgspec.structs.fields(ChatFields)) - {"tools", "functions"}
"""The fields that are parsed by themselves."""
_ORDINARY: Final = (_TYPED | MINOR | DECISIVE | {"messages", "tools", "functions", "tool_choice", "stop"}) - _OWN_FIELDS
"""The fields of most bodies: none of these steers, and none is the gateway's own."""
_T = TypeVar("_T")


def parse_chat(body: bytes, headers: RequestHeaders) -> ChatRequest:
    """Parse a chat completion request. Raises BadRequest."""
    fields, typed = decoded(body, _body_decoder)
    if not _ORDINARY.issuperset(fields):
        refuse_steering(fields)
        drop_own_fields(fields)
    tools = len(typed.tools or ()) + len(typed.functions or ())
    more: dict[str, Any] = {"effort": effort} if (effort := effort_of_raw(fields)) else {}
    return request_of(fields, typed, typed.messages, headers, tools=tools, **more)


def drop_own_fields(fields: dict[str, msgspec.Raw]) -> None:
    """Remove the gateway's own fields, which are never sent upstream."""
    if not _OWN_FIELDS.isdisjoint(fields):
        for name in OWN_FIELDS:
            fields.pop(name, None)


class PlainMessage(Message, frozen=True, forbid_unknown_fields=True):
    """A message of a caller's or a model's that is a text and nothing else."""

    role: Literal["user", "assistant"]
    content: str


def chat_request(chat: dict[str, Any], headers: RequestHeaders, *, times: int = 1, **more: Any) -> ChatRequest:
    """Return the request for a chat given as decoded fields, made from another wire's body: each field is encoded
    once and read once. See `request_of` for the rest. Raises BadRequest.
    """
    refuse_steering(chat)
    messages, tools = chat["messages"], chat.get("tools") or ()
    try:
        fields = {name: msgspec.Raw(_encode(value)) for name, value in chat.items() if name not in _OWN_FIELDS}
        small = {name: value for name, value in chat.items() if name in _TYPED}
        asked = msgspec.convert(small, ChatFields)
        if all(map(_is_plain, messages)):
            read = [Message(message["role"], message["content"]) for message in messages]
        else:
            read = _messages_decoder.decode(fields["messages"])
    except msgspec.ValidationError as error:
        raise _not_valid(error) from error
    except (UnicodeEncodeError, RecursionError) as error:
        raise BadRequest("The request body is not valid JSON; send one JSON object.") from error
    return request_of(fields, asked, read, headers, times=times, tools=len(tools), translated=True, **more)


def _is_plain(message: Mapping[str, Any]) -> bool:
    """Return True for a message of a role and a text, as most are."""
    return len(message) == 2 and type(message.get("content")) is str and type(message.get("role")) is str  # noqa: PLR2004


def request_of(
    fields: dict[str, msgspec.Raw],
    asked: ChatFields,
    messages: list[Message],
    headers: RequestHeaders,
    *,
    tools: int = 0,
    times: int = 1,
    session: str | None = None,
    end_user: str = "",
    translated: bool = False,
    for_anthropic: Callable[[], Mapping[str, Any]] | None = None,
    in_messages: Callable[[], AsWritten] | None = None,
    **more: Any,
) -> ChatRequest:
    """Return the request of a chat whose body was decoded: `fields` as they go upstream, and the parsed values of
    them. `times` is the number of requests of the kind that it stands for; `session` and `end_user` are those that
    another dialect's body names; the other parameters are fields of the ChatRequest, and `more` those that few requests have.
    Raises BadRequest.
    """
    _check_limits(asked, messages)
    options, form = asked.stream_options, asked.response_format
    images = 0
    for message in messages:
        if isinstance(message.content, list):
            images += _images_in(message.content)
    request = ChatRequest(
        fields=fields,
        model=asked.model,
        messages=messages,
        stream=bool(asked.stream),
        include_usage=options is not None and bool(options.include_usage),
        # Both go upstream as they are, and which of them counts there is not known here.
        max_output_tokens=max(asked.max_completion_tokens or 0, asked.max_tokens or 0) or None,
        n=(asked.n or 1) * times,
        tools=tools,
        images=images,
        json_mode=form is not None and form.type != "text",
        session_id=session,
        cache_key=asked.prompt_cache_key,
        end_user=_end_user(fields, more.get("for_openai", _NO_FIELDS)) or booked(end_user),
        translated=translated,
        for_anthropic=for_anthropic,
        in_messages=in_messages,
    )
    request = _with_own_fields(request, headers, asked)
    return msgspec.structs.replace(request, **more) if more else request


def _with_own_fields(request: ChatRequest, headers: RequestHeaders, said: OwnFields) -> ChatRequest:
    """Return the request with the gateway's own fields from headers and body; most have none. Raises BadRequest."""
    if (
        headers.tier is headers.team_id is headers.session_id is headers.tag is headers.priority is None
        and headers.claude_session is headers.codex_session is headers.codex_session_id is None
        and said.tier is said.team_id is said.session_id is said.tag is said.priority is said.service_tier is None
    ):
        return request
    return msgspec.structs.replace(
        request,
        tier=_tier(headers.tier, said.tier, said.service_tier),
        team_id=_agreed("x-team-id", headers.team_id, said.team_id),
        session_id=_session(headers, said.session_id) or request.session_id,
        tag=_tag(headers.tag, said.tag),
        priority=_priority(headers.priority, said.priority, said.service_tier),
        service_tier=_SOLD.get(said.service_tier or ""),
    )


def parse_embeddings(body: bytes, headers: RequestHeaders) -> ChatRequest:
    """Parse an embeddings request. Raises BadRequest."""
    fields, typed = decoded(body, _embeddings_decoder)
    for name in CHAT_FIELDS:
        if bytes(fields.get(name, _NULL)) not in _UNSAID:
            raise BadRequest(
                f"The field `{name}` is not accepted here: send what is to be embedded as `input`.",
                param=name,
                code="field_not_allowed",
            )
    if typed.model in {"", "auto"}:
        raise BadRequest(
            "`model` must name an embedding model from GET /v1/models: vectors of different models cannot be mixed, so "
            "`auto` never chooses one.",
            param="model",
        )
    texts = _texts(typed.input)
    sizes = [estimate_tokens(text) if isinstance(text, str) else len(text) for text in texts]
    return request_without_messages(
        fields,
        headers,
        typed,
        ChatRequest(
            operation="embeddings",
            fields={},
            model=typed.model,
            messages=[],
            given_texts_tokens=sum(sizes),
            longest_tokens=max(sizes),
        ),
    )


def request_without_messages(
    fields: dict[str, msgspec.Raw], headers: RequestHeaders, typed: OwnFields, request: ChatRequest
) -> ChatRequest:
    """Complete a request of another operation than chat by its body's fields and the gateway's own. Raises
    BadRequest, also for `model: auto`: another model's result is not a substitute.
    """
    refuse_steering(fields)
    if request.model == AUTO or (not request.model and request.operation not in _HAVE_A_USUAL_MODEL):
        raise BadRequest(
            "`model` must name a model from GET /v1/models that serves this route; `auto` never chooses one here.",
            param="model",
        )
    drop_own_fields(fields)
    return msgspec.structs.replace(
        request,
        fields=fields,
        tier=_tier(headers.tier, typed.tier, typed.service_tier),
        team_id=_agreed("x-team-id", headers.team_id, typed.team_id),
        session_id=_agreed("x-session-id", headers.session_id, typed.session_id),
        tag=_tag(headers.tag, typed.tag),
        end_user=_end_user(fields),
        priority=_priority(headers.priority, typed.priority, typed.service_tier),
        service_tier=_SOLD.get(typed.service_tier or ""),
    )


def _texts(given: "_Input") -> Sequence[str | list[int]]:
    """Return the texts, or token lists, to be embedded. Raises BadRequest."""
    if isinstance(given, str):
        texts: Sequence[str | list[int]] = [given]
    elif given and all(isinstance(each, int) for each in given):
        texts = [[each for each in given if isinstance(each, int)]]
    else:
        texts = [each for each in given if not isinstance(each, int)]
        if len(texts) != len(given):
            raise BadRequest("`input` mixes numbers with texts; send texts, or lists of tokens.", param="input")
    if not texts or not all(texts):
        raise BadRequest("`input` is empty; send a text, or a list of texts none of which is empty.", param="input")
    if len(texts) > MAX_EMBEDDED:
        raise BadRequest(f"`input` has {len(texts)} texts; at most {MAX_EMBEDDED} are accepted.", param="input")
    return texts


def decoded(body: bytes, decoder: "msgspec.json.Decoder[_T]") -> tuple[dict[str, msgspec.Raw], _T]:
    """Return a JSON body's fields as they came, and the decoder's result. Raises BadRequest."""
    try:
        # Fields that are passed on unread are not looked at by the decoders: no upstream gets broken text.
        if not body.isascii():
            body.decode()
        fields = _fields_decoder.decode(body)
        check_fields(fields)
        return fields, decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _not_valid(error) from error
    except DECODE_ERRORS as error:
        raise not_json(body, error) from error


def _not_valid(error: msgspec.ValidationError) -> BadRequest:
    message, _, path = str(error).partition(" - at ")
    param = path.strip("`").removeprefix("$").removeprefix(".") or None
    where = f" in `{param}`" if param else ""
    return BadRequest(f"The request body is not valid{where}: {message}.", param=param)


def not_json(body: bytes, error: Exception) -> BadRequest:
    """Return the refusal of a body that is no JSON, with the place of the error and nothing of the content."""
    if body.startswith(_BYTE_ORDER_MARK):
        return BadRequest("The request body begins with a byte order mark; send JSON in UTF-8 without one.")
    try:
        body.decode()
    except UnicodeDecodeError as broken:
        return BadRequest(f"The request body is not valid UTF-8 at byte {broken.start}; send one JSON object in UTF-8.")
    if isinstance(error, RecursionError):
        return BadRequest("The request body is nested too deeply; send one JSON object.")
    if (half := _half_of_pair(body)) is not None:
        return BadRequest(
            f"The request body has half of a surrogate pair at byte {half}, as a text has that was cut within a character; send "
            "the whole pair, or \\ufffd in its place."
        )
    found = _JSON_PLACE.search(str(error))
    where = f"it ends too early, after {len(body)} bytes" if found is None else f"{found[1]} at byte {found[2]}"
    return BadRequest(f"The request body is not valid JSON ({where}); send one JSON object.")


def _half_of_pair(body: bytes) -> int | None:
    """Return the place of the first escaped surrogate that stands alone, which no JSON of UTF-8 may have."""
    for found in itertools.islice(_SURROGATES.finditer(body), _MOST_SURROGATES):
        before = body[max(0, found.start() - _MOST_BEFORE) : found.start()]
        is_escape = (len(before) - len(before.rstrip(b"\\"))) % 2 == 0
        if is_escape and found[1] is None:
            return found.start()
    return None


_SURROGATES: Final = re.compile(rb"\\u[dD](?:[89abAB]..(\\u[dD][c-fC-F]..)?|[c-fC-F]..)", re.DOTALL)
_MOST_SURROGATES: Final = 10_000
_MOST_BEFORE: Final = 64


def steers(name: str) -> bool:
    """Return True for a field that would choose upstream addresses, keys or a place in an engine."""
    return name in _STEERING or name.startswith(STEERING_PREFIXES)


def refuse_steering(fields: Mapping[str, Any]) -> None:
    """Reject fields that would choose upstream addresses, keys or a place in an engine. Raises BadRequest."""
    for name in fields:
        if name not in _STEERING and not name.startswith(STEERING_PREFIXES):
            continue
        if name in ENGINE_FIELDS:
            raise BadRequest(
                f"The field `{name}` is not accepted: {ENGINE_FIELDS[name]}.", param=name, code="field_not_allowed"
            )
        raise BadRequest(
            f"The field `{name}` is not accepted: upstream addresses and keys come from the gateway's configuration.",
            param=name,
            code="field_not_allowed",
        )


def _check_limits(body: ChatFields, messages: Sequence[Message]) -> None:
    if not body.model:
        raise BadRequest("`model` is empty; send `auto` or a name from GET /v1/models.", param="model")
    if not messages:
        raise BadRequest("`messages` is empty; send at least one message.", param="messages")
    if len(messages) > MAX_MESSAGES:
        raise BadRequest(
            f"`messages` has {len(messages)} entries; at most {MAX_MESSAGES} are accepted.", param="messages"
        )
    if body.n is not None and not 1 <= body.n <= MAX_CHOICES:
        raise BadRequest(f"`n` must be between 1 and {MAX_CHOICES}.", param="n")
    if body.max_tokens is not None and body.max_tokens < 1:
        raise BadRequest("`max_tokens` must be at least 1.", param="max_tokens")
    if body.max_completion_tokens is not None and body.max_completion_tokens < 1:
        raise BadRequest("`max_completion_tokens` must be at least 1.", param="max_completion_tokens")


def messages_digest(request: ChatRequest) -> int:
    """Return a hash of the messages that recognises a repeated request in this process: keyed as that of
    `conversation_key`. Of large messages both ends and the size are hashed.
    """
    if len(request.messages) == 1 and isinstance(content := request.messages[0].content, str):
        # A text's hash is made once, and this one's is known from there.
        return hash((request.messages[0].role, content))
    raw = b""
    for name in _ASKED:
        if name in request.fields:
            raw = bytes(request.fields[name])
            break
    if len(raw) > 2 * _DIGESTED_BYTES:
        return hash((len(raw), raw[:_DIGESTED_BYTES], raw[-_DIGESTED_BYTES:]))
    return hash(raw)


def _agreed(name: str, header: str | None, field: str | None) -> str | None:
    if header is not None and field is not None and header != field:
        raise BadRequest(f"The header `{name}` and the body field `{name}` differ; send one of them.", param=name)
    value = header if header is not None else field
    if value is not None and not 1 <= len(value) <= MAX_ID_CHARS:
        raise BadRequest(f"`{name}` must have 1 to {MAX_ID_CHARS} characters.", param=name)
    return value


def _session(headers: RequestHeaders, field: str | None) -> str | None:
    """Return the session that the caller names, or else the one of its agent, whose header is taken unchecked."""
    named = _agreed("x-session-id", headers.session_id, field)
    if named is not None:
        return named
    agents = headers.claude_session or headers.codex_session or headers.codex_session_id
    return agents[:MAX_ID_CHARS] if agents else None


def _tag(header: str | None, field: str | None) -> str:
    tag = _agreed("x-weighbridge-tag", header, field)
    if tag is None:
        return ""
    if TAG.fullmatch(tag) is None:
        raise BadRequest(f"`x-weighbridge-tag` must have {TAG_RULE}.", param="x-weighbridge-tag")
    return tag


def _end_user(*bodies: Mapping[str, msgspec.Raw]) -> str:
    """Return the end user that a body names, as it is booked; empty for none."""
    for name in _END_USER_FIELDS:
        for fields in bodies:
            given = _text_in(fields[name]) if name in fields else ""
            if given:
                return booked(given)
    return ""


def _text_in(raw: msgspec.Raw) -> str:
    """Return a field's text; empty for what is none, which is for the target to refuse."""
    try:
        return msgspec.json.decode(raw, type=str)
    except msgspec.DecodeError:
        return ""


def _tier(header: str | None, field: str | None, service_tier: str | None) -> Tier:
    tier = _agreed("x-tier", header, field)
    if tier is None:
        # Values that OpenAI adds later are its own business: they mean an answer now.
        return _SERVICE_TIERS.get(service_tier or "auto", "interactive")
    if tier not in _TIERS:
        raise BadRequest("`x-tier` must be `interactive` or `batch`.", param="x-tier")
    return "batch" if tier == "batch" else "interactive"


def _priority(header: str | None, field: str | None, service_tier: str | None) -> Priority:
    named = _agreed("x-priority", header, field)
    if named is None:
        return 1 if service_tier == "priority" else 0
    if named not in _PRIORITIES:
        raise BadRequest("`x-priority` must be `low`, `normal` or `high`.", param="x-priority")
    return _PRIORITIES[named]


def _images_in(parts: Iterable[Part]) -> int:
    return sum(part.type in _IMAGE_PARTS for part in parts)


def needs(request: ChatRequest) -> frozenset[Capability]:
    """Return the capabilities that a target needs to serve this request."""
    if request.operation != "chat":
        return frozenset({SERVED_BY[request.operation]})
    if not (request.tools or request.images or request.json_mode):
        return _NOTHING
    wanted: list[Capability] = []
    if request.tools:
        wanted.append("tools")
    if request.images:
        wanted.append("vision")
    if request.json_mode:
        wanted.append("json")
    return frozenset(wanted)


def decisive_parameters(request: ChatRequest) -> frozenset[str]:
    """Return the parameters sent that a target must be able to take, such as `n` and `logprobs`."""
    fields, needed = request.fields, request.text_needs
    if request.messages and request.messages[-1].role == "assistant":
        needed |= {BEGUN_ANSWER}
    if DECISIVE.isdisjoint(fields):
        return needed
    return needed | {name for name in DECISIVE & fields.keys() if is_said(name, fields[name])}


def stops_in(request: ChatRequest) -> int:
    """Return the number of stop sequences; those that cannot be read are the target's to refuse."""
    raw = request.fields.get("stop")
    try:
        found = None if raw is None else msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return 0
    return len(found) if isinstance(found, list) else int(bool(found))


def _text(message: Message) -> str:
    content = message.content
    if isinstance(content, str):
        return content
    return "\n".join(part.text for part in content or () if part.text)


def prompt_of(request: ChatRequest) -> Prompt:
    """Return the classifier's input: the last user message apart from the messages before and after it."""
    said = proposal = ""
    system: list[str] = []
    talk: list[str] = []
    asked: list[int] = []
    for message in request.messages:
        text = message.content if isinstance(message.content, str) else _text(message)
        if message.role in _INSTRUCTING:
            system.append(text)
            continue
        if message.role == "user":
            asked.append(len(talk))
            proposal, said = said, ""
        elif message.role == "assistant" and text:
            said = text
        talk.append(text)
    # A conversation without a user message is weighed by its last one.
    question = asked[-1] if asked else len(talk) - 1
    return Prompt(
        text=talk[question] if talk else "",
        system="\n".join(system),
        before=talk[asked[-2]] if len(asked) > 1 else "",
        history="\n".join(talk[:question]) if question > 0 else "",
        since="\n".join(talk[question + 1 :]),
        proposal=proposal,
        turns=max(len(asked), 1),
        tools=request.tools,
        images=request.images,
        json_mode=request.json_mode,
        effort=request.effort,
    )


def input_tokens(request: ChatRequest, prompt: Prompt) -> int:
    """Estimate the prompt's tokens, with framing, tool definitions and images."""
    if request.operation != "chat":
        return request.given_texts_tokens
    fields = request.fields
    tokens = PRIMING_TOKENS + MESSAGE_TOKENS * len(request.messages) + IMAGE_TOKENS * request.images
    tokens += request.given_tokens
    for text in (prompt.text, prompt.system, prompt.history, prompt.since):
        if text:
            tokens += estimate_tokens(text)
    if not _DEFINITIONS.isdisjoint(fields):
        for name in _DEFINITIONS & fields.keys():
            tokens += estimate_tokens(bytes(fields[name]).decode())
    for message in request.messages:
        if message.tool_calls or message.function_call or not isinstance(message.content, str):
            tokens += _beside_text(message)
    return tokens


def opening_tokens(request: ChatRequest, prompt: Prompt, tokens: int) -> int:
    """Return the share of the prompt's estimated `tokens` up to the last user message, without its tool loop."""
    since = request.messages[turn_start(request.messages) :]
    images = sum(_images_in(message.content) for message in since if isinstance(message.content, list))
    added = estimate_tokens(prompt.since) + MESSAGE_TOKENS * len(since) + IMAGE_TOKENS * images
    return max(1, tokens - added - sum(_beside_text(message) for message in since))


def most_input_tokens(request: ChatRequest, body_bytes: int, estimate: int) -> int:
    """Return an upper bound of the prompt's tokens: each token of text or sound takes at least one byte of the body.
    The estimate is added for the chat template's framing. A picture's tokens follow from its size in pixels, so a
    maximum is taken, also of an upload that may be one. For a file or unknown content only the target's context is a bound.
    """
    if request.as_written is not None:
        # Results of a provider's tools are part of the prompt, too.
        return _UNBOUNDED_TOKENS
    for message in request.messages:
        if isinstance(message.content, list) and any(part.type not in _MEASURABLE_PARTS for part in message.content):
            return _UNBOUNDED_TOKENS
        if message.audio and _names_audio(message):
            return _UNBOUNDED_TOKENS
    tools = _MOST_TOOL_FRAMING_TOKENS if request.tools else 0
    uploaded = len(request.upload.files) if request.operation in DRAWS and request.upload else 0
    pictures = request.images + uploaded
    return body_bytes + 2 * estimate + MOST_IMAGE_TOKENS * pictures + tools


def search_asked(options: msgspec.Raw) -> str:
    """Return the search that `web_search_options` asks for, as prices name it; empty for null."""
    try:
        asked = msgspec.json.decode(options)
    except msgspec.DecodeError:
        return ""
    if not isinstance(asked, dict):
        return ""
    # OpenAI's default.
    return SIZED_SEARCHES.get(str(asked.get("search_context_size")), SIZED_SEARCHES["medium"])


def media_of(request: ChatRequest) -> Media:
    """Return the kinds of media that the prompt may have tokens of; all of them for content that is not known."""
    if request.operation != "chat":
        return _HEARD if SERVED_BY[request.operation] == "transcription" else NO_MEDIA
    if request.as_written is not None:
        return MEDIA
    found = NO_MEDIA
    for message in request.messages:
        if isinstance(message.content, list):
            for part in message.content:
                found |= _MEDIA_OF_PART.get(part.type, MEDIA)
        if message.audio and _names_audio(message):
            found |= _HEARD
    return found


_HEARD: Final[Media] = frozenset({"audio"})
_SEEN: Final[Media] = frozenset({"image"})
_MEDIA_OF_PART: Final[Mapping[str, Media]] = (
    dict.fromkeys(_MEASURABLE_PARTS, NO_MEDIA) | dict.fromkeys(_IMAGE_PARTS, _SEEN) | {"input_audio": _HEARD}
)


def _names_audio(message: Message) -> bool:
    """Return True for an answer of before that was spoken: its sound is named, and is not in the body."""
    return bytes(message.audio) not in {b"", _NULL}


def _beside_text(message: Message) -> int:
    """Estimate the tokens of tool calls in the history, and of audio and files."""
    tokens = 0
    for calls in (message.tool_calls, message.function_call):
        if calls:
            tokens += estimate_tokens(bytes(calls).decode())
    if isinstance(message.content, list):
        media = sum(len(bytes(part.input_audio)) + len(bytes(part.file)) for part in message.content)
        tokens += media // CHARS_PER_MEDIA_TOKEN
    return tokens


def conversation_key(request: ChatRequest, prompt: Prompt) -> Hashable:
    """Return a key of the conversation within its team: the caller's session id, or the hash of its beginning.
    Python's string hash is keyed at random in each process, so nobody can aim at another conversation, and a chance
    collision costs a wrong guess about a cache, no more.
    """
    if request.session_id is not None:
        return request.session_id
    first = ""
    for message in request.messages:
        if message.role == "user":
            first = message.content if isinstance(message.content, str) else _text(message)
            break
    # Requests with the same cache key share a beginning more often than by chance, but one key may serve many conversations.
    return hash((request.cache_key, prompt.system, first))


def turn_key(prompt: Prompt) -> Hashable:
    """Return a key of the user turn within its conversation: its number and its text, by a hash as above."""
    return hash((prompt.turns, prompt.text))


def turn_start(messages: Sequence[Message]) -> int:
    """Return the index after the last user message, where its loop begins; the number of messages when there is none."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].role == "user":
            return index + 1
    return len(messages)


def is_replaceable(request: ChatRequest) -> bool:
    """Return True when another model could answer the request. False for embeddings: vectors of different models do
    not mix.
    """
    return request.operation == "chat"
