"""Batches in trouble are found: what will be late at the measured speed, what expired, and what fails for no fault of its own."""

from pathlib import Path

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from api.operations.batches import ENDED_US, read_ill, will_be_late
from proxy.batch.store import BatchStore
from tests.api.operations.test_incidents import incidents, quiet
from tests.proxy.batch.made_up import HOLDER, SECOND_US, Clock, a_batch, result, stores

LEASE_US = 100_000 * SECOND_US
HOUR_S = 3_600


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(engine: AsyncEngine, tmp_path: Path, clock: Clock) -> BatchStore:
    return stores(engine, tmp_path / "files", clock)[0]


async def answered(store: BatchStore, batch_id: str, lines: int, status: int = 200) -> None:
    claimed = await store.claim(batch_id, lines, HOLDER, LEASE_US)
    await store.answer([result(line, status) for line in claimed])


async def test_a_batch_that_will_be_late_is_told_before_it_is(store: BatchStore, clock: Clock) -> None:
    """By the speed so far: 100 of 1,000 lines in three of 24 hours; what is due earlier goes before."""
    batch = await a_batch(store, 1_000)
    assert await read_ill(store) == []
    clock.passes(3 * HOUR_S)
    await answered(store, batch.batch_id, 100)
    (ill,) = await read_ill(store)
    assert (ill.batch_id, ill.team_id, ill.model, ill.expired, ill.failed) == (batch.batch_id, "team_a", "m", 0, 0)
    assert (ill.late, round(ill.late_s)) == (200, 6 * HOUR_S)
    (found,) = incidents(quiet() | {"batches": [msgspec.to_builtins(ill)]})
    assert (found.severity, found.kind, found.requests, found.refused, found.teams) == ("warn", "late", 200, 0, 1)
    assert "it will miss its guarantee of 24h: at the speed of the last batches 200 of its 1,000 lines" in found.text
    behind = msgspec.structs.replace(await store.get(batch.batch_id), batch_id="batch_z")
    late = will_be_late([await store.get(batch.batch_id), behind], 900 * 100 / (30 * HOUR_S), store.now_us())
    assert {name: lines for name, (lines, _) in late.items()} == {batch.batch_id: 270, "batch_z": 900}


async def test_what_may_take_its_time_is_never_late(store: BatchStore, clock: Clock) -> None:
    """A background batch has no guarantee."""
    batch = await a_batch(store, 1_000, window="background")
    clock.passes(3 * HOUR_S)
    await answered(store, batch.batch_id, 10)
    assert await read_ill(store) == []


async def test_a_missed_guarantee_is_an_incident_with_its_victims(
    store: BatchStore, clock: Clock, engine: AsyncEngine
) -> None:
    """The lines that expired are its team's, told for a while after its end."""
    batch = await a_batch(store, 50)
    await answered(store, batch.batch_id, 20)
    clock.passes(25 * HOUR_S)
    assert await store.end_due() == [batch.batch_id]
    ended = await store.take(("finalizing",), HOLDER, LEASE_US)
    assert ended is not None
    async with engine.begin() as connection:
        assert await store.end(connection, ended, HOLDER, output_file_id=None, error_file_id=None)
    (ill,) = await read_ill(store)
    (found,) = incidents(quiet() | {"batches": [msgspec.to_builtins(ill)]})
    assert (found.severity, found.kind, found.requests, found.refused) == ("bad", "late", 30, 30)
    assert "it missed its guarantee of 24h: 30 of its 50 lines expired" in found.text
    assert found.href == f"/dashboard/teams/team_a/batches/{batch.batch_id}"
    clock.passes(ENDED_US / SECOND_US + 1)
    assert await read_ill(store) == []


@pytest.mark.parametrize(("status", "is_ill"), [(502, True), (429, True), (402, True), (400, False), (404, False)])
async def test_lines_that_fail_for_no_fault_of_their_own(store: BatchStore, status: int, is_ill: bool) -> None:
    """An upstream's outage is an incident; lines that ask for nonsense are their caller's."""
    batch = await a_batch(store, 100)
    await answered(store, batch.batch_id, 30)
    await answered(store, batch.batch_id, 10, status)
    found = [each.failed for each in await read_ill(store)]
    assert found == ([10] if is_ill else [])


async def test_a_few_failures_of_many_are_none(store: BatchStore) -> None:
    """Less than a twentieth, or too few answers to tell."""
    batch = await a_batch(store, 100)
    await answered(store, batch.batch_id, 10, 502)
    assert await read_ill(store) == []
    small = await a_batch(store, 2)
    await answered(store, small.batch_id, 2, 502)
    assert [(each.batch_id, each.failed) for each in await read_ill(store)] == [(small.batch_id, 2)]


def test_failing_lines_are_a_part_of_their_models_outage() -> None:
    """One incident, whose victims are counted once."""
    ill = {
        "batch_id": "batch_1",
        "organisation_id": "default",
        "team_id": "team_a",
        "model": "gpu-model",
        "window": "24h",
        "total": 100,
        "done": 40,
        "expired": 0,
        "late": 0,
        "late_s": 0.0,
        "failed": 30,
        "since_us": None,
    }
    (alone,) = incidents(quiet() | {"batches": [ill]})
    assert (alone.subject, alone.severity, alone.kind, alone.requests, alone.refused) == (
        "batch batch_1",
        "bad",
        "errors",
        30,
        30,
    )
