"""Who serves a key and who gets its answer again, on SQLite and on PostgreSQL, over several processes."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.database import make_engine
from proxy.admit.idempotency.claims import Claim, Counts, Replay, check_key, fingerprint_of
from proxy.errors import (
    AnswerNotKept,
    BadRequest,
    IdempotencyUnavailable,
    KeyInFlight,
    KeyReused,
    TooManyKeys,
    error_reply,
)
from tests.proxy.admit.idempotency.processes import HOUR_S, JSON, Clock, Process, processes, rows, small_database


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def one(engine: AsyncEngine, clock: Clock) -> Process:
    return Process("one", engine, clock)


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    """For what does not hang on which database it is."""
    async with small_database(tmp_path) as made:
        yield made


@pytest.fixture
def alone(small: AsyncEngine, clock: Clock) -> Process:
    return Process("alone", small, clock)


@pytest.fixture
def two(engine: AsyncEngine, clock: Clock) -> Process:
    return Process("two", engine, clock)


async def test_of_a_hundred_at_once_one_serves(database_url: str, clock: Clock) -> None:
    """From four processes; 99 are told that it is in flight, and afterwards all get the same bytes."""
    async with processes(database_url, clock, 4) as four:
        asked = await asyncio.gather(*(four[index % 4].claim() for index in range(100)), return_exceptions=True)
        claims = [each for each in asked if isinstance(each, Claim)]
        assert len(claims) == 1
        assert sum(isinstance(each, KeyInFlight) for each in asked) == 99
        body = b'{"model_used":"a"}\xff\x00' * 100
        await claims[0].keep(200, [*JSON, (b"x-weighbridge-target", b"a/b \xe9")], body)
        again = await asyncio.gather(*(four[index % 4].replayed() for index in range(100)))
        assert {(each.request_id, each.status, each.headers, each.body) for each in again} == {
            (claims[0].request_id, 200, (*JSON, (b"x-weighbridge-target", b"a/b \xe9")), body)
        }
        assert sum(process.once.counts.claimed for process in four) == 1


async def test_another_body_is_refused_while_and_after(one: Process, two: Process) -> None:
    """In flight here, in flight elsewhere, answered: 422, and no client repeats that by itself."""
    claim = await one.claimed()
    for process in (one, two):
        with pytest.raises(KeyReused):
            await process.claim(body=b"{ }")
    await claim.keep(200, JSON, b"{}")
    with pytest.raises(KeyReused) as refused:
        await two.claim(body=b"{ }")
    told = error_reply(refused.value)
    assert (told.status, told.code, told.headers) == (422, "idempotency_key_reused", ())
    assert one.once.counts.reused + two.once.counts.reused == 3


async def test_teams_do_not_know_of_each_others_keys(alone: Process) -> None:
    """The same key is another key in another team."""
    claim = await alone.claimed()
    await claim.keep(200, JSON, b"secret")
    assert isinstance(await alone.claim(team="team_b"), Claim)


async def test_a_freed_key_is_as_new(one: Process, two: Process, engine: AsyncEngine) -> None:
    """Any process may claim it again, with any body."""
    await (await one.claimed()).free()
    assert await rows(engine) == []
    assert isinstance(await two.claim(body=b"other"), Claim)


@pytest.mark.parametrize(("after_s", "told_s"), [(0, "1"), (4, "4"), (50, "10")])
async def test_a_repeat_is_told_to_come_back_later(
    alone: Process, small: AsyncEngine, clock: Clock, after_s: float, told_s: str
) -> None:
    """What took long already may take as long again; clients wait so long and try again by themselves."""
    other = Process("other", small, clock)
    await alone.claimed()
    clock.now_s = after_s
    for process in (alone, other):
        with pytest.raises(KeyInFlight) as refused:
            await process.claim()
        told = error_reply(refused.value)
        assert (told.status, told.code) == (409, "idempotency_key_in_flight")
        assert dict(told.headers)[b"retry-after"] == told_s.encode()
        assert b"x-should-retry" not in dict(told.headers)


async def test_a_process_that_lives_keeps_its_keys(one: Process, two: Process, clock: Clock) -> None:
    """However long the answer takes."""
    await one.claimed()
    for _ in range(10):
        clock.now_s += 20
        await one.once.renew()
    with pytest.raises(KeyInFlight):
        await two.claim()


async def test_the_late_answer_of_a_frozen_process_does_not_overwrite(
    one: Process, two: Process, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Its key was taken over while it stood still: that is logged without the key, and the other's answer counts."""
    late = await one.claimed(key="my-secret-key")
    clock.now_s = 60
    claim = await two.claimed(key="my-secret-key")
    assert two.once.counts.taken_over == 1
    with caplog.at_level(logging.ERROR):
        await late.keep(200, JSON, b"late")
    assert late.request_id in caplog.text
    assert "secret" not in caplog.text
    assert one.once.counts.lost == 1
    await claim.keep(200, JSON, b"first")
    assert (await one.replayed(key="my-secret-key")).body == b"first"


async def test_a_late_end_does_not_free_anothers_key(one: Process, two: Process, clock: Clock) -> None:
    """Only what is one's own can be given back."""
    late = await one.claimed()
    clock.now_s = 60
    await two.claimed()
    await late.free()
    with pytest.raises(KeyInFlight):
        await one.claim()


async def test_answers_expire_and_are_purged(one: Process, engine: AsyncEngine, clock: Clock) -> None:
    """After `keep_h` a key is served anew, purged or not; a purge leaves what is newer."""
    for key in ("old", "older", "new"):
        clock.now_s = HOUR_S if key == "new" else 0
        await (await one.claimed(key)).keep(200, JSON, b"1")
    clock.now_s = 24 * HOUR_S - 1
    assert (await one.replayed("old")).body == b"1"
    clock.now_s += 1
    claim = await one.claimed("old", body=b"another")
    await claim.keep(200, JSON, b"2")
    await one.once.purge()
    assert [row.body for row in await rows(engine)] == [b"1", b"2"]
    assert one.once.counts.purged == 1
    assert one.once.counts.taken_over == 0
    assert (await one.replayed("old", body=b"another")).body == b"2"


async def test_an_answer_that_was_too_large_is_never_served_again(one: Process, two: Process) -> None:
    """Its key stays used: a repeat is told so in an error that no client repeats by itself."""
    claim = await one.claimed()
    await claim.keep(200, JSON, None)
    with pytest.raises(AnswerNotKept, match=f"served as {claim.request_id} with status 200") as refused:
        await two.claim()
    told = error_reply(refused.value)
    assert (told.status, told.code, told.headers) == (
        422,
        "idempotency_answer_not_kept",
        ((b"x-should-retry", b"false"),),
    )
    with pytest.raises(KeyReused):
        await two.claim(body=b"other")
    assert one.once.counts.too_large == two.once.counts.not_kept == 1


async def test_a_team_has_so_many_keys(small: AsyncEngine, clock: Clock) -> None:
    """Then new ones are refused, old ones are answered, other teams are not touched, and room is noticed again."""
    process = Process("one", small, clock, max_keys_per_team=3)
    for key in "abc":
        await (await process.claimed(key)).keep(200, JSON, b"1")
    with pytest.raises(TooManyKeys) as refused:
        await process.claim("d")
    told = error_reply(refused.value)
    assert (told.status, told.code) == (429, "idempotency_keys_full")
    assert dict(told.headers)[b"x-should-retry"] == b"false"
    assert (await process.replayed("a")).body == b"1"
    assert isinstance(await process.claim("d", team="team_b"), Claim)
    another = Process("two", small, clock, max_keys_per_team=3)
    with pytest.raises(TooManyKeys):
        await another.claim("d")
    clock.now_s = 24 * HOUR_S
    await process.once.purge()
    assert isinstance(await process.claim("d"), Claim)


@pytest.mark.parametrize("key", ["", "a b", "a\n", "schlüssel", "x" * 256])
async def test_a_key_that_is_none_is_refused(alone: Process, key: str) -> None:
    """It names the header and what would do."""
    with pytest.raises(BadRequest, match="`Idempotency-Key` must have 1 to 255 visible ASCII characters") as refused:
        await alone.claim(key)
    assert refused.value.param == "Idempotency-Key"


def test_any_visible_characters_make_a_key() -> None:
    """Quotes of the draft standard too."""
    check_key('"8e03978e-40d5-43dd-bc93-6894a57f9324"')
    check_key("x" * 255)


async def test_keys_and_bodies_are_stored_as_digests(alone: Process, small: AsyncEngine) -> None:
    """Neither stands in the table."""
    await alone.claimed(key="my-secret-key", body=b"my-secret-body")
    async with small.connect() as connection:
        table = str((await connection.exec_driver_sql("SELECT * FROM idempotent_request")).all())
    assert "team_a" in table
    assert "secret" not in table


def test_a_fingerprint_tells_requests_apart() -> None:
    """By path, body and what a caller asks for in headers; not by traces, deadlines and how often it was tried."""
    path, headers = "/v1/chat/completions", [(b"x-tier", b"batch")]
    same = [(b"x-tier", b" batch "), (b"x-tier", b"other"), (b"traceparent", b"t"), (b"x-stainless-retry-count", b"1")]
    mark = fingerprint_of(path, headers, b"{}")
    assert fingerprint_of(path, [(b"x-request-timeout-ms", b"9"), *same], b"{}") == mark
    others = [
        fingerprint_of("/v1/other", headers, b"{}"),
        fingerprint_of(path, headers, b"{ }"),
        fingerprint_of(path, [], b"{}"),
        fingerprint_of(path, [(b"x-priority", b"batch")], b"{}"),
        fingerprint_of(path, [*headers, (b"x-weighbridge-escalate", b"on")], b"{}"),
        fingerprint_of(path, [*headers, (b"x-weighbridge-tag", b"on")], b"{}"),
    ]
    assert len({mark, *others}) == 7


async def test_without_the_database_a_key_is_refused(clock: Clock) -> None:
    """503 and when to come back: nobody knows whether it was served. The address is not told."""
    engine = make_engine("postgresql://somebody@127.0.0.1:1/none")
    try:
        with pytest.raises(IdempotencyUnavailable) as refused:
            await Process("one", engine, clock).claim()
    finally:
        await engine.dispose()
    told = error_reply(refused.value)
    assert (told.status, told.code) == (503, "idempotency_unavailable")
    assert dict(told.headers)[b"retry-after"] == b"1"
    assert b"127" not in told.body


async def test_a_database_that_hangs_is_not_waited_for(engine: AsyncEngine, clock: Clock) -> None:
    """After `timeout_s` the request is refused; a claim that comes of it later is given back."""
    process = Process("one", engine, clock, timeout_s=0.05)
    hang, ask = asyncio.Event(), process.store.claim

    async def slowly(*args: Any, **options: Any) -> Any:
        await hang.wait()
        return await ask(*args, **options)

    process.store.claim = slowly  # type: ignore[method-assign]
    # More than may ask at once: those behind them ask no more when nobody waits.
    asked = await asyncio.gather(*(process.claim(f"{index}") for index in range(20)), return_exceptions=True)
    assert all(isinstance(each, IdempotencyUnavailable) for each in asked)
    hang.set()
    await process.once.aclose()
    assert await rows(engine) == []
    assert process.once.counts.freed == 4


async def test_who_goes_while_it_asks_leaves_no_claim(alone: Process, small: AsyncEngine) -> None:
    """At whatever moment it is cancelled."""
    for turns in range(30):
        task = asyncio.ensure_future(alone.claim(f"{turns}"))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            claim = await task
            assert isinstance(claim, Claim)
            await claim.free()
    await alone.once.aclose()
    assert await rows(small) == []


async def test_an_answer_survives_an_outage_of_the_database(one: Process, two: Process, clock: Clock) -> None:
    """It is written when the database is back, and until then its key is in flight."""
    claim = await one.claimed()
    one.store.down = True
    await claim.keep(200, JSON, b"answer")
    assert one.once.counts.failed_writes == 1
    with contextlib.suppress(Exception):
        await one.once.renew()
    with pytest.raises(KeyInFlight):
        await one.claim()
    one.store.down = False
    # Longer than the lease: nobody could take it meanwhile, for the database was away for all.
    clock.now_s = 600
    await one.once.renew()
    assert (await two.replayed()).body == b"answer"
    assert (await one.replayed()).body == b"answer"


async def test_what_was_kept_without_our_knowing_is_kept_once(one: Process, two: Process) -> None:
    """The database's yes got lost, so it is written again, and that is no loss of the key."""
    claim = await one.claimed()
    one.store.cut_after = True
    await claim.keep(200, JSON, b"answer")
    one.store.cut_after = False
    await one.once.renew()
    assert (one.once.counts.kept, one.once.counts.lost) == (1, 0)
    assert (await two.replayed()).body == b"answer"


@pytest.mark.parametrize("lost", ["claim", "free"])
async def test_a_key_that_nobody_serves_becomes_free(one: Process, two: Process, lost: str) -> None:
    """A claim whose yes got lost, and one whose end did not arrive, would otherwise be renewed for ever."""
    if lost == "claim":
        one.store.cut_after = True
        with pytest.raises(IdempotencyUnavailable):
            await one.claim()
        one.store.cut_after = False
    else:
        claim = await one.claimed()
        one.store.down = True
        await claim.free()
        one.store.down = False
    with pytest.raises(KeyInFlight):
        await two.claim()
    served = await one.claimed("another")
    await one.once.renew()
    assert isinstance(await two.claim(), Claim)
    with pytest.raises(KeyInFlight):
        await two.claim("another")
    await served.free()


async def test_an_answer_that_the_database_never_takes_is_given_up(one: Process, two: Process) -> None:
    """Its key becomes free then, instead of being in flight for ever."""
    claim = await one.claimed()
    one.store.refuses_answers = True
    await claim.keep(200, JSON, b"answer")
    for _ in range(6):
        with contextlib.suppress(ValueError):
            await one.once.renew()
    assert one.once.recorded_bytes == 0
    assert isinstance(await two.claim(), Claim)


async def test_only_the_first_end_counts(alone: Process) -> None:
    """Whoever comes second waits for the same end."""
    claim = await alone.claimed()
    await asyncio.gather(claim.keep(200, JSON, b"1"), claim.free(), claim.keep(500, JSON, b"2"))
    assert (await alone.replayed()).body == b"1"


async def test_an_end_goes_on_without_who_waits_for_it(alone: Process) -> None:
    """A cancelled request, and one that does not wait at all, keep their answers."""
    first, second = await alone.claimed("a"), await alone.claimed("b")

    async def wait() -> None:
        await first.keep(200, JSON, b"1")

    waiting = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    waiting.cancel()
    _ = second.keep(200, JSON, b"2")
    await alone.once.aclose()
    assert waiting.cancelled()
    assert [(await alone.replayed(key)).body for key in "ab"] == [b"1", b"2"]


async def test_a_database_that_hangs_holds_up_no_end(small: AsyncEngine, clock: Clock) -> None:
    """Closing waits for a moment in all, whatever is still to be written or freed."""
    process = Process("one", small, clock, timeout_s=2, close_s=0.05)
    claim, over = await process.claimed(), asyncio.Event()

    async def hang(*_args: Any, **_options: Any) -> bool:
        await over.wait()
        return False

    process.store.finish = hang  # type: ignore[method-assign]
    process.store.renew = hang  # type: ignore[assignment, method-assign]
    await claim.keep(200, JSON, b"1")
    async with asyncio.timeout(5):
        await process.once.aclose()
    over.set()
    await process.once.aclose()


async def test_answers_take_only_so_much_memory(small: AsyncEngine, clock: Clock) -> None:
    """Recorded ones and those given again together; all of it comes back."""
    process = Process("one", small, clock, max_recorded_bytes=100)
    claim = await process.claimed("a")
    assert claim.hold(60)
    assert not claim.hold(60)
    await claim.keep(200, JSON, b"x" * 60)
    assert process.once.recorded_bytes == 0
    again = await process.replayed("a")
    with pytest.raises(IdempotencyUnavailable):
        await process.claim("a")
    again.given()
    again.given()
    assert process.once.recorded_bytes == 0
    assert isinstance(await process.claim("a"), Replay)


async def test_it_runs_until_it_is_stopped(small: AsyncEngine, clock: Clock) -> None:
    """It renews what is held, outlives a database that is away, and writes what could not be written."""
    process = Process("one", small, clock, claim_s=1.0)
    claim = await process.claimed()
    process.store.down = True
    await claim.keep(200, JSON, b"1")
    # What is behind is tried each second; here, at once.
    running = asyncio.ensure_future(process.once.run())
    await asyncio.sleep(0)
    process.store.down = False
    for _ in range(300):
        if process.once.counts.kept:
            break
        await asyncio.sleep(0.01)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert (await process.replayed()).body == b"1"


async def test_what_happens_is_told_to_an_observer(small: AsyncEngine, clock: Clock) -> None:
    """By the names of the counts, which metrics take over."""
    told: dict[str, int] = {}

    def count(name: str, times: int) -> None:
        told[name] = told.get(name, 0) + times

    process = Process("one", small, clock, counted=count)
    await (await process.claimed()).keep(200, JSON, b"1")
    await process.replayed()
    assert told == {"claimed": 1, "kept": 1, "replayed": 1}
    assert set(told) <= set(Counts.__struct_fields__)
