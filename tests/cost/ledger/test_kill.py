"""A kill -9 at any moment loses no booking and makes none twice."""

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from sqlalchemy import text

from cost.ledger.journal import Journal
from cost.ledger.ledger import Ledger
from cost.ledger.segments import boots
from cost.ledger.store import LedgerStore
from gateway.database import make_engine
from tests.cost.entries import reserve
from tests.cost.ledger.verified import verify

ROUNDS = 3
PROCESSES = 2


class Booking:
    """A child that books until it is killed."""

    def __init__(self, url: str, journal: Path, name: str, seed: int, sync: str) -> None:
        command = [sys.executable, "-m", "tests.cost.ledger.booking_child", url, str(journal), name, str(seed), sync]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3])
        self._told = b""

    def wait_for(self, reserves: int) -> None:
        """Returns once the child told of so many reserves."""
        assert self._process.stdout is not None
        while self._told.count(b"\n") < reserves:
            more = os.read(self._process.stdout.fileno(), 65_536)
            assert more, "the child ended by itself"
            self._told += more

    def kill(self) -> set[str]:
        """The reserves that had returned in the child when it died."""
        self._process.kill()
        rest, _ = self._process.communicate()
        whole, _, _ = (self._told + rest).rpartition(b"\n")
        return set(whole.decode().split())


def _book_and_kill(url: str, journal: Path, sync: str) -> set[str]:
    """Pairs of processes that are killed at random moments; each pair recovers the one before, and races for it."""
    chance = random.Random(2026)
    told: set[str] = set()
    for number in range(ROUNDS):
        children = [
            Booking(url, journal, f"{number}-{place}", chance.randrange(10**6), sync) for place in range(PROCESSES)
        ]
        for child in children:
            child.wait_for(chance.randrange(1, 500))
        for child in children:
            told |= child.kill()
    return told


@pytest.mark.parametrize(
    ("backend", "sync"), [("sqlite", "process"), ("sqlite", "power"), ("postgresql", "process")], indirect=["backend"]
)
async def test_a_kill_loses_nothing_and_doubles_nothing(database_url: str, tmp_path: Path, sync: str) -> None:
    """Each reserve that returned is in the database once, and exactly one entry closes it."""
    journal = tmp_path / "journal"
    told = _book_and_kill(database_url, journal, sync)
    engine = make_engine(database_url)
    ledger = Ledger(Journal(journal), LedgerStore(engine))
    await ledger.start()
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
    assert boots(journal) == [ledger.boot_id]
    at_us = reserve().at_us
    # The made-up settlements have no meters; of all else the books agree.
    assert {each.column for each in await verify(engine, at_us, at_us + 1)} == {"sum of meters"}
    await ledger.aclose()
    await engine.dispose()
