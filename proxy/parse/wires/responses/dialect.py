"""Chat completions as responses: whole, and as the published sequence of numbered events.

A whole answer is put together by the same writer as a stream, which then writes no events.
"""

import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal

import msgspec

from cost.usage import Usage
from providers.wire import Event
from proxy.errors import ErrorReply
from proxy.parse.wires.completions_of_chat import Call, Choice, Said, completion_of, sse, to_json
from proxy.parse.wires.own_fields import own_fields
from proxy.parse.wires.reading import said
from proxy.parse.wires.responses.continuing import conversation_of
from proxy.parse.wires.responses.conversation import with_turn
from proxy.parse.wires.responses.items import PREFIX, Item, sealed_thinking, with_ids
from proxy.parse.wires.responses.tools import INPUT, Tool, Toolbox, choice_as_told, tool_as_told
from proxy.parse.wires.thoughts import Heard
from proxy.parse.wires.wire import Change, EventWriter, Kept, Served
from settings.decoding import DECODE_ERRORS

_TOO_MANY: Final = 429
_CODES: Final[Mapping[str, str]] = {"context_length_exceeded": "context_length_exceeded"}
"""Codes that a failed response has, too. OpenAI's types do not know this one, and its own agent shortens a conversation by it."""
_INCOMPLETE: Final[Mapping[str, str]] = {"length": "max_output_tokens", "content_filter": "content_filter"}
_ECHOED: Final[Mapping[str, Any]] = {
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "prompt_cache_key": None,
    "safety_identifier": None,
    "temperature": 1.0,
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "user": None,
}
"""The request fields that a response repeats, with the values of those that the request leaves out."""
_RESHAPED: Final = frozenset({"background", "reasoning", "text"})
"""The fields that it repeats in another form."""
_BLANK: Final[Mapping[str, Any]] = {
    "id": "",
    "object": "response",
    "created_at": 0,
    "completed_at": None,
    "status": "",
    "background": False,
    "conversation": None,
    "error": None,
    "incomplete_details": None,
    **_ECHOED,
    "model": "",
    "output": [],
    "reasoning": {"effort": None, "summary": None},
    "text": {"format": {"type": "text"}, "verbosity": "medium"},
    "service_tier": "default",
    "store": True,
    "truncation": "disabled",
    "usage": None,
}
"""A response with none of its values yet. It has all names, so that a copy never grows."""
_REASONING: Final = "reasoning.encrypted_content"
_LOGPROBS: Final = ("token", "logprob", "bytes", "top_logprobs")
_Part = Literal["output_text", "refusal", "reasoning_text"]


class ResponsesDialect:
    """A dialect that writes responses. `fields` is the request's body, of which fields that are only repeated need
    not be decoded; `items` returns its input with all earlier turns. A background response has its `number`, the
    common part of its ids, and perhaps its first `events`.
    """

    def __init__(
        self,
        fields: Mapping[str, Any],
        items: Callable[[], list[Item]],
        box: Toolbox,
        *,
        number: str | None = None,
        events: int = 0,
    ) -> None:
        self._number = number
        self._events = events
        self._fields = fields
        self._items = items
        self._box = box
        self._writer: weakref.ref[_EventWriter] | None = None
        """The present writer. It holds this dialect, so a strong reference would leave both to the garbage collector."""
        self._made: dict[str, Any] | None = None
        """The whole response, once it was made to be kept."""
        self._conversation = conversation_of(fields)
        self._stores = fields.get("store") is not False
        include = fields.get("include")
        self.seals_words = _REASONING in (include if isinstance(include, list) else ())
        """The caller wants reasoning whole in its encrypted content."""
        self.keeps = self._stores or self._conversation is not None
        """False once it turned out that nothing can be kept, and the response has to say so."""

    def whole(self, payload: bytes, served: Served) -> bytes:
        made = self._made
        if made is None:
            made = self._written(payload, served)
        elif not self.keeps:
            made |= {"conversation": None, "store": False}
        return to_json(made)

    def events(self, served: Served) -> EventWriter:
        writer = _EventWriter(self, served, self._box, self._events)
        self._writer = weakref.ref(writer)
        return writer

    def to_keep(self, payload: bytes | None, served: Served) -> Kept:
        """Return the record, to be kept or remembered, of a whole answer, or of the stream that was written."""
        if payload is not None:
            response = self._made = self._written(payload, served)
        else:
            writer = None if self._writer is None else self._writer()
            assert writer is not None  # noqa: S101  # A stream was written.
            writer.settle()
            response = writer.finished()
        return self._kept(response)

    def queued(self, request_id: str, created_at: int) -> Kept:
        """Return the record of a response that is queued."""
        number = request_id.removeprefix("req_")
        response = self._object(number, created_at, "queued", [], model=self._fields["model"])
        return msgspec.structs.replace(self._kept(response), told=to_json(response))

    def warmed(self, request_id: str, created_at: int) -> Kept:
        """Return the record of a request that is not to be answered yet. `told` are the events that say so."""
        number = request_id.removeprefix("req_")
        usage = usage_of(Usage())
        begun = self._object(number, created_at, "in_progress", [], model=self._fields["model"])
        whole = {**begun, "status": "completed", "completed_at": created_at, "usage": usage}
        told = b"".join(
            sse(kind.encode(), {"type": kind, "sequence_number": index, "response": response})
            for index, (kind, response) in enumerate(
                (("response.created", begun), ("response.in_progress", begun), ("response.completed", whole))
            )
        )
        return msgspec.structs.replace(self._kept(whole), told=told)

    def response(self, served: Served, status: str, output: list[Item], **more: Any) -> dict[str, Any]:
        """Return a response object at this point of its life."""
        told = {"model": served.target_id, **more}
        return self._object(self.number(served), served.created_at, status, output, **told)

    def number(self, served: Served) -> str:
        """Return the common part of the ids of the response and its items."""
        return self._number or served.request_id.removeprefix("req_")

    def _kept(self, response: dict[str, Any]) -> Kept:
        items = with_ids(self._items(), response["id"].removeprefix("resp_"))
        turn = None
        if self._conversation is not None:
            turn = Change(self._conversation, lambda record: with_turn(record, [*items, *response["output"]]))
        record = to_json({"response": response, "items": items})
        return Kept(response["id"], record, is_stored=self._stores, turn=turn)

    def _object(self, number: str, created_at: int, status: str, output: list[Item], **more: Any) -> dict[str, Any]:
        conversation = self._conversation if self.keeps else None
        return {
            **_BLANK,
            **self._echoed(),
            "id": f"resp_{number}",
            "created_at": created_at,
            "status": status,
            "conversation": None if conversation is None else {"id": conversation},
            "output": output,
            "store": self.keeps and self._stores,
            **more,
        }

    def _echoed(self) -> dict[str, Any]:
        """Return the request fields that a response repeats."""
        fields = self._fields
        echoed = said(fields, _ECHOED)
        if tools := echoed.get("tools"):
            echoed["tools"] = [tool_as_told(each) for each in tools]
            echoed["tool_choice"] = choice_as_told(echoed.get("tool_choice", "auto"))
        if _RESHAPED.isdisjoint(fields):
            return echoed
        if fields.get("background") is True:
            echoed["background"] = True
        if text := fields.get("text"):
            echoed["text"] = _text_as_told(text)
        if reasoning := fields.get("reasoning"):
            echoed["reasoning"] = {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")}
        return echoed

    def ended(self, served: Served, output: list[Item], *, model: str, tier: str, finish: str) -> dict[str, Any]:
        """Return the response at its end."""
        tally, reason = served.tally(), _INCOMPLETE.get(finish)
        conversation = self._conversation if self.keeps else None
        return {
            **_BLANK,
            **self._echoed(),
            "id": f"resp_{self.number(served)}",
            "created_at": served.created_at,
            "completed_at": served.now_s() if reason is None else None,
            "status": "completed" if reason is None else "incomplete",
            "incomplete_details": None if reason is None else {"reason": reason},
            "conversation": None if conversation is None else {"id": conversation},
            "model": model,
            "output": output,
            "service_tier": tier,
            "store": self.keeps and self._stores,
            "usage": usage_of(tally.usage),
            **own_fields(served, tally),
        }

    def _written(self, payload: bytes, served: Served) -> dict[str, Any]:
        completion = completion_of(payload)
        choice = completion.first
        message = None if choice is None or choice.logprobs is not None else choice.message
        words = "" if message is None else message.only_text
        if not words or choice is None:
            writer = _EventWriter(self, served, self._box, tells=False)
            writer.say(payload, [])
            writer.settle()
            return writer.finished()
        # Most answers are one message of one text.
        finish, model, tier = choice.finish or "", completion.model, completion.service_tier
        item = {
            "id": f"msg_{self.number(served)}_0",
            "type": "message",
            "status": "incomplete" if finish in _INCOMPLETE else "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": words, "annotations": [], "logprobs": []}],
        }
        model = model if type(model) is str else served.target_id
        return self.ended(served, [item], model=model, tier=tier if type(tier) is str else "default", finish=finish)


def failed_response(told: ErrorReply, request_id: str) -> dict[str, Any]:
    """Return a response that failed before anything of it was known."""
    number = request_id.removeprefix("req_")
    return {
        **_BLANK,
        "id": f"resp_{number}",
        "created_at": int(time.time()),
        "status": "failed",
        "error": _failure_of(told),
        "store": False,
    }


def _failure_of(told: ErrorReply) -> dict[str, str]:
    """Return an error as a failed response has it: few codes are published, and some clients act on those."""
    code = "rate_limit_exceeded" if told.status == _TOO_MANY else _CODES.get(told.code or "", "server_error")
    return {"code": code, "message": told.message}


def _text_as_told(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the form of the answer with all that a response tells of it."""
    told = {**_BLANK["text"], **{name: value for name, value in config.items() if value is not None}}
    if told["format"].get("type") == "json_schema":
        asked = {name: value for name, value in told["format"].items() if value is not None}
        told["format"] = {"name": "answer", "description": None, "strict": False, **asked}
    return told


class _EventWriter:
    """A writer with one item open at a time, and in a message or a reasoning one part at a time. `tells`: the events
    have a reader.
    """

    def __init__(
        self, dialect: ResponsesDialect, served: Served, box: Toolbox, events: int = 0, *, tells: bool = True
    ) -> None:
        self._dialect = dialect
        self._served = served
        self._box = box
        self._number = events
        """The next event's number."""
        self._tells = tells
        self._begun = not tells
        self._model = served.target_id
        self._tier = "default"
        self._output: list[Item] = []
        """All items so far, the open one last."""
        self._is_open = False
        self._part: _Part | None = None
        self._said: list[str] = []
        """The pieces of the open part, or of the open call's arguments."""
        self._logprobs: list[Any] = []
        self._delta_head = b""
        self._signed: list[Any] = []
        self._heard = Heard(served.target_id)
        """The thoughts that no item has sealed yet."""
        self._call: Call | None = None
        self._tool = Tool("")
        self._finish = ""
        self._last: list[bytes] = []

    def render(self, events: Iterable[Event]) -> bytes:
        parts: list[bytes] = []
        for event in events:
            if event.words and self._part == "output_text":
                self._write_text(event.words, parts)
            elif event.choices:
                self.say(event.payload, parts)
        return b"".join(parts)

    def last_words(self) -> bytes:
        self.settle()
        response = self.finished()
        self._tell(f"response.{response['status']}", self._last, response=response)
        return b"".join(self._last)

    def failed(self, told: ErrorReply) -> bytes:
        """Return an `error` event, and the response as it failed."""
        parts: list[bytes] = []
        self._begin(parts)
        self._tell("error", parts, code=told.code, message=told.message, param=told.param)
        self._tell("response.failed", parts, response=self._response("failed", error=_failure_of(told)))
        return b"".join(parts)

    def settle(self) -> None:
        """Close the open item; its events come with the last words."""
        self._begin(self._last)
        self._close(self._last)

    def finished(self) -> dict[str, Any]:
        """Return the response, once it is settled."""
        return self._dialect.ended(self._served, self._output, model=self._model, tier=self._tier, finish=self._finish)

    def say(self, payload: bytes, parts: list[bytes]) -> None:
        """Add a chunk or a whole completion."""
        completion = completion_of(payload)
        if isinstance(completion.model, str):
            self._model = completion.model
        if isinstance(completion.service_tier, str):
            self._tier = completion.service_tier
        self._begin(parts)
        # One answer: this wire has no others.
        choice = completion.first
        if choice is None:
            return
        said = choice.delta or choice.message or Said()
        if self._part == "output_text" and choice.logprobs is None and (words := said.only_text):
            self._write_text(words, parts)
        else:
            self._speak(said, choice, parts)
        if choice.finish is not None:
            self._finish = choice.finish

    def _close(self, parts: list[bytes]) -> None:
        if not self._is_open:
            return
        self._is_open = False
        item = self._output[-1]
        self._close_part(item, parts)
        if item["type"] in {"function_call", "custom_tool_call"}:
            self._close_call(item, parts)
        if self._signed:
            item["encrypted_content"] = sealed_thinking(self._signed)
            self._signed = []
        elif item["type"] == "reasoning" and self._heard:
            item["encrypted_content"] = self._heard.sealed(words_beside=not self._dialect.seals_words)
        item["status"] = "incomplete" if self._finish in _INCOMPLETE else "completed"
        self._tell("response.output_item.done", parts, output_index=len(self._output) - 1, item=item)

    def _response(self, status: str, **more: Any) -> dict[str, Any]:
        told = {"model": self._model, "service_tier": self._tier, **more}
        return self._dialect.response(self._served, status, self._output, **told)

    def _begin(self, parts: list[bytes]) -> None:
        if not self._begun:
            self._begun = True
            started = {**self._response("in_progress"), "model_used": self._served.target_id}
            self._tell("response.created", parts, response=started)
            self._tell("response.in_progress", parts, response=started)

    def _speak(self, said: Said, choice: Choice, parts: list[bytes]) -> None:
        if said.thought:
            self._write("reasoning", "reasoning_text", said.thought, parts)
        if isinstance(said.thinking_blocks, list):
            for block in said.thinking_blocks:
                if isinstance(block, dict) and (block.get("signature") or block.get("data")):
                    self._sign(block, parts)
        elif not said.is_only_text:
            self._heard.hear(said)
        if said.text:
            self._write("message", "output_text", said.text, parts, _logprobs_of(choice.logprobs))
        if said.declined:
            self._write("message", "refusal", said.declined, parts)
        for call in said.tool_calls or ():
            self._call_tool(call, parts)

    def _sign(self, block: Item, parts: list[bytes]) -> None:
        """Keep a Claude's signed thinking, so that it can go back to it. Its text came in pieces before."""
        if not (self._is_open and self._output[-1]["type"] == "reasoning"):
            self._open("reasoning", parts, summary=[], content=[])
        if block.get("type") == "thinking" and not block.get("thinking"):
            block = {**block, "thinking": "".join(self._said)}
        self._signed.append(block)

    def _write(self, kind: str, part: _Part, words: str, parts: list[bytes], logprobs: list[Any] | None = None) -> None:
        if not (self._is_open and self._output[-1]["type"] == kind):
            if kind == "message":
                self._open(kind, parts, role="assistant", content=[])
            else:
                self._open(kind, parts, summary=[], content=[])
        item = self._output[-1]
        if self._part != part:
            self._close_part(item, parts)
            self._part = part
            if self._tells:
                where = self._where(item)
                self._tell("response.content_part.added", parts, **where, part=_part(part, "", []))
                self._delta_head = _delta_head(part, where)
        if part == "output_text" and not logprobs:
            self._write_text(words, parts)
            return
        self._said.append(words)
        told: dict[str, Any] = {**self._where(item), "delta": words}
        if part == "output_text":
            self._logprobs += logprobs or []
            told["logprobs"] = logprobs or []
        self._tell(f"response.{part}.delta", parts, **told)

    def _write_text(self, words: str, parts: list[bytes]) -> None:
        self._said.append(words)
        if not self._tells:
            return
        # Most of a stream is this event, so its beginning is not made anew each time.
        parts += (self._delta_head, b"%d" % self._number, b',"logprobs":[],"delta":', to_json(words), b"}\n\n")
        self._number += 1

    def _close_part(self, item: Item, parts: list[bytes]) -> None:
        if self._part is None:
            return
        kind, words = self._part, "".join(self._said)
        made = _part(kind, words, self._logprobs)
        if self._tells:
            where = self._where(item)
            told: dict[str, Any] = {**where, ("refusal" if kind == "refusal" else "text"): words}
            if kind == "output_text":
                told["logprobs"] = self._logprobs
            self._tell(f"response.{kind}.done", parts, **told)
            self._tell("response.content_part.done", parts, **where, part=made)
        item["content"].append(made)
        self._part, self._said, self._logprobs = None, [], []

    def _call_tool(self, call: Call, parts: list[bytes]) -> None:
        if not self._continues(call):
            named = call.function.name if call.function is not None else None
            tool = self._box.called(named if isinstance(named, str) else "")
            kind = "custom_tool_call" if tool.custom else "function_call"
            call_id = call.id if isinstance(call.id, str) and call.id else f"call_{len(self._output)}"
            self._heard.hear_call(call, call_id)
            if self._heard and not (self._is_open and self._output[-1]["type"] == "reasoning"):
                # Reasoning without words, which goes back by its seal.
                self._open("reasoning", parts, summary=[], content=[])
            begun: Item = {"call_id": call_id, "name": tool.name, ("input" if tool.custom else "arguments"): ""}
            if tool.namespace is not None:
                begun["namespace"] = tool.namespace
            self._open(kind, parts, **begun)
            self._call, self._tool = call, tool
        arguments = call.function.arguments if call.function is not None else None
        if not isinstance(arguments, str) or not arguments:
            return
        self._said.append(arguments)
        # A custom tool's text stands in JSON, which is read once it is whole.
        if not self._tool.custom:
            self._tell("response.function_call_arguments.delta", parts, **self._at(), delta=arguments)

    def _continues(self, call: Call) -> bool:
        """Return True for a piece of the open call. Some hosts number none of their calls."""
        before = self._call
        if before is None or not self._is_open or self._output[-1].get("call_id") is None:
            return False
        return call.index == before.index and call.id in (None, "", before.id)

    def _close_call(self, item: Item, parts: list[bytes]) -> None:
        arguments, self._said, self._call = "".join(self._said), [], None
        if not self._tool.custom:
            item["arguments"] = arguments
            told = {**self._at(), "name": item["name"], "arguments": arguments}
            self._tell("response.function_call_arguments.done", parts, **told)
            return
        item["input"] = _custom_input(arguments)
        self._tell("response.custom_tool_call_input.delta", parts, **self._at(), delta=item["input"])
        self._tell("response.custom_tool_call_input.done", parts, **self._at(), input=item["input"])

    def _open(self, kind: str, parts: list[bytes], **fields: Any) -> None:
        self._close(parts)
        number = self._dialect.number(self._served)
        item: Item = {"id": f"{PREFIX[kind]}_{number}_{len(self._output)}", "type": kind, "status": "in_progress"}
        self._output.append(item | fields)
        self._is_open, self._part, self._said = True, None, []
        index = len(self._output) - 1
        self._tell("response.output_item.added", parts, output_index=index, item=self._output[-1])

    def _at(self) -> dict[str, Any]:
        return {"item_id": self._output[-1]["id"], "output_index": len(self._output) - 1}

    def _where(self, item: Item) -> dict[str, Any]:
        return {**self._at(), "content_index": len(item["content"])}

    def _tell(self, kind: str, parts: list[bytes], **fields: Any) -> None:
        if not self._tells:
            return
        parts.append(sse(kind.encode(), {"type": kind, "sequence_number": self._number, **fields}))
        self._number += 1


def _delta_head(part: _Part, where: Mapping[str, Any]) -> bytes:
    """Return the beginning of a delta's event, up to its number."""
    kind = f"response.{part}.delta"
    return f"event: {kind}\ndata: ".encode() + to_json({"type": kind, **where})[:-1] + b',"sequence_number":'


def _part(kind: _Part, words: str, logprobs: list[Any]) -> Item:
    match kind:
        case "output_text":
            return {"type": kind, "text": words, "annotations": [], "logprobs": logprobs}
        case "refusal":
            return {"type": kind, "refusal": words}
        case "reasoning_text":
            return {"type": kind, "text": words}


def _logprobs_of(told: Any) -> list[Any]:
    content = told.get("content") if isinstance(told, dict) else None
    found = [each for each in content if isinstance(each, dict)] if isinstance(content, list) else []
    return [
        {"bytes": [], "top_logprobs": []} | {name: each[name] for name in _LOGPROBS if name in each} for each in found
    ]


def _custom_input(arguments: str) -> str:
    """Return the text within the function's arguments; invalid arguments as they are."""
    try:
        found = msgspec.json.decode(arguments)
    except DECODE_ERRORS:
        return arguments
    given = found.get(INPUT) if isinstance(found, dict) else None
    return given if isinstance(given, str) else arguments


def usage_of(usage: Usage) -> dict[str, Any]:
    """OpenAI's usage of a response."""
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_input_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
