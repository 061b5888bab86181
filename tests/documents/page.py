"""A document's commands, run as its reader would: block by block in one shell, with what each prints beside what the page shows."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from tests.processes import ROOT

_FENCED: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LIMIT_S: Final = 180
_END: Final = "weighbridge-block-ended"


class Block(msgspec.Struct, frozen=True):
    """What stands between fences, and its language."""

    language: str
    text: str


def blocks(page: Path, names: Mapping[str, str]) -> list[Block]:
    """Return a page's fenced blocks. What it calls by the `names` is called as this machine has it."""
    text = page.read_text()
    assert all(name in text for name in names)
    for name, here in names.items():
        text = text.replace(name, here)
    return [Block(language, inner) for language, inner in _FENCED.findall(text)]


def fits(printed: str, shown: str) -> bool:
    """Whether this was printed: `…` stands for something within a line."""
    pattern = r"[^\n]+?".join(re.escape(part) for part in shown.strip().split("…"))
    return re.fullmatch(pattern, printed.strip()) is not None


class Shell:
    """A shell that keeps its variables, folder and children from block to block."""

    def __init__(self, process: "asyncio.subprocess.Process") -> None:
        self._process = process

    async def run(self, commands: str) -> str:
        """Run a block, and return what it printed. A command that fails ends the test."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        # As one compound command: what the commands read is not the shell's own input.
        stdin.write(f"{{\n{commands}\n}} </dev/null\necho {_END}\n".encode())
        await stdin.drain()
        printed = ""
        async with asyncio.timeout(_LIMIT_S):
            while not printed.endswith(f"{_END}\n"):
                line = (await stdout.readline()).decode()
                assert line, f"a command failed in\n{commands}\n{printed}"
                printed += line
        return printed.removesuffix(f"{_END}\n")


@contextlib.asynccontextmanager
async def shell(folder: Path, *, first: str = "", **variables: str) -> AsyncIterator[Shell]:
    """A shell in a folder, whose `weighbridge` is this tree's, or one that stands `first`; what it started is gone at the end."""
    environ = {
        "PATH": f"{first}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "COLUMNS": "200",
        "OMP_NUM_THREADS": "1",
        **variables,
    }
    process = await asyncio.create_subprocess_exec(
        "bash",
        "--norc",
        "-e",
        "-o",
        "pipefail",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=folder,
        env=environ,
        start_new_session=True,
    )
    try:
        yield Shell(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
