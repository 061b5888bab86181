"""Azure OpenAI on both sides: its own client in front of a whole gateway, its addresses behind it."""

from pathlib import Path
from typing import Any

import openai
import pytest

from tests.providers.wires import Provider, provider
from tests.running_gateway import Running, model, running_gateway
from tests.scenarios.conftest import Upstream
from tests.scenarios.test_model_facts import whole

ASK: Any = [{"role": "user", "content": "Say hello."}]


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the configuration refers to, and nothing of whoever runs the tests."""
    monkeypatch.setenv("MADE_UP_KEY", "made-up")
    monkeypatch.delenv("OPENAI_API_VERSION", raising=False)


def azure(gateway: Running) -> openai.AsyncAzureOpenAI:
    return openai.AsyncAzureOpenAI(
        azure_endpoint=gateway.url, api_key=gateway.key, api_version="2024-10-21", max_retries=0
    )


async def test_azures_client_works_unchanged(tmp_path: Path, upstream: Upstream) -> None:
    """The model is in the path, the key in `api-key`; whole, streamed, parsed, listed and refused."""
    models = [model("gpt-4o", [upstream.deployment("ok")]), model("org/llama", [upstream.deployment("ok")])]
    async with running_gateway(tmp_path, models) as gateway, azure(gateway) as client:
        whole_answer = await client.chat.completions.create(model="auto", messages=ASK)
        stream = await client.chat.completions.create(model="org/llama", messages=ASK, stream=True)
        pieces = [piece async for piece in stream]
        names = [each.id async for each in client.models.list()]
        with pytest.raises(openai.NotFoundError, match="no-such-model"):
            await client.chat.completions.create(model="no-such-model", messages=ASK)
    assert whole_answer.choices[0].message.content
    assert any(piece.choices and piece.choices[0].delta.content for piece in pieces)
    assert {"auto", "gpt-4o", "org/llama"} <= set(names)


async def test_a_client_with_a_fixed_deployment_works(tmp_path: Path, upstream: Upstream) -> None:
    """The path's name counts, whatever the body says."""
    models = [model("gpt-4o", [upstream.deployment("ok")])]
    async with running_gateway(tmp_path, models) as gateway:
        client = openai.AsyncAzureOpenAI(
            azure_endpoint=gateway.url, azure_deployment="gpt-4o", api_key=gateway.key, api_version="any"
        )
        async with client:
            answer = await client.chat.completions.create(model="my-own-name", messages=ASK)
    assert (answer.model_extra or {})["model_used"] == "gpt-4o"


async def test_a_wrong_key_of_azures_client_is_refused(tmp_path: Path, upstream: Upstream) -> None:
    """401 as for everybody."""
    models = [model("gpt-4o", [upstream.deployment("ok")])]
    async with running_gateway(tmp_path, models) as gateway:
        client = openai.AsyncAzureOpenAI(
            azure_endpoint=gateway.url, api_key="wb-wrong", api_version="any", max_retries=0
        )
        async with client:
            with pytest.raises(openai.AuthenticationError):
                await client.chat.completions.create(model="auto", messages=ASK)


def behind(served: Provider, path: str = "", **fields: Any) -> dict[str, Any]:
    deployment = {"kind": "azure", "base_url": f"{served.base_url}{path}", "api_key": "env:MADE_UP_KEY", **fields}
    return model("gpt-4o", [deployment | {"upstream_model": "my deployment"}])


@pytest.mark.parametrize(
    ("path", "fields", "called"),
    [
        ("/openai/v1", {}, "/openai/v1/chat/completions"),
        (
            "",
            {"api_version": "2024-10-21"},
            "/openai/deployments/my%20deployment/chat/completions?api-version=2024-10-21",
        ),
        (
            "/openai",
            {"api_version": "2024-10-21"},
            "/openai/deployments/my%20deployment/chat/completions?api-version=2024-10-21",
        ),
    ],
)
async def test_azures_addresses_are_called(tmp_path: Path, path: str, fields: dict[str, Any], called: str) -> None:
    """With the key as `api-key`, by the v1 API or with a version."""
    async with (
        provider(whole) as served,
        running_gateway(tmp_path, [behind(served, path, **fields)]) as gateway,
        openai.AsyncOpenAI(api_key=gateway.key, base_url=gateway.base_url) as client,
    ):
        await client.chat.completions.create(model="gpt-4o", messages=ASK)
    (request,) = served.requests
    assert str(request.rel_url) == called
    assert request.headers["api-key"] == "made-up"
    assert "authorization" not in request.headers
