"""The table of docs/references.md, computed from recorded figures.

    python -m benchmarks.references [--measure]

Figures are those of docs/benchmarks.md, of `weighbridge selfhosted plan --users 10000 --team-peak 2000 --think-time 30`, and of
`--measure`: how many ledger rows a second reach PostgreSQL with their roll-ups.
"""

import argparse
import asyncio
import math
import os
import time
from collections.abc import Iterable
from typing import Final

import msgspec

from cost.ledger.store import LedgerStore
from gateway.database import make_engine
from tests.cost.entries import reserve, settle
from tests.postgres import postgres_binaries, running_postgres

WORKER_QPS: Final = 5_096
"""Whole answers a second of one worker on a core (docs/benchmarks.md, Results)."""
WORKER_STREAMS: Final = 5_000
"""Streams at once of one worker (docs/benchmarks.md: 10,000 callers on 2 workers)."""
STREAM_KIB: Final = 31
WORKER_MB, CONTROL_MB, SUPERVISOR_MB = 175, 200, 100
"""At rest (docs/deployment.md, Processes)."""
LEDGER_ROWS: Final = 2_429
"""A second into PostgreSQL 15, batches of 2,000, roll-ups included; 2026-11-30, two cores at a load of 14, without fsync."""
ROWS_A_REQUEST: Final = 2
"""A reservation and its settlement; each further attempt has two more."""
USE: Final = 0.5
"""Part of what was measured that is planned with."""
CORE_USD_HOUR: Final = 0.05
"""A core with 4 GB, made up; yours differs."""
HOURS: Final = 8_760
USERS, USERS_QPS, ANSWER_S = 10_000, 234.2, 12.7
"""What the planner says of them."""
GPUS_USD_YEAR: Final = 1_405_291.71
GOAL_QPS: Final = 100_000


class Reference(msgspec.Struct, frozen=True):
    """One of the three sizes."""

    name: str
    hosts: int
    workers: int
    """Of a host."""
    databases: int
    lost: int
    """Hosts that may be away with all of the load still carried."""

    @property
    def serving_workers(self) -> int:
        return (self.hosts - self.lost) * self.workers

    @property
    def gateways_qps(self) -> int:
        """Requests a second by the workers' processors."""
        return int(self.serving_workers * WORKER_QPS * USE)

    @property
    def books_qps(self) -> int:
        """Requests a second by what the databases take."""
        return int(self.databases * LEDGER_ROWS * USE / ROWS_A_REQUEST)

    @property
    def qps(self) -> int:
        return min(self.gateways_qps, self.books_qps)

    @property
    def streams(self) -> int:
        return int(self.serving_workers * WORKER_STREAMS * USE)

    @property
    def host_mb(self) -> int:
        """Memory of one host with as many streams as it may have."""
        return int(SUPERVISOR_MB + CONTROL_MB + self.workers * (WORKER_MB + WORKER_STREAMS * USE * STREAM_KIB / 1024))

    @property
    def hosts_usd_year(self) -> int:
        """A core for each worker, and one for control plane and drain."""
        return round(self.hosts * (self.workers + 1) * CORE_USD_HOUR * HOURS)


REFERENCES: Final = (
    Reference("one box", hosts=1, workers=2, databases=1, lost=0),
    Reference("two hosts and a pool", hosts=2, workers=4, databases=1, lost=1),
    Reference("two regions", hosts=4, workers=4, databases=2, lost=2),
)


def table() -> str:
    """As it stands on the page."""
    heads = ("", *(each.name for each in REFERENCES))
    rows: Iterable[tuple[str, Iterable[str]]] = (
        ("hosts, workers of each", (f"{each.hosts}, {each.workers}" for each in REFERENCES)),
        ("hosts that may be away", (str(each.lost) for each in REFERENCES)),
        ("requests/s, gateways", (f"{each.gateways_qps:,}" for each in REFERENCES)),
        ("requests/s, books", (f"{each.books_qps:,}" for each in REFERENCES)),
        (f"of that {USERS:,} users take", (f"{USERS_QPS / each.qps:.0%}".replace("%", " %") for each in REFERENCES)),
        ("streams at once", (f"{each.streams:,}" for each in REFERENCES)),
        ("memory of a host, MB", (f"{each.host_mb:,}" for each in REFERENCES)),
        ("gateway hosts, a year", (f"${each.hosts_usd_year:,}" for each in REFERENCES)),
    )
    lines = [heads, ("---",) * len(heads), *((name, *cells) for name, cells in rows)]
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)


def goal() -> str:
    """Return the sentence of the page on 100,000 requests a second."""
    workers = math.ceil(GOAL_QPS / (WORKER_QPS * USE))
    databases = math.ceil(GOAL_QPS * ROWS_A_REQUEST / (LEDGER_ROWS * USE))
    rows = GOAL_QPS * ROWS_A_REQUEST
    return f"{workers} workers, {rows:,} ledger rows a second, {databases} databases of the measured kind"


async def measure(rows: int = 20_000, batch: int = 2_000) -> float:
    """Return the ledger rows a second that PostgreSQL takes, with roll-ups, from one writer."""
    binaries = postgres_binaries()
    if binaries is None:
        raise SystemExit("there is no PostgreSQL here")
    with running_postgres(binaries) as server:
        engine = make_engine(await server.database())
        store = LedgerStore(engine)
        entries = [make(f"req_{number:09}") for number in range(rows // 2) for make in (reserve, settle)]
        began = time.perf_counter()
        for first in range(0, rows, batch):
            await store.insert(entries[first : first + batch])
        took_s = time.perf_counter() - began
        await engine.dispose()
    return rows / took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true", help="write ledger rows for some seconds")
    if parser.parse_args().measure:
        print(f"load {os.getloadavg()[0]:.1f}: {asyncio.run(measure()):,.0f} ledger rows a second")
    print(f"{table()}\n\n{GOAL_QPS:,} requests a second: {goal()}")


if __name__ == "__main__":
    main()
