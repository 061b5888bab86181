"""Three kinds of simulated process: a worker, which answers callers, the runner of batches, and the books, which bring journals into the
database.

They are opened as `gateway.process.data_plane` and `control_plane` open them. In some seeds the books answer workers over the link; in the
others a worker reads its sources from the database itself, as the control plane's own pipeline does.
"""

import asyncio
import contextlib
import contextvars
import socket
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.store import AccountStore
from api.webhooks.outbox import Outbox
from cost.times import wall_us
from gateway.configuration.environment import Environment
from gateway.configuration.gateway_config import GatewayConfig
from gateway.database import make_engine
from gateway.link.answering import answer_from_database
from gateway.link.data_sources import from_control_plane, from_database
from gateway.link.hub import Hub
from gateway.link.link import Hello, Link
from gateway.link.worker_questions import VOCABULARY
from gateway.process.start_gate import connection_limits
from gateway.process_pipeline import ProcessPipeline
from gateway.wiring.batch import keep_batches_going, open_batch_tier
from gateway.wiring.fleet import open_fleet
from gateway.wiring.ledger_rounds import open_drain
from gateway.wiring.metrics import all_metrics
from gateway.wiring.overruns import exchange_overruns, share_overruns
from gateway.wiring.processes import count_workers, told_processes
from gateway.wiring.refused_parameters import exchange_refused_parameters
from gateway.wiring.worker_ledger import ProcessParts, WorkerLedger, open_worker_ledger
from proxy.batch.backlog import Backlog
from proxy.batch.batch_parts import BatchTier
from proxy.batch.idle_capacity import IdleCapacity
from proxy.errors import ModelNotFound
from proxy.http.exchange import Exchange
from proxy.http.server import HttpServer
from proxy.plan.overruns import Overruns
from proxy.routes import fallback_route, model_routes
from proxy.shared.background_tasks import background, every
from proxy.shared.redis.live_processes import SHOW_S, CountedProcesses, LiveProcesses
from tests.simulation.loop import SimulatedLoop
from tests.simulation.machine import NODE, Machine, Node
from tests.simulation.network import Address, Network

_SYNC_S: Final = 15.0
"""Until a worker begins with the configuration alone."""


class Installation:
    """What all processes of a seed have in common."""

    def __init__(
        self,
        machine: Machine,
        loop: SimulatedLoop,
        folder: Path,
        config: GatewayConfig,
        environment: Environment,
        *,
        is_linked: bool,
    ) -> None:
        self.machine = machine
        self.loop = loop
        self.folder = folder
        self.config = config
        self.url = environment.database()
        self.environment = environment
        self.is_linked = is_linked
        self.link = folder / "link"

    @property
    def network(self) -> Network:
        assert self.loop.network is not None
        return self.loop.network

    @property
    def journals(self) -> Path:
        return Path(self.config.cost.journal_dir)


class Process:
    """A node with something open in it, until it is closed or killed."""

    def __init__(self, installation: Installation, name: str) -> None:
        self.installation = installation
        self.name = name
        self.node = Node(name)
        self._tasks: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()
        self.is_open = asyncio.Event()
        self.over = asyncio.Event()
        """Set once it has ended, or was killed."""
        self.life = self._within(self._live())
        self.life.add_done_callback(lambda _life: self.over.set(), context=contextvars.Context())

    def _within(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        token = NODE.set(self.node)
        try:
            return asyncio.ensure_future(work)
        finally:
            NODE.reset(token)

    async def _live(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            await self._open(stack)
            self.is_open.set()
            await self._stop.wait()
            await self._drain()

    async def _open(self, stack: contextlib.AsyncExitStack) -> None:
        raise NotImplementedError

    async def _drain(self) -> None:
        """Let what runs come to its end; nothing, where nothing does."""

    @property
    def failed_to_start(self) -> bool:
        return self.life.done() and not self.is_open.is_set()

    async def close(self) -> None:
        """Stop in order; it may be killed meanwhile."""
        self._stop.set()
        await self.over.wait()
        if self.life.done():
            self.life.result()

    def kill(self) -> None:
        """End it like `kill -9`: nothing of its code runs any more."""
        self.node.alive = False
        self.installation.loop.graves.extend([*asyncio.all_tasks(self.installation.loop), self])
        for database in self.node.databases:
            database.kill()
        self.node.close_files()
        self.installation.network.gone(self.node)
        self.over.set()


class Serving(Process):
    """A process with a pipeline, and books of its own."""

    serves_callers = True

    def __init__(self, installation: Installation, name: str) -> None:
        self.pipeline: ProcessPipeline
        self.books: WorkerLedger
        self.processes: CountedProcesses
        self.link: Link | None = None
        super().__init__(installation, name)

    async def _open_pipeline(self, stack: contextlib.AsyncExitStack) -> AsyncEngine:
        config, environment = self.installation.config, self.installation.environment
        self.metrics = metrics = all_metrics()
        engine = make_engine(self.installation.url, power_safe=config.cost.journal_sync == "power")
        stack.push_async_callback(engine.dispose)
        if self.installation.is_linked and self.serves_callers:
            link = self.link = Link(self.installation.link, VOCABULARY)
            stack.push_async_callback(link.aclose)
            sources = from_control_plane(link, engine, told_processes(link))
            self.books = await open_worker_ledger(config.cost, sources.grants, metrics, wall_us, stack)
        else:
            boots: list[str] = []
            counted = LiveProcesses(engine, lambda: boots)
            sources = from_database(engine, counted)
            self.books = await open_worker_ledger(config.cost, sources.grants, metrics, wall_us, stack)
            if self.serves_callers:
                boots.append(self.books.ledger.boot_id)
            await counted.refresh()
            background(stack, every(SHOW_S, counted.refresh))
        self.processes = sources.processes
        self.pipeline = pipeline = ProcessPipeline(
            config,
            environment,
            self.installation.folder / "gateway.yaml",
            metrics,
            serves_callers=self.serves_callers,
        )
        fleet = await open_fleet(config, metrics, _nobody, pipeline.fleet_changed, pipeline.keys, stack)
        if self.link is not None:
            exchange_overruns(self.link, pipeline.overruns)
            exchange_refused_parameters(self.link, pipeline.refused_parameters)
            self.link.start(Hello(self.books.ledger.boot_id, 1))
            with contextlib.suppress(TimeoutError):
                await self.link.synced(_SYNC_S)
        await pipeline.open(ProcessParts(engine, sources, self.books, fleet), stack)
        return engine

    @property
    def tasks(self) -> int:
        """What runs for callers."""
        return 0


class Worker(Serving):
    """A worker of its own host's supervisor, listening at its name."""

    def __init__(self, installation: Installation, name: str) -> None:
        self.address: Address = (name, 80)
        self.server: HttpServer
        super().__init__(installation, name)

    async def _open(self, stack: contextlib.AsyncExitStack) -> None:
        await self._open_pipeline(stack)
        pipeline, config = self.pipeline, self.installation.config
        self.server = server = HttpServer(
            model_routes(pipeline.line), fallback_route(pipeline.line, _elsewhere), connection_limits(config.server)
        )
        stack.push_async_callback(server.aclose)
        # Its queue of connections is the kernel's to tell; in the simulated network nobody waits in it.
        door = stack.enter_context(socket.socket())
        door.bind(("127.0.0.1", 0))
        door.listen()
        door.setblocking(False)
        self.installation.network.doors[door] = self.address
        await server.listen(door)

    @property
    def tasks(self) -> int:
        return len(self.server.tasks) + self.server.held.held

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        self.pipeline.line.draining = True
        await self.server.stop(loop.time() + 30.0, self._cut_off)

    def _cut_off(self) -> bool:
        self.pipeline.line.cut_off()
        return True


class Lines(Serving):
    """A host's runner of batches, as its control plane has one."""

    serves_callers = False

    def __init__(self, installation: Installation, name: str) -> None:
        self.tier: BatchTier
        self.accounts: AccountStore
        self._drains = False
        super().__init__(installation, name)

    async def _open(self, stack: contextlib.AsyncExitStack) -> None:
        engine = await self._open_pipeline(stack)
        config, environment, live = self.installation.config, self.installation.environment, self.pipeline
        tier = open_batch_tier(engine, config, environment.places, lambda: live.line.config)
        assert tier is not None
        self.tier, self.accounts = tier, AccountStore(engine)
        keep_batches_going(
            tier,
            accounts=self.accounts,
            line=live.line,
            backlog=Backlog(),
            room=IdleCapacity(lambda: live.line.config.catalog, live.gate.queues, None),
            metrics=self.metrics.batch,
            outbox=Outbox(engine),
            boot_id=self.books.ledger.boot_id,
            is_draining=lambda: self._drains,
            stack=stack,
        )

    async def ask(self, work: Coroutine[Any, Any, Any]) -> bool:
        """Do something in this process for a caller; False where it was killed meanwhile."""
        task = self._within(work)
        over = asyncio.ensure_future(self.over.wait())
        await asyncio.wait({task, over}, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        if task.done():
            task.result()
        return task.done()

    async def _drain(self) -> None:
        self._drains = True


class Books(Process):
    """The control plane's part in the books: the drain of all journals, and the watch over budgets."""

    async def _open(self, stack: contextlib.AsyncExitStack) -> None:
        config = self.installation.config
        engine = make_engine(self.installation.url, power_safe=config.cost.journal_sync == "power")
        stack.push_async_callback(engine.dispose)
        await open_drain(engine, config, all_metrics(), wall_us, stack)
        if self.installation.is_linked:
            hub = Hub(VOCABULARY)
            answer_from_database(hub.handlers, engine)
            share_overruns(hub, Overruns(time.monotonic))
            await count_workers(engine, hub, stack)
            await hub.start(self.installation.link)
            stack.push_async_callback(hub.aclose)


def _nobody(_message: object) -> None:
    """Tell nobody: there is no prober."""


async def _elsewhere(exchange: Exchange) -> None:
    raise ModelNotFound(exchange.path)
