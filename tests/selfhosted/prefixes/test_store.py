"""The table of habits: added to, read by scope, pruned, and never counted twice."""

import asyncio
from collections.abc import Callable, Sequence

import msgspec
import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.reports.scope import ReadScope
from cost.times import DAY_US
from selfhosted.prefixes.store import KEPT_DAYS, MOST_AT_ONCE, PrefixStore, PrefixWriter, keep_pruned
from selfhosted.prefixes.tracker import HabitDelta, PrefixTracker

DAY = 20_000 * DAY_US
ACME = ReadScope(organisation_id="acme", team_id=None)


def delta(
    requests: int = 10,
    broken: int = 4,
    first: int = 30,
    kinds: tuple[str, ...] = ("date",),
    *,
    day_us: int = DAY,
    team: str = "t",
    organisation: str = "acme",
    skeleton: str = "ab",
) -> HabitDelta:
    return HabitDelta(
        day_us=day_us,
        organisation_id=organisation,
        team_id=team,
        target_id="llama",
        skeleton=skeleton,
        requests=requests,
        prompt_tokens=requests * 100,
        broken=broken,
        broken_tokens=broken * 50,
        first_break_tokens=first,
        kinds=kinds,
    )


async def test_deltas_are_added(engine: AsyncEngine) -> None:
    """Sums add up, the least of the breaks stays, and kinds are joined, over processes and days."""
    one, other = PrefixStore(engine), PrefixStore(engine)
    await one.add([delta(broken=0, first=0, kinds=())])
    await other.add([delta(first=30), delta(1, 1, 20, ("uuid",), day_us=DAY + DAY_US)])
    await one.add([delta(first=40, kinds=("time",)), delta(broken=0, first=0, kinds=(), skeleton="cd")])
    found = {each.skeleton: each for each in await one.read(ACME, DAY, DAY + 2 * DAY_US)}
    habit = found["ab"]
    assert (habit.requests, habit.broken, habit.broken_tokens, habit.prompt_tokens) == (31, 9, 450, 3_100)
    assert (habit.first_break_tokens, habit.kinds, habit.first_day_us) == (20, ("date", "time", "uuid"), DAY)
    assert found["cd"].broken == 0
    (today,) = [each for each in await one.read(ACME, DAY, DAY + DAY_US) if each.skeleton == "ab"]
    assert (today.requests, today.first_break_tokens) == (30, 30)


async def test_processes_at_once(engine: AsyncEngine) -> None:
    """Many writers of the same rows, each in its own order, all get through, and nothing is lost."""
    rows = [delta(skeleton=f"s{number}") for number in range(30)]
    await asyncio.gather(*(PrefixStore(engine).add(rows[shift:] + rows[:shift]) for shift in range(6)))
    found = await PrefixStore(engine).read(ACME, DAY, DAY + DAY_US)
    assert {each.requests for each in found} == {60}
    assert len(found) == 30


async def test_who_reads_what(engine: AsyncEngine) -> None:
    """A team reads its own, an organisation all of its teams, and nobody another organisation's."""
    store = PrefixStore(engine)
    await store.add([delta(), delta(team="u"), delta(team="q", organisation="rival")])
    days = (DAY, DAY + DAY_US)
    assert {each.team_id for each in await store.read(ACME, *days)} == {"t", "u"}
    assert {each.team_id for each in await store.read(ReadScope(organisation_id="acme", team_id="u"), *days)} == {"u"}
    assert await store.read(ReadScope(organisation_id="acme", team_id="q"), *days) == []


async def test_old_days_go(engine: AsyncEngine) -> None:
    """What is older than it is kept is deleted, and nothing else."""
    store = PrefixStore(engine)
    await store.add([delta(day_us=DAY - DAY_US), delta()])
    await store.prune(DAY)
    (left,) = await store.read(ACME, 0, DAY + DAY_US)
    assert left.first_day_us == DAY


def counted() -> PrefixTracker:
    habits = PrefixTracker(key=b"k", now_us=lambda: DAY)
    for number in range(5):
        habits.observe("acme", "t", "llama", f"Turn {number}. {'Be kind. ' * 90}".encode(), 300)
        habits.digest()
    return habits


class Failing(PrefixStore):
    """A store that fails once, before or while it commits."""

    def __init__(self, engine: AsyncEngine, failure: BaseException, *, committing: bool) -> None:
        super().__init__(engine)
        self._failures = [failure]
        self._committing = committing

    async def add(self, deltas: Sequence[HabitDelta], committing: Callable[[], None] = lambda: None) -> None:
        if self._failures:
            if self._committing:
                # The worst case: it was written, and the answer was lost.
                await super().add(deltas)
                committing()
            raise self._failures.pop()
        await super().add(deltas, committing)


@pytest.mark.parametrize("committing", [False, True])
@pytest.mark.parametrize("failure", [TimeoutError(), OSError("gone"), OperationalError("x", {}, Exception())])
async def test_a_failed_write_counts_nothing_twice(engine: AsyncEngine, failure: Exception, committing: bool) -> None:
    """Before the commit it is tried again; what may have been committed is not, and is told as lost."""
    store = PrefixStore(engine)
    lost: list[int] = []
    keep = PrefixWriter(counted(), Failing(engine, failure, committing=committing), lost=lost.append)
    await keep.flush()
    assert lost == ([5] if committing else [])
    await keep.flush()
    (found,) = await store.read(ACME, DAY, DAY + DAY_US)
    assert found.requests == 5


async def test_a_write_that_is_cancelled_before_its_commit_is_written_at_the_end(engine: AsyncEngine) -> None:
    """The process ends while the loop writes: `aclose` still writes what was counted, once."""
    store = PrefixStore(engine)
    failing = Failing(engine, asyncio.CancelledError(), committing=False)
    keep = PrefixWriter(counted(), failing)
    with pytest.raises(asyncio.CancelledError):
        await keep.flush()
    await keep.aclose()
    (found,) = await store.read(ACME, DAY, DAY + DAY_US)
    assert found.requests == 5


class Kept:
    """A sink that keeps what it is given, and fails at one of the calls."""

    def __init__(self, fails_at: int) -> None:
        self.deltas: list[HabitDelta] = []
        self.calls = 0
        self._fails_at = fails_at

    async def add(self, deltas: Sequence[HabitDelta], committing: Callable[[], None] = lambda: None) -> None:
        del committing
        self.calls += 1
        if self.calls == self._fails_at:
            raise OSError("gone")
        assert len(deltas) <= MOST_AT_ONCE
        self.deltas += deltas


async def test_much_is_handed_over_in_parts_and_a_part_that_fails_keeps_the_rest() -> None:
    """No message is longer than its bound, and nothing counts twice."""
    habits = PrefixTracker(key=b"k", now_us=lambda: DAY)
    habits.put_back(msgspec.structs.replace(delta(), team_id=f"t{number}") for number in range(2 * MOST_AT_ONCE + 5))
    sink = Kept(fails_at=2)
    keep = PrefixWriter(habits, sink)
    await keep.flush()
    assert len(sink.deltas) == MOST_AT_ONCE
    await keep.flush()
    assert sorted(each.team_id for each in sink.deltas) == sorted(f"t{n}" for n in range(2 * MOST_AT_ONCE + 5))
    assert {each.requests for each in sink.deltas} == {delta().requests}


async def until_written(store: PrefixStore, requests: list[int]) -> None:
    found: list[int] = []
    for _ in range(1_000):
        found = [each.requests for each in await store.read(ACME, 0, DAY + DAY_US)]
        if found == requests:
            return
        await asyncio.sleep(0.01)
    assert found == requests


async def test_the_loops(engine: AsyncEngine) -> None:
    """One looks and writes, the other forgets, by themselves."""
    store = PrefixStore(engine)
    await store.add([delta(day_us=DAY - (KEPT_DAYS + 1) * DAY_US)])
    habits = counted()
    habits.observe("acme", "t", "llama", f"Turn 99. {'Be kind. ' * 90}".encode(), 300)
    loops = [
        asyncio.create_task(PrefixWriter(habits, store, every_s=0.0, look_s=0.01).run()),
        asyncio.create_task(keep_pruned(store, now_us=lambda: DAY)),
    ]
    try:
        await until_written(store, [6])
    finally:
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
