"""What upstreams say that they used, true or not: the `openai` client at one end, the ledger at the other."""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web

from tests.providers.wires import LITELLM_WARNINGS, provider
from tests.running_gateway import DEAR_PRICES, Running, model, running_gateway
from tests.scenarios.test_model_facts import ASK, PICTURE, answer, bare, budget, client

pytestmark = LITELLM_WARNINGS

_CHUNKS = 3_000
_LEARNT_S = 60


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the configuration refers to."""
    monkeypatch.setenv("MADE_UP_KEY", "made-up")


def telling(usage: dict[str, Any]) -> Callable[..., Any]:
    """Return an upstream that answers with one word and tells this usage."""

    async def reply(_request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(answer(body) | {"usage": usage})

    return reply


async def endless(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Streams 3,000 words, whatever was asked for, and tells them at the end."""
    if not body.get("stream"):
        return web.json_response(answer(body) | {"usage": {"prompt_tokens": 10, "completion_tokens": 1}})
    reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await reply.prepare(request)
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": body["model"]}
    for number in range(_CHUNKS):
        choice = {"index": 0, "delta": {"role": "assistant", "content": f"word{number} "}, "finish_reason": None}
        await reply.write(b"data: " + json.dumps({**head, "choices": [choice]}).encode() + b"\n\n")
    usage = {"prompt_tokens": 10, "completion_tokens": _CHUNKS, "total_tokens": 10 + _CHUNKS}
    last = {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage}
    await reply.write(b"data: " + json.dumps(last).encode() + b"\n\ndata: [DONE]\n\n")
    return reply


async def booked(gateway: Running) -> dict[str, Any]:
    """Return the last settled row."""
    return dict((await gateway.rows("entry = 'settle'"))[-1])


@pytest.mark.parametrize(
    ("messages", "usage", "found"),
    [
        (PICTURE, {"prompt_tokens": 33_000, "completion_tokens": 20, "total_tokens": 33_020}, (33_000, 20)),
        (
            ASK,
            {
                "prompt_tokens": 12,
                "completion_tokens": 5_040,
                "total_tokens": 5_052,
                "completion_tokens_details": {"reasoning_tokens": 5_000},
            },
            (12, 5_040),
        ),
        (ASK, {"prompt_tokens": 12.0, "completion_tokens": 7.0, "total_tokens": 19.0}, (12, 7)),
        (ASK, {"prompt_tokens": "12", "completion_tokens": "7", "total_tokens": "19"}, (12, 7)),
        (ASK, {"prompt_tokens": 900, "completion_tokens": 7, "total_tokens": 907}, (900, 7)),
    ],
    ids=["a picture", "reasoning", "floats", "strings", "a hidden system message"],
)
async def test_what_is_possible_is_booked_as_told(
    tmp_path: Path, messages: Any, usage: dict[str, Any], found: tuple[int, int]
) -> None:
    """Also where nobody knows the model's limits."""
    async with provider(telling(usage)) as served:
        entry = bare("some-model", served, provider="elsewhere", prices=DEAR_PRICES)
        async with running_gateway(tmp_path, [entry]) as gateway, client(gateway) as ask:
            await ask.chat.completions.create(model="some-model", messages=messages)
            row = await booked(gateway)
    assert (row["input_tokens"], row["output_tokens"]) == found
    assert (row["usage_source"], row["flags"]) == ("upstream", "[]")


@pytest.mark.parametrize(
    ("told", "details", "flags"),
    [
        (5, {}, '["prompt_undertold"]'),
        (5, {"cached_tokens": 4}, '["prompt_undertold"]'),
        (5, {"cached_tokens": 9_000}, '["cache_added"]'),
        (9_005, {"cached_tokens": 9_000}, "[]"),
        (400, {}, "[]"),
    ],
    ids=["few", "few, of which some cached", "cached ones beside", "cached ones within", "long tokens"],
)
async def test_a_long_prompt_that_is_said_to_be_short_is_booked_as_told_with_a_flag(
    tmp_path: Path, told: int, details: dict[str, int], flags: str
) -> None:
    """The provider bills what it tells. But forty thousand letters cannot be five tokens, and people should know."""
    usage = {"prompt_tokens": told, "completion_tokens": 2, "total_tokens": told + 2, "prompt_tokens_details": details}
    async with provider(telling(usage)) as served:
        entry = bare("some-model", served, provider="elsewhere", prices=DEAR_PRICES)
        async with running_gateway(tmp_path, [entry]) as gateway, client(gateway) as ask:
            question: Any = [{"role": "user", "content": "The ferry leaves at noon. " * 1_600}]
            await ask.chat.completions.create(model="some-model", messages=question)
            row = await booked(gateway)
    assert (row["usage_source"], row["flags"]) == ("upstream", flags)
    assert row["input_tokens"] == (told if told > details.get("cached_tokens", 0) else 9_005)


async def test_text_that_is_said_to_be_nothing_is_estimated(tmp_path: Path) -> None:
    """A host that counts nothing still bills."""
    nothing = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    async with provider(telling(nothing)) as served:
        entry = bare("some-model", served, provider="elsewhere", prices=DEAR_PRICES)
        async with running_gateway(tmp_path, [entry]) as gateway, client(gateway) as ask:
            await ask.chat.completions.create(model="some-model", messages=ASK)
            row = await booked(gateway)
    assert row["input_tokens"] > 0
    assert row["output_tokens"] > 0
    assert (row["usage_source"], row["flags"]) == ("estimated", '["usage_zero"]')


async def test_a_prompt_has_no_more_tokens_than_bytes(tmp_path: Path) -> None:
    """What is told beyond is disputed, and a hard budget asks the model no more."""
    boast = {"prompt_tokens": 250_000, "completion_tokens": 2, "total_tokens": 250_002}
    async with provider(telling(boast)) as served:
        entry = bare("some-model", served, provider="elsewhere", prices=DEAR_PRICES, max_context_tokens=128_000)
        async with running_gateway(tmp_path, [entry]) as gateway, client(gateway) as ask:
            await budget(gateway.engine, "100.00")
            refused = ""
            async with asyncio.timeout(_LEARNT_S):
                # The process learns of the budget after its first reservation.
                while not refused:
                    try:
                        await ask.chat.completions.create(model="some-model", messages=ASK, max_tokens=10)
                    except openai.BadRequestError as error:
                        refused = str(error)
                    await asyncio.sleep(0.05)
            rows = await gateway.rows("entry = 'settle'")
    assert "told 250,000 prompt tokens of at most" in refused
    assert {row["flags"] for row in rows} == {'["usage_disputed"]'}
    assert all(row["input_tokens"] < 2_500 and row["disputed_nanousd"] > 0 for row in rows)


@pytest.mark.parametrize("hard", [True, False])
async def test_a_stream_beyond_its_limit_is_cut_where_a_hard_budget_holds_it(tmp_path: Path, *, hard: bool) -> None:
    """The caller has what was asked for, ended as by the limit; without a hard budget it has all, and all is booked."""
    async with provider(endless) as served:
        entry = bare("some-model", served, provider="elsewhere", prices=DEAR_PRICES)
        async with running_gateway(tmp_path, [entry]) as gateway, client(gateway) as ask:
            if hard:
                await budget(gateway.engine, "100.00")
            async with asyncio.timeout(_LEARNT_S):
                while True:
                    stream = await ask.chat.completions.create(
                        model="some-model", messages=ASK, max_tokens=10, stream=True
                    )
                    events = [each async for each in stream]
                    row = await booked(gateway)
                    reason = [each.choices[0].finish_reason for each in events if each.choices][-1]
                    # The process learns of the budget after its first reservation.
                    if not hard or reason == "length":
                        break
    words = sum(bool(each.choices and each.choices[0].delta.content) for each in events)
    if hard:
        assert reason == "length"
        assert words < _CHUNKS
        assert row["flags"] == '["cut_at_bound","usage_missing"]'
    else:
        assert (reason, words) == ("stop", _CHUNKS)
        assert (row["output_tokens"], row["flags"]) == (_CHUNKS, "[]")


_SPEECH: Any = {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}}
_HEARD: Any = [
    {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "UklG" * 1_000, "format": "wav"}}]}
]
_SPOKEN = {
    "prompt_tokens": 1_000,
    "completion_tokens": 500,
    "total_tokens": 1_500,
    "prompt_tokens_details": {"audio_tokens": 1_000, "cached_tokens": 0, "text_tokens": 0},
    "completion_tokens_details": {"audio_tokens": 500, "reasoning_tokens": 0},
}
_OF_GPT_AUDIO = {"source": "litellm", "name": "gpt-audio"}


async def test_sound_is_booked_at_the_price_of_sound(tmp_path: Path) -> None:
    """A thousand tokens heard and 500 spoken by gpt-audio are $0.064, which as text would be $0.0075."""
    async with provider(telling(_SPOKEN)) as served:
        entry = bare("some-model", served, provider="openai", prices=_OF_GPT_AUDIO)
        async with running_gateway(tmp_path, [entry]) as gateway, client(gateway) as ask:
            await ask.chat.completions.create(model="some-model", messages=_HEARD, **_SPEECH)
            row = await booked(gateway)
    assert row["cost_nanousd"] == 64_000_000
    assert (row["audio_input_tokens"], row["audio_output_tokens"]) == (1_000, 500)
    assert (row["audio_input_nanousd"], row["audio_output_nanousd"]) == (32_000_000, 32_000_000)
    assert (row["usage_source"], row["flags"]) == ("upstream", "[]")


async def test_a_hard_budget_holds_for_sound(tmp_path: Path) -> None:
    """Eighty calls, eight at once, of six cents each under half a dollar: what was booked, which is what is billed, is within it."""
    statuses: Counter[int] = Counter()
    async with provider(telling(_SPOKEN)) as served:
        entries = [
            bare("some-model", served, provider="openai", prices=_OF_GPT_AUDIO),
            bare("unpriced", served, provider="elsewhere"),
        ]
        running = running_gateway(tmp_path, entries, cost={"unpriced": "book"})
        async with running as gateway, client(gateway) as ask:
            await budget(gateway.engine, "0.50")
            async with asyncio.timeout(_LEARNT_S):
                # Once the process knows of the budget, it refuses what has no price.
                with contextlib.suppress(openai.APIStatusError):
                    while True:
                        await ask.chat.completions.create(model="unpriced", messages=ASK)

            async def call() -> None:
                for _ in range(10):
                    try:
                        await ask.chat.completions.create(
                            model="some-model", messages=_HEARD, max_tokens=500, **_SPEECH
                        )
                        statuses[200] += 1
                    except openai.APIStatusError as error:
                        statuses[error.status_code] += 1

            await asyncio.gather(*(call() for _ in range(8)))
            rows = await gateway.rows("entry = 'settle' AND target_id = 'some-model'")
    assert statuses == {200: len(rows), 402: 80 - len(rows)}
    assert {row["cost_nanousd"] for row in rows} == {64_000_000}
    assert 0 < len(rows) * 64_000_000 <= 500_000_000


@pytest.mark.parametrize(
    "usage", [{"usage": {"prompt_tokens": 10, "completion_tokens": 1}}, {}], ids=["one", "silence"]
)
async def test_a_long_text_is_booked_as_long(tmp_path: Path, usage: dict[str, Any]) -> None:
    """A report of fewer tokens than a text can have is none, and the estimate does not stop at a limit that was ignored. What
    came whole was not cut.
    """

    async def novel(_request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        said = answer(body) | {"usage": None} | usage
        said["choices"][0]["message"]["content"] = "word " * _CHUNKS
        return web.json_response(said)

    async with provider(novel) as served:
        entry = bare("some-model", served, provider="elsewhere", prices=DEAR_PRICES)
        async with running_gateway(tmp_path, [entry]) as gateway, client(gateway) as ask:
            await budget(gateway.engine, "100.00")
            assert gateway.data.holds is not None
            await gateway.data.holds.poll()
            await ask.chat.completions.create(model="some-model", messages=ASK, max_tokens=10)
            row = await booked(gateway)
    assert (row["usage_source"], row["output_tokens"]) == ("estimated", _CHUNKS * len("word ") // 4)
    assert row["flags"] == ('["usage_zero"]' if usage else '["usage_missing"]')


@pytest.mark.parametrize(
    ("events", "piece", "tells", "is_cut", "at_once"),
    [(400, "a", False, False, False), (400, "word ", True, True, False), (400, "word ", True, True, True)],
    ids=["letters for show", "a running count that stays at one", "all of it in one piece"],
)
async def test_what_is_cut_is_surely_too_long(
    tmp_path: Path, events: int, piece: str, *, tells: bool, is_cut: bool, at_once: bool
) -> None:
    """An answer of a hundred tokens that comes letter by letter is within its limit; what is cut is booked as it was counted."""

    async def pieces(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await reply.prepare(request)
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": body["model"]}
        running = {"usage": {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11}} if tells else {}
        waiting = b""
        for number in range(events + 1):
            if tells and number == events:
                await reply.write(waiting)
                # Whoever is not cut waits.
                await asyncio.sleep(_LEARNT_S)
            ended = "stop" if number == events else None
            choice = {"index": 0, "delta": {} if ended else {"content": piece}, "finish_reason": ended}
            event = b"data: " + json.dumps({**head, **running, "choices": [choice]}).encode() + b"\n\n"
            if at_once:
                waiting += event
            else:
                await reply.write(event)
        await reply.write(b"data: [DONE]\n\n")
        return reply

    async with provider(pieces) as served:
        entry = bare("some-model", served, provider="elsewhere", prices=DEAR_PRICES)
        async with running_gateway(tmp_path, [entry]) as gateway, client(gateway) as ask:
            await budget(gateway.engine, "100.00")
            assert gateway.data.holds is not None
            await gateway.data.holds.poll()
            limit = 10 if is_cut else 60
            async for _ in await ask.chat.completions.create(
                model="some-model", messages=ASK, max_tokens=limit, stream=True
            ):
                pass
            row = await booked(gateway)
    assert ("cut_at_bound" in row["flags"]) is is_cut
    assert not is_cut or row["output_tokens"] > limit


_THOUGHT = {"type": "reasoning.text", "text": "and so on "}
_SEALED = {"type": "reasoning.encrypted", "data": "bm9ib2R5" * 64}
_SIGNED = {"type": "thinking", "thinking": "", "signature": "bm9ib2R5" * 64}


def streaming(events: int, delta: dict[str, Any]) -> Callable[..., Any]:
    """Return an upstream that streams so many events with the same delta, and then a word."""

    async def reply(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        stream = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await stream.prepare(request)
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": body["model"]}
        usage = {"usage": {"prompt_tokens": 10, "completion_tokens": 8, "total_tokens": 18}}
        for said, ended, told in (*[(delta, None, {})] * events, ({"content": "word"}, "stop", usage)):
            choice = {"index": 0, "delta": said, "finish_reason": ended}
            await stream.write(b"data: " + json.dumps({**head, **told, "choices": [choice]}).encode() + b"\n\n")
        await stream.write(b"data: [DONE]\n\n")
        return stream

    return reply


@pytest.mark.parametrize(
    ("events", "delta", "is_cut"),
    [
        (20_000, {"reasoning_details": [_THOUGHT]}, True),
        (20_000, {"reasoning_details": [_SEALED]}, True),
        (20_000, {"thinking_blocks": [_SIGNED]}, True),
        (20_000, {"musings": "and so on "}, True),
        (20_000, {}, True),
        (20, {"musings": "and so on " * 10_000}, True),
        (900, {}, False),
        (8, {"reasoning_details": [_SEALED]}, False),
        (1, {"thinking_blocks": [_SIGNED | {"signature": "bm9ib2R5" * 4_000}]}, False),
        (2, {"images": [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBO" * 200_000}}]}, False),
        (1, {"annotations": [{"type": "file", "content": "word " * 40_000}]}, False),
    ],
    ids=[
        "reasoning in details", "sealed reasoning", "signatures", "unknown fields", "empty deltas", "few and large",
        "signs of life", "a sealed thought", "a long signature", "pictures", "a file that was read",
    ],
)  # fmt: skip
async def test_what_is_no_text_has_an_end_too(
    tmp_path: Path, events: int, delta: dict[str, Any], *, is_cut: bool
) -> None:
    """A stream under a hard budget is cut in any field that it goes on in, and booked; what honest ones send passes."""
    async with provider(streaming(events, delta)) as served:
        entry = bare("some-model", served, provider="elsewhere", prices=DEAR_PRICES)
        async with running_gateway(tmp_path, [entry]) as gateway, client(gateway) as ask:
            await budget(gateway.engine, "100.00")
            assert gateway.data.holds is not None
            await gateway.data.holds.poll()
            reason = None
            with contextlib.suppress(openai.APIError):
                async for each in await ask.chat.completions.create(
                    model="some-model", messages=ASK, max_tokens=10, stream=True
                ):
                    reason = each.choices[0].finish_reason if each.choices else reason
            row = await booked(gateway)
    assert ("cut_at_bound" in row["flags"]) is is_cut
    if is_cut:
        assert row["output_tokens"] >= 10
        assert reason != "stop"
    else:
        assert (reason, row["output_tokens"], row["flags"]) == ("stop", 8, "[]")


async def test_an_echo_is_no_answer_that_went_on(tmp_path: Path) -> None:
    """A completion that has its prompt in it is booked as told, and its target is asked again under a hard budget."""
    prompt = "word " * 1_000

    async def echo(_request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        choice = {"index": 0, "text": body["prompt"] + "!", "finish_reason": "length", "logprobs": None}
        usage = {"prompt_tokens": 1_000, "completion_tokens": 1, "total_tokens": 1_001}
        head = {"id": "cmpl-1", "object": "text_completion", "created": 0, "model": body["model"]}
        return web.json_response({**head, "choices": [choice], "usage": usage})

    async with provider(echo) as served:
        engine = {"kind": "vllm", "base_url": f"{served.base_url}/v1"}
        entry = model("some-model", [{"name": "main", "upstream_model": "some-model", **engine}])
        async with running_gateway(tmp_path, [entry]) as gateway, client(gateway) as ask:
            await budget(gateway.engine, "100.00")
            assert gateway.data.holds is not None
            await gateway.data.holds.poll()
            for _ in range(2):
                await ask.completions.create(model="some-model", prompt=prompt, max_tokens=1, echo=True)
            row = await booked(gateway)
    assert (row["output_tokens"], row["usage_source"], row["flags"]) == (1, "upstream", "[]")
