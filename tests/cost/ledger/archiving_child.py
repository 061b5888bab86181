"""Processes that archive or restore April and are killed at their n-th step.

`python -m tests.cost.ledger.archiving_child DATABASE_URL FOLDER` imports what they need once, and forks one for each line
`archive|restore STEP NOW_US` that it reads. A step is a flush of a file to the disk, or a transaction: before it begins, before it commits, and
after. It says `killed`, `done` if the process ended before, or `failed`.
"""

import asyncio
import os
import signal
import sys
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncConnection

from cost.ledger.archive_files import Codec
from cost.ledger.archiving import Archiving
from gateway.database import make_engine
from gateway.ledger_places import FolderPlace
from tests.cost.ledger.test_archiving import APRIL, no_rest

_MOST: Final = 5
"""Entries of a file beside their reserves."""


class Steps:
    """Counts them, and is killed at one."""

    def __init__(self, last: int) -> None:
        self._left = last

    def step(self) -> None:
        """One step."""
        self._left -= 1
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)


class SteppingArchiving(Archiving):
    """One whose transactions are steps."""

    steps: Steps

    @asynccontextmanager
    async def _turn(self, month_us: int) -> AsyncIterator[AsyncConnection]:
        self.steps.step()
        async with super()._turn(month_us) as connection:
            yield connection
            self.steps.step()
        self.steps.step()


async def main(url: str, folder: Path, what: str, last: int, now_us: int) -> None:
    engine, steps, flush = make_engine(url), Steps(last), os.fsync

    def fsync(file: Any) -> None:
        steps.step()
        flush(file)

    os.fsync = fsync  # type: ignore[assignment]
    work = SteppingArchiving(engine, FolderPlace(folder), Codec(), now_us=lambda: now_us, rest=no_rest, most=_MOST)
    work.steps = steps
    await (work.archive(APRIL) if what == "archive" else work.restore(APRIL))
    await engine.dispose()


def end_of(url: str, folder: Path, order: str) -> str:
    """How a process with this order ended."""
    what, last, now_us = order.split()
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(main(url, folder, what, int(last), int(now_us)))
        except BaseException:  # noqa: BLE001 - a process that was forked never goes on as the one that it was
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, ended = os.waitpid(pid, 0)
    return {0: "done", -signal.SIGKILL: "killed"}.get(os.waitstatus_to_exitcode(ended), "failed")


if __name__ == "__main__":
    for line in sys.stdin:
        sys.stdout.write(f"{end_of(sys.argv[1], Path(sys.argv[2]), line)}\n")
        sys.stdout.flush()
