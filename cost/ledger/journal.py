"""The write-ahead journal: an append-only file beside the process, so that booking costs no database round trip.

All entries of one turn of the event loop share one write. In `process` mode an entry is safe as soon as the kernel has
it: it survives a kill -9 of this process. In `power` mode it is flushed to the disk as well, in a thread, and all that
came in meanwhile share the next flush.
"""

import asyncio
import errno
import logging
import os
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Final, Literal

from cost.errors import LedgerUnavailable
from cost.ledger.entries import Entry, void_of
from cost.ledger.segments import BootLock, encode_line, segment_path

_log: Final = logging.getLogger(__name__)
_RETRY_S: Final = 0.5
_LOCK_TRIES: Final = 10
_MAX_REFUSED: Final = 4096
_UNWRITABLE: Final = "the journal cannot be written"

_Write = Callable[[int, memoryview], int]
_Line = tuple[Entry, bytes, asyncio.Future[None] | None, bool]
"""Entry, encoded line, future of whoever waits for it, and whether it is in the queue already."""


class _Segment:
    """One open file of the journal; removed when it is full and the database has all of it."""

    __slots__ = ("bytes", "descriptor", "path", "undrained")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.bytes = 0
        self.undrained = 0

    def remove(self) -> None:
        os.close(self.descriptor)
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
        write: _Write = os.write,
        flush_to_disk: Callable[[int], None] = os.fdatasync,
        random_token: Callable[[int], str] = secrets.token_hex,
    ) -> None:
        self.directory = directory
        self.boot_id = boot_id or random_token(8)
        self.write_failures = 0
        """Times that the disk refused a write or a flush."""
        self._chosen_id = boot_id is not None
        self._power = sync == "power"
        self._max_bytes = max_bytes
        # A full segment is only deleted after the next one was begun, so several must fit.
        self._segment_bytes = min(segment_bytes, max_bytes // 4)
        self._write = write
        self._flush_to_disk = flush_to_disk
        self._random_token = random_token
        self._lock: BootLock | None = None
        self._segments: deque[_Segment] = deque()
        self._next_number = 0
        self._torn = False
        self._bytes = 0
        self._buffer: list[_Line] = []
        self._buffered_bytes = 0
        self._flush_due = False
        self._unwritten: list[_Line] = []
        self._refused: dict[tuple[str, int], None] = {}
        # While set, the disk is known to fail, and only the timer tries it again.
        self._retry: asyncio.TimerHandle | None = None
        self._queue: deque[tuple[Entry, _Segment | None]] = deque()
        self._unflushed: list[_Line] = []
        self._flushing: asyncio.Task[None] | None = None
        self._executor: ThreadPoolExecutor | None = None

    @property
    def depth(self) -> int:
        """Entries that the database does not have yet."""
        return len(self._queue) + len(self._buffer)

    @property
    def size_bytes(self) -> int:
        """Bytes in the files, and about to be written to them."""
        return self._bytes + self._buffered_bytes

    @property
    def oldest_at_us(self) -> int | None:
        """`at_us` of the oldest entry that the database does not have; None if it has all."""
        return self._queue[0][0].at_us if self._queue else None

    @property
    def accepting(self) -> bool:
        """True if `reserve` would take an entry now."""
        return self._lock is not None and not self._failing and self.size_bytes < self._max_bytes

    @property
    def _failing(self) -> bool:
        return self._retry is not None or bool(self._unwritten)

    def open(self) -> None:
        """Take the lock that shows other processes that this one lives. Raises LedgerUnavailable."""
        self.directory.mkdir(parents=True, exist_ok=True)
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
        if self._power:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="journal-flush")

    def reserve(self, entry: Entry) -> asyncio.Future[None]:
        """Write a reserve; the future is done when it is durable. Raises LedgerUnavailable, as may the future."""
        if self._lock is None:
            raise LedgerUnavailable("the journal is closed")
        if self._failing:
            self._remember_refused(entry)
            raise LedgerUnavailable(_UNWRITABLE)
        if self.size_bytes >= self._max_bytes:
            self._remember_refused(entry)
            raise LedgerUnavailable("the journal is full, because the database does not keep up")
        loop = asyncio.get_running_loop()
        safe = loop.create_future()
        self._append(loop, entry, safe)
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
            self._queue_unwritten(entry, encode_line(entry))
        else:
            self._append(asyncio.get_running_loop(), entry, None)

    def _append(self, loop: asyncio.AbstractEventLoop, entry: Entry, safe: asyncio.Future[None] | None) -> None:
        line = encode_line(entry)
        self._buffer.append((entry, line, safe, False))
        self._buffered_bytes += len(line)
        if not self._flush_due:
            self._flush_due = True
            loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write what was gathered to the file; normally called once a turn of the event loop."""
        self._flush_due = False
        lines = [*self._unwritten, *self._buffer] if self._unwritten else self._buffer
        if not lines:
            return
        self._buffer, self._unwritten, self._buffered_bytes = [], [], 0
        try:
            segment = self._current_segment()
            self._write_all(segment, b"".join([line for _, line, _, _ in lines]))
        except OSError as failure:
            self._handle_write_failure(lines, failure)
            return
        self._stop_retrying()
        for entry, _, _, queued in lines:
            if not queued:
                self._queue.append((entry, segment))
                segment.undrained += 1
        if self._power:
            self._flush_soon(lines)
        else:
            _mark_durable(lines)

    def pending(self, most: int) -> list[Entry]:
        """Return at most `most` of the oldest entries that the database does not have."""
        return [entry for entry, _ in islice(self._queue, most)]

    def drained(self, count: int) -> None:
        """Drop the oldest `count` entries, which the database has now, and the segments that are empty by that."""
        for _ in range(count):
            _, segment = self._queue.popleft()
            if segment is not None:
                segment.undrained -= 1
        while len(self._segments) > 1 and self._segments[0].undrained == 0:
            segment = self._segments.popleft()
            self._bytes -= segment.bytes
            segment.remove()

    async def aclose(self, *, keep: bool = False) -> None:
        """Write what is left, close the files and release the lock. Deletes the files if the database has everything.

        With `keep` they stay, so that the next start looks for reserves that nobody closed.
        """
        if self._lock is None:
            return
        self.flush()
        if self._flushing is not None:
            await self._flushing
        self._stop_retrying()
        if self._executor is not None:
            self._executor.shutdown()
        delete = not self._queue and not keep
        for segment in self._segments:
            if delete:
                segment.remove()
            else:
                os.close(segment.descriptor)
        self._segments.clear()
        self._lock.release(delete=delete)
        self._lock = None

    def _current_segment(self) -> _Segment:
        current = self._segments[-1] if self._segments else None
        if current is not None and current.bytes < self._segment_bytes and not self._torn:
            return current
        if self._power and current is not None:
            self._flush_to_disk(current.descriptor)
        segment = _Segment(segment_path(self.directory, self.boot_id, self._next_number))
        self._next_number += 1
        self._torn = False
        self._segments.append(segment)
        if self._power:
            _flush_directory(self.directory)
        return segment

    def _write_all(self, segment: _Segment, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                written = self._write(segment.descriptor, rest)
                if written <= 0:
                    raise OSError(errno.EIO, "nothing was written")  # noqa: TRY301  A short write is handled like a failed one.
                rest = rest[written:]
        except OSError:
            self._truncate_torn(segment)
            raise
        segment.bytes += len(data)
        self._bytes += len(data)

    def _truncate_torn(self, segment: _Segment) -> None:
        """Truncate what a failed write left, so that the next line does not continue half of another."""
        try:
            os.ftruncate(segment.descriptor, segment.bytes)
        except OSError:
            self._torn = True

    def _handle_write_failure(self, lines: Sequence[_Line], failure: OSError) -> None:
        self.write_failures += 1
        _log.error("the journal cannot be written: %s", os.strerror(failure.errno or errno.EIO))
        for entry, line, safe, queued in lines:
            if queued:
                self._unwritten.append((entry, line, None, True))
            elif safe is None:
                self._queue_unwritten(entry, line)
            else:
                self._refuse(entry, safe)
                if self._torn:
                    self._void_refused(entry)
        self._retry_later()

    def _queue_unwritten(self, entry: Entry, line: bytes) -> None:
        """Queue an entry that must be booked while the disk fails: for the database now, for the file later."""
        self._queue.append((entry, None))
        self._unwritten.append((entry, line, None, True))

    def _void_refused(self, reserve: Entry) -> None:
        """Void a refused reserve that may still stand in the file, so that it is not charged."""
        void = void_of(reserve)
        self._queue_unwritten(void, encode_line(void))

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
            # A copy, because the segment may be drained and closed meanwhile.
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
        for entry, _, safe, _ in lines:
            if safe is not None:
                self._refuse(entry, safe)
                self._void_refused(entry)
        self._retry_later()


def _mark_durable(lines: Sequence[_Line]) -> None:
    for _, _, safe, _ in lines:
        if safe is not None and not safe.done():
            safe.set_result(None)


def _flush_directory(directory: Path) -> None:
    """Flush a directory: a new file's name is durable only when its directory is."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
