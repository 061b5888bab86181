"""A failure can be traced: in the log, on the operators' page, and, as far as it concerns them, by callers."""

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.providers.wires import provider
from tests.running_gateway import Running, model, running_gateway

SECRET = "sk-made-up-0123456789abcdef"
PROMPT = "Please translate the secret recipe of our grandmother's plum cake."


def refusing(status: int, message: str, **error: Any) -> Any:
    async def answer(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": message, **error}}, status=status)

    return answer


def deployment(base_url: str, name: str = "main") -> dict[str, Any]:
    return {"name": name, "kind": "openai", "base_url": f"{base_url}/v1", "api_key": "env:MADE_UP_KEY"}


async def ask(gateway: Running, name: str) -> tuple[int, dict[str, Any]]:
    body = {"model": name, "messages": [{"role": "user", "content": PROMPT}]}
    headers = {"authorization": f"Bearer {gateway.key}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{gateway.base_url}/chat/completions", json=body) as reply,
    ):
        return reply.status, (await reply.json())["error"]


def logged(capfd: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    lines = capfd.readouterr().err.splitlines()
    return [line for each in lines if (line := json.loads(each))["logger"] == "weighbridge.request"]


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the configuration refers to."""
    monkeypatch.setenv("MADE_UP_KEY", SECRET)


@pytest.mark.parametrize(
    ("status", "words"), [(401, "own key"), (403, "own permission"), (404, "own model name or address")]
)
async def test_a_refusal_of_ours_is_told_to_operators_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], status: int, words: str
) -> None:
    """The log line has the deployment, the upstream's status and its words, without the key; the caller reads whose fault it was."""
    answer = refusing(status, f"Refused with {SECRET}. Project prj-7 is unknown.")
    async with provider(answer) as served:
        async with running_gateway(tmp_path, [model("refused", [deployment(served.base_url)])]) as gateway:
            code, error = await ask(gateway, "refused")
        (line,) = logged(capfd)
    assert code == 502
    assert words in error["message"]
    assert "not at fault" in error["message"]
    assert "prj-7" not in error["message"]
    (attempt,) = line["attempts"]
    assert (attempt["deployment_id"], attempt["upstream_status"]) == ("refused/main", status)
    assert "Project prj-7 is unknown" in attempt["upstream_said"]
    assert SECRET not in json.dumps(line)


async def test_a_rejected_request_is_told_without_its_words(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The caller's own 400 has its reason in the log, too, but nothing of the prompt that the upstream repeats."""
    answer = refusing(400, f"Unsupported value: {PROMPT} is not accepted.", code="bad", param="messages")
    async with provider(answer) as served:
        async with running_gateway(tmp_path, [model("strict", [deployment(served.base_url)])]) as gateway:
            code, error = await ask(gateway, "strict")
        (line,) = logged(capfd)
    assert (code, PROMPT in error["message"]) == (400, True)
    said = line["attempts"][0]["upstream_said"]
    assert said.startswith("Unsupported value:")
    assert "is not accepted" in said
    assert "grandmother" not in json.dumps(line)


async def test_what_the_gateway_refuses_is_logged_with_its_reason(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """One line says why, without what the caller typed, and that nobody was asked."""
    async with provider(refusing(500, "never asked")) as served:
        async with running_gateway(tmp_path, [model("strict", [deployment(served.base_url)])]) as gateway:
            await ask(gateway, "no-such-model")
        (line,) = logged(capfd)
    assert line["attempts"] == []
    assert "The model `…` does not exist" in line["error_message"]


async def test_who_rejects_our_key_is_down_at_once(tmp_path: Path) -> None:
    """The second request is not sent there, and the operators' view says why."""
    async with provider(refusing(401, "Incorrect API key provided.")) as served:
        models = [model("refused", [deployment(served.base_url, name) for name in ("a", "b")])]
        async with running_gateway(tmp_path, models) as gateway:
            first, _ = await ask(gateway, "refused")
            second, _error = await ask(gateway, "refused")
            snapshot = gateway.live.breakers.telling()
    assert (first, second) == (502, 503)
    assert len(served.bodies) == 2, "each key was tried once"
    assert {look.state for look in snapshot.values()} == {"open"}
    assert {look.faults[0][1].detail for look in snapshot.values()} == {"Incorrect API key provided."}
