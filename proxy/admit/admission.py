"""Admission stage: checks the budgets that a request falls under and takes its tokens from the rate limits."""

from typing import Protocol

from accounts.caller import Caller
from cost.budgets.holds import BudgetCheck
from providers.wire import ChatRequest
from proxy.admit.limits.limit import Limiter
from proxy.context import RequestContext
from proxy.parse.parsed_request import ParsedRequest
from proxy.plan.request_facts import is_replaceable
from proxy.plan.route_plan import AUTO, DEFAULT_OUTPUT_TOKENS


class BudgetGate(Protocol):
    """A process-local view of the budgets, read without I/O. The money itself is held when an attempt reserves."""

    def check(self, organisation_id: str, team_id: str, key_id: str, tag: str) -> BudgetCheck: ...


async def take_from_limits(limiter: Limiter, context: RequestContext, caller: Caller, parsed: ParsedRequest) -> None:
    """Takes the request's estimated tokens from its limits, once per request; settling refunds what was not used.

    Adds the `x-ratelimit-*` headers to the reply. Raises RateLimited.
    """
    if context.admission is not None:
        return
    request = parsed.request
    unbounded = request.max_output_tokens is None and request.operation == "chat"
    guessed = DEFAULT_OUTPUT_TOKENS * request.n if unbounded else 0
    answer = (request.max_output_tokens or 0) * request.n + guessed
    context.admission = await limiter.admit(
        caller, request.alias or request.model, parsed.input_tokens + answer, guessed=guessed
    )
    context.reply.lines += context.admission.lines


def is_downgraded(budgets: BudgetGate, caller: Caller, request: ChatRequest, context: RequestContext) -> bool:
    """Returns True when a spent budget sends the request to the cheapest capable target, and notes whether a hard budget
    bounds it. Raises BudgetExceeded.
    """
    known = budgets.check(caller.organisation_id, caller.team_id, caller.key_id, request.tag)
    if known.exceeded is not None:
        raise known.exceeded
    context.bounded = known.hard
    return known.downgrade and request.model != AUTO and is_replaceable(request)
