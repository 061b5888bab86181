"""Journal files: line format, naming, and the lock that says whose files may be recovered.

A process writes `boot-<id>-<n>.log` and holds a lock on `boot-<id>.lock` for as long as it lives. The kernel lets go of
the lock with the process, however that ended; so whoever can take it knows that the process is dead, and is alone in
recovering it.
"""

import fcntl
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

import msgspec

from cost.ledger.entries import Entry

_MAX_LINE_BYTES: Final = 1024 * 1024
_CRC_CHARS: Final = 8
_LOCK: Final = re.compile(r"boot-([0-9a-z]{1,64})\.lock")
_SEGMENT: Final = re.compile(r"boot-([0-9a-z]{1,64})-([0-9]{1,12})\.log")

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Entry).decode


def encode_line(entry: Entry) -> bytes:
    """Encode an entry: CRC-32 of the body in hexadecimal, a space, the entry as a JSON array, a newline."""
    body = _encode(entry)
    return b"%08x %b\n" % (zlib.crc32(body), body)


def decode_line(line: bytes) -> Entry | None:
    """Return the entry, or None when the line is torn or damaged."""
    body = line[_CRC_CHARS + 1 : -1]
    if line[-1:] != b"\n" or line[: _CRC_CHARS + 1] != b"%08x " % zlib.crc32(body):
        return None
    try:
        return _decode(body)
    except msgspec.DecodeError:
        return None


def read_segment(path: Path) -> Iterator[Entry | None]:
    """Yield the segment's entries in order; None stands for an unreadable line."""
    with path.open("rb") as file:
        while line := file.readline(_MAX_LINE_BYTES):
            yield decode_line(line)


def segment_path(directory: Path, boot_id: str, number: int) -> Path:
    """Return the path of a process's segment of this number."""
    return directory / f"boot-{boot_id}-{number}.log"


def boots(directory: Path) -> list[str]:
    """Return the ids of processes that left a lock or a segment in the directory."""
    names = [path.name for path in directory.iterdir()]
    found = [match[1] for name in names if (match := _LOCK.fullmatch(name) or _SEGMENT.fullmatch(name))]
    return sorted(set(found))


def segments_of(directory: Path, boot_id: str) -> list[Path]:
    """Return one process's segments, oldest first."""
    matches = [match for path in directory.iterdir() if (match := _SEGMENT.fullmatch(path.name)) is not None]
    mine = sorted((match for match in matches if match[1] == boot_id), key=lambda match: int(match[2]))
    return [directory / match[0] for match in mine]


class BootLock:
    """A process's file lock, held until `release` or the end of the process."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @classmethod
    def take(cls, directory: Path, boot_id: str) -> Self | None:
        """Take the lock; None when another process holds it or is just deleting it."""
        path = directory / f"boot-{boot_id}.lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Between opening and locking, its holder may have finished and removed the file; a
            # lock on a file without a name keeps nobody out.
            still_there = os.fstat(descriptor).st_ino == path.stat().st_ino
        except (BlockingIOError, FileNotFoundError):
            still_there = False
        if not still_there:
            os.close(descriptor)
            return None
        return cls(path, descriptor)

    def release(self, *, delete: bool) -> None:
        """Release the lock. The file is deleted first, while no other process can hold it."""
        if delete:
            self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


class DeadJournal:
    """Journal of a dead process, held by its lock while it is being recovered."""

    def __init__(self, directory: Path, boot_id: str, lock: BootLock) -> None:
        self.boot_id = boot_id
        self.damaged_lines = 0
        self._lock = lock
        self._paths = segments_of(directory, boot_id)

    @classmethod
    def claim(cls, directory: Path, boot_id: str) -> Self | None:
        """Return the journal if its process is dead and no other process recovers it, else None."""
        lock = BootLock.take(directory, boot_id)
        return None if lock is None else cls(directory, boot_id, lock)

    def entries(self) -> Iterator[Entry]:
        """Yield every readable entry; others are counted. A kill tears the tail, which was never acknowledged."""
        self.damaged_lines = 0
        for path in self._paths:
            for entry in read_segment(path):
                if entry is None:
                    self.damaged_lines += 1
                else:
                    yield entry

    def close(self, *, delete: bool) -> None:
        """Release the journal; with `delete` remove its files, because the database has all of it."""
        if delete:
            for path in self._paths:
                path.unlink(missing_ok=True)
        self._lock.release(delete=delete)
