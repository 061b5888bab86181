"""The only module that calls litellm, for providers that speak neither OpenAI's API nor Anthropic's (Bedrock, Vertex, ...).

Importing litellm costs seconds and much memory, so nothing here imports it before `prepare`, and `prepare` does it in a
thread. Fields reach litellm by an allow-list: many of its keyword arguments choose the address, the credentials or the
callbacks of the gateway's own calls.
"""

import asyncio
import contextlib
import importlib
import json
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any

import msgspec

from providers.cache_marks import with_cache_marks
from providers.call_arguments import mend_arguments
from providers.errors import (
    AnswerLost,
    CannotCarry,
    ConnectFailed,
    MalformedReply,
    StreamCut,
    UpstreamError,
    UpstreamRefusedUs,
    UpstreamTimeout,
)
from providers.media_links import refuse_links_in
from providers.parameters import DECISIVE, MINOR, NOTES, is_said
from providers.quirks import tool_schemas
from providers.refusals import SERVER_FAULT
from providers.regular_replies import RegularStream, regular_answer
from providers.target import Deployment
from providers.thoughts import with_thoughts
from providers.tool_schemas import fitting_tools
from providers.upstream import UpstreamCall, UpstreamStream, took_too_long
from providers.upstream_faults import error_of_status, original_of
from providers.wire import Event, closest_effort, decode_event, field_of, speaks_anthropic

# What of a caller's body goes to litellm, as it is. Anything else is refused by name.
PASSED_FIELDS = frozenset(
    {
        "audio",
        "frequency_penalty",
        "function_call",
        "functions",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "modalities",
        "n",
        "parallel_tool_calls",
        "prediction",
        "presence_penalty",
        "reasoning_effort",
        "response_format",
        "seed",
        "stop",
        "temperature",
        "thinking",
        "tool_choice",
        "tools",
        "top_k",
        "top_logprobs",
        "top_p",
        "user",
        "verbosity",
        "web_search_options",
    }
)
# Ours to set, or notes that change nothing in an answer. litellm reads `metadata` as instructions to itself.
_DROPPED_FIELDS = NOTES | {"model", "stream"}

_JUDGED = (DECISIVE | MINOR) - {"top_k"}
"""The parameters that litellm says of whether a model takes them: OpenAI's own."""
_EFFORT = "reasoning_effort"
_OF_REASONERS = frozenset({_EFFORT})
"""Fields that models that do not reason refuse, and that say so little of an answer that they may be left out."""
_JSON_IN_MESSAGE = re.compile(r"\{.*\}", re.DOTALL)
_LITELLM_PREFIX = re.compile(r"^(?:litellm\.)?\w*(?:Error|Exception|Timeout)\s*[:-]\s*")

# More specific kinds first: several of litellm's exceptions are kinds of BadRequestError.
_STATUS_OF: tuple[tuple[str, int], ...] = (
    ("PaymentRequiredError", 402),
    ("UnprocessableEntityError", 422),
    ("BadRequestError", 400),
    ("AuthenticationError", 401),
    ("PermissionDeniedError", 403),
    ("NotFoundError", 404),
    ("RateLimitError", 429),
    ("ServiceUnavailableError", 503),
    ("BadGatewayError", 502),
    ("InternalServerError", 500),
)

# httpx's and aiohttp's, by name: neither is imported before litellm is.
_NO_CONNECTION = frozenset({"ConnectError", "ClientConnectorError"})
_CONNECTION_LOST = frozenset(
    {"ReadError", "WriteError", "RemoteProtocolError", "ClientConnectionError", "ClientPayloadError"}
)

_STREAM_NAMES = (
    "completion_stream",
    "streaming_response",
    "response_iterator",
    "iterator",
    "self",
    "response",
    "http_response",
)
_MAX_NESTED = 64

_SETTINGS: Mapping[str, Any] = {
    "telemetry": False,
    "suppress_debug_info": True,
    "turn_off_message_logging": True,
    "disable_streaming_logging": True,
    # A parameter that a provider does not know is refused and told, never dropped in silence.
    "drop_params": False,
    "num_retries": 0,
    "callbacks": [],
    "success_callback": [],
    "failure_callback": [],
}


def _import_litellm() -> Any:
    # Without this litellm fetches its price list from the internet while it is imported.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    litellm = importlib.import_module("litellm")
    for name, value in _SETTINGS.items():
        setattr(litellm, name, value)
    return litellm


class LitellmUpstream:
    """A client of upstreams through litellm, without its retries, callbacks, caches or logs."""

    def __init__(self) -> None:
        self._litellm: Any = None
        self._loading = asyncio.Lock()
        self._supported: dict[str, frozenset[str]] = {}

    async def prepare(self) -> None:
        """Import litellm. Call it at start, so that the first request does not wait for it."""
        async with self._loading:
            if self._litellm is None:
                self._litellm = await asyncio.to_thread(_import_litellm)

    async def open(self, call: UpstreamCall) -> UpstreamStream:
        """Open the call as `Upstream.open` does. Raises an UpstreamError."""
        arguments = litellm_arguments(call)
        await self.prepare()
        self._drop_unsupported(arguments, call)
        opening = self._litellm.acompletion(**arguments)
        reply = await _await_within(opening, call.total_timeout_s, call, self._litellm, begun=False)
        if call.request.stream:
            return _LitellmStream(reply, call, self._litellm)
        return _LitellmBody(reply, call)

    def _drop_unsupported(self, arguments: dict[str, Any], call: UpstreamCall) -> None:
        """Leave out the fields that the model cannot take by litellm's word. Raises CannotCarry for one that may not be
        left out.
        """
        model = call.deployment.upstream_model
        supported = self._supported.get(model)
        if supported is None:
            supported = self._supported[model] = _supported_by(self._litellm, model)
        if not supported:
            return
        fields = call.request.fields
        for name in (_JUDGED & fields.keys() | _OF_REASONERS) & arguments.keys() - supported:
            # What is not among the fields was put there for a Claude, because its caller said it.
            said = name not in fields or is_said(name, fields[name])
            if said and name in DECISIVE:
                raise _cannot_carry(
                    call.deployment,
                    f"This model's provider cannot take the parameter {name!r}: leave it out, or send another model.",
                    name,
                )
            del arguments[name]
            if said:
                call.drops(name)

    async def aclose(self) -> None:
        """Close litellm's HTTP clients, if it was imported."""
        if self._litellm is not None:
            await asyncio.shield(_close_clients(self._litellm))


def parameters_by_litellm() -> Callable[[str], frozenset[str] | None]:
    """Import litellm, and return what tells the parameters that it translates for a model; None where it does not say. Raises
    ImportError without it.
    """
    litellm = _import_litellm()
    return lambda model: _supported_by(litellm, model) or None


def _supported_by(litellm: Any, model: str) -> frozenset[str]:
    """Return the parameters that litellm translates for a model; empty where it does not know the provider."""
    provider, _, name = model.partition("/")
    try:
        return frozenset(litellm.get_supported_openai_params(model=name, custom_llm_provider=provider) or ())
    except Exception:  # noqa: BLE001 - it has no tree of its own, and an unknown model may be anything
        return frozenset()


async def _close_clients(litellm: Any) -> None:
    await litellm.close_litellm_async_clients()
    litellm.in_memory_llm_clients_cache.flush_cache()
    # litellm's closing forgets the client that streams of some providers share; its transport opens
    # a new session when it is used again.
    transport = getattr(getattr(litellm.module_level_aclient, "client", None), "_transport", None)
    if transport is not None:
        await transport.aclose()


def litellm_arguments(call: UpstreamCall) -> dict[str, Any]:
    """Return the keyword arguments of `litellm.acompletion`. Raises CannotCarry for a field that may not pass."""
    deployment = call.deployment
    if call.request.operation != "chat":
        raise _cannot_carry(
            deployment, f"This model's provider is reached for chats only, not for {call.request.operation}.", "model"
        )
    arguments: dict[str, Any] = {}
    for name in call.request.fields:
        if name in call.dropped or name in call.engine_fields:
            continue
        if name in PASSED_FIELDS:
            arguments[name] = field_of(call.request, name, deployment.deployment_id)
        elif name not in _DROPPED_FIELDS:
            raise _cannot_carry(
                deployment, f"The parameter {name[:64]!r} is not supported by this model's provider.", name
            )
    _suit(arguments, call)
    # Linked media is fetched by litellm itself for some providers: a caller could make it read our network.
    refuse_links_in(arguments.get("messages"), deployment)
    # The operator's options come last but for ours, so no caller's field can stand in their place.
    arguments |= call.engine_fields
    arguments |= deployment.options
    arguments |= {
        "model": deployment.upstream_model,
        "stream": call.request.stream,
        "timeout": call.total_timeout_s,
        "num_retries": 0,
        "max_retries": 0,
        # Else litellm offers tools to its own MCP gateway, which a caller could thereby command.
        "_skip_mcp_handler": True,
        "extra_headers": dict(deployment.headers) or None,
    }
    if call.request.stream:
        arguments["stream_options"] = {"include_usage": True}
    if deployment.base_url:
        arguments["api_base"] = deployment.base_url
    if deployment.api_key is not None:
        arguments["api_key"] = deployment.api_key
    return {name: value for name, value in arguments.items() if value is not None}


def _suit(arguments: dict[str, Any], call: UpstreamCall) -> None:
    if (schemas := call.deployment.quirks.tool_schemas) and isinstance(arguments.get("tools"), list):
        fitting = fitting_tools(bytes(call.request.fields["tools"]), tool_schemas(schemas))
        if fitting is not None:
            arguments["tools"] = msgspec.json.decode(fitting)
    if speaks_anthropic(call.deployment):
        _suit_anthropic(arguments, call)
        return
    if isinstance(arguments.get("messages"), list):
        mend_arguments(arguments["messages"], any_text=call.deployment.quirks.any_arguments)
    if call.request.thoughts and isinstance(arguments.get("messages"), list):
        with_thoughts(arguments["messages"], call.request.thoughts, call.deployment)
    effort, efforts = arguments.get(_EFFORT), call.deployment.quirks.efforts
    if isinstance(effort, str) and efforts:
        arguments[_EFFORT] = closest_effort(effort, efforts)
        if effort == "none" and effort not in efforts:
            # It reasons only when asked to.
            del arguments[_EFFORT]


def _suit_anthropic(arguments: dict[str, Any], call: UpstreamCall) -> None:
    if call.request.for_anthropic is not None:
        arguments |= call.request.for_anthropic()
    if call.marks_cache:
        arguments["messages"] = with_cache_marks(arguments["messages"], arguments.get("tools"))


def _cannot_carry(deployment: Deployment, message: str, param: str) -> CannotCarry:
    return CannotCarry(
        message,
        deployment_id=deployment.deployment_id,
        status=400,
        param=param[:64],
        code="unsupported_parameter",
    )


async def _await_within(
    waiting: Awaitable[Any], limit_s: float, call: UpstreamCall, litellm: Any, *, begun: bool
) -> Any:
    """Await litellm within `limit_s` seconds; whatever it raises comes out as an UpstreamError."""
    try:
        async with asyncio.timeout(limit_s):
            return await waiting
    except StopAsyncIteration:
        raise
    except TimeoutError as error:
        raise took_too_long(call) if not begun else _silent(call) from error
    except Exception as error:
        # litellm has no tree of its own for everything: any exception may come out of it.
        raise _translate(error, call.deployment, litellm, begun=begun) from error


def _silent(call: UpstreamCall) -> UpstreamTimeout:
    return UpstreamTimeout(
        f"The upstream fell silent for {call.idle_timeout_s:g} s (`providers.timeouts.idle_s`).",
        deployment_id=call.deployment.deployment_id,
    )


def _translate(error: Exception, deployment: Deployment, litellm: Any, *, begun: bool) -> UpstreamError:
    deployment_id = deployment.deployment_id
    if isinstance(error, litellm.Timeout):
        return UpstreamTimeout("The upstream took too long to answer.", deployment_id=deployment_id)
    if isinstance(error, litellm.APIResponseValidationError | msgspec.DecodeError) or _is_unreadable(error):
        return MalformedReply("The upstream's answer cannot be read.", deployment_id=deployment_id)
    known = next((status for name, status in _STATUS_OF if isinstance(error, getattr(litellm, name))), None)
    # The provider's own status says more: litellm calls some 402 a bad request.
    status = _provider_status(error) or known
    refused = error_of_status(
        status or SERVER_FAULT,
        _body_of(error),
        _headers_of(error),
        deployment_id=deployment_id,
        secret=deployment.api_key,
    )
    if known is None or known >= SERVER_FAULT:
        # The server's faults, or nobody's in particular.
        translated = _server_fault(error, status, refused, begun=begun)
    else:
        translated = refused
    if speaks_anthropic(deployment):
        # litellm's message repeats it, at times as Python would write bytes, so the reply itself comes first.
        bodies = (*map(_content_of, _causes(error)), _body_of(error))
        translated.original = original_of(translated, bodies, deployment.api_key)
    return translated


def _content_of(cause: BaseException) -> bytes:
    """Return the body of the reply that an exception is about, as far as it was read."""
    try:
        content = getattr(cause, "response", None)
        content = getattr(content, "content", b"")
    except Exception:  # noqa: BLE001 - it was not read, which each client says in its own way
        return b""
    return content if isinstance(content, bytes) else b""


def _server_fault(error: Exception, status: int | None, refused: UpstreamError, *, begun: bool) -> UpstreamError:
    """Return the fault where nothing says that the provider refused the call, but perhaps the words of `refused`."""
    deployment_id = refused.deployment_id
    unreached = _is_no_connection(error)
    if refused.owner != "health" and not unreached:
        return refused
    if begun:
        return StreamCut("The upstream's stream broke off.", deployment_id=deployment_id)
    if unreached:
        return ConnectFailed("The upstream cannot be reached.", deployment_id=deployment_id)
    if isinstance(error, ImportError):
        return UpstreamRefusedUs("A package that this provider needs is not installed.", deployment_id=deployment_id)
    if _is_connection_lost(error) or status is None:
        # Whatever is not known to be a refusal may have come after the work was done.
        return AnswerLost("The upstream's answer was lost.", deployment_id=deployment_id, status=status)
    return refused


def _is_no_connection(error: BaseException) -> bool:
    return any(
        isinstance(cause, ConnectionRefusedError) or not _NO_CONNECTION.isdisjoint(_class_names(cause))
        for cause in _causes(error)
    )


def _is_connection_lost(error: BaseException) -> bool:
    """Return True when an established connection broke before the answer came."""
    return any(
        isinstance(cause, ConnectionError) or not _CONNECTION_LOST.isdisjoint(_class_names(cause))
        for cause in _causes(error)
    )


def _is_unreadable(error: BaseException) -> bool:
    """Return True for a success whose body is no JSON: litellm calls some of these the caller's fault, but the work was done."""
    causes = list(_causes(error))
    refused = any("HTTPStatusError" in _class_names(cause) for cause in causes)
    return not refused and any(isinstance(cause, json.JSONDecodeError) for cause in causes)


def _provider_status(error: BaseException) -> int | None:
    """Return the HTTP status of the provider's own answer, if any; litellm's exceptions say 500 even when nothing came, so that the
    innermost cause is to be believed.
    """
    found = [getattr(getattr(cause, "response", None), "status_code", None) for cause in _causes(error)]
    return next((status for status in reversed(found) if isinstance(status, int) and status >= 400), None)  # noqa: PLR2004


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes, outermost first, at most 8: transport errors come wrapped more than once."""
    cause: BaseException | None = error
    for _ in range(8):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__ or cause.__context__


def _class_names(error: BaseException) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__}


def _body_of(error: Exception) -> bytes:
    """Return the provider's error object out of litellm's message, or the message itself, as JSON."""
    text = str(getattr(error, "message", "") or error)[:8_192]
    found = _JSON_IN_MESSAGE.search(text)
    if found is not None:
        with contextlib.suppress(msgspec.DecodeError):
            inner = msgspec.json.decode(found[0])
            if isinstance(inner, dict) and (
                isinstance(inner.get("error"), dict) or isinstance(inner.get("message"), str)
            ):
                return found[0].encode()
    for _ in range(4):
        text = _LITELLM_PREFIX.sub("", text)
    return msgspec.json.encode({"message": text})


def _headers_of(error: Exception) -> dict[str, str]:
    headers = getattr(error, "litellm_response_headers", None)
    headers = headers or getattr(getattr(error, "response", None), "headers", None) or {}
    return {str(name).lower(): str(value) for name, value in headers.items()}


class _LitellmBody:
    """A whole reply, as one event."""

    def __init__(self, reply: Any, call: UpstreamCall) -> None:
        self._reply = reply
        self._call = call
        self.ended = False

    async def read(self) -> list[Event] | None:
        if self.ended:
            return None
        self.ended = True
        call = self._call
        event = _event(self._reply, call)
        return [regular_answer(event, call.request, call.request_id, call.deployment.deployment_id)]

    def unread(self) -> list[Event]:
        return []

    async def aclose(self) -> None:
        """Do nothing: the reply was read already."""


class _LitellmStream:
    ended = False

    def __init__(self, reply: Any, call: UpstreamCall, litellm: Any) -> None:
        self._reply = reply
        self._chunks: AsyncIterator[Any] = aiter(reply)
        self._call = call
        self._litellm = litellm
        self._finished = False
        self._closed = False
        self._regular: RegularStream | None = None

    async def read(self) -> list[Event] | None:
        while (events := await self._next()) == []:
            # What came waits for the rest of a call.
            pass
        return events

    async def _next(self) -> list[Event] | None:
        try:
            chunk = await _await_within(
                anext(self._chunks), self._call.idle_timeout_s, self._call, self._litellm, begun=True
            )
        except StopAsyncIteration:
            if not self._finished:
                # litellm ends its own iteration quietly when the provider's stream breaks off.
                raise StreamCut(
                    "The upstream ended the stream before it was finished.",
                    deployment_id=self._call.deployment.deployment_id,
                ) from None
            return None
        event = _event(chunk, self._call)
        self._finished = self._finished or event.finished
        if not event.odd and self._regular is None:
            return [event]
        call = self._call
        self._regular = self._regular or RegularStream(call.request, call.request_id, call.deployment.deployment_id)
        return self._regular.events(event)

    def unread(self) -> list[Event]:
        """Return nothing, always: litellm's own buffer cannot be read without waiting."""
        return []

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        if not self._finished:
            await asyncio.shield(_cut_responses(self._reply))
        # litellm shields the closing itself and swallows what goes wrong in it.
        await self._reply.aclose()


async def _cut_responses(reply: Any) -> None:
    """Close the HTTP response below litellm's stream, so that the provider stops at once.

    litellm's own closing does not reach it for providers whose stream is a chain of generators; the
    generators' frames do. Should a later litellm hide it, the connection still closes when it is
    collected as garbage.
    """
    import httpx  # noqa: PLC0415  # It comes with litellm.

    for found in _nested_streams(reply):
        if isinstance(found, httpx.Response):
            with contextlib.suppress(Exception):
                await found.aclose()


def _nested_streams(reply: Any) -> list[Any]:
    """Return the objects that a stream reads from, one below the other, as far as known attribute names lead."""
    found = [reply]
    for each in found:
        frame = getattr(each, "ag_frame", None)
        names = frame.f_locals if frame is not None else getattr(each, "__dict__", {})
        found += [
            names[name]
            for name in _STREAM_NAMES
            if name in names and not any(names[name] is known for known in found) and len(found) < _MAX_NESTED
        ]
    return found


def _event(reply: Any, call: UpstreamCall) -> Event:
    """Return a litellm object as a payload of OpenAI's wire."""
    deployment = call.deployment
    body: dict[str, Any] = reply.model_dump(mode="json", exclude_none=True)
    choices = body.get("choices") or []
    for choice in choices:
        choice.setdefault("finish_reason", None)
    event = decode_event(_payload(body), deployment.deployment_id, deployment.api_key)
    if call.request.stream and event.usage is not None and not event.token and not event.finished:
        # The usage chunk has no choices on OpenAI's wire; litellm gives it an empty one.
        body["choices"] = []
        event = decode_event(_payload(body), deployment.deployment_id)
    return event


def _payload(body: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        # Half a letter, see `providers.wire`: Python's own encoder writes it as an escape.
        return json.dumps(body).encode()
