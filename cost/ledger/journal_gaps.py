"""Gaps between journals and the ledger: entries that were in a database once, and are in neither now.

They come of a database that was restored from a backup without the journals' older files. A gap that the drain finds is kept in
a file beside the journals, until a person has looked at it and deletes the file; the others are found by looking.
"""

import time
from pathlib import Path
from typing import Final

import msgspec
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.ledger.journal_places import read_absent, read_places
from cost.ledger.segments import Drained, journals, missing_lines, read_drained

_SEEN_LATELY_US: Final = 120_000_000
_MOST_LISTED: Final = 1_000


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """Entries of one process's journal that are nowhere."""

    boot_id: str
    entries: int | None
    """None where the whole journal is gone, and nobody can count."""
    at_us: int
    """When it was found; of a journal that is gone, when its process was last seen."""


def gaps_path(directory: Path) -> Path:
    """Return the file of the gaps that the drain has found, for a person to look at."""
    return directory / "missing.log"


def note_missing(directory: Path, boot_id: str, entries: int, at_s: float) -> None:
    """Add a gap to the file. Raises OSError."""
    gap = Gap(boot_id=boot_id, entries=entries, at_us=int(at_s * 1_000_000))
    with gaps_path(directory).open("ab") as file:
        file.write(msgspec.json.encode(gap) + b"\n")


async def find_gaps(engine: AsyncEngine, directory: Path, host: str, *, now_us: int | None = None) -> list[Gap]:
    """Return the gaps of this host's journals, at most 1,000: those noted, and those that the drain is yet to find."""
    now_us = time.time_ns() // 1_000 if now_us is None else now_us
    found = _noted(directory)
    # The files first: the database is never behind what they say.
    here = {boot_id: read_drained(directory, boot_id) for boot_id in journals(directory)}
    places = await read_places(engine)
    for boot_id, told in here.items():
        if lost := missing_lines(directory, boot_id, places.get(boot_id, Drained()), told):
            found.append(Gap(boot_id=boot_id, entries=lost, at_us=now_us))
    absent = await read_absent(engine, set(here), host, now_us - _SEEN_LATELY_US)
    found += [Gap(boot_id=each.boot_id, entries=None, at_us=each.seen_us) for each in absent]
    return found[:_MOST_LISTED]


def _noted(directory: Path) -> list[Gap]:
    try:
        with gaps_path(directory).open("rb") as file:
            return [msgspec.json.decode(line, type=Gap) for line, _ in zip(file, range(_MOST_LISTED), strict=False)]
    except FileNotFoundError:
        return []
