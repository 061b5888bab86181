"""Prompts of batch work, read in pieces: who comes meanwhile goes first, and there is one answer and one booking.

The engine is scripted, with what vLLM 0.32 takes and tells; `tests/vllm` has the real one.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import web

from tests.fleet import Callers, Place, Reply, callers, pool, pooled_model
from tests.odd_engine import OddEngine, served
from tests.processes import until
from tests.running_gateway import running_gateway

LONG: Final = [{"role": "user", "content": "Weigh this bridge, please. " * 60}]
TOKENS: Final = 420
"""Of that prompt, as the engine counts."""
BATCH: Final = {"x-tier": "batch"}


class Engine(OddEngine):
    """Keeps what it has read of each prompt, in blocks of 16 tokens."""

    def __init__(self) -> None:
        super().__init__("one")
        self.kept = 0
        self.keeps = True
        self.first = asyncio.Event()
        """Streams wait for it before their first token."""
        self.first.set()
        self.between = asyncio.Event()
        """Pieces wait for it."""
        self.between.set()

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if body.get("stream"):
            await self.first.wait()
            return await super()._chat(request)
        self.asked.append(body)
        if "truncate_prompt_tokens" in body:
            await self.between.wait()
        if self.status != 200:
            return web.json_response({"error": {"message": "no", "type": "BadRequestError"}}, status=self.status)
        tokens = min(TOKENS, body.get("truncate_prompt_tokens", TOKENS))
        cached = min(self.kept, (tokens - 1) // 16 * 16)
        self.kept = max(self.kept, tokens // 16 * 16 if self.keeps else 0)
        usage = {
            "prompt_tokens": tokens, "completion_tokens": 1, "total_tokens": tokens + 1,
            "prompt_tokens_details": {
                "cached_tokens": cached, "created_cache_tokens": max(0, self.kept - cached), "multimodal_tokens": None,
            },
        }  # fmt: skip
        choice = {"index": 0, "message": {"role": "assistant", "content": "A"}, "finish_reason": "stop"}
        head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": body["model"]}
        return web.json_response({**head, "choices": [choice], "usage": usage})


@contextlib.asynccontextmanager
async def house(tmp_path: Path) -> AsyncIterator[tuple[Callers, Engine]]:
    engine = Engine()
    async with contextlib.AsyncExitStack() as stack:
        engine.url = await served(stack, engine.app())
        own = pool([Place("one", engine.url)], read_ahead_tokens=128, priority_scheduling=True)
        section = {"selfhosted": {"pools": [own]}, "classifier": {"enabled": False}}
        gateway = await stack.enter_async_context(running_gateway(tmp_path, [pooled_model()], **section))
        found = await stack.enter_async_context(callers(gateway))
        await found.until_states(one="ready")
        yield found, engine


def reach(body: dict[str, Any]) -> int | None:
    return body.get("truncate_prompt_tokens")


async def test_a_prompt_is_read_in_pieces_and_booked_once(tmp_path: Path) -> None:
    """Each piece asks for one token behind a part of the prompt that begins like the whole. What was read so is none of the tokens
    that were cached before. A caller's prompt is read as one, and so is what cannot be cut.
    """
    async with house(tmp_path) as (fleet, engine):
        reply = await fleet.ask(LONG, headers=BATCH, max_tokens=7, min_tokens=3, logprobs=True)
        assert (reply.status, reply.text) == (200, "A")
        assert [reach(body) for body in engine.asked] == [128, 256, 384, None]
        *pieces, whole = engine.asked
        for body in pieces:
            assert (body["max_tokens"], body["stream"], body["truncation_side"], body["priority"]) == (
                1,
                False,
                "right",
                10,
            )
            assert body["messages"] == LONG
            assert not {"min_tokens", "logprobs", "max_completion_tokens"} & body.keys()
        assert (whole["max_tokens"], whole["min_tokens"], "truncation_side" in whole) == (7, 3, False)
        assert reply.usage["prompt_tokens_details"]["cached_tokens"] == 384
        (row,) = await fleet.gateway.rows("entry = 'settle'")
        assert (row["input_tokens"], row["cached_input_tokens"], row["attempt"]) == (TOKENS, 0, 1)
        for headers, fields in (({}, {}), (BATCH, {"n": 2}), (BATCH, {"prompt_logprobs": 1})):
            engine.asked.clear()
            await fleet.ask([*LONG, *LONG], headers=headers, **fields)
            assert [reach(body) for body in engine.asked] == [None]


@pytest.mark.parametrize(("keeps", "status", "asked"), [(False, 200, [128, 256, None]), (True, 400, [128, None])])
async def test_where_pieces_do_not_help_the_rest_is_read_as_one(
    tmp_path: Path, keeps: bool, status: int, asked: list[int | None]
) -> None:
    """The engine keeps nothing, or knows no such request."""
    async with house(tmp_path) as (fleet, engine):
        engine.keeps, engine.status = keeps, status
        await fleet.ask(LONG, headers=BATCH)
        assert [reach(body) for body in engine.asked] == asked


async def test_who_waits_for_a_first_token_goes_before_the_next_piece(tmp_path: Path) -> None:
    """The piece that is being read is not interrupted; the one after it waits."""
    async with house(tmp_path) as (fleet, engine):
        engine.between.clear()
        engine.first.clear()
        async with asyncio.TaskGroup() as group:
            line = group.create_task(fleet.ask(LONG, headers=BATCH))
            await until(lambda: len(engine.asked) == 1)
            reply = Reply()
            group.create_task(fleet.stream([{"role": "user", "content": "hello"}], into=reply))
            await asyncio.sleep(0.1)
            engine.between.set()
            await asyncio.sleep(0.3)
            assert [reach(body) for body in engine.asked] == [128]
            engine.first.set()
            await until(lambda: reply.done)
            assert (await line).status == 200
        assert [reach(body) for body in engine.asked if not body.get("stream")] == [128, 256, 384, None]
