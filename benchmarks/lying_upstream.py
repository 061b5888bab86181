"""An upstream of which one answer in ten ignores its bound or lies about its usage, and which keeps its own true account.

    python -m benchmarks.lying_upstream --port 9000

The account is what a provider could bill: tokens that it truly read and wrote, by the first word of the prompt. What an answer does is drawn by the
prompt, so that the order in which requests arrive changes nothing.
"""

import argparse
import asyncio
import contextlib
import json
import random
from collections import Counter
from typing import Any, Final

from aiohttp import web

KINDS: Final = ("endless", "boast", "zero", "silent", "odd numbers")
"""What a lying answer does: goes on past its limit, tells fifty times its prompt, tells nothing used, tells no usage, or tells
floats and strings.
"""
LYING: Final = 0.1
PRICES: Final = {"input": 2_500, "output": 10_000}
"""Nano-dollars a token."""
_BOAST: Final = 50
_AT_ONCE: Final = 10
_PAUSE_S: Final = 0.005
"""Ten tokens each five milliseconds are faster than most engines write, so that a cut comes rather too late than too soon."""


class Account:
    def __init__(self) -> None:
        self.true: Counter[str] = Counter()
        """Nano-dollars truly owed, by team."""
        self.broke: Counter[str] = Counter()
        """Answers written to their end beyond their limit, whole ones and streams that were not cut in time, by team."""
        self.answers: Counter[str] = Counter()
        """Answers by what they did."""

    def owe(self, team: str, *, read: int = 0, written: int = 0) -> None:
        self.true[team] += read * PRICES["input"] + written * PRICES["output"]


def drawn(prompt: str, most: int) -> tuple[str, int]:
    """Return what the answer to a prompt does, and its length in tokens."""
    chance = random.Random(prompt)
    kind = chance.choice((KINDS[0], *KINDS)) if chance.random() < LYING else "honest"
    length = chance.randint(8 * most, 12 * most) if kind == "endless" else chance.randint(most // 5, most)
    return kind, length


def told(kind: str, read: int, written: int) -> dict[str, Any] | None:
    """Return the usage that such an answer tells."""
    if kind == "silent":
        return None
    if kind == "zero":
        read = written = 0
    elif kind == "boast":
        read *= _BOAST
    usage: dict[str, Any] = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
    if kind == "odd numbers":
        usage |= {"prompt_tokens": float(read), "completion_tokens": str(written)}
    return usage


def _head(kind: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 0, "model": body["model"]}


async def _whole(account: Account, body: dict[str, Any], team: str, kind: str, read: int, length: int) -> web.Response:
    account.owe(team, written=length)
    message = {"role": "assistant", "content": "word " * length}
    usage = told(kind, read, length)
    return web.json_response(
        _head("chat.completion", body)
        | {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        | ({} if usage is None else {"usage": usage})
    )


async def _stream(
    account: Account, request: web.Request, body: dict[str, Any], team: str, kind: str, read: int, length: int
) -> web.StreamResponse:
    reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await reply.prepare(request)
    head = _head("chat.completion.chunk", body)
    one = {"index": 0, "delta": {"role": "assistant", "content": "word "}, "finish_reason": None}
    event = b"data: " + json.dumps(head | {"choices": [one]}).encode() + b"\n\n"
    for begin in range(0, length, _AT_ONCE):
        count = min(_AT_ONCE, length - begin)
        account.owe(team, written=count)
        await reply.write(event * count)
        await asyncio.sleep(_PAUSE_S)
    account.broke[team] += kind == "endless"
    last = head | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    usage = told(kind, read, length)
    if usage is not None:
        last |= {"usage": usage}
    await reply.write(b"data: " + json.dumps(last).encode() + b"\n\ndata: [DONE]\n\n")
    return reply


def app() -> web.Application:
    account = Account()

    async def chat(request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        prompt = body["messages"][0]["content"]
        team, most = prompt.split()[0], body["max_tokens"]
        kind, length = drawn(prompt, most)
        read = len(prompt) // 4
        account.answers[kind] += 1
        account.owe(team, read=read)
        if not body.get("stream"):
            account.broke[team] += kind == "endless"
            return await _whole(account, body, team, kind, read, length)
        with contextlib.suppress(ConnectionError):
            return await _stream(account, request, body, team, kind, read, length)
        return web.Response()

    async def read_account(_request: web.Request) -> web.Response:
        return web.json_response({"true": account.true, "broke": account.broke, "answers": account.answers})

    made = web.Application()
    made.router.add_post("/v1/chat/completions", chat)
    made.router.add_get("/account", read_account)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    web.run_app(
        app(),
        host="127.0.0.1",
        port=parser.parse_args().port,
        print=None,
        access_log=None,
        handler_cancellation=True,
        backlog=1_024,
    )


if __name__ == "__main__":
    main()
