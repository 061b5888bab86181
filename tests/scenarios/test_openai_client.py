"""The official `openai` client, driven against a gateway on a socket: what it expects is what it gets."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from pydantic import BaseModel

from tests.running_gateway import CHEAP_PRICES, TRAINED, Running, model, running_gateway
from tests.scenarios.conftest import Upstream

ASK: Any = [{"role": "user", "content": "What is the capital of France?"}]
PROVE: Any = [
    {"role": "user", "content": "Prove rigorously that there are infinitely many primes congruent to 3 modulo 4, then "
     "derive an explicit upper bound for the n-th such prime and analyse its asymptotic tightness step by step."}
]  # fmt: skip


def client(gateway: Running, **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(**{"api_key": gateway.key, "base_url": gateway.base_url, "max_retries": 0, **options})


def house(upstream: Upstream, script: str = "ok") -> list[dict[str, Any]]:
    """A cheap target for the easier 40 %, and a dear one for everything."""
    return [
        model("cheap", [upstream.deployment(script)], capability=0.4, prices=CHEAP_PRICES),
        model("dear", [upstream.deployment(script)]),
    ]


async def test_auto_sends_an_easy_prompt_to_the_cheap_and_a_hard_one_to_the_dear(
    tmp_path: Path, upstream: Upstream
) -> None:
    """The decision shows in headers and in the body, and the saving in both."""
    async with (
        running_gateway(tmp_path, house(upstream), cost={"reference_target": "dear"}, classifier=TRAINED) as gateway,
        client(gateway) as caller,
    ):
        seen = {}
        for name, messages in (("easy", ASK), ("hard", PROVE)):
            raw = await caller.chat.completions.with_raw_response.create(model="auto", messages=messages)
            answer = raw.parse()
            assert (answer.model_extra or {})["model_used"] == raw.headers["x-weighbridge-target"]
            assert raw.headers["x-request-id"].startswith("req_")
            seen[name] = raw.headers
        assert seen["easy"]["x-weighbridge-target"] == "cheap"
        assert seen["hard"]["x-weighbridge-target"] == "dear"
        assert float(seen["easy"]["x-weighbridge-complexity"]) < float(seen["hard"]["x-weighbridge-complexity"])
        # 12 tokens in and 3 out: 0.4 and 0.4 dollars a million against 2.5 and 10.
        assert seen["easy"]["x-weighbridge-cost-usd"] == "0.000006000"
        assert seen["easy"]["x-weighbridge-baseline-usd"] == "0.000060000"


async def test_every_event_of_a_stream_names_its_model(tmp_path: Path, upstream: Upstream) -> None:
    """`model_used` is on each event, and no usage chunk comes that was not asked for."""
    async with running_gateway(tmp_path, house(upstream)) as gateway, client(gateway) as caller:
        chunks = [
            chunk async for chunk in await caller.chat.completions.create(model="cheap", messages=ASK, stream=True)
        ]
        assert {(chunk.model_extra or {})["model_used"] for chunk in chunks} == {"cheap"}
        assert all(chunk.choices for chunk in chunks)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == " w0 w1 w2"


async def test_the_usage_chunk_comes_when_asked_for_with_the_cost(tmp_path: Path, upstream: Upstream) -> None:
    """Exactly one, last, with what the ledger books."""
    async with running_gateway(tmp_path, house(upstream)) as gateway, client(gateway) as caller:
        stream = await caller.chat.completions.create(
            model="cheap", messages=ASK, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        with_usage = [chunk for chunk in chunks if chunk.usage is not None]
        assert with_usage == [chunks[-1]]
        assert chunks[-1].usage is not None
        assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (12, 3)
        assert (chunks[-1].model_extra or {})["weighbridge"]["cost_usd"] == "0.000006000"
        (row,) = await gateway.rows("entry = 'settle'")
        assert (row["input_tokens"], row["output_tokens"], row["cost_nanousd"]) == (12, 3, 6_000)


def test_the_synchronous_client_works_as_well(tmp_path: Path) -> None:
    """Whole and streamed, from a thread of its own."""
    from tests.scenarios.conftest import scripted_upstream

    def talk(gateway: Running) -> str:
        with openai.OpenAI(api_key=gateway.key, base_url=gateway.base_url, max_retries=0) as caller:
            whole = caller.chat.completions.create(model="auto", messages=ASK)
            streamed = caller.chat.completions.create(model="auto", messages=ASK, stream=True)
            return f"{whole.choices[0].message.content}|{''.join(c.choices[0].delta.content or '' for c in streamed)}"

    async def story() -> str:
        async with scripted_upstream() as upstream, running_gateway(tmp_path, house(upstream)) as gateway:
            return await asyncio.to_thread(talk, gateway)

    assert asyncio.run(story()) == " w0 w1 w2| w0 w1 w2"


TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weigh",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"kg": {"type": "integer"}},
            "required": ["kg"],
            "additionalProperties": False,
        },
    },
}


@pytest.mark.parametrize("stream", [True, False])
async def test_tool_calls_come_through(tmp_path: Path, upstream: Upstream, stream: bool) -> None:
    """Name, arguments and finish reason, put together by the client's own helpers."""
    async with running_gateway(tmp_path, house(upstream, "tools")) as gateway, client(gateway) as caller:
        if stream:
            async with caller.chat.completions.stream(model="auto", messages=ASK, tools=[TOOL]) as events:
                answer: Any = await events.get_final_completion()
        else:
            answer = await caller.chat.completions.create(model="auto", messages=ASK, tools=[TOOL])
        (call,) = answer.choices[0].message.tool_calls
        assert (call.function.name, call.function.arguments) == ("weigh", '{"kg": 7}')
        assert answer.choices[0].finish_reason == "tool_calls"


async def test_a_json_schema_is_parsed_by_the_client(tmp_path: Path, upstream: Upstream) -> None:
    """`response_format` goes up, and what comes back fits the caller's type."""

    class Answer(BaseModel):
        answer: int

    async with running_gateway(tmp_path, house(upstream, "json")) as gateway, client(gateway) as caller:
        parsed = await caller.chat.completions.parse(model="auto", messages=ASK, response_format=Answer)
        assert parsed.choices[0].message.parsed == Answer(answer=42)


async def test_what_a_target_cannot_do_it_is_not_asked_to(tmp_path: Path, upstream: Upstream) -> None:
    """A picture goes to the target that sees, whatever it costs; without one the error says what is missing."""
    blind = model("cheap", [upstream.deployment("ok")], capabilities=["json"], prices=CHEAP_PRICES)
    picture: Any = [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}
    ]
    async with (
        running_gateway(tmp_path, [blind, model("dear", [upstream.deployment("ok")])]) as gateway,
        client(gateway) as caller,
    ):
        seen = await caller.chat.completions.create(model="auto", messages=picture)
        assert (seen.model_extra or {})["model_used"] == "dear"
        with pytest.raises(openai.BadRequestError, match="vision") as told:
            await caller.chat.completions.create(model="cheap", messages=picture)
        assert told.value.code == "no_eligible_target"


async def test_errors_are_the_clients_own_types(tmp_path: Path, upstream: Upstream) -> None:
    """401, 404, 400, 403 and 413, each with all four keys and a request id."""
    async with (
        running_gateway(tmp_path, house(upstream), server={"max_body_bytes": 5_000}) as gateway,
        client(gateway) as caller,
    ):
        cases: list[tuple[dict[str, Any], dict[str, Any], type[openai.APIStatusError], str | None]] = [
            ({"api_key": "wb-nonsense"}, {}, openai.AuthenticationError, "invalid_api_key"),
            (
                {"api_key": gateway.key[:-1] + ("a" if gateway.key[-1] != "a" else "b")},
                {},
                openai.AuthenticationError,
                "invalid_api_key",
            ),
            ({}, {"model": "nope"}, openai.NotFoundError, "model_not_found"),
            ({}, {"messages": []}, openai.BadRequestError, None),
            ({}, {"extra_body": {"api_base": "http://10.0.0.1/"}}, openai.BadRequestError, "field_not_allowed"),
            ({}, {"extra_headers": {"x-team-id": "team_b"}}, openai.PermissionDeniedError, "wrong_team"),
            ({}, {"messages": [{"role": "user", "content": "x" * 6_000}]}, openai.APIStatusError, "request_too_large"),
        ]
        for options, fields, kind, code in cases:
            with pytest.raises(kind) as told:
                await caller.with_options(**options).chat.completions.create(
                    **{"model": "auto", "messages": ASK, **fields}
                )
            assert isinstance(told.value, openai.APIStatusError)
            assert told.value.code == code
            assert isinstance(told.value.body, dict)
            assert set(told.value.body) == {"message", "type", "param", "code"}
            assert str(told.value.request_id).startswith("req_")
        assert not upstream.arrived()


async def test_the_clients_own_retries_obey_our_wait(tmp_path: Path, upstream: Upstream) -> None:
    """A rate limit tells when to come back, and the stock client then succeeds by itself."""
    async with (
        running_gateway(tmp_path, house(upstream), limits={"key": {"requests_per_minute": 120}}) as gateway,
        client(gateway) as caller,
    ):

        async def use_up() -> None:
            for _ in range(150):
                await caller.chat.completions.create(model="cheap", messages=ASK)

        with pytest.raises(openai.RateLimitError) as told:
            await use_up()
        assert int(told.value.response.headers["retry-after-ms"]) <= 500
        raw = await caller.with_options(max_retries=2).chat.completions.with_raw_response.create(
            model="cheap", messages=ASK
        )
        assert raw.headers["x-ratelimit-limit-requests"] == "120"


async def test_who_is_refused_by_a_queue_sees_how_it_stands(tmp_path: Path, upstream: Upstream) -> None:
    """The client's own error has the queue in its body; what it is told to wait is no less than the wait in line."""
    queue = {"targets": ["dear"], "tokens_in_flight": 400, "max_waiting": 5}
    async with (
        running_gateway(
            tmp_path, [model("dear", [upstream.deployment("slow-first-token-2000ms")])], queues={"own": queue}
        ) as gateway,
        client(gateway) as caller,
    ):

        async def ask() -> str | None:
            answer = await caller.chat.completions.create(model="dear", messages=ASK, max_tokens=300)
            return answer.choices[0].message.content

        first = asyncio.create_task(ask())
        while not upstream.arrived():  # noqa: ASYNC110 - the log knows no events
            await asyncio.sleep(0.01)
        with pytest.raises(openai.RateLimitError) as told:
            await ask()
        assert isinstance(told.value.body, dict)
        assert told.value.code == "queue_full"
        standing = told.value.body["queue"]
        assert (standing["name"], standing["why"], standing["in_flight"]) == ("own", "late", 1)
        assert int(told.value.response.headers["retry-after-ms"]) >= standing["predicted_wait_s"] * 1000
        assert await first == " w0 w1 w2"


async def test_a_key_stops_working_when_it_is_revoked(tmp_path: Path, upstream: Upstream) -> None:
    """Within the time that a key is believed, which is below five seconds by configuration."""
    async with (
        running_gateway(tmp_path, house(upstream), accounts={"fresh_s": 0.1}) as gateway,
        client(gateway) as caller,
    ):
        await caller.chat.completions.create(model="cheap", messages=ASK)
        await gateway.accounts.revoke_key((await gateway.accounts.list_keys())[0].key_id)
        await asyncio.sleep(0.15)
        with pytest.raises(openai.AuthenticationError):
            await caller.chat.completions.create(model="cheap", messages=ASK)


async def test_models_are_listed_with_prices_and_capabilities(tmp_path: Path, upstream: Upstream) -> None:
    """The stock client lists them; the extra fields are there; another team's limits hide models."""
    async with (
        running_gateway(tmp_path, house(upstream), policy={"aliases": {"smart": "dear"}}) as gateway,
        client(gateway) as caller,
    ):
        models = {each.id: each.model_extra or {} async for each in caller.models.list()}
        assert set(models) == {"auto", "smart", "cheap", "dear"}
        assert models["cheap"]["usd_per_million_tokens"]["input"] == "0.4"
        assert models["dear"]["capabilities"] == ["json", "tools", "vision"]
        assert (await caller.models.retrieve("smart")).id == "smart"
        with pytest.raises(openai.NotFoundError):
            await caller.models.retrieve("nope")


async def test_usage_adds_up_to_what_the_headers_said(tmp_path: Path, upstream: Upstream) -> None:
    """GET /v1/usage: REQUIREMENTS' shape, exact money, by model; another team's is not there."""
    async with (
        running_gateway(tmp_path, house(upstream), cost={"reference_target": "dear"}) as gateway,
        client(gateway) as caller,
    ):
        for name in ("cheap", "cheap", "dear"):
            await caller.chat.completions.create(model=name, messages=ASK)
        report: Any = await caller.get("/usage?team_id=team_a", cast_to=object)
        assert (report["team_id"], report["input_tokens"], report["output_tokens"]) == ("team_a", 36, 9)
        assert report["cost_usd"] == pytest.approx(2 * 0.000006 + 0.00006, abs=1e-12)
        assert report["requests"] == 3
        assert report["savings_usd"] == pytest.approx(2 * 0.000054, abs=1e-12)
        assert [row["model"] for row in report["models"]] == ["cheap", "dear"]
        past: Any = await caller.get("/usage?date=2026-04-05", cast_to=object)
        assert past["requests"] == 0
        for query, kind in (("team_id=team_b", openai.NotFoundError), ("date=yesterday", openai.BadRequestError)):
            with pytest.raises(kind):
                await caller.get(f"/usage?{query}", cast_to=object)


async def test_a_conversation_stays_with_its_target_while_its_cache_is_worth_it(
    tmp_path: Path, upstream: Upstream
) -> None:
    """A long conversation begun on the dear target is not moved when its cached input is the cheaper one."""
    models = [
        model("plain", [upstream.deployment("ok+prompt-tokens-9000")], prices={"input": "1.5", "output": "1.5"}),
        model(
            "cached",
            [upstream.deployment("ok+prompt-tokens-9000")],
            prices={"input": "2", "output": "2", "cached_input": "0.2"},
        ),
    ]
    long: Any = [{"role": "user", "content": "word " * 8_000}]
    async with running_gateway(tmp_path, models, classifier=TRAINED) as gateway, client(gateway) as caller:
        first = await caller.chat.completions.create(model="cached", messages=long, extra_headers={"x-session-id": "s"})
        raw = await caller.chat.completions.with_raw_response.create(
            model="auto",
            messages=[*long, {"role": "assistant", "content": "ok"}, *ASK],
            extra_headers={"x-session-id": "s"},
        )
        assert first is not None
        assert (raw.headers["x-weighbridge-target"], raw.headers["x-weighbridge-reason"]) == ("cached", "prompt-cache")
        fresh = await caller.chat.completions.with_raw_response.create(
            model="auto", messages=long, extra_headers={"x-session-id": "t"}
        )
        assert fresh.headers["x-weighbridge-target"] == "plain"


async def test_the_official_client_gets_the_better_answer(tmp_path: Path, upstream: Upstream) -> None:
    """Whole and streamed, by a header of the request, over sockets and into a database."""
    targets = [
        model("cheap", [upstream.deployment("truncated")], capability=0.6, prices=CHEAP_PRICES),
        model("dear", [upstream.deployment("ok+tokens-5")]),
    ]
    ask: Callable[..., Any]
    async with (
        running_gateway(tmp_path, targets, cost={"reference_target": "dear"}, classifier=TRAINED) as gateway,
        openai.AsyncOpenAI(api_key=gateway.key, base_url=gateway.base_url, max_retries=0) as caller,
    ):
        ask = caller.chat.completions.with_raw_response.create
        fields: dict[str, Any] = {
            "model": "auto",
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
            "extra_headers": {"x-weighbridge-escalate": "true"},
        }
        whole = await ask(**fields)
        assert whole.parse().choices[0].message.content == " w0 w1 w2 w3 w4"
        assert whole.headers["x-weighbridge-escalated-from"] == "cheap"
        streamed = await ask(**fields, stream=True)
        chunks = [chunk async for chunk in streamed.parse()]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == " w0 w1 w2 w3 w4"
        assert {(chunk.model_extra or {})["model_used"] for chunk in chunks} == {"dear"}
        assert streamed.headers["x-weighbridge-weakness"] == "truncated"
        rows = await gateway.rows("entry = 'settle'")
        assert [(row["target_id"], row["flags"], row["baseline_nanousd"] is None) for row in rows] == [
            ("cheap", '["escalated"]', True),
            ("dear", "[]", False),
        ] * 2
        assert {row["reason"] for row in rows} == {"cheapest-capable", "escalated"}
        async with aiohttp.ClientSession() as session, session.get(f"{gateway.url}/metrics") as reply:
            shown = await reply.text()
        assert 'weighbridge_escalations_total{from_target="cheap",to_target="dear",weakness="truncated"} 2.0' in shown
        assert "weighbridge_fallbacks_total{" not in shown
