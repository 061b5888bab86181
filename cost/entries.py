"""The ledger's line: one append-only entry, keyed (request_id, attempt, entry)."""

from typing import Literal

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
