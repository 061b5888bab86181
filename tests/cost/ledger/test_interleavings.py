"""Processes that book, a drain, a database and a disk that fail, in any order: every attempt once, and nothing lost."""

import asyncio
import errno
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from cost.errors import LedgerUnavailable
from cost.ledger.drain import Drain
from cost.ledger.entries import TERMINAL, AttemptKey, Entry, void_of
from cost.ledger.journal import Journal
from cost.ledger.ledger import Ledger
from cost.ledger.segments import boots, encode_line, segments_of
from tests.cost.entries import ScriptedStore, reserve, settle
from tests.examples import examples

NEVER_S = 3600.0
LINE_BYTES = len(encode_line(reserve()))
PROCESSES = 2

_STEPS = st.one_of(
    st.tuples(st.sampled_from(["reserve", "settle"]), st.integers(0, 7 * PROCESSES)),
    st.tuples(st.sampled_from(["look", "stop", "close", "mend"]), st.integers(0, PROCESSES - 1)),
    st.tuples(st.just("kill"), st.integers(0, LINE_BYTES)),
    st.tuples(st.just("fail"), st.integers(0, 3 * LINE_BYTES)),
    st.tuples(st.just("die"), st.integers(1, 3)),
    st.tuples(st.sampled_from(["drain", "drain", "follow", "down", "up"]), st.just(0)),
)


class DyingStore(ScriptedStore):
    """A store whose client dies right after so many more commits."""

    dies_after: int | None = None

    async def insert(self, entries: Sequence[Entry], *, careful: bool = False) -> int:
        count = await super().insert(entries, careful=careful)
        if self.dies_after is not None:
            self.dies_after -= 1
            if self.dies_after <= 0:
                raise asyncio.CancelledError
        return count


class Worker:
    """A process that books, with a disk of its own."""

    def __init__(self, folder: Path, boot_id: str, store: DyingStore) -> None:
        self.boot_id = boot_id
        self.room: int | None = None
        self.open: list[Entry] = []
        self.closing: list[Entry] = []
        self.told: list[AttemptKey] = []
        self._folder = folder
        self._store = store
        self.journal = Journal(folder, boot_id=boot_id, segment_bytes=5 * LINE_BYTES, awaiting=self, write=self._write)
        self.ledger = Ledger(self.journal, look_every_s=NEVER_S)

    def _write(self, descriptor: int, data: memoryview) -> int:
        if self.room is None:
            return os.write(descriptor, data)
        if self.room == 0:
            raise OSError(errno.ENOSPC, "no space")
        written = os.write(descriptor, data[: self.room])
        self.room -= written
        return written

    def awaits(self, key: AttemptKey) -> bool:
        return bool(key)

    def booked(self, keys: Iterable[AttemptKey]) -> None:
        for key in keys:
            assert any((*key, kind) in self._store.rows for kind in TERMINAL)
            self.told.append(key)

    def kill(self, torn_bytes: int) -> None:
        """Leaves what a kill leaves: what the kernel has, perhaps half of the line that was being written."""
        for segment in self.journal._segments:
            segment.close()
        if torn_bytes and (paths := segments_of(self._folder, self.boot_id)):
            with paths[-1].open("ab") as file:
                file.write(encode_line(settle("torn"))[:torn_bytes].rstrip(b"\n"))
        self.journal._stop_retrying()
        assert self.journal._lock is not None
        self.journal._lock.release(delete=False)
        assert self.ledger._looking is not None
        self.ledger._looking.cancel()


class Street:
    """All of one story, and what must have become of each attempt."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = DyingStore()
        self.ends: dict[str, str] = {}
        """How each attempt whose reserve was durable has to end; `maybe` if its process may or may not have said so."""
        self.workers: list[Worker] = []
        self.drain: Drain | None = None
        self._count = 0

    async def start(self) -> None:
        for place in range(PROCESSES):
            self.workers.append(await self._worker(place))
        await self.follow()

    async def _worker(self, place: int) -> Worker:
        self._count += 1
        worker = Worker(self.folder, f"boot{place}x{self._count}", self.store)
        await worker.ledger.start()
        return worker

    async def step(self, what: str, number: int) -> None:
        worker = self.workers[number % PROCESSES]
        match what:
            case "reserve":
                for _ in range(1 + number // PROCESSES):
                    await self._reserve(worker)
            case "kill":
                await self._kill(number)
            case "stop" | "close":
                await self._stop(number % PROCESSES, wait=what == "stop")
            case "die":
                self.store.dies_after = number
                await self._drain_once()
                for each in self.workers:
                    each.journal.look()
            case "drain":
                await self._drain_once()
            case "follow":
                await self.follow()
            case _:
                self._change(worker, what, number)
        await asyncio.sleep(0)
        self._note_written(worker)

    def _change(self, worker: Worker, what: str, number: int) -> None:
        match what:
            case "settle":
                for entry in worker.open[: 1 + number // PROCESSES]:
                    self._settle(worker, entry)
                worker.open = worker.open[1 + number // PROCESSES :]
            case "look":
                worker.journal.look()
            case "fail":
                worker.room = number
            case "mend":
                worker.room = None
                worker.journal.flush()
            case _:
                self.store.down = what == "down"

    async def _reserve(self, worker: Worker) -> None:
        self._count += 1
        entry = reserve(f"req_{self._count}", boot_id=worker.boot_id)
        try:
            await worker.ledger.reserve(entry)
        except LedgerUnavailable:
            worker.ledger.settle(void_of(entry))
            return
        self.ends[entry.request_id] = "orphaned"
        worker.open.append(entry)

    def _settle(self, worker: Worker, entry: Entry) -> None:
        end = settle(entry.request_id, boot_id=worker.boot_id)
        worker.ledger.settle(end)
        worker.closing.append(end)
        self.ends[entry.request_id] = "maybe"

    def _note_written(self, worker: Worker) -> None:
        """An end that is not in memory any more is in the file: it must be booked as it is."""
        unwritten = {entry.request_id for entry, _, _ in (*worker.journal._unwritten, *worker.journal._buffer)}
        for entry in worker.closing:
            if entry.request_id not in unwritten:
                self.ends[entry.request_id] = "settled"
        worker.closing = [entry for entry in worker.closing if entry.request_id in unwritten]

    async def _kill(self, torn_bytes: int) -> None:
        place = torn_bytes % PROCESSES
        self.workers[place].kill(torn_bytes)
        self.workers[place] = await self._worker(place)

    async def _stop(self, place: int, *, wait: bool) -> None:
        worker = self.workers[place]
        if wait:
            await worker.ledger.wait_drained(0.001)
        await worker.ledger.aclose()
        self._note_written(worker)
        self.workers[place] = await self._worker(place)

    async def _drain_once(self) -> None:
        if self.drain is not None:
            try:
                await self.drain.drain_now()
            except asyncio.CancelledError:
                self._kill_drain()

    def _kill_drain(self) -> None:
        if self.drain is not None:
            assert self.drain._lock is not None
            os.close(self.drain._lock)
            if self.drain._loop is not None:
                self.drain._loop.cancel()
        self.store.dies_after = None
        self.drain = None

    async def follow(self) -> None:
        """The drain is killed, wherever it was, and another one starts."""
        self._kill_drain()
        self.drain = Drain(self.folder, self.store, lambda: 0.0, interval_s=NEVER_S, batch=2, recover_every_s=0.0)
        await self.drain.start()

    async def end(self) -> None:
        self.store.down = False
        await self.follow()
        for worker in self.workers:
            worker.room = None
            worker.journal.flush()
            self._note_written(worker)
            await self._drain_once()
            assert await worker.ledger.wait_drained(0.001)
            assert worker.ledger.state().depth == 0
            await worker.ledger.aclose()
        assert self.drain is not None
        await self.drain.aclose()

    def check(self) -> None:
        rows = self.store.rows
        reserved = {request_id for request_id, _, kind in rows if kind == "reserve"}
        assert self.ends.keys() <= reserved
        for request_id in reserved:
            (end,) = [row for key, row in rows.items() if key[0] == request_id and row.entry in TERMINAL]
            kind = "orphaned" if end.flags else end.entry
            # A reserve that was refused may stand in the file all the same; then its void does too.
            expected = {"orphaned": {"orphaned"}, "settled": {"settle"}, "maybe": {"settle", "orphaned"}}
            assert kind in expected.get(self.ends.get(request_id, ""), {"void", "orphaned"})
        assert boots(self.folder) == []
        for worker in self.workers:
            assert len(set(worker.told)) == len(worker.told)


@settings(max_examples=examples(150))
@given(st.lists(_STEPS, max_size=60))
def test_every_attempt_once_and_nothing_lost(steps: list[tuple[str, int]]) -> None:
    """Whoever is killed, whatever fails, in whatever order; and who awaits an attempt never hears of it too early."""

    async def story(folder: Path) -> None:
        street = Street(folder)
        await street.start()
        for what, number in steps:
            await street.step(what, number)
        await street.end()
        street.check()

    with tempfile.TemporaryDirectory() as name:
        asyncio.run(story(Path(name)))
