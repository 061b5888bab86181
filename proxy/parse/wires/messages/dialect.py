"""Chat completions as Anthropic's messages: whole, and as a stream of blocks of which one is open at a time."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

import msgspec

from cost.usage import Usage
from providers.wire import Event
from proxy.errors import ErrorReply
from proxy.parse.wires.completions_of_chat import Call, Choice, Said, completion_of, sse, to_json
from proxy.parse.wires.messages.as_written import MessagesAsWritten
from proxy.parse.wires.messages.errors import error_event
from proxy.parse.wires.own_fields import Bill, bill, own_fields
from proxy.parse.wires.thoughts import Heard
from proxy.parse.wires.wire import EventWriter, Served
from settings.decoding import DECODE_ERRORS

_Kind = Literal["thinking", "text", "tool_use"]
_STOP_REASONS: Final[Mapping[str, str]] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
STOP_DETAILS: Final[dict[str, Any]] = {
    "type": "refusal",
    "category": None,
    "explanation": "A filter ended the answer, or the model declined.",
}
"""The details of an end by a filter, or by a model that declines."""
_AS_WRITTEN: Final = MessagesAsWritten()
PING: Final = sse(b"ping", {"type": "ping"})
"""An event that Anthropic sends at any time, and that means nothing."""
_TEXT_DELTA: Final = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"text_delta","text":'
)
_NO_CHOICE: Final = Choice()
_NOTHING_SAID: Final = Said()
_SILENT_BATCHES: Final = 16
"""The number of batches without anything to write in this wire, such as thinking that the caller did not ask for,
after which a ping goes out.
"""


class _CacheCreation(msgspec.Struct, frozen=True):
    ephemeral_5m_input_tokens: int
    ephemeral_1h_input_tokens: int


class _Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Anthropic's usage object: tokens read from and written to a cache come beside `input_tokens`, not within."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    cache_creation: _CacheCreation
    output_tokens: int
    service_tier: str = "standard"


class _Message(msgspec.Struct, frozen=True, kw_only=True):
    """Anthropic's message object, with the gateway's own fields. That of a stream's beginning has no bill and no end."""

    model_used: str
    weighbridge: Bill | msgspec.UnsetType = msgspec.UNSET
    id: str
    type: str = "message"
    role: str = "assistant"
    model: str
    content: list[dict[str, Any]]
    stop_reason: str | None = None
    stop_sequence: str | None = None
    stop_details: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    usage: _Usage


class MessagesDialect:
    """A dialect that writes Anthropic's messages. `thinks`: the caller asked to see the model's thinking. `names`:
    the given names of tools, by the names they were cut to.
    """

    keeps = False

    def __init__(self, *, thinks: bool, names: Mapping[str, str] = MappingProxyType({})) -> None:
        self._thinks = thinks
        self._names = names

    def whole(self, payload: bytes, served: Served) -> bytes:
        if served.native:
            return _AS_WRITTEN.whole(payload, served)
        completion = completion_of(payload)
        choice = completion.choices[0] if completion.choices else _NO_CHOICE
        said = choice.message or _NOTHING_SAID
        declined = said.declined
        reason, sequence = _stop_of(choice, declined=bool(declined), called=bool(said.tool_calls))
        tally = served.tally()
        message = _Message(
            model_used=served.target_id,
            weighbridge=bill(tally),
            id=_id_of(served),
            model=_model_of(completion.model, served),
            content=self._blocks(said, declined, served.target_id),
            stop_reason=reason,
            stop_sequence=sequence,
            stop_details=STOP_DETAILS if reason == "refusal" else msgspec.UNSET,
            usage=_usage_of(tally.usage),
        )
        return to_json(message)

    def events(self, served: Served) -> EventWriter:
        if served.native:
            return _AS_WRITTEN.events(served)
        return _EventWriter(served, self._names, thinks=self._thinks)

    def to_keep(self, payload: bytes | None, served: Served) -> None:
        """Return None: this wire's callers send the whole conversation again."""

    def _blocks(self, said: Said, declined: str, target_id: str) -> list[dict[str, Any]]:
        blocks = [] if said.is_only_text else self._thinking(said, target_id)
        if words := said.text + declined:
            blocks.append({"type": "text", "text": words})
        if said.tool_calls:
            blocks += [_tool_use(call, index, self._names) for index, call in enumerate(said.tool_calls)]
        return blocks

    def _thinking(self, said: Said, target_id: str) -> list[dict[str, Any]]:
        """Return the thinking, with its maker's signature where it has any, else with ours, by which it goes back. A caller that did
        not ask for thinking gets what goes back beside calls alone, and unreadable.
        """
        if isinstance(said.thinking_blocks, list) and said.thinking_blocks:
            return [block for block in said.thinking_blocks if isinstance(block, dict)] if self._thinks else []
        heard = Heard(target_id)
        heard.hear(said)
        for index, call in enumerate(said.tool_calls or ()):
            heard.hear_call(call, _call_id(call, index))
        if self._thinks and said.thought:
            return [{"type": "thinking", "thinking": said.thought, "signature": heard.sealed(words_beside=True)}]
        return [_redacted(heard)] if heard and said.tool_calls else []


def _id_of(served: Served) -> str:
    return f"msg_{served.request_id.removeprefix('req_')}"


def _model_of(told: Any, served: Served) -> str:
    return told if isinstance(told, str) else served.target_id


def _usage_of(usage: Usage) -> _Usage:
    read, written, hour = usage.cached_input_tokens, usage.cache_write_tokens, usage.cache_write_1h_tokens
    return _Usage(
        input_tokens=max(0, usage.input_tokens - read - written),
        cache_creation_input_tokens=written,
        cache_read_input_tokens=read,
        cache_creation=_CacheCreation(written - hour, hour),
        output_tokens=usage.output_tokens,
    )


def _stop_of(choice: Choice, *, declined: bool, called: bool) -> tuple[str, str | None]:
    """Return the stop reason, and the stop sequence where the engine tells it. A call is one, too, where chat says that the
    answer just ended: agents go by it.
    """
    if declined:
        return "refusal", None
    finish = choice.finish
    if called and finish in (None, "stop"):
        return "tool_use", None
    if finish == "stop" and isinstance(choice.stop_reason, str):
        return "stop_sequence", choice.stop_reason
    return _STOP_REASONS.get(finish or "", "end_turn"), None


def _redacted(heard: Heard) -> dict[str, Any]:
    return {"type": "redacted_thinking", "data": heard.sealed(words_beside=False)}


def _call_id(call: Call, index: int) -> str:
    return call.id if isinstance(call.id, str) else f"toolu_{index}"


def _tool_use(call: Call, index: int, names: Mapping[str, str]) -> dict[str, Any]:
    function = call.function
    arguments = function.arguments if function is not None else None
    return {
        "type": "tool_use",
        "id": _call_id(call, index),
        "name": _name_of(call, names),
        "input": _input(arguments if isinstance(arguments, str) else ""),
    }


def _name_of(call: Call, names: Mapping[str, str]) -> str:
    """Return the called tool's name as the caller gave it."""
    name = call.function.name if call.function is not None else None
    return names.get(name, name) if isinstance(name, str) else ""


def _input(arguments: str) -> dict[str, Any]:
    """Return the arguments as an object; invalid or incomplete ones as a text under `unparsed_arguments`."""
    try:
        found = msgspec.json.decode(arguments) if arguments else {}
    except DECODE_ERRORS:
        found = None
    return found if isinstance(found, dict) else {"unparsed_arguments": arguments}


class _EventWriter:
    """A writer that opens and closes blocks as the kind of the deltas changes."""

    def __init__(self, served: Served, names: Mapping[str, str], *, thinks: bool) -> None:
        self._served = served
        self._names = names
        self._thinks = thinks
        self._begun = False
        self._open: _Kind | None = None
        self._index = -1
        self._call = Call()
        """The beginning of the call whose block is open."""
        self._declined = self._called = False
        self._stop: Choice = Choice()
        self._silent = 0
        self._heard = Heard(served.target_id)
        """The thoughts that no block has a seal of yet."""
        self._unsigned = False
        """True while a block of thinking is open that nobody signed."""

    def render(self, events: Iterable[Event]) -> bytes:
        parts: list[bytes] = []
        for event in events:
            if event.words and self._open == "text":
                self._write(event.words, parts)
                continue
            if not event.choices:
                continue
            completion = completion_of(event.payload)
            if not self._begun:
                self._begun = True
                parts += (self._start(completion.model), PING)
            # One answer: Anthropic's wire has no others.
            choice = completion.first
            if choice is None:
                continue
            said = choice.delta or choice.message or Said()
            if self._open == "text" and (words := said.only_text):
                self._write(words, parts)
            else:
                self._say(said, parts)
            if choice.finish is not None:
                self._stop = choice
        self._silent = 0 if parts else self._silent + 1
        if self._silent >= _SILENT_BATCHES:
            self._silent = 0
            parts.append(PING)
        return b"".join(parts)

    def last_words(self) -> bytes:
        parts: list[bytes] = [] if self._begun else [self._start(None)]
        self._close(parts)
        tally = self._served.tally()
        reason, sequence = _stop_of(self._stop, declined=self._declined, called=self._called)
        delta: dict[str, Any] = {"stop_reason": reason, "stop_sequence": sequence}
        if reason == "refusal":
            delta["stop_details"] = STOP_DETAILS
        usage = _usage_of(tally.usage)
        last = {"type": "message_delta", "delta": delta, "usage": usage, **own_fields(self._served, tally)}
        parts += (sse(b"message_delta", last), sse(b"message_stop", {"type": "message_stop"}))
        return b"".join(parts)

    def failed(self, told: ErrorReply) -> bytes:
        return error_event(told, self._served.request_id)

    def _start(self, model: Any) -> bytes:
        """Return the event that begins a message. Its input tokens are the upstream's where it counts from the first
        event on, else our estimate.
        """
        usage = self._served.tally().usage
        if usage.source != "upstream":
            usage = Usage(input_tokens=self._served.input_tokens, source="estimated")
        message = _Message(
            model_used=self._served.target_id,
            id=_id_of(self._served),
            model=_model_of(model, self._served),
            content=[],
            usage=_usage_of(usage),
        )
        return sse(b"message_start", {"type": "message_start", "message": message})

    def _say(self, said: Said, parts: list[bytes]) -> None:
        if not said.is_only_text:
            self._think(said, parts)
        if words := said.text + said.declined:
            self._declined = self._declined or bool(said.declined)
            self._turn_to("text", {"type": "text", "text": ""}, parts)
            self._write(words, parts)
        for call in said.tool_calls or ():
            self._call_tool(call, parts)

    def _write(self, words: str, parts: list[bytes]) -> None:
        # Most of a stream is this event, so its beginning is not made anew each time.
        parts += (_TEXT_DELTA % self._index, to_json(words), b"}}\n\n")

    def _think(self, said: Said, parts: list[bytes]) -> None:
        if said.thought and self._thinks:
            if self._open != "thinking":
                self._turn_to("thinking", {"type": "thinking", "thinking": "", "signature": ""}, parts)
                self._unsigned = True
            self._delta({"type": "thinking_delta", "thinking": said.thought}, parts)
        if isinstance(said.thinking_blocks, list):
            self._pass_thinking(said.thinking_blocks, parts)
        else:
            self._heard.hear(said)

    def _pass_thinking(self, blocks: list[Any], parts: list[bytes]) -> None:
        """Write the thinking that its maker signed. Its words came in pieces before."""
        for block in blocks if self._thinks else ():
            if not isinstance(block, dict):
                continue
            if block.get("type") == "redacted_thinking":
                self._close(parts)
                self._begin("thinking", block, parts)
                self._close(parts)
            elif block.get("signature"):
                self._turn_to("thinking", {"type": "thinking", "thinking": "", "signature": ""}, parts)
                self._unsigned, self._heard = False, Heard(self._served.target_id)
                self._delta({"type": "signature_delta", "signature": block["signature"]}, parts)

    def _call_tool(self, call: Call, parts: list[bytes]) -> None:
        function = call.function
        if not self._continues(call):
            self._call, self._called = call, True
            call_id = _call_id(call, self._index + 1)
            self._heard.hear_call(call, call_id)
            self._close(parts)
            if self._heard:
                self._begin("thinking", _redacted(self._heard), parts)
                self._close(parts)
            named = _name_of(call, self._names)
            self._begin("tool_use", {"type": "tool_use", "id": call_id, "name": named, "input": {}}, parts)
        arguments = function.arguments if function is not None else None
        if isinstance(arguments, str) and arguments:
            self._delta({"type": "input_json_delta", "partial_json": arguments}, parts)

    def _continues(self, call: Call) -> bool:
        """Return True for a piece of the open call. Some hosts number none of their calls."""
        if self._open != "tool_use" or call.index != self._call.index:
            return False
        return call.id in (None, "", self._call.id)

    def _turn_to(self, kind: _Kind, block: dict[str, Any], parts: list[bytes]) -> None:
        if self._open != kind:
            self._close(parts)
            self._begin(kind, block, parts)

    def _begin(self, kind: _Kind, block: dict[str, Any], parts: list[bytes]) -> None:
        self._open = kind
        self._index += 1
        began = {"type": "content_block_start", "index": self._index, "content_block": block}
        parts.append(sse(b"content_block_start", began))

    def _close(self, parts: list[bytes]) -> None:
        if self._open is not None:
            if self._unsigned:
                self._unsigned = False
                if self._heard:
                    self._delta({"type": "signature_delta", "signature": self._heard.sealed(words_beside=True)}, parts)
            self._open = None
            parts.append(sse(b"content_block_stop", {"type": "content_block_stop", "index": self._index}))

    def _delta(self, delta: dict[str, Any], parts: list[bytes]) -> None:
        parts.append(sse(b"content_block_delta", {"type": "content_block_delta", "index": self._index, "delta": delta}))
