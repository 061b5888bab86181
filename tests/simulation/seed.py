"""One seed: a gateway, its callers and providers, what goes wrong, and what must hold in the end."""

import asyncio
import contextlib
import contextvars
import errno
import gc
import logging
import os
import tempfile
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml
from pydantic import SecretStr

from accounts.caller import Caller
from accounts.store import AccountStore
from cost.budgets.budget import Budget
from cost.budgets.store import BudgetStore
from gateway.configuration.environment import Environment
from gateway.configuration.peppers import peppers
from gateway.configuration.settings import load
from gateway.database import make_engine
from tests.simulation import batches, checks, machine, redis_server
from tests.simulation.batch_api import BatchMood
from tests.simulation.batches import Ordered
from tests.simulation.callers import Asked, ask
from tests.simulation.database import Database, Temper
from tests.simulation.gateways import Books, Installation, Lines, Process, Worker
from tests.simulation.loop import SimulatedLoop, install
from tests.simulation.machine import IllDisk, Machine, Node, is_wanted
from tests.simulation.network import Network, Weather
from tests.simulation.plan import PROVIDERS, TEAMS, Event, Order, Plan, Question, configuration, plan_of
from tests.simulation.redis_server import Redis
from tests.simulation.story import Story
from tests.simulation.upstream import Call, Provider
from tests.simulation.watching import Watch
from tests.sqlite import newest_sqlite

PEPPER = "a pepper for the simulation, of 32 bytes and more"
_MEMORY: Final = Path("/dev") / "shm"
_SETTLES_S: Final = 5.0
"""Time for what runs behind the last request."""
_MOST_S: Final = 90
"""After the last caller's end: a request with an Idempotency-Key is answered to its own, which is `total_s` away at most."""

_HOLDERS_S: Final = 15.0
"""Until what a dead process holds in Redis is given back, and a process that gave Redis up uses it again."""
_MOST_BATCHES_S: Final = 400
"""The same for batches: leases, waits, and looks at providers."""


class Result(msgspec.Struct):
    """What one seed came to."""

    seed: int
    digest: str
    broken: list[str]
    requests: int
    calls: int
    kills: int
    simulated_s: float


class World:
    """All of one seed."""

    def __init__(self, seed: int, folder: Path, listen: Callable[[str], object] | None = None) -> None:
        self.machine = Machine(seed)
        machine.begin(self.machine)
        self.folder = folder
        self.plan: Plan = plan_of(self.machine)
        self.story = Story(self.machine, listen)
        self.loop = SimulatedLoop(self.machine)
        install(self.loop)
        self.loop.network = self.network = Network(self.machine, self.loop)
        self.loop.killed = self._last_step
        self.loop.stepped = self._look
        self._watches: dict[Node, Watch] = {}
        self.database = Database(self.machine)
        self.calls: list[Call] = []
        self.asked: list[Asked] = []
        self.workers: list[Worker] = []
        self.lines: list[Lines] = []
        self.ordered: list[Ordered] = []
        self.providers: list[Provider] = []
        self.redis: Redis | None = None
        self._set_back_s = 0.0
        self._calm_us = 0
        self.books: Books
        self.kills = 0
        self._disk = self.machine.chance("disk")
        self._disk_ill: dict[str, float] = {}
        self._starts: list[asyncio.Task[None]] = []
        self._calm = True

    # The life of a seed.

    def run(self) -> Result:
        """Live through it, and say what it came to."""
        begun_at = self.machine.now
        errors = _Errors()
        logging.getLogger().handlers[:] = [errors]
        try:
            self.loop.run_until_complete(self._live())
        except Exception as error:
            self.story.violate("the simulation comes to its end", error=repr(error))
            if self.story._listen is not None:
                raise
        gc.collect()
        for told in [*errors.lines, *self.loop.exceptions]:
            self.story.violate("nothing fails unexpectedly", told=told)
        return Result(
            self.machine.seed,
            self.story.digest,
            self.story.broken,
            len(self.asked),
            len(self.calls),
            self.kills,
            self.machine.now - begun_at,
        )

    async def _live(self) -> None:
        await self._found()
        self.machine.disk = self._write
        self.machine.flush = self._flush
        self.story.tell(
            "world", "begins", **msgspec.structs.asdict(self.plan) | {"questions": len(self.plan.questions)}
        )
        await self._trouble_and_questions()
        self._calm_down()
        await self._recover()
        for _ in range(_MOST_S):
            if not any(worker.server.tasks for worker in self.workers):
                break
            await asyncio.sleep(1.0)
        await asyncio.sleep(_SETTLES_S)
        await self._batches_end()
        if self.redis is not None or self.plan.is_linked:
            await asyncio.sleep(_HOLDERS_S)
        if self.plan.is_linked:
            checks.workers_are_linked(self.story, self.workers)
        if self.redis is not None:
            checks.redis_counts_nothing(self.story, self.workers, self.redis.held)
        for worker in (*self.workers, *self.lines):
            checks.nothing_is_held(self.story, worker)
        await self._end()

    async def _batches_end(self) -> None:
        if self.plan.batches is None:
            return
        for _ in range(_MOST_BATCHES_S):
            if not await batches.left(self.engine):
                break
            await asyncio.sleep(1.0)
        for _ in range(_MOST_S):
            # A line whose lease ended was perhaps answered by another process, while its own still asks.
            if not any(lines.pipeline.line.in_flight for lines in self.lines):
                break
            await asyncio.sleep(1.0)
        await asyncio.sleep(_SETTLES_S)

    async def _found(self) -> None:
        """Make the database, the teams, the providers and the first processes, while all is well."""
        for name in PROVIDERS:
            provider = Provider(name, self.machine, self.network, self.story, self.calls)
            provider.mood = self.plan.moods[name]
            if self.plan.batches is not None:
                provider.batch_mood = self.plan.batches.moods[name]
            self.providers.append(provider)
        url = f"{newest_sqlite(self.folder / 'weighbridge.sqlite')}?timeout=0"
        path = self.folder / "gateway.yaml"
        path.write_text(yaml.safe_dump(configuration(self.plan, str(self.folder))))
        environment = Environment(data_dir=self.folder, database_url=SecretStr(url), pepper=SecretStr(PEPPER))
        if self.plan.redis_loses is not None:
            self.redis = Redis(redis_server.server(), self.machine, self.network, self.story)
            environment = environment.model_copy(update={"redis_url": SecretStr(redis_server.URL)})
        config = load(path, environment)
        self.installation = Installation(
            self.machine, self.loop, self.folder, config, environment, is_linked=self.plan.is_linked
        )
        self.engine = make_engine(url)
        accounts = AccountStore(self.engine)
        self.keys: dict[str, str] = {}
        self.callers: dict[str, Caller] = {}
        for team in TEAMS:
            await accounts.create_team(team, name=team)
            minted = await accounts.create_key(team, "simulated", peppers(config, environment)[0])
            self.keys[team] = minted.plaintext
            caller = await accounts.caller_of(minted.key_id)
            assert caller is not None
            self.callers[team] = caller
        if self.plan.budget_nanousd is not None:
            await BudgetStore(self.engine).put(
                Budget(
                    budget_id="bud_1",
                    organisation_id="default",
                    scope="team",
                    scope_id="team_a",
                    period="month",
                    kind="hard",
                    limit_nanousd=self.plan.budget_nanousd,
                )
            )
        self.books = Books(self.installation, "books")
        await self._opened(self.books)
        for at in range(self.plan.workers):
            worker = self._new_worker(at)
            self.workers.append(worker)
            await self._opened(worker)
        for at in range(0 if self.plan.batches is None else self.plan.batches.runners):
            self.lines.append(Lines(self.installation, f"lines-{at}"))
            await self._opened(self.lines[at])

    def _new_worker(self, at: int) -> Worker:
        worker = Worker(self.installation, f"worker-{at}")
        self._watches[worker.node] = Watch(worker, self.plan, self.story, self.calls)
        return worker

    def _look(self, node: Node) -> None:
        if (watch := self._watches.get(node)) is not None:
            watch.look(self.machine.now)
            if self.redis is not None and self.plan.is_well:
                self._look_at_all()

    def _look_at_all(self) -> None:
        """What counts in Redis counts once for all workers."""
        for team in TEAMS:
            running = sum(each.running.get(team, 0) for each in self._watches.values())
            if self.plan.concurrency is not None and running > self.plan.concurrency:
                self.story.violate("no more run at once in all processes than may", team=team, running=running)

    async def _opened(self, process: Process) -> None:
        waits = [asyncio.ensure_future(each.wait()) for each in (process.is_open, process.over)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for each in waits:
            each.cancel()

    async def _trouble_and_questions(self) -> None:
        self.network.weather, self.database.temper, self._calm = self.plan.weather, self.plan.temper, False
        if self.redis is not None:
            self.redis.lost = self.plan.redis_loses or 0.0
        tasks = [asyncio.ensure_future(self._put(at, each)) for at, each in enumerate(self.plan.questions)]
        tasks += [asyncio.ensure_future(self._go_wrong(event)) for event in self.plan.events]
        orders = () if self.plan.batches is None else self.plan.batches.orders
        tasks += [asyncio.ensure_future(self._order(at, each)) for at, each in enumerate(orders)]
        await asyncio.gather(*tasks)

    def _calm_down(self) -> None:
        self.network.weather, self.database.temper, self._calm = Weather(), Temper(), True
        self._disk_ill.clear()
        if self.redis is not None:
            self.redis.lost = self.redis.slow_until = 0.0
        for provider in self.providers:
            provider.mood.weights = {"answers": 1.0}
            provider.batch_mood = BatchMood(slips={"answers": 1.0}, lines={"answers": 1.0}, endings={"completed": 1.0})
        # A clock that was set back is set right: leases and deadlines are told by it.
        self.machine.wall += self._set_back_s
        self._calm_us = int((self.machine.now + self.machine.wall) * 1_000_000)
        self.story.tell("world", "calms down")

    async def _recover(self) -> None:
        for task in self._starts:
            await task
        if self.books.failed_to_start or not self.books.node.alive:
            await self._start_books()
        for at, worker in enumerate(self.workers):
            if worker.failed_to_start or not worker.node.alive:
                await self._start_worker(at)
        for at, lines in enumerate(self.lines):
            if lines.failed_to_start or not lines.node.alive:
                await self._start_lines(at)

    async def _end(self) -> None:
        """Stop everything in order, and look at what is left."""
        for worker in (*self.workers, *self.lines):
            await worker.close()
        await self.books.close()
        rows = await checks.ledger_rows(self.engine)
        if self.plan.batches is not None:
            await batches.name_calls(self.engine, self.calls)
            found = batches.Checks(self.installation, self.engine, self.story, rows, self.calls)
            is_stepped = any(event.trouble.startswith("clock") for event in self.plan.events)
            now_us = int((self.machine.now + self.machine.wall) * 1_000_000)
            await found.check(self.ordered, self._calm_us, now_us if is_stepped else 0)
            for provider in self.providers:
                found.nothing_stays(provider.name, provider.batches.left)
        checks.attempts_are_closed_once(self.story, rows)
        checks.calls_are_booked(self.story, self.plan, rows, self.calls)
        checks.callers_got_ends(self.story, self.plan, rows, self.asked, self.calls)
        checks.budget_holds(self.story, self.plan, rows)
        await checks.books_agree(self.engine, self.story, rows)
        checks.journals_are_empty(self.story, self.installation)
        for row in rows:
            self.story.tell(
                "ledger",
                row["entry"],
                request=row["request_id"],
                cost=row["cost_nanousd"],
                status=row["status"],
                usage=row["usage_source"],
                flags=row["flags"],
            )
        await self.engine.dispose()
        # Providers that never answer are no part of the product.
        for task in asyncio.all_tasks():
            node = task.get_context().get(machine.NODE) if hasattr(task, "get_context") else None
            told = repr(task.get_coro())
            if (
                task is not asyncio.current_task()
                and "_Connection._answer" not in told
                # A dead process's connection, which was let go with what was left of it, or one that hangs.
                and not ((self.kills or self.plan.temper.stalls) and "_terminate_graceful_close" in told)
                and task not in self.loop.graves
            ):
                self.story.violate("no task is left", task=told, node=node)

    # Callers.

    async def _put(self, nonce: int, question: Question) -> None:
        await asyncio.sleep(question.at_s)
        asked = Asked(
            nonce=nonce,
            team=question.team,
            key=self.keys[question.team],
            model=question.model,
            stream=question.stream,
            max_tokens=question.max_tokens,
            manner=question.manner,
            idempotency_key=question.once,
        )
        if question.once:
            # The same request again and again, whoever asks it.
            asked.nonce, asked.model, asked.stream, asked.max_tokens = 1_000, "auto", question.once.endswith("1"), 20
        self.asked.append(asked)
        self.story.tell("caller", "asks", nonce=nonce, team=asked.team, model=asked.model, stream=asked.stream)
        await ask(asked, self.workers[question.which].address, question.hang_up_s)
        self.story.tell(
            "caller",
            "is done",
            nonce=nonce,
            end=asked.end,
            status=asked.status,
            request=asked.request_id,
            words=len(asked.words),
        )

    async def _order(self, at: int, order: Order) -> None:
        await asyncio.sleep(order.at_s)
        made = Ordered(order, at)
        self.ordered.append(made)
        which, caller = order.which % len(self.lines), self.callers[order.team]
        if not self.lines[which].is_open.is_set() or not self.lines[which].node.alive:
            return
        await self.lines[which].ask(batches.order(made, self.lines[which], caller, self.story))
        if order.cancel_s is None or not made.batch_id:
            return
        await asyncio.sleep(order.cancel_s)
        if self.lines[which].is_open.is_set() and self.lines[which].node.alive:
            await self.lines[which].ask(batches.cancel(made, self.lines[which], caller, self.story))

    # What goes wrong.

    async def _go_wrong(self, event: Event) -> None:
        await asyncio.sleep(event.at_s)
        self.story.tell("world", event.trouble, for_s=round(event.for_s, 3))
        at = event.which % len(self.workers)
        match event.trouble:
            case "kill_worker":
                self.workers[at].node.steps_left = event.steps
            case "kill_lines":
                self.lines[event.which % len(self.lines)].node.steps_left = event.steps
            case "kill_books":
                self.books.node.steps_left = event.steps
            case "lose_power":
                self._lose_power()
            case "restart_worker":
                await self._restart(at)
            case "disk_full" | "disk_ill":
                self._disk_ill[event.trouble] = self.machine.now + event.for_s
            case "provider_away" | "database_away":
                await self._go_away(event)
            case "link_cut":
                self.network.cut((str(self.installation.link), 0))
            case "redis_away" | "redis_forgets" | "redis_fails_over" | "redis_slow":
                await self._redis_fails(event)
            case _:
                self._step_clocks(event)

    async def _redis_fails(self, event: Event) -> None:
        assert self.redis is not None
        match event.trouble:
            case "redis_away":
                await self.redis.go_away(event.for_s)
            case "redis_forgets":
                self.redis.forget()
            case "redis_fails_over":
                await self.redis.fail_over(event.for_s / 5)
            case _:
                self.redis.slow_until = self.machine.now + event.for_s

    def _step_clocks(self, event: Event) -> None:
        match event.trouble:
            case "clock_back":
                self.machine.wall -= event.for_s * 20
                self._set_back_s += event.for_s * 20
            case "clock_forward":
                self.machine.wall += event.for_s * 20
            case "clock_month":
                self.machine.wall += _to_month_end(self.machine.now + self.machine.wall) - event.for_s
            case "clock_summer":
                self.machine.wall += 3_600.0 if event.which % 2 else -3_600.0
                self._set_back_s += 0.0 if event.which % 2 else 3_600.0
            case "clock_day":
                self.machine.wall += 86_400.0
            case "freeze":
                # Everything stands still, as under a debugger or a host that swaps.
                self.machine.now += event.for_s

    async def _go_away(self, event: Event) -> None:
        if event.trouble == "database_away":
            self.database.temper = Temper(fails=1.0)
            await asyncio.sleep(event.for_s)
            self.database.temper = Temper() if self._calm else self.plan.temper
            return
        address = (PROVIDERS[event.which % len(PROVIDERS)], 80)
        door = self.network.listening.pop(address, None)
        await asyncio.sleep(event.for_s)
        if door is not None:
            self.network.listening[address] = door

    def _write(self, descriptor: int, path: Path, size: int) -> int:
        now = self.machine.now
        if self._disk_ill.get("disk_full", 0.0) > now:
            if self._disk.random() < 0.3:
                return self._disk.randrange(1, size) if size > 1 else size
            raise IllDisk(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self._disk_ill.get("disk_ill", 0.0) > now and self._disk.random() < 0.5:
            raise IllDisk(errno.EIO, os.strerror(errno.EIO))
        return size

    def _flush(self, path: Path) -> None:
        if self._disk_ill.get("disk_ill", 0.0) > self.machine.now and self._disk.random() < 0.5:
            raise IllDisk(errno.EIO, os.strerror(errno.EIO))

    def _last_step(self, node: Node) -> None:
        for at, worker in enumerate(self.workers):
            if worker.node is node:
                self._kill(worker)
                self._later(self._start_worker(at))
        for at, lines in enumerate(self.lines):
            if lines.node is node:
                self._kill(lines)
                self._later(self._start_lines(at))
        if self.books.node is node:
            self._kill(self.books)
            self._later(self._start_books())

    def _lose_power(self) -> None:
        """Kill all processes at once, and lose what was not flushed of their journals."""
        for process in (*self.workers, *self.lines, self.books):
            if process.node.alive:
                self._kill(process)
        for path in self.installation.journals.glob("boot-*.log"):
            size, kept = path.stat().st_size, self.machine.flushed.get(path, 0)
            os.truncate(path, min(size, kept + self._disk.randrange(size - kept + 1)) if size > kept else size)
        for at in range(len(self.workers)):
            self._later(self._start_worker(at))
        for at in range(len(self.lines)):
            self._later(self._start_lines(at))
        self._later(self._start_books())

    def _kill(self, process: Process) -> None:
        self.kills += 1
        self.story.tell(process.name, "is killed")
        process.kill()

    def _later(self, start: Coroutine[Any, Any, None]) -> None:
        async def begin() -> None:
            await asyncio.sleep(0.5)
            await start

        # It is the world's to do, not the killed one's.
        self._starts.append(self.loop.create_task(begin(), context=contextvars.Context()))

    async def _start_worker(self, at: int) -> None:
        if self.workers[at].node.alive and not self.workers[at].life.done():
            # It was killed twice before it was started once.
            return
        for _ in range(50):
            worker = self.workers[at] = self._new_worker(at)
            await self._opened(worker)
            if not worker.failed_to_start:
                self.story.tell(worker.name, "is back")
                return
            worker.life.exception()
            await asyncio.sleep(0.5)

    async def _start_lines(self, at: int) -> None:
        if self.lines[at].node.alive and not self.lines[at].life.done():
            return
        for _ in range(50):
            lines = self.lines[at] = Lines(self.installation, f"lines-{at}")
            await self._opened(lines)
            if not lines.failed_to_start:
                self.story.tell(lines.name, "are back")
                return
            lines.life.exception()
            await asyncio.sleep(0.5)

    async def _start_books(self) -> None:
        if self.books.node.alive and not self.books.life.done():
            return
        for _ in range(50):
            self.books = Books(self.installation, "books")
            await self._opened(self.books)
            if not self.books.failed_to_start:
                self.story.tell("books", "are back")
                return
            self.books.life.exception()
            await asyncio.sleep(0.5)

    async def _restart(self, at: int) -> None:
        worker = self.workers[at]
        if worker.node.alive and worker.is_open.is_set():
            await worker.close()
            if worker.node.alive:
                await self._start_worker(at)


class _Errors(logging.Handler):
    """What the product logs as a failure that it did not expect."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[0] is not None and not is_wanted(record.exc_info[1]):
            trace = logging.Formatter().formatException(record.exc_info)
            self.lines.append(f"{record.getMessage()}: {trace[-1500:]}")


def _to_month_end(wall: float) -> float:
    at = datetime.fromtimestamp(wall, UTC)
    following = at.replace(year=at.year + at.month // 12, month=at.month % 12 + 1, day=1, hour=0, minute=0, second=0)
    return following.timestamp() - wall


def live(seed: int, listen: Callable[[str], object] | None = None) -> Result:
    """Live through one seed in this process, which has to end with it."""
    folder = Path(tempfile.mkdtemp(prefix="wb-sim-", dir=_MEMORY if _MEMORY.is_dir() else None))
    with contextlib.suppress(OSError):
        os.chdir(folder)
    return World(seed, folder, listen).run()
