"""Judges a pool's replicas in one process, by reported probes and by the outcomes of the process's own requests.

Every process of a host is told the same, so they agree; what a process sees itself counts there at once, and is told.
When nothing is told any more, the last states and statistics count on: statistics until they are stale, and a suspect
replica until it gets a request on trial (`tick`).
"""

import asyncio
from collections.abc import Callable
from typing import Final

from selfhosted.config import PoolConfig
from selfhosted.health import verdict as judge
from selfhosted.health.judged_replica import JudgedReplica, is_same
from selfhosted.health.messages import AdapterChanged, FromPool, PoolMembers, ReplicaDoubted, ReplicaObserved, Tell
from selfhosted.health.verdict import Health
from selfhosted.replica import Address, EngineStats, PoolSnapshot, ReplicaState

UNREAD: Final[tuple[ReplicaState, ...]] = ("starting", "down")
"""States in which nothing is known of a replica's statistics."""
_MISSED_ROUNDS: Final = 2
"""Rounds of probes that are not heard of before nobody is believed to probe."""
_LATE: Final = 3.0
"""A tick that comes after more than so many times its interval says that this process stood still."""
_NOBODY_READS: Final = "nobody reads its statistics now"


class JudgeObserver:
    """An observer of changes; this base class ignores them. Implementations must be quick."""

    def members_changed(self, addresses: tuple[Address, ...]) -> None: ...

    def removed(self, name: str) -> None: ...

    def restarted(self, name: str) -> None:
        """Note that another process answers there now, with an empty cache."""

    def state_changed(self, name: str, before: ReplicaState | None, state: ReplicaState) -> None:
        """Note a change of state; `before` is None for a new replica."""

    def stats_changed(self, name: str, stats: EngineStats | None) -> None: ...

    def changed(self) -> None:
        """Note that replicas came, went, or are in another state."""


class PoolJudge:
    """The replicas of one pool as this process sees them. Not thread-safe: its methods are for one event loop."""

    def __init__(
        self,
        config: PoolConfig,
        *,
        clock: Callable[[], float],
        tell: Tell | None = None,
        observer: JudgeObserver | None = None,
    ) -> None:
        """`tell` sends up the evidence of this process's requests; without it nothing is sent."""
        self._pool = config.name
        self._limits = judge.limits_of(config)
        self._stale_s = config.watch.stale_s
        self._silence_s = _MISSED_ROUNDS * config.watch.every_s + config.watch.timeout_s
        self._clock = clock
        self._tell = tell
        self.observer = observer or JudgeObserver()
        self._judged: dict[str, JudgedReplica] = {}
        self._doubted: set[str] = set()
        """Names of replicas whose doubt is to be told."""
        self._snapshot: PoolSnapshot | None = None
        self._ticked_at: float | None = None

    @property
    def snapshot(self) -> PoolSnapshot:
        """The current snapshot; the same object until something changed."""
        if self._snapshot is None:
            self._snapshot = PoolSnapshot(
                pool=self._pool, at=self._clock(), replicas=tuple([each.replica for each in self._judged.values()])
            )
        return self._snapshot

    @property
    def has_unprobed(self) -> bool:
        """True while there is a replica of which no probe is known."""
        return any(each.health.probe is None for each in self._judged.values())

    def health(self, name: str) -> Health | None:
        """Return a replica's health; None for a replica that is not there."""
        judged = self._judged.get(name)
        return None if judged is None else judged.health

    # --- what is told

    def hear(self, message: FromPool) -> None:
        """Take over a message about the pool."""
        if isinstance(message, ReplicaObserved):
            self.observe(message)
        else:
            self.adopt(message)

    def adopt(self, members: PoolMembers) -> None:
        """Replace the pool's members. A replica whose URL or engine changed is dropped and added anew."""
        wanted: dict[str, Address] = {}
        for address in members.addresses:
            wanted.setdefault(address.name, address)
        gone = self._judged.keys() - wanted.keys() if members.complete else ()
        for name in gone:
            self._drop(name)
        changed = [self._adopt_one(address) for address in wanted.values()]
        if gone or any(changed):
            self._members_changed()

    def observe(self, observed: ReplicaObserved) -> None:
        """Take over the facts of one replica. A new one is a member from now on."""
        name = observed.address.name
        if self._adopt_one(observed.address):
            self._members_changed()
        judged = self._judged[name]
        judged.heard_at = now = self._clock()
        self._note_restart(judged, observed.restarted_at)
        health = judge.observed(judged.health, observed.probe, observed.doubt, now=now, limits=self._limits)
        self._set_health(judged, health)
        if observed.scraped_at > judged.scraped_at:
            judged.scraped_at = observed.scraped_at
            known = judged.health.state not in UNREAD
            self._set_stats(judged, observed.stats if known else None, observed.stats_why)
        if observed.adapters_at > judged.adapters_at:
            self._set_adapters(judged, observed.adapters, observed.adapters_at)

    def doubt(self, doubted: ReplicaDoubted) -> bool:
        """Take over the evidence of another process's requests. Returns whether it was news."""
        judged = self._judged.get(doubted.replica)
        if judged is None or judged.address.url != doubted.url:
            return False
        before = judged.health.doubt
        health = judge.observed(judged.health, None, doubted.doubt, now=self._clock(), limits=self._limits)
        self._set_health(judged, health)
        return health.doubt != before

    # --- this process's own requests

    def failed(self, name: str, began_at: float | None = None) -> None:
        """Record a failed request: the replica gets no other until a probe, sent now, was answered."""
        judged = self._judged.get(name)
        if judged is not None:
            now = self._clock()
            health = judge.request_failed(judged.health, now=now, began_at=began_at, limits=self._limits)
            self._set_own(judged, health)

    def began(self, name: str) -> None:
        """Record a request sent to the replica. After repeated failures it is a trial, and the only request there."""
        judged = self._judged.get(name)
        if judged is not None and (judged.health.doubt.suspicions or judged.health.on_trust):
            self._set_own(judged, judge.request_began(judged.health, now=self._clock(), limits=self._limits))

    def succeeded(self, name: str, began_at: float, now: float) -> None:
        """Record a request that was answered now."""
        judged = self._judged.get(name)
        if judged is None:
            return
        judged.answered_at = now
        if judged.health.is_open:
            health = judge.request_succeeded(judged.health, now=now, began_at=began_at, limits=self._limits)
            self._set_own(judged, health)

    def left(self, name: str, began_at: float) -> None:
        """Record a request that ended without evidence for or against the replica."""
        judged = self._judged.get(name)
        if judged is not None and judged.health.doubt.trial_until is not None:
            now = self._clock()
            self._set_own(judged, judge.request_left(judged.health, now=now, began_at=began_at, limits=self._limits))

    def answered_since(self, name: str, at: float) -> bool:
        """Return whether a request of this process was answered there after `at`, of the monotonic clock."""
        judged = self._judged.get(name)
        return judged is not None and judged.answered_at > at

    def adapter_changed(self, name: str, adapter: str, *, loaded: bool) -> None:
        """Record that a LoRA adapter is loaded there now, or is not."""
        judged = self._judged.get(name)
        if judged is None:
            return
        now = self._clock()
        adapters = judged.adapters | {adapter} if loaded else judged.adapters - {adapter}
        self._set_adapters(judged, adapters, now)
        if self._tell is not None:
            url = judged.address.url
            self._tell(AdapterChanged(pool=self._pool, replica=name, url=url, adapter=adapter, loaded=loaded, at=now))

    def open_doubts(self) -> tuple[ReplicaDoubted, ...]:
        """Return the doubts of requests about replicas now, to be told again and again, as a message may be lost."""
        return tuple([self._told_doubt(each) for each in self._judged.values() if each.health.is_open])

    def tick(self, interval_s: float) -> None:
        """Let time pass; called about every `interval_s` seconds. Where nothing was heard of a replica for two rounds
        of probes, its statistics are dropped once they are stale, and a suspect gets a request on trial.
        """
        now = self._clock()
        before, self._ticked_at = self._ticked_at, now
        if before is not None and now - before > _LATE * interval_s:
            # What was told meanwhile lies there unread.
            return
        for judged in self._judged.values():
            if now - judged.heard_at > self._silence_s:
                self._set_health(judged, judge.unheard(judged.health, now=now, limits=self._limits))
                if judged.stats is not None and now - judged.stats.at > self._stale_s:
                    self._set_stats(judged, None, _NOBODY_READS)
            elif judged.health.state == "suspect":
                self._set_health(judged, judge.rejudged(judged.health, now=now, limits=self._limits))

    # --- membership

    def _adopt_one(self, address: Address) -> bool:
        """Adopt one address. Returns whether anything changed."""
        judged = self._judged.get(address.name)
        if judged is None:
            self._add(address)
        elif not is_same(address, judged.address):
            self._drop(address.name)
            self._add(address)
            self.observer.restarted(address.name)
        elif address != judged.address:
            state = judged.state
            judged.adopt(address, self._clock())
            if judged.state != state:
                self.observer.state_changed(address.name, state, judged.state)
        else:
            return False
        return True

    def _add(self, address: Address) -> None:
        judged = self._judged[address.name] = JudgedReplica(address, self._clock())
        self.observer.state_changed(address.name, None, judged.state)

    def _drop(self, name: str) -> None:
        del self._judged[name]
        self._doubted.discard(name)
        self.observer.removed(name)

    def _members_changed(self) -> None:
        self._judged = {name: self._judged[name] for name in sorted(self._judged)}
        self._snapshot = None
        self.observer.members_changed(tuple(each.address for each in self._judged.values()))
        self.observer.changed()

    # --- what follows

    def _set_own(self, judged: JudgedReplica, health: Health) -> None:
        """Take over the health that follows from an own request, and tell of it."""
        if health is judged.health:
            return
        self._set_health(judged, health)
        if self._tell is not None and health.doubt != judged.told:
            if not self._doubted:
                # Hundreds may fail at once.
                asyncio.get_running_loop().call_soon(self._tell_doubts)
            self._doubted.add(judged.address.name)

    def _tell_doubts(self) -> None:
        names, self._doubted = self._doubted, set()
        for name in sorted(names):
            judged = self._judged.get(name)
            if judged is not None and self._tell is not None:
                judged.told = judged.health.doubt
                self._tell(self._told_doubt(judged))

    def _told_doubt(self, judged: JudgedReplica) -> ReplicaDoubted:
        address = judged.address
        return ReplicaDoubted(pool=self._pool, replica=address.name, url=address.url, doubt=judged.health.doubt)

    def _set_health(self, judged: JudgedReplica, health: Health) -> None:
        """Take over the decided health, and publish its changes."""
        before, state = judged.health, judged.state
        judged.health = health
        if before.state == health.state and before.why == health.why:
            return
        if health.state in UNREAD:
            self._set_stats(judged, None, health.why)
        self._invalidate(judged)
        if judged.state != state:
            self.observer.state_changed(judged.address.name, state, judged.state)
            self.observer.changed()

    def _note_restart(self, judged: JudgedReplica, restarted_at: float) -> None:
        before = judged.restarted_at
        judged.restarted_at = restarted_at if before is None else max(before, restarted_at)
        if before is not None and restarted_at > before:
            self.observer.restarted(judged.address.name)

    def _set_stats(self, judged: JudgedReplica, stats: EngineStats | None, why: str) -> None:
        if stats is None and judged.stats is None and why == judged.stats_why:
            return
        known = judged.stats is not None
        judged.stats, judged.stats_why = stats, why
        self._invalidate(judged)
        if known or stats is not None:
            self.observer.stats_changed(judged.address.name, stats)

    def _set_adapters(self, judged: JudgedReplica, adapters: frozenset[str], at: float) -> None:
        judged.adapters_at = at
        if judged.adapters != adapters:
            judged.adapters = adapters
            self._invalidate(judged)

    def _invalidate(self, judged: JudgedReplica) -> None:
        judged.touch()
        self._snapshot = None
