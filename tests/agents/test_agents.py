"""Codex and Claude Code, unchanged, each with a task that takes a tool: through `auto`, over a target that speaks chat."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from tests.agents.coder import DONE, Coder, coder
from tests.running_gateway import Running, model, running_gateway

_CODEX = """
model = "auto"
model_provider = "weighbridge"
web_search = "disabled"
[model_providers.weighbridge]
name = "Weighbridge"
base_url = "{base_url}"
env_key = "WEIGHBRIDGE_KEY"
wire_api = "responses"
"""
_LONG_S = 100


def _codex(installed: Path, home: Path, gateway: Running) -> tuple[list[str], dict[str, str]]:
    (home / ".codex").mkdir()
    (home / ".codex" / "config.toml").write_text(_CODEX.format(base_url=gateway.base_url))
    call = [
        str(installed / ".bin" / "codex"),
        "exec",
        "--skip-git-repo-check",
        "--dangerously-bypass-approvals-and-sandbox",
    ]
    return [*call, "Make made.txt"], {"WEIGHBRIDGE_KEY": gateway.key}


def _codex_on_a_socket(installed: Path, home: Path, gateway: Running) -> tuple[list[str], dict[str, str]]:
    found = _codex(installed, home, gateway)
    with (home / ".codex" / "config.toml").open("a") as config:
        config.write("supports_websockets = true\n")
    return found


def _claude(installed: Path, _home: Path, gateway: Running) -> tuple[list[str], dict[str, str]]:
    # Its own binary would need its script at the installation, and no package's runs here.
    wrapper = installed / "@anthropic-ai" / "claude-code" / "cli-wrapper.cjs"
    call = ["node", str(wrapper), "-p", "Make made.txt", "--allowedTools", "Bash"]
    quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
    return call, {"ANTHROPIC_BASE_URL": gateway.url, "ANTHROPIC_AUTH_TOKEN": gateway.key, **quiet}


def _house(upstream: Coder) -> list[dict[str, Any]]:
    deployment = {"name": "a", "kind": "openai", "base_url": upstream.url, "upstream_model": "m"}
    return [model("coder", [deployment], max_context_tokens=400_000)]


@pytest.mark.parametrize("agent", [_codex, _codex_on_a_socket, _claude])
async def test_an_agent_does_its_task(tmp_path: Path, installed: Path, agent: Any) -> None:
    """The file is made, each call is booked to the key's team, and the second turn begins with the whole first one."""
    work, home = tmp_path / "work", tmp_path / "home"
    work.mkdir()
    home.mkdir()
    async with coder() as upstream, running_gateway(tmp_path, _house(upstream)) as gateway:
        call, variables = agent(installed, home, gateway)
        running = await asyncio.create_subprocess_exec(
            *call,
            cwd=work,
            env={"PATH": os.environ["PATH"], "HOME": str(home), "TERM": "dumb", **variables},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            said, _ = await asyncio.wait_for(running.communicate(), _LONG_S)
        except TimeoutError:
            running.kill()
            said, _ = await running.communicate()
        assert running.returncode == 0, said.decode()
        assert DONE in said.decode()
        # Codex goes on without a socket where it gets none, and says so.
        assert "Reconnecting" not in said.decode()
        assert "Falling back" not in said.decode()
        assert (work / "made.txt").read_text() == "hi\n"
        rows = await gateway.rows("entry = 'settle'")
        assert {(row["team_id"], row["alias"], row["target_id"]) for row in rows} == {("team_a", "auto", "coder")}
        assert len(rows) == len(upstream.bodies)
        first, second = (body["messages"] for body in upstream.bodies if body.get("tools"))
        assert second[: len(first)] == first
        assert [message["role"] for message in second[len(first) :]] == ["assistant", "tool"]
