"""State of the gateway's stores: database, Redis, journal, the ledger check, and waiting webhook messages."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import func, select, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlmodel import col

from accounts.keys import Pepper
from accounts.store import AccountStore
from accounts.unverified_keys import unverified
from api.live.workers import WorkersNow
from api.webhooks.tables import WebhookMessage
from cost.ledger.drain import Drain
from cost.tables import Boot, LedgerCheck
from cost.times import wall_us
from proxy.admin.worker_report import RedisState

PATIENCE_S: Final = 1.0
_MOST_PROCESSES: Final = 200


async def database(engine: AsyncEngine, clock: Callable[[], float] = time.monotonic) -> dict[str, Any]:
    """Return the reachability, latency, schema and size. The address is given without user and password."""
    url = engine.url
    told: dict[str, Any] = {
        "kind": "PostgreSQL" if engine.dialect.name == "postgresql" else "SQLite",
        "place": f"{url.host}/{url.database}"  # The hosts, each with the port that the address names.
        if url.host
        else url.database or "memory",
        "answers": False,
        "took_s": None,
        "schema": None,
        "bytes": None,
        "problem": None,
    }
    begun = clock()
    try:
        async with asyncio.timeout(PATIENCE_S), engine.connect() as connection:
            await connection.execute(text("SELECT 1"))
            told["took_s"] = clock() - begun
            told["schema"] = await connection.scalar(text("SELECT version_num FROM alembic_version"))
            told["bytes"] = int(await connection.scalar(text(_SIZES[engine.dialect.name])) or 0)
            told["answers"] = True
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        # The driver's message may hold the address.
        told["problem"] = (
            f"no answer within {PATIENCE_S:.0f} s" if isinstance(error, TimeoutError) else type(error).__name__
        )
    return told


_SIZES: Final[Mapping[str, str]] = {
    "postgresql": "SELECT pg_database_size(current_database())",
    "sqlite": "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()",
}


def redis(state: RedisState | None) -> dict[str, Any]:
    """Return the state of the shared counters. Without Redis, or while it is down, each process applies its own share
    of a limit.
    """
    if state is None:
        return {"configured": False, "answers": False, "place": None, "live": None, "problem": None}
    return {
        "configured": True,
        "answers": state.healthy,
        "place": state.place,
        "live": state.live if state.healthy else None,
        "problem": None if state.healthy else state.problem or "not reached yet",
    }


def journal(workers: WorkersNow, drain: Drain) -> dict[str, Any]:
    """Return the entries of this host's workers that are not yet in the database, and failures of the books since they
    began.
    """
    states, counts = [each.journal for each in workers.reports], drain.counts
    return {
        "accepting": all(each.accepting for each in states),
        "waiting": sum(each.depth for each in states),
        "oldest_s": max((each.oldest_age_s for each in states), default=0.0),
        "write_failures": sum(each.write_failures for each in states),
        "unwritten": sum(each.unwritten for each in states),
        "database_failures": counts.failures,
        "unbooked": counts.unbooked,
        "orphans_settled": counts.orphans,
        "damaged_lines": counts.damaged,
        "settle_failures": sum(each.settle_failures for each in workers.reports),
    }


async def keys(engine: AsyncEngine, peppers: Sequence[Pepper]) -> dict[str, Any]:
    """Return a sentence about keys that no pepper here verifies, if there are any."""
    return {"unverified": unverified(await AccountStore(engine).keys_by_pepper(), peppers)}


async def in_database(engine: AsyncEngine, boot_id: str, now_us: int | None = None) -> dict[str, Any]:
    """Return facts that all processes write to the database: their heartbeats, the ledger check, and waiting messages."""
    now = wall_us() if now_us is None else now_us
    boots = select(col(Boot.boot_id), col(Boot.host), col(Boot.started_us), col(Boot.seen_us))
    waits = col(WebhookMessage.next_try_us).is_not(None)
    async with engine.connect() as connection:
        processes = (await connection.execute(boots.order_by(col(Boot.seen_us).desc()).limit(_MOST_PROCESSES))).all()
        checked = (await connection.execute(select(col(LedgerCheck.done_us), col(LedgerCheck.differences)))).first()
        waiting = select(func.min(col(WebhookMessage.created_us)), func.count()).where(waits)
        messages: Any = (await connection.execute(waiting)).one()
    return {
        "processes": [
            {
                "boot_id": found,
                "host": host,
                "started_us": int(started_us),
                "seen_us": int(seen_us),
                "is_this": found == boot_id,
                "silent_s": max(0.0, (now - seen_us) / 1_000_000),
            }
            for found, host, started_us, seen_us in processes
        ],
        "books_check": {
            "done_us": int(checked[0]) if checked is not None and checked[0] else None,
            "differences": int(checked[1]) if checked is not None and checked[0] else None,
        },
        "webhooks": {"waiting": messages[1], "oldest_us": messages[0]},
    }
