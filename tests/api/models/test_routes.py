"""The list of models, in the shape that its reader understands."""

from pathlib import Path

import anthropic
import anthropic.types
import httpx
import pytest

from tests.running_gateway import model, running_gateway
from tests.scenarios.conftest import scripted_upstream


@pytest.mark.parametrize(
    ("agent", "types"),
    [
        ("mistral-client-python/3.7.0", {"base"}),
        ("speakeasy-sdk/python 1.9.11 2.687.13 1.0.0 mistralai", {"base"}),
        ("OpenAI/Python 3.57.0", {None}),
    ],
)
async def test_mistrals_clients_get_models_with_a_type(tmp_path: Path, agent: str, types: set[str | None]) -> None:
    """By the name that they call themselves, which changed between their versions; nobody else does."""
    async with (
        scripted_upstream() as upstream,
        running_gateway(tmp_path, [model("plain", [upstream.deployment("ok")])]) as gateway,
        httpx.AsyncClient(headers={"authorization": f"Bearer {gateway.key}", "user-agent": agent}) as caller,
    ):
        listed = (await caller.get(f"{gateway.base_url}/models")).json()["data"]
        one = (await caller.get(f"{gateway.base_url}/models/plain")).json()
    assert {each.get("type") for each in [*listed, one]} == types


async def test_anthropics_clients_get_pages_of_models_in_their_shape(tmp_path: Path) -> None:
    """With all names of its published type, forwards and backwards, and errors as they read them."""
    models = [
        model(name, [{"kind": "openai", "base_url": "http://127.0.0.1:9/v1"}], max_output_tokens=99)
        for name in ("a", "b", "c")
    ]
    async with running_gateway(tmp_path, models) as gateway:
        async with anthropic.AsyncAnthropic(api_key=gateway.key, base_url=gateway.url, max_retries=0) as caller:
            everyone = [each async for each in caller.models.list(limit=2)]
            assert [each.display_name for each in everyone] == ["auto", "a", "b", "c"]
            first = await caller.models.list(limit=2)
            assert (first.has_more, first.first_id, first.last_id) == (True, "claude-auto", "claude-a")
            last = await caller.models.list(limit=2, after_id="claude-a")
            assert (last.has_more, [each.id for each in last.data]) == (False, ["claude-b", "claude-c"])
            before = await caller.models.list(limit=1, before_id="claude-b")
            assert (before.has_more, [each.id for each in before.data]) == (True, ["claude-a"])
            one = await caller.models.retrieve("claude-b")
            for each in (*everyone, one):
                # Strict: the client's own objects take anything.
                anthropic.types.ModelInfo.model_validate(each.model_dump(mode="json"))
                assert each.lifecycle == "active"
            assert (one.max_input_tokens, one.max_tokens) == (32_000, 99)
            assert one.capabilities is not None
            assert one.capabilities.image_input.supported
            with pytest.raises(anthropic.NotFoundError) as gone:
                await caller.models.retrieve("nobody")
            assert gone.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
            for wrong in ({"limit": 0}, {"after_id": "claude-z"}, {"after_id": "claude-a", "before_id": "claude-b"}):
                with pytest.raises(anthropic.BadRequestError) as refused:
                    await caller.models.list(**wrong)
                assert refused.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]
        async with anthropic.AsyncAnthropic(api_key="no key", base_url=gateway.url, max_retries=0) as stranger:
            with pytest.raises(anthropic.AuthenticationError) as unknown:
                await stranger.models.list()
            assert unknown.value.body["error"]["type"] == "authentication_error"  # type: ignore[index]
