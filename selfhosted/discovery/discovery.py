"""Membership of a pool: polls each source, merges their claims and reports a change.

The last answer of a source stays valid while the source fails, and while it is asked again after a sudden empty answer:
that is more often a mistake than the truth, and the watch finds out by itself which replicas do not answer. When two
claims share a name or an address, the conflict is reported and counted; the earlier holder keeps it, so that requests
never go to the wrong one.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final, Literal

import aiohttp
import msgspec

from providers.target import DeploymentKind
from selfhosted.config import PoolConfig
from selfhosted.discovery.dns import DnsSource, Resolve, system_resolver
from selfhosted.discovery.kubernetes import KubernetesSource, cluster_of
from selfhosted.discovery.source import (
    LOOK_S,
    MOST_REPLICAS,
    DiscoveredReplica,
    Source,
    SourceFailed,
    SourceResult,
    configured,
    registered,
)
from selfhosted.registry.registry import Registry
from selfhosted.replica import Address, rank_suffix
from selfhosted.replica import Source as SourceName

Result = Literal["ok", "empty", "failed"]
Conflict = Literal["name", "address"]


class DiscoveryObserver:
    """An observer of the results of discovery; this base class ignores them."""

    def discovery_looked(self, pool: str, source: SourceName, result: Result) -> None: ...

    def discovery_conflict(self, pool: str, kind: Conflict) -> None: ...


_log: Final = logging.getLogger(__name__)
_SLACK_S: Final = 1.0

ProblemKind = Literal["source_failed", "source_empty", "unusable", "name_conflict", "address_conflict", "too_many"]


class Problem(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A problem with a pool's membership, for operators."""

    kind: ProblemKind
    source: SourceName
    text: str


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """The merged replicas of a pool, sorted by name, and the problems with their claims."""

    addresses: tuple[Address, ...]
    problems: tuple[Problem, ...]


def merged(
    pool: str,
    kind: DeploymentKind,
    claims: Sequence[tuple[SourceName, DiscoveredReplica]],
    before: Mapping[str, Address],
    ordered: Collection[str] = (),
    *,
    rests: bool = False,
    most: int = MOST_REPLICAS,
) -> Merged:
    """Merge the sources' claims. Pure. `claims` are in the order of their sources; a claim that holds a name `before`
    keeps it. Replicas named in `ordered` drain, and all of a pool that `rests`. Beyond `most` they are left out.
    """
    kept: dict[str, Address] = {}
    owners: dict[str, str] = {}
    problems: list[Problem] = []
    for source, claim in sorted(claims, key=lambda each: not _held_before(before, *each)):
        there = kept.get(claim.name)
        if there is not None and there.url == claim.url:
            # Two sources know the same replica; it drains when either says so, and the first one's version counts.
            kept[claim.name] = msgspec.structs.replace(
                there, draining=there.draining or claim.draining, version=there.version or claim.version
            )
        elif there is not None:
            text = f"{claim.url} claims the name {claim.name}, which {there.url} ({there.source}) has"
            problems.append(Problem(kind="name_conflict", source=source, text=text))
        elif claim.url in owners:
            text = f"{claim.name} claims the address {claim.url}, which {owners[claim.url]} has"
            problems.append(Problem(kind="address_conflict", source=source, text=text))
        elif len(kept) >= most:
            text = f"more than {most} replicas; {claim.name} is left out"
            problems.append(Problem(kind="too_many", source=source, text=text))
        else:
            owners[claim.url] = claim.name
            draining = rests or claim.draining or claim.name in ordered
            kept[claim.name] = Address(
                pool=pool,
                name=claim.name,
                url=claim.url,
                kind=kind,
                source=source,
                draining=draining,
                version=claim.version,
                first_rank=claim.first_rank,
            )
    return Merged(addresses=tuple(kept[name] for name in sorted(kept)), problems=tuple(sorted(problems)))


def ranked(addresses: Sequence[Address], ranks: int, ordered: Collection[str] = ()) -> tuple[Address, ...]:
    """Return an address for each of the data-parallel ranks behind each of these, which has a KV cache and a queue of its own. A rank
    drains with its process, or alone where it is named in `ordered`.
    """
    if ranks == 1:
        return tuple(addresses)
    named = [(each, rank, each.name + rank_suffix(rank)) for each in addresses for rank in range(ranks)]
    return tuple(
        msgspec.structs.replace(each, name=name, rank=rank, draining=each.draining or name in ordered)
        for each, rank, name in sorted(named, key=lambda found: found[2])
    )


def _held_before(before: Mapping[str, Address], source: SourceName, claim: DiscoveredReplica) -> bool:
    had = before.get(claim.name)
    return had is not None and (had.source, had.url) == (source, claim.url)


def _versioned(config: PoolConfig, replica: DiscoveredReplica) -> DiscoveredReplica:
    """Return the replica with the version that its name stands for, where its source says none."""
    if replica.version:
        return replica
    found = next((each.version for each in config.versions if fnmatchcase(replica.name, each.replicas)), "")
    return msgspec.structs.replace(replica, version=found) if found else replica


class Discovery:
    """The replicas of one pool as this process knows them."""

    def __init__(
        self,
        config: PoolConfig,
        *,
        registry: Registry,
        sources: Sequence[Source] = (),
        changed: Callable[[], None] = lambda: None,
        observer: DiscoveryObserver | None = None,
    ) -> None:
        """Prepare; `changed` is called after `addresses` or `complete` changed."""
        self._config = config
        self._registry = registry
        self._sources = tuple(sources)
        self._changed = changed
        self._observer = observer or DiscoveryObserver()
        self._answers: dict[SourceName, SourceResult] = {}
        self._emptied: set[SourceName] = set()
        self._failures: dict[SourceName, Problem] = {}
        self._conflicts: frozenset[Problem] = frozenset()
        self.addresses: tuple[Address, ...] = ()
        self._processes: tuple[Address, ...] = ()
        self._notified: tuple[tuple[Address, ...], bool] = ((), False)
        self.problems: tuple[Problem, ...] = ()
        registry.subscribe(self._merge_and_notify)
        # Not notified: the caller reads the first addresses itself.
        self._merge()

    @property
    def complete(self) -> bool:
        """True once every source has answered; before that there may be more replicas than are known."""
        told = all(source.name in self._answers for source in self._sources)
        return told and (self._config.registration is None or self._registry.read)

    async def refresh(self) -> None:
        """Poll every source once, concurrently."""
        await asyncio.gather(*(self._poll(source) for source in self._sources))

    async def run(self) -> None:
        """Poll each source until cancelled, in tasks of their own, so that a slow one does not delay the others."""
        async with asyncio.TaskGroup() as group:
            for source in self._sources:
                group.create_task(self._poll_forever(source))

    async def _poll_forever(self, source: Source) -> None:
        while True:
            await asyncio.sleep(source.every_s)
            await self._poll(source)

    async def _poll(self, source: Source) -> None:
        try:
            async with asyncio.timeout(LOOK_S + _SLACK_S):
                found = await source.fetch()
        except (SourceFailed, TimeoutError) as error:
            self._record_failure(source.name, str(error) or "no answer in time")
        except Exception as error:  # noqa: BLE001 - the other sources, and the next look, must outlive any one
            _log.exception("pool %s: looking for replicas by %s failed", self._config.name, source.name)
            self._record_failure(source.name, f"failed unexpectedly ({type(error).__name__})")
        else:
            self._record_answer(source.name, found)
        self._merge_and_notify()

    def _record_failure(self, name: SourceName, why: str) -> None:
        if name not in self._failures:
            _log.warning(
                "pool %s: %s does not tell its replicas, the last known count: %s", self._config.name, name, why
            )
        self._failures[name] = Problem(kind="source_failed", source=name, text=why)
        self._observer.discovery_looked(self._config.name, name, "failed")

    def _record_answer(self, name: SourceName, found: SourceResult) -> None:
        known = self._answers.get(name)
        if not found.replicas and known is not None and known.replicas and name not in self._emptied:
            self._emptied.add(name)
            text = "told of nobody; believed when it says so again"
            self._failures[name] = Problem(kind="source_empty", source=name, text=text)
            self._observer.discovery_looked(self._config.name, name, "empty")
            return
        self._emptied.discard(name)
        if self._failures.pop(name, None) is not None:
            _log.warning("pool %s: %s tells its replicas again", self._config.name, name)
        self._answers[name] = found
        self._observer.discovery_looked(self._config.name, name, "ok" if found.replicas else "empty")

    def _merge_and_notify(self) -> None:
        if self._merge():
            self._changed()

    def _merge(self) -> bool:
        """Merge all claims into `addresses` and `problems`, and return True when the addresses changed, or whether they
        are all.
        """
        config, registry = self._config, self._registry
        asked = [(source.name, found.replicas) for source in self._sources if (found := self._answers.get(source.name))]
        told: list[tuple[SourceName, Sequence[DiscoveredReplica]]] = [
            ("configured", configured(config)),
            *asked,
            ("registered", registered(registry, config.name)),
        ]
        claims = [(source, _versioned(config, each)) for source, replicas in told for each in replicas]
        before = {address.name: address for address in self._processes}
        ordered, rests = registry.ordered(config.name), registry.rests(config.name)
        ranks = config.data_parallel_ranks
        result = merged(config.name, config.engine, claims, before, ordered, rests=rests, most=MOST_REPLICAS // ranks)
        self._report_conflicts(frozenset(result.problems))
        self.problems = (*result.problems, *sorted(self._failures.values()), *self._unusable())
        self._processes, self.addresses = result.addresses, ranked(result.addresses, ranks, ordered)
        before_this, self._notified = self._notified, (self.addresses, self.complete)
        return self._notified != before_this

    def _unusable(self) -> tuple[Problem, ...]:
        told: list[tuple[SourceName, str]] = [
            (name, text) for name, found in sorted(self._answers.items()) for text in found.unusable
        ]
        told += [("registered", text) for text in self._registry.refused(self._config.name)]
        return tuple(Problem(kind="unusable", source=source, text=text) for source, text in told)

    def _report_conflicts(self, conflicts: frozenset[Problem]) -> None:
        for problem in sorted(conflicts - self._conflicts):
            _log.warning("pool %s: %s", self._config.name, problem.text)
            if problem.kind == "name_conflict":
                self._observer.discovery_conflict(self._config.name, "name")
            elif problem.kind == "address_conflict":
                self._observer.discovery_conflict(self._config.name, "address")
        self._conflicts = conflicts


def sources_of(
    config: PoolConfig,
    *,
    session: aiohttp.ClientSession,
    secrets: Callable[[str], str],
    environment: Mapping[str, str],
    resolve: Resolve = system_resolver,
) -> tuple[Source, ...]:
    """Return the configured sources that have to be polled (DNS, Kubernetes)."""
    sources: list[Source] = []
    if config.dns is not None:
        sources.append(DnsSource(config.dns, resolve))
    if config.kubernetes is not None:
        cluster = cluster_of(config.kubernetes, environment=environment, secrets=secrets)
        sources.append(KubernetesSource(config.kubernetes, cluster, session))
    return tuple(sources)
