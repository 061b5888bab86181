"""The control plane's answers to what workers ask of the database."""

from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.store import AccountStore
from classifier.learning.requests import newest_rows
from classifier.learning.store import LearningStore
from cost.budgets.grants import GrantStore
from cost.price_book.store import PriceStore
from gateway.link.connection import Handlers
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
from gateway.low_priority_thread import LowPriorityThread
from proxy.admit.limits.store import LimitStore
from proxy.settle.prompt_caches.store import CacheLossStore
from selfhosted.prefixes.store import PrefixStore


def answer_from_database(handlers: Handlers, engine: AsyncEngine, spare: LowPriorityThread | None = None) -> None:
    """Answer every question of `gateway.link.questions` from this database."""
    prices, limits, learning = PriceStore(engine), LimitStore(engine), LearningStore(engine)
    accounts, grants, habits = AccountStore(engine), GrantStore(engine), PrefixStore(engine)
    losses = CacheLossStore(engine)
    spared = None if spare is None else LearningStore(spare.engine)

    async def keep_to_learn(_from: object, asked: KeepToLearnFrom) -> None:
        # Nobody waits for these rows: they are written in spare time while there is any.
        if spare is not None and spared is not None and spare.has_time:
            await spare.run(lambda: spared.add(asked.requests, asked.verdicts))
        else:
            await learning.add(asked.requests, asked.verdicts)

    answer = handlers.when_asked
    answer(ReadOverrides, lambda _from, _asked: prices.overrides())
    answer(RememberPrices, lambda _from, asked: prices.remember_all(asked.prices))
    answer(ReadLimitVersion, lambda _from, _asked: limits.mark())
    answer(ReadLimits, lambda _from, _asked: limits.all())
    answer(ReadTuningVersion, lambda _from, _asked: learning.active_version())
    answer(ReadTuning, lambda _from, _asked: learning.active_tuning())
    answer(KeepToLearnFrom, keep_to_learn)
    answer(ReadOwnRequests, lambda _from, asked: newest_rows(engine, asked.team_id, asked.artifact, asked.width))
    answer(ReadKeys, lambda _from, asked: accounts.find_keys(asked.digests))
    answer(ReadLearningSettings, lambda _from, asked: accounts.learning_of(asked.team_ids))
    answer(ReadStandings, lambda _from, asked: grants.standings(asked.at_us))
    answer(ReadStandingsOfEach, lambda _from, asked: grants.standings_of_each(asked.ids, asked.at_us))
    answer(ReturnGrants, lambda _from, asked: grants.renew_grants(asked.boot_id, asked.needs, (), asked.at_us))
    answer(KeepHabits, lambda _from, asked: habits.add(asked.deltas))
    answer(KeepCacheLosses, lambda _from, asked: losses.add(asked.deltas))
