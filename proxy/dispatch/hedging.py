"""Hedging: when a second attempt is made beside a late first one, where, and which of the two answers."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

import msgspec

from providers.retry_budget import RetryBudget
from providers.target import Target
from providers.wire import METERED
from proxy.plan.route_plan import Candidate, is_own
from proxy.plan.routed_request import RoutedRequest
from proxy.shared.target_latency import LatencyTracker

_Result = TypeVar("_Result")
FLOOR: Final = 1
"""The second attempts that a process makes before any request has earned one."""


class Hedging:
    """When an attempt is late enough for another one beside it; a bounded share of the requests gets one."""

    def __init__(self, budget: RetryBudget, latency: LatencyTracker) -> None:
        self._budget = budget
        self._latency = latency

    def after_s(self, target: Target, routed: RoutedRequest) -> float | None:
        """Returns the seconds after which an attempt at `target` is late: those within which 95 of 100 have answered there.

        None where nothing is hedged, or where this process has not seen enough of the target; and for what takes as long
        as it is long, such as recordings.
        """
        if routed.facts.tier not in target.hedged_tiers or routed.origin != "caller":
            return None
        if routed.request.operation in METERED:
            return None
        self._budget.request()
        return self._latency.late_s(target.target_id, routed.facts.tier, stream=routed.request.stream)

    def configure(self, share: float, window_s: float) -> None:
        """Goes on within another budget."""
        self._budget.configure(share, FLOOR, window_s)

    def try_spend(self) -> bool:
        """Takes one second attempt from the budget; False when there is none left."""
        return self._budget.try_spend()


def places(candidate: Candidate, routed: RoutedRequest, *, sibling: bool) -> Iterator[Candidate]:
    """Yields where a late attempt at `candidate` may be hedged: at another deployment of its target if there is such a
    `sibling`, then at the candidate that comes next, unless that one is a lesser answer, another arm of the experiment, or
    paid for by a team whose requests stay on our own targets as long as these answer.
    """
    if sibling:
        yield _as_hedge(candidate)
    following = iter(routed.plan.candidates)
    for each in following:
        if each.target.target_id == candidate.target.target_id:
            break
    after = next(following, None)
    if after is None or after.reason == "degraded" or routed.arm == "holdout":
        return
    if routed.caller.settings.spill_over or is_own(after.target, routed.pools):
        yield _as_hedge(after)


def _as_hedge(candidate: Candidate) -> Candidate:
    return msgspec.structs.replace(candidate, reason="hedge")


async def first_to_succeed(racing: Sequence[asyncio.Task[_Result]]) -> _Result:
    """Returns the result of the task that has one first, the earlier of two that have it at once. When all failed, raises
    what the first of them failed with.
    """
    running = set(racing)
    while running:
        done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for each in racing:
            if each in done and not each.cancelled() and each.exception() is None:
                return each.result()
    return racing[0].result()
