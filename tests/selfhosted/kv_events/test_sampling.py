"""Asking an engine for tokens: rarely, bounded, and never in the way."""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from providers.wire import ChatRequest, Message
from selfhosted.balance.index import PrefixIndex
from selfhosted.kv_events.chains import Chains
from selfhosted.kv_events.events import BlocksStored
from selfhosted.kv_events.sampling import Sample, SampleLimits, Sampling, TokenizeFailed, tokenize_body
from selfhosted.kv_events.tokenizing import HttpTokenize


class Clock:
    """Time passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked_at: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


class Engine:
    """Answers with the tokens of a prompt, or fails."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.is_failing = False

    async def __call__(self, url: str, body: bytes) -> Sequence[int]:
        self.clock.asked_at.append(self.clock.now)
        if self.is_failing:
            raise TokenizeFailed
        return json.loads(body)["tokens"]  # type: ignore[no-any-return]


class Asking:
    def __init__(self, **limits: Any) -> None:
        self.clock = Clock()
        self.engine = Engine(self.clock)
        self.counts: Counter[str] = Counter()
        self.chains = Chains(PrefixIndex(1_000))
        self.chains.adopt(["r"])
        self.sampling = Sampling(
            self.chains,
            self.engine,
            counted=lambda result: self.counts.update([result]),
            limits=SampleLimits(**limits),
            clock=self.clock,
            sleep=self.clock.sleep,
        )

    def offer(self, number: int, *, is_stored: bool = True) -> None:
        tokens = [number, 2, 3, 4, 5, 6, 7, 8]
        if is_stored:
            blocks = (tuple(tokens[:4]), tuple(tokens[4:]))
            self.chains.apply("r", BlocksStored((number * 2, number * 2 + 1), None, blocks, ((), ()), None))
        self.sampling.offer(
            Sample(
                replica="r",
                url="http://r",
                blocks=(number * 10 + 1, number * 10 + 2),
                block_bytes=16,
                rendered_bytes=32,
                body=lambda: msgspec.json.encode({"tokens": tokens}),
            )
        )

    async def run(self) -> None:
        task = asyncio.create_task(self.sampling.run())
        for _ in range(500):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_at_a_bounded_rate() -> None:
    """Of many prompts at once a few wait, and are asked for one after the other, after their events have come."""
    asking = Asking(waiting=3, per_s=2.0, settle_s=0.25)
    for number in range(1, 11):
        asking.offer(number)
    await asking.run()
    assert asking.counts == {"passed_over": 7, "learned": 3}
    assert asking.clock.asked_at == [0.25, 0.75, 1.25]


async def test_what_is_known_is_not_asked_for() -> None:
    """A prompt that was learned, also while it waited, is not asked for again."""
    asking = Asking()
    asking.offer(1)
    asking.offer(1)
    await asking.run()
    asking.offer(1)
    assert asking.counts == {"learned": 1, "known": 2}
    assert len(asking.clock.asked_at) == 1


async def test_an_engine_that_told_of_no_such_blocks() -> None:
    """Nothing is learned of tokens that no event named."""
    asking = Asking()
    asking.offer(1, is_stored=False)
    await asking.run()
    assert (asking.counts, asking.chains.mapped) == ({"unseen": 1}, 0)


async def test_an_engine_without_tokenize_is_left_alone() -> None:
    """After a few failures nothing is asked for a while, and then it is tried again."""
    asking = Asking(pause_s=60.0)
    asking.engine.is_failing = True
    for number in range(1, 9):
        asking.offer(number)
    await asking.run()
    assert asking.counts["failed"] == 5
    asking.offer(20)
    assert asking.counts["passed_over"] == 1
    asking.clock.now += 60
    asking.engine.is_failing = False
    asking.offer(21)
    await asking.run()
    assert asking.counts["learned"] == 1


def request(**fields: Any) -> ChatRequest:
    raw = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in fields.items()}
    return ChatRequest(fields=raw, model="auto", messages=[Message(role="user", content="hi")])


def test_the_question() -> None:
    """What the engine's template sees is asked for, under the engine's own name of the model, and nothing else."""
    messages = [{"role": "user", "content": "hi"}]
    body = tokenize_body("llama", request(messages=messages, tools=[{"type": "function"}], temperature=1, stream=True))
    assert body is not None
    assert json.loads(body) == {"model": "llama", "messages": messages, "tools": [{"type": "function"}]}


@pytest.mark.parametrize("field", ["functions", "documents", "reasoning_effort", "chat_template"])
def test_what_cannot_be_asked(field: str) -> None:
    """Where /tokenize would make another prompt of it, it is not asked; nor for pictures, nor for what is too long."""
    messages = [{"role": "user", "content": "hi"}]
    assert tokenize_body("llama", request(messages=messages, **{field: "x"})) is None
    assert tokenize_body("llama", msgspec.structs.replace(request(messages=messages), images=1)) is None
    assert tokenize_body("llama", request(messages=[{"role": "user", "content": "x" * 1_000_001}])) is None


async def answer(respond: Any, timeout_s: float = 10.0) -> Sequence[int]:
    """What HttpTokenize makes of an engine that responds so."""
    app = web.Application()
    app.router.add_post("/tokenize", respond)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        tokenize = HttpTokenize(session, lambda: "secret", timeout_s=timeout_s)
        return await tokenize(f"http://127.0.0.1:{server.port}", b'{"model":"x"}')


async def test_over_http() -> None:
    """The engine's key goes along, and its tokens come back."""

    async def respond(asked: web.Request) -> web.Response:
        assert asked.headers["authorization"] == "Bearer secret"
        assert await asked.json() == {"model": "x"}
        return web.json_response({"count": 2, "max_model_len": 9, "tokens": [1, 2], "token_strs": None})

    assert await answer(respond) == [1, 2]


@pytest.mark.parametrize("kind", ["status", "nonsense", "negative", "huge", "slow", "moved"])
async def test_bad_answers(kind: str) -> None:
    """Whatever it answers instead is one error, within bounds of time and size."""

    async def respond(asked: web.Request) -> web.StreamResponse:
        if kind == "slow":
            await asyncio.sleep(5)
        bodies = {"nonsense": "[", "negative": '{"tokens":[-1]}', "huge": '{"tokens":[' + "1," * 3_000_000}
        status = {"status": 404, "moved": 307}.get(kind, 200)
        return web.Response(status=status, text=bodies.get(kind, ""), headers={"location": "/elsewhere"})

    with pytest.raises(TokenizeFailed):
        await answer(respond, timeout_s=0.2 if kind == "slow" else 10.0)
