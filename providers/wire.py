"""OpenAI's chat and embeddings wire format, of requests and of replies.

Only what routing needs is decoded; everything else travels as the bytes it came in.
"""

import contextlib
import json
import re
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

import msgspec

from classifier.known_models import EFFORTS
from cost.prices import ServiceTier
from cost.usage_names import BESIDE
from providers.call_arguments import with_arguments
from providers.errors import CannotCarry, MalformedReply, StreamCut
from providers.finish_reasons import USUAL, meaning_of
from providers.message_roles import suited
from providers.provider_tools import AsWritten, model_of_dialect
from providers.quirks import Quirks, tool_schemas
from providers.target import OWN_ENGINES, Capability, Deployment, Tier
from providers.thoughts import Thought, needs_thoughts, with_thoughts
from providers.tool_schemas import ToolSchemas, fitting_answer, fitting_tools
from providers.upload import Upload
from providers.upstream_faults import error_in_reply
from settings.decoding import DECODE_ERRORS


class Part(msgspec.Struct, frozen=True):
    """One part of a message's content; other fields travel untouched in the raw body."""

    type: str
    text: str | None = None
    input_audio: msgspec.Raw = msgspec.Raw()
    file: msgspec.Raw = msgspec.Raw()


class Message(msgspec.Struct, frozen=True):
    """One message; its raw parts are measured, never read."""

    role: str
    content: str | list[Part] | None = None
    tool_calls: msgspec.Raw = msgspec.Raw()
    function_call: msgspec.Raw = msgspec.Raw()
    tool_call_id: msgspec.Raw = msgspec.Raw()
    audio: msgspec.Raw = msgspec.Raw()


Operation = Literal[
    "chat",
    "embeddings",
    "rerank",
    "moderations",
    "images",
    "image_edits",
    "image_variations",
    "speech",
    "transcriptions",
    "translations",
]
"""The API that a request uses; a target serves one of them."""
PATHS: Final[Mapping[Operation, str]] = {
    "chat": "chat/completions",
    "embeddings": "embeddings",
    "rerank": "rerank",
    "moderations": "moderations",
    "images": "images/generations",
    "image_edits": "images/edits",
    "image_variations": "images/variations",
    "speech": "audio/speech",
    "transcriptions": "audio/transcriptions",
    "translations": "audio/translations",
}
"""URL path of each operation, below a deployment's `base_url`."""
SERVED_BY: Final[Mapping[Operation, Capability]] = {
    "embeddings": "embeddings",
    "rerank": "rerank",
    "moderations": "moderation",
    "images": "images",
    "image_edits": "images",
    "image_variations": "images",
    "speech": "speech",
    "transcriptions": "transcription",
    "translations": "transcription",
}
"""The capability that each operation but chat needs."""
DRAWS: Final[frozenset[Operation]] = frozenset(name for name, able in SERVED_BY.items() if able == "images")
"""The operations that answer with pictures."""
METERED: Final[frozenset[Operation]] = frozenset(SERVED_BY) - {"embeddings"}
"""The operations whose body and answer pass as they are, booked by the provider's own units."""

_TEXT_PATH: Final = "completions"

Priority = Literal[-1, 0, 1]
"""Low, normal, high: the order among one team's requests of one tier."""


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed request. `fields` maps the caller's body fields to raw JSON, without the gateway's own fields.

    A request for anything but a chat has no messages, and its tokens are counted when it is parsed.
    """

    fields: dict[str, msgspec.Raw]
    model: str
    messages: list[Message]
    alias: str = ""
    """The name that was sent, where it is one for `auto`; `model` is `auto` then."""
    operation: Operation = "chat"
    given_texts_tokens: int = 0
    """Estimated tokens of all texts to embed, rank and the like."""
    longest_tokens: int = 0
    """Estimated tokens of the longest of them, which has to fit the target's context."""
    unit: str = ""
    """The unit that it uses beside tokens, as `cost.prices.UNIT` names it; empty for none."""
    units_milli: int = 0
    """The amount of it, in thousandths: as asked for, or likely."""
    most_units_milli: int = 0
    """The most of it, in thousandths."""
    stream: bool = False
    include_usage: bool = False
    """The caller asked for the usage chunk (`stream_options.include_usage`)."""
    max_output_tokens: int | None = None
    n: int = 1
    tools: int = 0
    images: int = 0
    json_mode: bool = False
    tier: Tier = "interactive"
    team_id: str | None = None
    """The team the caller claims; it must be the key's."""
    session_id: str | None = None
    tag: str = ""
    """The caller's own booking tag, beside its team; empty for none."""
    end_user: str = ""
    """The caller's own user that the request is for, as booked; empty for none."""
    priority: Priority = 0
    cache_key: str | None = None
    """The caller's own name for what its prompts share (`prompt_cache_key`)."""
    translated: bool = False
    """True when the caller spoke another dialect, so that chat's fields are the gateway's choice."""
    for_engines: Mapping[str, msgspec.Raw] = MappingProxyType({})
    """Fields beside `fields` for engines of one's own, as other hosts refuse them."""
    for_openai: Mapping[str, msgspec.Raw] = MappingProxyType({})
    """Fields beside `fields` for OpenAI itself and Azure."""
    for_reasoners: Mapping[str, msgspec.Raw] = MappingProxyType({})
    """Fields beside `for_openai` for its models that reason; the others refuse them."""
    for_anthropic: Callable[[], Mapping[str, Any]] | None = None
    """Makes the decoded fields that stand in place of those in `fields` for targets that speak Anthropic's dialect."""
    in_messages: Callable[[], AsWritten] | None = None
    """Makes the request as its caller wrote it in Anthropic's dialect, for Anthropic itself."""
    claudes_only: tuple[str, ...] = ()
    """The caller's parameters that are in `for_anthropic` alone."""
    left_out: tuple[str, ...] = ()
    """The caller's parameters that no target is sent, as names that may stand in a header."""
    for_text: Mapping[str, msgspec.Raw] | None = None
    """The whole body for engines of one's own that complete a text as it is, in place of `fields`; None for a chat."""
    text_needs: frozenset[str] = frozenset()
    """Abilities that only some of those engines have, of `providers.parameters.TEXT`."""
    given_tokens: int = 0
    """Tokens of a prompt that came as numbers."""
    as_written: AsWritten | None = None
    """The request in its caller's own dialect, where it has what chat cannot say; `fields` are then for nobody but us."""
    effort: str = ""
    """The reasoning effort that is asked for, as one of `classifier.known_models.EFFORTS`; empty for the model's usual one."""
    service_tier: ServiceTier | None = None
    """The provider's service tier that the caller asked for; None for the usual one."""
    upload: Upload | None = None
    """The file that goes on with the fields, as a form."""
    thoughts: Mapping[int, Thought] = MappingProxyType({})
    """The thoughts behind the assistant's messages, by their number among its own, for targets that take them."""
    own_only: bool = False
    """True where nobody but own engines may be asked, and so whoever compares or judges its answer, too."""


WireUsage = dict[str, Any]
"""Usage object as sent, in chat's names; every figure is untrusted until `cost.usage` has normalised it."""

EVENTS_TYPE: Final = "text/event-stream"


class UsedUnits(msgspec.Struct, frozen=True):
    """An upstream's usage beside tokens."""

    unit: str
    milli: int


class Run(msgspec.Struct, frozen=True):
    """A number of events in a row that differ in nothing but the piece of text that each says."""

    before: bytes
    """The payload of each up to its piece."""
    pieces: bytes
    """The pieces, as JSON writes them between quotation marks, with a line end between each two."""
    after: bytes
    """The payload of each behind its piece, without usage."""
    tokens: int
    """The number of them that have text."""


class Event(msgspec.Struct, frozen=True):
    """One JSON payload of a reply: an SSE event's data, or the whole body when not streaming."""

    payload: bytes
    """A JSON object as the upstream wrote it, on one line and with nothing before its first key: `{"...`.

    Only an empty object begins otherwise. `fields_of` takes it apart.
    """
    token: bool
    """True when it has generated content (text, refusal, reasoning or a tool call); a role alone is none."""
    choices: int
    """Number of choices; 0 for the separate usage chunk."""
    text_chars: int
    """Characters of generated content, for an estimate when the usage never comes."""
    usage: WireUsage | None
    finished: bool
    """True when a choice has a finish_reason."""
    service_tier: str | None = None
    """The service tier that served it, where the upstream says so."""
    words: str = ""
    """The text of an event that says nothing but a piece of one answer's text, as most do: a writer needs no more of it.
    Empty for all others.
    """
    kind: str = ""
    """The type of an event in another dialect than chat's; empty in chat's."""
    native: bytes = b""
    """The event as its upstream wrote it in the caller's own dialect, where `payload` is what it says in chat's; it may say
    nothing there.
    """
    units: UsedUnits | None = None
    media_type: str = ""
    """The media type of a payload that passes as it is; empty for JSON."""
    run: Run | None = None
    """The upstream's events that this one stands for, where it says what several said."""
    odd: bool = False
    """True for what `providers.regular_replies` has to look at: calls of tools, and what has another form than OpenAI's."""


class _Function(msgspec.Struct):
    name: Any = None
    arguments: Any = None


class _ToolCall(msgspec.Struct):
    function: _Function | None = None


class _Delta(msgspec.Struct):
    """A chunk's delta or a whole message. Types are checked later: one odd value must not break a stream."""

    content: Any = None
    refusal: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    reasoning_details: Any = None
    tool_calls: list[_ToolCall] | None = None
    function_call: _Function | None = None
    audio: Any = None
    thinking_blocks: Any = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: Any = None
    index: Any = 0
    logprobs: Any = None


class _Reply(msgspec.Struct):
    """A chunk, a whole completion, or an error object in a stream that began with 200."""

    choices: list[_Choice] | None = None
    usage: WireUsage | None = None
    error: Any = None
    service_tier: Any = None


class _Embeddings(msgspec.Struct):
    """A reply to embeddings, whose vectors stay raw, or an error object."""

    data: list[msgspec.Raw] | None = None
    usage: Any = None
    error: Any = None


class _ReplyAnyUsage(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None
    service_tier: Any = None


EMPTY_OBJECT: Final = b"{}"
_FIRST: Final = (0, None)

# As numbers: a byte is found several times faster than a piece of bytes.
_LF, _CR = b"\n\r"
_BOM = b"\xef\xbb\xbf"
_SPACES_FOR_LINE_ENDS = bytes.maketrans(b"\r\n", b"  ")
# Reads one escape at a time, so that the `u` of an escaped backslash is never taken for one.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<lone>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)

_decode = msgspec.json.Decoder(_Reply).decode
_decode_embeddings = msgspec.json.Decoder(_Embeddings).decode
_decode_any_usage = msgspec.json.Decoder(_ReplyAnyUsage).decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def completes_text(request: ChatRequest, deployment: Deployment) -> bool:
    """Return True when the deployment is to complete a text rather than to answer a chat."""
    return request.for_text is not None and deployment.kind in OWN_ENGINES


def path_of(request: ChatRequest, deployment: Deployment) -> str:
    """Return the URL path of a call, below the deployment's `base_url`, or below the address of its own dialect."""
    if request.as_written is not None:
        return request.as_written.dialect
    if deployment.speaks_messages:
        return "messages"
    return _TEXT_PATH if completes_text(request, deployment) else PATHS[request.operation]


def text_as_chat(payload: bytes, *, stream: bool) -> bytes:
    """Return a completed text as a chat completion, so that whatever follows knows one shape; anything else as it is."""
    try:
        reply = json.loads(payload)
    except (ValueError, RecursionError):
        return payload
    choices = reply.get("choices") if isinstance(reply, dict) else None
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and "text" in choice:
            choice["delta" if stream else "message"] = {"content": choice.pop("text")}
    return json.dumps(reply).encode()


def decode_event(payload: bytes, deployment_id: str, secret: str | None = None) -> Event:
    """Return one JSON payload as an Event. Raises MalformedReply, or the UpstreamError for an error object in it."""
    # True where `words` would not be all that is to be written.
    has_more = False
    try:
        reply: _Reply | _ReplyAnyUsage = _decode(payload)
    except DECODE_ERRORS:
        has_more = True
        payload = _as_text(payload.removeprefix(_BOM))
        _refuse_bare_error(payload, deployment_id, secret)
        payload, reply = _decode_leniently(payload, deployment_id)
    payload = on_one_line(payload)
    if reply.error is not None:
        raise error_in_reply(reply.error, deployment_id, secret)
    usage = reply.usage if isinstance(reply.usage, dict) else None
    choices = reply.choices
    served = reply.service_tier
    tier = served if type(served) is str else None
    if not choices:
        _refuse_bare_error(payload, deployment_id, secret)
        usage, payload = _with_beside(usage, payload, deployment_id, secret)
        return Event(payload, False, 0, 0, usage, False, tier)
    token = finished = odd = False
    chars = 0
    for choice in choices:
        if choice.finish_reason is not None or choice.message is not None:
            ended, unusual = _end_of(choice, deployment_id)
            finished, odd = finished or ended, odd or unusual
        part = choice.delta or choice.message
        if part is None:
            continue
        content = part.content
        if content:
            token = True
            odd = odd or type(content) is not str
            chars += len(content) if type(content) is str else _parts_chars(content)
        if (
            part.tool_calls
            or part.reasoning_content
            or part.reasoning
            or part.refusal
            or part.function_call
            or part.audio
            or part.reasoning_details
        ):
            token = has_more = True
            odd = odd or part.tool_calls is not None or part.function_call is not None
            chars += _non_content_chars(part)
    if not token:
        usage, payload = _with_beside(usage, payload, deployment_id, secret)
    words = "" if finished or has_more or not chars else _words_of(choices)
    return Event(payload, token, len(choices), chars, usage, finished, tier, words, odd=odd)


def _with_beside(
    usage: WireUsage | None, payload: bytes, deployment_id: str, secret: str | None
) -> tuple[WireUsage | None, bytes]:
    """Return the usage and payload of a chunk without text, with what a host tells in an object of its own put in its usual place.
    Raises the UpstreamError for an error there.
    """
    for name, written in _BESIDE:
        if written not in payload:
            continue
        try:
            chunk = msgspec.json.decode(payload, type=dict[str, Any])
        except DECODE_ERRORS:
            continue
        found = chunk.get(name)
        if isinstance(found, dict):
            if found.get("error"):
                raise error_in_reply(found["error"], deployment_id, secret)
            told = found.get("usage")
            if usage is None and isinstance(told, dict):
                usage, payload = told, msgspec.json.encode(chunk | {"usage": told})
    return usage, payload


def _end_of(choice: _Choice, deployment_id: str) -> tuple[bool, bool]:
    """Return whether a choice ended, and whether it says so in other words than OpenAI's. Raises StreamCut for one that broke off."""
    reason = choice.finish_reason
    if reason is None or (type(reason) is str and reason in USUAL):
        return reason is not None, reason is None
    meaning = meaning_of(reason)
    if meaning == "cut":
        raise StreamCut(
            f"The upstream broke off its answer (`finish_reason` {str(reason)[:64]!r}).", deployment_id=deployment_id
        )
    return meaning != "on", True


_ERROR: Final = b'"error"'
_BESIDE: Final = tuple((name, f'"{name}"'.encode()) for name in BESIDE)


def _words_of(choices: list[_Choice]) -> str:
    """Return the text of the one choice that has nothing but text; empty for all others."""
    first = choices[0]
    part = first.delta
    if len(choices) > 1 or part is None or first.logprobs is not None or first.index not in _FIRST:
        return ""
    return part.content if type(part.content) is str and not part.thinking_blocks else ""


def decode_embeddings(payload: bytes, deployment_id: str, secret: str | None = None) -> Event:
    """Return a whole reply to a request for embeddings, as one event. Raises as `decode_event` does."""
    payload = payload.removeprefix(_BOM)
    try:
        reply = _decode_embeddings(payload)
    except DECODE_ERRORS as error:
        raise MalformedReply("The upstream's answer is not one of embeddings.", deployment_id=deployment_id) from error
    if reply.error is not None:
        raise error_in_reply(reply.error, deployment_id, secret)
    payload = on_one_line(payload)
    usage = reply.usage if isinstance(reply.usage, dict) else {}
    total, prompt = usage.get("total_tokens"), usage.get("prompt_tokens")
    # Nothing is generated, and most hosts do not say so; some tell the total alone.
    told = usage | {"prompt_tokens": total if prompt is None else prompt, "completion_tokens": 0}
    return Event(payload, False, len(reply.data or ()), 0, told if reply.usage is not None else None, True)


def _refuse_bare_error(payload: bytes, deployment_id: str, secret: str | None) -> None:
    """Raise the UpstreamError for an error that no `error` is around, as of SGLang and Mistral, or an array, as of Gemini."""
    if _ERROR not in payload:
        return
    try:
        found = msgspec.json.decode(payload)
    except DECODE_ERRORS:
        return
    first = found[0] if isinstance(found, list) and found else found
    if isinstance(first, dict) and (first.get("object") == "error" or (found is not first and "error" in first)):
        raise error_in_reply(first, deployment_id, secret)


def _decode_leniently(payload: bytes, deployment_id: str) -> tuple[bytes, _Reply | _ReplyAnyUsage]:
    """Return a reply with a usage of any type, and its payload: neither an odd usage nor a null among choices or calls must
    cost a caller the answer. Raises MalformedReply.
    """
    whole = _without_lone_surrogates(payload)
    try:
        with contextlib.suppress(msgspec.ValidationError):
            return payload, _decode_any(whole)
        payload = _without_odd_values(whole)
        return payload, _decode_any(payload)
    except DECODE_ERRORS as error:
        raise MalformedReply(
            "The upstream sent an event that is not a chat completion.", deployment_id=deployment_id
        ) from error


def _decode_any(payload: bytes) -> _Reply | _ReplyAnyUsage:
    with contextlib.suppress(*DECODE_ERRORS):
        return _decode(payload)
    return _decode_any_usage(payload)


def _without_odd_values(payload: bytes) -> bytes:
    """Return a reply without what is no object where there must be one. Raises msgspec.DecodeError for what is no reply."""
    reply = msgspec.json.decode(payload, type=dict[str, Any])
    choices = reply.get("choices")
    if not isinstance(choices, list):
        return payload
    kept = [choice for choice in choices if isinstance(choice, dict)]
    for choice in kept:
        for name in ("delta", "message"):
            said = choice.get(name)
            if not isinstance(said, dict):
                choice.pop(name, None)
                continue
            calls = said.get("tool_calls")
            calls = [calls] if isinstance(calls, dict) else calls
            if isinstance(calls, list):
                said["tool_calls"] = [call for call in calls if isinstance(call, dict)]
                for call in said["tool_calls"]:
                    if not isinstance(call.get("function"), dict):
                        call.pop("function", None)
            else:
                said.pop("tool_calls", None)
            if not isinstance(said.get("function_call"), dict):
                said.pop("function_call", None)
    return msgspec.json.encode({**reply, "choices": kept})


def on_one_line(payload: bytes) -> bytes:
    """Return the payload on one line, in UTF-8: JSON strings have no raw line ends, so all of them may become spaces."""
    if not payload.isascii():
        payload = _as_text(payload)
    if payload[:2] == b'{"' and _LF not in payload and _CR not in payload:
        return payload
    text = payload.translate(_SPACES_FOR_LINE_ENDS).strip()
    return b"{" + text[1:].lstrip()


def _as_text(payload: bytes) -> bytes:
    """Return the payload with a replacement character for each byte that is no letter: one must not cost the whole answer."""
    try:
        payload.decode()
    except UnicodeDecodeError:
        return payload.decode(errors="replace").encode()
    return payload


def _without_lone_surrogates(payload: bytes) -> bytes:
    r"""Return half of a surrogate pair (`\ud83d`) becomes the replacement character, for decoding only.

    Engines that cut an emoji between two events write such halves; the caller's client joins them.
    """
    if b"\\ud" not in payload and b"\\uD" not in payload:
        return payload
    return _ESCAPE.sub(lambda found: found[0] if found["lone"] is None else b"\\ufffd", payload)


def fields_of(payload: bytes) -> dict[str, msgspec.Raw]:
    """Return an event's payload as a mapping of its fields to raw JSON. Never fails on the payload of an Event."""
    try:
        return _decode_fields(payload)
    except msgspec.DecodeError:
        # Half a letter, see `_without_lone_surrogates`: Python's own decoder keeps it as it is.
        found = json.loads(payload.decode(errors="replace"))
        return {name: msgspec.Raw(json.dumps(value).encode()) for name, value in found.items()}


def _parts_chars(content: Any) -> int:
    """Return characters of a list of content parts, which some upstreams send in place of text."""
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    # Mistral's reasoning is a part of its own, with parts of text in it.
    inner = [each for part in parts if isinstance(told := part.get("thinking"), list) for each in told]
    texts = [part.get("text") for part in (*parts, *inner) if isinstance(part, dict)]
    return sum(len(text) for text in texts if isinstance(text, str))


def _non_content_chars(part: _Delta) -> int:
    """Return characters generated beside the content: refusals, reasoning, tool calls and what is spoken."""
    reasoning = part.reasoning_content or part.reasoning
    chars = sum(len(text) for text in (part.refusal, reasoning) if isinstance(text, str))
    if not reasoning:
        # Where both are sent, they say the same.
        chars += _details_chars(part.reasoning_details)
    chars += sum(_function_chars(call.function) for call in part.tool_calls or ())
    if isinstance(part.audio, dict) and isinstance(spoken := part.audio.get("transcript"), str):
        chars += len(spoken)
    return chars + _function_chars(part.function_call)


def _details_chars(details: Any) -> int:
    """Return characters of reasoning as OpenRouter details it: texts and summaries, and no encrypted data."""
    parts = [part for part in details if isinstance(part, dict)] if isinstance(details, list) else []
    return sum(len(text) for part in parts for text in (part.get("text"), part.get("summary")) if isinstance(text, str))


def _function_chars(function: _Function | None) -> int:
    if function is None:
        return 0
    return sum(len(value) for value in (function.name, function.arguments) if isinstance(value, str))


def completion_as_chunk(payload: bytes, deployment_id: str) -> bytes:
    """Return a whole completion as one chunk, for an upstream that ignored `stream: true`. Raises MalformedReply."""
    try:
        # Python's own decoder: it takes half a letter, as callers' clients do.
        reply = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise MalformedReply(
            "The upstream answered with something other than JSON.", deployment_id=deployment_id
        ) from error
    choices = reply.get("choices") if isinstance(reply, dict) else None
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise MalformedReply("The upstream's answer has no choices.", deployment_id=deployment_id)
    reply["object"] = "chat.completion.chunk"
    reply["choices"] = [_as_delta(choice) for choice in choices]
    return json.dumps(reply).encode()


def _as_delta(choice: dict[str, Any]) -> dict[str, Any]:
    choice = dict(choice)
    message = choice.pop("message", None)
    delta = dict(message) if isinstance(message, dict) else {}
    calls = delta.get("tool_calls")
    if isinstance(calls, list):
        # Only chunks number their tool calls.
        delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(calls) if isinstance(call, dict)]
    choice["delta"] = delta
    return choice


_ASK_USAGE: Final[Mapping[str, Any]] = {"include_usage": True}
# vLLM counts on every chunk when asked, so an interrupted stream is metered exactly.
_ASK_USAGE_ALWAYS: Final[Mapping[str, Any]] = {"include_usage": True, "continuous_usage_stats": True}
_decode_options = msgspec.json.Decoder(dict[str, msgspec.Raw] | None).decode


def field_of(request: ChatRequest, name: str, deployment_id: str) -> Any:
    """Return a field of the caller's body, decoded in full; None when absent.

    Raises CannotCarry for JSON that cannot be decoded, such as numbers out of range.
    """
    raw = request.fields.get(name)
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw)
    except DECODE_ERRORS as error:
        # Numbers out of range, bytes that are no UTF-8, endless nesting: what is passed on raw is not looked at.
        raise CannotCarry(
            f"The parameter {name[:64]!r} cannot be read.",
            deployment_id=deployment_id,
            status=400,
            param=name[:64],
            code="invalid_value",
        ) from error


def upstream_body(
    request: ChatRequest,
    deployment: Deployment,
    engine_fields: Mapping[str, Any] = MappingProxyType({}),
    dropped: Collection[str] = (),
) -> bytes:
    """Return the caller's body with the upstream's model name; a stream is always asked for its usage.

    Raw values are copied as they came: messages are not decoded and encoded again. `engine_fields` stand in the place of
    the caller's, and `dropped` are left out.
    """
    if request.as_written is not None:
        return _body_as_written(request, request.as_written, deployment, engine_fields, dropped)
    given: Mapping[str, msgspec.Raw] = request.fields
    if completes_text(request, deployment) and request.for_text is not None:
        given = request.for_text
    fields: dict[str, Any] = {**given, "model": deployment.upstream_model}
    if engine_fields:
        fields.update(engine_fields)
    for name in dropped:
        fields.pop(name, None)
    if request.translated:
        _suit(fields, request, deployment)
    quirks = deployment.quirks
    if request.operation == "chat" and "messages" in fields:
        _suit_model(fields, request, deployment)
    if quirks.leaves_out or quirks.renames:
        _suit_names(fields, quirks)
    if request.stream and request.operation == "chat":
        asked = request.fields.get("stream_options")
        options = (_decode_options(asked) if asked is not None else None) or {}
        fields["stream"] = True
        if "stream_options" not in dropped:
            usage = _ASK_USAGE_ALWAYS if quirks.stream_usage == "always" else _ASK_USAGE
            fields["stream_options"] = {**options, **usage}
    return msgspec.json.encode(fields)


_CALLS: Final = b'"tool_calls"'


def _think_again(fields: dict[str, Any], request: ChatRequest, deployment: Deployment) -> None:
    messages = fields.get("messages")
    if not isinstance(messages, msgspec.Raw):
        return
    try:
        decoded = msgspec.json.decode(messages, type=list[Any])
    except DECODE_ERRORS:
        # What is passed on raw is not looked at: the target will say what is wrong.
        return
    with_thoughts(decoded, request.thoughts, deployment)
    fields["messages"] = decoded


def _body_as_written(
    request: ChatRequest,
    written: AsWritten,
    deployment: Deployment,
    own_fields: Mapping[str, Any],
    dropped: Collection[str],
) -> bytes:
    """Return the body in the caller's own dialect. `own_fields` and `dropped` go by chat's names."""
    fields: dict[str, Any] = {**written.fields, "model": model_of_dialect(deployment), "stream": request.stream}
    if deployment.quirks.reasons:
        fields.update(written.for_reasoners)
    for name in dropped:
        fields.pop(name, None)
    longest = next((own_fields[name] for name in (_MAX_TOKENS, _MAX_COMPLETION_TOKENS) if name in own_fields), None)
    if longest is not None:
        fields[_LONGEST[written.dialect]] = longest
    if "service_tier" in own_fields and written.dialect == "responses":
        fields["service_tier"] = own_fields["service_tier"]
    return msgspec.json.encode(fields)


_LONGEST: Final = {"responses": "max_output_tokens", "messages": "max_tokens"}
CONTINUE_FIELDS: Final[Mapping[str, msgspec.Raw]] = {
    "continue_final_message": msgspec.Raw(b"true"),
    "add_generation_prompt": msgspec.Raw(b"false"),
}
"""What makes an engine go on with the assistant's last message rather than answer it."""
_MAX_COMPLETION_TOKENS: Final = "max_completion_tokens"
# Deprecated by OpenAI, whose newer models refuse it; the name that every other host knows.
_MAX_TOKENS: Final = "max_tokens"


def _suit(fields: dict[str, Any], request: ChatRequest, deployment: Deployment) -> None:
    """Choose among chat's fields those that this deployment takes, for a caller that did not choose them."""
    if deployment.kind in OWN_ENGINES:
        fields.update(request.for_engines)
    quirks = deployment.quirks
    if not quirks.takes_notes:
        return
    fields.update(request.for_openai)
    if quirks.reasons:
        fields.update(request.for_reasoners)
    if quirks.longest == _MAX_COMPLETION_TOKENS and _MAX_TOKENS in fields:
        fields[_MAX_COMPLETION_TOKENS] = fields.pop(_MAX_TOKENS)


def _suit_model(fields: dict[str, Any], request: ChatRequest, deployment: Deployment) -> None:
    """Write roles, thoughts, an answer that is begun, and the effort as this model and its host take them."""
    quirks = deployment.quirks
    if quirks.changes_turns and (messages := suited(fields["messages"], request.messages, quirks)) is not None:
        fields["messages"] = messages
    arguments = with_arguments(fields["messages"], request.messages, any_text=quirks.any_arguments)
    if arguments is not None:
        fields["messages"] = arguments
    if request.thoughts or (needs_thoughts(deployment) and _CALLS in bytes(fields["messages"])):
        _think_again(fields, request, deployment)
    if quirks.prefill == "continue" and _is_prefilled(request):
        fields.update(CONTINUE_FIELDS)
    if quirks.tool_schemas:
        _suit_schemas(fields, tool_schemas(quirks.tool_schemas))
    if quirks.one_call and bytes(fields.get("tools", b"")) not in _NO_CALLS:
        fields["parallel_tool_calls"] = msgspec.Raw(b"false")
    if request.effort == "none" and quirks.thinking_off:
        if fields.keys().isdisjoint(quirks.thinking_off):
            fields.update(quirks.thinking_off)
        fields.pop("reasoning_effort", None)
    elif quirks.efforts and "reasoning_effort" in fields:
        fields["reasoning_effort"] = _closest_effort(fields["reasoning_effort"], quirks.efforts)


def _suit_schemas(fields: dict[str, Any], rules: ToolSchemas) -> None:
    """Write schemas of tools, and of the answer where its host holds that to the same, as they are taken."""
    tools = bytes(fields.get("tools", b""))
    if tools not in _NO_CALLS and (fitting := fitting_tools(tools, rules)) is not None:
        fields["tools"] = msgspec.Raw(fitting)
    asked = fields.get("response_format")
    if (
        rules.answers
        and isinstance(asked, msgspec.Raw)
        and (fitting := fitting_answer(bytes(asked), rules)) is not None
    ):
        fields["response_format"] = msgspec.Raw(fitting)


def _is_prefilled(request: ChatRequest) -> bool:
    """Return True for a caller of Anthropic's dialect that began the answer itself. In chat, and for OpenAI, the assistant's last
    message is a turn like others.
    """
    last = request.messages[-1] if request.messages else None
    return (
        request.in_messages is not None
        and last is not None
        and last.role == "assistant"
        and bytes(last.tool_calls) in _NO_CALLS
    )


_NO_CALLS: Final = frozenset({b"", b"null", b"[]"})


def closest_effort(said: str, efforts: tuple[str, ...]) -> str:
    """Return the model's word for an effort like this; one that nobody knows is the target's to refuse."""
    if said in efforts or said not in EFFORTS:
        return said
    wanted = EFFORTS.index(said)
    return min(efforts, key=lambda each: (abs(EFFORTS.index(each) - wanted), EFFORTS.index(each)))


def _closest_effort(raw: msgspec.Raw, efforts: tuple[str, ...]) -> msgspec.Raw:
    said = bytes(raw).strip(b'" \n').decode(errors="replace")
    closest = closest_effort(said, efforts)
    return raw if closest == said else msgspec.Raw(b'"%b"' % closest.encode())


def _suit_names(fields: dict[str, Any], quirks: Quirks) -> None:
    """Leave out values that are refused though they ask for what comes anyway, and give parameters the host's own names."""
    for name, values in quirks.leaves_out.items():
        if name in fields and any(bytes(fields[name]) == str(value).encode() for value in values):
            del fields[name]
    for name, other in quirks.renames.items():
        if name in fields:
            fields[other] = fields.pop(name)


_TOLD: Final = frozenset({"reasoning_effort", "top_k", "verbosity"})
"""Fields that are told when they are left out; the rest are notes that change nothing in an answer."""


def speaks_anthropic(deployment: Deployment) -> bool:
    """Return True for a Claude, whoever hosts it: cache marks, thinking and the like reach it."""
    return bool(deployment.quirks.thinking)


def untaken(request: ChatRequest, deployment: Deployment) -> tuple[str, ...]:
    """List the parameters of a caller of another dialect that this deployment is not sent, so that the caller is told."""
    if not request.translated or request.as_written is not None:
        return ()
    if request.in_messages is not None and deployment.speaks_messages:
        return ()
    if speaks_anthropic(deployment):
        return request.left_out + tuple(sorted({"verbosity"} & request.for_reasoners.keys()))
    if not (request.for_engines or request.for_reasoners):
        return request.left_out + request.claudes_only
    asked = _TOLD & (request.for_engines.keys() | request.for_reasoners.keys())
    if asked:
        fields: dict[str, Any] = {}
        _suit(fields, request, deployment)
        asked -= fields.keys()
    return request.left_out + request.claudes_only + tuple(sorted(asked))
