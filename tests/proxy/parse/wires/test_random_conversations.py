"""Random conversations, there and back on each wire: what a target is sent again is what targets and callers have said.

A caller speaks the wire, an upstream speaks chat. Each answer is written by the wire, whole or as events in random pieces,
checked against the published types, and sent back by the caller as its client would; then the chat that the next target is
sent must be the conversation so far. `WB_CONVERSATIONS` says how many there are; the suite has 200.
"""

import json
import os
import random
from typing import Any, Final

import pytest

from providers.claude.reply import ClaudeReader
from providers.claude.request import claude_body
from providers.tool_names import fitting_name
from providers.wire import EMPTY_OBJECT, Event
from proxy.parse.headers import RequestHeaders
from proxy.parse.wires.messages.wire import MESSAGES
from proxy.parse.wires.responses.continuing import continued, names_in
from proxy.parse.wires.responses.tools import chat_name
from proxy.parse.wires.responses.wire import RESPONSES
from proxy.parse.wires.wire import Dialect, EventWriter
from tests.providers.calls import chat_request, deployment, upstream_call
from tests.proxy.parse.wires.reading import chat_fields, understood
from tests.proxy.parse.wires.writing import chunk, completion, decoded, served
from tests.published_types import check_events, check_message, check_message_events, check_response

CONVERSATIONS: Final = int(os.environ.get("WB_CONVERSATIONS", "200"))
SEED: Final = int(os.environ.get("WB_SEED", "2026"))
_AT_A_TIME: Final = 20
_LETTERS: Final = 'ab \n"\\é😀\u2028{}<>&\t0'
_SHORT, _LONG = "weigh", "weigh_every_single_truck_that_has_come_through_the_gate_" + "x" * 30
_Message = dict[str, Any]


class Chance:
    """What is said, at random."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._calls = 0

    def words(self, least: int = 1) -> str:
        return "".join(self.random.choices(_LETTERS, k=self.random.randint(least, 12))) + "."

    def arguments(self) -> dict[str, Any]:
        value = self.random.choice([7, -0.5, None, True, [1, {"x": []}], self.words(), {"y": self.words()}])
        return {} if self.random.random() < 0.2 else {self.words(): value, "kg": 7}

    def call(self, names: list[str]) -> _Message:
        self._calls += 1
        name = self.random.choice(names)
        arguments = {"input": self.words()} if name == "patch" else self.arguments()
        function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=self.random.random() < 0.5)}
        return {"id": f"call_{self._calls}", "type": "function", "function": function}

    def answer(self, names: list[str]) -> _Message:
        """An assistant's message: words, calls, or words and then calls."""
        calls = [self.call(names) for _ in range(self.random.choice([0, 0, 1, 1, 2, 3]))]
        says = not calls or self.random.random() < 0.5
        message: _Message = {"role": "assistant", "content": self.words() if says else None}
        return {**message, "tool_calls": calls} if calls else message

    def pieces(self, words: str) -> list[str]:
        if not words:
            return []
        cut = sorted(self.random.sample(range(len(words)), k=min(len(words), self.random.randint(0, 3))))
        return [words[a:b] for a, b in zip([0, *cut], [*cut, len(words)], strict=True)]

    def chunks(self, message: _Message) -> list[Event]:
        """The message as an upstream would stream it."""
        events = [chunk({"role": "assistant", "content": ""})]
        events += [chunk({"content": each}) for each in self.pieces(message["content"] or "")]
        for index, call in enumerate(message.get("tool_calls", ())):
            begun = {**call, "index": index, "function": {**call["function"], "arguments": ""}}
            events.append(chunk({"tool_calls": [begun]}))
            events += [
                chunk({"tool_calls": [{"index": index, "function": {"arguments": each}}]})
                for each in self.pieces(call["function"]["arguments"])
            ]
        return [*events, chunk({}, "tool_calls" if message.get("tool_calls") else "stop")]


def plain(messages: list[_Message]) -> list[_Message]:
    """Messages as they are compared: arguments by what they mean, and no words alike however that is written."""
    found = []
    for message in messages:
        same = {**message, "content": message.get("content") or ""}
        if same.get("refusal") is None:
            same.pop("refusal", None)
        if "tool_calls" in message:
            same["tool_calls"] = [
                {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
                for call in message["tool_calls"]
            ]
        found.append(same)
    return found


def written(chance: Chance, dialect: Dialect, message: _Message) -> tuple[Any, EventWriter | None]:
    """The reply, or the events of its stream and whoever wrote them, who is held until all is kept."""
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    if chance.random.random() < 0.5:
        return json.loads(dialect.whole(completion(message, finish), served())), None
    writer = dialect.events(served())
    data = b"".join(writer.render([event]) for event in chance.chunks(message))
    return decoded(data + writer.last_words()), writer


def play_responses(seed: int) -> None:
    """A caller that sends everything again, or goes on from what was kept, from turn to turn."""
    chance = Chance(seed)
    names = [_SHORT, chat_name(_LONG, None), chat_name("weigh", "yard"), "patch"]
    tools: list[dict[str, Any]] = [
        {"type": "function", "name": _SHORT, "parameters": {"type": "object"}},
        {"type": "function", "name": _LONG, "parameters": {"type": "object"}},
        {
            "type": "namespace",
            "name": "yard",
            "description": "The yard.",
            "tools": [{"type": "function", "name": "weigh"}],
        },
        {"type": "custom", "name": "patch"},
    ]
    said: list[_Message] = []
    items: list[dict[str, Any]] = []
    record: bytes | None = None
    waiting: list[_Message] = []
    for turn in range(chance.random.randint(2, 5)):
        new: list[dict[str, Any]] = []
        for call in waiting:
            result = chance.words()
            kind = "custom_tool_call_output" if call["function"]["name"] == "patch" else "function_call_output"
            new.append({"type": kind, "call_id": call["id"], "output": result})
            said.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        if not waiting or chance.random.random() < 0.3:
            asked = chance.words()
            parts = [{"type": "input_text", "text": asked}]
            new.append({"role": "user", "content": asked if chance.random.random() < 0.5 else parts})
            said.append({"role": "user", "content": asked})
        body: dict[str, Any] = {"model": "auto", "tools": tools, "input": [*items, *new]}
        if record is not None and chance.random.random() < 0.5:
            # The same, by the id of the response before.
            name = json.loads(record)["response"]["id"]
            raw = json.dumps({**body, "input": new, "previous_response_id": name}).encode()
            assert names_in(raw) == (name,)
            read = RESPONSES.read(continued(raw, {name: record}), RequestHeaders(), lambda _: False)
        else:
            read = understood(RESPONSES, body)
        assert plain(chat_fields(read.request)["messages"]) == plain(said), (seed, turn)
        message = chance.answer(names)
        reply, writer = written(chance, read.dialect, message)
        if writer is not None:
            check_events(reply)
            response = reply[-1]["response"]
            kept = read.dialect.to_keep(None, served())
        else:
            response = reply
            check_response(response)
            kept = read.dialect.to_keep(completion(message), served())
        assert kept is not None
        record = kept.record
        items += [*new, *response["output"]]
        said.append(message)
        waiting = message.get("tool_calls", [])


def play_messages(seed: int) -> None:
    """A caller that sends the whole conversation again with each turn."""
    chance = Chance(seed)
    names = [_SHORT, fitting_name(_LONG)]
    tools = [{"name": name, "input_schema": {"type": "object"}} for name in (_SHORT, _LONG)]
    said: list[_Message] = []
    history: list[dict[str, Any]] = []
    waiting: list[_Message] = []
    for turn in range(chance.random.randint(2, 5)):
        blocks: list[dict[str, Any]] = []
        for call in waiting:
            result = chance.words()
            blocks.append({"type": "tool_result", "tool_use_id": call["id"], "content": result})
            said.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        if not waiting or chance.random.random() < 0.3:
            asked = chance.words()
            blocks.append({"type": "text", "text": asked})
            said.append({"role": "user", "content": asked})
        history.append({"role": "user", "content": blocks})
        body = {"model": "claude-auto", "max_tokens": 100, "tools": tools, "messages": history}
        read = understood(MESSAGES, body)
        assert plain(chat_fields(read.request)["messages"]) == plain(said), (seed, turn)
        message = chance.answer(names)
        reply, writer = written(chance, read.dialect, message)
        if writer is not None:
            content = check_message_events(reply)
        else:
            check_message(reply)
            content = reply["content"]
        history.append({"role": "assistant", "content": content})
        said.append(message)
        waiting = message.get("tool_calls", [])


def play_claude(seed: int) -> None:
    """A caller that chats with a Claude at Anthropic: the body that is sent says the conversation, and the reply is a chat's."""
    chance = Chance(seed)
    claude = deployment("litellm", upstream_model="anthropic/claude-sonnet-4-5", base_url="")
    tools = [{"type": "function", "function": {"name": _SHORT, "parameters": {"type": "object"}}}]
    said: list[_Message] = [{"role": "system", "content": chance.words()}]
    waiting: list[_Message] = []
    for turn in range(chance.random.randint(2, 5)):
        said += [{"role": "tool", "tool_call_id": call["id"], "content": chance.words()} for call in waiting]
        if not waiting or chance.random.random() < 0.3:
            said.append({"role": "user", "content": chance.words()})
        sent = json.loads(claude_body(upstream_call(claude, chat_request(messages=said, tools=tools))).body)
        # Read as if a caller of Anthropic's wire had sent it.
        assert plain(chat_fields(understood(MESSAGES, sent).request)["messages"]) == plain(said), (seed, turn)
        message = chance.answer([_SHORT])
        reply, writer = written(chance, understood(MESSAGES, sent).dialect, message)
        heard = _heard(reply, claude) if writer is not None else _whole(reply, claude)
        assert plain([heard]) == plain([message]), (seed, turn)
        said.append(message)
        waiting = message.get("tool_calls", [])


def _whole(reply: Any, claude: Any) -> _Message:
    found: _Message = json.loads(ClaudeReader(claude).whole(json.dumps(reply).encode()).payload)["choices"][0][
        "message"
    ]
    return found


def _heard(events: list[Any], claude: Any) -> _Message:
    """What a chat client makes of the chunks."""
    reader = ClaudeReader(claude)
    message: _Message = {"role": "assistant", "content": ""}
    for event in events:
        payload = reader.event(json.dumps(event).encode()).payload
        for choice in json.loads(payload).get("choices", ()) if payload != EMPTY_OBJECT else ():
            message["content"] += choice["delta"].get("content", "")
            for call in choice["delta"].get("tool_calls", ()):
                calls = message.setdefault("tool_calls", [])
                if call["index"] == len(calls):
                    calls.append({name: call[name] for name in ("id", "type", "function")})
                else:
                    calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return message


@pytest.mark.parametrize("lot", range(max(1, CONVERSATIONS // _AT_A_TIME // 2)))
@pytest.mark.parametrize("play", [play_responses, play_messages, play_claude])
def test_nothing_is_lost_there_and_back(play: Any, lot: int) -> None:
    """Texts, calls with their arguments, results and names, in their order, whatever way they went."""
    for number in range(_AT_A_TIME):
        play(SEED + lot * _AT_A_TIME + number)
