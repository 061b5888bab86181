"""Questions of a worker to the control plane: reads and writes of the database that no caller waits for."""

from accounts.store import StoredKey
from classifier.learning.requests import NewestRow
from classifier.learning.store import ClassifiedRequest, Verdict
from classifier.tuning import Tuning
from cost.budgets.budget import BudgetStatus
from cost.budgets.grants import Grant, GrantNeed
from cost.price_book.book import DatedPrice
from gateway.link.codec import Question
from proxy.admit.limits.rules import Rule
from proxy.admit.limits.store import TableVersion
from proxy.settle.prompt_caches.watch import CacheDelta
from selfhosted.prefixes.tracker import HabitDelta


class ReadOverrides(Question[list[DatedPrice]], frozen=True):
    """A question for prices that were entered by hand and hold, or will."""


class RememberPrices(Question[list[DatedPrice]], frozen=True):
    """An order to keep prices for good, so that rows may be booked at them; answered with them under the names that they got."""

    prices: list[DatedPrice]


class ReadLimitVersion(Question[TableVersion], frozen=True):
    """The version of the table of limits."""


class ReadLimits(Question[list[Rule]], frozen=True):
    """All exceptions from the configured limits."""


class ReadTuningVersion(Question[int | None], frozen=True):
    """The version of the tuning in use; None for none."""


class ReadTuning(Question[Tuning | None], frozen=True):
    """The tuning in use."""


class ReadKeys(Question[list[StoredKey | None]], frozen=True):
    """A question for keys by their digests, in the same order; None for what is no key."""

    digests: list[str]


class ReadStandings(Question[list[BudgetStatus]], frozen=True):
    """Every budget as it stands at a moment in microseconds since 1970."""

    at_us: int


class ReadStandingsOfEach(Question[list[BudgetStatus]], frozen=True):
    """Budgets of single end users, as they stand at a moment in microseconds since 1970."""

    ids: list[str]
    at_us: int


class ReturnGrants(Question[dict[str, Grant]], frozen=True):
    """A return of a worker's unused grants; answered with those that it has now."""

    boot_id: str
    needs: dict[str, GrantNeed]
    at_us: int


class KeepToLearnFrom(Question[None], frozen=True):
    """An order to keep rows of answered requests, and verdicts of answers."""

    requests: list[ClassifiedRequest]
    verdicts: list[Verdict]


class ReadLearningSettings(Question[dict[str, str]], frozen=True):
    """A question for permissions to keep these teams' requests, by team id."""

    team_ids: list[str]


class ReadOwnRequests(Question[list[NewestRow]], frozen=True):
    """A team's newest requests that the artifact scored."""

    team_id: str
    artifact: str
    width: int


class KeepHabits(Question[None], frozen=True):
    """An order to add up counts of how prompts begin."""

    deltas: list[HabitDelta]


class KeepCacheLosses(Question[None], frozen=True):
    """An order to add up what was lost of prompt caches."""

    deltas: list[CacheDelta]


QUESTIONS = (
    ReadOverrides,
    RememberPrices,
    ReadLimitVersion,
    ReadLimits,
    ReadTuningVersion,
    ReadTuning,
    ReadKeys,
    ReadStandings,
    ReadStandingsOfEach,
    ReturnGrants,
    KeepToLearnFrom,
    ReadLearningSettings,
    ReadOwnRequests,
    KeepHabits,
    KeepCacheLosses,
)
