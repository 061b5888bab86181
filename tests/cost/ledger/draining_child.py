"""A process that drains a folder of journals until it is killed, and tells with a line when it began.

Run as `python -m tests.cost.ledger.draining_child DATABASE_URL JOURNAL_FOLDER`.
"""

import asyncio
import sys
from pathlib import Path

from cost.ledger.drain import Drain
from cost.ledger.store import LedgerStore
from gateway.database import make_engine


async def main(url: str, folder: Path) -> None:
    drain = Drain(folder, LedgerStore(make_engine(url)), interval_s=0.01, batch=50, recover_every_s=0.05)
    await drain.start()
    print("draining", flush=True)  # noqa: T201  The parent waits for it.
    await asyncio.Event().wait()


if __name__ == "__main__":
    _, address, journals = sys.argv
    asyncio.run(main(address, Path(journals)))
