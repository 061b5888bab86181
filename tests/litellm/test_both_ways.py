"""Ours in front of a real LiteLLM, and a real LiteLLM in front of ours, as they stand while clients move team by team."""

import json
from pathlib import Path
from typing import Any, Final

import anthropic
import litellm
import openai
import pytest

from tests.litellm.proxy import MASTER, LitellmProxy
from tests.litellm.upstream import USAGE
from tests.providers.wires import LITELLM_WARNINGS, TOOLS, Provider
from tests.running_gateway import Running, running_gateway

pytestmark = LITELLM_WARNINGS

ASK: Final[Any] = [{"role": "user", "content": "Say hello."}]
TOOL: Final[Any] = TOOLS
COSTS: Final = {"input_cost_per_token": 1e-06, "output_cost_per_token": 2e-06}


def client_of(running: Running) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=running.base_url, api_key=running.key, max_retries=0)


def entry(name: str, proxy: LitellmProxy, **fields: Any) -> dict[str, Any]:
    """One model at that LiteLLM, as the page says to write it."""
    deployment = {"kind": "openai", "base_url": f"{proxy.url}/v1", "api_key": "env:OLD_KEY", "upstream_model": name}
    prices = {"input": "1", "output": "2"}
    return {"model_id": name, "provider": "litellm-proxy", "prices": prices, "deployments": [deployment], **fields}


async def test_ours_in_front(proxy: LitellmProxy, upstream: Provider, tmp_path: Path, monkeypatch: Any) -> None:
    """Chat, streams, tools and embeddings go through both; what is booked here is what LiteLLM says that it cost."""
    monkeypatch.setenv("OLD_KEY", MASTER)
    chat = await proxy.model(upstream.base_url, {"model": "openai/chat"} | COSTS)
    embeds = await proxy.model(upstream.base_url, {"model": "openai/embed"} | COSTS, {"mode": "embedding"})
    entries = [entry(chat, proxy), entry(embeds, proxy, capabilities=["embeddings"])]
    async with running_gateway(tmp_path, entries) as running, client_of(running) as client:
        said = await client.chat.completions.create(model=chat, messages=ASK)
        assert said.choices[0].message.content == "hello there"
        assert said.usage is not None
        assert said.usage.prompt_tokens == USAGE["prompt_tokens"]
        called = await client.chat.completions.create(model=chat, messages=ASK, tools=TOOL)
        calls = called.choices[0].message.tool_calls
        assert calls is not None
        assert json.loads(calls[0].function.arguments) == {"kg": 7}  # type: ignore[union-attr]
        stream = await client.chat.completions.create(
            model=chat, messages=ASK, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(each.choices[0].delta.content or "" for each in chunks if each.choices)
        assert text == "hello there"
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == USAGE["completion_tokens"]
        vector = await client.embeddings.create(model=embeds, input="hello", encoding_format="float")
        assert vector.data[0].embedding == [0.5, -0.5]
        rows = await running.rows()
    async with proxy.client() as their:
        whole = await their.post("/v1/chat/completions", json={"model": chat, "messages": ASK})
    assert whole.is_success, whole.text
    theirs = float(whole.headers["x-litellm-response-cost"])
    settled = [row["cost_nanousd"] for row in rows if row["entry"] == "settle"]
    assert settled[:3] == [round(theirs * 1e9)] * 3


@pytest.mark.parametrize(
    ("upstream_model", "error"),
    [
        ("unauthorized", openai.InternalServerError),
        ("limited", openai.RateLimitError),
        ("wrong", openai.BadRequestError),
        ("broken", openai.InternalServerError),
    ],
)
async def test_their_refusals_are_ours(
    proxy: LitellmProxy,
    upstream: Provider,
    tmp_path: Path,
    monkeypatch: Any,
    upstream_model: str,
    error: type[openai.APIStatusError],
) -> None:
    """What LiteLLM refuses is told as the same kind of error, whole and streamed; its wrong key is no fault of the caller's."""
    monkeypatch.setenv("OLD_KEY", MASTER)
    name = await proxy.model(upstream.base_url, {"model": f"openai/{upstream_model}"})
    retry = {"retry": {"attempts": 1}}
    async with (
        running_gateway(tmp_path, [entry(name, proxy)], providers=retry) as running,
        client_of(running) as client,
    ):
        for stream in (False, True):
            with pytest.raises(error):
                await client.chat.completions.create(model=name, messages=ASK, stream=stream)


async def test_a_key_that_litellm_does_not_know(proxy: LitellmProxy, tmp_path: Path, monkeypatch: Any) -> None:
    """The gateway's own key is wrong: the caller cannot mend that."""
    monkeypatch.setenv("OLD_KEY", "sk-unknown-0123456789")
    async with running_gateway(tmp_path, [entry("of-the-file", proxy)]) as running, client_of(running) as client:
        with pytest.raises(openai.APIStatusError) as refused:
            await client.chat.completions.create(model="of-the-file", messages=ASK)
    assert refused.value.status_code >= 500


def at(upstream: Provider, name: str, **fields: Any) -> dict[str, Any]:
    deployment = {"kind": "openai", "base_url": f"{upstream.base_url}/v1", "api_key": "env:MADE_UP_KEY"}
    return {
        "model_id": name,
        "provider": "scripted",
        "prices": {"input": "1", "output": "2"},
        "deployments": [{**deployment, "upstream_model": name}],
        **fields,
    }


@pytest.mark.parametrize("prefix", ["openai", "litellm_proxy"])
async def test_ours_behind(
    proxy: LitellmProxy, upstream: Provider, tmp_path: Path, monkeypatch: Any, prefix: str
) -> None:
    """LiteLLM takes ours for any OpenAI-compatible host: chat, tools, streams with usage, embeddings, health checks, errors."""
    monkeypatch.setenv("MADE_UP_KEY", "made-up")
    models = [at(upstream, "chat"), at(upstream, "embed", capabilities=["embeddings"]), at(upstream, "limited")]
    async with running_gateway(tmp_path, models, providers={"retry": {"attempts": 1}}) as running:
        names = {}
        for name in ("chat", "embed", "limited", "nowhere"):
            params = {"model": f"{prefix}/{name}", "api_base": running.base_url, "api_key": running.key}
            names[name] = await proxy.model(running.url, params, {"mode": "embedding" if name == "embed" else "chat"})
        async with openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key=MASTER, max_retries=0) as client:
            said = await client.chat.completions.create(model=names["chat"], messages=ASK)
            assert said.choices[0].message.content == "hello there"
            called = await client.chat.completions.create(model=names["chat"], messages=ASK, tools=TOOL)
            assert called.choices[0].message.tool_calls
            stream = await client.chat.completions.create(
                model=names["chat"], messages=ASK, stream=True, stream_options={"include_usage": True}
            )
            chunks = [chunk async for chunk in stream]
            assert "".join(each.choices[0].delta.content or "" for each in chunks if each.choices) == "hello there"
            assert chunks[-1].usage is not None
            assert chunks[-1].usage.prompt_tokens == USAGE["prompt_tokens"]
            vector = await client.embeddings.create(model=names["embed"], input="hello", encoding_format="float")
            assert vector.data[0].embedding == [0.5, -0.5]
            with pytest.raises(openai.RateLimitError):
                await client.chat.completions.create(model=names["limited"], messages=ASK)
            with pytest.raises(openai.NotFoundError):
                await client.chat.completions.create(model=names["nowhere"], messages=ASK)
        async with anthropic.AsyncAnthropic(base_url=proxy.url, api_key=MASTER, max_retries=0) as claude:
            message = await claude.messages.create(model=names["chat"], max_tokens=100, messages=ASK)
            assert message.content[0].text == "hello there"  # type: ignore[union-attr]
        checked = await proxy.call("GET", "/health", params={"model": names["chat"]})
        assert checked["healthy_count"] == 1, checked
        rows = await running.rows()
    assert {row["target_id"] for row in rows if (row["entry"], row["status"]) == ("settle", 200)} == {"chat", "embed"}


async def test_litellms_own_client_at_ours(upstream: Provider, tmp_path: Path, monkeypatch: Any) -> None:
    """The SDK under both of its names for a proxy: the answer, a stream with usage, the list of models, and the error's kind."""
    monkeypatch.setenv("MADE_UP_KEY", "made-up")
    async with running_gateway(tmp_path, [at(upstream, "chat")]) as running:
        for prefix in ("openai", "litellm_proxy"):
            to: dict[str, Any] = {"api_base": running.base_url, "api_key": running.key, "num_retries": 0}
            said = await litellm.acompletion(model=f"{prefix}/chat", messages=ASK, **to)
            assert said.choices[0].message.content == "hello there"
            stream = await litellm.acompletion(
                model=f"{prefix}/chat", messages=ASK, stream=True, stream_options={"include_usage": True}, **to
            )
            chunks = [chunk async for chunk in stream]
            assert any(getattr(each, "usage", None) for each in chunks)
            with pytest.raises(litellm.exceptions.NotFoundError):
                await litellm.acompletion(model=f"{prefix}/nowhere", messages=ASK, **to)
            with pytest.raises(litellm.exceptions.AuthenticationError):
                await litellm.acompletion(
                    model=f"{prefix}/chat", messages=ASK, **(to | {"api_key": "sk-wrong-0123456789"})
                )
