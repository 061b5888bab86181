"""A process that writes entries of one team as fast as it can, some of them the same as its siblings write.

Run as `python -m tests.cost.ledger.writing_child DATABASE_URL PLACE BATCHES BATCH`; it waits for a line on standard input.
"""

import asyncio
import contextlib
import random
import sys

from sqlalchemy.exc import OperationalError

from cost.ledger.entries import Entry
from cost.ledger.store import LedgerStore
from gateway.database import make_engine
from tests.cost.entries import reserve, settle

KEYS = 5


def attempt(name: str, number: int) -> list[Entry]:
    """A reserve and its end, of one team, one hour and one of a few keys."""
    key_id = f"key_{number % KEYS}"
    done = settle(name, key_id=key_id, input_nanousd=600_000, output_nanousd=400_000, served=True)
    return [reserve(name, key_id=key_id), done]


def batches_of(place: int, batches: int, size: int) -> list[list[Entry]]:
    """What one process writes: half of each batch its own, half shared by all, in an order of its own."""
    chance = random.Random(place)
    found = []
    for batch in range(batches):
        own = [each for n in range(size // 4) for each in attempt(f"own-{place}-{batch}-{n}", n)]
        shared = [each for n in range(size // 4) for each in attempt(f"shared-{batch}-{n}", n)]
        found.append(chance.sample([*own, *shared], len(own) + len(shared)))
    chance.shuffle(found)
    return found


async def main(url: str, place: int, batches: int, size: int) -> None:
    engine = make_engine(url)
    store = LedgerStore(engine)
    work = batches_of(place, batches, size)
    print("ready", flush=True)  # noqa: T201  The parent waits for it.
    sys.stdin.readline()
    for batch in work:
        while True:
            # SQLite has one writer at a time, and may keep one waiting for too long. PostgreSQL may not fail.
            with contextlib.suppress(*([OperationalError] if engine.dialect.name == "sqlite" else [])):
                await store.insert(batch)
                break
    await engine.dispose()


if __name__ == "__main__":
    _, address, *numbers = sys.argv
    asyncio.run(main(address, *map(int, numbers)))
