"""Journal files: line format, naming, the lock that says whose files may be recovered, and how far the database has them.

A process writes `boot-<id>-<n>.log` and holds a lock on `boot-<id>.lock` for as long as it lives. The kernel lets go of
the lock with the process, however that ended; so whoever can take it knows that the process is dead, and is alone in
recovering it. `boot-<id>.drained` is what the drain tells the process: how far the database has its journal.
"""

import contextlib
import fcntl
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, Self
from zlib import crc32

import msgspec

from cost.ledger.entries import AttemptKey, Entry
from settings.decoding import DECODE_ERRORS

_MAX_LINE_BYTES: Final = 1024 * 1024
_CRC_CHARS: Final = 8
_LINE: Final = b"%08x %b\n"
_DRAINED_BYTES: Final = 4096
_MAX_REFUSED: Final = 16
_NEWLINE: Final = ord("\n")
_LOCK: Final = re.compile(r"boot-([0-9a-z]{1,64})\.lock")
_SEGMENT: Final = re.compile(r"boot-([0-9a-z]{1,64})-([0-9]{1,12})\.log")

encode_body: Final = msgspec.json.Encoder().encode
"""Encodes an entry as the body of its line, a JSON array."""
LINE_EXTRA_BYTES: Final = _CRC_CHARS + 2
"""Parts of a line beside its body."""
_decode: Final = msgspec.json.Decoder(Entry).decode


class Drained(msgspec.Struct, frozen=True):
    """Place up to which the database has a journal: all before `segment`, and of it the first `offset` bytes."""

    segment: int = 0
    offset: int = 0
    lines: int = 0
    """Lines in those bytes."""
    refused: tuple[AttemptKey, ...] = ()
    """The newest attempts whose end the database refused for good: they are behind this place, and not booked."""
    total: int = 0
    """Lines of the whole journal up to this place: the sequence number of the last."""

    @property
    def place(self) -> tuple[int, int]:
        """Segment and offset; the larger is the later."""
        return self.segment, self.offset

    def with_refused(self, refused: Sequence[AttemptKey]) -> "Drained":
        """Return the same place with more refused attempts, of which the newest are kept."""
        return msgspec.structs.replace(self, refused=(*self.refused, *refused)[-_MAX_REFUSED:])


_decode_drained: Final = msgspec.json.Decoder(Drained).decode


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """The part of one process's journal that the database does not have yet."""

    boot_id: str
    alive: bool
    """False for a process that is dead and not recovered yet."""
    entries: int
    bytes: int
    oldest_at_us: int | None
    """`at_us` of the first that waits; None if none does."""


def lines_of(bodies: Iterable[bytes]) -> bytes:
    """Return the lines of these bodies: of each its CRC-32 in hexadecimal, a space, the body, a newline."""
    return b"".join([_LINE % (crc32(body), body) for body in bodies])


def encode_line(entry: Entry) -> bytes:
    """Encode an entry as a line."""
    return lines_of((encode_body(entry),))


def decode_line(line: bytes) -> Entry | None:
    """Return the entry, or None when the line is torn or damaged."""
    body = _body(line)
    try:
        return None if body is None else _decode(body)
    except DECODE_ERRORS:
        return None


def _body(line: bytes) -> bytes | None:
    body = line[_CRC_CHARS + 1 : -1]
    if line[-1:] != b"\n" or line[: _CRC_CHARS + 1] != b"%08x " % crc32(body):
        return None
    return body


def read_segment(path: Path) -> Iterator[Entry | None]:
    """Yield the segment's entries in order; None stands for an unreadable line."""
    with path.open("rb") as file:
        while line := file.readline(_MAX_LINE_BYTES):
            yield decode_line(line)


def segment_path(directory: Path, boot_id: str, number: int) -> Path:
    """Return the path of a process's segment of this number."""
    return directory / f"boot-{boot_id}-{number}.log"


def drained_path(directory: Path, boot_id: str) -> Path:
    """Return the path of the file that says how far the database has a process's journal."""
    return directory / f"boot-{boot_id}.drained"


def encode_drained(drained: Drained) -> bytes:
    """Encode the whole file: a checked line and blanks up to one block, so that a full disk takes each new version."""
    room = _DRAINED_BYTES - _CRC_CHARS - 2
    body = encode_body(drained)
    while len(body) > room:
        drained = msgspec.structs.replace(drained, refused=drained.refused[1:])
        body = encode_body(drained)
    return lines_of((body.ljust(room),))


def decode_drained(content: bytes) -> Drained | None:
    """Return the place in the file; None where the file is damaged, or was being written."""
    body = _body(content)
    try:
        return None if body is None else _decode_drained(body)
    except DECODE_ERRORS:
        return None


def write_drained(directory: Path, boot_id: str, drained: Drained) -> None:
    """Write the file in its place, in one call of the kernel. Raises OSError."""
    descriptor = os.open(drained_path(directory, boot_id), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, encode_drained(drained), 0)
    finally:
        os.close(descriptor)


def read_drained(directory: Path, boot_id: str) -> Drained | None:
    """Return the place up to which the database has a journal; None where it is unknown. Raises OSError."""
    try:
        return decode_drained(drained_path(directory, boot_id).read_bytes())
    except FileNotFoundError:
        return None


def journals(directory: Path) -> dict[str, list[int]]:
    """Return the numbers of each process's segments, oldest first; none for one that left a lock alone.

    The directory may be missing.
    """
    found: dict[str, list[int]] = {}
    try:
        names = sorted(os.listdir(directory))  # noqa: PTH208  Asked several times a second: names are enough.
    except FileNotFoundError:
        return found
    for name in names:
        if (segment := _SEGMENT.fullmatch(name)) is not None:
            found.setdefault(segment[1], []).append(int(segment[2]))
        elif (lock := _LOCK.fullmatch(name)) is not None:
            found.setdefault(lock[1], [])
    for numbers in found.values():
        numbers.sort()
    return dict(sorted(found.items()))


def boots(directory: Path) -> list[str]:
    """Return the ids of processes that left a lock or a segment in the directory."""
    return list(journals(directory))


def segments_of(directory: Path, boot_id: str) -> list[Path]:
    """Return one process's segments, oldest first."""
    return [segment_path(directory, boot_id, number) for number in journals(directory).get(boot_id, ())]


class Piece(msgspec.Struct, frozen=True):
    """Entries that follow on a place in a journal, and the place behind them."""

    entries: list[Entry]
    upto: Drained
    damaged_lines: int = 0


class JournalReader:
    """A reader of a process's journal in pieces, while it is written or afterwards. A piece counts once `took` is told
    so.
    """

    def __init__(self, directory: Path, boot_id: str, place: Drained, told: Drained | None) -> None:
        """`place` is where the database's part ends, `told` what the process was told of it."""
        self.boot_id = boot_id
        self.place = place
        self._directory = directory
        self._told = told

    def read(self, numbers: Sequence[int], most: int, *, ended: bool = False) -> Piece:
        """Read at most `most` lines of these segments, which were listed before.

        Behind the last line that is whole the last segment may be written on, unless the process has `ended`.
        """
        entries: list[Entry] = []
        place, damaged = self.place, 0
        for number in numbers:
            if number < place.segment:
                continue
            if number > place.segment:
                place = Drained(number, refused=place.refused, total=place.total)
            more, place, unreadable = self._read_segment(place, most - len(entries) - damaged)
            entries += more
            damaged += unreadable
            if len(entries) + damaged >= most:
                break
            if ended or number != numbers[-1]:
                place, torn = self._past_torn(place)
                damaged += torn
        return Piece(entries, place, damaged)

    def took(self, upto: Drained) -> None:
        """Note that the database has a piece, and tell the process so. Raises OSError."""
        self.place = upto
        self.tell()

    def tell(self) -> None:
        """Tell the process how far the database has its journal, where that failed before. Raises OSError."""
        if self._told != self.place:
            write_drained(self._directory, self.boot_id, self.place)
            self._told = self.place

    def _read_segment(self, place: Drained, most: int) -> tuple[list[Entry], Drained, int]:
        entries: list[Entry] = []
        offset, damaged = place.offset, 0
        try:
            file = segment_path(self._directory, self.boot_id, place.segment).open("rb")
        except FileNotFoundError:
            # Its process deleted it, because the database has all of it.
            return entries, place, damaged
        with file:
            file.seek(offset)
            for line in islice(iter(partial(file.readline, _MAX_LINE_BYTES), b""), most):
                entry = decode_line(line)
                if entry is not None:
                    entries.append(entry)
                elif line[-1] == _NEWLINE or len(line) == _MAX_LINE_BYTES:
                    damaged += 1
                else:
                    # It is not written to its end yet.
                    break
                offset += len(line)
        read = len(entries) + damaged
        place = Drained(place.segment, offset, place.lines + read, place.refused, place.total + read)
        return entries, place, damaged

    def _past_torn(self, place: Drained) -> tuple[Drained, int]:
        """Return the place behind half a line that nobody will finish, and whether there was one."""
        size = _size(self._directory, self.boot_id, place.segment)
        if size <= place.offset:
            return place, 0
        return msgspec.structs.replace(place, offset=size), 1


def lines_between(directory: Path, boot_id: str, start: tuple[int, int], end: tuple[int, int]) -> int:
    """Count the lines of a journal from one place up to another that are in its files."""
    count = 0
    for number in journals(directory).get(boot_id, ()):
        if not start[0] <= number <= end[0]:
            continue
        left = end[1] if number == end[0] else _size(directory, boot_id, number)
        offset = start[1] if number == start[0] else 0
        with contextlib.suppress(FileNotFoundError), segment_path(directory, boot_id, number).open("rb") as file:
            file.seek(offset)
            while (size := min(_MAX_LINE_BYTES, left - offset)) > 0 and (chunk := file.read(size)):
                count += chunk.count(b"\n")
                offset += len(chunk)
    return count


def missing_lines(directory: Path, boot_id: str, place: Drained, told: Drained | None) -> int:
    """Return the number of lines that some database had, up to `told`, that this one at `place` has not, and no file has."""
    if told is None or told.place <= place.place:
        return 0
    return max(0, told.total - place.total - lines_between(directory, boot_id, place.place, told.place))


def waiting(directory: Path, places: Mapping[str, Drained] | None = None) -> list[Waiting]:
    """Return the part of each journal in the directory, of a live or a dead process, that the database does not have
    yet. `places` are the database's own, which tells of no more than its files; without them these are believed.
    """
    found = journals(directory)
    return [_waiting_of(directory, boot_id, numbers, places) for boot_id, numbers in found.items()]


def _waiting_of(directory: Path, boot_id: str, numbers: Sequence[int], places: Mapping[str, Drained] | None) -> Waiting:
    place = (read_drained(directory, boot_id) if places is None else places.get(boot_id)) or Drained()
    size = entries = 0
    oldest: Entry | None = None
    for number in numbers:
        if number < place.segment:
            continue
        offset = place.offset if number == place.segment else 0
        try:
            with segment_path(directory, boot_id, number).open("rb") as file:
                file.seek(offset)
                oldest = oldest or decode_line(file.readline(_MAX_LINE_BYTES))
                file.seek(offset)
                while chunk := file.read(_MAX_LINE_BYTES):
                    size += len(chunk)
                    entries += chunk.count(b"\n")
        except FileNotFoundError:
            continue
    return Waiting(
        boot_id=boot_id,
        alive=is_alive(directory, boot_id),
        entries=entries,
        bytes=size,
        oldest_at_us=None if oldest is None else oldest.at_us,
    )


def end_of(directory: Path, boot_id: str, numbers: Sequence[int]) -> tuple[int, int]:
    """Return the end of a journal of these segments: the last one's number and size."""
    return (numbers[-1], _size(directory, boot_id, numbers[-1])) if numbers else (0, 0)


def first_entry(directory: Path, boot_id: str, number: int, offset: int) -> Entry | None:
    """Return the entry at a place; None if none stands there. Raises OSError."""
    with segment_path(directory, boot_id, number).open("rb") as file:
        file.seek(offset)
        return decode_line(file.readline(_MAX_LINE_BYTES))


def _size(directory: Path, boot_id: str, number: int) -> int:
    try:
        return segment_path(directory, boot_id, number).stat().st_size
    except FileNotFoundError:
        return 0


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


def is_alive(directory: Path, boot_id: str) -> bool:
    """Return True while a process holds the lock of this journal."""
    try:
        descriptor = os.open(directory / f"boot-{boot_id}.lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


class DeadJournal:
    """Journal of a dead process, held by its lock while it is being recovered."""

    def __init__(self, directory: Path, boot_id: str, lock: BootLock) -> None:
        self.boot_id = boot_id
        self._directory = directory
        self._lock = lock
        self.numbers = journals(directory).get(boot_id, [])
        """Numbers of its segments, oldest first."""

    @classmethod
    def claim(cls, directory: Path, boot_id: str) -> Self | None:
        """Return the journal if its process is dead and no other process recovers it, else None."""
        lock = BootLock.take(directory, boot_id)
        return None if lock is None else cls(directory, boot_id, lock)

    def delete_segments(self) -> None:
        """Delete the files, because the database has all of it; the lock's file stays, so that the rest is done for certain.

        What was told of its place goes first: beside fewer segments it would speak of lines that are nowhere.
        """
        drained_path(self._directory, self.boot_id).unlink(missing_ok=True)
        for number in self.numbers:
            segment_path(self._directory, self.boot_id, number).unlink(missing_ok=True)

    def close(self, *, delete: bool) -> None:
        """Release the journal; with `delete` nothing of it is left."""
        self._lock.release(delete=delete)
