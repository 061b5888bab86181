"""A scripted upstream for tests and benchmarks, which stands in for a real one.

`ScriptedUpstream` plays scripts in this process; `testing.scripted.server` plays the same ones over a socket. A
script can be written out, or named by the upstream's model name, such as `cut-3+tokens-10`.
"""

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Literal

import msgspec

from providers.errors import StreamCut, UpstreamTimeout
from providers.sse import DONE
from providers.upstream import UpstreamCall, UpstreamStream
from providers.upstream_faults import error_of_status
from providers.wire import Event, decode_event

Sleep = Callable[[float], Awaitable[None]]

_MAX_SEEN = 100_000
_PROMPT_TOKENS = 12
_MAX_TOKENS = 100_000
_HANG_S = 3_600.0

Shape = Literal["text", "tools", "json", "refusal", "apology", "odd-json", "broken-json", "broken-tools"]
_APOLOGY = ("I'm sorry, but", " I can't help with that.")


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """The behaviour of one call. Positions count the stream's events from 0; event 0 carries the role alone."""

    shape: Shape = "text"
    tokens: int = 3
    text: str = ""
    """The content of a `text`, a token for each word; words that say nothing when empty."""
    first_token_after_s: float = 0.0
    every_s: float = 0.0
    """Seconds between two tokens."""
    error_status: int | None = None
    """HTTP status that is answered instead of a reply."""
    retry_after_s: float | None = None
    hang_at: int | None = None
    """Event before which it hangs; -1 is before the status."""
    cut_at: int | None = None
    """Event before which the connection is cut."""
    malformed_at: int | None = None
    """Event that is not valid JSON."""
    error_at: int | None = None
    """Event that is an error object."""
    usage: Literal["true", "none", "absurd", "negative"] = "true"
    end_marker: bool = True
    prompt_tokens: int = _PROMPT_TOKENS
    cached_tokens: int = 0
    finish: Literal["length", "content_filter"] | None = None
    """Finish reason of an incomplete answer; None for a complete one."""
    logprob_centis: int | None = None
    """Every token's log-probability, in hundredths below 0."""


class ScriptUnknown(Exception):
    """A model name does not name a script."""


class SeenCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call as the upstream saw it, with the usage it really had when it was over."""

    request_id: str
    model: str
    stream: bool
    prompt_tokens: int
    completion_tokens: int
    ended: bool
    """True when the reply was read to its end."""


def script_named(model: str) -> Script:
    """Parse a script's name: `ok`, `error-429`, `slow-first-token-500ms+tokens-20`, ...; parts are joined by `+`.

    Raises ScriptUnknown.
    """
    changes: dict[str, Any] = {}
    for part in model.split("+"):
        changes |= _changes_of_part(part)
    return msgspec.structs.replace(Script(), **changes)


_FLAG_PARTS: dict[str, dict[str, Any]] = {
    "ok": {},
    "tools": {"shape": "tools"},
    "json": {"shape": "json"},
    "refusal": {"shape": "refusal"},
    "apology": {"shape": "apology"},
    "odd-json": {"shape": "odd-json"},
    "broken-json": {"shape": "broken-json"},
    "broken-tools": {"shape": "broken-tools"},
    "truncated": {"finish": "length"},
    "filtered": {"finish": "content_filter"},
    "hang": {"hang_at": -1},
    "no-usage": {"usage": "none"},
    "absurd-usage": {"usage": "absurd"},
    "negative-usage": {"usage": "negative"},
    "no-done": {"end_marker": False},
}
_COUNT_PARTS = {
    "tokens": "tokens",
    "error": "error_status",
    "hang": "hang_at",
    "cut": "cut_at",
    "malformed": "malformed_at",
    "error-at": "error_at",
    "prompt-tokens": "prompt_tokens",
    "cached-tokens": "cached_tokens",
    "logprob": "logprob_centis",
}
_DURATION_PARTS = {"slow-first-token": "first_token_after_s", "every": "every_s", "retry-after": "retry_after_s"}


def _changes_of_part(part: str) -> dict[str, Any]:
    fixed = _FLAG_PARTS.get(part)
    if fixed is not None:
        return fixed
    found = re.fullmatch(r"([a-z-]+)-(\d{1,6})(ms)?", part)
    field = None if found is None else (_DURATION_PARTS if found[3] else _COUNT_PARTS).get(found[1])
    if found is None or field is None:
        known = [*_FLAG_PARTS, *(f"{name}-N" for name in _COUNT_PARTS), *(f"{name}-Nms" for name in _DURATION_PARTS)]
        raise ScriptUnknown(f"no script is named {part[:64]}; there are {', '.join(known)}")
    return {field: int(found[2]) / 1000 if found[3] else min(int(found[2]), _MAX_TOKENS)}


# Pieces of the wire, the same in this process and over a socket.


def completion_tokens(script: Script, played: int) -> int:
    """Return tokens really generated after `played` events; the first event has only the role."""
    return max(0, min(played - 1, _token_events(script)))


def _token_events(script: Script) -> int:
    return len(pieces(script)) if script.shape == "text" else 2


def chunks(
    script: Script, model: str, request_id: str, *, with_usage: bool, continuous: bool = False
) -> Iterator[bytes]:
    """Yield the payloads of a stream without its end marker, malformed and error events included.

    With `continuous` each chunk has the usage so far, as vLLM sends it on request.
    """
    head = {"id": f"chatcmpl-{request_id}", "object": "chat.completion.chunk", "created": 0, "model": model}
    for index, choices in enumerate(_choices(script)):
        if index == script.malformed_at:
            yield b'{"id": "chatcmpl-broken", "choices": [{'
        elif index == script.error_at:
            yield b'{"error": {"message": "the script says so", "type": "server_error", "param": null, "code": null}}'
        else:
            told = continuous and with_usage and script.usage == "true"
            so_far = {"usage": _usage(script, completion_tokens(script, index + 1))} if told else {}
            yield msgspec.json.encode({**head, "choices": choices, **so_far})
    if with_usage and script.usage != "none":
        yield msgspec.json.encode({**head, "choices": [], "usage": usage(script)})


def _choices(script: Script) -> Iterator[list[dict[str, Any]]]:
    yield [_choice({"role": "assistant", "content": ""})]
    match script.shape:
        case "tools" | "broken-tools":
            call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weigh", "arguments": ""}}
            yield [_choice({"tool_calls": [call]})]
            yield [_choice({"tool_calls": [{"index": 0, "function": {"arguments": _arguments(script)}}]})]
        case "refusal":
            for piece in _APOLOGY:
                yield [_choice({"refusal": piece})]
        case _:
            for piece in pieces(script):
                yield [_choice({"content": piece}, logprobs=_logprobs(script, [piece]))]
    yield [_choice({}, finish=_finish(script))]


def pieces(script: Script) -> list[str]:
    """Return the content, one token in each piece."""
    match script.shape:
        case "json":
            return ['{"answer":', " 42}"]
        case "odd-json":
            return ['{"answer":', ' "?"}']
        case "broken-json":
            return ['{"answer":', " 4"]
        case "apology":
            return list(_APOLOGY)
    return re.findall(r"\s*\S+", script.text) or [f" w{index}" for index in range(script.tokens)]


def _arguments(script: Script) -> str:
    return '{"kg": 7}' if script.shape == "tools" else '{"kg": '


def _finish(script: Script) -> str:
    return script.finish or ("tool_calls" if script.shape in {"tools", "broken-tools"} else "stop")


def _logprobs(script: Script, pieces: list[str]) -> dict[str, Any] | None:
    if script.logprob_centis is None:
        return None
    return {"content": [{"token": piece, "logprob": -script.logprob_centis / 100} for piece in pieces]}


def _choice(
    delta: dict[str, Any], *, finish: str | None = None, logprobs: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


def completion(script: Script, model: str, request_id: str) -> bytes:
    """Return the body of a whole reply."""
    if script.malformed_at is not None:
        return b'{"id": "chatcmpl-broken", "choices": [{'
    message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
    logprobs: dict[str, Any] | None = None
    match script.shape:
        case "tools" | "broken-tools":
            function = {"name": "weigh", "arguments": _arguments(script)}
            message["tool_calls"] = [{"id": "call_1", "type": "function", "function": function}]
        case "refusal":
            message["refusal"] = "".join(_APOLOGY)
        case _:
            message["content"] = "".join(pieces(script))
            logprobs = _logprobs(script, pieces(script))
    answer: dict[str, Any] = {
        "id": f"chatcmpl-{request_id}",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [{"index": 0, "message": message, "logprobs": logprobs, "finish_reason": _finish(script)}],
    }
    if script.usage != "none":
        answer["usage"] = usage(script)
    return msgspec.json.encode(answer)


def chat_as_text(payload: bytes) -> bytes:
    """Return a payload as `/v1/completions` has it; a broken one stays broken."""
    try:
        reply = msgspec.json.decode(payload)
    except msgspec.DecodeError:
        return payload
    for choice in reply.get("choices", ()):
        said = choice.pop("delta", None) or choice.pop("message", None) or {}
        choice["text"] = said.get("content") or ""
    return msgspec.json.encode({**reply, "object": "text_completion"})


def usage(script: Script) -> dict[str, Any]:
    """Return the usage that the script reports; `completion_tokens` is the real one."""
    generated = _token_events(script)
    match script.usage:
        case "absurd":
            return {"prompt_tokens": 10**18, "completion_tokens": "many", "total_tokens": None}
        case "negative":
            return {"prompt_tokens": -5, "completion_tokens": -generated, "total_tokens": -5 - generated}
    return _usage(script, generated)


def _usage(script: Script, generated: int) -> dict[str, Any]:
    return {
        "prompt_tokens": script.prompt_tokens,
        "completion_tokens": generated,
        "total_tokens": script.prompt_tokens + generated,
        "prompt_tokens_details": {"cached_tokens": script.cached_tokens},
    }


def error_body(status: int) -> bytes:
    """Return an OpenAI error object for a status."""
    kind = "invalid_request_error" if status < 500 else "server_error"  # noqa: PLR2004
    return msgspec.json.encode(
        {"error": {"message": f"The script answers {status}.", "type": kind, "param": None, "code": None}}
    )


def retry_headers(script: Script) -> dict[str, str]:
    """Return the `retry-after-ms` header, if the script has one."""
    return {} if script.retry_after_s is None else {"retry-after-ms": str(round(script.retry_after_s * 1000))}


async def pace(script: Script, index: int, sleep: Sleep) -> None:
    """Wait as long as the script does before its event `index`."""
    if index == script.hang_at:
        await sleep(_HANG_S)
    elif index == 1 and script.first_token_after_s:
        await sleep(script.first_token_after_s)
    elif index > 1 and script.every_s and index <= _token_events(script):
        await sleep(script.every_s)


class ScriptedUpstream:
    """An upstream in this process that plays scripts, and remembers the calls that it saw in `seen`."""

    def __init__(
        self, script: Callable[[UpstreamCall], Script] | Script | None = None, sleep: Sleep = asyncio.sleep
    ) -> None:
        """Without a script each call plays the one that its upstream model names."""
        self._script = script
        self._sleep = sleep
        self.calls: deque[UpstreamCall] = deque(maxlen=_MAX_SEEN)
        self.seen: deque[SeenCall] = deque(maxlen=_MAX_SEEN)
        """Replies that are over, in the order in which they ended."""
        self.open_streams = 0

    async def open(self, call: UpstreamCall) -> UpstreamStream:
        """Open the call as `Upstream.open` does. Raises an UpstreamError."""
        self.calls.append(call)
        script = self._pick(call)
        await _wait_within(call.total_timeout_s, self._sleep, pace(script, -1, self._sleep), call)
        if script.error_status is not None:
            raise error_of_status(
                script.error_status,
                error_body(script.error_status),
                retry_headers(script),
                deployment_id=call.deployment.deployment_id,
            )
        self.open_streams += 1
        return _ScriptedStream(self, script, call, self._sleep)

    async def aclose(self) -> None:
        """Do nothing: there is no connection."""

    def _pick(self, call: UpstreamCall) -> Script:
        if self._script is None:
            return script_named(call.deployment.upstream_model)
        return self._script if isinstance(self._script, Script) else self._script(call)

    def _record_end(self, seen: SeenCall) -> None:
        self.open_streams -= 1
        self.seen.append(seen)


async def _wait_within(limit_s: float, sleep: Sleep, waiting: Awaitable[None], call: UpstreamCall) -> None:
    """Apply the real upstreams' timeout; with an injected sleep the script alone waits."""
    if sleep is not asyncio.sleep:
        await waiting
        return
    try:
        async with asyncio.timeout(limit_s):
            await waiting
    except TimeoutError as error:
        raise UpstreamTimeout(
            "The upstream fell silent in the middle of its reply.", deployment_id=call.deployment.deployment_id
        ) from error


class _ScriptedStream:
    def __init__(self, upstream: ScriptedUpstream, script: Script, call: UpstreamCall, sleep: Sleep) -> None:
        self._upstream = upstream
        self._call = call
        self._script = script
        self._sleep = sleep
        self._played = 0
        self.ended = False
        self._closed = False
        self._payloads = self._stream() if call.request.stream else self._whole()

    async def read(self) -> list[Event] | None:
        if self.ended:
            return None
        payload = await anext(self._payloads, DONE)
        if payload == DONE:
            self.ended = True
            return None
        self._played += 1
        return [decode_event(payload, self._call.deployment.deployment_id)]

    def unread(self) -> list[Event]:
        """Return nothing, always: a script produces nothing before it is read."""
        return []

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        played = self._played if self._call.request.stream else self._script.tokens + 1
        self._upstream._record_end(  # noqa: SLF001  # The two are one upstream.
            SeenCall(
                request_id=self._call.request_id,
                model=self._call.deployment.upstream_model,
                stream=self._call.request.stream,
                prompt_tokens=self._script.prompt_tokens,
                completion_tokens=completion_tokens(self._script, played),
                ended=self.ended,
            )
        )

    async def _stream(self) -> AsyncIterator[bytes]:
        deployment_id, script = self._call.deployment.deployment_id, self._script
        payloads = chunks(script, self._call.deployment.upstream_model, self._call.request_id, with_usage=True)
        for index, payload in enumerate(payloads):
            await _wait_within(self._call.idle_timeout_s, self._sleep, pace(script, index, self._sleep), self._call)
            if index == script.cut_at:
                raise StreamCut(
                    "The upstream's connection broke in the middle of its reply.", deployment_id=deployment_id
                )
            yield payload

    async def _whole(self) -> AsyncIterator[bytes]:
        call, script = self._call, self._script
        waiting = pace(script, 1 if script.hang_at is None else script.hang_at, self._sleep)
        await _wait_within(call.total_timeout_s, self._sleep, waiting, call)
        if script.cut_at is not None:
            raise StreamCut(
                "The upstream's connection broke in the middle of its reply.",
                deployment_id=call.deployment.deployment_id,
            )
        yield completion(script, call.deployment.upstream_model, call.request_id)
