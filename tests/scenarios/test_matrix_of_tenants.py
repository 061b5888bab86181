"""Teams of two organisations × wires × streaming × tools × batch × cache × guard, at random: nothing that a rule guards gets out, in any form
that a reader would undo, and nobody is told what another one wrote. A value belongs to one request, so that one in a wrong place is recognised.

The seed is that of the run: `WB_SEED` draws other requests, `WB_REQUESTS` so many.
"""

# ruff: noqa: RUF001, RUF002  Characters that read alike are what some of these are about.

import asyncio
import base64
import contextlib
import json
import os
import random
import re
import signal
import unicodedata
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
import pytest
from aiohttp import web

from cost.ledger.verify import check
from cost.times import DAY_US, wall_us
from tests.processes import make_site, serving, until
from tests.redis_server import RedisServer
from tests.running_gateway import Running, model, running_gateway
from tests.scenarios.test_answer_cache import _is_shared, _pepper
from tests.scenarios.test_batch import FAST, ended, line, results, submit
from tests.scenarios.test_guard_services import rule as asks_of
from tests.scenarios.test_guard_services import service
from tests.scenarios.test_guarded_answers import Script, chat, responses
from tests.scenarios.test_model_facts import client

SEED: Final = int(os.environ.get("WB_SEED", "2026"))
REQUESTS: Final = int(os.environ.get("WB_REQUESTS", "20000"))
CALLERS: Final = 12
FLOOR: Final[list[dict[str, Any]]] = [
    {"name": "cards", "kind": "pii", "entities": ["card"], "input": "block", "output": "block"},
    {"name": "mails", "kind": "pii", "entities": ["email"], "input": "mask", "output": "mask"},
]
OWN: Final[dict[str, list[dict[str, Any]]]] = {
    "team_a": [{"name": "tokens", "kind": "secret", "entities": ["github_token"], "input": "mask", "output": "mask"}],
    "team_b": [{"name": "tokens", "kind": "secret", "entities": ["github_token"], "input": "block", "output": "block"}],
    "team_c": [{"name": "cases", "kind": "pattern", "pattern": "CASE-[0-9]{8}", "input": "mask", "output": "mask"}],
}
GUARDED: Final[dict[str, dict[str, str]]] = {
    "team_a": {"card": "block", "mail": "mask", "token": "mask"},
    "team_b": {"card": "block", "mail": "mask", "token": "block"},
    "team_c": {"card": "block", "mail": "mask", "case": "mask"},
}
"""What each team's rules come to."""
TEAMS: Final = tuple(OWN)
KINDS: Final = ("mail", "mail", "mail", "card", "token", "case")
WIRES: Final = ("chat", "completions", "responses", "messages", "embeddings", "responses as written")
PATHS: Final = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "responses as written": "/v1/responses",
    "messages": "/v1/messages",
    "embeddings": "/v1/embeddings",
}
FILLER: Final = [
    "please",
    "look",
    "at",
    "this",
    "once",
    "more,",
    "and",
    "tell",
    "me",
    "what",
    "is",
    "odd",
    "about",
    "it;",
    "the",
    "order",
    "was",
    "late",
    "again\ngrößer",
    "als",
    "üblich",
    "数字",
    "and",
    "so",
    "on",
    "[1]",
    "(see",
    "below)",
    '"quoted"',
    "{x:",
    "1}",
    "it's",
    "\\",
    "fine\ttoo",
    "–",
    "😀",
    "done.",
]
MARKED: Final = re.compile(r"#(\d+)#")
PATTERNS: Final = {
    "mail": re.compile(r"m[0-9a-f]{10}q@", re.IGNORECASE),
    "token": re.compile(r"ghp_[A-Za-z0-9]{36}"),
    "case": re.compile(r"CASE-\d{8}"),
    "card": re.compile(r"(?:\d[ -]?){15}\d"),
}
_RUN: Final = re.compile(r"[A-Za-z0-9+/_-]{16,}={0,2}")


def new_value(chance: random.Random, kind: str) -> str:
    match kind:
        case "mail":
            return f"m{chance.randrange(16**10):010x}q@example.{chance.choice(('com', 'org', 'co.uk'))}"
        case "token":
            return "ghp_" + "".join(chance.choices("ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnpqrstuvwxyz23456789", k=36))
        case "case":
            return f"CASE-{chance.randrange(10**8):08}"
    digits = [4, *chance.choices(range(10), k=14)]
    doubled = [each * 2 - 9 * (each > 4) if at % 2 == 0 else each for at, each in enumerate(digits)]
    written = "".join(map(str, [*digits, -sum(doubled) % 10]))
    return chance.choice((" ", "-", "")).join(written[at : at + 4] for at in range(0, 16, 4))


def disguised(chance: random.Random, value: str) -> str:
    """As somebody may write it, so that a reader or a simple program still has the value."""
    match chance.randrange(6):
        case 0:
            at = chance.randrange(1, len(value))
            return value[:at] + chance.choice("\u200b\u200d\u2060\ufeff\u00ad\u202e") + value[at:]
        case 1:
            return "".join(chr(ord(each) + 0xFEE0) if "!" <= each <= "~" else each for each in value)
        case 2:
            sentence = chance.choice(("", "it is ", "是的 ")) + value + chance.choice(("", " as said", "!"))
            return base64.b64encode(sentence.encode()).decode()
    return value


def core_of(value: str) -> str:
    """What tells the value from all others, however it is written."""
    return re.sub(r"[ -]", "", value).split("@")[0].lower()


def folded(text: str) -> str:
    kept = (each for each in text if unicodedata.category(each) not in {"Cf", "Mn"})
    return unicodedata.normalize("NFKC", "".join(kept))


def views(text: str) -> Iterator[str]:
    """The text, as it is read, and what it has in base64. This is no code of the guard's."""
    for view in {text, folded(text)}:
        yield view
        for run in _RUN.findall(view):
            whole = run.rstrip("=").replace("-", "+").replace("_", "/")
            with contextlib.suppress(ValueError):
                yield base64.b64decode(whole + "=" * (-len(whole) % 4)).decode("latin-1")


def cores_in(text: str) -> dict[str, str]:
    """The values in a text: their cores, and their kinds."""
    found: dict[str, str] = {}
    for view in views(text):
        for kind, pattern in PATTERNS.items():
            found |= {core_of(each): kind for each in pattern.findall(view)}
    return found


def strings_in(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
            if value.startswith(("{", "[")):
                with contextlib.suppress(ValueError):
                    yield from strings_in(json.loads(value))
        case dict():
            for name, each in value.items():
                yield name
                yield from strings_in(each)
        case list():
            for each in value:
                yield from strings_in(each)


class Plan(msgspec.Struct):
    """One request: what is planted in it, and what must come of it."""

    number: int
    team_id: str
    wire: str
    stream: bool
    seed: int
    body: dict[str, Any] = {}
    asked: str = ""
    """The text that is echoed, as its caller wrote it."""
    planted: dict[str, str] = {}
    """Cores of values by kind, all over the body."""
    refused: bool = False
    said: list[dict[str, str]] = []
    """What the model planted in each of its answers."""
    answers: dict[str, list[str]] = {}
    """What each team was told, as often as it was told something new."""
    echoed: set[str] = set()
    """Which teams were told it."""


class Model:
    """Answers with what it was asked, and with values of its own, in pieces of any size."""

    def __init__(self, plans: dict[int, Plan]) -> None:
        self.plans = plans
        self.calls: Counter[int] = Counter()
        self.leaks: list[str] = []
        self.base_url = ""

    async def serve(self, request: web.Request) -> web.StreamResponse:
        raw = (await request.read()).decode()
        body = json.loads(raw)
        texts = list(strings_in(body))
        marks = Counter(int(each) for text in texts for each in MARKED.findall(text))
        number = max(marks, key=lambda each: marks[each])
        plan = self.plans[number]
        self.calls[number] += 1
        guarded = GUARDED[plan.team_id]
        for text in (raw, *texts):
            self.leaks += [
                f"#{number} {plan.team_id} {plan.wire}: {core} in {text!r}"
                for core, kind in cores_in(text).items()
                if kind in guarded and (kind != "card" or core in plan.planted)
            ]
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        if request.path.endswith("/embeddings"):
            data = [{"object": "embedding", "index": 0, "embedding": [0.25, self.calls[number]]}]
            return web.json_response({"object": "list", "data": data, "model": "m", "usage": usage})
        script = self._scripted(plan, texts)
        whole, events = (responses if request.path.endswith("/responses") else chat)(script)
        if not body.get("stream"):
            return web.json_response(whole)
        reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await reply.prepare(request)
        for event in events:
            named = f"event: {event['type']}\n" if "type" in event else ""
            await reply.write(f"{named}data: {json.dumps(event)}\n\n".encode())
        if request.path.endswith("completions"):
            await reply.write(b"data: [DONE]\n\n")
        return reply

    def _scripted(self, plan: Plan, texts: list[str]) -> Script:
        chance = random.Random(plan.seed + self.calls[plan.number])
        echo = next(text for text in texts if text.startswith(f"#{plan.number}#"))
        said: dict[str, str] = {}
        plan.said.append(said)

        def values(most: int) -> str:
            made = [chance.choice(KINDS) for _ in range(chance.randint(0, most))]
            new = [new_value(chance, kind) for kind in made]
            said.update({core_of(each): kind for kind, each in zip(made, new, strict=True)})
            words = chance.choices(FILLER, k=12)
            for each in new:
                words.insert(chance.randrange(len(words)), f" {disguised(chance, each)} ")
            return " ".join(words)

        text = f"{echo} | {values(2) if chance.random() < 0.6 else 'and so on'}"
        arguments = ""
        if plan.body.get("tools") and chance.random() < 0.5:
            mask = re.search(r"\[EMAIL_[a-z2-7]+\]", echo)
            arguments = json.dumps(
                {"to": mask[0] if mask else "x", "text": values(1)}, ensure_ascii=chance.random() < 0.5
            )
        return Script(text=text, arguments=arguments, seed=plan.seed, most=chance.choice((1, 4, 30)))


class Maker:
    """Draws requests."""

    def __init__(self, seed: int, teams: tuple[str, ...] = TEAMS) -> None:
        self.chance = random.Random(seed)
        self.teams = teams
        self.plans: dict[int, Plan] = {}

    def plan(self, wires: Iterable[str] = WIRES) -> Plan:
        chance = self.chance
        number = len(self.plans) + 1
        plan = Plan(
            number,
            chance.choice(self.teams),
            chance.choice(tuple(wires)),
            chance.random() < 0.5,
            chance.randrange(2**40),
        )
        self.plans[number] = plan
        plan.asked = f"#{number}# " + self._prose(plan, new=True, most=3)
        body = self._body(plan)
        body["model"] = {"embeddings": "vectors", "responses as written": "house"}.get(plan.wire, "gpt")
        if plan.wire != "embeddings" and plan.stream:
            body["stream"] = True
        if plan.wire != "embeddings" and chance.random() < 0.5:
            body["temperature"] = 0
        plan.body = body
        if plan.wire == "embeddings":
            # A vector cannot be changed back, and there is no engine of one's own.
            plan.refused = any(kind in GUARDED[plan.team_id] for kind in plan.planted.values())
        return plan

    def _prose(self, plan: Plan, *, new: bool, most: int) -> str:
        chance = self.chance
        words = chance.choices(FILLER, k=chance.randint(1, 60))
        for _ in range(chance.randint(0, most)):
            kind = chance.choice(KINDS)
            if not new and GUARDED[plan.team_id].get(kind) == "block" and chance.random() < 0.5:
                continue
            if new and GUARDED[plan.team_id].get(kind) == "block":
                if chance.random() < 0.8:
                    continue
                plan.refused = True
            value = new_value(chance, kind)
            plan.planted[core_of(value)] = kind
            words.insert(chance.randint(0, len(words)), disguised(chance, value))
        return " ".join(words)

    def _body(self, plan: Plan) -> dict[str, Any]:
        chance = self.chance
        if plan.wire == "embeddings":
            return {"input": [plan.asked, "another"]}
        if plan.wire == "completions":
            return {"prompt": plan.asked, "max_tokens": 500}
        turns = self._turns(plan)
        tools = chance.random() < 0.4
        if plan.wire == "messages":
            body: dict[str, Any] = {"max_tokens": 900, "messages": [_for_messages(each) for each in turns]}
            if tools:
                body["tools"] = [{"name": "weigh", "input_schema": {"type": "object", "properties": {}}}]
            return body
        if plan.wire.startswith("responses"):
            body = {"input": [item for each in turns for item in _for_responses(each)], "store": False}
            if tools:
                body["tools"] = [
                    {"type": "function", "name": "weigh", "parameters": {"type": "object", "properties": {}}}
                ]
            if plan.wire.endswith("written"):
                body["tools"] = [*body.get("tools", []), {"type": "web_search"}]
            return body
        body = {"messages": turns}
        if tools:
            function = {"name": "weigh", "description": "Weighs.", "parameters": {"type": "object", "properties": {}}}
            body["tools"] = [{"type": "function", "function": function}]
        return body

    def _turns(self, plan: Plan) -> list[dict[str, Any]]:
        """A conversation of chat; other wires write it their way."""
        chance = self.chance
        turns: list[dict[str, Any]] = []
        for _ in range(chance.choice((0, 0, 1, 2))):
            turns.append({"role": "user", "content": self._prose(plan, new=False, most=2)})
            if chance.random() < 0.5:
                turns.append({"role": "assistant", "content": self._prose(plan, new=False, most=1)})
                continue
            call_id = f"call_{chance.randrange(10**6)}"
            arguments = json.dumps({"to": [self._prose(plan, new=False, most=1)]}, ensure_ascii=chance.random() < 0.5)
            function = {"name": "weigh", "arguments": arguments}
            turns.append(
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": call_id, "type": "function", "function": function}],
                }
            )
            turns.append({"role": "tool", "tool_call_id": call_id, "content": self._prose(plan, new=False, most=1)})
            turns.append({"role": "assistant", "content": "It is so."})
        content: Any = plan.asked
        if chance.random() < 0.3:
            content = [
                {"type": "text", "text": self._prose(plan, new=True, most=1)},
                {"type": "text", "text": plan.asked},
            ]
        return [*turns, {"role": "user", "content": content}]


def _for_messages(turn: dict[str, Any]) -> dict[str, Any]:
    if turn["role"] == "tool":
        result = {"type": "tool_result", "tool_use_id": turn["tool_call_id"], "content": turn["content"]}
        return {"role": "user", "content": [result]}
    if turn.get("tool_calls"):
        (call,) = turn["tool_calls"]
        use = {
            "type": "tool_use",
            "id": call["id"],
            "name": "weigh",
            "input": json.loads(call["function"]["arguments"]),
        }
        return {"role": "assistant", "content": [use]}
    return turn


def _for_responses(turn: dict[str, Any]) -> list[dict[str, Any]]:
    if turn["role"] == "tool":
        return [{"type": "function_call_output", "call_id": turn["tool_call_id"], "output": turn["content"]}]
    if turn.get("tool_calls"):
        (call,) = turn["tool_calls"]
        return [{"type": "function_call", "call_id": call["id"], **call["function"]}]
    content = turn["content"]
    if isinstance(content, list):
        content = [{"type": "input_text", "text": each["text"]} for each in content]
    return [{"role": turn["role"], "content": content}]


class Told(msgspec.Struct):
    """An answer as its caller has it."""

    status: int
    cache: str
    text: str
    lanes: list[str]
    """All its texts; those that come in pieces put together."""
    code: str = ""


def heard(status: int, cache: str, raw: str, *, stream: bool) -> Told:
    if status != 200:
        error = json.loads(raw)["error"]
        return Told(status, cache, "", list(strings_in(error)), error.get("code") or error.get("type"))
    if not stream:
        events = [json.loads(raw)]
    else:
        lines = [each[6:] for each in raw.split("\n") if each.startswith("data: ")]
        events = [json.loads(each) for each in lines if each != "[DONE]"]
    pieces: defaultdict[Any, list[str]] = defaultdict(list)
    for event in events:
        _pieces(event, (event.get("type"), event.get("output_index"), event.get("index")), pieces)
    lanes = ["".join(each) for each in pieces.values()]
    return Told(status, cache, "".join(_texts(events)), [raw, *lanes])


def _pieces(value: Any, path: tuple[Any, ...], found: defaultdict[Any, list[str]]) -> None:
    match value:
        case str():
            found[path].append(value)
        case dict():
            for name, each in value.items():
                _pieces(each, (*path, name), found)
        case list():
            for at, each in enumerate(value):
                _pieces(each, (*path, each.get("index", at) if isinstance(each, dict) else at), found)


def _texts(events: list[Any]) -> Iterator[str]:
    for event in events:
        for choice in event.get("choices") or ():
            said = choice.get("delta") or choice.get("message") or choice
            yield said.get("content") or said.get("text") or ""
        match event.get("type"):
            case "content_block_delta":
                yield event["delta"].get("text", "")
            case "response.output_text.delta":
                yield event["delta"]
        if event.get("type") == "message":
            yield "".join(block.get("text", "") for block in event["content"])
        if event.get("object") == "response":
            yield "".join(part["text"] for item in event["output"] for part in item.get("content") or ())


class Callers:
    """Who asks a gateway before the model, and what was wrong with what they were told."""

    def __init__(self, made: Model, keys: dict[str, str], session: aiohttp.ClientSession) -> None:
        self.model = made
        self.keys = keys
        self.session = session
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()
        self.booked: Counter[tuple[str, str]] = Counter()

    async def ask(self, plan: Plan, team_id: str = "") -> Told:
        team_id = team_id or plan.team_id
        headers = {"authorization": f"Bearer {self.keys[team_id]}"}
        async with self.session.post(PATHS[plan.wire], json=plan.body, headers=headers) as reply:
            raw = await reply.text()
            cache = reply.headers.get("x-weighbridge-cache", "")
        told = heard(reply.status, cache, raw, stream=bool(plan.body.get("stream")))
        self.counts[f"{told.status} {cache}"] += 1
        if told.status == 200:
            self.booked[team_id, "cache" if cache == "hit" else "settle"] += 1
        return told

    async def checked(self, plan: Plan, team_id: str = "") -> Told:
        """Ask, and note all that is wrong with what is told."""
        team_id = team_id or plan.team_id
        calls = self.model.calls[plan.number]
        told = await self.ask(plan, team_id)
        called = self.model.calls[plan.number] - calls
        if plan.refused:
            self._that(plan, (told.status, told.code, called) == (400, "content_filter", 0), f"refused: {told.status}")
        else:
            self._that(plan, told.status == 200, f"{told.status} {told.code}")
            self._that(plan, called == (told.cache != "hit"), f"{called} calls, {told.cache}")
        self.leaks_of(plan, team_id, told.lanes)
        if told.status == 200 and plan.wire != "embeddings":
            self._echo(plan, team_id, told)
        return told

    def leaks_of(self, plan: Plan, team_id: str, lanes: list[str]) -> None:
        """Note values in an answer that are another's, or that the model said though a rule guards them."""
        guarded = GUARDED[team_id]
        free = {core for said in plan.said for core, kind in said.items() if kind not in guarded}
        for lane in lanes:
            for core, kind in cores_in(lane).items():
                if kind == "card" and core not in plan.planted and core not in free:
                    # Sixteen digits in a row are no card by themselves.
                    self._that(plan, not any(core in said for said in plan.said), "said a card")
                    continue
                self._that(plan, core in plan.planted or core in free, f"told {kind}")

    def _echo(self, plan: Plan, team_id: str, told: Told) -> None:
        cut = any(GUARDED[team_id].get(kind) == "block" for said in plan.said for kind in said.values())
        if not cut:
            self._that(plan, told.text.startswith(plan.asked), "another echo")
            plan.echoed.add(team_id)
        answers = plan.answers.setdefault(team_id, [])
        if told.cache == "hit":
            self._that(plan, told.text in answers, "a hit that was never said")
        answers.append(told.text)

    def _that(self, plan: Plan, holds: bool, what: str) -> None:
        if not holds:
            self.wrong.append(
                f"#{plan.number} {plan.team_id} {plan.wire} {'stream' if plan.stream else 'whole'}: {what}"
            )

    async def drawn(self, maker: Maker, count: int) -> None:
        """Ask so many requests, some of them again, and some of those as another team; callers ask at the same time."""

        async def caller() -> None:
            while sum(self.counts.values()) < count:
                plan = maker.plan()
                await self.checked(plan)
                if "temperature" in plan.body or plan.wire == "embeddings":
                    await self.checked(plan)
                    other = maker.chance.choice(TEAMS)
                    if not {"token", "case"} & set(plan.planted.values()) and other not in plan.answers:
                        await self.checked(plan, other)

        await asyncio.gather(*(caller() for _ in range(CALLERS)))

    def holds(self) -> None:
        """Nothing got out, and nothing was told to anybody else."""
        assert not self.model.leaks, "\n".join(self.model.leaks[:9])
        assert not self.wrong, "\n".join([str(len(self.wrong)), *self.wrong[:30]])


class House(Callers):
    """Three teams of two organisations, their gateway, and its books."""

    def __init__(self, gateway: Running, made: Model, keys: dict[str, str], session: aiohttp.ClientSession) -> None:
        super().__init__(made, keys, session)
        self.gateway = gateway

    async def lines(self, maker: Maker, count: int) -> None:
        """A batch of so many lines of `team_a`."""
        plans: list[Plan] = []
        while len(plans) < count:
            plan = maker.plan(["chat"])
            if plan.team_id == "team_a":
                plan.body.pop("stream", None)
                plans.append(plan)
        async with client(self.gateway) as caller:
            asked = [line(str(plan.number)) | {"body": plan.body} for plan in plans]
            batch = await ended(caller, await submit(caller, asked))
            files = (batch.output_file_id, batch.error_file_id)
            answers = {each["custom_id"]: each["response"] for name in files for each in await results(caller, name)}
        for plan in plans:
            answer = answers[str(plan.number)]
            told = heard(answer["status_code"], "", json.dumps(answer["body"]), stream=False)
            self._that(plan, told.status == (400 if plan.refused else 200), f"line {told.status}")
            self._that(plan, self.model.calls[plan.number] == (not plan.refused), "line: calls")
            self.leaks_of(plan, "team_a", told.lanes)
            if told.status == 200:
                self.booked["team_a", "settle"] += 1
                self._echo(plan, "team_a", told)

    async def books_hold(self) -> None:
        """Nothing is wrong, and each answer is booked once."""
        self.holds()
        rows = await self.gateway.rows()
        found = Counter((row["team_id"], row["entry"]) for row in rows if row["entry"] in {"settle", "cache"})
        assert found == self.booked
        assert sum(self.model.calls.values()) == sum(count for (_, kind), count in found.items() if kind == "settle")
        now = wall_us()
        books = await check(self.gateway.engine, now - DAY_US, now + DAY_US, now_us=now)
        assert (books.differences, books.open_reserves) == (0, 0)
        values = {core for plan in self.model.plans.values() for core in plan.planted}
        assert values.isdisjoint(re.findall(r"m[0-9a-f]{10}q|ghp_\w{36}|\d{16}", json.dumps(rows, default=str)))


def models_at(base_url: str) -> list[dict[str, Any]]:
    there = {"kind": "openai", "base_url": f"{base_url}/v1", "upstream_model": "m"}
    return [
        model("gpt", [there]),
        model("vectors", [there], capabilities=["embeddings"]),
        model("house", [there], provider_tools=["web_search"]),
    ]


@contextlib.asynccontextmanager
async def answering(plans: dict[int, Plan]) -> AsyncIterator[Model]:
    made = Model(plans)
    app = web.Application(client_max_size=1 << 24)
    app.router.add_post("/{path:.*}", made.serve)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        made.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield made
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def house(folder: Path, maker: Maker, **sections: Any) -> AsyncIterator[House]:
    async with answering(maker.plans) as made:
        sections = {"guard": {"rules": FLOOR}, "cache": {"default": True}, "batch": FAST, **sections}
        accounts = {"fresh_s": 0.1}
        async with running_gateway(folder, models_at(made.base_url), accounts=accounts, **sections) as gateway:
            store = gateway.accounts
            await store.create_organisation("elsewhere")
            await store.create_team("team_c", organisation_id="elsewhere")
            await store.create_team("team_b")
            keys = {"team_a": gateway.key}
            for team_id, rules in OWN.items():
                await store.set_guard("elsewhere" if team_id == "team_c" else "default", team_id, json.dumps(rules))
                if team_id not in keys:
                    keys[team_id] = (await store.create_key(team_id, "tests", _pepper(gateway))).plaintext
            async with aiohttp.ClientSession(gateway.url) as session:
                yield House(gateway, made, keys, session)


async def test_nothing_crosses_and_nothing_leaks(tmp_path: Path) -> None:
    """Some hundreds of requests, of which each kind comes up."""
    maker = Maker(SEED)
    async with house(tmp_path, maker) as it:
        await it.drawn(maker, 560)
        await it.lines(maker, 40)
        await it.books_hold()
    assert {plan.wire for plan in maker.plans.values()} == set(WIRES)
    for seen in ("200 hit", "200 miss", "200 bypass", "400 "):
        assert it.counts[seen] > 10, it.counts
    assert len({team_id for plan in maker.plans.values() for team_id in plan.echoed}) == 3


@pytest.mark.long
@pytest.mark.timeout(3_600)
async def test_twenty_thousand_requests(tmp_path: Path) -> None:
    """The same at length, with a batch after each tenth of it."""
    maker = Maker(SEED + 1)
    async with house(tmp_path, maker) as it:
        for tenth in range(1, 11):
            await it.drawn(maker, REQUESTS * tenth // 10)
            await it.lines(maker, max(1, REQUESTS // 400))
        await it.books_hold()


async def test_a_sick_redis_costs_hits_alone(tmp_path: Path, empty_redis: RedisServer) -> None:
    """It hangs, dies, and is full while all ask: nothing is refused, crosses or leaks, and the books agree."""
    address = tmp_path / "redis.address"
    address.write_text(empty_redis.url)
    redis = {"url": f"file:{address}", "timeout_s": 0.4, "slow_s": 0.15, "probe_s": 0.05}
    maker = Maker(SEED + 2)
    async with house(tmp_path, maker, redis=redis) as it:
        await until(lambda: _is_shared(it.gateway))
        harms = (
            (empty_redis.freeze, empty_redis.thaw),
            (empty_redis.kill, empty_redis.start),
            (
                lambda: empty_redis.ask("CONFIG", "SET", "maxmemory", "1"),
                lambda: empty_redis.ask("CONFIG", "SET", "maxmemory", "0"),
            ),
        )
        for number, (begin, end) in enumerate(harms):
            asking = asyncio.create_task(it.drawn(maker, 120 * (number + 1)))
            await until(lambda first=120 * number + 40: sum(it.counts.values()) >= first)  # type: ignore[misc]
            begin()
            await until(lambda first=120 * number + 80: sum(it.counts.values()) >= first)  # type: ignore[misc]
            end()
            await asking
            await until(lambda: _is_shared(it.gateway))
        assert it.counts["200 hit"] > 10
        await it.books_hold()


async def test_a_hanging_guard_refuses_in_time_and_does_nothing_else(tmp_path: Path) -> None:
    """Also what was answered before is not given again without a verdict; the service is sent what was masked before."""
    never = asyncio.Event()

    async def hangs(_body: Any) -> web.StreamResponse:
        await never.wait()
        raise AssertionError

    maker = Maker(SEED + 3)
    async with service() as judges:
        answers = judges.answer
        async with house(tmp_path, maker, guard={"rules": [*FLOOR, asks_of(judges)]}) as it:
            await it.drawn(maker, 60)
            written = it.gateway.config_path.read_text()
            it.gateway.config_path.write_text(written.replace("timeout_ms: 30000", "timeout_ms: 400"))
            it.gateway.reload()
            judges.answer = hangs
            plans = [maker.plan() for _ in range(30)] + [plan for plan in maker.plans.values() if plan.answers][:10]
            calls, asked_at = it.model.calls.total(), asyncio.get_running_loop().time()
            for plan, told in zip(plans, await asyncio.gather(*map(it.ask, plans)), strict=True):
                allowed = {(503, "guard_unavailable")} | ({(400, "content_filter")} if plan.refused else set())
                assert (told.status, told.code) in allowed
            # Far less than the thirty seconds that a service may have.
            assert asyncio.get_running_loop().time() - asked_at < 15
            assert it.model.calls.total() == calls
            judges.answer = answers
            # What follows is of a sound service, which a busy machine may keep for longer.
            it.gateway.config_path.write_text(written)
            it.gateway.reload()
            # A service that failed so often is left alone for some seconds.
            await until(lambda: _is_judged(it, plans[0]))
            await it.drawn(maker, 160)
            await it.books_hold()
        floor = {core for text in strings_in(judges.asked) for core, kind in cores_in(text).items() if kind == "mail"}
    assert not floor


async def _is_judged(it: House, plan: Plan) -> bool:
    return (await it.ask(plan)).code != "guard_unavailable"


@pytest.mark.long
async def test_a_killed_worker_leaks_nothing(tmp_path: Path) -> None:
    """Kill -9 of workers while all ask: what is told holds, and each call has its one entry and its one end."""
    maker = Maker(SEED + 4, ("team_a",))
    rules = [*FLOOR, *OWN["team_a"]]
    async with answering(maker.plans) as made:
        site = await make_site(tmp_path, models_at(made.base_url), guard={"rules": rules}, cache={"default": True})
        closed = False
        async with serving(site, "gateway", "--workers", "2") as server, aiohttp.ClientSession(server.url) as session:
            callers = Callers(made, {"team_a": site.key}, session)

            async def caller() -> None:
                while not closed:
                    plan = maker.plan()
                    for _ in range(3):
                        with contextlib.suppress(aiohttp.ClientError, ConnectionError):
                            await callers.checked(plan)

            asking = [asyncio.create_task(caller()) for _ in range(CALLERS)]
            for number in range(8):
                await until(lambda first=80 * (number + 1): sum(callers.counts.values()) >= first)  # type: ignore[misc]
                with contextlib.suppress(ProcessLookupError):
                    os.kill(random.Random(SEED + number).choice(server.workers()), signal.SIGKILL)
                await until(lambda: len(server.workers()) == 2)
            closed = True
            await asyncio.gather(*asking)
            callers.holds()
            open_rows = (
                "entry = 'reserve' AND NOT EXISTS (SELECT 1 FROM ledger_entry AS c WHERE c.request_id = ledger_entry.request_id "
                "AND c.attempt = ledger_entry.attempt AND c.entry IN ('settle', 'void', 'expire'))"
            )

            async def is_closed() -> bool:
                return not await site.rows(open_rows)

            await until(is_closed)
            assert await server.stop() == 0
    rows = await site.rows()
    kinds = Counter(row["entry"] for row in rows)
    assert kinds["reserve"] >= made.calls.total()
    assert kinds["reserve"] == kinds["settle"] + kinds["void"] + kinds["expire"]
    assert callers.counts["200 hit"] > 10
