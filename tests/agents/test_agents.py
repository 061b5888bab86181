"""Codex, Claude Code, opencode and aider, unchanged, each with a task: through `auto`, over a pool of two engines."""

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.agents.coder import DONE, Coder, coder
from tests.fleet import Place, callers, pool, pooled_model
from tests.running_gateway import Running, running_gateway

_log: Final = logging.getLogger(__name__)

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
_MOST_LOST: Final = 0.01
"""Of a turn before: what the next one may have to compute anew."""


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


def _opencode(installed: Path, home: Path, gateway: Running) -> tuple[list[str], dict[str, str]]:
    folder = home / ".config" / "opencode"
    folder.mkdir(parents=True)
    options = {"baseURL": gateway.base_url, "apiKey": "{env:WEIGHBRIDGE_KEY}"}
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "Weighbridge", "options": options, "models": {"auto": {}}}
    config = {"model": "weighbridge/auto", "provider": {"weighbridge": provider}, "permission": "allow"}
    (folder / "opencode.json").write_text(json.dumps(config))
    quiet = dict.fromkeys(
        ("OPENCODE_DISABLE_AUTOUPDATE", "OPENCODE_DISABLE_MODELS_FETCH", "OPENCODE_DISABLE_LSP_DOWNLOAD"), "1"
    )
    # Its package without a platform's name is a script that puts this one in place, and no package's runs here.
    command = installed / "opencode-linux-x64" / "bin" / "opencode"
    if not command.exists():
        pytest.skip("opencode's package is for Linux on x86-64")
    return [str(command), "run", "Make made.txt"], {"WEIGHBRIDGE_KEY": gateway.key, **quiet}


async def _said(call: list[str], variables: dict[str, str], work: Path, home: Path) -> str:
    """What the agent printed. It has to end well, and in time."""
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
    _log.info("%s", said.decode())
    assert running.returncode == 0, said.decode()
    return said.decode()


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """The folder that an agent works in."""
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with nothing of anybody's in it."""
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@contextlib.asynccontextmanager
async def _pooled(folder: Path, one: Coder, other: Coder) -> AsyncIterator[Running]:
    """A gateway before a pool of both, once it has found them ready."""
    own = pool([Place("a", one.url), Place("b", other.url)], targets=["coder"])
    served = pooled_model("coder", max_context_tokens=400_000)
    async with (
        running_gateway(folder, [served], selfhosted={"pools": [own]}) as gateway,
        callers(gateway) as fleet,
    ):
        await fleet.until_states(a="ready", b="ready")
        yield gateway


@pytest.mark.parametrize("agent", [_codex, _codex_on_a_socket, _claude, _opencode])
async def test_an_agent_does_its_task(tmp_path: Path, work: Path, home: Path, installed: Path, agent: Any) -> None:
    """The file is made, each call is booked to the key's team, and the second turn finds the first one's prompt cached."""
    async with coder() as one, coder() as other, _pooled(tmp_path, one, other) as gateway:
        call, variables = agent(installed, home, gateway)
        said = await _said(call, variables, work, home)
        rows = await gateway.rows("entry = 'settle'")
    assert DONE in said
    # Codex goes on without a socket where it gets none, and says so.
    assert "Reconnecting" not in said
    assert "Falling back" not in said
    assert (work / "made.txt").read_text() == "hi\n"
    _are_booked(rows, one, other)
    # Both turns of the task went to the same engine.
    (worked,) = [engine for engine in (one, other) if any(body.get("tools") for body in engine.bodies)]
    turns = [(body, told) for body, told in zip(worked.bodies, worked.cached, strict=True) if body.get("tools")]
    (first, (before, _)), (second, (_, cached)) = turns
    assert cached >= (1 - _MOST_LOST) * before
    _log.info("%s: %d of %d tokens were cached", agent.__name__, cached, before)
    told, more = first["messages"], second["messages"]
    assert more[: len(told)] == told
    assert [message["role"] for message in more[len(told) :]] == ["assistant", "tool"]


def _are_booked(rows: list[dict[str, Any]], *engines: Coder) -> None:
    """Every call is, once, to the key's team, with what its engine told."""
    assert {(row["team_id"], row["alias"], row["target_id"]) for row in rows} == {("team_a", "auto", "coder")}
    told = [each for engine in engines for each in engine.cached]
    assert sorted((row["input_tokens"], row["cached_input_tokens"]) for row in rows) == sorted(told)


async def test_aider_writes_what_it_is_told(tmp_path: Path, work: Path, home: Path, aider: Path) -> None:
    """It takes no tools: a file is what its model answers. It streams, and each call is booked to the key's team."""
    quiet = (
        "--no-git",
        "--no-check-update",
        "--no-show-model-warnings",
        "--no-show-release-notes",
        "--analytics-disable",
    )
    call = [str(aider), "--model", "openai/auto", "--yes-always", *quiet, "--message", "Make made.txt"]
    answer = "made.txt\n```\nhi\n```\n"
    async with coder(answer) as one, coder(answer) as other, _pooled(tmp_path, one, other) as gateway:
        variables = {"OPENAI_API_BASE": gateway.base_url, "OPENAI_API_KEY": gateway.key}
        await _said(call, variables, work, home)
        rows = await gateway.rows("entry = 'settle'")
    assert (work / "made.txt").read_text() == "hi\n"
    _are_booked(rows, one, other)
