"""Each client, unchanged, against a gateway over a scripted upstream: what its script prints is what was to come."""

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any, Final

import pytest

from tests.running_gateway import CHEAP_PRICES, Running, model, running_gateway
from tests.scenarios.conftest import Upstream, scripted_upstream

_SCRIPTS: Final = Path(__file__).parent / "scripts"
_SAID: Final = " w0 w1 w2 w3 w4"
_LATE: Final = "slow-first-token-200ms"
_LONG_S: Final = 120
_CHAT: Final = {"chat": _SAID, "chat_streamed": _SAID, "chat_tool": '{"kg": 7}'}
_OPENAI: Final = {
    **_CHAT,
    "models": True,
    "chat_image": _SAID,
    "completions": _SAID,
    "chat_parsed": 42,
    "responses": _SAID,
    "responses_streamed": _SAID,
    "responses_parsed": 42,
    "responses_tool": '{"kg": 7}',
    "responses_on": 3,
    "conversation": ["message", "message"],
    "background": _SAID,
    "azure": _SAID,
}
_ANTHROPIC: Final = {
    "messages": _SAID,
    "messages_streamed": _SAID,
    "messages_usage": 5,
    "messages_tool": {"kg": 7},
    "counted": True,
}
_FRAMEWORKS: Final = {
    "litellm_tool": '{"kg": 7}',
    "instructor": 42,
    **dict.fromkeys(("litellm", "litellm_streamed", "haystack", "smolagents", "dspy", "llm"), _SAID),
}
_FOUR: Final = [_SAID, _SAID, {"kg": 7}, 42]


def _house(upstream: Upstream) -> list[dict[str, Any]]:
    """`auto` is the first one: it is the cheapest, and all of them can do everything."""
    # Late, so that streams get their sign of life before anything else.
    plain = model("plain", [upstream.deployment(f"ok+tokens-5+{_LATE}")], prices=CHEAP_PRICES)
    # The last two are names that LlamaIndex knows, the first of them by default.
    rest = {"tools": f"tools+{_LATE}", "json": f"json+{_LATE}"} | dict.fromkeys(
        ("gpt-3.5-turbo", "gpt-3.5-turbo-instruct"), "ok+tokens-5"
    )
    return [plain, *(model(name, [upstream.deployment(script)]) for name, script in rest.items())]


async def _tick_often(gateway: Running) -> None:
    while True:
        await asyncio.sleep(0.05)
        gateway.server.tick()


async def _printed(command: list[str], folder: Path, gateway: Running) -> Any:
    """What the script prints, which has its gateway from the environment, as every client reads it or by our names."""
    running = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "WEIGHBRIDGE_URL": gateway.url,
            "WEIGHBRIDGE_KEY": gateway.key,
            "OPENAI_BASE_URL": gateway.base_url,
            "OPENAI_API_BASE": gateway.base_url,
            "OPENAI_API_KEY": gateway.key,
        },
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        printed, complained = await asyncio.wait_for(running.communicate(), _LONG_S)
    except TimeoutError:
        running.kill()
        printed, complained = await running.communicate()
    assert running.returncode == 0, complained.decode()
    return json.loads(printed)


def _command(script: str, place: Path, folder: Path) -> list[str]:
    if script.endswith(".py"):
        return [str(place), str(_SCRIPTS / script)]
    # Node.js looks for packages beside the script, whoever calls it.
    (folder / "node_modules").symlink_to(place)
    return ["node", shutil.copy(str(_SCRIPTS / script), str(folder))]


@pytest.mark.parametrize(
    ("script", "kind", "expected"),
    [
        ("openai_client.py", "newest", _OPENAI),
        ("openai_client.py", "older", _OPENAI),
        ("openai_client.mjs", "node", _OPENAI),
        ("anthropic_client.py", "newest", _ANTHROPIC),
        ("anthropic_client.mjs", "node", _ANTHROPIC),
        ("mistral_client.py", "newest", {**_CHAT, "models": True}),
        ("ai_sdk.mjs", "node", {"responses": _FOUR, "chat": _FOUR, "messages": _FOUR[:3]}),
        ("openai_agents.py", "newest", {"run": _SAID, "run_streamed": _SAID, "run_tool": "7 kg", "run_parsed": 42}),
        ("pydantic_ai_client.py", "newest", {"chat": [_SAID, _SAID, 7, 42], "responses": [_SAID, _SAID, 7, 42]}),
        ("langchain_client.py", "newest", {"chat": _FOUR, "responses": _FOUR, "completions": _SAID}),
        ("frameworks_client.py", "older", _FRAMEWORKS),
        ("guidellm_client.py", "guidellm", {"text_completions": [3, 15], "chat_completions": [3, 15]}),
        (
            "llama_index_client.py",
            "older",
            dict.fromkeys(("complete", "complete_streamed", "chat", "completions"), _SAID),
        ),
    ],
)
async def test_a_client_works_unchanged(
    tmp_path: Path, places: dict[str, Path], script: str, kind: str, expected: Any
) -> None:
    """Every answer is what the upstream said, and every call is in the books of the key's team."""
    work = tmp_path / "work"
    work.mkdir()
    server = {"ping_after_s": 0.05}
    async with scripted_upstream() as upstream, running_gateway(tmp_path, _house(upstream), server=server) as gateway:
        ticking = asyncio.ensure_future(_tick_often(gateway))
        assert await _printed(_command(script, places[kind], work), work, gateway) == expected
        ticking.cancel()
        rows = await gateway.rows("entry = 'settle'")
        assert len(rows) == len(upstream.arrived()) > 0
        assert {row["team_id"] for row in rows} == {"team_a"}
