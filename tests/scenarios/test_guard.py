"""The guard over real sockets: what providers are sent, and what callers are told, on every way to a model."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.providers.wires import LITELLM_WARNINGS, provider
from tests.running_gateway import Running, running_gateway
from tests.scenarios.test_model_facts import bare, whole

pytestmark = LITELLM_WARNINGS

CARD = "4111 1111 1111 1111"
MAIL = "jane.doe@example.com"
RULES: list[dict[str, Any]] = [
    {"name": "cards", "kind": "pii", "entities": ["card"], "input": "block"},
    {"name": "mails", "kind": "pii", "entities": ["email"], "input": "mask"},
    {"name": "project", "kind": "words", "words": ["bluebird"], "input": "own"},
]


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MADE_UP_KEY", "made-up")


async def post(gateway: Running, path: str, body: Any, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient() as ask:
        return await ask.post(
            f"{gateway.url}{path}", json=body, headers={"authorization": f"Bearer {gateway.key}", **headers}
        )


def said(*texts: str) -> dict[str, Any]:
    return {"model": "gpt-4o", "messages": [{"role": "user", "content": each} for each in texts]}


async def test_1(tmp_path: Path) -> None:
    async with (
        provider(whole) as served,
        running_gateway(tmp_path, [bare("gpt-4o", served)], guard={"rules": RULES}) as gateway,
    ):
        r = await post(gateway, "/v1/chat/completions", said(f"my card is {CARD}"))
        print(r.status_code, r.text, r.headers)
        r = await post(gateway, "/v1/chat/completions", said(f"mail {MAIL}"))
        print(r.status_code, r.text, r.headers, served.bodies)
        r = await post(gateway, "/v1/chat/completions", said("bluebird"))
        print(r.status_code, r.text, r.headers)
        print(await gateway.rows())
        assert 0
