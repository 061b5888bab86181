"""Replies of Anthropic's messages as chat completions, whole and as a stream of chunks."""

import json
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from providers.replies_as_written import MessagesUsage, failure_in_messages, malformed_message, read_message
from providers.target import Deployment
from providers.wire import EMPTY_OBJECT, Event, WireUsage, on_one_line

_FINISHES: Final[Mapping[str, str]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_CHUNK: Final = "chat.completion.chunk"


class _Block(msgspec.Struct):
    type: Any = None
    text: Any = None
    id: Any = None
    name: Any = None
    input: Any = None
    thinking: Any = None
    signature: Any = None
    data: Any = None


class _Message(msgspec.Struct):
    id: Any = None
    model: Any = None
    content: list[_Block] | None = None
    stop_reason: Any = None
    stop_sequence: Any = None
    usage: Any = None


class _Delta(msgspec.Struct):
    text: Any = None
    thinking: Any = None
    signature: Any = None
    partial_json: Any = None
    stop_reason: Any = None
    stop_sequence: Any = None


class _StreamEvent(msgspec.Struct):
    type: str = ""
    index: Any = None
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: Any = None
    error: Any = None


_decode_message: Final = msgspec.json.Decoder(_Message).decode
_decode_event: Final = msgspec.json.Decoder(_StreamEvent).decode


class ClaudeReader:
    """A reader of one reply. `names`: those of tools that were written in other letters. `passes`: the caller's own
    dialect is Anthropic's, so that each event goes on as it came, too.
    """

    def __init__(
        self, deployment: Deployment, names: Mapping[str, str] = MappingProxyType({}), *, passes: bool = False
    ) -> None:
        self._deployment = deployment
        self._names = names
        self._passes = passes
        self._usage = MessagesUsage()
        self._told: WireUsage | None = None
        self._head: dict[str, Any] = {}
        self._before = b""
        """A chunk up to the words that it says."""
        self._calls = -1
        """The number of the last call of a caller's tool."""
        self._is_call = False
        """True while the open block is that call."""
        self._input = ""
        """The arguments that the open call's block had before its deltas."""
        self._thought: list[str] = []
        self.ended = False

    def whole(self, payload: bytes) -> Event:
        payload = on_one_line(payload)
        message = read_message(_decode_message, payload, self._deployment)
        if message.content is None:
            raise malformed_message(self._deployment)
        usage = self._usage.told(message.usage) if isinstance(message.usage, dict) else None
        said = _said(message.content, self._names)
        choice = {"index": 0, "message": said, "logprobs": None, **_finish(message.stop_reason, message.stop_sequence)}
        chat = {**_head(message, "chat.completion"), "choices": [choice]}
        if usage is not None:
            chat["usage"] = chat_usage(usage)
        native = payload if self._passes else b""
        return Event(_json(chat), True, 1, _chars(said), usage, True, None, "", "message", native=native)

    def event(self, payload: bytes) -> Event:
        payload = on_one_line(payload)
        event = read_message(_decode_event, payload, self._deployment)
        native = payload if self._passes else b""
        delta = event.delta
        if event.type == "error":
            raise failure_in_messages(event.error, payload, self._deployment)
        if delta is not None and type(delta.text) is str:
            words = delta.text
            chunk = b'%b{"content":%b},"logprobs":null,"finish_reason":null}]}' % (self._before, _json(words))
            return Event(chunk, bool(words), 1, len(words), None, False, None, words, event.type, native=native)
        read = _READERS.get(event.type)
        return _nothing(event, native) if read is None else read(self, event, native)

    def _begun(self, event: _StreamEvent, native: bytes) -> Event:
        message = event.message or _Message()
        self._head = _head(message, _CHUNK)
        self._before = _json(self._head)[:-1] + b',"choices":[{"index":0,"delta":'
        if isinstance(message.usage, dict):
            self._told = self._usage.told(message.usage)
        payload = self._chunk({"role": "assistant", "content": ""})
        return Event(payload, False, 1, 0, self._told, False, None, "", event.type, native=native)

    def _block(self, event: _StreamEvent, native: bytes) -> Event:
        block = event.content_block or _Block()
        self._input, self._thought, self._is_call = "", [], block.type == "tool_use"
        match block.type:
            case "text" if isinstance(block.text, str) and block.text:
                payload, chars = self._chunk({"content": block.text}), len(block.text)
            case "tool_use":
                self._calls += 1
                call = _call(block, self._names, "", self._calls)
                # One without any arguments has no deltas, and an empty text is no JSON.
                self._input = _json(block.input if isinstance(block.input, dict) else {}).decode()
                payload, chars = self._chunk({"tool_calls": [call]}), len(call["function"]["name"])
            case "redacted_thinking":
                payload, chars = self._chunk({"thinking_blocks": [_thought(block)]}), 0
            case _:
                payload, chars = EMPTY_OBJECT, 0
        # Any block is a beginning of the answer, and of its bill.
        return Event(payload, True, 1, chars, None, False, None, "", event.type, native=native)

    def _delta(self, event: _StreamEvent, native: bytes) -> Event:
        delta = event.delta or _Delta()
        if isinstance(delta.partial_json, str) and delta.partial_json:
            if self._is_call:
                return self._arguments(event, delta.partial_json, native)
            # The input of a tool that Anthropic runs itself is nobody's to call.
            return msgspec.structs.replace(_nothing(event, native), token=True, text_chars=len(delta.partial_json))
        if isinstance(delta.thinking, str):
            self._thought.append(delta.thinking)
            payload, chars = self._chunk({"reasoning_content": delta.thinking}), len(delta.thinking)
            return Event(payload, chars > 0, 1, chars, None, False, None, "", event.type, native=native)
        if isinstance(delta.signature, str):
            block = {"type": "thinking", "thinking": "".join(self._thought), "signature": delta.signature}
            payload = self._chunk({"thinking_blocks": [block]})
            return Event(payload, False, 1, 0, None, False, None, "", event.type, native=native)
        return _nothing(event, native)

    def _block_end(self, event: _StreamEvent, native: bytes) -> Event:
        return self._arguments(event, self._input, native) if self._input else _nothing(event, native)

    def _arguments(self, event: _StreamEvent, piece: str, native: bytes) -> Event:
        self._input = ""
        call = {"index": self._calls, "function": {"arguments": piece}}
        payload = self._chunk({"tool_calls": [call]})
        return Event(payload, True, 1, len(piece), None, False, None, "", event.type, native=native)

    def _finished(self, event: _StreamEvent, native: bytes) -> Event:
        delta = event.delta or _Delta()
        if isinstance(event.usage, dict):
            self._told = self._usage.told(event.usage)
        finish = _finish(delta.stop_reason, delta.stop_sequence)
        choice = {"index": 0, "delta": {}, "logprobs": None, **finish}
        payload = _json({**self._head, "choices": [choice]})
        finished = delta.stop_reason is not None
        return Event(payload, False, 1, 0, self._told, finished, None, "", event.type, native=native)

    def _last(self, event: _StreamEvent, native: bytes) -> Event:
        self.ended = True
        if self._told is None:
            return _nothing(event, native)
        payload = _json({**self._head, "choices": [], "usage": chat_usage(self._told)})
        return Event(payload, False, 0, 0, self._told, False, None, "", event.type, native=native)

    def _chunk(self, delta: dict[str, Any]) -> bytes:
        return b'%b%b,"logprobs":null,"finish_reason":null}]}' % (self._before, _json(delta))


_READERS: Final[Mapping[str, Callable[[ClaudeReader, _StreamEvent, bytes], Event]]] = {
    "message_start": ClaudeReader._begun,  # noqa: SLF001
    "content_block_start": ClaudeReader._block,  # noqa: SLF001
    "content_block_delta": ClaudeReader._delta,  # noqa: SLF001
    "content_block_stop": ClaudeReader._block_end,  # noqa: SLF001
    "message_delta": ClaudeReader._finished,  # noqa: SLF001
    "message_stop": ClaudeReader._last,  # noqa: SLF001
}


def _nothing(event: _StreamEvent, native: bytes) -> Event:
    """Return an event that says nothing in chat."""
    return Event(EMPTY_OBJECT, False, 1, 0, None, False, None, "", event.type, native=native)


def chat_of_message(message: bytes, deployment: Deployment) -> bytes:
    """Return a whole message as a chat completion. Raises MalformedReply."""
    return ClaudeReader(deployment).whole(message).payload


def chat_usage(usage: WireUsage) -> dict[str, Any]:
    """Return chat's usage object: tokens read from and written to a cache are within the prompt's tokens."""
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    told = {name: value for name in _USAGE_NAMES if (value := usage.get(name)) is not None}
    if type(prompt) is int and type(completion) is int:
        told["total_tokens"] = prompt + completion
    return told


_USAGE_NAMES: Final = (
    "prompt_tokens",
    "completion_tokens",
    "prompt_tokens_details",
    "completion_tokens_details",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "cache_creation",
    "server_tool_use",
)


def _head(message: _Message, kind: str) -> dict[str, Any]:
    return {
        "id": message.id if isinstance(message.id, str) else "",
        "object": kind,
        "created": int(time.time()),
        "model": message.model if isinstance(message.model, str) else "",
    }


def _finish(reason: Any, sequence: Any) -> dict[str, Any]:
    """Return the fields that tell why it ended; the sequence that was met is told as vLLM does."""
    if reason is None:
        return {"finish_reason": None}
    finish: dict[str, Any] = {"finish_reason": _FINISHES.get(str(reason), "stop")}
    return {**finish, "stop_reason": sequence} if isinstance(sequence, str) else finish


def _said(blocks: list[_Block], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the message, without the results of Anthropic's own tools, which have no place in chat."""
    texts = [block.text for block in blocks if block.type == "text" and isinstance(block.text, str)]
    said: dict[str, Any] = {"role": "assistant", "content": "".join(texts) or None}
    calls = [block for block in blocks if block.type == "tool_use"]
    if calls:
        said["tool_calls"] = [
            _call(block, names, _json(block.input if isinstance(block.input, dict) else {}).decode(), None)
            for block in calls
        ]
    thoughts = [block for block in blocks if block.type in ("thinking", "redacted_thinking")]
    if thoughts:
        said["thinking_blocks"] = [_thought(each) for each in thoughts]
        words = "".join(each.thinking for each in thoughts if isinstance(each.thinking, str))
        if words:
            said["reasoning_content"] = words
    return said


def _thought(block: _Block) -> dict[str, Any]:
    if block.type != "thinking":
        return {"type": "redacted_thinking", "data": block.data}
    return {"type": "thinking", "thinking": block.thinking or "", "signature": block.signature or ""}


def _call(block: _Block, names: Mapping[str, str], arguments: str, index: int | None) -> dict[str, Any]:
    name = block.name if isinstance(block.name, str) else ""
    function = {"name": names.get(name, name), "arguments": arguments}
    call = {"id": block.id if isinstance(block.id, str) else "", "type": "function", "function": function}
    return call if index is None else {"index": index, **call}


def _chars(said: Mapping[str, Any]) -> int:
    calls = sum(len(each) for call in said.get("tool_calls", ()) for each in call["function"].values())
    return len(said["content"] or "") + len(said.get("reasoning_content", "")) + calls


def _json(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        # Half a letter, see `providers.wire`.
        return json.dumps(value).encode()
