"""A kill -9 at any moment, of who books, of who drains, or of both, loses no booking and makes none twice."""

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from sqlalchemy import text

from cost.ledger.drain import Drain
from cost.ledger.segments import boots
from cost.ledger.store import LedgerStore
from gateway.database import make_engine
from tests.cost.entries import reserve
from tests.cost.ledger.verified import verify

ROUNDS = 3
PROCESSES = 2


class Child:
    """A process that tells lines until it is killed."""

    def __init__(self, module: str, *arguments: object) -> None:
        command = [sys.executable, "-m", f"tests.cost.ledger.{module}", *map(str, arguments)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3])
        self._told = b""

    def wait_for(self, lines: int) -> None:
        """Returns once the child told of so many."""
        assert self._process.stdout is not None
        while self._told.count(b"\n") < lines:
            more = os.read(self._process.stdout.fileno(), 65_536)
            assert more, "the child ended by itself"
            self._told += more

    def kill(self) -> set[str]:
        """The lines that the child had told when it died."""
        self._process.kill()
        rest, _ = self._process.communicate()
        whole, _, _ = (self._told + rest).rpartition(b"\n")
        return set(whole.decode().split())


def _book_and_kill(url: str, journal: Path, sync: str) -> set[str]:
    """Processes that book and one that drains, killed at random moments, in any order, and followed by others.

    The one that drains is killed more often: each follows its predecessor in the middle of a journal.
    """
    chance = random.Random(2026)
    told: set[str] = set()
    drain = Child("draining_child", url, journal)
    for number in range(ROUNDS):
        children = [
            Child("booking_child", journal, f"{number}-{place}", chance.randrange(10**6), sync)
            for place in range(PROCESSES)
        ]
        for child in children:
            child.wait_for(chance.randrange(1, 100))
            if chance.random() < 0.7:
                drain.kill()
                drain = Child("draining_child", url, journal)
            drain.wait_for(1)
            child.wait_for(chance.randrange(100, 200))
        for child in children:
            told |= child.kill()
    drain.kill()
    return told


@pytest.mark.long
@pytest.mark.parametrize(
    ("backend", "sync"), [("sqlite", "process"), ("sqlite", "power"), ("postgresql", "process")], indirect=["backend"]
)
async def test_a_kill_loses_nothing_and_doubles_nothing(database_url: str, tmp_path: Path, sync: str) -> None:
    """Each reserve that returned is in the database once, and exactly one entry closes it."""
    journal = tmp_path / "journal"
    told = _book_and_kill(database_url, journal, sync)
    engine = make_engine(database_url)
    drain = Drain(journal, LedgerStore(engine))
    await drain.start()
    async with engine.connect() as connection:
        found = await connection.execute(
            text("SELECT request_id, attempt, entry, usage_source, flags FROM ledger_entry")
        )
        rows = found.all()
    reserves = Counter(row.request_id for row in rows if row.entry == "reserve")
    closings = Counter(row.request_id for row in rows if row.entry != "reserve")
    assert told
    assert told <= set(reserves)
    assert reserves == closings
    assert set(closings.values()) == {1}
    orphans = [row for row in rows if "orphaned" in row.flags]
    assert orphans
    assert all(row.usage_source == "estimated" for row in orphans)
    assert boots(journal) == []
    at_us = reserve().at_us
    # The made-up settlements have no meters; of all else the books agree.
    assert {each.column for each in await verify(engine, at_us, at_us + 1)} == {"sum of meters"}
    await drain.aclose()
    await engine.dispose()
