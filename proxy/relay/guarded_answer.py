"""The guard behind the relay: an answer's events as their caller may have them, in whatever dialect they come.

Each text of an answer (a choice's or a block's text, refusal, thoughts, arguments) is a voice of its own, and what one holds back goes
out before its end is told. Where a rule ends the answer, it ends as its dialect says that a filter ended it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from cost.usage import Usage
from guard.answers import Answer, Blocked, Means, Voice
from guard.gathered import Gathered
from guard.ruleset import Finding
from providers.wire import ChatRequest, Event
from proxy.admit.guarding import Guarded
from proxy.dispatch.stream_resumption import endings
from proxy.parse.wires.messages.dialect import STOP_DETAILS
from proxy.parse.wires.responses.dialect import usage_of
from proxy.relay.guarded_pieces import GuardedPieces

_HEAD: Final = ("id", "object", "created", "model", "system_fingerprint", "service_tier")
_CHAT_FIELDS: Final[Mapping[str, Means]] = {
    "content": "text",
    "refusal": "text",
    "reasoning_content": "thought",
    "reasoning": "thought",
    "text": "text",
}
"""The texts of a chat's delta, and that of a completion's choice."""
_CALLED: Final[Sequence[tuple[str, str, Means]]] = (
    ("function", "arguments", "arguments"),
    ("custom", "input", "text"),
)
"""The forms of a call, with what comes in pieces of each."""
_HOLDERS: Final[Mapping[str, tuple[str, Means]]] = {
    "function_call": ("arguments", "arguments"),
    "audio": ("transcript", "text"),
}
"""Objects of a delta with what comes in pieces of each."""
_LISTED: Final = frozenset({"reasoning_details", "thinking_blocks"})
_OF_ONE: Final = ("type", "index", "id", "format")
_PIECE: Final = frozenset({"index", *(form for form, _, _ in _CALLED)})
_BLOCK_FIELDS: Final[Mapping[str, Means]] = {"text": "text", "thinking": "thought", "partial_json": "arguments"}
_ARGUMENTS: Final = ("function_call_arguments", "mcp_call_arguments")
_ENDING: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})
_SAYING: Final = frozenset({"chat", "rerank", "transcriptions", "translations"})
"""The operations whose answers say something."""
_SPEAKING: Final = _SAYING - {"rerank"}
"""Those whose answers say more than their request did."""
Key = tuple[Any, ...]


class _Open(msgspec.Struct):
    """A voice that was heard, and the event that said its last piece, without that."""

    voice: Voice
    event: Event
    says: dict[str, Any]
    holder: dict[str, Any]
    name: str
    count: Callable[[dict[str, Any]], None]

    def said(self, text: str) -> Event:
        """Return an event that says a piece of it."""
        self.holder[self.name] = text
        self.count(self.says)
        return _event(self.event, self.says)

    def feed(self, text: str, told: list[Event]) -> str:
        """Return what may go out with the next piece. Raises Blocked, and says before what it still may."""
        try:
            return self.voice.feed(text)
        except Blocked as blocked:
            self._say_before(blocked, told)
            raise

    def finish(self, told: list[Event]) -> str:
        """Return what is left. Raises Blocked, as `feed` does."""
        try:
            return self.voice.finish()
        except Blocked as blocked:
            self._say_before(blocked, told)
            raise

    def _say_before(self, blocked: Blocked, told: list[Event]) -> None:
        if blocked.before:
            told.append(self.said(blocked.before))


class _Piece(NamedTuple):
    """A piece of one text of a chat's choice: in which object and under which name it stands."""

    key: Key
    holder: dict[str, Any]
    name: str
    means: Means


class _Chunk(NamedTuple):
    """An event of a chat, taken apart."""

    said: dict[str, Any]
    choice: dict[str, Any]
    delta: dict[str, Any]

    def like(self, piece: _Piece) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return an event that says nothing but a piece of the same text, and what in it holds the text."""
        within: dict[str, Any] = {piece.name: ""}
        choice: dict[str, Any] = {"index": self.choice.get("index", 0), "finish_reason": None}
        if piece.holder is self.choice:
            choice = within = choice | within
        elif piece.holder is self.delta:
            choice["delta"] = within
        elif piece.key[0] in _HOLDERS:
            choice["delta"] = {piece.key[0]: within}
        elif piece.key[0] in _LISTED:
            kept: dict[str, Any] = {name: piece.holder[name] for name in _OF_ONE if name in piece.holder}
            within |= kept
            choice["delta"] = {piece.key[0]: [within]}
        else:
            choice["delta"] = {"tool_calls": [{"index": piece.key[1], piece.key[2]: within}]}
        return {name: self.said[name] for name in _HEAD if name in self.said} | {"choices": [choice]}, within


class GuardedAnswer:
    """The answer of one request as its caller may have it."""

    def __init__(
        self, guarded: Guarded, choices: int, used: Callable[[], Usage], *, in_blocks: bool, asks: bool = True
    ) -> None:
        """`choices` are those that were asked for. `in_blocks`: the caller's wire has one text open at a time. `used` is what the answer
        has used so far. `asks`: whether somebody may have to be asked about it.
        """
        rules, body = guarded.rules, guarded.parsed.body
        self.gathered = Gathered(rules.window_chars) if guarded.asks and asks else None
        """What it says, for those who are asked about it; None where nobody is."""
        self._answer = Answer(
            rules,
            guarded.verdict.masks,
            guarded.masks(),
            is_callers=lambda name: b'"%b"' % name.encode(errors="replace") in body,
            gathered=self.gathered,
        )
        self._asked: tuple[Finding, ...] = ()
        self._choices = choices
        self._used = used
        self._in_blocks = in_blocks
        self._open: dict[Key, _Open] = {}
        self._first = b""
        """The payload of the first event of a chat."""
        self._begun: dict[str, Any] | None = None
        """The response as it began."""
        self._signed: dict[int, int] = {}
        """By a block of thoughts, how many masks there were before it."""
        self._block: int | None = None
        self._number: int | None = None
        """The number of a response's last event: there are more or fewer of them than its provider wrote."""
        self.blocked = False
        """True once a rule ended it: no more of it is to be read."""
        self.silent = 0
        """How many of the events that were told last come before all that somebody has to be asked about."""
        self._last: Event | None = None
        self._gone: tuple[int | None, int | None] = (None, None)
        """The block and the number of what went out last."""

    @staticmethod
    def of(
        guarded: Guarded | None, request: ChatRequest, used: Callable[[], Usage], *, in_blocks: bool
    ) -> "GuardedAnswer | None":
        """Return the guard of an answer; None where nothing is looked for in it, and nothing was masked."""
        if guarded is None or request.operation not in _SAYING:
            return None
        asks = guarded.asks is not None and request.operation in _SPEAKING
        if not guarded.rules.output and guarded.verdict.masks is None and not asks:
            return None
        return GuardedAnswer(guarded, request.n, used, in_blocks=in_blocks, asks=asks)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Return what was found and done: names and counts."""
        return (*self._answer.findings, *self._asked)

    def add_findings(self, found: Sequence[Finding]) -> None:
        """Add what those found who were asked."""
        self._asked = (*self._asked, *found)

    def all_went_out(self) -> None:
        """Note that whatever was told so far goes to its caller."""
        self._gone = self._block, self._number

    def filtered(self) -> list[Event]:
        """Return the events that end the answer behind what went out of it; what was told since is dropped."""
        self._block, self._number = self._gone
        told: list[Event] = []
        if self._last is not None:
            self._end(self._last, told)
        return told

    def filtered_whole(self, event: Event) -> Event:
        """Return a whole answer without what it says, ended by a filter."""
        self.blocked = True
        return _event(event, _filtered(msgspec.json.decode(event.native or event.payload)))

    def pieces(self, media_type: str) -> GuardedPieces:
        """Return the guard of an answer that passes in pieces."""
        return GuardedPieces(self._answer, media_type)

    def events(self, batch: list[Event]) -> list[Event]:
        """Return the events to write for these. After the one that is blocked come those that say so, and no more."""
        told: list[Event] = []
        self.silent = 0
        for event in batch:
            if self.blocked:
                break
            self._take(event, told)
            if self.gathered is not None and not self.gathered.unasked_chars:
                self.silent = len(told)
                self.all_went_out()
        return told

    def rest(self) -> list[Event]:
        """Return what is still held at the end of a stream."""
        told: list[Event] = []
        if not self.blocked:
            last = next(reversed(self._open.values())).event if self._open else None
            try:
                self._flush((), told)
            except Blocked:
                assert last is not None  # noqa: S101  Something was held.
                self._end(last, told)
        return told

    def whole(self, event: Event) -> Event:
        """Return a whole answer."""
        raw = event.native or event.payload
        if self._answer.passes(raw):
            return event
        said = msgspec.json.decode(raw)
        if not isinstance(said, dict):
            return event
        try:
            said = self._answer.tree(said)
        except Blocked:
            self.blocked = True
            said = _filtered(said)
        return _event(event, said)

    def _take(self, event: Event, told: list[Event]) -> None:
        self._last = event
        said = msgspec.json.decode(event.native or event.payload)
        try:
            if "choices" in said:
                self._first = self._first or event.payload
                self._chat(event, said, told)
            elif str(said.get("type", "")).startswith("response."):
                self._response(event, said, told)
            else:
                self._message(event, said, told)
        except Blocked:
            self._end(event, told)

    def _chat(self, event: Event, said: dict[str, Any], told: list[Event]) -> None:
        silent = bool(said["choices"]) and event.usage is None
        for choice in said["choices"]:
            if isinstance(choice, dict):
                silent = self._choice(event, said, choice, told) and silent
        if not silent:
            told.append(_event(event, said))

    def _choice(self, event: Event, said: dict[str, Any], choice: dict[str, Any], told: list[Event]) -> bool:
        """Change a choice's texts. Return True where nothing of it is left to say."""
        index = choice.get("index", 0)
        if choice.get("logprobs") is not None and self._answer.looks:
            choice["logprobs"] = None
        delta = choice.get("delta")
        delta = delta if isinstance(delta, dict) else {}
        if isinstance(choice.get("message"), dict):
            choice["message"] = self._answer.tree(choice["message"])
            return False
        texts = self._texts(choice, delta)
        held = bool(texts)
        for text in texts:
            held = not self._say(event, _Chunk(said, choice, delta), text, told) and held
        finished = choice.get("finish_reason") is not None
        if finished:
            for text in texts:
                if (opened := self._open.pop((index, *text.key), None)) is not None:
                    text.holder[text.name] += opened.finish(told)
            self._flush((index,), told)
        return held and not finished and not any(_says_more(name, value) for name, value in delta.items())

    def _texts(self, choice: dict[str, Any], delta: dict[str, Any]) -> list[_Piece]:
        """Return the texts of a choice that come in pieces; the others are changed as they are."""
        texts: list[_Piece] = []
        if isinstance(choice.get("text"), str):
            texts.append(_Piece(("text",), choice, "text", "text"))
        for name, value in delta.items():
            if name in _CHAT_FIELDS and isinstance(value, str):
                texts.append(_Piece((name,), delta, name, _CHAT_FIELDS[name]))
            elif name == "tool_calls" and isinstance(value, list):
                for place, call in enumerate(value):
                    texts += self._of_call(call, place)
            elif name in _HOLDERS and isinstance(value, dict):
                self._name(value)
                says, means = _HOLDERS[name]
                if isinstance(value.get(says), str):
                    texts.append(_Piece((name,), value, says, means))
            elif name in _LISTED and isinstance(value, list):
                texts += _of_list(name, value, signed=not self._answer.changed)
            elif value is not None:
                delta[name] = self._answer.tree(value, name)
        return texts

    def _of_call(self, call: Any, place: int) -> list[_Piece]:
        """Return the text of a call that comes in pieces: JSON, or for a tool of its own form any text."""
        texts: list[_Piece] = []
        for form, name, means in _CALLED:
            called = call.get(form) if isinstance(call, dict) else None
            if isinstance(called, dict):
                self._name(called)
                if isinstance(called.get(name), str):
                    texts.append(_Piece(("tool_calls", call.get("index", place), form), called, name, means))
        return texts

    def _name(self, called: dict[str, Any]) -> None:
        if isinstance(called.get("name"), str):
            called["name"] = self._answer.name(called["name"])

    def _say(self, event: Event, chunk: _Chunk, piece: _Piece, told: list[Event]) -> bool:
        """Say the next piece of a voice. Return True where some of it goes out."""
        text = piece.holder[piece.name]
        key = (chunk.choice.get("index", 0), *piece.key)
        if self._in_blocks and key not in self._open and (text or piece.means == "arguments"):
            self._flush(key[:1], told)
        if not text:
            return False
        opened = self._open.get(key)
        voice = self._answer.voice(piece.means) if opened is None else opened.voice
        again, within = chunk.like(piece)
        opened = self._open[key] = _Open(voice, event, again, within, piece.name, self._count)
        out = piece.holder[piece.name] = opened.feed(text, told)
        return bool(out)

    def _flush(self, of: Key, told: list[Event]) -> None:
        """Say what the voices hold whose key begins so, and end them."""
        for key in [key for key in self._open if key[: len(of)] == of]:
            opened = self._open.pop(key)
            if text := opened.finish(told):
                told.append(opened.said(text))

    def _message(self, event: Event, said: dict[str, Any], told: list[Event]) -> None:
        kind, index = said.get("type"), said.get("index")
        if kind == "content_block_start":
            block = said.get("content_block") or {}
            self._block = index
            self._signed[index or 0] = self._answer.changed
            first = {name: block.pop(name) for name in _BLOCK_FIELDS if isinstance(block.get(name), str)}
            said["content_block"] = self._answer.tree(block) | dict.fromkeys(first, "")
            told.append(_event(event, said))
            for name, text in first.items():
                if text:
                    self._piece((index,), {**said, "type": "content_block_delta"}, event, name, text, told)
            return
        if kind == "content_block_delta":
            self._delta(event, said, told)
            return
        if kind == "content_block_stop":
            self._flush((index,), told)
            self._block = None
        elif kind == "message_start":
            said = self._begun_message(said)
        elif kind not in {"message_delta", "message_stop", "ping", "error"}:
            said = self._answer.tree(said)
        told.append(_event(event, said))

    def _begun_message(self, said: dict[str, Any]) -> dict[str, Any]:
        message, gathered = said.get("message"), self.gathered
        if gathered is None or not isinstance(message, dict) or message.get("content"):
            return dict(self._answer.tree(said))
        # It says nothing yet, so it waits for nobody.
        with gathered.paused():
            return dict(self._answer.tree(said))

    def _delta(self, event: Event, said: dict[str, Any], told: list[Event]) -> None:
        delta, index = said.get("delta") or {}, said.get("index")
        for name in _BLOCK_FIELDS:
            if isinstance(delta.get(name), str):
                self._piece((index,), said, event, name, delta[name], told)
                return
        if delta.get("signature"):
            # Its thoughts are out then, and whether they are what was signed.
            self._flush((index,), told)
            if self._signed.get(index or 0, 0) != self._answer.changed:
                delta["signature"] = ""
        said["delta"] = self._answer.tree(delta)
        told.append(_event(event, said))

    def _piece(self, key: Key, said: Mapping[str, Any], event: Event, name: str, text: str, told: list[Event]) -> None:
        opened = self._open.get(key)
        voice = self._answer.voice(_BLOCK_FIELDS[name]) if opened is None else opened.voice
        delta = {"type": _DELTAS[name], name: ""}
        again = {"type": "content_block_delta", "index": said.get("index"), "delta": delta}
        like = msgspec.structs.replace(event, kind="content_block_delta")
        self._open[key] = opened = _Open(voice, like, again, delta, name, self._count)
        if out := opened.feed(text, told):
            told.append(opened.said(out))

    def _response(self, event: Event, said: dict[str, Any], told: list[Event]) -> None:
        kind = said["type"]
        if kind == "response.created":
            self._begun = said
        if kind.endswith(".delta") and isinstance(said.get("delta"), str):
            self._response_delta(event, said, kind, told)
            return
        if kind.endswith((".done", ".added")) or kind in _ENDING:
            of = () if kind in _ENDING else _place_of(said)
            if not kind.endswith(".added"):
                self._flush(of, told)
        said = self._answer.tree(said)
        self._count(said)
        told.append(_event(event, said))

    def _response_delta(self, event: Event, said: dict[str, Any], kind: str, told: list[Event]) -> None:
        key = (*_place_of(said), kind)
        opened = self._open.get(key)
        means: Means = "arguments" if any(each in kind for each in _ARGUMENTS) else "text"
        voice = self._answer.voice(means) if opened is None else opened.voice
        if said.get("logprobs") and self._answer.looks:
            said["logprobs"] = []
        text, said["delta"] = said["delta"], ""
        self._open[key] = opened = _Open(voice, event, said, said, "delta", self._count)
        if out := opened.feed(text, told):
            told.append(opened.said(out))

    def _count(self, said: dict[str, Any]) -> None:
        """Give an event of a response its number among those that are written."""
        if isinstance(said.get("sequence_number"), int):
            self._number = said["sequence_number"] if self._number is None else self._number + 1
            said["sequence_number"] = self._number

    def _end(self, event: Event, told: list[Event]) -> None:
        """Say that a filter ended the answer."""
        self.blocked = True
        self._open.clear()
        said = msgspec.json.decode(event.native or event.payload)
        if "choices" in said:
            told += endings(self._first, self._choices, "content_filter")
        elif str(said.get("type", "")).startswith("response."):
            told.append(self._ended_response(event, said))
        else:
            told += self._ended_message(event)

    def _ended_response(self, event: Event, said: Mapping[str, Any]) -> Event:
        begun = dict((self._begun or {}).get("response") or {})
        response = _filtered({**begun, "object": "response"})
        kind = "response.incomplete"
        response["usage"] = usage_of(self._used())
        ended = {"type": kind, "sequence_number": said.get("sequence_number"), "response": response}
        self._count(ended)
        return msgspec.structs.replace(_event(event, ended), kind=kind, finished=True)

    def _ended_message(self, event: Event) -> list[Event]:
        delta = {"stop_reason": "refusal", "stop_sequence": None, "stop_details": STOP_DETAILS}
        ended: list[tuple[dict[str, Any], bool]] = [
            ({"type": "message_delta", "delta": delta, "usage": {"output_tokens": self._used().output_tokens}}, True),
            ({"type": "message_stop"}, False),
        ]
        if self._block is not None:
            ended.insert(0, ({"type": "content_block_stop", "index": self._block}, False))
        return [
            msgspec.structs.replace(_event(event, said), kind=said["type"], finished=finished, token=False)
            for said, finished in ended
        ]


_DELTAS: Final = {"text": "text_delta", "thinking": "thinking_delta", "partial_json": "input_json_delta"}


def _of_list(name: str, values: list[Any], *, signed: bool) -> list[_Piece]:
    """Return the texts of a list of thoughts, of which each goes on by its number. What is not `signed` any more loses its signature."""
    for each in values:
        if isinstance(each, dict) and each.get("signature") and not signed:
            each["signature"] = ""
    return [
        _Piece((name, each.get("index", place), says), each, says, "thought")
        for place, each in enumerate(values)
        if isinstance(each, dict)
        for says in ("text", "summary", "thinking")
        if isinstance(each.get(says), str)
    ]


def _says_more(name: str, value: Any) -> bool:
    """Return True for a field of a delta that is no piece of a text."""
    if value is None or name in _CHAT_FIELDS:
        return False
    if name != "tool_calls" or not isinstance(value, list):
        return True
    return not all(isinstance(call, dict) and call.keys() <= _PIECE and _is_piece(call) for call in value)


def _is_piece(call: Mapping[str, Any]) -> bool:
    return any(isinstance(call.get(form), dict) and call[form].keys() == {name} for form, name, _ in _CALLED)


def _place_of(said: Mapping[str, Any]) -> Key:
    inner = (said[name] for name in ("content_index", "summary_index") if name in said)
    return (said.get("output_index"), *inner)


def _event(event: Event, said: Mapping[str, Any]) -> Event:
    """Return the event that says this in the same dialect."""
    written = msgspec.json.encode(said)
    words = _words_of(said) if event.words else ""
    if event.native:
        return msgspec.structs.replace(event, native=written, payload=_EMPTY, words="", run=None)
    return msgspec.structs.replace(event, payload=written, words=words, run=None)


def _words_of(said: Mapping[str, Any]) -> str:
    """Return the text of an event that says nothing else."""
    choices = said.get("choices")
    delta = choices[0].get("delta") if choices and isinstance(choices[0], dict) else None
    content = delta.get("content") if isinstance(delta, dict) and len(delta) == 1 else None
    return content if isinstance(content, str) else ""


def _filtered(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return a whole answer without what it says, ended by a filter."""
    if said.get("object") == "response":
        return {**said, "status": "incomplete", "incomplete_details": {"reason": "content_filter"}, "output": []}
    if said.get("type") == "message":
        ended = {"stop_reason": "refusal", "stop_sequence": None, "stop_details": STOP_DETAILS}
        return {**said, "content": [], **ended}
    if "choices" not in said:
        return {name: "" if isinstance(each, str) else None for name, each in said.items()}
    choices = [each for each in said["choices"] if isinstance(each, dict)]
    return {**said, "choices": [_filtered_choice(each) for each in choices]}


def _filtered_choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    said: dict[str, Any] = {"text": ""} if "text" in choice else {"message": {"role": "assistant", "content": ""}}
    return {"index": choice.get("index", 0), **said, "logprobs": None, "finish_reason": "content_filter"}


_EMPTY: Final = b"{}"
