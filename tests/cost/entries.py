"""Made-up entries and stores for the tests of the books."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from cost.errors import EntriesRefused
from cost.ledger.entries import Entry

_RESERVE = Entry(
    request_id="req_1",
    attempt=1,
    entry="reserve",
    at_us=1_775_390_400_000_000,  # 2026-04-05, noon in UTC
    boot_id="boot1",
    organisation_id="default",
    team_id="team_payments",
    key_id="key_abc",
    tier="interactive",
    alias="auto",
    target_id="llama-3-70b",
    deployment_id="llama-3-70b/0",
    provider="vllm",
    price_version="2026-01-01",
    input_tokens=800,
    cached_input_tokens=0,
    cache_write_tokens=0,
    output_tokens=0,
    reasoning_tokens=0,
    cost_nanousd=5_000_000,
    baseline_nanousd=None,
    usage_source="estimated",
    flags=(),
    status=0,
    stream=True,
    complexity=0.25,
    reason="cheapest capable",
    ttft_us=None,
    duration_us=None,
)


def reserve(request_id: str = "req_1", **changes: Any) -> Entry:
    """A reserve like many others, with what the test is about changed."""
    return msgspec.structs.replace(_RESERVE, request_id=request_id, **changes)


def settle(request_id: str = "req_1", **changes: Any) -> Entry:
    """A settlement of a successful attempt."""
    usual = {
        "entry": "settle",
        "output_tokens": 200,
        "cost_nanousd": 1_000_000,
        "baseline_nanousd": 4_000_000,
        "usage_source": "upstream",
        "status": 200,
        "ttft_us": 120_000,
        "duration_us": 900_000,
    }
    return msgspec.structs.replace(_RESERVE, request_id=request_id, **{**usual, **changes})


async def until(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
    """Returns when a background task has made the condition true."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  What is waited for tells nobody when it is done.
            await asyncio.sleep(0.01)


class ScriptedStore:
    """A store in memory that can be down, or refuse single entries for what they are."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, int, str], Entry] = {}
        self.down = False
        self.refuses: set[str] = set()
        self.inserts = 0

    async def insert(self, entries: Sequence[Entry], *, careful: bool = False) -> int:
        self.inserts += 1
        if self.down:
            raise OSError("connection refused")
        if any(entry.request_id in self.refuses for entry in entries):
            raise EntriesRefused("a value that no column takes")
        before = len(self.rows)
        for entry in entries:
            self.rows.setdefault((entry.request_id, entry.attempt, entry.entry), entry)
        return len(self.rows) - before

    async def open_reserves(self, boot_ids: Sequence[str]) -> list[Entry]:
        if self.down:
            raise OSError("connection refused")
        closed = {
            (row.request_id, row.attempt) for row in self.rows.values() if row.entry in ("settle", "void", "expire")
        }
        reserves = [row for row in self.rows.values() if row.entry == "reserve" and row.boot_id in boot_ids]
        return [row for row in reserves if (row.request_id, row.attempt) not in closed]
