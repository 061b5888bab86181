"""A process that archives or restores April and stands still at its n-th step, to be killed there.

Run as `python -m tests.cost.ledger.archiving_child DATABASE_URL FOLDER archive|restore STEP NOW_US`. A step is a flush of a file to the
disk, or a transaction: before it begins, before it commits, and after. Says `at STEP`, or `done` if it ended before.
"""

import asyncio
import os
import sys
import time
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
    """Counts them, and stands still at one."""

    def __init__(self, last: int) -> None:
        self._left = last

    def step(self) -> None:
        """One step."""
        self._left -= 1
        if not self._left:
            os.write(sys.stdout.fileno(), b"at\n")
            time.sleep(600)


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
    os.write(sys.stdout.fileno(), b"done\n")


if __name__ == "__main__":
    _, url, folder, what, last, now_us = sys.argv
    asyncio.run(main(url, Path(folder), what, int(last), int(now_us)))
