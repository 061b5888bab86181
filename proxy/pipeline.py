"""The request's straight line: authenticate → parse → admit → classify → plan → dispatch → relay → settle.

Each stage is one method of the pipeline, in this order; the branching between them stands in `_pass`, and the stages'
own work in the modules that they call. Streaming or not, a request takes the same path.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import TypeVar

from accounts.caller import Caller
from accounts.directory import Directory
from classifier.prediction import Classifier, Prediction
from cost.errors import BudgetExceeded
from providers.breaker import Breakers
from providers.token_counts import TokenCounter
from proxy.admit.admission import BudgetGate, is_downgraded, take_from_limits
from proxy.admit.idempotency.claims import Idempotency
from proxy.admit.idempotent_replay import is_answered_again
from proxy.admit.limits.limit import Limiter
from proxy.admit.load_shedding import OverloadGuard
from proxy.batch.in_process import OVERLOADED, answered, exchange_of
from proxy.batch.line_protocol import Answered, Asked
from proxy.context import RequestContext, new_context
from proxy.dispatch.dispatcher import Committed, Dispatcher
from proxy.dispatch.outcome import Observer
from proxy.errors import Draining, Overloaded, ReadsOnly, error_reply
from proxy.http.exchange import CallerGone, Exchange
from proxy.http.request_id import REQUEST_ID_HEADER, new_request_id
from proxy.judge.escalation import BetterAnswers
from proxy.judge.two_answers import TwoAnswers
from proxy.learning.shadow import Shadow
from proxy.parse.authentication import caller_by_key
from proxy.parse.chat_request import RequestHeaders, read_headers, says_batch
from proxy.parse.count_tokens import Counted, counted
from proxy.parse.json_bounds import check_structure, is_heavy
from proxy.parse.parsed_request import ParsedRequest, parsed_request
from proxy.parse.tags import TagBounds
from proxy.parse.uploads import Uploads
from proxy.parse.wires.wire import Kept, Memory, Wire
from proxy.plan.agreement import AgreementRates
from proxy.plan.pipeline_config import PipelineConfig
from proxy.plan.request_facts import may_downgrade
from proxy.plan.route_plan import AUTO
from proxy.plan.routed_request import RoutedRequest
from proxy.plan.router import Routing
from proxy.plan.session_affinity import Affinity
from proxy.relay.cancellation import cut_off, watch_caller
from proxy.relay.error_response import tell_failure
from proxy.relay.relay import relay_answer
from proxy.responses.background.background_responses import BackgroundResponses
from proxy.responses.enqueue import put_off
from proxy.responses.previous_response import body_with_earlier
from proxy.responses.stored.stored_responses import StoredResponses
from proxy.settle.answer_sampling import learns
from proxy.settle.observers.telemetry import Tracing
from proxy.settle.outcome_reports import Reports
from proxy.settle.settlement import Settling
from proxy.shared.target_latency import LatencyTracker
from selfhosted.prefixes.tracker import PrefixTracker

_T = TypeVar("_T")


class RequestPipeline:
    """Everything that a request passes, wired once per process."""

    def __init__(
        self,
        *,
        config: PipelineConfig,
        directory: Directory,
        limiter: Limiter,
        classifier: Classifier,
        affinity: Affinity,
        breakers: Breakers,
        dispatcher: Dispatcher,
        observers: tuple[Observer, ...],
        tracing: Tracing,
        clock: Callable[[], float],
        budgets: BudgetGate | None = None,
        guard: OverloadGuard | None = None,
        once: Idempotency | None = None,
        latency: LatencyTracker | None = None,
        habits: PrefixTracker | None = None,
        responses: StoredResponses | None = None,
        turned_away: Callable[[], None] = lambda: None,
        background: BackgroundResponses | None = None,
        counter: TokenCounter | None = None,
        reported_at_once: tuple[int, int] = (1, 1),
    ) -> None:
        """`reported_at_once` bounds how many finished requests are told of together, at least and at most."""
        self.config = config
        self.draining = False
        self.shadow: Shadow | None = None
        """Is offered what was answered, when the caller has it. It needs this pipeline's configuration, so it comes later."""
        self._directory = directory
        self._limiter = limiter
        self._classifier = classifier
        rates = AgreementRates()
        self._routing = Routing(affinity, breakers, dispatcher, rates)
        self._dispatcher = dispatcher
        self._better_answers = BetterAnswers(dispatcher)
        self._two_answers = TwoAnswers(dispatcher, rates)
        self._under_way: set[RequestContext] = set()
        self.reports = Reports(observers, reported_at_once, self._under_way)
        self._settling = Settling(affinity, latency, self.reports)
        self._tracing = tracing
        self._clock = clock
        self._budgets = budgets
        self._guard = guard
        self._turned_away = turned_away
        self._once = once
        self._habits = habits
        self._responses = responses
        self._background = background
        self._counter = counter
        self._tags = TagBounds()
        self._uploads = Uploads()
        self._reading = asyncio.Lock()

    @property
    def in_flight(self) -> int:
        return len(self._under_way)

    def cut_off(self) -> None:
        """Ends everything that is under way, because the process has to stop: each is told, and settled."""
        cut_off(self._under_way)

    async def serve(self, wire: Wire, exchange: Exchange, memory: Memory | None = None) -> None:
        """Serves one POST of this wire: takes it down the line, and settles it however that ends.

        `memory` is that of a connection that has several.
        """
        request_id = new_request_id()
        guard = self._guard
        # What tier it has is looked for only while some are refused.
        if guard is not None and guard.guarding and not guard.admits(batch=says_batch(exchange.headers)):
            refusal = wire.error(error_reply(guard.refusal()), request_id)
            self._turned_away()
            guard.refuse(exchange, refusal, (REQUEST_ID_HEADER, request_id.encode()))
            return
        context = new_context(request_id, wire, exchange, self._clock, self.config)
        context.memory = memory
        await self._settled(context, exchange)

    async def answer(self, wire: Wire, asked: Asked) -> Answered:
        """Takes a request that this gateway asks for a known caller, such as a line of a batch, down the same line."""
        if self._guard is not None and not self._guard.admits(batch=asked.tier == "batch"):
            return OVERLOADED
        exchange = exchange_of(asked)
        context = new_context(asked.request_id, wire, exchange, self._clock, self.config)
        context.caller = asked.caller
        await self._settled(context, exchange)
        return answered(context, exchange)

    async def run(
        self,
        wire: Wire,
        exchange: Exchange,
        caller: Caller,
        request_id: str,
        keep: Callable[[Kept], Awaitable[bool]],
    ) -> str:
        """Takes a request that was put off down the same line, now that it is answered. Returns its error's code, empty for
        none.
        """
        context = new_context(request_id, wire, exchange, self._clock, self.config)
        context.caller, context.keeper = caller, keep
        await self._settled(context, exchange)
        return context.error_code or ""

    async def _settled(self, context: RequestContext, exchange: Exchange) -> None:
        """Takes a request down the line, and settles it however that ends."""
        self._under_way.add(context)
        try:
            await self._pass(context, exchange)
            context.end("answered")
        except CallerGone:
            context.end("caller_gone")
        except asyncio.CancelledError:
            if not context.was_cut_short:
                context.end("cancelled")
                raise
            # The cancellation was ours, and it ends here.
            context.task.uncancel()
            if context.ended_by == "cut_off":
                # Its caller is still there, and is told.
                await tell_failure(
                    context, Draining("This gateway process had to stop before the answer was complete.")
                )
        except Exception as error:  # noqa: BLE001 - every failure is told to the caller and counted
            await tell_failure(context, error)
        finally:
            exchange.on_gone = None
            # It holds the answer, which holds the context: only the collector would free them.
            context.writer = None
            self._under_way.discard(context)
            try:
                self.settle(context)
            finally:
                if context.upload is not None:
                    context.upload.close()
                if context.recording is not None:
                    await context.recording.close()

    async def _pass(self, context: RequestContext, exchange: Exchange) -> None:
        """The line itself."""
        if self.draining:
            raise Draining("This gateway process is stopping; send the request again.", retry_after_s=1.0)
        headers = read_headers(exchange.headers)
        context.trace = self._tracing.begin(headers.traceparent)
        caller = context.caller = context.caller or await self.authenticate(headers)
        if caller.role == "finance":
            raise ReadsOnly
        if self.in_flight > context.config.max_in_flight:
            # Before the body is read: what is refused should cost nothing.
            raise Overloaded(
                f"This gateway process already serves {context.config.max_in_flight} requests, its limit; "
                "try again shortly.",
                retry_after_s=1.0,
            )
        parsed = await self.parse(context, caller, headers, exchange)
        if context.wire.answer is not None or context.wire.count is not None:
            await self._tell(context, caller, parsed)
            return
        watch_caller(context, exchange)
        if parsed.idempotency_key is not None:
            # Limits first: neither what they refuse nor repeats without end may keep the database from others.
            await take_from_limits(self._limiter, context, caller, parsed)
            if self._once is not None and await is_answered_again(
                self._once, context, caller, parsed.idempotency_key, parsed.body, exchange
            ):
                return
        if parsed.later is not None and self._background is not None:
            await put_off(self._background, context, caller, parsed, exchange)
            return
        downgraded = await self.admit(context, caller, parsed)
        prediction = self.classify(context, caller, parsed, downgraded=downgraded)
        routed = context.routed = self.plan(context, caller, parsed, prediction, downgraded=downgraded)
        try:
            committed = await self.dispatch(context, routed)
        except BudgetExceeded as exceeded:
            if not exceeded.downgrade or not may_downgrade(context, routed):
                raise
            # What was wanted does not fit any more; the cheapest that is good enough may.
            prediction = self.classify(context, caller, parsed, downgraded=True)
            routed = context.routed = self.plan(context, caller, parsed, prediction, downgraded=True)
            committed = await self.dispatch(context, routed)
        await self.relay(context, committed)

    async def _tell(self, context: RequestContext, caller: Caller, parsed: ParsedRequest) -> None:
        """Answers what no model is asked."""
        await take_from_limits(self._limiter, context, caller, parsed)
        wire = context.wire
        if wire.count is not None:
            found = await self.count(context, caller, parsed)
            body, told = wire.count(found.tokens), found.headers
        else:
            assert wire.answer is not None  # noqa: S101  # The one caller looked.
            body, told = wire.answer(parsed.request, parsed.input_tokens)
        await context.reply.whole(200, body, told)

    def authenticate(self, headers: RequestHeaders) -> Awaitable[Caller]:
        """The key's owner. Raises NotAuthenticated or an accounts error."""
        return caller_by_key(self._directory, headers)

    async def parse(
        self, context: RequestContext, caller: Caller, headers: RequestHeaders, exchange: Exchange
    ) -> ParsedRequest:
        """The body, read within its bounds and understood.

        Raises BodyTooLarge, UploadTimeout, CallerGone, Overloaded, BadRequest or WrongTeam.
        """
        if context.wire.takes_file:
            body, context.upload = await self._uploads.take(exchange, context.config.max_upload_bytes)
        else:
            body = await exchange.body(context.config.max_body_bytes)
        continuing = context.wire.continuing
        if continuing is not None and self._responses is not None:
            context.keeper = functools.partial(self._responses.keep, caller)
            # Most go on from nothing.
            if names := await self.understand(body, functools.partial(continuing.names, body)):
                body = await body_with_earlier(self._responses, context, caller, body, names, self.understand)
        # Nearly all are read here and now, which a coroutine of its own would make dearer.
        read = functools.partial(parsed_request, context, caller, headers, body, self._tags)
        parsed = await self.understand(body, read) if is_heavy(body) else read()
        context.prompt = parsed.prompt
        return parsed

    async def understand(self, body: bytes, read: Callable[[], _T]) -> _T:
        """What `read` makes of the body: at once, or on a thread and one after the other where that would hold up all streams.

        Raises BadRequest, before any of it is decoded, where there is too much in it.
        """
        if not is_heavy(body):
            return read()
        async with self._reading:
            await asyncio.to_thread(check_structure, body)
            return await asyncio.to_thread(read)

    async def admit(self, context: RequestContext, caller: Caller, parsed: ParsedRequest) -> bool:
        """Whether a spent budget downgrades it. Raises BudgetExceeded or RateLimited."""
        downgraded = self._budgets is not None and is_downgraded(self._budgets, caller, parsed.request, context)
        await take_from_limits(self._limiter, context, caller, parsed)
        return downgraded

    def classify(
        self, context: RequestContext, caller: Caller, parsed: ParsedRequest, *, downgraded: bool
    ) -> Prediction | None:
        """How hard the prompt is; None where the caller named a model, so that nothing hangs on it."""
        if parsed.request.model != AUTO and not downgraded:
            return None
        before = self._clock()
        prediction = self._classifier.classify(parsed.prompt, caller.team_id, learns=learns(caller))
        context.classify_s = self._clock() - before
        return prediction

    async def count(self, context: RequestContext, caller: Caller, parsed: ParsedRequest) -> Counted:
        """The prompt's tokens, as the target counts that would answer it; our estimate where it does not."""
        prediction = self.classify(context, caller, parsed, downgraded=False)
        target, fleet = self._routing.first_choice(context, caller, parsed, prediction) or (None, ())
        return await counted(self._counter, parsed, target, fleet, context.request_id)

    def plan(
        self,
        context: RequestContext,
        caller: Caller,
        parsed: ParsedRequest,
        prediction: Prediction | None,
        *,
        downgraded: bool,
    ) -> RoutedRequest:
        """The candidates in their order. Raises ModelNotFound, NoEligibleTarget and their like when there are none."""
        return self._routing.route(
            context,
            caller,
            parsed,
            prediction,
            downgraded=downgraded,
            in_flight=self.in_flight,
            shadow=self.shadow,
        )

    async def dispatch(self, context: RequestContext, routed: RoutedRequest) -> Committed:
        """The answer to give, open at its first token. Raises what `Dispatcher.dispatch` raises."""
        if routed.agreement is not None:
            committed = await self._two_answers.dispatch(context, routed)
            context.released_at = self._clock()
            if context.agreement in {"agreed", "unconfirmed"}:
                return committed
        else:
            committed = await self._dispatcher.dispatch(routed, context.attempts)
        if routed.hold is not None:
            # It was held back to be judged, so a weak one may still be asked again of a better target.
            committed = await self._better_answers.choose(context, committed)
            context.released_at = self._clock()
        return committed

    async def relay(self, context: RequestContext, committed: Committed) -> None:
        """Gives the answer to the caller. From its first byte on nothing falls back, and a failure is told in it, unless the
        team wants a broken stream continued.
        """
        context.answering = committed.attempt
        await relay_answer(context, committed, self._habits, self._dispatcher)

    def settle(self, context: RequestContext) -> None:
        """Gives back what it took, and has it told to whoever learns from it. Never raises."""
        self._settling.settle(context, self._clock(), self.shadow)
