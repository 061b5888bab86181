"""The runner at rest, and how soon it begins."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from accounts.caller import Caller
from proxy.batch.batch import Batch, ClaimedLine, NewBatch
from proxy.batch.batch_config import BatchSection
from proxy.batch.files import FileStore
from proxy.batch.line_protocol import LineReply, LineRequest
from proxy.batch.observers import Event
from proxy.batch.runner import BatchRunner
from proxy.batch.scheduler import Slack
from proxy.batch.store import BatchStore
from proxy.batch.validation import LineSize, Problem, Validated
from proxy.shared.retryable import meaning
from selfhosted.replica import PoolReading
from tests.processes import until
from tests.proxy.batch.made_up import HOLDER, OWNER, Clock, stores
from tests.proxy.contexts import ALICE

_POLL_S = 0.01
_LINE = b'{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"m","messages":[]}}\n'


class _House:
    """All that a runner asks: there is room and money, and each line is answered at once."""

    blocked = False
    looks = 0
    asked = 0
    fails = 0
    """The first so many lines are answered by a failure that passes."""

    def idle(self, model: str | None) -> float:
        del model
        return 1.0

    def reading(self, model: str | None) -> PoolReading | None:
        del model
        return None

    async def caller_of(self, key_id: str) -> Caller | None:
        del key_id
        return ALICE

    async def is_blocked(self, key_id: str) -> bool:
        del key_id
        self.looks += 1
        return self.blocked

    def bound_for(self, caller: Caller) -> "_House":
        del caller
        return self

    def __call__(self, size: LineSize) -> int | None:
        del size
        return 0

    async def problem(self, caller: Caller, validated: Validated, batch_id: str = "") -> Problem | None:
        del caller, validated, batch_id
        return None

    async def answer(self, asked: LineRequest) -> LineReply:
        del asked
        self.asked += 1
        return LineReply(status=503 if self.asked <= self.fails else 200, body=b"{}")


async def _told(connection: AsyncConnection, batch: Batch, event_: Event) -> None:
    del connection, batch, event_


def _runner(
    batches: BatchStore, files: FileStore, poll_s: float, house: _House | None = None, up_to: int | None = None
) -> BatchRunner:
    house = house or _House()
    return BatchRunner(
        section=BatchSection().model_copy(update={"poll_s": poll_s}),
        batches=batches,
        files=files,
        answering=house,
        caller_of=house.caller_of,
        is_blocked=house.is_blocked,
        room=house,
        money=house,
        told=_told,
        holder=HOLDER,
        max_line_bytes=lambda: 1_000,
        bound=lambda _batch: up_to,
    )


async def test_without_batches_it_hardly_asks(engine: AsyncEngine, tmp_path: Path) -> None:
    """One small question, ever more seldom; a batch that another process made is found all the same."""
    batches, files = stores(engine, tmp_path, Clock())
    asked: Counter[str] = Counter()

    def count(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        asked[statement.split(maxsplit=1)[0]] += 1

    event.listen(engine.sync_engine, "before_cursor_execute", count)
    runner = _runner(batches, files, poll_s=_POLL_S)
    running = asyncio.create_task(runner.run(lambda: False))
    try:
        await until(lambda: runner.rest_s >= _POLL_S * 2**5)
        assert asked["UPDATE"] <= 5, "the duties of one round"
        assert asked["SELECT"] <= 14
        await _completed(stores(engine, tmp_path, Clock())[0], files)
    finally:
        running.cancel()
        await asyncio.wait({running})
        event.remove(engine.sync_engine, "before_cursor_execute", count)


async def test_a_batch_that_this_process_made_begins_at_once(engine: AsyncEngine, tmp_path: Path) -> None:
    """By itself the runner would look again after longer than the test may take."""
    batches, files = stores(engine, tmp_path, Clock())
    runner = _runner(batches, files, poll_s=60.0)
    running = asyncio.create_task(runner.run(lambda: False))
    try:
        await until(lambda: runner._idle_looks == 1)
        await _completed(batches, files)
    finally:
        running.cancel()
        await asyncio.wait({running})


async def test_a_batch_that_is_made_during_a_look_begins_at_once(
    engine: AsyncEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look did not see it, and the next is after longer than the test may take."""
    batches, files = stores(engine, tmp_path, Clock())
    runner = _runner(batches, files, poll_s=60.0)
    take, made = batches.take, list[asyncio.Task[None]]()

    async def take_and_make(*asked: Any) -> Any:
        found = await take(*asked)
        if not made:
            made.append(asyncio.create_task(_completed(batches, files)))
            await until(lambda: runner._news > 0)
        return found

    monkeypatch.setattr(batches, "take", take_and_make)
    running = asyncio.create_task(runner.run(lambda: False))
    try:
        await until(lambda: bool(made))
        await made[0]
    finally:
        running.cancel()
        await asyncio.wait({running})


async def test_whoever_is_blocked_waits(engine: AsyncEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a batch nor a line fails for it, and none is begun: a block is for now."""
    monkeypatch.setattr("proxy.batch.runner._CALLER_S", -1.0)
    clock, house = Clock(), _House()
    batches, files = stores(engine, tmp_path, clock)
    house.blocked = True
    runner = _runner(batches, files, _POLL_S, house)
    running = asyncio.create_task(runner.run(lambda: False))
    ending = asyncio.create_task(_completed(batches, files))
    try:
        await until(lambda: house.looks >= 1)
        (batch,) = await batches.newest(OWNER.organisation_id, None, 1)
        assert batch.status == "validating"
        assert meaning(503, "key_blocked", 99, 1) == "not now"
        told = await runner._ask(batch, cast(ClaimedLine, None), "req_1", cast(Slack, None))
        assert (told.status, told.code) == (503, "key_blocked")
        house.blocked = False
        clock.passes(3_600)
        await ending
    finally:
        running.cancel()
        ending.cancel()
        await asyncio.wait({running, ending})


async def test_a_line_that_failed_is_tried_again_where_others_may_go_to_a_provider(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """While it waited nothing could be begun here, which is not so for ever."""
    clock, house = Clock(), _House()
    house.fails = 1
    batches, files = stores(engine, tmp_path, clock)
    runner = _runner(batches, files, _POLL_S, house, up_to=0)
    running = asyncio.create_task(runner.run(lambda: False))
    ending = asyncio.create_task(_completed(batches, files))
    try:
        await until(lambda: house.asked == 1 and bool(runner._nothing_up_to))
        clock.passes(3_600)
        await ending
    finally:
        running.cancel()
        ending.cancel()
        await asyncio.wait({running, ending})


async def _completed(made_by: BatchStore, files: FileStore) -> None:
    """Makes a batch of one line, and waits for its end."""
    async with files.adding(OWNER) as new:
        new.filename = "a.jsonl"
        await new.write(_LINE)
    batch = await made_by.create(
        NewBatch(
            organisation_id=OWNER.organisation_id, team_id=OWNER.team_id, key_id="key_1",
            endpoint="/v1/chat/completions", input_file_id=new.file_id, completion_window="24h",
        )
    )  # fmt: skip

    async def has_ended() -> bool:
        return (await made_by.get(batch.batch_id)).status == "completed"

    await until(has_ended)
