"""The stores of a worker's watchers and logs, read and written through the control plane.

Each raises what a database that does not answer raises (an OSError or TimeoutError), so whoever asks goes on with what
it knows while the control plane is away.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from accounts.directory import FindKeys
from accounts.store import StoredKey
from classifier.learning.requests import OwnRequests, gathered
from classifier.learning.store import ClassifiedRequest, Verdict
from classifier.tuning import Tuning
from cost.budgets.budget import BudgetStatus
from cost.budgets.grants import Grant, GrantNeed, GrantRequest, Grants
from cost.price_book.book import DatedPrice
from gateway.link.connection import LinkDown
from gateway.link.link import Link
from gateway.link.questions import (
    KeepCacheLosses,
    KeepHabits,
    KeepToLearnFrom,
    ReadKeys,
    ReadLearningSettings,
    ReadLimits,
    ReadLimitVersion,
    ReadOverrides,
    ReadOwnRequests,
    ReadStandings,
    ReadStandingsOfEach,
    ReadTuning,
    ReadTuningVersion,
    RememberPrices,
    ReturnGrants,
)
from proxy.admit.limits.rules import Rule
from proxy.admit.limits.store import TableVersion
from proxy.settle.prompt_caches.watch import CacheDelta
from selfhosted.prefixes.tracker import HabitDelta

_LONG_S: Final = 30.0
"""Timeout of answers that may be large."""


class RemotePrices:
    """The prices that were entered by hand."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def overrides(self) -> list[DatedPrice]:
        return await self._link.ask(ReadOverrides())

    async def remember_all(self, prices: Iterable[DatedPrice]) -> list[DatedPrice]:
        return await self._link.ask(RememberPrices(list(prices)))


class RemoteLimits:
    """The exceptions from the configured limits."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def mark(self) -> TableVersion:
        return await self._link.ask(ReadLimitVersion())

    async def all(self) -> list[Rule]:
        return await self._link.ask(ReadLimits())


class RemoteTunings:
    """The tuning in use."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def active_version(self) -> int | None:
        return await self._link.ask(ReadTuningVersion())

    async def active_tuning(self) -> Tuning | None:
        return await self._link.ask(ReadTuning(), _LONG_S)


class RemoteLearning:
    """The rows to learn from, and what teams allow to be kept."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def add(self, weighings: Sequence[ClassifiedRequest], verdicts: Sequence[Verdict]) -> None:
        await self._link.ask(KeepToLearnFrom(list(weighings), list(verdicts)), _LONG_S)

    async def add_verdicts(self, verdicts: Sequence[Verdict]) -> None:
        await self.add((), verdicts)

    async def learning_of(self, team_ids: Iterable[str]) -> dict[str, str]:
        return await self._link.ask(ReadLearningSettings(sorted(set(team_ids))))

    async def own_requests(self, team_id: str, artifact: str, width: int) -> OwnRequests | None:
        return gathered(await self._link.ask(ReadOwnRequests(team_id, artifact, width), _LONG_S))


class RemoteKeys:
    """The keys in use, read again many at once; from the database itself while the control plane is away."""

    def __init__(self, link: Link, otherwise: FindKeys) -> None:
        self._link = link
        self._otherwise = otherwise

    async def find_keys(self, digests: list[str]) -> list[StoredKey | None]:
        try:
            return await self._link.ask(ReadKeys(digests))
        except LinkDown:
            return await self._otherwise(digests)


class RemoteGrants:
    """The grants of budgets. A caller's own request is answered by the database itself, all else by the control plane."""

    def __init__(self, link: Link, grants: Grants) -> None:
        self._link = link
        self._grants = grants

    async def renew_grants(
        self, boot_id: str, asks: Mapping[str, GrantNeed], wants: Sequence[GrantRequest], at_us: int
    ) -> dict[str, Grant]:
        if wants:
            return await self._grants.renew_grants(boot_id, asks, wants, at_us)
        return await self._link.ask(ReturnGrants(boot_id, dict(asks), at_us))

    async def standings(self, at_us: int) -> list[BudgetStatus]:
        try:
            return await self._link.ask(ReadStandings(at_us))
        except LinkDown:
            return await self._grants.standings(at_us)

    async def standings_of_each(self, ids: Sequence[str], at_us: int) -> list[BudgetStatus]:
        try:
            return await self._link.ask(ReadStandingsOfEach(list(ids), at_us))
        except LinkDown:
            return await self._grants.standings_of_each(ids, at_us)

    async def forget_boot(self, boot_id: str) -> None:
        await self._grants.forget_boot(boot_id)

    async def closed_boots(self, seen_before_us: int) -> tuple[list[str], list[str]]:
        return await self._grants.closed_boots(seen_before_us)


class RemoteHabits:
    """The counts of how prompts begin."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def add(self, deltas: Sequence[HabitDelta], committing: Callable[[], None] = lambda: None) -> None:
        # From when it is sent on, nobody here knows whether they were written.
        if not self._link.is_up:
            raise LinkDown("the control plane is not there")
        committing()
        await self._link.ask(KeepHabits(list(deltas)), _LONG_S)


class RemoteCacheLosses:
    """The counts of what was lost of prompt caches."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def add(self, deltas: Sequence[CacheDelta], committing: Callable[[], None] = lambda: None) -> None:
        if not self._link.is_up:
            raise LinkDown("the control plane is not there")
        committing()
        await self._link.ask(KeepCacheLosses(list(deltas)), _LONG_S)
