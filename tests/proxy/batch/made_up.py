"""Batches made for tests."""

from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncEngine

from proxy.batch.batch import Batch, ClaimedLine, LineResult, NewBatch, NewLine
from proxy.batch.blobs import LocalBlobs
from proxy.batch.files import FileStore, Owner
from proxy.batch.store import BatchStore
from proxy.shared.database_clock import DatabaseTime

OWNER = Owner(organisation_id="default", team_id="team_a")
HOLDER = "process-1"
SECOND_US = 1_000_000
START_US = 1_790_000_000 * SECOND_US


class Clock:
    """Microseconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now_us = START_US

    def __call__(self) -> int:
        return self.now_us

    def passes(self, seconds: float) -> None:
        self.now_us += int(seconds * SECOND_US)


def stores(engine: AsyncEngine, folder: Path, clock: Clock) -> tuple[BatchStore, FileStore]:
    """A database's batches, and files in a folder."""
    time = DatabaseTime(engine, clock)
    files = FileStore(
        engine, LocalBlobs(folder), time, max_file_bytes=10**6, max_stored_bytes=10**7, keep_us=86_400 * SECOND_US
    )
    return BatchStore(engine, time), files


async def a_batch(store: BatchStore, lines: int, window: str = "24h", tokens: int = 100, bound: int = 1_000) -> Batch:
    """A batch in progress."""
    new = NewBatch(
        organisation_id="default",
        team_id="team_a",
        key_id="key_1",
        endpoint="/v1/chat/completions",
        input_file_id="file-1",
        completion_window=window,  # type: ignore[arg-type]
    )
    batch = await store.create(new)
    taken = await store.take(("validating",), HOLDER, 60 * SECOND_US)
    assert taken is not None
    made = [
        NewLine(number=each, place=each, custom_id=f"c{each}", start=0, size=1, tokens=tokens, bound_nanousd=bound)
        for each in range(1, lines + 1)
    ]
    await store.add_lines(batch.batch_id, made)
    started = await store.start_lines(
        batch.batch_id, HOLDER, total=lines, tokens=lines * tokens, model="m", bound_nanousd=lines * bound,
        reserved_nanousd=lines * bound,
    )  # fmt: skip
    assert started
    return await store.get(batch.batch_id)


def result(line: ClaimedLine, status: int = 200, cost: int | None = 7) -> LineResult:
    """An answer of five tokens."""
    return LineResult(
        line=line, request_id=f"req_{line.number}_{line.generation}", status=status, body=b"{}", input_tokens=3,
        output_tokens=2, cost_nanousd=cost,
    )  # fmt: skip
