"""Two cheap answers over sockets, in the words that models really use, to the official client."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

import openai
import pytest
from aiohttp import web

from tests.running_gateway import TRAINED, Running, model, running_gateway

ROWS: Final = {
    "mini": ("gpt-4o-mini-2024-07-18", 0.15, 0.60),
    "llama": ("llama-3-70b-instruct", 0.30, 0.30),
    "big": ("gpt-4.1", 2.50, 10.0),
}
CHOICE: Final = "Which of these is a noble gas?\nA) iron\nB) neon\nC) salt\nD) oxygen"
NUMBER: Final = "A crate holds 34 boxes of 121 nails. How many nails are there? Answer with a single number."
LABEL: Final = "Is this mail spam? Answer yes or no.\n\nDear friend, I have inherited a fortune and need your help."
OBJECT: Final[dict[str, Any]] = {"response_format": {"type": "json_object"}}
CALL: Final[dict[str, Any]] = {
    "tools": [{"type": "function", "function": {"name": "weigh", "parameters": {"type": "object"}}}],
    "tool_choice": "required",
}


def called(arguments: str) -> dict[str, Any]:
    call = {"id": "call_1", "type": "function", "function": {"name": "weigh", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


@contextlib.asynccontextmanager
async def saying(words: Mapping[str, str | dict[str, Any]], asked: list[str]) -> AsyncIterator[str]:
    """An upstream whose models say what they are told to."""

    async def answer(request: web.Request) -> web.Response:
        name = (await request.json())["model"]
        asked.append(name)
        said = words[name]
        message = said if isinstance(said, dict) else {"role": "assistant", "content": said}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if "tool_calls" in message else "stop"}
        usage = {"prompt_tokens": 40, "completion_tokens": 10, "total_tokens": 50}
        reply = {
            "id": "x",
            "object": "chat.completion",
            "created": 1,
            "model": name,
            "choices": [choice],
            "usage": usage,
        }
        return web.json_response(reply)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def gateway(folder: Path, words: Mapping[str, str | dict[str, Any]], asked: list[str]) -> AsyncIterator[Running]:
    async with saying(words, asked) as url:
        models = [
            model(
                name,
                [{"name": "main", "kind": "openai", "base_url": url, "upstream_model": name}],
                ability=ability,
                prices={"input": cost, "output": output},
            )
            for name, (ability, cost, output) in ROWS.items()
        ]
        async with running_gateway(
            folder, models, cost={"reference_target": "big"}, classifier=TRAINED, policy={"quality_floor": 1.0}
        ) as running:
            yield running


@pytest.mark.parametrize(
    ("prompt", "fields", "mini", "llama", "agreed"),
    [
        (CHOICE, {}, "The answer is (B).", "**B**", True),
        (CHOICE, {}, "B) neon", "<think>Iron? No.</think>\n\nThe correct answer is **B**: neon", True),
        (CHOICE, {}, "The answer is (B).", "The answer is (D).", False),
        (CHOICE, {}, "I'm sorry, but I can't help with that.", "I'm sorry, but I can't help with that.", False),
        (NUMBER, {}, "4,114", "34 × 121 = 4114\n\n\\boxed{4114.0}", True),  # noqa: RUF001 - as models write it
        (NUMBER, {}, "4,114", "4104", False),
        (LABEL, {}, "Yes.", "yes", True),
        (LABEL, {}, "Yes.", "No", False),
        (LABEL, {}, "", "", False),
        ("Extract the order", OBJECT, '{"a":1,"b":"X"}', '```json\n{"b": "x", "a": 1.0}\n```', True),
        ("Extract the order", OBJECT, '{"a":1}', '{"a":2}', False),
        ("Weigh it", CALL, called('{"kg": 7, "of": "Ada"}'), called('{ "of":"Ada","kg":"7" }'), True),
        ("Weigh it", CALL, called('{"kg": 7}'), called('{"kg": 8}'), False),
    ],
)
async def test_what_models_really_write_is_compared(
    tmp_path: Path, prompt: str, fields: dict[str, Any], mini: Any, llama: Any, agreed: bool
) -> None:
    """Dress makes no difference, and what differs, or says nothing, is asked of the baseline model, whose answer the caller gets."""
    asked: list[str] = []
    big = called('{"kg": 7}') if fields is CALL else '{"big": true}'
    async with (
        gateway(tmp_path, {"mini": mini, "llama": llama, "big": big}, asked) as running,
        openai.AsyncOpenAI(api_key=running.key, base_url=running.base_url, max_retries=0) as caller,
    ):
        raw = await caller.chat.completions.with_raw_response.create(
            model="auto",
            messages=[{"role": "user", "content": prompt}],
            extra_headers={"x-weighbridge-escalate": "agreement"},
            **fields,
        )
        told = raw.headers
        answer = raw.parse().choices[0].message
        if agreed:
            assert (told["x-weighbridge-agreement"], told["x-weighbridge-reason"]) == ("agreed", "agreement")
            assert sorted(asked) == ["llama", "mini"]
            assert answer.content in (mini, llama) or answer.tool_calls
        else:
            assert (told["x-weighbridge-agreement"], told["x-weighbridge-target"]) == ("disagreed", "big")
            assert sorted(asked) == ["big", "llama", "mini"]
        assert float(told["x-weighbridge-agreement-cost-usd"]) > 0
        plain = await caller.chat.completions.with_raw_response.create(
            model="auto", messages=[{"role": "user", "content": prompt}], **fields
        )
        assert "x-weighbridge-agreement" not in plain.headers
