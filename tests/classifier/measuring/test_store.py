"""Measurements in the database, on SQLite and on PostgreSQL."""

import asyncio

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.measuring.store import (
    HELD_S,
    SAID_CHARS,
    CalibrationAnswer,
    MeasurementError,
    MeasurementStore,
    Order,
)

ORDER = Order(target_id="fresh", questions=3, budget_nanousd=2**40)


class Clock:
    """Moves when told to."""

    def __init__(self) -> None:
        self.now_us = 1_800_000_000_000_000

    def __call__(self) -> int:
        self.now_us += 1
        return self.now_us


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(engine: AsyncEngine, clock: Clock) -> MeasurementStore:
    return MeasurementStore(engine, now_us=clock)


async def test_one_process_at_a_time(store: MeasurementStore, clock: Clock) -> None:
    """Of many that look, one has it; when it falls silent another takes over, and it notices."""
    found, goes_on = await store.order(ORDER, "Ada")
    assert not goes_on
    taken = [each for each in await asyncio.gather(*(store.claim(f"boot-{at}") for at in range(5))) if each is not None]
    assert len(taken) == 1
    holder = taken[0].holder
    assert await store.claim("late") is None
    clock.now_us += int(HELD_S * 1_000_000) + 1
    later = await store.claim("late")
    assert later is not None
    assert later.measurement_id == found.measurement_id
    assert not await store.touch(found.measurement_id, holder)
    assert await store.touch(found.measurement_id, "late")
    await store.release(found.measurement_id, holder)
    assert await store.claim("third") is None
    await store.release(found.measurement_id, "late")
    assert await store.claim("third") is not None


async def test_a_second_order_goes_on_or_begins_anew(store: MeasurementStore) -> None:
    """While one runs there is no other; a stopped one goes on in the new bounds, a finished one stays."""
    first, _ = await store.order(ORDER, "Ada")
    with pytest.raises(MeasurementError, match="already"):
        await store.order(ORDER, "Ada")
    assert await store.stop(first.measurement_id, "enough")
    assert not await store.stop(first.measurement_id, "enough")
    await store.end(first.measurement_id, "finished", "", b"{}")
    stopped = await store.find(first.measurement_id)
    assert (stopped.state, stopped.reason) == ("finished", "enough")
    second, goes_on = await store.order(ORDER, "Ada")
    assert not goes_on
    assert second.measurement_id != first.measurement_id
    await store.stop(second.measurement_id, "enough")
    third, goes_on = await store.order(Order(target_id="fresh", questions=9), "Bo")
    assert goes_on
    assert (third.measurement_id, third.questions, third.reason) == (second.measurement_id, 9, "")
    await store.stop(third.measurement_id, "enough")
    fourth, goes_on = await store.order(ORDER, "Bo", anew=True)
    assert not goes_on
    assert {each.measurement_id for each in await store.newest()} == {
        first.measurement_id,
        second.measurement_id,
        fourth.measurement_id,
    }


async def test_answers_are_written_over_and_counted(store: MeasurementStore) -> None:
    """Each question counts once, with what it cost, however often it was asked."""
    found, _ = await store.order(ORDER, "Ada")
    one = CalibrationAnswer(measurement_id=found.measurement_id, question_id="a", cost_nanousd=2**40)
    await store.put(one)
    asked = await store.tally(found.measurement_id)
    assert (asked.scored, asked.spent_nanousd) == (0, 2**40)
    for question, outcome, cost in (("a", "right", 5), ("b", "unparsed", 7), ("c", "failed", 0)):
        await store.put(
            CalibrationAnswer(
                measurement_id=found.measurement_id,
                question_id=question,
                outcome=outcome,  # type: ignore[arg-type]
                said="x" * 2 * SAID_CHARS,
                cost_nanousd=cost,
                ttft_us=3,
            )
        )
    told = await store.tally(found.measurement_id)
    assert (told.scored, told.right, told.failed, told.spent_nanousd) == (2, 1, 1, 12)
    answers = await store.answers(found.measurement_id)
    assert [(each.question_id, len(each.said), each.ttft_us) for each in answers] == [
        ("a", SAID_CHARS, 3),
        ("b", SAID_CHARS, 3),
        ("c", SAID_CHARS, 3),
    ]
    nothing = await store.tally("mea_none")
    assert (nothing.scored, nothing.first_us) == (0, None)
    with pytest.raises(MeasurementError, match="no measurement"):
        await store.find("mea_none")
