"""The bound of a batch's cost, compared with the room in its caller's budgets.

Money itself is held line by line, as for every request, so no budget is ever overrun. The decision here is whether to
begin: a batch whose bound no budget has room for is refused whole, before its first line has cost anything.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from sqlalchemy import ColumnElement, or_
from sqlmodel import col

from accounts.caller import Caller
from cost.budgets.budget import Budget
from cost.budgets.grants import GrantNeed, GrantRequest, GrantStore
from cost.errors import BudgetExceeded, UnpricedUnderBudget
from cost.prices import usd
from cost.times import wall_us
from providers.catalog import Catalog
from providers.target import Capability
from proxy.batch.store import BatchStore
from proxy.batch.tables import BatchRow
from proxy.batch.validation import Bound, LineSize, Problem, Validated
from proxy.errors import code_of
from proxy.plan.route_plan import Facts, Policy, costliest_nanousd, names_behind
from settings.key_ids import SEPARATOR, first_id

_EMBEDS: Final[frozenset[Capability]] = frozenset({"embeddings"})
_PLAIN: Final[frozenset[Capability]] = frozenset()
_NAMES: Final = 64
"""The names of one batch whose wildcards are cached."""


class CostBounds:
    """The bounds of batches, and the budgets that they are compared with."""

    def __init__(self, batches: BatchStore, grants: GrantStore, rules: Callable[[], tuple[Policy, Catalog]]) -> None:
        """`rules` returns the policy and the catalog that requests are planned by now."""
        self._batches = batches
        self._grants = grants
        self._rules = rules

    def bound_for(self, caller: Caller) -> Bound:
        """Return the function that bounds a line's cost by the dearest target that may serve it."""
        policy, known = self._rules()

        @lru_cache(maxsize=_NAMES)
        def catalog_with(name: str) -> Catalog:
            return known.including(names_behind(name, policy))

        def bound(size: LineSize) -> int | None:
            embeds = size.operation == "embeddings"
            facts = Facts(
                alias=size.model,
                tier="batch",
                needs=_EMBEDS if embeds else _PLAIN,
                input_tokens=size.input_tokens,
                most_input_tokens=size.body_bytes + size.input_tokens,
                max_output_tokens=None if embeds else size.max_output_tokens,
                choices=size.choices,
                allowed_models=caller.allowed_models,
                # One text of several may be the whole; which one is the longest shows when it is asked.
                longest_tokens=1 if embeds else None,
            )
            return costliest_nanousd(facts, policy, catalog_with(size.model))

        return bound

    async def hold(self, name: str, caller: Caller, amount_nanousd: int | None) -> bool:
        """Hold money of the caller's hard budgets under a name that outlives this process. Return False where one has
        too little, or where the amount is not known. `free` gives it back.
        """
        now_us = wall_us()
        ids = [
            status.budget.budget_id
            for status in await self._grants.standings(now_us)
            if status.budget.hard and _applies(status.budget, caller)
        ]
        if not ids or amount_nanousd is None:
            return not ids
        want = GrantRequest(amount_nanousd=amount_nanousd, budget_ids=tuple(ids))
        given = await self._grants.renew_grants(name, dict.fromkeys(ids, GrantNeed(floor_nanousd=0)), [want], now_us)
        if any(grant.lacking for grant in given.values()):
            await self.free(name)
            return False
        # The part granted ahead is given back: it is meant for a process that asks again and again.
        await self._grants.renew_grants(name, dict.fromkeys(ids, GrantNeed(floor_nanousd=amount_nanousd)), [], now_us)
        return True

    async def free(self, name: str) -> None:
        """Give back the money held under a name."""
        await self._grants.forget_boot(name)

    async def problem(self, caller: Caller, validated: Validated, batch_id: str = "") -> Problem | None:
        """Return the reason for which the whole batch does not fit; None where every hard budget of its caller has
        room. `batch_id` is its own, where it has one already.
        """
        for status in await self._grants.standings(wall_us()):
            if not status.budget.hard or not _applies(status.budget, caller):
                continue
            name = f"{status.budget.scope} `{status.budget.shown_id}`"
            bound = validated.bound_nanousd
            if bound is None:
                told = f"A line names a model without a price, which cannot be called under the hard budget of {name}."
                return Problem(code=code_of(UnpricedUnderBudget), message=told)
            promised = await self._batches.reserved(_of_scope(status.budget), col(BatchRow.batch_id) != batch_id)
            left = status.limit_nanousd - status.spent_nanousd - status.held_nanousd - promised
            if bound > left:
                told = (
                    f"This batch may cost up to ${usd(bound):.4f}, and the budget of {name} has ${usd(max(0, left)):.4f} left beside "
                    "what is running and what other batches may cost. Lower `max_tokens`, split the file, or wait until the "
                    "budget resets."
                )
                return Problem(code=code_of(BudgetExceeded), message=told)
        return None


def _applies(budget: Budget, caller: Caller) -> bool:
    """Return True for a budget of the caller's organisation, team or key. Lines of batches have no tags."""
    ids = {"organisation": caller.organisation_id, "team": caller.team_id, "key": first_id(caller.key_id)}
    return budget.organisation_id == caller.organisation_id and ids.get(budget.scope) == budget.scope_id


def _of_scope(budget: Budget) -> ColumnElement[bool]:
    column = {"organisation": BatchRow.organisation_id, "team": BatchRow.team_id, "key": BatchRow.key_id}[budget.scope]
    own = col(column) == budget.scope_id
    if budget.scope != "key":
        return own
    return or_(own, col(column).startswith(f"{budget.scope_id}{SEPARATOR}", autoescape=True))
