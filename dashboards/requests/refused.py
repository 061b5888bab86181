"""Refused requests among a team's requests: merged by time, and each with what refused it and what to do."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from cost.dimensions import REQUEST_FILTERS
from cost.errors import BudgetExceeded, UnpricedUnderBudget
from cost.reports.recent import Place, RecentPage, RecentQuery, RecentRequest
from proxy.admit.limits.refusals import RateLimited
from proxy.errors import (
    BodyTooLarge,
    ContextTooLong,
    Draining,
    ModelNotFound,
    NoEligibleTarget,
    Overloaded,
    QueueRefusal,
    TargetsUnavailable,
    code_of,
)
from proxy.settle.refusals.counting import RefusedRequest
from proxy.settle.refusals.refused_requests import MAX_ROWS, RefusedQuery, RefusedRequestStore

_UNKNOWN: Final = (
    "target",
    "duration",
    "tokens",
    "input_tokens",
    "output_tokens",
    "complexity",
    "saved",
    "ttft",
    "tier",
    "tag",
)
_LEDGERS_OWN: Final = tuple(name for name in REQUEST_FILTERS if name not in {"key", "target", "end_user"})
"""Filters of requests by what is not known of a refused one."""
REFUSED: Final = "refused"
"""The outcome of a request that reached no model."""

Found = RecentRequest | RefusedRequest


class MergedPage(NamedTuple):
    """One page of requests, those of the ledger and refused ones, newest first."""

    requests: tuple[Found, ...]
    next_place: Place | None


class Advice(NamedTuple):
    """The meaning of a reason, the remedy, and the team's page where it is changed; an empty page is none."""

    what: str
    todo: str
    page: str = ""
    page_words: str = ""


_OTHER: Final = Advice(
    "The request itself was not accepted.", "What the caller was told says what to mend in the request."
)
_ADVICE: Final[Mapping[type[Exception], Advice]] = {
    RateLimited: Advice(
        "A rate limit was reached: the message names it, whose it is, and how much was used.",
        "Wait as long as the reply's header retry-after says; OpenAI's clients do so by themselves. If it happens often, "
        "spread the calls, or ask an administrator for a larger limit.",
        "keys",
        "The team's keys and limits",
    ),
    BudgetExceeded: Advice(
        "A hard budget has no room for it: the message names the budget, its limit, and when it resets.",
        "Wait until it resets, raise the budget, or let it fall back to a cheaper model instead of refusing.",
        "budgets",
        "The team's budgets",
    ),
    UnpricedUnderBudget: Advice(
        "The model has no price, so it cannot be held against the hard budget.",
        "Name a model with a price, or ask an operator to enter one in the price book.",
        "models",
        "The team's models and prices",
    ),
    QueueRefusal: Advice(
        "The queue before the model had no room, or would not have been through in time.",
        "Try again as retry-after says, send it as a batch, or let it overflow to a paid provider in the team's policy.",
        "policy",
        "The team's policy",
    ),
    Overloaded: Advice(
        "The gateway had more work than it can do, and refused this so that the others stay quick.",
        "Try again as retry-after says. Operators see it under Incidents.",
    ),
    Draining: Advice("The process was being stopped.", "Try again at once: another process takes it."),
    TargetsUnavailable: Advice(
        "Every model that could have answered was down at that moment.",
        "Try again as retry-after says, or allow the team another model to fall back to.",
        "policy",
        "The team's policy",
    ),
    NoEligibleTarget: Advice(
        "No model that the team may use can do what the request needs.",
        "Allow a model with that capability, or leave out what the message names.",
        "models",
        "The team's models and what they can do",
    ),
    ContextTooLong: Advice(
        "The prompt is longer than any model takes that could have answered.",
        "Shorten it, or allow the team a model with a longer context.",
        "models",
        "The team's models and their contexts",
    ),
    ModelNotFound: Advice(
        "The model is not configured, or this team or key may not use it.",
        "Use a name of the list of models, or allow the model in the team's policy or at the key.",
        "models",
        "The team's models",
    ),
    BodyTooLarge: Advice("The body is larger than the gateway takes.", "Shorten it, or send it in parts."),
}
_BY_REASON: Final = {code_of(kind): advice for kind, advice in _ADVICE.items()}


def advice(refused: RefusedRequest) -> Advice:
    """Return the reason of a refusal, and what to do."""
    return _BY_REASON.get(refused.reason, _OTHER)


def refused_query(query: RecentQuery, outcome: str) -> RefusedQuery | None:
    """Return the query of refused requests that goes with this one; None where none can match, or for another order
    than time.
    """
    ledgers_own = (query.outcome, query.order, *(getattr(query, name) for name in _LEDGERS_OWN))
    bounds = (query.slower_us, query.faster_us, query.dearer_nanousd, query.cheaper_nanousd)
    if any(ledgers_own) or any(bound is not None for bound in bounds):
        return None
    if outcome not in {"", REFUSED} or query.scope.team_id is None:
        return None
    return RefusedQuery(
        organisation_id=query.scope.organisation_id,
        team_id=query.scope.team_id,
        before=query.before,
        since_us=query.since_us,
        until_us=query.until_us,
        keys=_any_of(query.key, query.keys),
        models=_any_of(query.target, query.targets),
        end_user=query.end_user,
        words=tuple((each.text, each.end_user, each.keys, each.targets) for each in query.words),
        statuses=query.statuses,
        rows=min(query.rows + 1, MAX_ROWS),
    )


def _any_of(one: str, others: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if not one:
        return others
    return (one,) if others is None or one in others else ()


async def read_refused(store: RefusedRequestStore, query: RefusedQuery | None) -> tuple[RefusedRequest, ...]:
    """Return the refused requests that match; none without a query."""
    return () if query is None else await store.read(query)


def merged(page: RecentPage, refused: Sequence[RefusedRequest], rows: int) -> MergedPage:
    """Return one page of both, newest first. What is older than the ledger was looked through is left for the next
    page.
    """
    floor = page.next_place
    own: list[tuple[Place, Found]] = [((each.at_us, each.request_id), each) for each in refused]
    there = [each for each in own if floor is None or each[0] >= floor]
    found = sorted([*zip(page.places, page.requests, strict=True), *there], key=lambda each: each[0], reverse=True)
    shown = tuple(each for _, each in found[:rows])
    if len(found) > rows:
        return MergedPage(shown, found[rows - 1][0])
    return MergedPage(shown, floor)


def refused_row(refused: RefusedRequest, href: str, names: Mapping[str, str]) -> dict[str, Any]:
    """Return a table row: a request that reached no model has no tokens and no latency, and cost nothing."""
    return {
        **dict.fromkeys(_UNKNOWN),
        "request_id": refused.request_id,
        "href": href,
        "request_id_href": href,
        "at": refused.at_us,
        "outcome": (f"Refused ({refused.status})", "warn"),
        "why": reason_words(refused.reason),
        "cost": 0,
        "alias": refused.model or None,
        "key": names.get(refused.key_id, refused.key_id),
        "end_user": refused.end_user or None,
        "attempts": 0,
        "status": refused.status,
    }


def reason_words(reason: str) -> str:
    """Return a reason's code as words."""
    return reason.replace("_", " ").capitalize()
