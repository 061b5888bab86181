"""The ledger's line: one append-only entry, keyed (request_id, attempt, entry)."""

from typing import Final, Literal

import msgspec

from cost.usage import UsageSource

EntryKind = Literal["reserve", "settle", "void", "expire", "adjust"]


class Entry(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One fact about one attempt. Money is nano-dollars; times are microseconds since the epoch, UTC.

    A `reserve` carries the most the attempt may cost; a `settle` what it did cost. `cost_nanousd`
    is None when the price is unknown, never 0. `boot_id` names the gateway process that wrote it,
    so that a restart can tell an orphan from a request that another process is still serving.
    """

    request_id: str
    attempt: int
    entry: EntryKind
    at_us: int
    boot_id: str
    organisation_id: str
    team_id: str
    key_id: str
    tier: str
    alias: str
    target_id: str
    deployment_id: str
    provider: str
    price_version: str
    input_tokens: int
    cached_input_tokens: int
    cache_write_tokens: int
    output_tokens: int
    reasoning_tokens: int
    cost_nanousd: int | None
    baseline_nanousd: int | None
    usage_source: UsageSource
    flags: tuple[str, ...]
    status: int
    stream: bool
    complexity: float | None
    reason: str
    ttft_us: int | None
    duration_us: int | None


TERMINAL: Final[frozenset[EntryKind]] = frozenset({"settle", "void", "expire"})
"""The entries that close a reserve."""


def void_of(reserve: Entry) -> Entry:
    """The entry that takes a reserve back, for an attempt that was never made."""
    return msgspec.structs.replace(
        reserve,
        entry="void",
        input_tokens=0,
        cached_input_tokens=0,
        cache_write_tokens=0,
        output_tokens=0,
        reasoning_tokens=0,
        cost_nanousd=0,
        baseline_nanousd=None,
        usage_source="none",
    )


def orphan_settlement(reserve: Entry) -> Entry:
    """How an attempt is booked whose process died: at the most it may have cost, and marked as a guess.

    It is dated like its reserve, so that whoever recovers it writes the very same entry. Its status
    is 0, for nobody knows what the caller saw; so no baseline is claimed for it.
    """
    return msgspec.structs.replace(
        reserve,
        entry="settle",
        baseline_nanousd=None,
        usage_source="estimated",
        flags=(*reserve.flags, "orphaned"),
        status=0,
    )
