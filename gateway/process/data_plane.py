"""The data plane: one worker process with its pipeline, its journal, and the control plane's messages."""

import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Final

from accounts.errors import AccountsError
from accounts.people.client_address import client_address, site_of
from cost.ledger.backlog import Backlog
from cost.times import wall_us
from gateway.configuration.environment import Environment
from gateway.configuration.gateway_config import GatewayConfig
from gateway.database import WriteCheck, make_engine
from gateway.link.data_sources import from_control_plane
from gateway.link.link import Hello, Link
from gateway.link.worker_questions import VOCABULARY, CountsTold, ResponseQueued, answer_of_itself
from gateway.process.reloads import ReloadTeller
from gateway.process.runtime_folder import RuntimeFolder
from gateway.process_pipeline import ProcessPipeline
from gateway.wiring.fleet import FIRST_LOOK_S, open_fleet
from gateway.wiring.metrics import AllMetrics, all_metrics
from gateway.wiring.overruns import exchange_overruns
from gateway.wiring.processes import told_processes
from gateway.wiring.refused_parameters import exchange_refused_parameters
from gateway.wiring.worker_ledger import ProcessParts, open_worker_ledger
from proxy.admin.health import Health, Starting
from proxy.admit.load_shedding import AcceptBacklog
from proxy.errors import Refused
from proxy.http.control_plane_proxy import ControlPlaneProxy, Sender
from proxy.http.exchange import Exchange
from proxy.parse.headers import read_headers
from proxy.settle.observers.logs import configure_logging
from selfhosted.health.host_messages import TO_FLEET, ToFleet
from selfhosted.pools.fleet import Fleet

_log = logging.getLogger("weighbridge.app")

_SYNC_S: Final = 60.0
"""Seconds that a start waits for the control plane; it recovers dead processes' journals before it answers."""


class DataPlane:
    """The process's life: from its start to its last booked entry."""

    def __init__(
        self,
        config: GatewayConfig,
        environment: Environment,
        config_path: Path | None,
        folder: RuntimeFolder,
        metrics: AllMetrics | None = None,
        *,
        is_first: bool = False,
    ) -> None:
        """Whoever is of the first start waits for the control plane however long it takes: nothing was ever served."""
        self._is_first = is_first
        self._database: WriteCheck | None = None
        self._link: Link | None = None
        self._environment = environment
        self._folder = folder
        self._metrics = metrics or all_metrics()
        self.live = ProcessPipeline(config, environment, config_path, self._metrics, serves_callers=True)
        self._is_open = False
        self.others = ControlPlaneProxy(folder.web, self._whose)
        """Answers requests of all routes but the hot ones."""
        self.reloaded: list[Callable[[GatewayConfig], None]] = []
        """Called with the configuration after a reload."""
        self.reloads = ReloadTeller(folder.reloads, "worker")

    async def _whose(self, exchange: Exchange) -> Sender:
        """Return the team of the key that was sent; without one that works, the address that the request comes from."""
        try:
            caller = await self.live.line.parser.authenticate(read_headers(exchange.headers))
        except (Refused, AccountsError):
            forwarded = [value.decode("latin-1") for name, value in exchange.headers if name == b"x-forwarded-for"]
            peer = "" if exchange.peer is None else exchange.peer[0]
            site = site_of(client_address(peer, forwarded, self.live.config.sign_in.trusted_proxies))
            return Sender(site, is_known=False)
        return Sender(caller.team_id, is_known=True)

    def begin_leave(self) -> None:
        """Turn readiness false, and go on serving."""
        if self._is_open:
            self.live.line.leaving = True

    def begin_drain(self) -> None:
        """Begin to drain: readiness turns false and new work is refused; running work goes on."""
        if self._is_open:
            self.live.line.draining = True
            self.others.end_streams()
            if self.live.line.shadow is not None:
                self.live.line.shadow.drain()

    def cut_off(self) -> None:
        """End and settle the requests that still run once the drain time is over."""
        if self._is_open:
            self.live.line.cut_off()

    def reload(self) -> None:
        """Read the file again and swap the rules whole; a bad file changes nothing."""
        outcome = self.live.reload()
        for reloaded in self.reloaded:
            reloaded(self.live.config)
        self.reloads.tell(outcome)

    def watch_backlog(self, backlog: AcceptBacklog) -> None:
        """Let the overload guard see the connections that wait to be accepted."""
        self.live.gate.guard.watch(backlog)

    async def starting(self) -> Starting:
        """Return what the start waits for."""
        database = self._database is not None and await self._database.takes_writes()
        return Starting.of(database=database, control_plane=self._link is not None and self._link.is_up)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Health]:
        """Open everything in the order of need, and close it in reverse, the books last. Yield its health check."""
        config, metrics, live = self.live.config, self._metrics, self.live
        log_lines = configure_logging(form=self._environment.logs)
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(log_lines.close)
            engine = make_engine(self._environment.database(), power_safe=config.cost.journal_sync == "power")
            stack.push_async_callback(engine.dispose)
            stack.push_async_callback(self.others.aclose)
            self._link = link = Link(self._folder.link, VOCABULARY)
            stack.push_async_callback(link.aclose)
            sources = from_control_plane(link, engine, told_processes(link))
            opened = await open_worker_ledger(config.cost, sources.grants, metrics, wall_us, stack)
            self.holds = opened.holds
            boot_id = opened.ledger.boot_id
            fleet = await open_fleet(config, metrics, link.tell, live.fleet_changed, live.keys, stack)
            _hear_of_fleet(link, fleet)
            exchange_overruns(link, live.overruns)
            exchange_refused_parameters(link, live.refused_parameters)
            link.start(Hello(boot_id, os.getpid()))
            self._database = database = WriteCheck(engine)
            try:
                await link.synced(None if self._is_first else _SYNC_S)
            except TimeoutError:
                _log.error("the control plane does not answer; serving with the configuration alone")
            await fleet.known(FIRST_LOOK_S)
            await live.open(ProcessParts(engine, sources, opened, fleet), stack)
            live.background.news = lambda: link.tell(ResponseQueued())
            live.open_shadow(sources, stack)
            self._answer(link)
            self._is_open = True
            yield Health(
                pipeline=live.line,
                journal=opened.ledger.state,
                backlog=Backlog(config.cost.journal_dir).waiting,
                control_plane=lambda: link.is_up,
                database=database.takes_writes,
                fallback_reason=lambda: live.classifier.fallback_reason,
                plugins=live.plugins.names,
                plugins_out=lambda: live.plugins.out,
            )
            self.begin_drain()
            # Nobody asks a worker that ends, so it tells what is left; what is kept already stays as it is.
            link.tell(self._counts({}))

    def _answer(self, link: Link) -> None:
        async def write_down() -> None:
            self.live.write_down()
            await self.live.learning_log.flush()

        answer_of_itself(
            link.handlers,
            report=self.live.report,
            peek=self.live.gate.limiter.peek,
            reprice=self.live.prices.refresh,
            write_down=write_down,
            counts=self._counts,
        )

    def _counts(self, after: Mapping[str, tuple[int, int, int]]) -> CountsTold:
        boot_id = self.live.boot_id
        refusals, traffic, findings = after.get(boot_id, (0, 0, 0))
        self.live.line.reports.flush()
        self.live.traffic.look(self.live.gate.queues.waiting)
        return CountsTold(
            self.live.refusals.changed_after(refusals, boot_id),
            self.live.traffic.changed_after(traffic, boot_id),
            self.live.findings.changed_after(findings, boot_id),
        )


def _hear_of_fleet(link: Link, fleet: Fleet) -> None:
    def hear(_from: object, message: ToFleet) -> None:
        fleet.hear(message)

    for each in TO_FLEET:
        link.handlers.when_told(each, hear)
