"""The archive of a backup: a gzipped tar of parts, and behind them a manifest with the size and SHA-256 of each.

The manifest comes last, because what is written is not known before; an archive without one was not written to its end.
"""

import contextlib
import fcntl
import gzip
import hashlib
import io
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, Literal

import msgspec

from settings.private import FILE_MODE

FORMAT: Final = 1
_MANIFEST: Final = "manifest.json"
_COMPRESSION: Final = 4
_PIECE_BYTES: Final = 1024 * 1024
_MOST_MANIFEST_BYTES: Final = 256 * 1024 * 1024


class ArchiveRefused(Exception):
    """An archive that cannot be written or read; says why."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One file of the archive."""

    name: str
    bytes: int
    sha256: str


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table of the archived database."""

    name: str
    columns: tuple[str, ...]
    rows: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What an archive holds."""

    format: int
    version: str
    """Of the program that wrote it."""
    made_at: str
    host: str
    kind: Literal["sqlite", "postgresql"]
    revision: str
    tables: tuple[Table, ...]
    """In an order in which they can be filled."""
    journals: bool
    """Whether the host's journals were archived, too."""
    parts: tuple[Part, ...]
    left_out: tuple[str, ...] = ()
    """Columns that the schema of the program does not have."""
    begins: str = ""
    """The hash of the audit log's first entry, by which a database is told from another gateway's; empty where it has none."""


class ArchiveWriter:
    """Writes an archive beside its place, and puts it there when it is whole."""

    def __init__(self, path: Path) -> None:
        """Begin the archive. Raises ArchiveRefused where there is a file already, and OSError."""
        if path.exists():
            raise ArchiveRefused(f"{path} is there already; give another name")
        self.parts: list[Part] = []
        self._path = path
        self._unfinished = path.with_name(path.name + ".part")
        self._file = os.fdopen(_alone(self._unfinished), "wb")
        self._tar = tarfile.open(fileobj=self._file, mode="w:gz", compresslevel=_COMPRESSION)  # noqa: SIM115 - closed by `finish`

    def add(self, name: str, data: bytes) -> None:
        """Add a part from memory. Raises OSError."""
        self._add(name, io.BytesIO(data), len(data))

    def add_file(self, name: str, path: Path) -> None:
        """Add a file that nobody writes to. Raises OSError."""
        with path.open("rb") as file:
            self._add(name, file, path.stat().st_size)

    def finish(self, manifest: Manifest) -> None:
        """Write the manifest, and flush the archive to its place. Raises OSError."""
        self._add(_MANIFEST, io.BytesIO(data := msgspec.json.encode(manifest)), len(data))
        self._tar.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._unfinished.rename(self._path)

    def give_up(self) -> None:
        """Delete what was written."""
        # On a full disk closing fails, too.
        with contextlib.suppress(OSError):
            self._tar.close()
        with contextlib.suppress(OSError):
            self._file.close()
        self._unfinished.unlink(missing_ok=True)

    def _add(self, name: str, data: IO[bytes], size: int) -> None:
        head = tarfile.TarInfo(name)
        head.size, head.mode = size, FILE_MODE
        hashed = _Hashed(data)
        self._tar.addfile(head, hashed)
        self.parts.append(Part(name=name, bytes=size, sha256=hashed.sha256.hexdigest()))


def _alone(path: Path) -> int:
    """Open a file to write it from its beginning, which a killed process may have begun. Raises ArchiveRefused where a living one is at
    it, and OSError.
    """
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    if not _lock(opened) or not _is_at(opened, path):
        os.close(opened)
        raise ArchiveRefused(f"another backup is being written to {path}: wait for it, or give another name")
    os.ftruncate(opened, 0)
    return opened


@contextlib.contextmanager
def scratch_folder(parent: Path, name: str) -> Iterator[Path]:
    """Make a folder for large files that are gone afterwards, and delete those that killed processes left there. Raises OSError."""
    prefix = f".weighbridge-{name}-"
    for left in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            opened = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if _lock(opened):
                    shutil.rmtree(left)
            finally:
                os.close(opened)
    folder, opened = _locked_folder(parent, prefix)
    try:
        yield folder
    finally:
        os.close(opened)
        shutil.rmtree(folder, ignore_errors=True)


def _locked_folder(parent: Path, prefix: str) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        # Whoever sweeps before the lock is there takes it away.
        with contextlib.suppress(FileNotFoundError):
            opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            if _lock(opened) and _is_at(opened, folder):
                return folder, opened
            os.close(opened)


def _lock(opened: int) -> bool:
    """Return False where a living process has the file or folder."""
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(opened: int, path: Path) -> bool:
    """Return False where the opened file has another name by now, or none."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(opened), path.stat())
    return False


class _Hashed:
    """A stream whose bytes are hashed as they are read."""

    def __init__(self, data: IO[bytes]) -> None:
        self.sha256 = hashlib.sha256()
        self._data = data

    def read(self, size: int = -1) -> bytes:
        data = self._data.read(size)
        self.sha256.update(data)
        return data


def read_manifest(path: Path) -> Manifest:
    """Read an archive to its end, and return its manifest once every part was found as it says. Raises ArchiveRefused, OSError."""
    found: dict[str, tuple[int, str]] = {}
    manifest = None
    try:
        for name, data in _members(path):
            if name == _MANIFEST:
                manifest = msgspec.json.decode(data.read(_MOST_MANIFEST_BYTES), type=Manifest)
            else:
                hashed, size = _Hashed(data), 0
                while piece := hashed.read(_PIECE_BYTES):
                    size += len(piece)
                found[name] = (size, hashed.sha256.hexdigest())
    except (tarfile.TarError, EOFError, zlib.error, msgspec.DecodeError, OSError) as failure:
        if isinstance(failure, FileNotFoundError | PermissionError | IsADirectoryError):
            raise
        raise ArchiveRefused(
            f"{path} is no backup of weighbridge, or is damaged ({type(failure).__name__})"
        ) from failure
    if manifest is None:
        raise ArchiveRefused(f"{path} has no manifest: it was not written to its end")
    if manifest.format != FORMAT:
        raise ArchiveRefused(f"{path} is of a newer version ({manifest.version}): install that one")
    wanted = {part.name: (part.bytes, part.sha256) for part in manifest.parts}
    if wrong := sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name)):
        raise ArchiveRefused(f"{path} is damaged: `{wrong[0]}` is not as it was written")
    return manifest


def read_parts(path: Path, prefix: str) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the parts whose names begin so, each with its bytes, in the order in which they were written. Raises OSError."""
    for name, data in _members(path):
        if name.startswith(prefix):
            yield name, data


def _members(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with gzip.open(path, "rb") as stream:
        with tarfile.open(fileobj=stream, mode="r|") as tar:
            for member in tar:
                data = tar.extractfile(member) if member.isfile() else None
                if data is None:
                    raise tarfile.ReadError(f"`{member.name}` is no file")
                yield member.name, data
        # To its end, where the sum of all stands: the manifest has no other.
        while stream.read(_PIECE_BYTES):
            pass
