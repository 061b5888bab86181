"""What models say, behind a guard: on four wires, whole and streamed, with real clients at one end and what an upstream writes in
pieces of any size at the other. Numbers in brackets are those of the regression cases in issue 40.
"""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import anthropic
import msgspec
import openai
import pytest
from aiohttp import web

from tests.providers.wires import LITELLM_WARNINGS
from tests.running_gateway import Running, model, running_gateway

pytestmark = LITELLM_WARNINGS

CARD: Final = "4111 1111 1111 1111"
MAIL: Final = "jane.doe@example.com"
TOKEN: Final = "ghp_" + "R4nd0mCharactersThatAreNoToken012345"
HER_MAIL: Final = "mary@example.org"
RULES: Final[list[dict[str, Any]]] = [
    {"name": "cards", "kind": "pii", "entities": ["card"], "output": "block"},
    {"name": "mails", "kind": "pii", "entities": ["email"], "input": "mask", "output": "mask"},
    {"name": "tokens", "kind": "secret", "output": "mask"},
]
WIRES: Final = ("chat", "completions", "responses", "messages", "messages as written", "responses as written")
USAGE: Final = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
CLAUDES_USAGE: Final = {"input_tokens": 10, "output_tokens": 5}
SEARCH: Final[Any] = {"type": "web_search"}
WEIGH: Final[Any] = {"name": "weigh", "description": "Weighs.", "parameters": {"type": "object", "properties": {}}}


class Script(msgspec.Struct):
    """What the next answers say. `{mask}` is what stood in place of an address in the prompt."""

    text: str = ""
    thought: str = ""
    arguments: str = ""
    seed: int = 0
    most: int = 4


class Said(msgspec.Struct):
    """What a caller has of an answer."""

    text: str = ""
    thought: str = ""
    arguments: str = ""
    end: str | None = None
    raw: str = ""
    """All of it, as its client has it."""


def pieces(chance: random.Random, text: str, most: int) -> Iterator[str]:
    while text:
        size = chance.randint(1, most)
        yield text[:size]
        text = text[size:]


class Mouth:
    """A server of chat, messages and responses that says what it is told to, in pieces."""

    def __init__(self) -> None:
        self.script = Script()
        self.sent: list[str] = []
        self.base_url = ""
        self.gone = asyncio.Event()
        """Set once a caller left before the end."""
        self.waits = False
        """Whether a stream never ends by itself."""

    def scripted(self, sent: str) -> Script:
        masks = [f"[EMAIL_{each.split(']')[0]}]" for each in sent.split("[EMAIL_")[1:]]
        script = self.script
        if masks:
            return msgspec.structs.replace(
                script,
                text=script.text.replace("{mask}", masks[0]),
                arguments=script.arguments.replace("{mask}", masks[0]),
            )
        return script

    async def serve(self, request: web.Request) -> web.StreamResponse:
        sent = (await request.read()).decode()
        self.sent.append(sent)
        script, body = self.scripted(sent), json.loads(sent)
        said = {"chat/completions": chat, "messages": messages, "responses": responses}
        answers = said[request.path.removeprefix("/v1/")](script)
        if not body.get("stream"):
            return web.json_response(answers[0])
        reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await reply.prepare(request)
        try:
            for event in answers[1]:
                named = f"event: {event['type']}\n" if "type" in event else ""
                await reply.write(f"{named}data: {json.dumps(event)}\n\n".encode())
            if self.waits:
                await asyncio.sleep(60)
        except (asyncio.CancelledError, ConnectionError):
            self.gone.set()
            raise
        if request.path.endswith("completions"):
            await reply.write(b"data: [DONE]\n\n")
        return reply


def chat(script: Script) -> tuple[Any, Iterator[dict[str, Any]]]:
    message: dict[str, Any] = {"role": "assistant", "content": script.text}
    call = {"id": "call_1", "type": "function", "function": {"name": "weigh", "arguments": script.arguments}}
    if script.thought:
        message["reasoning_content"] = script.thought
    if script.arguments:
        message["tool_calls"] = [call]
    finish = "tool_calls" if script.arguments else "stop"
    head = {"id": "c", "created": 0, "model": "m"}
    whole = {
        **head,
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": USAGE,
    }

    def chunk(delta: dict[str, Any], end: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": end}
        return {**head, "object": "chat.completion.chunk", "choices": [choice]}

    def events() -> Iterator[dict[str, Any]]:
        chance = random.Random(script.seed)
        yield chunk({"role": "assistant", "content": ""})
        for piece in pieces(chance, script.thought, script.most):
            yield chunk({"reasoning_content": piece})
        for piece in pieces(chance, script.text, script.most):
            yield chunk({"content": piece})
        if script.arguments:
            begun = {"index": 0, **call, "function": {"name": "weigh", "arguments": ""}}
            yield chunk({"tool_calls": [begun]})
            for piece in pieces(chance, script.arguments, script.most):
                yield chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
        yield chunk({}, finish)
        yield {**head, "object": "chat.completion.chunk", "choices": [], "usage": USAGE}

    return whole, events()


def messages(script: Script) -> tuple[Any, Iterator[dict[str, Any]]]:
    blocks: list[tuple[dict[str, Any], str, str, str]] = []
    if script.thought:
        begun: dict[str, Any] = {"type": "thinking", "thinking": "", "signature": ""}
        blocks.append((begun, "thinking_delta", "thinking", script.thought))
    blocks.append(({"type": "text", "text": ""}, "text_delta", "text", script.text))
    if script.arguments:
        begun = {"type": "tool_use", "id": "toolu_1", "name": "weigh", "input": {}}
        blocks.append((begun, "input_json_delta", "partial_json", script.arguments))
    message: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": CLAUDES_USAGE,
    }
    stop = "tool_use" if script.arguments else "end_turn"
    content: list[dict[str, Any]] = []
    for begun, _, name, text in blocks:
        block = begun | ({"input": json.loads(text)} if name == "partial_json" else {name: text})
        content.append(block | ({"signature": "c2lnbmVk"} if name == "thinking" else {}))

    def events() -> Iterator[dict[str, Any]]:
        chance = random.Random(script.seed)
        yield {"type": "message_start", "message": message}
        for index, (begun, kind, name, text) in enumerate(blocks):
            yield {"type": "content_block_start", "index": index, "content_block": begun}
            for piece in pieces(chance, text, script.most):
                yield {"type": "content_block_delta", "index": index, "delta": {"type": kind, name: piece}}
            if name == "thinking":
                signed = {"type": "signature_delta", "signature": "c2lnbmVk"}
                yield {"type": "content_block_delta", "index": index, "delta": signed}
            yield {"type": "content_block_stop", "index": index}
        yield {"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": CLAUDES_USAGE}
        yield {"type": "message_stop"}

    return {**message, "content": content, "stop_reason": stop}, events()


def responses(script: Script) -> tuple[Any, Iterator[dict[str, Any]]]:
    part = {"type": "output_text", "text": script.text, "annotations": [], "logprobs": []}
    item = {"id": "msg_1", "type": "message", "status": "completed", "role": "assistant", "content": [part]}
    call = {
        "id": "fc_1",
        "type": "function_call",
        "call_id": "call_1",
        "name": "weigh",
        "status": "completed",
        "arguments": script.arguments,
    }
    output = [item, *([call] if script.arguments else [])]
    begun = {
        "id": "resp_1",
        "object": "response",
        "created_at": 0,
        "status": "in_progress",
        "model": "m",
        "output": [],
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
    }
    usage = {
        "input_tokens": 10,
        "output_tokens": 5,
        "total_tokens": 15,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    whole = {**begun, "status": "completed", "output": output, "usage": usage}

    def told() -> Iterator[dict[str, Any]]:
        chance = random.Random(script.seed)
        yield {"type": "response.created", "response": begun}
        yield {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}}
        at = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
        yield {"type": "response.content_part.added", **at, "part": {**part, "text": ""}}
        for piece in pieces(chance, script.text, script.most):
            yield {"type": "response.output_text.delta", **at, "delta": piece, "logprobs": []}
        yield {"type": "response.output_text.done", **at, "text": script.text, "logprobs": []}
        yield {"type": "response.content_part.done", **at, "part": part}
        yield {"type": "response.output_item.done", "output_index": 0, "item": item}
        if script.arguments:
            at = {"item_id": "fc_1", "output_index": 1}
            yield {"type": "response.output_item.added", "output_index": 1, "item": {**call, "arguments": ""}}
            for piece in pieces(chance, script.arguments, script.most):
                yield {"type": "response.function_call_arguments.delta", **at, "delta": piece}
            done = {"name": "weigh", "arguments": script.arguments}
            yield {"type": "response.function_call_arguments.done", **at, **done}
            yield {"type": "response.output_item.done", "output_index": 1, "item": call}
        yield {"type": "response.completed", "response": whole}

    return whole, ({**event, "sequence_number": number} for number, event in enumerate(told()))


class House(msgspec.Struct):
    """A gateway with a guard, and a mouth behind it."""

    mouth: Mouth
    gateway: Running
    openai: openai.AsyncOpenAI
    claude: anthropic.AsyncAnthropic

    async def ask(self, wire: str, prompt: str = "hi", *, stream: bool, **more: Any) -> Said:
        """Return what a caller has of an answer."""
        match wire:
            case "chat":
                return await self._chat(prompt, stream=stream, **more)
            case "completions":
                return await self._completions(prompt, stream=stream, **more)
            case "messages" | "messages as written":
                return await self._messages(wire, prompt, stream=stream, **more)
            case _:
                return await self._responses(wire, prompt, stream=stream, **more)

    async def _chat(self, prompt: str, *, stream: bool, **more: Any) -> Said:
        asked: Any = {"model": "gpt", "messages": [{"role": "user", "content": prompt}], **more}
        if not stream:
            whole = await self.openai.chat.completions.create(**asked)
            (choice,) = whole.choices
            return _of_chat([choice.message.model_dump()], choice.finish_reason, whole.model_dump_json())
        chunks = [chunk async for chunk in await self.openai.chat.completions.create(stream=True, **asked)]
        ends = [each.finish_reason for chunk in chunks for each in chunk.choices if each.finish_reason]
        assert len(ends) == 1
        deltas = [each.delta.model_dump() for chunk in chunks for each in chunk.choices]
        return _of_chat(deltas, ends[0], "".join(chunk.model_dump_json() for chunk in chunks))

    async def _completions(self, prompt: str, *, stream: bool, **more: Any) -> Said:
        asked: Any = {"model": "gpt", "prompt": prompt, "max_tokens": 500, **more}
        if not stream:
            whole = await self.openai.completions.create(**asked)
            (choice,) = whole.choices
            return Said(text=choice.text, end=choice.finish_reason, raw=whole.model_dump_json())
        chunks = [chunk async for chunk in await self.openai.completions.create(stream=True, **asked)]
        ends = [each.finish_reason for chunk in chunks for each in chunk.choices if each.finish_reason]
        assert len(ends) == 1
        text = "".join(each.text or "" for chunk in chunks for each in chunk.choices)
        return Said(text=text, end=ends[0], raw="".join(chunk.model_dump_json() for chunk in chunks))

    async def _messages(self, wire: str, prompt: str, *, stream: bool, **more: Any) -> Said:
        asked: Any = {"model": "claude" if wire.endswith("written") else "gpt", "max_tokens": 2_000, **more}
        asked["messages"] = [{"role": "user", "content": prompt}]
        asked["thinking"] = {"type": "enabled", "budget_tokens": 1_024}
        asked["tools"] = [{"name": "weigh", "input_schema": {"type": "object", "properties": {}}}]
        if stream:
            async with self.claude.messages.stream(**asked) as events:
                raw = "".join([event.model_dump_json(warnings=False) async for event in events])
                message = await events.get_final_message()
        else:
            message = await self.claude.messages.create(**asked)
            raw = message.model_dump_json()
        said = Said(end=message.stop_reason, raw=raw)
        for block in message.content:
            if block.type == "text":
                said.text += block.text
            elif block.type == "thinking":
                said.thought += block.thinking
            elif block.type == "tool_use":
                said.arguments += json.dumps(block.input)
        return said

    async def _responses(self, wire: str, prompt: str, *, stream: bool, **more: Any) -> Said:
        asked: Any = {"model": "gpt", "input": prompt, **more}
        if wire.endswith("written"):
            asked |= {"model": "openai-house", "tools": [SEARCH]}
        if stream:
            events = [event async for event in await self.openai.responses.create(stream=True, **asked)]
            assert [event.sequence_number for event in events] == list(range(len(events)))
            last = events[-1]
            assert last.type in {"response.completed", "response.incomplete"}
            response = last.response
            raw = "".join(event.model_dump_json() for event in events)
            deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
            if response.status == "completed":
                assert deltas == response.output_text
        else:
            response = await self.openai.responses.create(**asked)
            raw, deltas = response.model_dump_json(), response.output_text
        details = response.incomplete_details
        said = Said(text=deltas, end=response.status if details is None else details.reason, raw=raw)
        said.arguments = "".join(item.arguments for item in response.output if item.type == "function_call")
        return said


def _of_chat(parts: list[dict[str, Any]], end: str | None, raw: str) -> Said:
    said = Said(end=end, raw=raw)
    for part in parts:
        said.text += part.get("content") or ""
        said.thought += part.get("reasoning_content") or ""
        for call in part.get("tool_calls") or ():
            said.arguments += call["function"]["arguments"] or ""
    return said


@contextlib.asynccontextmanager
async def house(folder: Path, rules: list[dict[str, Any]] | None = None, **fields: Any) -> AsyncIterator[House]:
    mouth = Mouth()
    app = web.Application()
    app.router.add_post("/{path:.*}", mouth.serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        mouth.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        there = {"kind": "openai", "base_url": f"{mouth.base_url}/v1", "upstream_model": "m"}
        claude = {
            "kind": "litellm",
            "upstream_model": "anthropic/claude-sonnet-4-5",
            "base_url": mouth.base_url,
            "api_key": "env:MADE_UP_ANTHROPIC_KEY",
        }
        models = [
            model("gpt", [there]),
            model("claude", [claude]),
            model("openai-house", [there], provider_tools=["web_search"]),
        ]
        guard = {"rules": RULES if rules is None else rules}
        async with (
            running_gateway(folder, models, guard=guard, **fields) as gateway,
            openai.AsyncOpenAI(api_key=gateway.key, base_url=gateway.base_url, max_retries=0) as caller,
            anthropic.AsyncAnthropic(api_key=gateway.key, base_url=gateway.url, max_retries=0) as other,
        ):
            yield House(mouth, gateway, caller, other)
    finally:
        await runner.cleanup()


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the configuration refers to."""
    monkeypatch.setenv("MADE_UP_ANTHROPIC_KEY", "sk-ant-made-up-0123456789")


def filtered(wire: str) -> str:
    return "refusal" if wire.startswith("messages") else "content_filter"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("wire", WIRES)
async def test_what_a_model_says_by_itself_is_masked(tmp_path: Path, wire: str, stream: bool) -> None:
    """[6, 7, 9, 12] Whole and in pieces, and no part of it goes out."""
    async with house(tmp_path) as here:
        here.mouth.script = Script(text=f"Write to {MAIL}, with {TOKEN}; or not.")
        said = await here.ask(wire, stream=stream)
        assert "[EMAIL_" in said.text
        assert "[GITHUB_" in said.text
        assert said.text.startswith("Write to [EMAIL_")
        assert said.text.endswith("]; or not.")
        for part in ("jane.doe", "example.com", "ghp_", TOKEN[8:20]):
            assert part not in said.raw


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("wire", WIRES)
async def test_an_answer_is_blocked_as_its_wire_says(tmp_path: Path, wire: str, stream: bool) -> None:
    """[8, 10, 11, 32, 34, 36] Nothing of the value goes out, the end is the wire's own, what was used is booked, and it is nobody's
    failure.
    """
    async with house(tmp_path) as here:
        here.mouth.script = Script(text=f"The number is {CARD}, as you asked. It goes on.")
        said = await here.ask(wire, stream=stream)
        assert said.end == filtered(wire)
        assert "4111 1111" not in said.raw
        assert "goes on" not in said.raw
        if stream:
            assert said.text.strip() == "The number is"
        if wire.startswith("messages"):
            assert "explanation" in said.raw
        rows = await here.gateway.rows()
        assert [row["entry"] for row in rows] == ["reserve", "settle"]
        assert rows[-1]["status"] == 200
        assert rows[-1]["flags"] == "[]"
        assert rows[-1]["output_tokens"] > 0
        assert rows[-1]["cost_nanousd"] > 0
        assert "4111 1111" not in json.dumps(rows, default=str)
        assert len(here.mouth.sent) == 1


@pytest.mark.parametrize("wire", ["chat", "completions", "responses", "messages"])
async def test_a_block_stops_the_call(tmp_path: Path, wire: str) -> None:
    """[35] LL#18261: the upstream is not read to its end, which it may never come to."""
    async with house(tmp_path) as here:
        here.mouth.waits = True
        here.mouth.script = Script(text=f"The number is {CARD}, as you asked. " + "More and more. " * 50)
        async with asyncio.timeout(20):
            said = await here.ask(wire, stream=True)
            await here.mouth.gone.wait()
        assert said.end == filtered(wire)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("wire", WIRES)
async def test_a_callers_own_values_come_back(tmp_path: Path, wire: str, stream: bool) -> None:
    """[13, 14, 17] In texts and in arguments, where they stay JSON; the provider never saw them."""
    async with house(tmp_path) as here:
        here.mouth.script = Script(
            text="I wrote to {mask}, see [EMAIL] and a[0].",
            arguments=json.dumps({"to": "{mask}", "cc": [MAIL], "text": 'she said "hi"\n'}),
            most=2,
        )
        more: Any = {"tools": [{"type": "function", "function": WEIGH}]} if wire == "chat" else {}
        said = await here.ask(wire, f"mail {HER_MAIL} please", stream=stream, **more)
        assert HER_MAIL not in here.mouth.sent[0]
        assert said.text == f"I wrote to {HER_MAIL}, see [EMAIL] and a[0]."
        assert MAIL not in said.raw
        if wire != "completions":
            arguments = json.loads(said.arguments)
            assert arguments["to"] == HER_MAIL
            assert arguments["cc"][0].startswith("[EMAIL_")
            assert arguments["text"] == 'she said "hi"\n'


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("wire", ["chat", "messages", "messages as written"])
async def test_thoughts_are_looked_at(tmp_path: Path, wire: str, stream: bool) -> None:
    """[25] AX#1106. What its maker signed is no longer signed once something in it is masked."""
    async with house(tmp_path) as here:
        here.mouth.script = Script(text="Done.", thought=f"Her address is {MAIL}, I think.")
        said = await here.ask(wire, stream=stream)
        assert said.text == "Done."
        assert MAIL not in said.raw
        assert "[EMAIL_" in said.thought
        assert "c2lnbmVk" not in said.raw
        here.mouth.script = Script(text="Done.", thought=f"Her number is {CARD}, I think.")
        assert (await here.ask(wire, stream=stream)).end == filtered(wire)
        here.mouth.script = Script(text="Done.", thought="Nothing of that sort.")
        said = await here.ask(wire, stream=stream)
        assert said.thought == "Nothing of that sort."
        assert wire != "messages as written" or "c2lnbmVk" in said.raw


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("wire", [wire for wire in WIRES if wire != "completions"])
async def test_arguments_are_read_as_they_are_meant(tmp_path: Path, wire: str, stream: bool) -> None:
    """A value behind an escape, and one that is a number, end the answer as any other does."""
    async with house(tmp_path) as here:
        more: Any = {"tools": [{"type": "function", "function": WEIGH}]} if wire == "chat" else {}
        for arguments in ('{"a": "x\\n4111 1111\\u00201111 1111"}', '{"n": 4111111111111111}'):
            here.mouth.script = Script(text="ok", arguments=arguments, most=3)
            said = await here.ask(wire, stream=stream, **more)
            assert said.end == filtered(wire)
            assert "1111 1111" not in said.raw
            assert "11111111" not in said.raw


async def test_a_blocked_response_is_kept_without_what_was_blocked(tmp_path: Path) -> None:
    """[32] Who fetches it later gets no more than who asked."""
    async with house(tmp_path) as here:
        here.mouth.script = Script(text=f"The number is {CARD}, as you asked.")
        for wire, asked in (("gpt", {}), ("openai-house", {"tools": [SEARCH]})):
            more: Any = asked
            whole = await here.openai.responses.create(model=wire, input="hi", **more)
            events = [e async for e in await here.openai.responses.create(model=wire, input="hi", stream=True, **more)]
            last: Any = events[-1]
            for response in (whole, last.response):
                fetched = await here.openai.responses.retrieve(response.id)
                assert fetched.status == "incomplete"
                assert "4111 1111" not in fetched.model_dump_json()


async def test_what_is_found_is_told_by_name_and_count(tmp_path: Path) -> None:
    """In the header of a whole answer; never a value."""
    async with house(tmp_path) as here:
        here.mouth.script = Script(text=f"{MAIL} and {HER_MAIL}")
        raw = await here.openai.chat.completions.with_raw_response.create(
            model="gpt", messages=[{"role": "user", "content": "hi"}]
        )
        assert raw.headers["x-weighbridge-guard"] == "email=mask:2"


async def test_without_rules_for_answers_they_pass_as_they_came(tmp_path: Path) -> None:
    """What looks at requests alone changes no answer."""
    async with house(tmp_path, [{"name": "cards", "kind": "pii", "entities": ["card"], "input": "block"}]) as here:
        here.mouth.script = Script(text=f"The number is {CARD} of {MAIL}.")
        for wire in WIRES:
            for stream in (False, True):
                assert (await here.ask(wire, stream=stream)).text == here.mouth.script.text


WORDS: Final = "the a of [ ( card is 12 her mail sk- at no, yes. \n {mask} ü 4111 so on ghp_ @ -".split(" ")  # noqa: SIM905  A list of one column.


def planted(chance: random.Random) -> tuple[str, bool]:
    """Return a text with values at any place, and whether it has to be blocked."""
    parts: list[str] = []
    blocked = False
    for _ in range(chance.randint(3, 14)):
        way = chance.random()
        if way < 0.1:
            parts.append(MAIL)
        elif way < 0.16:
            parts.append(TOKEN)
        elif way < 0.18:
            parts.append(CARD)
            blocked = True
        else:
            parts.append(chance.choice(WORDS))
    return " ".join(parts), blocked


@pytest.mark.parametrize("count", [72, pytest.param(4_000, marks=pytest.mark.long)])
async def test_no_random_answer_leaks(tmp_path: Path, count: int) -> None:
    """Whatever is planted, wherever it is cut, on whichever wire: no value goes out, and a stream says what the whole answer says."""
    async with house(tmp_path) as here:
        for seed in range(count):
            chance = random.Random(seed)
            text, blocked = planted(chance)
            arguments = json.dumps({"a": planted(chance)[0].replace(CARD, "none"), "n": 1}) if seed % 3 == 0 else ""
            here.mouth.script = Script(text=text, arguments=arguments, seed=seed, most=chance.choice([1, 3, 9, 60]))
            wire = WIRES[seed % len(WIRES)]
            more: Any = {"tools": [{"type": "function", "function": WEIGH}]} if wire == "chat" else {}
            answers = [await here.ask(wire, f"mail {HER_MAIL}", stream=stream, **more) for stream in (False, True)]
            for said in answers:
                assert MAIL not in said.raw, (seed, wire)
                assert TOKEN not in said.raw, (seed, wire)
                assert CARD not in said.raw, (seed, wire)
                assert (said.end == filtered(wire)) == blocked, (seed, wire, said.end)
            whole, streamed = answers
            if not blocked:
                assert streamed.text == whole.text, (seed, wire)
                assert "{mask}" not in whole.text
                if arguments and wire != "completions":
                    assert json.loads(streamed.arguments) == json.loads(whole.arguments), (seed, wire)
