"""Entries as Parquet files: their bytes, and where these are kept."""

import hashlib
import importlib
import io
from collections.abc import Sequence
from typing import Any, Final, Protocol

import msgspec

from cost.ledger.archived import FileRow, sums_of
from cost.ledger.entries import Entry
from cost.ledger.rows import COLUMNS, entry_of
from cost.tables import LedgerEntry
from settings.decoding import DECODE_ERRORS

SCHEMA: Final = 1
"""Version of the files' columns: a column that is added leaves it as it is, one that means something else does not."""
MANIFEST: Final = "manifest.json"
_MANIFEST_BYTES: Final = 8_192
"""The most that a manifest has of one file, and beside its files."""
KIND: Final = COLUMNS.index("entry")
_DEFAULTS: Final = dict(
    zip(COLUMNS[len(COLUMNS) - len(Entry.__struct_defaults__) :], Entry.__struct_defaults__, strict=True)
)


class PlaceUnreachable(Exception):
    """The archive's place does not answer; says why, without a secret."""


class FileDamaged(Exception):
    """A file of the archive is missing, or not what was written; says which."""


class Place(Protocol):
    """A folder or bucket. All names are relative; a file is there whole or not at all."""

    @property
    def text(self) -> str:
        """How it is named: a folder's path, or `s3://BUCKET/PREFIX`."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Write a file. Raises PlaceUnreachable."""
        ...

    def get(self, name: str, most: int) -> bytes | None:
        """Return a file, None where it is not there. Of what is longer than `most` bytes, or is no file, anything else than what was
        written: who else may write there must not fill our memory. Raises PlaceUnreachable.
        """
        ...


class Codec:
    """Entries' rows to and from the bytes of a Parquet file."""

    def __init__(self) -> None:
        """Raise ImportError without pyarrow."""
        self._arrow = importlib.import_module("pyarrow")
        self._parquet = importlib.import_module("pyarrow.parquet")
        arrow = self._arrow
        kinds = {int: arrow.int64(), bool: arrow.bool_(), float: arrow.float64(), str: arrow.string()}
        table = LedgerEntry.__table__  # type: ignore[attr-defined]  # SQLModel makes it, and tells nobody.
        self._schema = arrow.schema([(name, kinds[table.c[name].type.python_type]) for name in COLUMNS])

    def encode(self, rows: Sequence[Sequence[Any]]) -> bytes:
        """Return the file of rows in the order of `COLUMNS`. Raises FileDamaged if it does not read as them."""
        columns = [
            self._arrow.array(values, type=field.type)
            for values, field in zip(zip(*rows, strict=True), self._schema, strict=True)
        ]
        file = io.BytesIO()
        made = self._arrow.Table.from_arrays(columns, schema=self._schema)
        self._parquet.write_table(made, file, compression="zstd")
        data = file.getvalue()
        # Against the rows themselves: half a nano-dollar becomes a whole number without a word.
        if self.decode(data) != [tuple(row) for row in rows]:
            raise FileDamaged("what was written to Parquet reads as something else")
        return data

    def decode(self, data: bytes, names: Sequence[str] = COLUMNS) -> list[tuple[Any, ...]]:
        """Return the rows of a file, or some of their columns. Columns that came later have their defaults."""
        found = self._table(data)
        have = set(found.column_names)
        columns = [_values(found[name]) if name in have else [_DEFAULTS[name]] * found.num_rows for name in names]
        return list(zip(*columns, strict=True))

    def _table(self, data: bytes) -> Any:
        return self._parquet.read_table(self._arrow.BufferReader(data))


def _values(column: Any) -> list[Any]:
    """Return a column's values. Python's own objects are made one by one where there is no shorter way."""
    if column.null_count:
        return list(column.to_pylist())
    if str(column.type) != "string":
        return list(column.to_numpy().tolist())
    found = column.combine_chunks().dictionary_encode()
    texts = found.dictionary.to_pylist()
    return [texts[place] for place in found.indices.to_numpy().tolist()]


class _Named(msgspec.Struct, frozen=True):
    """A file, as the manifest names it."""

    name: str
    sha256: str
    rows: int


class _Manifest(msgspec.Struct, frozen=True):
    """What others read of a manifest: which files there are, and what they sum up to."""

    month: str
    files: list[_Named]
    sums: dict[str, int]


class ArchiveReader:
    """The files of archived months, each held against what the database knows of it."""

    def __init__(self, place: Place, run: str, codec: Codec) -> None:
        self._place = place
        self._run = run
        self._codec = codec

    def rows(self, file: FileRow, names: Sequence[str] = COLUMNS) -> list[tuple[Any, ...]]:
        """Return a file's rows, or some of their columns. Raises FileDamaged and PlaceUnreachable."""
        name = f"{self._run}/{file.name}"
        data = self._place.get(name, file.bytes)
        if data is None:
            raise FileDamaged(f"{name} is not in {self._place.text}")
        if hashlib.sha256(data).hexdigest() != file.sha256:
            raise FileDamaged(f"{name} in {self._place.text} is not what was written: its SHA-256 differs")
        return self._codec.decode(data, names)

    def entries(self, file: FileRow) -> list[Entry]:
        """Return a file's entries but the reserves, which are in no sum. Raises FileDamaged and PlaceUnreachable."""
        return [entry_of(row) for row in self.rows(file) if row[KIND] != "reserve"]

    def check_manifest(self, month: str, files: Sequence[FileRow]) -> None:
        """Raise FileDamaged where the manifest is not there, or names other files or sums than the database, and PlaceUnreachable."""
        name = f"{self._run}/{MANIFEST}"
        data = self._place.get(name, _MANIFEST_BYTES * (1 + len(files)))
        if data is None:
            raise FileDamaged(f"{name} is not in {self._place.text}; the database has the same figures")
        sums = sums_of(files)
        try:
            told = msgspec.json.decode(data, type=_Manifest)
        except DECODE_ERRORS:
            told = None
        if (
            told is None
            or told.month != month
            or told.files != [_Named(each.name, each.sha256, each.rows) for each in files]
            or any(told.sums.get(column, 0) != sums.get(column, 0) for column in told.sums.keys() | sums.keys())
        ):
            raise FileDamaged(f"{name} in {self._place.text} is not what was written")
