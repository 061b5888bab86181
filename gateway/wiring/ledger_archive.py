"""Wiring of months that go into files by themselves: a child of the lowest priority, so that no interpreter is shared with it."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.ledger.archive_config import ArchiveConfig
from cost.ledger.archive_rounds import ArchiveFailed, ArchiveRounds, ArchiveRun
from cost.ledger.shared_turn import Checked
from gateway.configuration.gateway_config import GatewayConfig
from gateway.low_priority_thread import NICENESS
from proxy.shared.background_tasks import background, every
from weighbridge._own import module

_LOOK_S: Final = 60.0
_MOST_TOLD: Final = 2_000
_END_S: Final = 5.0


def keep_archive(
    engine: AsyncEngine,
    live_config: Callable[[], GatewayConfig],
    config_path: Path | None,
    tell: Callable[[Checked], None],
    stack: contextlib.AsyncExitStack,
) -> None:
    """Archive what `cost.archive` says until the stack closes."""
    rounds = ArchiveRounds(
        engine, lambda: live_config().cost.archive, lambda rule: run_archive(rule, config_path), tell
    )
    background(stack, every(_LOOK_S, rounds.look))


async def run_archive(rule: ArchiveConfig, config_path: Path | None) -> ArchiveRun:
    """Run the command in a child, and return what it came to. Raises ArchiveFailed. Cancelled, it ends the child."""
    where = [] if config_path is None else ["--config", str(config_path)]
    command = ["ledger", "archive", "--keep-months", str(rule.keep_months), "--to", rule.to, "--json", *where]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *module("gateway.cli"),
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
    try:
        out, err = await process.communicate()
    finally:
        if process.returncode is None:
            # What it was at is gone on with by the next one.
            process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _END_S)
            if process.returncode is None:
                process.kill()
    try:
        return msgspec.json.decode(out, type=ArchiveRun)
    except msgspec.DecodeError:
        said = err.decode(errors="replace").strip()[-_MOST_TOLD:] or f"it ended with status {process.returncode}"
        raise ArchiveFailed(said) from None
