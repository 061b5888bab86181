"""The lines of batches that one process claims and answers a second, with many rows in the database.

`python -m benchmarks.batch_claims` takes SQLite in a temporary folder; `--database postgresql://…` an empty database. It adds
batches of 50,000 lines until there are `--lines` of them, then claims and answers some of them in the groups that a runner takes.
"""

import argparse
import asyncio
import resource
import tempfile
import time
from pathlib import Path
from typing import Final

from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.database import make_engine, migrate
from proxy.batch.batch import LineResult, NewBatch, NewLine
from proxy.batch.prefetch import MOST_AHEAD
from proxy.batch.store import BatchStore
from proxy.shared.database_clock import DatabaseTime

_LINES_OF_ONE: Final = 50_000
_ADDED_AT_ONCE: Final = 1_000
_LEASE_US: Final = 60_000_000
_BODY: Final = b'{"choices":[{"message":{"role":"assistant","content":"' + b"x" * 1_000 + b'"}}]}'


async def _filled(store: BatchStore, lines: int) -> list[str]:
    """Make batches in progress with this many lines together; return their ids."""
    found = []
    for _ in range(max(1, lines // _LINES_OF_ONE)):
        count = min(lines, _LINES_OF_ONE)
        new = NewBatch(
            organisation_id="default",
            team_id="team_a",
            key_id="key_1",
            endpoint="/v1/chat/completions",
            input_file_id="file-1",
            completion_window="24h",
        )
        batch = await store.create(new)
        assert await store.take(("validating",), "bench", _LEASE_US) is not None
        for start in range(0, count, _ADDED_AT_ONCE):
            some = range(start, min(count, start + _ADDED_AT_ONCE))
            await store.add_lines(
                batch.batch_id,
                [
                    NewLine(number=each + 1, place=each, custom_id=f"c{each}", start=each * 300, size=300, tokens=400)
                    for each in some
                ],
            )
        await store.start_lines(
            batch.batch_id, "bench", total=count, tokens=count * 400, model="m", bound_nanousd=None, reserved_nanousd=0
        )
        found.append(batch.batch_id)
    return found


async def _measured(engine: AsyncEngine, lines: int, worked: int, group: int) -> None:
    store = BatchStore(engine, DatabaseTime(engine))
    began = time.perf_counter()
    batches = await _filled(store, lines)
    filled_s = time.perf_counter() - began
    print(f"{lines:,} lines added in {filled_s:.1f} s: {lines / filled_s:,.0f} a second")
    claimed = []
    claim_s = answer_s = 0.0
    for number in range(worked // group):
        began = time.perf_counter()
        some = await store.claim(batches[number % len(batches)], group, "bench", _LEASE_US)
        claim_s += time.perf_counter() - began
        began = time.perf_counter()
        results = [LineResult(line=each, request_id=f"req_{each.number}", status=200, body=_BODY) for each in some]
        await store.answer(results)
        answer_s += time.perf_counter() - began
        claimed += some
    print(f"{len(claimed):,} lines in groups of {group}:")
    print(f"  claimed  {len(claimed) / claim_s:,.0f} a second")
    print(f"  answered {len(claimed) / answer_s:,.0f} a second, with {len(_BODY):,} bytes each")
    began = time.perf_counter()
    await store.live()
    print(f"  a look at what is in progress: {(time.perf_counter() - began) * 1_000:.1f} ms")
    print(f"  memory at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024:.0f} MB")


async def _run(url: str, lines: int, worked: int, group: int) -> None:
    engine = make_engine(url)
    try:
        await migrate(engine)
        await _measured(engine, lines, worked, group)
    finally:
        await engine.dispose()


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", help="An empty PostgreSQL database; SQLite when not given.")
    parser.add_argument("--lines", type=int, default=50_000, help="Lines in the database.")
    parser.add_argument("--worked", type=int, default=10_000, help="Lines to claim and to answer.")
    parser.add_argument("--group", type=int, default=MOST_AHEAD, help="Lines that one claim takes.")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="weighbridge-batch-") as folder:
        url = given.database or f"sqlite:///{Path(folder) / 'bench.sqlite'}"
        asyncio.run(_run(url, given.lines, given.worked, given.group))


if __name__ == "__main__":
    main()
