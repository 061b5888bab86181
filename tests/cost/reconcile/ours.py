"""Our side of a reconciliation, made up; and what the books would say after entries."""

from collections.abc import Iterable
from typing import Any

import msgspec

from cost.ledger.entries import Entry
from cost.reconcile.matching import OurRow
from cost.reconcile.statement import PARTS
from cost.times import DAY_US as DAY_LENGTH_US
from tests.cost.reconcile.exports import DAY_US

_ROW = OurRow(
    day_us=DAY_US,
    organisation_id="default",
    team_id="team_a",
    key_id="key_a",
    target_id="gpt-4o",
    provider="openai",
    tier="interactive",
    tag="",
    price_version="2024-10-01",
    pool="",
)


def row(**fields: Any) -> OurRow:
    """A group of ours; its cost is the sum of its meters unless told otherwise."""
    return msgspec.structs.replace(_ROW, **{"cost_nanousd": sum(fields.get("meters", ())), **fields})


def after(rows: Iterable[OurRow], entries: Iterable[Entry]) -> list[OurRow]:
    """The rows as the roll-ups would give them, once these entries are booked."""
    return [*rows, *map(_row_of, entries)]


def _row_of(entry: Entry) -> OurRow:
    cached, written, hour = entry.cached_input_tokens, entry.cache_write_tokens, entry.cache_write_1h_tokens
    assert entry.cost_nanousd is not None
    return OurRow(
        day_us=entry.at_us - entry.at_us % DAY_LENGTH_US,
        organisation_id=entry.organisation_id,
        team_id=entry.team_id,
        key_id=entry.key_id,
        target_id=entry.target_id,
        provider=entry.provider,
        tier=entry.tier,
        tag=entry.tag,
        price_version=entry.price_version,
        pool=entry.pool,
        tokens=(entry.input_tokens - cached - written, cached, written - hour, hour, entry.output_tokens),
        parts=tuple(getattr(entry, f"{name}_tokens") for name in PARTS),
        cost_nanousd=entry.cost_nanousd,
        meters=(
            entry.input_nanousd,
            entry.cached_input_nanousd,
            entry.cache_write_nanousd,
            entry.cache_write_1h_nanousd,
            entry.output_nanousd + entry.reasoning_nanousd,
            entry.request_nanousd,
        ),
    )
