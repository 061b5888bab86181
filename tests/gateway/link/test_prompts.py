"""Two workers of a host over the real link: what one sent to a replica is load for the other."""

import asyncio
import random
import tempfile
from pathlib import Path

import msgspec

from gateway.link.hub import Hub
from gateway.link.link import Hello, Link
from gateway.link.worker_questions import VOCABULARY
from selfhosted.balance.sharing import PromptsSent
from selfhosted.config import PoolConfig
from selfhosted.health.judge import PoolJudge
from selfhosted.health.messages import ReplicaObserved
from selfhosted.health.verdict import Probe
from selfhosted.pools.fleet import Fleet, FleetObserver
from selfhosted.pools.pool import Pool, ReplicaLease
from tests.processes import until
from tests.selfhosted.balance.pool import ask, balancer, prompt, replica

_CONFIG = PoolConfig(name="p", targets=("t",))


class _Worker:
    """A worker's fleet at its end of the link."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self.link = Link(path, VOCABULARY)
        self.balancer = balancer(random.Random(boot_id).randrange(100))
        judge = PoolJudge(_CONFIG, clock=lambda: 100.0)
        self.pool = Pool(_CONFIG, judge, self.balancer, adapters=None, kv_events=None)
        self.fleet = Fleet(
            {"p": self.pool},
            clock=lambda: 100.0,
            observer=FleetObserver(),
            salt_of=lambda _deployment, _caller: "",
            tell=self.link.tell,
        )
        for name in ("a", "b"):
            probe = Probe(sent_at=100.0, first_at=0.0, answered_at=100.0)
            self.fleet.hear(ReplicaObserved(address=replica(name).address, probe=probe))
        self.balancer.full(self.pool.snapshot, 100.0)
        self.link.handlers.when_told(PromptsSent, lambda _from, message: self.fleet.hear(message))
        self.link.start(Hello(boot_id, 1))

    def load(self) -> list[int]:
        return [self.balancer.load(name).requests for name in ("a", "b")]


async def test_what_one_worker_sends_is_load_for_the_other() -> None:
    """While it runs, and no longer; and the worker that sent it does not count it twice."""
    with tempfile.TemporaryDirectory(prefix="wb-") as folder:
        path = Path(folder) / "link.sock"
        hub = Hub(VOCABULARY)
        hub.handlers.when_told(
            PromptsSent,
            lambda connection, message: hub.tell_others(
                connection.boot_id, msgspec.structs.replace(message, process=connection.boot_id)
            ),
        )
        await hub.start(path)
        one, two = _Worker(path, "one"), _Worker(path, "two")
        telling = [asyncio.create_task(loop) for worker in (one, two) for loop in worker.fleet.loops()]
        try:
            await one.link.synced(30)
            await two.link.synced(30)
            request = ask(*prompt(1))
            choice = one.balancer.pick(request, one.pool.snapshot, None, 100.0)
            assert choice is not None
            lease = ReplicaLease(one.balancer.take(choice, request, 100.0), one.pool, lambda: 100.0, 100.0)
            await until(lambda: sum(two.load()) == 1)
            assert two.load() == one.load()
            lease.end(failed=False)
            await until(lambda: sum(two.load()) == 0)
            assert sum(one.load()) == 0
        finally:
            for task in telling:
                task.cancel()
            await one.link.aclose()
            await two.link.aclose()
            await hub.aclose()
