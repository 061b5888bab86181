"""The first minute on a terminal: three lines that say where and what next; JSON for machines. Real processes on a real pty."""

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.processes import READY_WITHIN_S, ROOT, Site, make_site
from tests.running_gateway import model

_NOBODY: Final = {"kind": "openai", "base_url": "http://127.0.0.1:9/v1"}


@contextlib.contextmanager
def _at_terminal(site: Site, *arguments: str) -> Iterator[Callable[[str], str]]:
    """Runs `weighbridge` on a terminal. Yields what waits for words and gives what was printed until then."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway.cli", *arguments],
        env=site.environ() | {"COLUMNS": "200"},
        cwd=ROOT,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    printed = bytearray()

    def until_printed(words: str) -> str:
        deadline = time.monotonic() + READY_WITHIN_S
        while words.encode() not in printed or not printed.endswith(b"\n"):
            assert time.monotonic() < deadline, printed.decode()
            if select.select([ours], [], [], 0.2)[0]:
                try:
                    printed.extend(os.read(ours, 65_536))
                except OSError:
                    # Nobody holds the terminal any more.
                    assert words.encode() in printed, printed.decode()
                    break
        return printed.decode().replace("\r\n", "\n")

    try:
        yield until_printed
    finally:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(ours)


async def test_a_terminal_is_told_where_and_what_next(tmp_path: Path) -> None:
    """Address, dashboard and the next command are three lines on end; no line is JSON."""
    site = await make_site(tmp_path, [model("only", [_NOBODY])])
    with _at_terminal(site, "serve", "--config", str(site.config_path)) as until_printed:
        lines = until_printed("  Next ").splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("  API"))
    api, dashboard, following = lines[first : first + 3]
    base = api.split()[1].removesuffix("/v1")
    assert base.startswith("http://127.0.0.1:")
    assert dashboard.split() == ["Dashboard", f"{base}/dashboard"]
    assert following.startswith("  Next       weighbridge people invite you@example.com --role admin --config ")
    assert str(site.config_path) in following
    assert not [line for line in lines if line.startswith("{")]


async def test_json_is_logged_where_it_is_asked_for(tmp_path: Path) -> None:
    """`--logs json` on a terminal prints JSON lines and nothing else, by all processes."""
    site = await make_site(tmp_path, [model("only", [_NOBODY])])
    with _at_terminal(site, "serve", "--logs", "json") as until_printed:
        lines = until_printed("listening on").splitlines()
    assert all("event" in json.loads(line) for line in lines if line)


@pytest.mark.parametrize("link", ["invite", "link"])
async def test_a_sign_in_link_stands_alone(tmp_path: Path, link: str) -> None:
    """The link is a whole line, and what follows it is for people."""
    site = await make_site(tmp_path, [model("only", [_NOBODY])])
    await site.run("people", "invite", "ada@example.com")
    with _at_terminal(site, "people", link, "ada@example.com") as until_printed:
        lines = until_printed("link works on other machines").splitlines()
    assert lines[0].startswith("http")
    assert " " not in lines[0]
    assert not [line for line in lines if line.startswith("{")]
