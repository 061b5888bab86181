"""The list of models, in the shape that its reader understands."""

from pathlib import Path

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
