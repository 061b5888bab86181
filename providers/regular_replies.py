"""Replies of chat's dialect in OpenAI's form, whatever form their engine has, so that every wire is told the same of them.

What has that form already passes as the bytes that came. Of a stream's tool calls each begins with its id and name, and is told to its
end before anything else is: its pieces are not mixed with those of others, nor with texts, as most APIs cannot say that.
"""

import json
import re
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from providers.errors import MalformedReply
from providers.finish_reasons import USUAL, meaning_of
from providers.wire import ChatRequest, Event, decode_event
from settings.decoding import DECODE_ERRORS

_MARKS: Final = re.compile(r'\\.?|["{}\[\]]', re.DOTALL)
"""The characters that tell where a JSON value ends, and what a backslash takes their meaning from."""
_DEPTHS: Final[Mapping[str, int]] = {"{": 1, "[": 1, "}": -1, "]": -1}
_MOST_HELD_CHARS: Final = 8 * 1024 * 1024
_REST: Final = ("content", "refusal", "reasoning", "reasoning_content", "reasoning_details", "audio", "thinking_blocks")
_Fields = dict[str, Any]


class CallIds:
    """The ids of one reply's calls. None of them is the id of a call in the conversation before."""

    def __init__(self, request: ChatRequest, request_id: str) -> None:
        self._before = bytes(request.fields.get("messages", b""))
        self._number = request_id.removeprefix("req_").replace("-", "_")
        self._given: set[str] = set()

    def unique(self, came: str) -> str:
        """Return the id that came, or one of our own where it came none, or one that is taken."""
        found = came
        if not came or came in self._given or msgspec.json.encode(came) in self._before:
            found = f"call_{self._number}_{len(self._given)}"
        self._given.add(found)
        return found


def regular_answer(event: Event, request: ChatRequest, request_id: str, deployment_id: str) -> Event:
    """Return a whole answer in OpenAI's form."""
    if not event.odd:
        return event
    ids = CallIds(request, request_id)
    answer = decoded(event.payload)
    legacy, forced = "functions" in request.fields, _is_forced(request)
    for choice in answer["choices"]:
        if isinstance(choice.get("message"), dict):
            _regular_message(choice["message"], ids, legacy=legacy)
            choice["finish_reason"] = _whole_reason(choice, forced=forced)
    return decode_event(_encoded(answer), deployment_id)


def _whole_reason(choice: _Fields, *, forced: bool) -> str:
    """Return why a whole answer ended. One that came whole has ended, though it may not say why."""
    return _reason(choice.get("finish_reason"), called=bool(choice["message"].get("tool_calls")), forced=forced) or (
        "tool_calls" if choice["message"].get("tool_calls") else "stop"
    )


def _reason(came: Any, *, called: bool, forced: bool) -> str | None:
    """Return the reason in OpenAI's words; None for none yet. Agents go on by the one for calls, which OpenAI itself does not give
    for a call that was `forced` by name.
    """
    if came is None or (meaning := meaning_of(came)) == "on":
        return None
    if called and (came == "function_call" or (meaning == "stop" and not (forced and came == "stop"))):
        return "tool_calls"
    return str(came) if came in USUAL else meaning


def _is_forced(request: ChatRequest) -> bool:
    """Return True where the request names the tool to call."""
    return bytes(request.fields.get("tool_choice", b""))[:1] == b"{"


def _regular_message(message: _Fields, ids: CallIds, *, legacy: bool) -> None:
    _split_content(message)
    if not legacy:
        _as_tool_call(message)
    if "tool_calls" not in message:
        return
    found: list[_Fields] = []
    told: set[tuple[str, str, str]] = set()
    for call in message["tool_calls"] or ():
        function = call.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            # Nobody could carry it out.
            continue
        arguments = whole_arguments(function.get("arguments"))
        same = _id_of(call), function["name"], arguments
        if same[0] and same in told:
            continue
        told.add(same)
        regular = {**call, "id": ids.unique(same[0]), "type": "function"}
        found.append({**regular, "function": {**function, "arguments": arguments}})
    message["tool_calls"] = found
    if not found:
        del message["tool_calls"]


def _id_of(call: Mapping[str, Any]) -> str:
    given = call.get("id")
    return str(given) if isinstance(given, str) or type(given) is int else ""


def _split_content(said: _Fields) -> bool:
    """Take content that is a list of parts apart, as Mistral's: its texts, thoughts and refusals. Return True if it was one."""
    parts = said.get("content")
    if not isinstance(parts, list):
        return False
    texts: dict[str, list[str]] = {"content": [], "reasoning_content": [], "refusal": []}
    for part in parts:
        if not isinstance(part, dict):
            continue
        thinking = part.get("thinking")
        inner = thinking if isinstance(thinking, list) else [{"text": thinking}]
        thoughts = [each.get("text") for each in inner if isinstance(each, dict)]
        texts["reasoning_content"] += [each for each in thoughts if isinstance(each, str)]
        for name, value in (("content", part.get("text")), ("refusal", part.get("refusal"))):
            if isinstance(value, str):
                texts[name].append(value)
    said["content"] = "".join(texts["content"])
    for name in ("reasoning_content", "refusal"):
        if texts[name] and not said.get(name):
            said[name] = "".join(texts[name])
    return True


def _as_tool_call(said: _Fields) -> bool:
    """Turn the older call of a function into a tool call. Return True if there was one."""
    function = said.pop("function_call", None)
    if not isinstance(function, dict) or said.get("tool_calls"):
        return function is not None
    said["tool_calls"] = [{"index": 0, "type": "function", "function": function}]
    return True


def whole_arguments(given: Any) -> str:
    """Return a call's arguments as the text of one JSON object: engines send objects, nothing, several values, or a text within
    a text. What is no object stays as it came.
    """
    if given is None:
        return "{}"
    if not isinstance(given, str):
        return _encoded(given).decode()
    text = given.strip()
    while True:
        value = _Value()
        end = value.feed(text)
        if end < 0:
            return _odd_arguments(text, given)
        rest = text[end:].strip()
        if text[1 : end - 1].strip() or not rest.startswith("{"):
            return given if given == text[:end] else text[:end]
        # Some begin with an empty object and then say the arguments.
        text = rest


def _odd_arguments(text: str, given: str) -> str:
    if not text:
        return "{}"
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return given
    if found in (None, ""):
        return "{}"
    return whole_arguments(found) if isinstance(found, str) and found.lstrip().startswith("{") else given


class _Value:
    """A reader of one JSON object that comes in pieces: it knows where that ends."""

    __slots__ = ("_escaped", "_in_text", "depth", "ended", "is_object")

    def __init__(self) -> None:
        self.depth = 0
        self.ended = False
        self.is_object: bool | None = None
        """None until something came."""
        self._in_text = self._escaped = False

    def feed(self, piece: str) -> int:
        """Return where in the piece the object ends, or -1."""
        if self.is_object is None and (begun := piece.lstrip()):
            self.is_object = begun[0] == "{"
        if not self.is_object or not piece:
            return -1
        at = 1 if self._escaped else 0
        self._escaped = False
        for found in _MARKS.finditer(piece, at):
            mark = found[0]
            if self._in_text:
                self._in_text = mark != '"'
                self._escaped = mark == "\\"
            elif mark == '"':
                self._in_text = True
            else:
                self.depth += _DEPTHS.get(mark, 0)
                if self.depth == 0:
                    self.ended = True
                    return found.end()
        return -1


class _Call:
    """A call of a stream, and the arguments that came of it and are not told yet."""

    __slots__ = (
        "call_id",
        "came_id",
        "closed",
        "extra",
        "is_numbered",
        "name",
        "number",
        "pending",
        "told",
        "told_any",
        "value",
    )

    def __init__(self, number: int, came_id: str, call_id: str) -> None:
        self.number = number
        self.is_numbered = False
        """True where the host gives it the same number."""
        self.came_id = came_id
        self.call_id = call_id
        self.name = ""
        self.extra: _Fields = {}
        """Further fields of its beginning, such as a thought's signature."""
        self.pending: list[str] = []
        self.value = _Value()
        self.told = False
        """True once its beginning is told."""
        self.told_any = False
        """True once any of its arguments are."""
        self.closed = False

    def take(self, arguments: str) -> bool:
        """Add a piece of the arguments. Return False where not all of it belongs to them."""
        if self.value.ended:
            if self.told_any or not arguments.strip():
                return not arguments
            # An empty object before the arguments.
            self.value, self.pending = _Value(), []
            self.take(arguments)
            return False
        end = self.value.feed(arguments)
        self.pending.append(arguments if end < 0 else arguments[:end])
        return end < 0 or end == len(arguments)

    def ready(self) -> str:
        """Return the arguments that may be told: none of what is no object, and nothing of an object that may stay empty."""
        if self.told_any:
            text, self.pending = "".join(self.pending), []
            return text
        if not self.value.is_object:
            return ""
        text = "".join(self.pending).lstrip()
        if text[1:].strip() in ("", "}"):
            return ""
        self.told_any, self.pending = True, []
        return text

    def rest(self) -> str:
        """Return the arguments that are left at the end."""
        text, self.pending = "".join(self.pending), []
        return text if self.told_any else whole_arguments(text)


class _PieceFunction(msgspec.Struct):
    name: Any = None
    arguments: Any = None


class _PieceCall(msgspec.Struct):
    function: _PieceFunction
    index: Any = None
    id: Any = None


class _PieceDelta(msgspec.Struct):
    tool_calls: list[_PieceCall]
    content: Any = None
    refusal: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    reasoning_details: Any = None
    audio: Any = None
    thinking_blocks: Any = None
    function_call: Any = None

    @property
    def call(self) -> _PieceCall | None:
        """The piece of a call, where there is nothing else."""
        beside = (
            self.content
            or self.refusal
            or self.reasoning
            or self.reasoning_content
            or self.reasoning_details
            or self.audio
            or self.thinking_blocks
            or self.function_call
        )
        return None if beside or len(self.tool_calls) > 1 else self.tool_calls[0]


class _PieceChoice(msgspec.Struct):
    delta: _PieceDelta
    index: int = 0
    finish_reason: None = None


class _PieceChunk(msgspec.Struct):
    choices: tuple[_PieceChoice]


_decode_piece: Final = msgspec.json.Decoder(_PieceChunk).decode


class RegularStream:
    """The events of one stream in OpenAI's form."""

    def __init__(self, request: ChatRequest, request_id: str, deployment_id: str) -> None:
        self._ids = CallIds(request, request_id)
        self._legacy, self._forced = "functions" in request.fields, _is_forced(request)
        self._deployment_id = deployment_id
        self._answers: dict[Any, _Answer] = {}

    def events(self, event: Event) -> list[Event]:
        """Return the events to go on with for one that came. Raises MalformedReply."""
        if not event.choices or self._goes_on(event):
            return [event]
        chunk = decoded(event.payload)
        found: list[_Fields] = []
        is_same = True
        for choice in chunk["choices"]:
            index = choice.get("index") if type(choice.get("index")) is int else 0
            answer = self._answers.get(index)
            if answer is None:
                answer = self._answers[index] = _Answer(self._ids, legacy=self._legacy, forced=self._forced)
            told = answer.told(choice)
            if told is None:
                found.append(choice)
            else:
                is_same = False
                found += told
        if is_same:
            return [event]
        if sum(answer.held_chars for answer in self._answers.values()) > _MOST_HELD_CHARS:
            raise MalformedReply("The upstream mixed too much into a tool call.", deployment_id=self._deployment_id)
        usage = chunk.pop("usage", None)
        payloads = [{**chunk, "choices": [choice]} for choice in found]
        if usage is not None:
            payloads = payloads or [{**chunk, "choices": []}]
            payloads[-1]["usage"] = usage
        return [decode_event(_encoded(payload), self._deployment_id) for payload in payloads]

    def _goes_on(self, event: Event) -> bool:
        """Return True for a piece of the open call's arguments, as most events with calls are: it passes as it came."""
        if event.finished or not self._answers:
            return False
        try:
            (choice,) = _decode_piece(event.payload).choices
        except DECODE_ERRORS:
            return False
        answer, call = self._answers.get(choice.index), choice.delta.call if choice.delta.tool_calls else None
        return answer is not None and call is not None and answer.goes_on(call)


class _Answer:
    """One of a stream's choices."""

    def __init__(self, ids: CallIds, *, legacy: bool, forced: bool) -> None:
        self._ids = ids
        self._legacy = legacy
        self._forced = forced
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._by_id: dict[str, _Call] = {}
        self._open: _Call | None = None
        """The call that is being told."""
        self._waiting: deque[_Call | _Fields] = deque()
        """What came before that was whole, in its order: other calls, and deltas."""
        self._is_same = True
        self._deltas: list[_Fields] = []
        self.held_chars = 0

    def told(self, choice: _Fields) -> list[_Fields] | None:
        """Return the choices of the events to go on with; None for this one as it came."""
        self._is_same, self._deltas = True, []
        delta = choice.get("delta")
        if isinstance(delta, dict):
            self._say(delta)
        came = choice.get("finish_reason")
        reason = came
        if came is not None:
            reason = _reason(came, called=any(call.name for call in self._calls), forced=self._forced)
            if reason is not None:
                self._flush()
            self._is_same = self._is_same and reason == came
        if self._is_same:
            return None
        beside = {name: value for name, value in choice.items() if name not in ("delta", "finish_reason")}
        told = [{**beside, "delta": each, "finish_reason": None} for each in self._deltas]
        if reason is not None:
            told = told or [{**beside, "delta": {}}]
            told[-1]["finish_reason"] = reason
        return told

    def goes_on(self, piece: _PieceCall) -> bool:
        """Take a piece of the open call's arguments that neither begins nor ends them. Return False for all others, which are not
        taken.
        """
        call, arguments = self._open, piece.function.arguments
        if call is None or not (call.told_any and call.is_numbered) or piece.index != call.number:
            return False
        if piece.id or piece.function.name or type(arguments) is not str or "}" in arguments:
            return False
        call.value.feed(arguments)
        return True

    def _say(self, delta: _Fields) -> None:
        rest = dict(delta)
        is_split = _split_content(rest)
        is_turned = not self._legacy and _as_tool_call(rest)
        calls = rest.pop("tool_calls", None)
        says = any(rest.get(name) for name in _REST)
        if is_split or is_turned or (says and calls):
            self._is_same = False
        if says:
            self._speak(rest)
        elif rest:
            self._deltas.append(rest)
        if not calls:
            return
        deltas = len(self._deltas)
        for call in calls:
            if isinstance(call, dict):
                self._add(call)
        if len(self._deltas) == deltas or len(calls) > 1:
            # Nothing of it may be told yet, or each call has a delta of its own.
            self._is_same = False

    def _speak(self, said: _Fields) -> None:
        """Tell texts, or hold them back while a call is told."""
        if self._open is not None and self._open.value.ended:
            self._close(self._open)
        if self._open is None:
            self._deltas.append(said)
            return
        self._is_same = False
        self._waiting.append(said)
        self.held_chars += sum(len(value) for value in said.values() if isinstance(value, str))

    def _add(self, piece: _Fields) -> None:
        """Add a piece of a call."""
        function = piece.get("function")
        function = function if isinstance(function, dict) else {}
        name, given = function.get("name"), function.get("arguments")
        arguments = given if isinstance(given, str) else "" if given is None else _encoded(given).decode()
        came_id = _id_of(piece)
        call = self._whose(piece.get("index"), came_id, name if isinstance(name, str) else "", arguments)
        if call is None or call.closed:
            return
        is_first = not call.told
        if not call.name and isinstance(name, str):
            call.name = name
        call.extra |= {key: value for key, value in piece.items() if key not in ("index", "id", "type", "function")}
        all_taken = call.take(arguments)
        if call is not self._open:
            self._is_same = False
            self.held_chars += len(arguments)
            return
        told = self._tell(call)
        if is_first:
            as_came = piece.get("id") == call.call_id and piece.get("type") == "function" and given == told
        else:
            as_came = "id" not in piece and "name" not in function and given == told
            as_came = as_came or (given == told and not piece.get("id") and not name)
        self._is_same = self._is_same and as_came and all_taken and piece.get("index") == call.number
        if call.value.ended and call.told_any:
            self._close(call)

    def _whose(self, index: Any, came_id: str, name: str, arguments: str) -> _Call | None:
        """Return the call that a piece belongs to, which may begin with it; None for nobody's."""
        if isinstance(index, str) and index.isdigit():
            index = int(index)
        number = index if type(index) is int else None
        known = self._by_id.get(came_id) if came_id else None
        last = self._calls[-1] if self._calls else None
        found = (known or last) if number is None else self._by_index.get(number)
        if found is not None and not _begins(found, came_id, name, arguments):
            return found
        if found is not None and known is not None and known.name == name:
            return known
        if not (name or came_id or arguments):
            return None
        call = _Call(len(self._calls), came_id, self._ids.unique(came_id))
        self._calls.append(call)
        if number is not None:
            self._by_index[number] = call
            call.is_numbered = number == call.number
        if came_id:
            self._by_id[came_id] = call
        if self._open is not None and self._open.value.ended:
            self._close(self._open)
        if self._open is None:
            self._open = call
        else:
            self._waiting.append(call)
        return call

    def _tell(self, call: _Call) -> str | None:
        """Tell what may be told of the call. Return its arguments; None for nothing."""
        if not call.told and not call.name:
            return None
        arguments = call.ready()
        if call.told and not arguments:
            return None
        self._emit(call, arguments)
        return arguments

    def _emit(self, call: _Call, arguments: str) -> None:
        if call.told:
            piece: _Fields = {"index": call.number, "function": {"arguments": arguments}}
        else:
            call.told = True
            function = {"name": call.name, "arguments": arguments}
            piece = {"index": call.number, "id": call.call_id, "type": "function", "function": function, **call.extra}
        self._deltas.append({"tool_calls": [piece]})

    def _close(self, call: _Call) -> None:
        """Tell the end of the open call, and then what waited for it."""
        self._end(call)
        while self._waiting and self._open is None:
            following = self._waiting.popleft()
            self._is_same = False
            if isinstance(following, dict):
                self._deltas.append(following)
                continue
            self._open = following
            self._tell(following)
            if following.value.ended and (following.told_any or self._waiting):
                self._end(following)
        if not self._waiting:
            self.held_chars = 0

    def _end(self, call: _Call) -> None:
        call.closed = True
        if call is self._open:
            self._open = None
        if not call.name:
            # Nobody could carry it out.
            return
        rest = call.rest()
        if rest or not call.told:
            self._is_same = False
            self._emit(call, rest)

    def _flush(self) -> None:
        while self._open is not None:
            self._close(self._open)


def _begins(call: _Call, came_id: str, name: str, arguments: str) -> bool:
    """Return True where a piece that has the place of this call begins another one: some hosts number none of their calls."""
    if (came_id and came_id == call.came_id) or not name or not call.name:
        return False
    if name != call.name:
        return True
    return call.value.ended and bool(arguments or came_id)


def decoded(payload: bytes) -> _Fields:
    """Return the fields of an event's payload."""
    try:
        found: _Fields = msgspec.json.decode(payload)
    except DECODE_ERRORS:
        # Half a letter, see `providers.wire`.
        found = json.loads(payload.decode(errors="replace"))
    return found


def _encoded(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(value).encode()
