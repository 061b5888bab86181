"""Claims, leases and answers of lines, on SQLite and on PostgreSQL."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from proxy.batch.batch import ClaimedLine
from proxy.batch.batch_errors import BatchEnded, BatchNotFound
from proxy.batch.files import Owner
from proxy.batch.store import BatchStore
from tests.proxy.batch.made_up import HOLDER, OWNER, SECOND_US, Clock, a_batch, result, stores

LEASE_US = 10 * SECOND_US


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(engine: AsyncEngine, tmp_path: Path, clock: Clock) -> BatchStore:
    return stores(engine, tmp_path / "files", clock)[0]


async def test_processes_that_claim_at_once_share_the_lines(store: BatchStore) -> None:
    """Each line is begun by one of them."""
    batch = await a_batch(store, 300)

    async def claim_all(holder: str) -> list[ClaimedLine]:
        found: list[ClaimedLine] = []
        while more := await store.claim(batch.batch_id, 7, holder, LEASE_US):
            assert len(more) <= 7
            found += more
        return found

    claimed = await asyncio.gather(*(claim_all(f"process-{number}") for number in range(4)))
    numbers = Counter(line.number for lines in claimed for line in lines)
    assert numbers == Counter(range(1, 301))
    assert {line.generation for lines in claimed for line in lines} == {1}


async def test_an_answer_is_written_once_whoever_brings_it(store: BatchStore, clock: Clock) -> None:
    """What comes after the lease has ended, and the line was begun again, is not written."""
    batch = await a_batch(store, 2)
    first = await store.claim(batch.batch_id, 2, "slow", LEASE_US)
    clock.passes(11)
    assert await store.free_abandoned() == 2
    second = await store.claim(batch.batch_id, 2, "quick", LEASE_US)
    assert [line.generation for line in second] == [2, 2]
    assert await store.answer([result(first[0])]) == []
    written = await store.answer([result(line) for line in second])
    assert len(written) == 2
    # Twice is once.
    assert await store.answer([result(line) for line in second]) == []
    after = await store.get(batch.batch_id)
    assert (after.completed, after.failed, after.repeated) == (2, 0, 2)
    assert (after.tokens_left, after.reserved_nanousd, after.cost_nanousd) == (0, 0, 14)
    assert (after.input_tokens, after.output_tokens) == (6, 4)
    outcomes = await store.outcomes(batch.batch_id, 0, 10)
    assert [each.request_id for each in outcomes] == ["req_1_2", "req_2_2"]


async def test_a_lease_that_is_renewed_does_not_end(store: BatchStore, clock: Clock) -> None:
    """Only the process that holds it renews it."""
    batch = await a_batch(store, 3)
    await store.claim(batch.batch_id, 2, "one", LEASE_US)
    await store.claim(batch.batch_id, 1, "two", LEASE_US)
    clock.passes(9)
    assert await store.renew("one", LEASE_US) == 2
    clock.passes(2)
    assert await store.free_abandoned() == 1


async def test_a_line_that_is_given_back_waits_as_long_as_it_shall(store: BatchStore, clock: Clock) -> None:
    """A failure counts, no room does not."""
    batch = await a_batch(store, 1)
    (line,) = await store.claim(batch.batch_id, 1, HOLDER, LEASE_US)
    await store.give_back([(line, 5 * SECOND_US)], HOLDER)
    assert await store.claim(batch.batch_id, 1, HOLDER, LEASE_US) == []
    clock.passes(5)
    (line,) = await store.claim(batch.batch_id, 1, HOLDER, LEASE_US)
    assert (line.failures, line.generation) == (0, 2)
    await store.give_back([(line, 0)], HOLDER, failed=True)
    (line,) = await store.claim(batch.batch_id, 1, HOLDER, LEASE_US)
    assert (line.failures, line.generation) == (1, 3)
    assert (await store.get(batch.batch_id)).repeated == 1


async def test_a_line_that_failed_waits_for_no_provider(store: BatchStore) -> None:
    """Those that never were begun do; of a failed one nothing is to be decided, also by a process that has just started."""
    batch = await a_batch(store, 3)
    assert await store.claim(batch.batch_id, 3, HOLDER, LEASE_US, -1) == []
    _, second, _ = await store.claim(batch.batch_id, 3, HOLDER, LEASE_US)
    await store.give_back([(second, 0)], HOLDER, failed=True)
    (line,) = await store.claim(batch.batch_id, 3, HOLDER, LEASE_US, -1)
    assert line.number == second.number


async def test_a_cancelled_batch_ends_when_its_last_line_does(store: BatchStore) -> None:
    """What runs is answered, what waits never begins, and a second cancel changes nothing."""
    batch = await a_batch(store, 3)
    (line,) = await store.claim(batch.batch_id, 1, HOLDER, LEASE_US)
    cancelled = await store.cancel(OWNER, batch.batch_id)
    assert await store.cancel(OWNER, batch.batch_id) == cancelled
    assert await store.claim(batch.batch_id, 3, HOLDER, LEASE_US) == []
    assert await store.take(("cancelling",), HOLDER, LEASE_US) is None
    await store.answer([result(line)])
    assert (await store.take(("cancelling",), HOLDER, LEASE_US)) is not None
    states = Counter(each.state for each in await store.outcomes(batch.batch_id, 0, 10))
    assert states == {2: 1, 4: 2}


async def test_a_line_given_back_after_its_batch_was_closed_is_closed_too(store: BatchStore) -> None:
    """It must not hold the batch open for ever."""
    batch = await a_batch(store, 1)
    (line,) = await store.claim(batch.batch_id, 1, HOLDER, LEASE_US)
    await store.cancel(OWNER, batch.batch_id)
    await store.give_back([(line, 0)], HOLDER)
    assert await store.take(("cancelling",), HOLDER, LEASE_US) is not None
    assert [each.state for each in await store.outcomes(batch.batch_id, 0, 10)] == [4]


async def test_a_batch_whose_time_is_over_begins_no_more(store: BatchStore, clock: Clock) -> None:
    """Its answers are kept, the rest expires."""
    batch = await a_batch(store, 3, "1h")
    background = await a_batch(store, 1, "background")
    (line,) = await store.claim(batch.batch_id, 1, HOLDER, LEASE_US)
    await store.answer([result(line)])
    assert await store.end_due() == []
    clock.passes(3_600)
    assert await store.end_due() == [batch.batch_id]
    assert (await store.get(batch.batch_id)).status == "finalizing"
    assert (await store.get(background.batch_id)).status == "in_progress"
    assert Counter(each.state for each in await store.outcomes(batch.batch_id, 0, 10)) == {2: 1, 3: 2}
    with pytest.raises(BatchEnded):
        await store.cancel(OWNER, batch.batch_id)


async def test_a_batch_is_finalized_by_one_process_at_a_time(store: BatchStore, clock: Clock) -> None:
    """Whose lease ends loses it to the next one, and ends nothing any more."""
    batch = await a_batch(store, 1)
    (line,) = await store.claim(batch.batch_id, 1, HOLDER, LEASE_US)
    assert await store.finish_answered() == 0
    await store.answer([result(line)])
    assert await store.finish_answered() == 1
    first = await store.take(("finalizing",), "one", LEASE_US)
    assert first is not None
    assert await store.take(("finalizing",), "two", LEASE_US) is None
    clock.passes(11)
    assert await store.take(("finalizing",), "two", LEASE_US) is not None
    assert not await store.hold(batch.batch_id, "one", LEASE_US)
    for holder, is_first in (("one", False), ("two", True), ("two", False)):
        async with store.engine.begin() as connection:
            done = await store.end(connection, first, holder, output_file_id="file-o", error_file_id=None)
        assert done is is_first
    after = await store.get(batch.batch_id)
    assert (after.status, after.output_file_id) == ("completed", "file-o")
    assert await store.with_results() == [batch.batch_id]
    assert await store.forget_results(batch.batch_id, 10) == 1
    clock.passes(10)
    assert await store.forget_old(5 * SECOND_US, 10) == 1
    assert await store.forget_old(5 * SECOND_US, 10) == 1
    with pytest.raises(BatchNotFound):
        await store.get(batch.batch_id)


async def test_lines_that_are_added_twice_are_there_once(store: BatchStore) -> None:
    """So a validation that was broken off may begin anew."""
    batch = await a_batch(store, 5)
    assert batch.total == 5
    again = await store.outcomes(batch.batch_id, 2, 2)
    assert [each.number for each in again] == [3, 4]


async def test_another_team_has_none_of_it(store: BatchStore) -> None:
    """The team is part of every question."""
    batch = await a_batch(store, 1)
    other = Owner(organisation_id="default", team_id="team_b")
    for ask in (store.find, store.cancel):
        with pytest.raises(BatchNotFound):
            await ask(other, batch.batch_id)
    assert (await store.page(other, after=None, limit=10)).batches == []
    assert await store.waiting_tokens(other) == 0
    assert await store.waiting_tokens(OWNER) == 100
