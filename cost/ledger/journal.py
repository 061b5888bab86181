"""The write-ahead journal: an append-only file beside the process, so that booking costs no database round trip.

All entries of one turn of the event loop share one write. In `process` mode an entry is safe as soon as the kernel has
it: it survives a kill -9 of this process. In `power` mode it is flushed to the disk as well, in a thread, and all that
came in meanwhile share the next flush.

What is in the files is not kept in memory. The drain (`cost.ledger.drain`), in whatever process, reads the files and
writes beside them how far the database has them; `look` reads that, and deletes the segments that are done with.
"""

import asyncio
import errno
import logging
import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Literal, Protocol

import msgspec

from cost.errors import LedgerUnavailable
from cost.ledger.entries import TERMINAL, AttemptKey, Entry, void_of
from cost.ledger.segments import (
    LINE_EXTRA_BYTES,
    BootLock,
    Drained,
    decode_drained,
    drained_path,
    encode_body,
    first_entry,
    lines_of,
    segment_path,
    write_drained,
)
from settings.private import private_folder

_log: Final = logging.getLogger(__name__)
_RETRY_S: Final = 0.5
_LOCK_TRIES: Final = 10
_MAX_REFUSED: Final = 4096
_UNWRITABLE: Final = "the journal cannot be written"

_Write = Callable[[int, memoryview], int]
_Line = tuple[Entry, bytes, asyncio.Future[None] | None]
"""Entry, body of its line, and future of whoever waits for it."""


class Awaiting(Protocol):
    """Observer of the attempts that the database has; implemented by
    `cost.budgets.budget_reservations.BudgetReservations`.
    """

    def awaits(self, key: AttemptKey) -> bool:
        """Return True if this attempt's end is to be told by `booked`. Asked when the end is written to the file."""
        ...

    def booked(self, keys: Iterable[AttemptKey]) -> None:
        """Take note that the database has the ends of these attempts."""
        ...


class JournalState(msgspec.Struct, frozen=True, kw_only=True):
    """State of a journal, for health checks, metrics and pages."""

    depth: int
    """Entries that the database does not have yet."""
    oldest_age_s: float
    """Seconds that the oldest of them has waited; 0 if none waits."""
    accepting: bool
    """True if a reserve would be taken now."""
    write_failures: int
    """Times that the disk refused a write or a flush."""
    unwritten: int
    """Entries that wait in memory for the disk to work again; they are part of `depth`."""


class _Segment:
    """One file of the journal, open until the next one is begun."""

    __slots__ = ("bytes", "descriptor", "lines", "number", "path")

    def __init__(self, path: Path, number: int) -> None:
        self.path = path
        self.number = number
        self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.bytes = 0
        self.lines = 0

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def remove(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)


class Journal:
    """The journal of one process. `write` and `flush_to_disk` are system calls, injected for tests."""

    def __init__(
        self,
        directory: Path,
        *,
        boot_id: str | None = None,
        sync: Literal["process", "power"] = "process",
        max_bytes: int = 128 * 1024 * 1024,
        segment_bytes: int = 8 * 1024 * 1024,
        awaiting: Awaiting | None = None,
        write: _Write = os.write,
        flush_to_disk: Callable[[int], None] = os.fdatasync,
        random_token: Callable[[int], str] = secrets.token_hex,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.directory = directory
        self.boot_id = boot_id or random_token(8)
        """Id of this process; fixed once the journal is open."""
        self.write_failures = 0
        """Times that the disk refused a write or a flush."""
        self._chosen_id = boot_id is not None
        self._power = sync == "power"
        self._max_bytes = max_bytes
        # A full segment is only deleted after the next one was begun, so several must fit.
        self._segment_bytes = min(segment_bytes, max_bytes // 4)
        self._awaiting = awaiting
        self._write = write
        self._flush_to_disk = flush_to_disk
        self._random_token = random_token
        self._clock = clock
        self._lock: BootLock | None = None
        self._segments: deque[_Segment] = deque()
        self._next_number = 0
        self._torn = False
        self._bytes = 0
        self._buffer: list[_Line] = []
        self._buffered_bytes = 0
        self._flush_due = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unwritten: list[_Line] = []
        self._refused: dict[AttemptKey, None] = {}
        # While set, the disk is known to fail, and only the timer tries it again.
        self._retry: asyncio.TimerHandle | None = None
        self._unflushed: list[_Line] = []
        self._flushing: asyncio.Task[None] | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._drained = Drained()
        self._told = b""
        self._awaited: deque[tuple[tuple[int, int], list[AttemptKey]]] = deque()
        """Ends that `awaiting` has to hear of, by the place behind which the database has them."""

    @property
    def depth(self) -> int:
        """Entries that the database does not have yet, as far as this process has looked."""
        drained = self._drained
        written = sum(segment.lines for segment in self._segments if segment.number >= drained.segment)
        if any(segment.number == drained.segment for segment in self._segments):
            written -= drained.lines
        return max(0, written) + len(self._unwritten) + len(self._buffer)

    @property
    def is_drained(self) -> bool:
        """True if the database has everything, as far as this process has looked."""
        last = self._segments[-1] if self._segments else None
        return not (self._unwritten or self._buffer) and (
            last is None or self._drained.place >= (last.number, last.bytes)
        )

    @property
    def size_bytes(self) -> int:
        """Bytes in the files, and about to be written to them."""
        return self._bytes + self._buffered_bytes

    @property
    def accepting(self) -> bool:
        """True if `reserve` would take an entry now."""
        return self._lock is not None and not self._failing and self.size_bytes < self._max_bytes

    @property
    def _failing(self) -> bool:
        return self._retry is not None or bool(self._unwritten)

    def state(self) -> JournalState:
        """Return the journal's present state. It looks at the files, so it is not for every request."""
        self.look()
        oldest_us = self._oldest_at_us()
        return JournalState(
            depth=self.depth,
            oldest_age_s=0.0 if oldest_us is None else max(0.0, self._clock() - oldest_us / 1_000_000),
            accepting=self.accepting,
            write_failures=self.write_failures,
            unwritten=len(self._unwritten),
        )

    def open(self) -> None:
        """Take the lock that shows other processes that this one lives; nothing to do where it is open.

        Raises LedgerUnavailable, and OSError where the directory cannot be written.
        """
        if self._lock is not None:
            return
        private_folder(self.directory)
        for _ in range(_LOCK_TRIES):
            self._lock = BootLock.take(self.directory, self.boot_id)
            if self._lock is not None:
                break
            if self._chosen_id:
                raise LedgerUnavailable(f"another process already writes the journal {self.boot_id}")
            # Someone took our new lock for a dead process's, in the moment before we held it.
            self.boot_id = self._random_token(8)
        else:
            raise LedgerUnavailable(f"no lock could be taken in {self.directory}")
        # Written now, so that a disk that is full later has its block for what the drain tells.
        write_drained(self.directory, self.boot_id, self._drained)
        if self._power:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="journal-flush")

    def reserve(self, entry: Entry) -> asyncio.Future[None]:
        """Write a reserve; the future is done when it is durable. Raises LedgerUnavailable, as may the future."""
        if not self.accepting:
            raise self._refusal(entry)
        safe = self._running_loop().create_future()
        self._append(entry, safe)
        return safe

    def append(self, entry: Entry) -> None:
        """Write an entry that closes a reserve; taken however full the journal is, and retried.

        Raises LedgerUnavailable when the journal is closed.
        """
        if self._lock is None:
            raise LedgerUnavailable("the journal is closed")
        if entry.entry == "void" and (entry.request_id, entry.attempt) in self._refused:
            # The reserve was refused: closing it would write an entry for each of them, without limit.
            del self._refused[entry.request_id, entry.attempt]
        elif self._failing and not self._flush_due:
            self._unwritten.append((entry, encode_body(entry), None))
        else:
            self._append(entry, None)

    def _refusal(self, reserve: Entry) -> LedgerUnavailable:
        """Return the reason for which no reserve is taken now, and remember the reserve as refused."""
        if self._lock is None:
            return LedgerUnavailable("the journal is closed")
        self._remember_refused(reserve)
        if self._failing:
            return LedgerUnavailable(_UNWRITABLE)
        return LedgerUnavailable("the journal is full, because the database does not keep up")

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        # Asked for once: until Python 3.12 each answer takes a system call.
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    def _append(self, entry: Entry, safe: asyncio.Future[None] | None) -> None:
        body = encode_body(entry)
        self._buffer.append((entry, body, safe))
        self._buffered_bytes += len(body) + LINE_EXTRA_BYTES
        if not self._flush_due:
            self._flush_due = True
            self._running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Write the gathered lines to the file; normally called once a turn of the event loop."""
        self._flush_due = False
        lines = [*self._unwritten, *self._buffer] if self._unwritten else self._buffer
        if not lines:
            return
        self._buffer, self._unwritten, self._buffered_bytes = [], [], 0
        try:
            segment = self._current_segment()
        except OSError as failure:
            self._handle_write_failure(lines, failure)
            return
        # The sums of all lines one after another: zlib's tables for them are out of the cache by the next request.
        data = lines_of([body for _, body, _ in lines])
        refusal = self._write_all(segment, data)
        if refusal is None:
            self._stop_retrying()
            self._took(segment, lines, len(data))
            return
        why, written = refusal
        whole, size = self._cut_torn(segment, lines, written)
        self._took(segment, lines[:whole], size)
        self._handle_write_failure(lines[whole:], why)

    def look(self) -> bool:
        """Read the place up to which the database has this journal; True if it has moved. Called again and again, by a
        timer.
        """
        if self._lock is None:
            return False
        try:
            content = drained_path(self.directory, self.boot_id).read_bytes()
        except OSError:
            # Nobody deletes it while this process holds its lock. If it is gone all the same, the drain writes a new one.
            return False
        if content == self._told:
            return False
        drained = decode_drained(content)
        if drained is None:
            # It is being written at this moment.
            return False
        self._told = content
        return self.drained(drained)

    def drained(self, drained: Drained) -> bool:
        """Note the place up to which the database has this journal: tell `awaiting`, and delete whole segments. False
        where the place is known already.
        """
        if drained.place <= self._drained.place:
            return False
        self._drained = drained
        while self._segments and self._is_done_with(self._segments[0]):
            segment = self._segments.popleft()
            self._bytes -= segment.bytes
            segment.remove()
        self._tell_booked()
        return True

    async def aclose(self) -> None:
        """Write the remaining lines, close the files and release the lock. The files stay: the drain reads what it has
        not yet, closes reserves that nobody closed, and deletes them.
        """
        if self._lock is None:
            return
        self.flush()
        if self._flushing is not None:
            await self._flushing
        self._stop_retrying()
        if self._executor is not None:
            self._executor.shutdown()
        if self._unwritten:
            _log.error(
                "%d entries could not be written; their attempts are settled at an estimate", len(self._unwritten)
            )
        for segment in self._segments:
            segment.close()
        self._segments.clear()
        self._lock.release(delete=False)
        self._lock = None

    def _is_done_with(self, segment: _Segment) -> bool:
        if not self._has(segment):
            return False
        if self._failing or self._bytes > self._max_bytes // 2:
            # The last one is written on, unless the disk is full: then its room may be all that is needed.
            return len(self._segments) > 1 or (self._failing and self._flushing is None)
        # One more stays: a standby that is promoted may lack what the database has just had.
        return len(self._segments) > 2 and self._has(self._segments[1])  # noqa: PLR2004

    def _has(self, segment: _Segment) -> bool:
        """Return True if the database has the whole segment."""
        return self._drained.place >= (segment.number, segment.bytes)

    def _tell_booked(self) -> None:
        keys: list[AttemptKey] = []
        while self._awaited and self._awaited[0][0] <= self._drained.place:
            keys += self._awaited.popleft()[1]
        if keys and self._awaiting is not None:
            refused = set(self._drained.refused)
            self._awaiting.booked([key for key in keys if key not in refused])

    def _oldest_at_us(self) -> int | None:
        place = self._drained.place
        for segment in self._segments:
            if place < (segment.number, segment.bytes):
                offset = place[1] if place[0] == segment.number else 0
                try:
                    entry = first_entry(self.directory, self.boot_id, segment.number, offset)
                except OSError:
                    entry = None
                if entry is not None:
                    return entry.at_us
        waiting = self._unwritten or self._buffer
        return waiting[0][0].at_us if waiting else None

    def _current_segment(self) -> _Segment:
        current = self._segments[-1] if self._segments else None
        if current is not None and current.bytes < self._segment_bytes and not self._torn:
            return current
        if self._power and current is not None:
            self._flush_to_disk(current.descriptor)
        segment = _Segment(segment_path(self.directory, self.boot_id, self._next_number), self._next_number)
        self._next_number += 1
        self._torn = False
        if current is not None:
            current.close()
        self._segments.append(segment)
        if self._power:
            _flush_directory(self.directory)
        return segment

    def _write_all(self, segment: _Segment, data: bytes) -> tuple[OSError, int] | None:
        """Write all bytes and return None; on failure return the error and the number of bytes written."""
        rest = memoryview(data)
        try:
            while rest:
                written = self._write(segment.descriptor, rest)
                if written <= 0:
                    raise OSError(errno.EIO, "nothing was written")  # noqa: TRY301  A short write is handled like a failed one.
                rest = rest[written:]
        except OSError as failure:
            return failure, len(data) - len(rest)
        return None

    def _cut_torn(self, segment: _Segment, lines: Sequence[_Line], written: int) -> tuple[int, int]:
        """Return the number of lines that a failed write left whole, and their bytes; truncate the rest.

        The drain may have read the whole ones already, so they stand. Half a line it leaves alone.
        """
        whole = size = 0
        for _, body, _ in lines:
            line_bytes = len(body) + LINE_EXTRA_BYTES
            if size + line_bytes > written:
                break
            size += line_bytes
            whole += 1
        try:
            os.ftruncate(segment.descriptor, segment.bytes + size)
        except OSError:
            # The next line must not continue half of another.
            self._torn = True
        return whole, size

    def _took(self, segment: _Segment, lines: list[_Line], size: int) -> None:
        """Note lines that the kernel has, of so many bytes together."""
        if not lines:
            return
        segment.bytes += size
        segment.lines += len(lines)
        self._bytes += size
        awaiting = self._awaiting
        if awaiting is not None:
            keys = [
                key
                for entry, _, _ in lines
                if entry.entry in TERMINAL and awaiting.awaits(key := (entry.request_id, entry.attempt))
            ]
            if keys:
                self._awaited.append(((segment.number, segment.bytes), keys))
        if self._power:
            self._flush_soon(lines)
        else:
            _mark_durable(lines)

    def _handle_write_failure(self, lines: Sequence[_Line], failure: OSError) -> None:
        self.write_failures += 1
        _log.error("the journal cannot be written: %s", os.strerror(failure.errno or errno.EIO))
        for entry, body, safe in lines:
            if safe is None:
                self._unwritten.append((entry, body, None))
            else:
                self._refuse(entry, safe)
        self._retry_later()

    def _void_refused(self, reserve: Entry) -> None:
        """Void a refused reserve that stands in the file all the same, so that it is not charged."""
        void = void_of(reserve)
        self._unwritten.append((void, encode_body(void), None))

    def _refuse(self, reserve: Entry, safe: asyncio.Future[None]) -> None:
        self._remember_refused(reserve)
        if not safe.done():
            safe.set_exception(LedgerUnavailable(_UNWRITABLE))

    def _remember_refused(self, reserve: Entry) -> None:
        """Remember a refused reserve. Its attempt is closed at once, so only the last few need be known."""
        while len(self._refused) >= _MAX_REFUSED:
            del self._refused[next(iter(self._refused))]
        self._refused[reserve.request_id, reserve.attempt] = None

    def _retry_later(self) -> None:
        if self._retry is None:
            self._retry = asyncio.get_running_loop().call_later(_RETRY_S, self._retry_flush)

    def _retry_flush(self) -> None:
        if self._segments and self._is_done_with(self._segments[0]):
            segment = self._segments.popleft()
            self._bytes -= segment.bytes
            segment.remove()
        self._retry = None
        self.flush()

    def _stop_retrying(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _flush_soon(self, lines: list[_Line]) -> None:
        self._unflushed.extend(lines)
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush_until_done(), name="journal-flush")

    async def _flush_until_done(self) -> None:
        loop = asyncio.get_running_loop()
        while self._unflushed:
            lines, self._unflushed = self._unflushed, []
            # A copy, because the segment may be full and closed meanwhile.
            descriptor = os.dup(self._segments[-1].descriptor)
            try:
                await loop.run_in_executor(self._executor, self._flush_to_disk, descriptor)
            except OSError as failure:
                self._handle_flush_failure(lines, failure)
            else:
                _mark_durable(lines)
            finally:
                os.close(descriptor)
        self._flushing = None

    def _handle_flush_failure(self, lines: Sequence[_Line], failure: OSError) -> None:
        self.write_failures += 1
        _log.error("the journal cannot be flushed to the disk: %s", os.strerror(failure.errno or errno.EIO))
        # After a failed flush the kernel may have dropped the pages: nothing more goes into this file.
        self._torn = True
        for entry, _, safe in lines:
            if safe is not None:
                self._refuse(entry, safe)
                self._void_refused(entry)
        self._retry_later()


def _mark_durable(lines: Sequence[_Line]) -> None:
    for _, _, safe in lines:
        if safe is not None and not safe.done():
            safe.set_result(None)


def _flush_directory(directory: Path) -> None:
    """Flush a directory: a new file's name is durable only when its directory is."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
