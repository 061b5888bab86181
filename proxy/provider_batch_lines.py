"""Lines that a provider's batch API may answer: the cost of each way, and the answer and the booking of its results.

A line is planned as every request is, and booked by the same attempt; but hours lie between its reservation and its
settlement, and a process's death may lie there too. So neither goes through this process's journal: both entries are
given to the keeper of the line, which writes them with the line itself.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from cost.ledger.entries import Entry
from cost.ledger.ledger import MemoryLedger
from cost.prices import Price
from providers.breaker import Breakers
from providers.claude.request import claude_params
from providers.config import BreakerConfig
from providers.errors import CannotCarry, MalformedReply
from providers.regular_replies import regular_answer
from providers.target import Deployment, Target
from providers.upstream import UpstreamCall
from providers.wire import Event, decode_embeddings, decode_event, path_of, upstream_body
from proxy.batch.in_process import answered, exchange_of
from proxy.batch.line_protocol import LineReply, LineRequest, Offers, OptionName, ProviderBatchLine
from proxy.context import RequestContext, new_context
from proxy.dispatch.attempt import Attempt
from proxy.dispatch.dispatcher import Committed
from proxy.dispatch.upstream_fields import call_fields, left_out_fields
from proxy.errors import NoEligibleTarget
from proxy.http.in_memory import InMemoryExchange
from proxy.parse.headers import read_headers
from proxy.parse.wires.wire import Wire
from proxy.pipeline import RequestPipeline
from proxy.plan.route_plan import Candidate, likely_most_nanousd, likely_nanousd, most_nanousd
from proxy.plan.routed_request import RoutedRequest
from proxy.relay.relay import EndedStream, relay_answer

FLAG: Final = "provider_batch"
"""The ledger's flag of answers from a provider's batch API."""
_AFTER_ALL: Final = frozenset({"fallback", "degraded"})
"""Reasons of candidates that are asked only where better ones fail."""


class PipelineOffers:
    """The pipeline of this process as the provider batch tier uses it."""

    def __init__(
        self,
        pipeline: RequestPipeline,
        wire_of: Callable[[str], Wire],
        clock: Callable[[], float],
        now_us: Callable[[], int],
    ) -> None:
        self._pipeline = pipeline
        self._wire_of = wire_of
        self._clock = clock
        self._now_us = now_us
        # Nothing is called here, so nothing is learnt of a deployment's health.
        self._breakers = Breakers(BreakerConfig(), clock)

    async def offers(self, asked: LineRequest, *, flex: bool) -> Offers:
        """Return the cost of one request by each way, as it would be planned now, with its bounds where a hard budget holds
        them. Raises a Refused for a request that cannot be asked.
        """
        _, _, routed = await self._planned(asked, to_be_held=True)
        costs: dict[OptionName, int | None] = {}
        handed: tuple[Candidate, Deployment] | None = None
        for candidate in routed.plan.candidates:
            if candidate.reason in _AFTER_ALL:
                continue
            target = candidate.target
            if target.own:
                _note(costs, "own", candidate.margin_nanousd or 0)
                continue
            _note(costs, "calls", candidate.expected_nanousd)
            if flex and target.price is not None and target.price.flex is not None and "flex" in target.service_tiers:
                _note(costs, "flex", _expected(target.price.flex, routed, candidate))
            deployment = self._with_batch_api(target, routed)
            if deployment is None or target.price is None or target.price.batch is None:
                continue
            cost = _expected(target.price.batch, routed, candidate)
            if handed is None or cost < (costs["provider"] or 0):
                costs["provider"], handed = cost, (candidate, deployment)
        if handed is None:
            return Offers(costs=costs)
        try:
            return Offers(costs=costs, handing=await self._handing(routed, *handed))
        except CannotCarry:
            del costs["provider"]
            return Offers(costs=costs)

    async def answered(self, asked: LineRequest, reserve: Entry, body: bytes) -> tuple[LineReply, Entry]:
        """Return the answer of a line from the provider's result, with the entry that closes its reservation, at the
        price of a batch. Raises a Refused or an UpstreamError where no answer can be made of it.
        """
        # Whatever its target did meanwhile: the answer is there, and paid.
        context, exchange, routed = await self._planned(asked, to_be_held=False)
        candidate, deployment = _as_reserved(routed, reserve)
        attempt, books = await self._reserved(routed, candidate, deployment, reserve.boot_id)
        event = _event(routed, deployment, body)
        if event.choices == 0:
            raise MalformedReply("The provider's answer has no content.", deployment_id=deployment.deployment_id)
        attempt.sent = True
        attempt.observe([event])
        context.routed, context.answering = routed, attempt
        context.attempts.append(attempt)
        await relay_answer(context, Committed(attempt, EndedStream(), [event]), None)
        return answered(context, exchange), _marked(books.entries[-1])

    async def _planned(
        self, asked: LineRequest, *, to_be_held: bool
    ) -> tuple[RequestContext, InMemoryExchange, RoutedRequest]:
        pipeline, caller = self._pipeline, asked.caller
        exchange = exchange_of(asked)
        context = new_context(asked.request_id, self._wire_of(asked.endpoint), exchange, self._clock, pipeline.config)
        context.caller = caller
        parsed = await pipeline.parser.understand(
            context.wire,
            exchange,
            read_headers(exchange.headers),
            caller,
            pipeline.config,
            started_at=context.started_at,
            memory=None,
            understood=context.understood,
        )
        context.keeper = parsed.keeper
        parsed = await pipeline.judged(context, caller, parsed, sent=not to_be_held)
        context.bounded = to_be_held and pipeline.is_bounded(caller, parsed.request)
        routed = pipeline.plan(context, caller, parsed, downgraded=False)
        return context, exchange, msgspec.structs.replace(routed, at_batch_price=True)

    def _with_batch_api(self, target: Target, routed: RoutedRequest) -> Deployment | None:
        """Return the target's first deployment with a batch API that takes such a request."""
        if routed.facts.service_tier is not None or routed.request.as_written is not None:
            # It asks for another way itself, or has tools that only the usual way is read for.
            return None
        for deployment in target.deployments:
            if deployment.batch_api == "openai":
                return deployment
            if deployment.batch_api == "anthropic" and routed.request.operation == "chat":
                return deployment
        return None

    async def _handing(self, routed: RoutedRequest, candidate: Candidate, deployment: Deployment) -> ProviderBatchLine:
        candidate = _at_batch_price(candidate, routed)
        attempt, books = await self._reserved(routed, candidate, deployment, "")
        return ProviderBatchLine(
            target_id=candidate.target.target_id,
            deployment=deployment,
            path=path_of(routed.request, deployment),
            body=_body(attempt),
            reserve=_marked(books.entries[-1]),
            most_nanousd=most_nanousd(_batched(candidate.target), routed.facts),
        )

    async def _reserved(
        self, routed: RoutedRequest, candidate: Candidate, deployment: Deployment, boot_id: str
    ) -> tuple[Attempt, MemoryLedger]:
        books = MemoryLedger(boot_id)
        permit = self._breakers.try_acquire(deployment.deployment_id)
        assert permit is not None  # noqa: S101  # Nothing here ever fails.
        attempt = Attempt(routed, 1, candidate, deployment, permit, books, self._clock, self._now_us)
        await attempt.reserve()
        return attempt, books


def _body(attempt: Attempt) -> bytes:
    """Return the body for the provider's batch API. Raises CannotCarry."""
    routed, target, deployment = attempt.routed, attempt.candidate.target, attempt.deployment
    fields = call_fields(target, deployment, routed)
    dropped = left_out_fields(target, routed)
    if deployment.batch_api == "openai":
        return upstream_body(routed.request, deployment, fields, dropped)
    return claude_params(
        UpstreamCall(
            deployment=deployment,
            request=routed.request,
            request_id=routed.request_id,
            connect_timeout_s=routed.timeouts.connect_s,
            idle_timeout_s=routed.timeouts.idle_s,
            total_timeout_s=routed.timeouts.total_s,
            engine_fields=fields,
            dropped=dropped,
        )
    )


def _note(costs: dict[OptionName, int | None], way: OptionName, cost_nanousd: int | None) -> None:
    """Keep the cheapest of several targets of one way."""
    known = costs.get(way)
    costs[way] = cost_nanousd if known is None else known if cost_nanousd is None else min(known, cost_nanousd)


def _expected(price: Price, routed: RoutedRequest, candidate: Candidate) -> int:
    return likely_nanousd(price, routed.facts, routed.facts.input_tokens, candidate.output_tokens)


def _at_batch_price(candidate: Candidate, routed: RoutedRequest) -> Candidate:
    """Return the candidate with the most that a provider's batch of it is likely to cost."""
    return msgspec.structs.replace(
        candidate, bound_nanousd=likely_most_nanousd(_batched(candidate.target), routed.facts)
    )


def _batched(target: Target) -> Target:
    """Return the target, sold at the price of a batch."""
    price = target.price
    if price is None or price.batch is None:
        return target
    return msgspec.structs.replace(target, price=price.batch)


def _as_reserved(routed: RoutedRequest, reserve: Entry) -> tuple[Candidate, Deployment]:
    """Return the candidate and the deployment that a reservation names. Raises NoEligibleTarget where they are gone."""
    for candidate in routed.plan.candidates:
        for deployment in candidate.target.deployments:
            if deployment.deployment_id == reserve.deployment_id:
                return _at_batch_price(candidate, routed), deployment
    raise NoEligibleTarget(f"The model `{reserve.target_id}` that was asked in a batch may not be asked any more.")


def _event(routed: RoutedRequest, deployment: Deployment, body: bytes) -> Event:
    if routed.request.operation != "chat":
        return decode_embeddings(body, deployment.deployment_id, deployment.api_key)
    event = decode_event(body, deployment.deployment_id, deployment.api_key)
    return regular_answer(event, routed.request, routed.request_id, deployment.deployment_id)


def _marked(entry: Entry) -> Entry:
    """Return an entry without times: those of a provider's batch say nothing of how quickly it answers calls."""
    return msgspec.structs.replace(entry, flags=(*entry.flags, FLAG), ttft_us=None, duration_us=None)
