"""Whatever happens in whatever order, spent stays within the limit, and in the end nothing of it is lost."""

import asyncio
import atexit
import shutil
import tempfile
from collections import Counter
from collections.abc import Coroutine
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cost.budgets.grants import Grants, GrantStore
from cost.budgets.memory import MemoryGrants
from cost.budgets.store import BudgetStore
from cost.ledger.entries import TERMINAL, Entry, orphan_settlement, void_of
from cost.ledger.store import LedgerStore
from cost.times import DAY_US
from gateway.database import make_engine
from tests.cost.budgets.crowd import NOON_US, Clock, Process, budget, ends_of
from tests.examples import examples
from tests.sqlite import newest_sqlite

LIMIT = 100
DAILY = budget(LIMIT, period="day")
MOST_PROCESSES = 3
Result = TypeVar("Result")


@cache
def _template() -> Path:
    """A database with the newest schema and the budget, made once."""

    async def make(path: Path) -> None:
        engine = make_engine(newest_sqlite(path))
        await BudgetStore(engine).put(DAILY)
        await engine.dispose()

    folder = Path(tempfile.mkdtemp(prefix="weighbridge-budgets-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "template.sqlite"
    asyncio.run(make(path))
    return path


class World:
    """Some processes, dead ones, and the books they share."""

    def __init__(self, grants: Grants, store: LedgerStore | None, clock: Clock) -> None:
        self.grants, self.store, self.clock = grants, store, clock
        self.living: list[Process] = []
        self.dead: list[Process] = []
        self.committed: dict[str, list[Entry]] = {}
        self.open: dict[str, tuple[Process, Entry]] = {}
        self.boots = 0

    def start(self) -> None:
        self.boots += 1
        self.living.append(Process(self.grants, self.store, f"boot{self.boots}", self.clock))

    async def reserve(self, place: int, name: str, amount: int) -> bool:
        process = self._of(place)
        admitted = await process.reserve(name, amount)
        if admitted:
            self.open[name] = process, process.ledger.entries[-1]
        return admitted

    def close(self, name: str, part: int) -> None:
        """Settle at some tenths of the bound, or take back."""
        process, entry = self.open.pop(name)
        if part < 0:
            process.books.settle(void_of(entry))
        else:
            process.settle(name, (entry.cost_nanousd or 0) * part // 10)

    async def commit(self, place: int) -> None:
        """Entries reach the database, and their process has not heard of it."""
        process = self._of(place)
        entries, process.ledger.entries = process.ledger.entries, []
        await process._insert(entries)
        self.committed.setdefault(process.boot_id, []).extend(entries)

    async def told(self, place: int) -> None:
        """Now it has."""
        process = self._of(place)
        process.holds.booked(ends_of(self.committed.pop(process.boot_id, [])))

    async def drain(self, place: int) -> None:
        await self.commit(place)
        await self.told(place)

    async def tidy(self, place: int) -> None:
        await self._of(place).holds.tidy()

    async def poll(self, place: int) -> None:
        await self._of(place).holds.poll()

    def kill(self, place: int) -> None:
        process = self._of(place)
        self.living.remove(process)
        self.dead.append(process)

    async def recover(self) -> None:
        """Book what a dead process left in its journal, close what it left open, and forget it."""
        process = self.dead.pop(0)
        orphans = [entry for owner, entry in self.open.values() if owner is process]
        self.open = {name: found for name, found in self.open.items() if found[0] is not process}
        left = [*process.ledger.entries, *map(orphan_settlement, orphans)]
        await process._insert(left)
        await self.grants.forget_boot(process.boot_id)

    async def spent(self) -> dict[int, int]:
        """By day."""
        if isinstance(self.grants, MemoryGrants):
            by_day: Counter[int] = Counter()
            for (_, _, quarter), amount in self.grants.spend.items():
                by_day[quarter - quarter % DAY_US] += amount
            return {day: amount for day, amount in by_day.items() if amount}
        days = range(NOON_US - NOON_US % DAY_US, self.clock() + 1, DAY_US)
        found = {day: (await self.grants.standings(day))[0].spent_nanousd for day in days}
        return {day: amount for day, amount in found.items() if amount}

    async def held(self) -> int:
        return (await self.grants.standings(self.clock()))[0].held_nanousd

    def _of(self, place: int) -> Process:
        return self.living[place % len(self.living)]


class Books(RuleBasedStateMachine):
    """Processes in any order of events, in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = Clock()
        self.worlds = self.make()
        self.names = 0
        self.start()

    def make(self) -> tuple[World, ...]:
        return (World(MemoryGrants(DAILY), None, self.clock),)

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.runner.run(work)

    @precondition(lambda self: len(self.worlds[0].living) < MOST_PROCESSES)
    @rule()
    def start(self) -> None:
        for world in self.worlds:
            world.start()

    @rule(place=st.integers(0, 2), amount=st.integers(1, 60))
    def reserve(self, place: int, amount: int) -> None:
        self.names += 1
        admitted = [self.run(world.reserve(place, f"r{self.names}", amount)) for world in self.worlds]
        assert len(set(admitted)) == 1

    @precondition(lambda self: self.worlds[0].open)
    @rule(which=st.integers(0, 20), part=st.sampled_from([-1, 3, 9, 10]))
    def close(self, which: int, part: int) -> None:
        dead = {id(process) for process in self.worlds[0].dead}
        names = [name for name, (owner, _) in self.worlds[0].open.items() if id(owner) not in dead]
        if names:
            for world in self.worlds:
                world.close(names[which % len(names)], part)

    @rule(place=st.integers(0, 2), what=st.sampled_from(["drain", "drain", "commit", "told", "tidy", "poll"]))
    def look_after(self, place: int, what: str) -> None:
        for world in self.worlds:
            self.run(getattr(world, what)(place))

    @rule(hours=st.sampled_from([1, 2, 3, 36]))
    def wait(self, hours: int) -> None:
        self.clock.at_us += hours * 3_600_000_000

    @precondition(lambda self: len(self.worlds[0].living) > 1)
    @rule(place=st.integers(0, 2))
    def kill(self, place: int) -> None:
        for world in self.worlds:
            world.kill(place)

    @precondition(lambda self: self.worlds[0].dead)
    @rule()
    def recover(self) -> None:
        for world in self.worlds:
            self.run(world.recover())

    @invariant()
    def nothing_is_overrun(self) -> None:
        """On no day is more spent than the limit, not even if all that is granted here were spent today."""
        spent = [self.run(world.spent()) for world in self.worlds]
        assert all(each == spent[0] for each in spent)
        assert all(amount <= LIMIT for amount in spent[0].values())
        today = spent[0].get(self.clock() - self.clock() % DAY_US, 0)
        for world in self.worlds:
            budgets = [local for process in world.living for local in process.holds._budgets.values()]
            assert all(local.floor <= local.granted for local in budgets)
            uncommitted = sum(local.granted for local in budgets) - self._told_late(world)
            assert today + uncommitted <= LIMIT

    @staticmethod
    def _told_late(world: World) -> int:
        """Committed already, and still covered by those who were not told."""
        return sum(
            hold.amount_nanousd
            for process in world.living
            for entry in world.committed.get(process.boot_id, [])
            if entry.entry in TERMINAL
            and (hold := process.holds._unbooked.get((entry.request_id, entry.attempt))) is not None
        )

    def teardown(self) -> None:
        """When all is settled, drained, recovered and given back, exactly what is left of today can be had."""
        try:
            for world in self.worlds:
                self.run(self._wind_up(world))
        finally:
            self.clear()
            self.runner.close()

    def clear(self) -> None:
        """What was made besides memory."""

    async def _wind_up(self, world: World) -> None:
        while world.dead:
            await world.recover()
        for name in list(world.open):
            world.close(name, 10)
        for place in range(len(world.living)):
            await world.drain(place)
            await world.tidy(place)
            await world.tidy(place)
        assert await world.held() == 0
        today = (await world.spent()).get(self.clock() - self.clock() % DAY_US, 0)
        world.start()
        last = world.living[-1]
        assert len(await last.crowd(LIMIT + 1, 1)) == LIMIT - today


class TwinBooks(Books):
    """The same happens in memory and in a real database, and both say the same."""

    def make(self) -> tuple[World, ...]:
        self.folder = Path(tempfile.mkdtemp(prefix="weighbridge-budgets-"))
        shutil.copy(_template(), self.folder / "books.sqlite")
        self.engine = make_engine(f"sqlite:///{self.folder}/books.sqlite")
        return (*super().make(), World(GrantStore(self.engine), LedgerStore(self.engine), self.clock))

    def clear(self) -> None:
        self.run(self.engine.dispose())
        shutil.rmtree(self.folder)


def _settings(examples: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=30,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


TestBooks = Books.TestCase
TestBooks.settings = _settings(examples(120))
TestTwinBooks = TwinBooks.TestCase
TestTwinBooks.settings = _settings(examples(6))
