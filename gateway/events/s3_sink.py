"""Events as Parquet files in an S3-compatible store, by the hour that they are of.

A batch is a file for each hour, with the numbers of its first and last event in the name. After a crash the same events may be in a second
file: who reads takes each `id` once.
"""

import asyncio
import re
from collections.abc import Sequence
from typing import Any, Final

from cost.events.event import FIELDS, Event, sequence_text, time_text
from cost.events.sink import Batch, SinkFailed
from gateway.exporters.parquet import Bucket, Columns, ParquetFiles, hour_of

_ENVELOPE = (("id", "str"), ("sequence", "int"), ("time", "str"))
_KINDS = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "array": "list"}
COLUMNS: Columns = (*_ENVELOPE, *((field.name, _KINDS[field.kind]) for field in FIELDS))


_CODE: Final = re.compile(r"<Code>(\w{1,64})</Code>")


class S3Sink:
    """One bucket, under one prefix."""

    def __init__(self, bucket: Bucket) -> None:
        """Raise ImportError without obstore or pyarrow."""
        self._files = ParquetFiles(bucket)

    async def send(self, batch: Batch) -> None:
        """Write a batch's files. Raises SinkFailed."""
        by_hour: dict[str, list[Event]] = {}
        for event in batch.events:
            by_hour.setdefault(hour_of(event.entry.at_us / 1_000_000), []).append(event)
        for hour, events in by_hour.items():
            name = f"{hour}/{sequence_text(events[0].sequence)}-{sequence_text(events[-1].sequence)}.parquet"
            try:
                await self._files.put(name, await asyncio.to_thread(_rows, events), COLUMNS)
            except self._files.failures as error:
                # Its text may hold an address; the store's own word for it says what to do: AccessDenied, RequestTimeTooSkewed.
                code = _CODE.search(str(error))
                raise SinkFailed(type(error).__name__ if code is None else code[1]) from None

    async def aclose(self) -> None:
        """Do nothing: the store's client keeps nothing open."""


def _rows(events: Sequence[Event]) -> list[dict[str, Any]]:
    return [_row(event) for event in events]


def _row(event: Event) -> dict[str, Any]:
    return {
        "id": event.id,
        "sequence": event.sequence,
        "time": time_text(event.entry.at_us),
        **event.data(),
        "flags": list(event.entry.flags),
    }
