"""A reply is recorded as it goes out, kept before its end does, and given again byte by byte."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.ext.asyncio import AsyncEngine

from proxy.admit.idempotency.claims import Claim, Replay
from proxy.admit.idempotency.recording import Recording, is_worth_keeping, replay
from proxy.errors import KeyInFlight, error_reply
from proxy.http.reply import Reply
from tests.proxy.admit.idempotency.processes import Clock, Process, rows, small_database
from tests.proxy.exchanges import HeardExchange

DECISION = [
    (b"x-weighbridge-target", b"own"),
    (b"x-weighbridge-cost-usd", b"0.1"),
    (b"x-ratelimit-limit-requests", b"9"),
]


class Caller(HeardExchange):
    """What it is told may be recorded first."""

    def __init__(self, recording: Recording | None = None, heard: Callable[[], None] = lambda: None) -> None:
        super().__init__(heard=heard)
        self.recording = recording

    @property
    def told_headers(self) -> dict[bytes, bytes]:
        return dict(self.messages[0]["headers"])

    @property
    def told(self) -> tuple[int, bytes]:
        return self.messages[0]["status"], b"".join(each.get("body", b"") for each in self.messages[1:])


def reply_to(caller: Caller, request_id: bytes = b"req_0") -> Reply:
    reply = Reply(caller, lambda: 0.0)
    reply.recording = caller.recording
    reply.lines = b"x-request-id: %b\r\n" % request_id
    return reply


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    async with small_database(tmp_path) as made:
        yield made


@pytest.fixture
def process(engine: AsyncEngine) -> Process:
    return Process("one", engine, Clock(), max_answer_bytes=2_000)


def always(_status: int) -> bool:
    return True


async def given_again(found: Replay) -> Caller:
    caller = Caller()
    await replay(reply_to(caller, b"req_9"), found)
    return caller


async def test_a_whole_answer_is_given_again(process: Process) -> None:
    """The same status, bytes and decision; limits and the request's id are the new one's own."""
    claim = await process.claimed()
    first = Caller(Recording(claim, always))
    await reply_to(first).whole(200, b'{"a":1}', DECISION)
    again = await given_again(await process.replayed())
    assert again.told == first.told == (200, b'{"a":1}')
    assert again.told_headers == {
        b"content-type": b"application/json",
        b"x-request-id": b"req_9",
        b"x-weighbridge-target": b"own",
        b"x-weighbridge-cost-usd": b"0.1",
        b"idempotent-replayed": b"true",
        b"x-weighbridge-original-request-id": claim.request_id.encode(),
    }
    assert process.once.recorded_bytes == 0


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 200_000])
async def test_a_stream_is_given_again(engine: AsyncEngine, size: int) -> None:
    """As events, in pieces, the same bytes."""
    process = Process("one", engine, Clock())
    first = Caller(Recording(await process.claimed(), always))
    reply = reply_to(first)
    reply.begin_events(DECISION)
    await reply.events(b"x" * size)
    await reply.end(b"data: [DONE]\n\n")
    again = await given_again(await process.replayed())
    assert again.told == first.told
    assert max(len(each["body"]) for each in again.messages[1:]) <= 65_536
    assert again.messages[-1]["more"] is False
    same = (b"content-type", b"cache-control", b"x-accel-buffering", b"x-weighbridge-target")
    assert [again.told_headers[name] for name in same] == [first.told_headers[name] for name in same]
    assert [name for name, _ in again.messages[0]["headers"]].count(b"content-type") == 1


async def test_an_answer_is_kept_before_its_end_goes_out(process: Process) -> None:
    """Whoever has a whole answer gets the same again; before that the key is in flight."""
    caller = Caller(Recording(await process.claimed(), always))
    reply = reply_to(caller)
    reply.begin_events()
    await reply.events(b"1")
    with pytest.raises(KeyInFlight):
        await process.replayed()
    kept: list[asyncio.Task[Replay]] = []
    caller._heard = lambda: kept.append(asyncio.ensure_future(process.replayed()))
    await reply.end(b"2")
    assert (await kept[0]).body == b"12"


async def test_an_error_that_cost_something_is_given_again(process: Process) -> None:
    """With its status, and with word that sending it again is of no use."""
    first = Caller(Recording(await process.claimed(), always))
    told = error_reply(RuntimeError("not told"))
    await reply_to(first).error(told)
    again = await given_again(await process.replayed())
    assert again.told == (500, told.body)
    assert again.told_headers[b"x-should-retry"] == b"false"


async def test_what_is_not_worth_keeping_frees_the_key(process: Process, engine: AsyncEngine) -> None:
    """A refusal cost nothing, so its retry may succeed."""
    recording = Recording(await process.claimed(), lambda status: status < 400)
    await reply_to(Caller(recording)).error(error_reply(KeyInFlight("x")))
    await recording.close()
    assert await rows(engine) == []
    assert process.once.recorded_bytes == 0


@pytest.mark.parametrize("pieces", [[3_000], [1_000, 1_001], [1] * 2_001])
async def test_an_answer_over_the_bound_is_not_kept(process: Process, pieces: list[int]) -> None:
    """The caller gets all of it; no more than the bound is ever held, and nothing once it is passed."""
    recording = Recording(await process.claimed(), always)
    caller = Caller(recording)
    reply = reply_to(caller)
    reply.begin_events()
    for size in pieces:
        await reply.events(b"x" * size)
        assert process.once.recorded_bytes <= 2_000
    assert process.once.recorded_bytes == 0
    await reply.end()
    await recording.close()
    assert len(caller.told[1]) == sum(pieces)
    assert process.once.counts.too_large == 1


async def test_of_the_largest_answer_nothing_is_missing(process: Process) -> None:
    """The bound itself is within it."""
    await reply_to(Caller(Recording(await process.claimed(), always))).whole(200, b"x" * 2_000)
    assert len((await process.replayed()).body) == 2_000


async def test_an_answer_without_memory_to_record_it_is_not_kept(engine: AsyncEngine) -> None:
    """Others hold it all; still this one is never served twice."""
    process = Process("one", engine, Clock(), max_recorded_bytes=10)
    other = await process.claimed("other")
    assert other.hold(8)
    await reply_to(Caller(Recording(await process.claimed(), always))).whole(200, b"123")
    assert process.once.counts.too_large == 1
    assert process.once.recorded_bytes == 8


@pytest.mark.parametrize("sent", [0, 1, 2])
async def test_an_answer_that_broke_off_frees_the_key(
    process: Process, sent: int, caplog: pytest.LogCaptureFixture
) -> None:
    """There is nothing whole to give again; nothing of it is logged."""
    recording = Recording(await process.claimed(), always)
    reply = reply_to(Caller(recording))
    if sent:
        reply.begin_events()
    if sent == 2:
        await reply.events(b"secret")
    await recording.close()
    await recording.close()
    assert process.once.recorded_bytes == 0
    assert ("broke off" in caplog.text) == (sent > 0)
    assert "secret" not in caplog.text
    assert isinstance(await process.claim(), Claim)


async def test_a_whole_answer_stays_whatever_comes_after_it(process: Process) -> None:
    """The caller is gone when its end is written: it is kept, and closing does not free it."""
    recording = Recording(await process.claimed(), always)
    caller = Caller(recording)
    caller.hang_up()
    await reply_to(caller).whole(200, b"1")
    assert not caller.messages
    await recording.close()
    assert (await process.replayed()).body == b"1"


async def test_a_request_cancelled_at_its_end_keeps_its_answer(process: Process) -> None:
    """It was whole, and it may be booked already."""
    recording = Recording(await process.claimed(), always)
    reply = reply_to(Caller(recording))

    async def serve() -> None:
        try:
            await reply.whole(200, b"1")
        finally:
            await recording.close()

    serving = asyncio.ensure_future(serve())
    await asyncio.sleep(0)
    serving.cancel()
    await asyncio.wait({serving})
    await process.once.aclose()
    assert (await process.replayed()).body == b"1"


@pytest.mark.parametrize(
    ("status", "may_have_cost", "kept"),
    [
        (200, False, True),
        (404, False, False),
        (502, False, False),
        (502, True, True),
        (504, True, True),
        (500, True, True),
        (503, True, False),
        (429, True, False),
        (402, True, False),
    ],
)
def test_what_cost_something_is_worth_keeping(status: int, may_have_cost: bool, kept: bool) -> None:
    """And every good answer; but never one that says to come again."""
    assert is_worth_keeping(status, may_have_cost=may_have_cost) == kept


@given(pieces=st.lists(st.binary(max_size=700), max_size=8))
def test_any_pieces_come_back_as_one(pieces: list[bytes]) -> None:
    """Either all bytes in their order are kept, or, above the bound, none."""
    kept: list[Any] = []

    class Kept:
        request_id, max_answer_bytes = "req_1", 2_000

        def hold(self, size: int) -> bool:
            return True

        def let_go(self) -> None: ...

        async def keep(self, status: int, headers: Any, body: bytes | None) -> None:
            kept.append(body)

    async def record() -> None:
        recording = Recording(Kept(), always)  # type: ignore[arg-type]
        for index, piece in enumerate(pieces or [b""]):
            last = index == max(0, len(pieces) - 1)
            await recording.wrote(piece, last=last)

    asyncio.run(record())
    whole = b"".join(pieces)
    assert kept == [whole if len(whole) <= 2_000 else None]
