"""Postings by people (corrections and reconciliations), and their reversal.

A posting is a set of `adjust` entries whose ids begin alike. Reversing it posts the same with every amount negative:
nothing is deleted, and the books say that it was there. A true-up is not reversed but made anew, from the hours
(`weighbridge pools true-up`).
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from sqlalchemy import ColumnElement, func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from cost.ledger.entries import BOOKS, Entry, reversal_of
from cost.ledger.rows import ALL, read
from cost.ledger.store import LedgerStore
from cost.tables import LedgerEntry

REVERSAL: Final = "reversal"
_ORIGINS: Final = ("correction", "reconciliation")
_MOST_ENTRIES: Final = 500_000
_MOST_CHARS: Final = 180


class PostingRefused(Exception):
    """A posting cannot be reversed as asked; the message says why."""


class Posting(msgspec.Struct, frozen=True, kw_only=True):
    """Sums of one posting's entries. `first_us` and `last_us` lie in the days that it corrects."""

    posting_id: str
    reason: str
    entries: int
    first_us: int
    last_us: int
    cost_nanousd: int
    input_tokens: int
    output_tokens: int


async def postings(engine: AsyncEngine, from_us: int, to_us: int) -> list[Posting]:
    """Return postings that correct something from `from_us` to before `to_us`, by first day and id."""
    at = col(LedgerEntry.at_us)
    query = (
        select(
            col(LedgerEntry.request_id),
            col(LedgerEntry.reason),
            at,
            func.coalesce(col(LedgerEntry.cost_nanousd), 0),
            col(LedgerEntry.input_tokens),
            col(LedgerEntry.output_tokens),
        )
        .where(*_posting_conditions(), at >= from_us, at < to_us)
        .limit(_MOST_ENTRIES)
    )
    found: dict[str, Posting] = {}
    async with engine.connect() as connection:
        for request_id, reason, at_us, cost, tokens_in, tokens_out in await connection.execute(query):
            posting_id = request_id.rpartition("/")[0]
            before = found.get(posting_id)
            found[posting_id] = Posting(
                posting_id=posting_id,
                reason=reason,
                entries=1 + (before.entries if before else 0),
                first_us=min(at_us, before.first_us) if before else at_us,
                last_us=max(at_us, before.last_us) if before else at_us,
                cost_nanousd=cost + (before.cost_nanousd if before else 0),
                input_tokens=tokens_in + (before.input_tokens if before else 0),
                output_tokens=tokens_out + (before.output_tokens if before else 0),
            )
    return sorted(found.values(), key=lambda each: (each.first_us, each.posting_id))


async def reverse(engine: AsyncEngine, posting_id: str) -> list[Entry]:
    """Reverse a posting and return the reversing entries; idempotent. Raises PostingRefused."""
    if posting_id.partition("/")[0] not in _ORIGINS or len(posting_id) > _MOST_CHARS:
        raise PostingRefused(
            f"`{posting_id[:80]}` is no correction and no reconciliation; `weighbridge ledger postings` lists them"
        )
    async with engine.connect() as connection:
        posted = await _read_entries(connection, posting_id)
    if not posted:
        raise PostingRefused(f"nothing was posted as `{posting_id}`; `weighbridge ledger postings` lists what was")
    taken_back = [
        msgspec.structs.replace(
            reversal_of(entry),
            # The reason stays, so that a search by it finds posting and reversal.
            request_id=f"{posting_id}/{REVERSAL}/{entry.request_id.rpartition('/')[2]}",
        )
        for entry in posted
    ]
    await LedgerStore(engine).insert(taken_back)
    return taken_back


async def _read_entries(connection: AsyncConnection, posting_id: str) -> Sequence[Entry]:
    request_id = col(LedgerEntry.request_id)
    query = ALL.where(*_posting_conditions(), request_id.startswith(f"{posting_id}/", autoescape=True))
    found = await read(connection, query.order_by(request_id).limit(_MOST_ENTRIES + 1))
    if len(found) > _MOST_ENTRIES:
        raise PostingRefused(
            f"`{posting_id}` has more than {_MOST_ENTRIES} entries, the most that is taken back at once"
        )
    # Ids of earlier reversals begin with this posting's id, and go on.
    return [entry for entry in found if entry.request_id.rpartition("/")[0] == posting_id]


def _posting_conditions() -> list[ColumnElement[bool]]:
    return [
        col(LedgerEntry.entry) == "adjust",
        col(LedgerEntry.origin).in_(_ORIGINS),
        col(LedgerEntry.boot_id) == BOOKS,
    ]
