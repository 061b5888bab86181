"""The batch runner: validates batches, answers their lines, and writes their files. Any number of processes may run
one.

It looks at the batches in progress, decides by slack, and claims lines; another process needs nothing of its memory to
go on when it dies.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from hashlib import blake2b
from typing import Final, Protocol

import msgspec
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from accounts.caller import Caller
from accounts.errors import UnknownKey
from proxy.batch.backlog import Backlog, Due, lacking
from proxy.batch.batch import Batch, ClaimedLine, LineResult
from proxy.batch.batch_config import BatchSection
from proxy.batch.batch_errors import FileNotFound, StorageUnavailable, TooMuchQueued
from proxy.batch.estimate import Speed, estimated
from proxy.batch.execution_options import in_flex, takes_flex
from proxy.batch.files import FileStore, Owner
from proxy.batch.line_protocol import Answering, LineReply, LineRequest
from proxy.batch.lines import meaning_of, request_id, result_of, wait_s
from proxy.batch.observers import BatchObserver, Event
from proxy.batch.output import write_files
from proxy.batch.prefetch import Prefetch
from proxy.batch.provider_batch_store import NOTHING_OUT, Out
from proxy.batch.scheduler import Slack, Standing, Turns, left_s_of, shares, slacks
from proxy.batch.store import BatchStore
from proxy.batch.validation import Bound, Problem, Validated, Validation
from proxy.errors import NotAuthenticated, Refused, code_of, error_reply
from selfhosted.replica import PoolReading
from settings.decoding import DECODE_ERRORS

_log: Final = logging.getLogger("weighbridge.batch")
_DATABASE_FAILS: Final = (SQLAlchemyError, OSError, TimeoutError)
_DUTY_S: Final = 1.0
_CALLER_S: Final = 5.0
_BLOCKED_WAIT_S: Final = 30.0
_LEAST_PAUSE_S: Final = 0.02
_LONGEST_REST_S: Final = 15.0
"""The longest pause, in seconds, between looks for batches of other processes, once there was none for long."""
_AT_A_TIME: Final = 1_000
"""Lines that one transaction adds, or answers that one deletes."""
_RESULTS_AT_A_TIME: Final = 200
_DAY_US: Final = 86_400_000_000
_OK: Final = 200

Told = Callable[[AsyncConnection, Batch, Event], Awaitable[None]]
"""The function that reports a batch's end, within the transaction that ends it."""


class Room(Protocol):
    """The source of the capacity that interactive work leaves."""

    def idle(self, model: str | None) -> float:
        """Return the idle share, from 0 to 1, of a model's targets; of any target, where lines name several."""
        ...

    def reading(self, model: str | None) -> PoolReading | None:
        """Return the prompts that own engines for a model still have to read; None where another target may serve it,
        too.
        """
        ...


Handed = Callable[[], Awaitable[Mapping[str, Out]]]
"""The part of each batch that is at providers, by its id."""


LineBound = Callable[[Batch], int | None]
"""The last place of a batch whose lines may be begun here, because those after it may go to a provider; None for all."""


def _everything(_batch: Batch) -> None:
    return None


async def nothing_at_providers() -> Mapping[str, Out]:
    """Return nothing, where lines are never handed over."""
    return {}


class Money(Protocol):
    """The cost of batches, and the room of budgets for it."""

    def bound_for(self, caller: Caller) -> Bound:
        """Return the function that bounds the cost of a caller's lines."""
        ...

    async def problem(self, caller: Caller, validated: Validated, batch_id: str = "") -> Problem | None:
        """Return the reason for which no budget has room for the whole batch; None where all have."""
        ...


class _LeaseLost(Exception):
    """Another process has taken the batch over."""


class _Running(msgspec.Struct, eq=False):
    line: ClaimedLine
    task: "asyncio.Task[None]"


class BatchRunner:
    """The batch runner of one process."""

    def __init__(
        self,
        *,
        section: BatchSection,
        batches: BatchStore,
        files: FileStore,
        answering: Answering,
        caller_of: Callable[[str], Awaitable[Caller | None]],
        is_blocked: Callable[[str], Awaitable[bool]],
        room: Room,
        money: Money,
        told: Told,
        holder: str,
        max_line_bytes: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
        observer: BatchObserver | None = None,
        handed: Handed = nothing_at_providers,
        bound: LineBound = _everything,
        backlog: Backlog | None = None,
    ) -> None:
        """`caller_of` returns the caller of a key that still works, None of one that does not; `is_blocked` whether it is refused for now."""
        self._section = section
        self._batches = batches
        self._files = files
        self._answering = answering
        self._caller_of = caller_of
        self._is_blocked = is_blocked
        self._room = room
        self._money = money
        self._told = told
        self._holder = holder
        self._max_line_bytes = max_line_bytes
        self._clock = clock
        self._jitter = jitter
        self._observer = observer or BatchObserver()
        self._handed = handed
        self._bound = bound
        self._backlog = backlog or Backlog()
        self._nothing_up_to: dict[str, tuple[int, float]] = {}
        """The bound, by batch, up to which the last claim found nothing, and when."""
        self._lease_us = int(section.lease_s * 1_000_000)
        self._running: dict[tuple[str, int], _Running] = {}
        self._ahead = Prefetch(clock)
        self._returning: list[ClaimedLine] = []
        self._known: dict[str, tuple[float, Caller | None]] = {}
        self._known_blocks: dict[str, tuple[float, bool]] = {}
        self._results: asyncio.Queue[LineResult] = asyncio.Queue()
        self._wake = asyncio.Event()
        self._job: asyncio.Task[None] | None = None
        self._duty_at = 0.0
        self._has_answered_all = False
        """True once nothing runs here any more, so that a batch may have ended."""
        self._news = 0
        """The number of batches that were made by this process."""
        self._idle_looks = 0
        """The number of looks in a row that found no open batch."""
        batches.news = self._hear_of_news
        self._turns = Turns(clock)
        self._is_draining: Callable[[], bool] = lambda: False
        self.speed = Speed(clock)
        self.slacks: Mapping[str, Slack] = {}
        """The slack of each batch in progress, as it was found last."""

    async def run(self, is_draining: Callable[[], bool]) -> None:
        """Work on batches, for ever. When it is cancelled, lines that run are given back."""
        self._is_draining = is_draining
        others = [asyncio.create_task(self._write_results()), asyncio.create_task(self._keep_leases())]
        try:
            while True:
                began = self._clock()
                # Before the round: what comes while it looks was perhaps not seen by it.
                self._wake.clear()
                try:
                    await self.step()
                except _DATABASE_FAILS as error:
                    _log.warning("batch: the database does not answer: %s", type(error).__name__)
                except Exception:  # noqa: BLE001 - the loop must outlive any one round
                    _log.exception("a round of the batch tier failed; the next one follows")
                await self._pause(self._clock() - began)
        finally:
            await self._stop(others)

    async def step(self) -> None:
        """Do one round: duties, one batch to validate or finalize, and lines for the room there is. Where there was
        no batch the round only checks whether there is one.
        """
        news = self._news
        if self._idle_looks and not await self._batches.has_open() and news == self._news:
            self._idle_looks += 1
            return
        self._idle_looks = 0
        if self._clock() >= self._duty_at:
            self._duty_at = self._clock() + _DUTY_S
            await self._do_duties()
        elif self._has_answered_all:
            self._has_answered_all = False
            await self._batches.finish_answered()
        if self._is_draining():
            await self._let_go(())
            return
        if self._job is None or self._job.done():
            batch = await self._batches.take(("validating", "finalizing", "cancelling"), self._holder, self._lease_us)
            self._job = None if batch is None else asyncio.create_task(self._work_on(batch))
        if not await self._fill() and self._job is None and news == self._news:
            self._idle_looks = 1

    @property
    def rest_s(self) -> float:
        """Return the seconds until the next look for batches, if nothing happens: longer the longer there was none."""
        return min(max(_LONGEST_REST_S, self._section.poll_s), self._section.poll_s * 2.0 ** min(self._idle_looks, 16))

    def _hear_of_news(self) -> None:
        self._news += 1
        self._idle_looks = 0
        self._wake.set()

    async def _pause(self, took_s: float) -> None:
        """Wait for a reason to look again. A slow database is asked less often."""
        await asyncio.sleep(max(_LEAST_PAUSE_S, took_s))
        try:
            async with asyncio.timeout(min(self.rest_s, self._turns.look_in_s)):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _do_duties(self) -> None:
        batches = self._batches
        freed = await batches.free_abandoned()
        if freed:
            _log.warning("batch: %d lines of a process that died are begun again", freed)
            self._observer.count_lines("repeated", freed)
        await batches.end_due()
        await batches.finish_answered()

    # Lines.

    async def _fill(self) -> bool:
        """Begin lines for the room there is. Return False where no batch is in progress."""
        live = await self._batches.live()
        names = {batch.batch_id for batch in live}
        self._nothing_up_to = {name: found for name, found in self._nothing_up_to.items() if name in names}
        await self._let_go(names)
        out = await self._handed()
        # Answers of providers tell nothing about the speed of the rest.
        self.speed.look({each.batch_id: each.tokens_left + _out_of(out, each).answered_tokens for each in live})
        running: dict[str, int] = {}
        for batch_id, _ in self._running:
            running[batch_id] = running.get(batch_id, 0) + 1
        standings = [
            await self._standing(each, order, running.get(each.batch_id, 0), _out_of(out, each))
            for order, each in enumerate(live)
        ]
        found = self.slacks = slacks(standings, self.speed.ahead)
        self._observer.set_live(live, found, self.speed.tokens_per_s)
        due = [
            Due(model=batch.model, tokens=each.tokens_left, left_s=each.left_s)
            for batch, each in zip(live, standings, strict=True)
        ]
        self._backlog.note(lacking(due, self.speed.tokens_per_s))
        wanted = shares(standings, found, self._section.at_once)
        free = self._section.at_once - len(self._running)
        self._turns.begin_round()
        for batch in live:
            slack = found[batch.batch_id]
            more = min(free, wanted[batch.batch_id] - running.get(batch.batch_id, 0))
            if more > 0:
                more = self._turns.may_begin(self._room.reading(batch.model), more, slack.pressure)
            for line in await self._claimed(batch, more):
                free -= 1
                task = asyncio.create_task(self._answer(batch, line, slack))
                self._running[line.batch_id, line.number] = _Running(line, task)
        return bool(live)

    async def _claimed(self, batch: Batch, more: int) -> list[ClaimedLine]:
        """Return up to `more` lines of a batch that are this process's to begin."""
        wanted = self._ahead.wanted(batch.batch_id, more, batch.left)
        if wanted > 0:
            up_to = self._bound(batch)
            lines = await self._batches.claim(batch.batch_id, wanted, self._holder, self._lease_us, up_to)
            self._ahead.add(batch.batch_id, lines)
            self._nothing_up_to.pop(batch.batch_id, None)
            if not lines and up_to is not None:
                self._nothing_up_to[batch.batch_id] = up_to, self._clock()
        return self._ahead.begin(batch.batch_id, more)

    async def _let_go(self, live: Collection[str]) -> None:
        """Give back lines that were claimed ahead from batches that have ended, and those that others could have
        begun by now.
        """
        # Kept until it is done: nobody else may begin them while their leases are renewed here.
        self._returning += self._ahead.stale(live, self._section.lease_s)
        await self._batches.give_back([(line, 0) for line in self._returning], self._holder)
        self._returning.clear()

    async def _standing(self, batch: Batch, order: int, running: int, out: Out) -> Standing:
        caller = await self._caller(batch.key_id)
        return Standing(
            batch_id=batch.batch_id,
            team_id=batch.team_id,
            weight=1.0 if caller is None else caller.settings.weight,
            priority=batch.priority,
            left_s=left_s_of(batch, self._batches.now_us()),
            tokens_left=max(0, batch.tokens_left - out.tokens),
            # Lines that wait for a provider must not keep a share from other batches.
            lines_left=running if self._waits(batch) else max(0, batch.left - out.lines),
            running=running,
            idle=self._room.idle(batch.model),
            order=order,
        )

    def _waits(self, batch: Batch) -> bool:
        """Return True when the last claim found nothing that may be begun here, the bound is the same, and it is not
        time to look again: a line that failed waits before its next try, and one of a dead process for its lease.
        """
        up_to, looked_at = self._nothing_up_to.get(batch.batch_id, (None, 0.0))
        return up_to is not None and up_to == self._bound(batch) and self._clock() - looked_at < self._section.poll_s

    async def _answer(self, batch: Batch, line: ClaimedLine, slack: Slack) -> None:
        """Answer one line. In every case the line is answered or waits again."""
        named = request_id(batch, line)
        try:
            answered = await self._ask(batch, line, named, slack)
            meaning = meaning_of(answered, line, self._section.tries)
            if meaning != "answer":
                wait_us = int(wait_s(answered, line, self._jitter()) * 1_000_000)
                await self._give_back(line, wait_us, failed=meaning == "again")
                return
            self._results.put_nowait(result_of(line, named, answered))
        except asyncio.CancelledError:
            await asyncio.shield(self._give_back(line, 0, failed=False))
            raise
        except Exception:  # noqa: BLE001 - a line must not end the tier
            _log.exception("batch %s: a line could not be asked; it is begun again", batch.batch_id)
            await self._give_back(line, int(self._section.poll_s * 1_000_000), failed=True)
        finally:
            self._running.pop((line.batch_id, line.number), None)
            self._wake.set()

    async def _ask(self, batch: Batch, line: ClaimedLine, named: str, slack: Slack) -> LineReply:
        try:
            if await self._blocked(batch.key_id):
                return LineReply(status=503, body=b"", code="key_blocked", retry_after_s=_BLOCKED_WAIT_S)
            caller = await self._caller(batch.key_id)
            if caller is None:
                raise NotAuthenticated("The key that made this batch was revoked or has expired.")
            body = await self.body_of(batch, line)
            if self._section.flex and takes_flex(slack, line, batch.endpoint):
                body = in_flex(body)
        except Refused as error:
            told = error_reply(error)
            return LineReply(
                status=told.status, body=told.body, code=told.code or "", retry_after_s=error.retry_after_s
            )
        asked = LineRequest(
            request_id=named,
            caller=caller,
            endpoint=batch.endpoint,
            body=body,
            # Lines that would be late otherwise go before other batch work.
            priority=1 if slack.pressure >= 1 else batch.priority,
        )
        return await self._answering.answer(asked)

    async def body_of(self, batch: Batch, line: ClaimedLine) -> bytes:
        """Return the request of a line, as JSON. Raises FileNotFound."""
        pieces = self._files.blobs.reading(batch.input_file_id, line.start, line.start + line.size)
        raw = b"".join([piece async for piece in pieces])
        try:
            return bytes(_decode_line(raw).body)
        except DECODE_ERRORS as error:
            raise FileNotFound("The input file is not what it was when the batch was validated.") from error

    async def _caller(self, key_id: str) -> Caller | None:
        at, known = self._known.get(key_id, (0.0, None))
        if not at or self._clock() - at > _CALLER_S:
            known = await self._caller_of(key_id)
            if len(self._known) > _AT_A_TIME:
                self._known.clear()
            self._known[key_id] = (self._clock(), known)
        return known

    async def _blocked(self, key_id: str) -> bool:
        at, known = self._known_blocks.get(key_id, (0.0, False))
        if not at or self._clock() - at > _CALLER_S:
            known = await self._is_blocked(key_id)
            if len(self._known_blocks) > _AT_A_TIME:
                self._known_blocks.clear()
            self._known_blocks[key_id] = (self._clock(), known)
        return known

    async def _give_back(self, line: ClaimedLine, wait_us: int, *, failed: bool) -> None:
        if failed:
            self._observer.count_lines("repeated")
        try:
            await self._batches.give_back([(line, wait_us)], self._holder, failed=failed)
        except _DATABASE_FAILS as error:
            # Its lease ends by itself.
            _log.warning("batch: a line could not be given back: %s", type(error).__name__)

    async def _write_results(self) -> None:
        """Write answers as they come, many by one transaction. One that cannot be written is tried again."""
        while True:
            results = [await self._results.get()]
            while not self._results.empty() and len(results) < _RESULTS_AT_A_TIME:
                results.append(self._results.get_nowait())
            await self._write(results)
            self._has_answered_all = not self._running and self._results.empty()
            self._wake.set()

    async def _write(self, results: list[LineResult]) -> None:
        while True:
            try:
                written = await self._batches.answer(results)
            except _DATABASE_FAILS as error:
                _log.warning("batch: answers wait for the database: %s", type(error).__name__)
                await asyncio.sleep(self._section.poll_s)
                continue
            failed = sum(each.status != _OK for each in written)
            self._observer.count_lines("answered", len(written) - failed)
            self._observer.count_lines("failed", failed)
            self._observer.count_lines("lost", len(results) - len(written))
            return

    async def _keep_leases(self) -> None:
        while True:
            await asyncio.sleep(self._section.lease_s / 3)
            if not (self._running or self._returning or len(self._ahead)):
                continue
            try:
                await self._batches.renew(self._holder, self._lease_us)
            except _DATABASE_FAILS as error:
                _log.warning("batch: leases could not be renewed: %s", type(error).__name__)

    async def _stop(self, others: list["asyncio.Task[None]"]) -> None:
        """Give back running lines, and write the answers."""
        tasks = [each.task for each in self._running.values()]
        if self._job is not None:
            tasks.append(self._job)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        try:
            await self._let_go(())
        except _DATABASE_FAILS as error:
            _log.warning("batch: claimed lines could not be given back: %s", type(error).__name__)
        left = [self._results.get_nowait() for _ in range(self._results.qsize())]
        try:
            await self._batches.answer(left)
        except _DATABASE_FAILS as error:
            _log.warning("batch: %d answers could not be written: %s", len(left), type(error).__name__)

    # Validating and finalizing.

    async def _work_on(self, batch: Batch) -> None:
        try:
            if batch.status == "validating":
                await self._validate(batch)
            else:
                await self._finalize(batch)
        except _LeaseLost:
            _log.info("batch %s is another process's by now", batch.batch_id)
        except (StorageUnavailable, *_DATABASE_FAILS) as error:
            # Its lease ends, and the next process begins anew.
            _log.warning("batch %s waits: %s", batch.batch_id, type(error).__name__)
        except Exception:  # noqa: BLE001 - the tier must outlive any one batch
            _log.exception("working on batch %s failed; it is tried again", batch.batch_id)
        finally:
            self._wake.set()

    async def _validate(self, batch: Batch) -> None:
        if await self._blocked(batch.key_id):
            # It is looked at again once its lease ends.
            return
        caller = await self._caller(batch.key_id)
        if caller is None:
            await self._fail(
                batch,
                [Problem(code=code_of(UnknownKey), message="The key that made this batch does not work any more.")],
            )
            return
        validated = await self._validated(batch, caller)
        problems = validated.problems or await self._refusals(batch, caller, validated)
        if problems:
            await self._fail(batch, problems)
            return
        for start in range(0, len(validated.lines), _AT_A_TIME):
            await self._hold(batch)
            await self._batches.add_lines(batch.batch_id, validated.lines[start : start + _AT_A_TIME])
        started = await self._batches.start_lines(
            batch.batch_id,
            self._holder,
            total=len(validated.lines),
            tokens=validated.tokens,
            model=validated.model,
            bound_nanousd=validated.bound_nanousd,
            reserved_nanousd=validated.reserved_nanousd,
        )
        if started:
            expected = await estimated(self._batches, await self._batches.get(batch.batch_id))
            if expected.basis == "measured speed" and expected.at_us is not None:
                await self._batches.note_estimate(batch.batch_id, expected.at_us)

    async def _validated(self, batch: Batch, caller: Caller) -> Validated:
        validation = Validation(
            batch.endpoint,
            max_lines=self._section.max_lines,
            max_line_bytes=self._max_line_bytes(),
            bound=self._money.bound_for(caller),
        )
        held_at = self._clock()
        try:
            async for piece in self._files.blobs.reading(batch.input_file_id):
                await asyncio.to_thread(validation.feed, piece)
                if validation.is_hopeless:
                    break
                if self._clock() - held_at > self._section.lease_s / 3:
                    held_at = self._clock()
                    await self._hold(batch)
        except FileNotFound:
            problem = Problem(code=code_of(FileNotFound), message="The input file is not there any more.")
            return Validated(problems=[problem], lines=[], model=None)
        return await asyncio.to_thread(validation.end)

    async def _refusals(self, batch: Batch, caller: Caller, validated: Validated) -> list[Problem]:
        """Return the objections to a sound file: too many tokens wait already, or budgets have no room."""
        owner = Owner(organisation_id=batch.organisation_id, team_id=batch.team_id)
        waiting = await self._batches.waiting_tokens(owner)
        most = self._section.max_queued_tokens
        if waiting + validated.tokens > most:
            told = (
                f"Your team's batches have {waiting} tokens waiting, and this one would add {validated.tokens}; at most {most} "
                "may wait. Send it again when earlier batches are done, or split it."
            )
            return [Problem(code=code_of(TooMuchQueued), message=told)]
        problem = await self._money.problem(caller, validated, batch.batch_id)
        return [] if problem is None else [problem]

    async def _fail(self, batch: Batch, problems: list[Problem]) -> None:
        errors = msgspec.json.encode(problems).decode()
        async with self._batches.engine.begin() as connection:
            if await self._batches.fail(connection, batch.batch_id, self._holder, errors):
                await self._told(connection, batch, "batch.failed")
                self._observer.count_batch("batch.failed")

    async def _finalize(self, batch: Batch) -> None:
        async def still_mine() -> None:
            await self._hold(batch)

        keep_us = self._section.keep_days * _DAY_US
        made = await write_files(batch, self._batches, self._files, keep_us=keep_us, still_mine=still_mine)
        owner = Owner(organisation_id=batch.organisation_id, team_id=batch.team_id)
        event: Event = EVENTS[batch.ending]
        async with self._batches.engine.begin() as connection:
            ended = await self._batches.end(
                connection,
                batch,
                self._holder,
                output_file_id=None if made.output is None else made.output.file_id,
                error_file_id=None if made.errors is None else made.errors.file_id,
            )
            if not ended:
                return
            for record in (made.output, made.errors):
                if record is not None:
                    await self._files.put_in(connection, owner, record)
            await self._told(connection, batch, event)
        self._observer.count_batch(event)
        self._judge_estimate(await self._batches.get(batch.batch_id))
        while await self._batches.forget_results(batch.batch_id, _AT_A_TIME):
            pass

    def _judge_estimate(self, batch: Batch) -> None:
        if batch.estimated_us is not None and batch.completed_us is not None and batch.in_progress_us is not None:
            took_us = max(1, batch.completed_us - batch.in_progress_us)
            self._observer.observe_estimate(abs(batch.completed_us - batch.estimated_us) / took_us)

    async def _hold(self, batch: Batch) -> None:
        if not await self._batches.hold(batch.batch_id, self._holder, self._lease_us):
            raise _LeaseLost

    async def forget(self) -> None:
        """Delete rows that are not needed any more: answers that files have, old batches, and expired files."""
        for batch_id in await self._batches.with_results():
            while await self._batches.forget_results(batch_id, _AT_A_TIME):
                pass
        while await self._batches.forget_old(self._section.keep_days * _DAY_US, _AT_A_TIME):
            pass
        await self._files.sweep()


EVENTS: Final[Mapping[str, Event]] = {
    "failed": "batch.failed",
    "completed": "batch.completed",
    "expired": "batch.expired",
    "cancelled": "batch.cancelled",
}
"""The event of each way to end."""


def event_id(batch_id: str, event: Event) -> str:
    """Return the id of a batch's event: the same each time."""
    return f"evt_{blake2b(f'{batch_id}:{event}'.encode(), digest_size=12).hexdigest()}"


def _out_of(out: Mapping[str, Out], batch: Batch) -> Out:
    return out.get(batch.batch_id, NOTHING_OUT)


class _Line(msgspec.Struct):
    body: msgspec.Raw


_decode_line: Final = msgspec.json.Decoder(_Line).decode
