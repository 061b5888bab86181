"""A stream whose replica dies is continued by another one, for a team that wants it: its caller notices a delay at most."""

import asyncio
import contextlib
import json
import re
import time
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import anthropic
import openai
import pytest
from aiohttp import web

from tests.fleet import OWN, Callers, Place, callers, pool, pooled_model
from tests.odd_engine import OddEngine, served
from tests.processes import until
from tests.running_gateway import Running, running_gateway

TEXT: Final = "Once upon a time, there was a bridge.\n\nIt weighed what crossed it."
_TOKEN: Final = re.compile(r"\n\n| ?[^ \n]+")
TOKENS: Final = len(_TOKEN.findall(TEXT))
ASK: Any = [{"role": "user", "content": "Tell me a story, please."}]
_PROMPT: Final = 10
"""Tokens of a message."""


class Speaker(OddEngine):
    """Tells one text, from where the last message left it. Each of its fates is how many tokens it survives."""

    def __init__(self, name: str, fates: deque[int]) -> None:
        super().__init__(name)
        self.fates = fates
        self.thinks = False
        self.vanishes = False
        """Dies as a machine does that loses its network."""

    def app(self) -> web.Application:
        app = super().app()
        app.router.add_post("/v1/completions", self._text)
        return app

    async def _text(self, request: web.Request) -> web.StreamResponse:
        """The same as a text; what was said stands at the prompt's end."""
        return await self._chat(request)

    def _died(self, request: web.Request) -> web.Response:
        """The next one is alive at once, as where a supervisor starts it."""
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(body)
        survives = self.fates.popleft() if self.fates else 1_000
        # As a template does, it trims the message.
        said = body["messages"][-1]["content"].strip() if body.get("continue_final_message") else ""
        said = body["prompt"].partition(": ")[2] if "prompt" in body else said
        tokens = _TOKEN.findall(TEXT.removeprefix(said))
        reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await reply.prepare(request)
        await self._tell(reply, body, 0, {"role": "assistant", "content": ""})
        if self.thinks and said:
            await self._tell(reply, body, 1, {"reasoning_content": "Where was I?"})
        longest = min(len(tokens), body.get("max_tokens") or len(tokens))
        for number, token in enumerate(tokens[:longest], 1):
            if number > survives:
                if self.vanishes:
                    self.healthy = False
                    await asyncio.sleep(3_600)
                return self._died(request)
            finish = None if number < longest else "stop" if longest == len(tokens) else "length"
            await self._tell(reply, body, number, {"content": token}, finish)
        await reply.write(b"data: [DONE]\n\n")
        return reply

    async def _tell(
        self, reply: web.StreamResponse, body: Any, tokens: int, delta: dict[str, str], finish: str | None = None
    ) -> None:
        prompt = _PROMPT * len(body.get("messages", [""]))
        said = {"delta": delta} if "messages" in body else {"text": delta.get("content", "")}
        event = {
            "id": f"chatcmpl-{self.name}",
            "object": "chat.completion.chunk",
            "created": ord(self.name),
            "model": body["model"],
            "choices": [{"index": 0, **said, "finish_reason": finish}],
            "usage": {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens},
        }
        await reply.write(f"data: {json.dumps(event)}\n\n".encode())


@contextlib.asynccontextmanager
async def house(tmp_path: Path, *fates: int, wanted: bool = True) -> AsyncIterator[tuple[Callers, list[Speaker]]]:
    """Two engines, whichever of them is asked next has the next fate."""
    lives = deque(fates)
    engines = [Speaker("a", lives), Speaker("b", lives)]
    async with contextlib.AsyncExitStack() as stack:
        for engine in engines:
            engine.url = await served(stack, engine.app())
        own = pool([Place(each.name, each.url) for each in engines])
        section = {"selfhosted": {"pools": [own]}, "classifier": {"enabled": False}}
        gateway = await stack.enter_async_context(running_gateway(tmp_path, [pooled_model()], **section))
        found = await stack.enter_async_context(callers(gateway))
        if wanted:
            await gateway.accounts.update_team("team_a", continue_streams=True)
        await found.until_states(a="ready", b="ready")
        yield found, engines


def client(gateway: Running) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key=gateway.key, base_url=gateway.base_url, max_retries=0)


async def told(gateway: Running, **fields: Any) -> list[Any]:
    """The chunks of one answer, as openai's client has them."""
    async with client(gateway) as caller:
        options: Any = {"include_usage": True}
        asked = {"model": OWN, "messages": ASK, "stream": True, "stream_options": options, **fields}
        return [chunk async for chunk in await caller.chat.completions.create(**asked)]


def text(chunks: list[Any]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


async def test_the_caller_has_one_answer(tmp_path: Path) -> None:
    """One text, one id, one beginning and one end; its usage has the prompt once. The books have both attempts, the flag, and
    one answer.
    """
    async with house(tmp_path, 5) as (fleet, engines):
        chunks = await told(fleet.gateway)
        assert text(chunks) == TEXT
        assert len({(chunk.id, chunk.created) for chunk in chunks}) == 1
        assert [chunk.choices[0].delta.role for chunk in chunks if chunk.choices].count("assistant") == 1
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-2:] == [None, "stop"]
        usage = chunks[-1].usage
        assert (usage.prompt_tokens, usage.completion_tokens) == (_PROMPT, TOKENS)
        first, second = sorted((engine.asked[0] for engine in engines), key=lambda body: len(body["messages"]))
        assert second["messages"] == [*first["messages"], {"role": "assistant", "content": "Once upon a time, there"}]

        broken, rest = await fleet.gateway.rows("entry = 'settle'")
        assert ("stream_cut" in broken["flags"], "continued" in broken["flags"]) == (True, False)
        assert ("stream_cut" in rest["flags"], "continued" in rest["flags"]) == (False, True)
        assert (broken["served"], rest["served"]) == (False, True)
        assert (broken["input_tokens"], rest["input_tokens"]) == (_PROMPT, 2 * _PROMPT)
        assert broken["output_tokens"] + rest["output_tokens"] == TOKENS
        assert float(chunks[-1].model_extra["weighbridge"]["cost_usd"]) * 10**9 == pytest.approx(
            broken["cost_nanousd"] + rest["cost_nanousd"]
        )

        async def counted() -> bool:
            async with fleet.session.get(f"{fleet.gateway.url}/metrics") as page:
                told = await page.text()
            return (
                f'weighbridge_continued_streams_total{{result="ok",target="{OWN}"}} 1.0' in told
                and 'weighbridge_pool_ttft_seconds_count{pool="own",tier="interactive",version="-"} 2.0' in told
            )

        await until(counted)


async def test_wherever_it_breaks_off(tmp_path: Path) -> None:
    """After the first token, after a blank line that templates trim, before the last: no token and no blank is lost or
    doubled, and no more of them come than were asked for.
    """
    async with house(tmp_path) as (fleet, engines):
        for survived in (1, 9, TOKENS - 1):
            engines[0].fates.append(survived)
            assert text(await told(fleet.gateway)) == TEXT
            await fleet.until_states(a="ready", b="ready")
        engines[0].fates.append(5)
        chunks = await told(fleet.gateway, max_tokens=11)
        assert text(chunks) == "".join(_TOKEN.findall(TEXT)[:11])
        assert chunks[-1].usage.completion_tokens == 11
        assert chunks[-2].choices[0].finish_reason == "length"


async def test_every_dialect_goes_on(tmp_path: Path) -> None:
    """Anthropic's messages and OpenAI's responses."""
    async with house(tmp_path, 3) as (fleet, engines):
        gateway = fleet.gateway
        async with (
            anthropic.AsyncAnthropic(api_key=gateway.key, base_url=gateway.url, max_retries=0) as caller,
            caller.messages.stream(model=OWN, max_tokens=50, messages=ASK) as stream,
        ):
            message = await stream.get_final_message()
        assert [block.text for block in message.content if block.type == "text"] == [TEXT]
        assert (message.stop_reason, message.usage.input_tokens) == ("end_turn", _PROMPT)
        assert message.usage.output_tokens == TOKENS

        await fleet.until_states(a="ready", b="ready")
        engines[0].fates.append(3)
        async with client(gateway) as other:
            events = [event async for event in await other.responses.create(model=OWN, input="A story", stream=True)]
        last: Any = events[-1]
        assert (last.type, last.response.output_text) == ("response.completed", TEXT)
        assert (last.response.usage.input_tokens, last.response.usage.output_tokens) == (_PROMPT, TOKENS)
        assert [event.sequence_number for event in events] == list(range(len(events)))

        await fleet.until_states(a="ready", b="ready")
        engines[0].fates.append(3)
        async with client(gateway) as other:
            asked: Any = {"model": OWN, "prompt": "A story: ", "stream": True, "max_tokens": 50}
            pieces = [each async for each in await other.completions.create(**asked)]
        assert "".join(piece.choices[0].text for piece in pieces) == TEXT
        assert len(await gateway.rows("flags LIKE '%continued%'")) == 3


async def test_a_machine_that_is_gone_says_nothing(tmp_path: Path) -> None:
    """Its connections stay open and its probes fail: the stream goes on elsewhere long before a minute of silence is over."""
    async with house(tmp_path, 5) as (fleet, engines):
        for engine in engines:
            engine.vanishes = True
        began = time.monotonic()
        assert text(await told(fleet.gateway)) == TEXT
        assert time.monotonic() - began < 30
        _, rest = await fleet.gateway.rows("entry = 'settle'")
        assert "continued" in rest["flags"]


async def test_what_is_told_as_before(tmp_path: Path) -> None:
    """A team that did not choose it; a request that loses a second replica, as it may be what kills them; an engine that thinks
    anew, whose thoughts would come in the middle of the answer. What was done is booked.
    """
    async with house(tmp_path, 5, wanted=False) as (fleet, engines):

        async def broken() -> list[dict[str, Any]]:
            """The rows of a request that is told of its loss."""
            before = len(await fleet.gateway.rows("entry = 'settle'"))
            with pytest.raises(openai.APIError, match="broke"):
                await told(fleet.gateway)
            await fleet.until_states(a="ready", b="ready")
            return (await fleet.gateway.rows("entry = 'settle'"))[before:]

        assert [row["output_tokens"] for row in await broken()] == [5]
        assert sum(len(engine.asked) for engine in engines) == 1

        await fleet.gateway.accounts.update_team("team_a", continue_streams=True)
        await fleet.gateway.live.directory.refresh(fleet.gateway.accounts.find_keys)
        engines[0].fates.extend([5, 3])
        rows = await broken()
        assert [(row["served"], row["output_tokens"], "stream_cut" in row["flags"]) for row in rows] == [
            (False, 5, True),
            (False, 3, True),
        ]

        for engine in engines:
            engine.thinks = True
        engines[0].fates.append(5)
        *_, rest = await broken()
        assert json.loads(rest["flags"])[:2] == ["discarded", "continued"]
