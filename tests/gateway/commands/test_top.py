"""The operators' page in a terminal."""

import asyncio
import contextlib
import io
import os
import pty
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from rich.console import Console

from gateway.commands.top import screen
from gateway.configuration.environment import Environment
from gateway.configuration.peppers import peppers
from gateway.configuration.settings import load
from tests.nursery import nursery
from tests.running_gateway import PEPPER, Running, model, running_gateway

_FIGURES = {"attempts": 3, "failed_share": None, "ttft_p50_s": 0.25, "ttft_p95_s": None}


@contextlib.asynccontextmanager
async def gateway(folder: Path) -> AsyncIterator[tuple[Running, Path]]:
    """A gateway, and a file with a key that may look after it."""
    async with running_gateway(folder, [model("m", [{"kind": "scripted", "upstream_model": "x"}])]) as running:
        environment = Environment(data_dir=folder, pepper=SecretStr(PEPPER))
        pepper = peppers(load(running.config_path, environment), environment)[0]
        minted = await running.accounts.create_key("team_a", "top", pepper, role="admin")
        file = folder / "key"
        file.write_text(minted.plaintext)
        yield running, file


async def run(*arguments: str) -> tuple[int, str]:
    """The command, without a terminal."""
    ended = await asyncio.to_thread(
        nursery().run, ["top", *arguments], environ=os.environ, cwd=Path.cwd(), timeout_s=60
    )
    return ended.returncode, ended.stdout + ended.stderr


async def test_once(tmp_path: Path) -> None:
    """Without a terminal it looks once, so that a report can have it."""
    async with gateway(tmp_path) as (running, key):
        status, out = await run("--url", running.url, "--key-file", str(key))
    assert status == 0
    assert "serving" in out
    assert "database ok" in out
    assert "all closed" in out
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        ((), 2, "--key-file is needed"),
        (("--url", "ftp://127.0.0.1"), 2, "begins with http"),
        (("--url", "http://127.0.0.1:9"), 1, "does not answer"),
    ],
)
async def test_what_is_wrong(arguments: tuple[str, ...], status: int, told: str, tmp_path: Path) -> None:
    """Is told in a line."""
    key = tmp_path / "key"
    key.write_text("wb-nobody")
    given = (*arguments, "--key-file", str(key)) if arguments else ()
    found, out = await run(*given)
    assert (found, told in out) == (status, True), out
    assert "Traceback" not in out


async def test_a_members_key_is_refused(tmp_path: Path) -> None:
    """What holds for every organisation is its operators' to see."""
    async with gateway(tmp_path) as (running, key):
        key.write_text(running.key)
        status, out = await run("--url", running.url, "--key-file", str(key))
    assert status == 1
    assert "the gateway refused (403)" in out


async def test_live_until_interrupted(tmp_path: Path) -> None:
    """In a terminal it goes on, on a screen of its own, and Ctrl-C gives the terminal back."""
    async with gateway(tmp_path) as (running, key):
        arguments = ["-m", "gateway.cli", "top", "--url", running.url, "--key-file", str(key), "--every", "0.5"]
        leader, follower = pty.openpty()
        process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, stdin=follower, stdout=follower, stderr=follower,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "150", "LINES": "40"},
        )  # fmt: skip
        os.close(follower)
        seen = ""
        while seen.count("serving") < 2:
            # It raises when the program has ended.
            chunk = await asyncio.to_thread(os.read, leader, 65_536)
            assert chunk, seen
            seen += chunk.decode(errors="replace")
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):
            while chunk := await asyncio.to_thread(os.read, leader, 65_536):
                seen += chunk.decode(errors="replace")
        os.close(leader)
        assert await process.wait() == 130
    assert "\x1b[?1049h" in seen
    assert "\x1b[?1049l" in seen


def told(**changes: Any) -> dict[str, Any]:
    """What a gateway in trouble says."""
    breaker = {"state": "open", "opens_again_s": 3, "failures_in_row": 5, "ejections": 1}
    error = {"at": "2026-11-22T10:00:01Z", "at_us": 1, "kind": "timeout", "text": "no first token", "status": None, "counted": True}  # fmt: skip
    return {
        "at": "2026-11-22T10:00:02Z",
        "incidents": [
            {
                "severity": "bad",
                "kind": "errors",
                "subject": "[red]m[/red]",
                "text": "fails\x1b[2J",
                "href": "/",
                "since": "2026-11-22T09:58:00Z",
                "state": "open",
                "requests": 12,
                "refused": 12,
                "teams": 1,
                "also": ["q: 3 requests wait"],
            }
        ],
        "process": {
            "version": "1",
            "draining": False,
            "is_refusing": True,
            "in_flight": 2,
            "live_processes": 1,
            "limits": "redis",
        },
        "recent": {**_FIGURES, "window_s": 600},
        "targets": [
            {
                "target_id": "[bold]evil\x1b]0;title\x07",
                "state": "down",
                "recent": _FIGURES,
                "deployments": [{"breaker": breaker, "errors": [error]}],
            }
        ],
        "pools": {"data": []},
        "queues": [],
        "stores": {
            "database": {"answers": False},
            "redis": {"configured": True, "answers": False},
            "journal": {"waiting": 4},
        },
        "refusals": {
            "refusals": 5,
            "data": [
                {"team_id": "a", "key_id": None, "model": "auto", "reason": "queue_full", "status": 429, "refusals": 5}
            ],
        },
        "spend": {"spent_nanousd": None, "usual_nanousd": 1_000_000_000},
        "classifier": {"in_use": "trained model"},
        **changes,
    }


def test_names_are_shown_and_not_obeyed() -> None:
    """Neither as markup nor as a terminal's control codes; what is unknown is no zero."""
    console = Console(width=150, record=True, markup=False, highlight=False, file=io.StringIO())
    console.print(screen(told(), "http://gateway"))
    text = console.export_text()
    assert "[bold]evil·]0;title·" in text
    assert "[red]m[/red]" in text
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "database AWAY" in text
    assert "redis AWAY" in text
    assert "refusing" in text
    assert "1 open" in text
    assert "spent this hour — (usual $1.00)" in text
