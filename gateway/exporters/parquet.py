"""Exporter to Parquet files in an S3-compatible store, by hour: `PREFIX/date=2026-11-29/hour=22/….parquet`.

It needs obstore and pyarrow. Rows wait in memory until there are enough for a file or five minutes have passed, so what a killed
process had not written is not there: the ledger is the truth, this is for reports.
"""

import asyncio
import importlib
import io
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any, Final

from settings.s3_credentials import s3_credentials
from weighbridge.plugins import Outcome

_log: Final = logging.getLogger("weighbridge.plugins")
_LEFT_OUT: Final = frozenset({"text", "is_sample"})
Columns = tuple[tuple[str, str], ...]
"""Names of columns with their types: `str`, `int`, `float`, `bool`, or `list` of texts."""
_COLUMNS: Final[Columns] = tuple(
    (each.name, str(getattr(each.type, "__name__", each.type)).partition(" | ")[0])
    for each in fields(Outcome)
    if each.name not in _LEFT_OUT
)
MOST_ROWS: Final = 50_000
"""Rows that wait; a store that is away costs no more memory."""


@dataclass(frozen=True)
class Bucket:
    """Where files go, and how often."""

    bucket: str
    prefix: str = "weighbridge/requests"
    endpoint: str = ""
    region: str = "us-east-1"
    access_key_id: str = ""
    secret_access_key: str = ""
    session_token: str = ""
    every_s: float = 300.0
    rows: int = 20_000


class TooManyRows(Exception):
    """The store does not take files, and no more rows may wait."""


class Parquet:
    """Writes files. A file has the name of its first and last request, so one that is written twice is one."""

    protocol = 1
    Settings = Bucket

    def __init__(self, settings: Bucket) -> None:
        self._settings = settings
        self._files = ParquetFiles(settings)
        self._rows: list[dict[str, Any]] = []
        self._writing = asyncio.Lock()
        self._later: asyncio.Task[None] | None = None

    async def finished(self, outcomes: Sequence[Outcome]) -> None:
        """Take rows; write files once there are enough. Raises TooManyRows."""
        real = [
            {name: row[name] for name, _ in _COLUMNS}
            for each in outcomes
            if not each.is_sample
            for row in (asdict(each),)
        ]
        if len(self._rows) + len(real) > MOST_ROWS:
            raise TooManyRows
        self._rows += real
        if len(self._rows) >= self._settings.rows:
            await self.write()
        elif self._rows and (self._later is None or self._later.done()):
            self._later = asyncio.create_task(self._write_later(), name="parquet")

    async def write(self) -> None:
        """Write all rows that wait; those of a file that could not be written go on waiting."""
        async with self._writing:
            by_hour: dict[str, list[dict[str, Any]]] = {}
            for row in self._rows:
                by_hour.setdefault(hour_of(row["ended_at"]), []).append(row)
            for hour, rows in by_hour.items():
                name = f"{hour}/{rows[0]['request_id']}-{rows[-1]['request_id']}.parquet"
                await self._files.put(name, rows, _COLUMNS)
                written = {id(row) for row in rows}
                self._rows = [row for row in self._rows if id(row) not in written]

    async def aclose(self) -> None:
        """Write what waits."""
        if self._later is not None:
            self._later.cancel()
        await self.write()

    async def _write_later(self) -> None:
        await asyncio.sleep(self._settings.every_s)
        try:
            await self.write()
        except Exception as error:  # noqa: BLE001 - the rows wait for the next time
            _log.warning("a Parquet file could not be written (%s); its rows wait", type(error).__name__)


class ParquetFiles:
    """Files of one prefix in a store."""

    def __init__(self, settings: Bucket) -> None:
        """Raise ImportError without obstore or pyarrow."""
        self._obstore = importlib.import_module("obstore")
        self._arrow = importlib.import_module("pyarrow")
        self._parquet = importlib.import_module("pyarrow.parquet")
        self._store = open_store(settings)
        self.failures: tuple[type[Exception], ...] = (
            importlib.import_module("obstore.exceptions").BaseError,
            OSError,
        )

    async def put(self, name: str, rows: Sequence[Mapping[str, Any]], columns: Columns) -> None:
        """Write a file; it is there whole or not at all. Raises one of `failures`."""
        data = await asyncio.to_thread(self._encoded, rows, columns)
        # In no thread: a store that does not answer would keep it for minutes, whatever the caller's time, and a stop would wait for it.
        await self._obstore.put_async(self._store, name, data)

    def _encoded(self, rows: Sequence[Mapping[str, Any]], columns: Columns) -> bytes:
        arrow = self._arrow
        kinds = {
            "str": arrow.string(),
            "int": arrow.int64(),
            "float": arrow.float64(),
            "bool": arrow.bool_(),
            "list": arrow.list_(arrow.string()),
        }
        schema = arrow.schema([(column, kinds[kind]) for column, kind in columns])
        file = io.BytesIO()
        self._parquet.write_table(arrow.Table.from_pylist(list(rows), schema=schema), file, compression="zstd")
        return file.getvalue()


def open_store(settings: Bucket) -> Any:
    """Return the client of a store. What is not given comes from the environment, as AWS's own tools read it."""
    named: dict[str, Any] = {"endpoint": settings.endpoint} if settings.endpoint else {}
    if settings.access_key_id:
        named |= s3_credentials(settings.access_key_id, settings.secret_access_key, settings.session_token)
    made_by = importlib.import_module("obstore.store").S3Store
    if settings.region:
        named |= {"region": settings.region}
    return made_by(settings.bucket, prefix=settings.prefix, client_options={"allow_http": True}, **named)


def hour_of(moment: float) -> str:
    """Return the folder of the hour that a moment, in seconds since 1970, is in."""
    return datetime.fromtimestamp(moment, UTC).strftime("date=%Y-%m-%d/hour=%H")
