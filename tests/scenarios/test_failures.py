"""What a caller sees, and what is booked, when an upstream fails in each of the ways that it can."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from tests.running_gateway import Running, model, running_gateway
from tests.scenarios.conftest import Upstream

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]
SILENT = ("hang", "slow")
"""What a time limit ends; of the others none may, however slow the machine is."""


def limits(broken: str, **timeouts: float) -> dict[str, Any]:
    return {"providers": {"timeouts": timeouts}} if broken.startswith(SILENT) else {}


def client(gateway: Running, **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key=gateway.key, base_url=gateway.base_url, max_retries=0, **options)


async def ask(gateway: Running, name: str, **fields: Any) -> Any:
    """One answer, or a stream, from a client that is closed afterwards."""
    async with client(gateway, timeout=60) as caller:
        return await caller.chat.completions.create(model=name, **{"messages": QUESTION, **fields})


async def read(gateway: Running, name: str, **fields: Any) -> tuple[str, list[str]]:
    """Streams one answer: its text, and the models that its events name."""
    async with client(gateway) as caller:
        text, used = "", []
        async for chunk in await caller.chat.completions.create(model=name, messages=QUESTION, stream=True, **fields):
            used.append(str((chunk.model_extra or {}).get("model_used")))
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
        return text, used


def both(upstream: Upstream, broken: str) -> list[dict[str, Any]]:
    """A cheap target that is broken, and a dear one that works."""
    return [
        model("cheap", [upstream.deployment(broken)], prices={"input": 1, "output": 1}),
        model("dear", [upstream.deployment("ok")], prices={"input": 9, "output": 9}),
    ]


def ending(row: dict[str, Any]) -> tuple[str, str, str]:
    return (row["target_id"], row["entry"], row["flags"])


@pytest.mark.parametrize(
    ("broken", "entry", "flags"),
    [
        ("error-500", "void", "[]"),
        ("error-503", "void", "[]"),
        ("error-429+retry-after-1500ms", "void", "[]"),
        ("error-401", "void", "[]"),
        ("hang", "settle", '["first_token_timeout"]'),
        ("hang-1", "settle", '["first_token_timeout"]'),
        ("slow-first-token-5000ms", "settle", '["first_token_timeout"]'),
        ("cut-1", "settle", '["stream_cut"]'),
        ("malformed-0", "settle", '["upstream_error"]'),
        ("error-at-1", "void", "[]"),
    ],
)
async def test_a_failure_before_the_first_token_is_hidden(
    tmp_path: Path, upstream: Upstream, broken: str, entry: str, flags: str
) -> None:
    """The caller gets the next candidate's answer, and each attempt is booked by what it may have cost."""
    async with running_gateway(
        tmp_path, both(upstream, broken), **limits(broken, first_token_interactive_s=0.3)
    ) as gateway:
        text, used = await read(gateway, "auto")
        assert text == " w0 w1 w2"
        assert set(used) == {"dear"}
        rows = [ending(row) for row in await gateway.rows("entry != 'reserve'")]
        assert rows[-1] == ("dear", "settle", "[]")
        assert {row[:2] for row in rows[:-1]} == {("cheap", entry)}
        assert all(flags.strip("[]") in row[2] for row in rows[:-1])


@pytest.mark.parametrize(
    ("broken", "code", "flags"),
    [
        ("cut-2", "upstream_stream_cut", '["stream_cut"'),
        ("malformed-2", "upstream_malformed", '["upstream_error"'),
        ("hang-2", "upstream_timeout", '["upstream_timeout"'),
        ("error-at-2", None, '["upstream_error"'),
    ],
)
async def test_a_failure_after_the_first_token_is_told_and_booked(
    tmp_path: Path, upstream: Upstream, broken: str, code: str | None, flags: str
) -> None:
    """The stream ends in an error event and without [DONE]; what flowed is booked as an estimate and flagged."""
    async with running_gateway(tmp_path, both(upstream, broken), **limits(broken, idle_s=0.3)) as gateway:
        with pytest.raises(openai.APIError) as told:
            await read(gateway, "auto")
        assert isinstance(told.value.body, dict)
        assert set(told.value.body) == {"message", "type", "param", "code"}
        assert code is None or told.value.code == code
        rows = await gateway.rows("entry != 'reserve'")
        assert [(row["target_id"], row["usage_source"], row["output_tokens"]) for row in rows] == [
            ("cheap", "estimated", 1)
        ]
        assert rows[0]["flags"].startswith(flags)
        assert rows[0]["cost_nanousd"] > 0
        assert rows[0]["baseline_nanousd"] is None


@pytest.mark.parametrize(
    ("script", "flag"),
    [("no-usage", '["usage_missing"]'), ("absurd-usage", '["absurd_usage"]'), ("negative-usage", '["absurd_usage"]')],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_missing_and_absurd_usage_is_estimated(
    tmp_path: Path, upstream: Upstream, script: str, flag: str, stream: bool
) -> None:
    """What the upstream claims is checked; what it leaves out is counted here, and never booked as nothing."""
    async with running_gateway(tmp_path, [model("only", [upstream.deployment(f"{script}+tokens-8")])]) as gateway:
        if stream:
            await read(gateway, "only", stream_options={"include_usage": True})
        else:
            await ask(gateway, "only")
        (row,) = await gateway.rows("entry = 'settle'")
        assert row["usage_source"] == "estimated"
        assert row["flags"] == (flag if stream or flag != "[]" else row["flags"])
        assert row["output_tokens"] >= 6
        assert row["cost_nanousd"] > 0


async def test_when_every_target_fails_the_client_is_told_not_to_multiply_it(
    tmp_path: Path, upstream: Upstream
) -> None:
    """After our own fail-over: 502, `x-should-retry: false`, and every attempt voided."""
    targets = [model("a", [upstream.deployment("error-500")]), model("b", [upstream.deployment("error-503")])]
    async with running_gateway(tmp_path, targets) as gateway:
        with pytest.raises(openai.InternalServerError) as told:
            await ask(gateway, "auto")
        assert told.value.response.headers["x-should-retry"] == "false"
        assert told.value.request_id is not None
        rows = await gateway.rows("entry != 'reserve'")
        assert {row["entry"] for row in rows} == {"void"}
        assert len(rows) == len(upstream.arrived())


async def test_a_rate_limit_that_nothing_can_hide_keeps_its_retry_after(tmp_path: Path, upstream: Upstream) -> None:
    """One target, and it says 429: the caller learns when to come back."""
    async with running_gateway(
        tmp_path, [model("only", [upstream.deployment("error-429+retry-after-1500ms")])]
    ) as gateway:
        with pytest.raises(openai.RateLimitError) as told:
            await ask(gateway, "only")
        assert told.value.response.headers["retry-after-ms"] == "1500"
        assert told.value.response.headers["retry-after"] == "2"


async def test_a_request_that_the_upstream_rejects_is_not_tried_elsewhere(tmp_path: Path, upstream: Upstream) -> None:
    """400 is the request's own fault: one attempt, and the upstream's own words."""
    async with running_gateway(tmp_path, both(upstream, "error-400")) as gateway:
        with pytest.raises(openai.BadRequestError, match="The script answers 400"):
            await read(gateway, "auto")
        assert len(upstream.arrived()) == 1


async def test_one_dead_replica_of_three_is_not_noticed(tmp_path: Path, upstream: Upstream) -> None:
    """Retries go to another replica, and the breaker takes the dead one out."""
    replicas = [upstream.deployment("ok", "r1"), upstream.deployment("ok", "r2")]
    dead = {"name": "r3", "kind": "vllm", "base_url": "http://127.0.0.1:9/v1", "upstream_model": "ok"}
    async with running_gateway(tmp_path, [model("llama", [*replicas, dead])]) as gateway:
        for _ in range(40):
            assert (await read(gateway, "llama"))[0] == " w0 w1 w2"
        voided = await gateway.rows("entry = 'void'")
        assert {row["deployment_id"] for row in voided} == {"llama/r3"}
        assert len(voided) == 5  # The breaker opens after five failures in a row.


async def test_a_total_outage_is_not_multiplied(tmp_path: Path, upstream: Upstream) -> None:
    """Upstream attempts stay within 1.2 x requests and the floor, even with breakers that never open."""
    providers = {"breaker": {"consecutive_failures": 1_000}, "retry": {"budget_floor": 3}}
    async with running_gateway(tmp_path, both(upstream, "error-500")[:1], providers=providers) as gateway:
        async with client(gateway) as caller:
            answers = await asyncio.gather(
                *(caller.chat.completions.create(model="cheap", messages=QUESTION) for _ in range(100)),
                return_exceptions=True,
            )
        assert all(isinstance(answer, openai.InternalServerError) for answer in answers)
        assert len(upstream.arrived()) <= 1.2 * 100 + 3


@pytest.mark.parametrize("after", [0, 1, 7, 19])
async def test_a_caller_that_hangs_up_cancels_the_upstream(tmp_path: Path, upstream: Upstream, after: int) -> None:
    """At any chunk: the upstream is cut within 100 ms, and what flowed is booked."""
    targets = [model("only", [upstream.deployment("tokens-20+every-20ms")])]
    async with running_gateway(tmp_path, targets) as gateway:
        body = {"model": "only", "messages": QUESTION, "stream": True}
        headers = {"authorization": f"Bearer {gateway.key}"}
        async with aiohttp.ClientSession() as session:
            reply = await session.post(f"{gateway.base_url}/chat/completions", json=body, headers=headers)
            for _ in range(after * 2):
                await reply.content.readline()
            reply.close()
            hung_up_at = asyncio.get_running_loop().time()
            while not upstream.over():
                assert asyncio.get_running_loop().time() - hung_up_at < 5
                await asyncio.sleep(0.002)
        (over,) = upstream.over()
        assert over.event == "cut"
        assert over.completion_tokens <= after + 6  # A token every 20 ms: 100 ms is five of them.
        row = await _settled(gateway)
        assert row["flags"].startswith('["caller_gone"')
        assert row["status"] == 499
        assert after - 1 <= row["output_tokens"] <= over.completion_tokens + 1


async def test_a_caller_that_hangs_up_before_the_first_token_cancels_the_upstream(
    tmp_path: Path, upstream: Upstream
) -> None:
    """Nothing was sent yet, and still the work is stopped and its prompt booked."""
    async with running_gateway(tmp_path, [model("only", [upstream.deployment("slow-first-token-9000ms")])]) as gateway:
        asking = asyncio.create_task(ask(gateway, "only", stream=True))
        while not upstream.arrived():  # noqa: ASYNC110 - the log knows no events
            await asyncio.sleep(0.01)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        row = await _settled(gateway)
        assert (row["status"], row["output_tokens"]) == (499, 0)
        assert row["input_tokens"] > 0


async def _settled(gateway: Running) -> dict[str, Any]:
    """The one closing row, as soon as it is there."""
    for _ in range(200):
        rows = await gateway.rows("entry != 'reserve'")
        if rows:
            assert len(rows) == 1
            return rows[0]
        await asyncio.sleep(0.01)
    raise AssertionError("the attempt was never closed")


async def test_a_caller_that_does_not_read_is_cut_off(tmp_path: Path, upstream: Upstream) -> None:
    """Its buffer is bounded, and after the patience for slow readers the upstream is freed."""
    targets = [model("only", [upstream.deployment("tokens-100000")])]
    async with running_gateway(tmp_path, targets, server={"slow_reader_s": 0.2}) as gateway:
        host, port = gateway.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
        body = b'{"model": "only", "stream": true, "messages": [{"role": "user", "content": "hi"}]}'
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {gateway.key}\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        for _ in range(500):
            if upstream.over():
                break
            await asyncio.sleep(0.01)
        (over,) = upstream.over()
        assert over.event == "cut"
        row = await _settled(gateway)
        assert row["flags"].startswith('["slow_reader"')
        writer.close()
        del reader


async def test_a_prompt_that_fits_nowhere_never_reaches_an_upstream(tmp_path: Path, upstream: Upstream) -> None:
    """`context_length_exceeded`, before anything is called."""
    async with running_gateway(tmp_path, [model("only", [upstream.deployment("ok")])]) as gateway:
        with pytest.raises(openai.BadRequestError) as told:
            await ask(gateway, "auto", messages=[{"role": "user", "content": "many words " * 40_000}])
        assert told.value.code == "context_length_exceeded"
        assert not upstream.arrived()
        assert not await gateway.rows()


async def test_an_upload_that_does_not_come_is_refused(tmp_path: Path, upstream: Upstream) -> None:
    """A slow body holds its place no longer than `server.body_timeout_s` and the next look at the clock."""
    targets = [model("only", [upstream.deployment("ok")])]
    async with running_gateway(tmp_path, targets, server={"body_timeout_s": 0.2}) as gateway:
        host, port = gateway.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {gateway.key}\r\ncontent-length: 99\r\n\r\n"
        writer.write(head.encode() + b'{"model":')
        answer = await asyncio.wait_for(reader.read(4_096), 5)
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"request_timeout" in answer
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_caller_that_only_sends_no_more_is_answered(
    tmp_path: Path, upstream: Upstream, *, stream: bool
) -> None:
    """It has closed its side once it had asked, which is no hanging up: nothing of its answer is missing."""
    targets = [model("only", [upstream.deployment("ok+tokens-20+every-20ms")])]
    async with running_gateway(tmp_path, targets) as gateway:
        host, port = gateway.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = json.dumps({"model": "only", "stream": stream, "messages": [{"role": "user", "content": "hi"}]}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {gateway.key}\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), 20)
        assert b"HTTP/1.1 200 OK" in answer
        assert b"w19" in answer
        assert (b"[DONE]" in answer) == stream
        assert (await _settled(gateway))["status"] == 200
        writer.close()
