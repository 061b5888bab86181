"""Batches that will miss their guarantee or have missed it, and those whose lines fail, for the snapshot of operations."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from api.live.recent import FAILING
from cost.times import MINUTE_US
from proxy.batch.batch import WINDOW_US, Batch
from proxy.batch.batch_parts import BatchTier
from proxy.batch.estimate import tokens_per_s
from proxy.batch.store import BatchStore

ENDED_US: Final = 10 * MINUTE_US
"""The time after its end for which a batch is still told."""
_ENOUGH: Final = 20
_PATIENCE_S: Final = 2.0
_FAILS: Final = (SQLAlchemyError, OSError, TimeoutError)


class IllBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch with what is wrong with it."""

    batch_id: str
    organisation_id: str
    team_id: str
    model: str
    window: str
    total: int
    done: int
    expired: int
    """Lines that were not answered in time."""
    late: int
    """Lines that will not be, at the measured speed."""
    late_s: float
    """Seconds by which all of its lines would be late at that speed."""
    failed: int
    """Lines that failed for another reason than what they ask."""
    since_us: int | None


async def ill_batches(tier: BatchTier | None) -> list[dict[str, Any]]:
    """Return the batches that something is wrong with, as plain values; none while the database does not answer."""
    if tier is None:
        return []
    try:
        async with asyncio.timeout(_PATIENCE_S):
            return [msgspec.to_builtins(each) for each in await read_ill(tier.batches)]
    except _FAILS:
        return []


async def read_ill(store: BatchStore) -> list[IllBatch]:
    """Return the batches that something is wrong with."""
    now_us = store.now_us()
    live, ended = await store.live(), await store.ended_since(now_us - ENDED_US)
    if not live and not ended:
        return []
    speed = tokens_per_s(await store.recent_work())
    late = will_be_late(live, speed, now_us)
    suspects = [each for each in (*live, *ended) if _many(each.failed, each.completed + each.failed, each.total)]
    failed = await store.failed_by_others([each.batch_id for each in suspects])
    found = []
    for each in (*live, *ended):
        expired = each.left if each.status == "expired" else 0
        lines, late_s = late.get(each.batch_id, (0, 0.0))
        done = each.completed + each.failed
        ill = failed.get(each.batch_id, 0)
        ill = ill if _many(ill, done, each.total) else 0
        if expired or lines or ill:
            found.append(
                IllBatch(
                    batch_id=each.batch_id,
                    organisation_id=each.organisation_id,
                    team_id=each.team_id,
                    model=each.model or "",
                    window=each.completion_window,
                    total=each.total,
                    done=done,
                    expired=expired,
                    late=lines,
                    late_s=late_s,
                    failed=ill,
                    since_us=each.expired_us if expired else None,
                )
            )
    return found


def will_be_late(live: Sequence[Batch], speed: float | None, now_us: int) -> dict[str, tuple[int, float]]:
    """Return by id the lines that will not be answered before the deadline, and the seconds by which all of them would be late.

    What is due earlier goes before. Without a measured speed nothing is foretold.
    """
    found: dict[str, tuple[int, float]] = {}
    ahead = 0
    due = [each for each in live if each.expires_us is not None and WINDOW_US[each.completion_window] is not None]
    for each in sorted(due, key=lambda one: (one.expires_us or 0, one.batch_id)):
        before, ahead = ahead, ahead + each.tokens_left
        if not speed or not each.tokens_left:
            continue
        left_s = ((each.expires_us or 0) - now_us) / 1_000_000
        late_s = ahead / speed - left_s
        in_time = max(0.0, left_s * speed - before) / each.tokens_left
        lines = each.left - int(each.left * min(1.0, in_time))
        if late_s > 0 and lines:
            found[each.batch_id] = (lines, late_s)
    return found


def _many(failed: int, done: int, total: int) -> bool:
    return failed > 0 and done >= min(_ENOUGH, total) and failed >= FAILING * done
