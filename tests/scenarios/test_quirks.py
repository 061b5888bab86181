"""What a target is known to refuse is not sent to it, by no wire, and by the router's own choice least of all."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
from aiohttp import web

from tests.running_gateway import CHEAP_PRICES, DEAR_PRICES, Running, model, running_gateway
from tests.scenarios.test_refusals import ANSWER

Body = dict[str, Any]
USER: Final = {"role": "user", "content": "What is the capital of France?"}
CLAUDES_ANSWER: Final = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "c",
    "content": [{"type": "text", "text": "Paris"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 1, "output_tokens": 1},
}


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the configuration refers to."""
    monkeypatch.setenv("MADE_UP_ANTHROPIC_KEY", "sk-ant-made-up-0123456789")


class Providers:
    """All providers on one socket, and what each model was sent."""

    def __init__(self) -> None:
        self.url = ""
        self.got: list[tuple[str, Body]] = []

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.got.append((body["model"], body))
        return web.json_response(CLAUDES_ANSWER if request.path.endswith("/messages") else ANSWER)

    def entry(self, name: str, *, dear: bool = False, kind: str = "openai") -> Body:
        """A model, Anthropic's by litellm's prefix."""
        deployment = {"name": "main", "kind": kind, "upstream_model": name, "base_url": f"{self.url}/v1"}
        if name.startswith("anthropic/"):
            deployment |= {"kind": "litellm", "base_url": self.url, "api_key": "env:MADE_UP_ANTHROPIC_KEY"}
        return model(name.rpartition("/")[2], [deployment], prices=DEAR_PRICES if dear else CHEAP_PRICES)

    @property
    def last(self) -> tuple[str, Body]:
        return self.got[-1]


@contextlib.asynccontextmanager
async def house(
    folder: Path, cheap: str, dear: str = "", *, kind: str = "openai"
) -> AsyncIterator[tuple[Running, Providers]]:
    """A gateway before a cheap model, which `auto` prefers, and a dear one."""
    served = Providers()
    app = web.Application()
    for path in ("/v1/chat/completions", "/v1/messages"):
        app.router.add_post(path, served.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        served.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        models = [served.entry(cheap, kind=kind), *([served.entry(dear, dear=True)] if dear else [])]
        async with running_gateway(folder, models) as gateway:
            yield gateway, served
    finally:
        await runner.cleanup()


async def ask(gateway: Running, path: str = "chat/completions", **fields: Any) -> tuple[int, Body, str | None]:
    """Status, body, and what the caller is told is left out."""
    headers = {"authorization": f"Bearer {gateway.key}", "anthropic-version": "2023-06-01"}
    body = {"model": "auto", "messages": [USER], **fields}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{gateway.base_url}/{path}", headers=headers, json=body) as reply,
    ):
        return reply.status, await reply.json(), reply.headers.get("x-weighbridge-dropped")


@pytest.mark.parametrize("path", ["chat/completions", "messages"])
async def test_a_claude_gets_temperature_or_top_p(tmp_path: Path, path: str) -> None:
    """The temperature, unless it is what comes anyway; the other one is told."""
    async with house(tmp_path, "anthropic/claude-sonnet-4-5") as (gateway, served):
        for temperature, told in ((0.2, "top_p"), (1, None)):
            status, _, dropped = await ask(gateway, path, temperature=temperature, top_p=0.9, max_tokens=9)
            assert (status, dropped) == (200, told)
            body = served.last[1]
            assert ("temperature" in body, "top_p" in body) == ((True, False) if told else (False, True))


@pytest.mark.parametrize("path", ["chat/completions", "messages"])
async def test_a_newer_claude_gets_neither(tmp_path: Path, path: str) -> None:
    async with house(tmp_path, "anthropic/claude-opus-4-8") as (gateway, served):
        _, _, dropped = await ask(gateway, path, temperature=0.2, top_p=0.9, max_tokens=9)
        assert dropped == "temperature, top_p"
        assert served.last[1].keys().isdisjoint({"temperature", "top_p"})


@pytest.mark.parametrize("reasoner", ["o3", "gpt-5", "gpt-5.9"])
async def test_a_stop_sequence_goes_to_who_takes_it(tmp_path: Path, reasoner: str) -> None:
    """By the gateway's own choice; whoever names the model reads why not."""
    async with house(tmp_path, reasoner, "gpt-4o") as (gateway, served):
        assert (await ask(gateway))[0] == 200
        assert served.last[0] == reasoner
        assert (await ask(gateway, stop=["."]))[0] == 200
        assert served.last[0] == "gpt-4o"
        assert (await ask(gateway, stop=[]))[0] == 200
        assert served.last[0] == reasoner
        status, body, _ = await ask(gateway, model=reasoner, stop=["."])
        assert status == 400
        assert "cannot take stop" in body["error"]["message"]


async def test_more_stop_sequences_than_it_takes_go_elsewhere(tmp_path: Path) -> None:
    """OpenAI takes four, a Claude any number."""
    async with house(tmp_path, "gpt-4o", "anthropic/claude-sonnet-4-5") as (gateway, served):
        for count, expected in ((4, "gpt-4o"), (5, "claude-sonnet-4-5")):
            stops = [str(number) for number in range(count)]
            assert (await ask(gateway, "messages", stop_sequences=stops, max_tokens=9))[0] == 200
            assert served.last[0] == expected
        status, body, _ = await ask(gateway, model="gpt-4o", stop=stops)
        assert status == 400
        assert "takes at most 4 stop sequences, 5 are sent" in body["error"]["message"]


@pytest.mark.parametrize("name", ["gpt-5", "gpt-5.1", "gpt-5.4-mini", "gpt-5.9", "gpt-7", "o4-mini"])
async def test_the_longest_answer_has_its_newer_name(tmp_path: Path, name: str) -> None:
    async with house(tmp_path, name) as (gateway, served):
        assert (await ask(gateway, max_tokens=77))[::2] == (200, None)
        body = served.last[1]
        assert (body.get("max_completion_tokens"), "max_tokens" in body) == (77, False)


async def test_thinking_by_a_budget_becomes_an_effort(tmp_path: Path) -> None:
    """Where a Claude knows no budgets."""
    async with house(tmp_path, "anthropic/claude-sonnet-5") as (gateway, served):
        thinking = {"type": "enabled", "budget_tokens": 4_096}
        assert (await ask(gateway, "messages", thinking=thinking, max_tokens=9_000))[0] == 200
        body = served.last[1]
        assert (body["thinking"], body["output_config"]) == ({"type": "adaptive"}, {"effort": "high"})


async def test_pictures_have_the_name_that_anthropic_knows(tmp_path: Path) -> None:
    async with house(tmp_path, "anthropic/claude-sonnet-5") as (gateway, served):
        said = 'Is "media_type":"image/jpg" right?'
        source = {"type": "base64", "media_type": "image/jpg", "data": "AAAA"}
        content = [{"type": "text", "text": said}, {"type": "image", "source": source}]
        assert (await ask(gateway, "messages", messages=[{"role": "user", "content": content}], max_tokens=9))[0] == 200
        text, image = served.last[1]["messages"][0]["content"]
        assert (text["text"], image["source"]["media_type"]) == (said, "image/jpeg")


async def test_instructions_alone_reach_a_claude(tmp_path: Path) -> None:
    async with house(tmp_path, "anthropic/claude-sonnet-5") as (gateway, served):
        assert (await ask(gateway, messages=[{"role": "system", "content": "Say hello."}]))[0] == 200
        assert served.last[1]["messages"] == [{"role": "user", "content": [{"type": "text", "text": "Say hello."}]}]


@pytest.mark.parametrize("path", ["chat/completions", "messages"])
async def test_an_answer_that_is_begun_goes_to_who_goes_on_with_it(tmp_path: Path, path: str) -> None:
    turns = [USER, {"role": "assistant", "content": "It is"}]
    async with house(tmp_path, "anthropic/claude-opus-4-6", "anthropic/claude-haiku-4-5") as (gateway, served):
        assert (await ask(gateway, path, max_tokens=9))[0] == 200
        assert served.last[0] == "claude-opus-4-6"
        assert (await ask(gateway, path, messages=turns, max_tokens=9))[0] == 200
        assert served.last[0] == "claude-haiku-4-5"
        status, body, _ = await ask(gateway, path, model="claude-opus-4-6", messages=turns, max_tokens=9)
        assert status == 400
        assert "an answer that is begun" in body["error"]["message"]


async def test_a_temperature_beside_an_effort_is_left_out(tmp_path: Path) -> None:
    """GPT-5.2 takes one only while it does not reason, and log-probabilities neither."""
    async with house(tmp_path, "gpt-5.2", "gpt-4o") as (gateway, served):
        assert (await ask(gateway, temperature=0.2))[::2] == (200, None)
        assert served.last[1]["temperature"] == 0.2
        assert (await ask(gateway, temperature=0.2, reasoning_effort="high"))[::2] == (200, "temperature")
        assert "temperature" not in served.last[1]
        assert (await ask(gateway, logprobs=True, reasoning_effort="high"))[0] == 200
        assert served.last[0] == "gpt-4o"
        assert (await ask(gateway, logprobs=True))[0] == 200
        assert served.last[0] == "gpt-5.2"


async def test_calls_that_one_model_made_at_once_reach_another_one_by_one(tmp_path: Path) -> None:
    """An agent's history has two calls in a turn; a Llama 3, asked by any wire, is told of them in its template's way."""
    calls = [
        {"id": f"call_{n}", "type": "function", "function": {"name": "weigh", "arguments": f'{{"kg":{n}}}'}}
        for n in (1, 2)
    ]
    results = [{"role": "tool", "tool_call_id": each["id"], "content": "done"} for each in calls]
    turn = {"role": "assistant", "content": None, "tool_calls": calls}
    schema = {"type": "object", "properties": {"kg": {"type": "integer"}}}
    async with house(tmp_path, "meta-llama/Llama-3.1-8B-Instruct", kind="vllm") as (gateway, served):
        tools = [{"type": "function", "function": {"name": "weigh", "parameters": schema}}]
        assert (await ask(gateway, messages=[USER, turn, *results], tools=tools))[0] == 200
        blocks = [{"type": "tool_use", "id": each["id"], "name": "weigh", "input": {"kg": 1}} for each in calls]
        answers = [{"type": "tool_result", "tool_use_id": each["id"], "content": "done"} for each in calls]
        history = [USER, {"role": "assistant", "content": blocks}, {"role": "user", "content": answers}]
        tools = [{"name": "weigh", "input_schema": schema}]
        assert (await ask(gateway, "messages", messages=history, tools=tools, max_tokens=9))[0] == 200
        for _, body in served.got:
            assert [each["role"] for each in body["messages"]] == ["user", "assistant", "tool", "assistant", "tool"]
            assert [len(each.get("tool_calls", ())) for each in body["messages"]] == [0, 1, 0, 1, 0]
            assert body["parallel_tool_calls"] is False


async def test_a_strict_engine_is_not_sent_what_it_does_not_name(tmp_path: Path) -> None:
    """TensorRT-LLM refuses a request for every field that it does not know; the caller is told what was left out."""
    async with house(tmp_path, "Qwen/Qwen3-8B", kind="tensorrt-llm") as (gateway, served):
        fields: Body = {
            "store": False,
            "prompt_cache_key": "k",
            "verbosity": "low",
            "seed": 7,
            "reasoning_effort": "minimal",
        }
        status, _, dropped = await ask(gateway, **fields)
        assert (status, dropped) == (200, "prompt_cache_key, store, verbosity")
        sent = served.last[1]
        assert sent.keys() == {"messages", "model", "reasoning_effort", "seed"}
        assert sent["reasoning_effort"] == "none"
