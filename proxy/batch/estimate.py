"""When a batch will be done, from the measured speed of what was done before. Pure but for its one reader."""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from proxy.batch.batch import Batch
from proxy.batch.store import BatchStore, Worked

Basis = Literal["done", "measured speed", "deadline", "unknown"]
"""What an estimate stands on: the batch has ended, a measured speed, only the promise, or nothing."""
_LEAST_US: Final = 1_000_000


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """The moment in microseconds since 1970; None where nothing is known and nothing was promised."""

    at_us: int | None
    basis: Basis


def tokens_per_s(worked: Sequence[Worked]) -> float | None:
    """Tokens a second over the time in which at least one batch was worked on; None while too little was done."""
    busy_us, until_us = 0, 0
    for each in sorted(worked, key=lambda each: each.start_us):
        busy_us += max(0, each.end_us - max(each.start_us, until_us))
        until_us = max(until_us, each.end_us)
    tokens = sum(each.tokens for each in worked)
    return tokens * 1_000_000 / busy_us if busy_us >= _LEAST_US and tokens > 0 else None


def estimate(batch: Batch, tokens_ahead: int, speed: float | None, now_us: int) -> Estimate:
    """When the batch will be done. `tokens_ahead` are its own and those that are due no later.

    Never later than its deadline: what is left then expires.
    """
    ended_us = batch.completed_us or batch.failed_us or batch.expired_us or batch.cancelled_us
    if ended_us is not None:
        return Estimate(at_us=ended_us, basis="done")
    if speed is None:
        return Estimate(at_us=batch.expires_us, basis="unknown" if batch.expires_us is None else "deadline")
    at_us = now_us + int(tokens_ahead / speed * 1_000_000)
    if batch.expires_us is not None and at_us >= batch.expires_us:
        return Estimate(at_us=batch.expires_us, basis="deadline")
    return Estimate(at_us=at_us, basis="measured speed")


async def estimated(store: BatchStore, batch: Batch, tokens: int | None = None) -> Estimate:
    """When the batch will be done, as of now. `tokens` are its own where it was not validated yet."""
    own = batch.tokens_left if tokens is None else tokens
    if batch.status == "validating" and tokens is None:
        return estimate(batch, 0, None, store.now_us())
    ahead = await store.tokens_due_before(batch)
    return estimate(batch, ahead + own, tokens_per_s(await store.recent_work()), store.now_us())
