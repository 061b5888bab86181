"""A process that books without end until it is killed, and tells each reserve that returned.

Run as `python -m tests.cost.ledger.booking_child JOURNAL_FOLDER NAME SEED SYNC`.
"""

import asyncio
import os
import random
import sys
from pathlib import Path
from typing import Literal, cast

from cost.ledger.journal import Journal
from cost.ledger.ledger import Ledger
from tests.cost.entries import reserve, settle

_CONCURRENCY = 4


async def _book(ledger: Ledger, request_id: str, chance: random.Random) -> None:
    await ledger.reserve(reserve(request_id, boot_id=ledger.boot_id))
    # One write of a short line is not torn, so whoever reads it may rely on it.
    os.write(sys.stdout.fileno(), f"{request_id}\n".encode())
    await asyncio.sleep(chance.random() * 0.04)
    if chance.random() < 0.8:
        ledger.settle(settle(request_id, boot_id=ledger.boot_id))
    await asyncio.sleep(chance.random() * 0.002)


async def main(folder: Path, name: str, seed: int, sync: Literal["process", "power"]) -> None:
    chance = random.Random(seed)
    ledger = Ledger(Journal(folder, sync=sync, segment_bytes=20_000), look_every_s=0.02)
    await ledger.start()

    async def book_on(lane: int) -> None:
        number = 0
        while True:
            await _book(ledger, f"{name}-{lane}-{number}", chance)
            number += 1

    await asyncio.gather(*(book_on(lane) for lane in range(_CONCURRENCY)))


if __name__ == "__main__":
    _, folder, name, seed, sync = sys.argv
    asyncio.run(main(Path(folder), name, int(seed), cast("Literal['process', 'power']", sync)))
