"""Asking on the command line, and switching it."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from gateway.commands.ask import shown
from tests.api.ask.asked_model import asked_model, calls, says
from tests.dashboards.pages.teams import asked, keep
from tests.nursery import nursery
from tests.running_gateway import PEPPER, running_gateway


async def run(folder: Path, *arguments: str) -> tuple[int, str]:
    """A command beside the gateway of this folder."""
    environ = {
        **os.environ,
        "WEIGHBRIDGE_CONFIG": str(folder / "gateway.yaml"),
        "WEIGHBRIDGE_PEPPER": PEPPER,
        "DATABASE_URL": f"sqlite:///{folder / 'weighbridge.sqlite'}",
    }
    ended = await asyncio.to_thread(nursery().run, list(arguments), environ=environ, cwd=folder, timeout_s=120)
    return ended.returncode, ended.stdout + ended.stderr if "--json" not in arguments else ended.stdout


async def test_it_is_switched_on_asked_and_switched_off(tmp_path: Path) -> None:
    """With the team and its budget; the answer has the pages of its rows; off it is refused with what to do."""
    async with asked_model() as mind, running_gateway(tmp_path, [mind.entry()]) as running:
        await keep(running, [asked("req_a", cost_nanousd=10**10)])
        key = tmp_path / "key"
        key.write_text(running.key)
        ask = ("ask", "What was spent?", "--url", running.url, "--key-file", str(key))
        assert "ask is off" in (await run(tmp_path, "organisations", "ask"))[1]
        status, told = await run(tmp_path, *ask)
        assert (status, "an administrator switches it on" in told) == (1, True)
        status, told = await run(
            tmp_path, "organisations", "ask", "--on", "--budget", "5", "--questions", "7", "--json"
        )
        assert status == 0, told
        (setting,) = json.loads(told)
        assert (setting["team_id"], setting["questions_an_hour"]) == ("ask", 7)
        assert "5" in (await run(tmp_path, "budgets", "list"))[1]
        mind.plays(calls(("usage", {"period": "today"}), ("usage", {"team": "x"})), says("$10.00, and not $11."))
        status, told = await run(tmp_path, *ask)
        assert status == 0, told
        assert "$10.00, and not $11 (not looked up)." in told
        assert f"{running.url}/dashboard/teams/team_a?from=" in told
        assert "There is no team 'x'" in told
        mind.plays(calls(("usage", {})), says("$10.00."))
        status, told = await run(tmp_path, *ask, "--json")
        assert json.loads(told)["object"] == "ask.answer"
        assert "ask is off" in (await run(tmp_path, "organisations", "ask", "--off"))[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("ask", "What?"), "--key-file is needed"),
        (("organisations", "ask", "nobody", "--on"), "no organisation"),
        (("organisations", "ask", "--on", "--budget", "much"), "amount of dollars"),
        (("organisations", "ask", "--on", "--budget", "-1"), "at least 0"),
        (("organisations", "ask", "--on", "--team", "No Id!"), "id"),
    ],
)
async def test_what_is_wrong_is_told(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    """In a line, without a traceback."""
    async with asked_model() as mind, running_gateway(tmp_path, [mind.entry()]):
        status, told = await run(tmp_path, *arguments)
    assert status != 0
    assert words in told
    assert "Traceback" not in told


def test_an_answer_in_lines() -> None:
    """What was not looked up is marked."""
    step: dict[str, Any] = {
        "ref": "r1",
        "title": "Usage",
        "rows": [{}],
        "href": "/dashboard/teams",
        "problem": None,
        "tool": "usage",
    }
    told = {
        "parts": [
            {"text": "$1", "kind": "figure"},
            {"text": "\n", "kind": "text"},
            {"text": "$2", "kind": "unverified"},
        ],
        "steps": [step, {**step, "problem": "There is no such tool."}],
    }
    assert list(shown(told, "http://gateway")) == [
        "$1\n$2 (not looked up)",
        "",
        "r1  Usage: 1 rows, http://gateway/dashboard/teams",
        "-   usage: There is no such tool.",
    ]
