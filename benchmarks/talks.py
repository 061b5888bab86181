"""Conversations that arrive over time: the same ones at the same moments for everybody who is compared.

Applications have a system prompt each, which their conversations share; a conversation sends all of itself with every
turn. An engine that has the turn before in its cache computes only what is new.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from random import Random
from typing import Any, Final

import aiohttp
import msgspec

OUTPUT_TOKENS: Final = 12
_PATIENCE_S: Final = 60.0
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The form of the conversations. A line has about 20 tokens."""

    applications: int = 3
    conversations: int = 13
    turns: int = 5
    system_lines: int = 15
    first_lines: int = 15
    turn_lines: int = 8
    seconds: float = 40.0
    """All turns arrive within this time."""


class Turn(msgspec.Struct, frozen=True):
    at_s: float
    conversation: int
    messages: list[dict[str, str]]


class Heard(msgspec.Struct, frozen=True):
    """The reply to a turn."""

    ttft_s: float | None
    """Time to the first token; None when the turn failed."""
    total_s: float
    trouble: str = ""


def turns(shape: Shape, seed: int) -> list[Turn]:
    """Return the turns in the order of their times. Other seeds share no text."""
    random = Random(seed)
    systems = [_lines(random, shape.system_lines) for _ in range(shape.applications)]
    found = []
    # Between two turns somebody reads and thinks.
    gap_s = shape.seconds / (shape.turns + 1)
    for number in range(shape.conversations):
        messages = [{"role": "system", "content": systems[number % shape.applications]}]
        at_s = random.uniform(0, gap_s)
        for turn in range(shape.turns):
            lines = shape.turn_lines if turn else shape.first_lines
            messages = [*messages, {"role": "user", "content": _lines(random, lines)}]
            found.append(Turn(at_s, number, messages))
            messages = [*messages, {"role": "assistant", "content": _lines(random, 1)}]
            at_s += gap_s * random.uniform(0.8, 1.2)
    return sorted(found, key=lambda each: each.at_s)


def _lines(random: Random, count: int) -> str:
    words = ("".join(random.choices(_LETTERS, k=3)) for _ in range(3 * count))
    return "\n".join(
        f"def {first}(self, {second}): return {random.randrange(1_000)} + {third}"
        for first, second, third in zip(words, words, words, strict=True)
    )


async def play(said: Sequence[Turn], url: str, key: str, model: str) -> list[Heard]:
    """Send each turn at its time, whatever became of the others."""
    timeout = aiohttp.ClientTimeout(total=_PATIENCE_S)
    headers = {"authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=timeout, headers=headers
    ) as session:
        begun_at = time.monotonic()

        async def one(turn: Turn) -> Heard:
            await asyncio.sleep(max(0.0, begun_at + turn.at_s - time.monotonic()))
            return await _send(session, f"{url}/v1/chat/completions", model, turn.messages)

        return await asyncio.gather(*(one(turn) for turn in said))


async def _send(session: aiohttp.ClientSession, url: str, model: str, messages: list[dict[str, str]]) -> Heard:
    fields: dict[str, Any] = {"model": model, "max_tokens": OUTPUT_TOKENS, "temperature": 0, "stream": True}
    body = json.dumps({**fields, "messages": messages}).encode()
    sent_at, first_at, ended = time.monotonic(), None, False
    try:
        async with session.post(url, data=body, headers={"content-type": "application/json"}) as got:
            if got.status != 200:
                return Heard(None, time.monotonic() - sent_at, f"status {got.status}")
            async for line in got.content:
                if line.startswith(b"data: {") and first_at is None:
                    first_at = time.monotonic()
                ended = ended or line.startswith(b"data: [DONE]")
    except (aiohttp.ClientError, TimeoutError) as error:
        return Heard(None, time.monotonic() - sent_at, type(error).__name__)
    now = time.monotonic()
    if first_at is None or not ended:
        return Heard(None, now - sent_at, "no proper end")
    return Heard(first_at - sent_at, now - sent_at)
