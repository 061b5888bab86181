"""Data sources of a process's pipeline: the database itself in the control plane, the link in a worker."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple

from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.directory import FindKeys
from accounts.store import AccountStore
from classifier.learning.requests import OwnRequests, own_requests
from classifier.learning.store import LearningStore, Verdict
from cost.budgets.grants import Grants, GrantStore
from cost.price_book.price_updates import PriceSource
from cost.price_book.store import PriceStore
from gateway.link.link import Link
from gateway.link.remote import (
    RemoteCacheLosses,
    RemoteGrants,
    RemoteHabits,
    RemoteKeys,
    RemoteLearning,
    RemoteLimits,
    RemotePrices,
    RemoteTunings,
)
from proxy.admit.limits.book import LimitSource
from proxy.admit.limits.store import LimitStore
from proxy.learning.tunings import TuningSource
from proxy.settle.observers.learning import LearningRows
from proxy.settle.prompt_caches.store import CacheLossStore
from proxy.settle.prompt_caches.watch import CacheDelta
from proxy.shared.redis.live_processes import CountedProcesses
from selfhosted.prefixes.store import HabitSink, PrefixStore, Sink


class DataSources(NamedTuple):
    """The stores that a pipeline reads its present state from, and hands its counts to."""

    prices: PriceSource
    limits: LimitSource
    tunings: TuningSource
    rows: LearningRows
    """Takes rows to learn from."""
    add_verdicts: Callable[[Sequence[Verdict]], Awaitable[object]]
    learning_of: Callable[[Iterable[str]], Awaitable[dict[str, str]]]
    """Permissions to keep these teams' requests, by team id."""
    own_requests: Callable[[str, str, int], Awaitable[OwnRequests | None]]
    """A team's newest requests that the artifact scored, by team id, artifact and width."""
    find_keys: FindKeys
    grants: Grants
    habits: HabitSink
    cache_losses: Sink[CacheDelta]
    processes: CountedProcesses
    """The number of serving processes of all hosts."""


def from_database(engine: AsyncEngine, processes: CountedProcesses) -> DataSources:
    """Return the database itself, as the control plane uses it."""
    learning, accounts = LearningStore(engine), AccountStore(engine)

    async def own(team_id: str, artifact: str, width: int) -> OwnRequests | None:
        return await own_requests(engine, team_id, artifact, width)

    return DataSources(
        prices=PriceStore(engine),
        limits=LimitStore(engine),
        tunings=learning,
        rows=learning,
        add_verdicts=learning.add_verdicts,
        learning_of=accounts.learning_of,
        own_requests=own,
        find_keys=accounts.find_keys,
        grants=GrantStore(engine),
        habits=PrefixStore(engine),
        cache_losses=CacheLossStore(engine),
        processes=processes,
    )


def from_control_plane(link: Link, engine: AsyncEngine, processes: CountedProcesses) -> DataSources:
    """Return the control plane, and the database where a caller waits for the answer."""
    learning = RemoteLearning(link)
    return DataSources(
        prices=RemotePrices(link),
        limits=RemoteLimits(link),
        tunings=RemoteTunings(link),
        rows=learning,
        add_verdicts=learning.add_verdicts,
        learning_of=learning.learning_of,
        own_requests=learning.own_requests,
        find_keys=RemoteKeys(link, AccountStore(engine).find_keys).find_keys,
        grants=RemoteGrants(link, GrantStore(engine)),
        habits=RemoteHabits(link),
        cache_losses=RemoteCacheLosses(link),
        processes=processes,
    )
