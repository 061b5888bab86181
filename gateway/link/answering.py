"""The control plane's answers to what workers ask of the database."""

from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.store import AccountStore, StoredKey
from classifier.learning.requests import NewestRow, newest_rows
from classifier.learning.store import LearningStore
from classifier.tuning import Tuning
from cost.budgets.budget import BudgetStatus
from cost.budgets.grants import Grant, GrantStore
from cost.price_book.book import DatedPrice
from cost.price_book.store import PriceStore
from gateway.link.connection import Handlers
from gateway.link.questions import (
    KeepHabits,
    KeepToLearnFrom,
    ReadKeys,
    ReadLearningSettings,
    ReadLimits,
    ReadLimitVersion,
    ReadOverrides,
    ReadOwnRequests,
    ReadStandings,
    ReadTuning,
    ReadTuningVersion,
    RememberPrices,
    ReturnGrants,
)
from gateway.low_priority_thread import LowPriorityThread
from proxy.admit.limits.rules import Rule
from proxy.admit.limits.store import LimitStore, TableVersion
from selfhosted.prefixes.store import PrefixStore


def answer_from_database(handlers: Handlers, engine: AsyncEngine, spare: LowPriorityThread | None = None) -> None:
    """Answer every question of `gateway.link.questions` from this database; what is to be learned from is written in spare time."""
    _answer_prices(handlers, PriceStore(engine))
    _answer_limits(handlers, LimitStore(engine))
    _answer_learning(handlers, LearningStore(engine), engine, spare)
    _answer_accounts(handlers, AccountStore(engine))
    _answer_budgets(handlers, GrantStore(engine))
    _answer_habits(handlers, PrefixStore(engine))


def _answer_prices(handlers: Handlers, prices: PriceStore) -> None:
    async def overrides(_from: Any, _asked: ReadOverrides) -> list[DatedPrice]:
        return await prices.overrides()

    async def remember(_from: Any, asked: RememberPrices) -> list[DatedPrice]:
        return await prices.remember_all(asked.prices)

    handlers.when_asked(ReadOverrides, overrides)
    handlers.when_asked(RememberPrices, remember)


def _answer_limits(handlers: Handlers, limits: LimitStore) -> None:
    async def version(_from: Any, _asked: ReadLimitVersion) -> TableVersion:
        return await limits.mark()

    async def rules(_from: Any, _asked: ReadLimits) -> list[Rule]:
        return await limits.all()

    handlers.when_asked(ReadLimitVersion, version)
    handlers.when_asked(ReadLimits, rules)


def _answer_learning(
    handlers: Handlers, learning: LearningStore, engine: AsyncEngine, spare: LowPriorityThread | None
) -> None:
    spared = None if spare is None else LearningStore(spare.engine)

    async def version(_from: Any, _asked: ReadTuningVersion) -> int | None:
        return await learning.active_version()

    async def tuning(_from: Any, _asked: ReadTuning) -> Tuning | None:
        return await learning.active_tuning()

    async def keep(_from: Any, asked: KeepToLearnFrom) -> None:
        if spare is not None and spared is not None and spare.has_time:
            await spare.run(lambda: spared.add(asked.requests, asked.verdicts))
        else:
            await learning.add(asked.requests, asked.verdicts)

    async def own(_from: Any, asked: ReadOwnRequests) -> list[NewestRow]:
        return await newest_rows(engine, asked.team_id, asked.artifact, asked.width)

    handlers.when_asked(ReadTuningVersion, version)
    handlers.when_asked(ReadTuning, tuning)
    handlers.when_asked(KeepToLearnFrom, keep)
    handlers.when_asked(ReadOwnRequests, own)


def _answer_accounts(handlers: Handlers, accounts: AccountStore) -> None:
    async def keys(_from: Any, asked: ReadKeys) -> list[StoredKey | None]:
        return await accounts.find_keys(asked.digests)

    async def learning(_from: Any, asked: ReadLearningSettings) -> dict[str, str]:
        return await accounts.learning_of(asked.team_ids)

    handlers.when_asked(ReadKeys, keys)
    handlers.when_asked(ReadLearningSettings, learning)


def _answer_budgets(handlers: Handlers, grants: GrantStore) -> None:
    async def standings(_from: Any, asked: ReadStandings) -> list[BudgetStatus]:
        return await grants.standings(asked.at_us)

    async def give_back(_from: Any, asked: ReturnGrants) -> dict[str, Grant]:
        return await grants.regrant(asked.boot_id, asked.needs, (), asked.at_us)

    handlers.when_asked(ReadStandings, standings)
    handlers.when_asked(ReturnGrants, give_back)


def _answer_habits(handlers: Handlers, habits: PrefixStore) -> None:
    async def keep(_from: Any, asked: KeepHabits) -> None:
        await habits.add(asked.deltas)

    handlers.when_asked(KeepHabits, keep)
