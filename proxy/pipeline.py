"""The pipeline of a request: http → parse → admit → plan → dispatch → judge → relay → settle.

These are the folders beside this file, in this order: each stage imports only from those before it. The server (http) calls
`serve`; `_stages` holds all branching between the stages, and each stage's own work is in its folder. Streaming or not, a
request takes the same path, and so does a line of a batch.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from accounts.caller import Caller
from classifier.prediction import Classifier
from cost.errors import BudgetExceeded
from guard.inspector import Guard
from providers.breaker import Breakers
from providers.token_counts import TokenCounter
from providers.wire import ChatRequest
from proxy.admit.admission import AdmissionControl
from proxy.admit.guarding import Asked, guarded, header_of
from proxy.admit.idempotency.recording import is_worth_keeping
from proxy.admit.moderating import Moderation
from proxy.admit.plugin_rules import NO_PLUGINS, PluginGuards
from proxy.batch.in_process import OVERLOADED, answered, exchange_of
from proxy.batch.line_protocol import LineReply, LineRequest
from proxy.cache.answer_cache import BYPASS, AnswerCache, Lookup
from proxy.context import RequestContext, new_context
from proxy.dispatch.dispatcher import Committed, Dispatcher
from proxy.dispatch.outcome import Observer
from proxy.errors import Draining, Overloaded, ReadsOnly, Refused
from proxy.http.exchange import CallerGone, Exchange
from proxy.http.reply_head import field_lines
from proxy.http.request_id import new_request_id
from proxy.judge.escalation import BetterAnswers
from proxy.judge.two_answers import TwoAnswers
from proxy.learning.shadow import Shadow
from proxy.parse.chat_request import AUTO, is_replaceable
from proxy.parse.count_tokens import counted
from proxy.parse.headers import RequestHeaders, read_headers
from proxy.parse.parsed_request import ParsedRequest, RequestParser
from proxy.parse.wires.wire import Kept, Memory, Wire
from proxy.plan.agreement import AgreementRates
from proxy.plan.overruns import Overruns
from proxy.plan.pipeline_config import PipelineConfig
from proxy.plan.routed_request import RoutedRequest
from proxy.plan.router import Router, with_names
from proxy.plan.scores import Scoring
from proxy.plan.session_affinity import Affinity
from proxy.relay.error_response import tell_failure
from proxy.relay.relay import relay_answer
from proxy.responses.background.background_responses import BackgroundResponses
from proxy.settle.observers.telemetry import Tracing
from proxy.settle.outcome_reports import Reports
from proxy.settle.prompt_caches.watch import PromptCacheWatch
from proxy.settle.settlement import Settlement
from proxy.shared.target_latency import LatencyTracker
from selfhosted.prefixes.tracker import PrefixTracker


class RequestPipeline:
    """The stages of a request, wired once per process."""

    def __init__(
        self,
        *,
        config: PipelineConfig,
        parser: RequestParser,
        admission: AdmissionControl,
        classifier: Classifier,
        affinity: Affinity,
        breakers: Breakers,
        dispatcher: Dispatcher,
        observers: tuple[Observer, ...],
        clock: Callable[[], float],
        tracing: Tracing | None = None,
        latency: LatencyTracker | None = None,
        habits: PrefixTracker | None = None,
        prompt_caches: PromptCacheWatch | None = None,
        overruns: Overruns | None = None,
        background: BackgroundResponses | None = None,
        counter: TokenCounter | None = None,
        cache: AnswerCache | None = None,
        scoring: Scoring | None = None,
        guard: Guard | None = None,
        moderation: Moderation | None = None,
        plugin_guards: PluginGuards = NO_PLUGINS,
        reported_at_once: tuple[int, int] = (1, 1),
    ) -> None:
        """`reported_at_once` bounds how many finished requests are reported together, at least and at most."""
        self.config = config
        self.leaving = False
        """True while balancers are told to go elsewhere and whoever comes is served."""
        self.draining = False
        self.shadow: Shadow | None = None
        """The sampler that is offered answers which their callers have. It needs this pipeline's configuration, so it comes later."""
        self.parser = parser
        self.guard = guard
        self.moderation = moderation
        self._plugin_guards = plugin_guards
        self._admission = admission
        self._classifier = classifier
        rates = AgreementRates()
        overruns = overruns or Overruns(clock)
        self._breakers = breakers
        self._router = Router(affinity, breakers, dispatcher.room, overruns, rates, dispatcher.refused, scoring)
        self._dispatcher = dispatcher
        self._better_answers = BetterAnswers(dispatcher)
        self._two_answers = TwoAnswers(dispatcher, rates)
        self._under_way: set[RequestContext] = set()
        self.reports = Reports(observers, reported_at_once, self._under_way, prompt_caches)
        self._settlement = Settlement(affinity, latency, self.reports, overruns)
        self._tracing = tracing
        self._clock = clock
        self._habits = habits
        self._background = background
        self._counter = counter
        self._cache = cache
        self.guard_digest = b""
        """The rules by which requests and answers are inspected: what was kept under others is not given again."""

    @property
    def in_flight(self) -> int:
        return len(self._under_way)

    def cut_off(self) -> None:
        """Cut every running request because the process has to stop: each is told, and settled."""
        for context in tuple(self._under_way):
            if not context.reply.done:
                context.cut("cut_off")

    async def serve(self, wire: Wire, exchange: Exchange, memory: Memory | None = None) -> None:
        """Serve one POST of this wire, and settle it in every case. `memory` is that of a connection that has
        several.
        """
        request_id = new_request_id()
        if self._admission.shed(wire, exchange, request_id):
            return
        context = new_context(request_id, wire, exchange, self._clock, self.config)
        context.memory = memory
        await self._run(context, exchange)

    async def answer(self, wire: Wire, asked: LineRequest) -> LineReply:
        """Answer a request of this gateway's own for a known caller, such as a line of a batch."""
        if self._admission.sheds(batch=asked.tier == "batch"):
            return OVERLOADED
        exchange = exchange_of(asked)
        context = new_context(asked.request_id, wire, exchange, self._clock, self.config)
        context.caller, context.asks_itself = asked.caller, True
        await self._run(context, exchange)
        return answered(context, exchange)

    async def run(
        self,
        wire: Wire,
        exchange: Exchange,
        caller: Caller,
        request_id: str,
        keep: Callable[[Kept], Awaitable[bool]],
    ) -> str:
        """Answer a request that was queued before. Return its error's code, empty for none."""
        context = new_context(request_id, wire, exchange, self._clock, self.config)
        context.caller, context.keeper, context.asks_itself = caller, keep, True
        await self._run(context, exchange)
        return context.error_code or ""

    async def _run(self, context: RequestContext, exchange: Exchange) -> None:
        """Take a request through the stages, and settle it in every case."""
        self._under_way.add(context)
        try:
            await self._stages(context, exchange)
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
                self._settlement.settle(context, self._clock(), self.shadow)
            finally:
                if context.answer is not None:
                    # Who waits for it asks itself: it was not kept.
                    context.answer.land("gone" if context.was_cut_short else "not_kept")
                if context.parsed is not None and context.parsed.request.upload is not None:
                    context.parsed.request.upload.close()
                if context.reply.recording is not None:
                    await context.reply.recording.close()

    async def _stages(self, context: RequestContext, exchange: Exchange) -> None:
        """Run the stages in their order; all branching between them stands here and in `_answer_by_model`."""
        # Parse: who asks, and what.
        if self.draining:
            raise Draining("This gateway process is stopping; send the request again.", retry_after_s=1.0)
        headers = read_headers(exchange.headers)
        if self._tracing is not None:
            context.trace = self._tracing.begin(headers.traceparent)
        caller = context.caller = context.caller or await self.parser.authenticate(headers, exchange.headers)
        if caller.reads_only:
            raise ReadsOnly
        if self.in_flight > context.config.max_in_flight:
            # Before the body is read: what is refused should cost nothing.
            raise Overloaded(
                f"This gateway process already serves {context.config.max_in_flight} requests, its limit; "
                "try again shortly.",
                retry_after_s=1.0,
            )
        parsed = context.parsed = await self.parser.understand(
            context.wire,
            exchange,
            headers,
            caller,
            context.config,
            started_at=context.started_at,
            memory=context.memory,
            understood=context.understood,
        )
        context.keeper = parsed.keeper or context.keeper
        if context.wire.answer is None and context.wire.count is None:
            await self._answer_by_model(context, caller, parsed, exchange, headers)
        else:
            await self._answer_without_model(context, caller, parsed)

    async def _answer_by_model(
        self,
        context: RequestContext,
        caller: Caller,
        parsed: ParsedRequest,
        exchange: Exchange,
        headers: RequestHeaders,
    ) -> None:
        """Admit, plan, dispatch and relay."""
        # Admit: what it may use, and whether it was answered before.
        context.watch_caller(exchange)
        body = parsed.body
        if self._is_guarded(caller):
            parsed = await self._judged_within_limits(context, caller, parsed)
        if self._cache is not None:
            # Begun here, so that one round trip to Redis is enough for limits and answer; by what the guard lets go on.
            self._look_for_answer(self._cache, context, caller, parsed, headers)
        if parsed.idempotency_key is not None:
            # Limits first: neither what they refuse nor repeats without end may keep the database from others.
            context.admission = context.admission or await self._admission.take(caller, parsed, context.reply)
            if await self._admission.replays(
                parsed.idempotency_key,
                body,
                caller,
                exchange,
                context.reply,
                context.request_id,
                # A stream that this process cut off has the status of a good one.
                lambda status: (
                    context.ended_by != "cut_off"
                    and is_worth_keeping(
                        status, may_have_cost=any(attempt.may_have_cost for attempt in context.attempts)
                    )
                ),
            ):
                return
        if parsed.later is not None and self._background is not None:
            later = parsed.later
            await self._background.enqueue_and_reply(
                caller, later, parsed.body, exchange.headers, context.reply, context.request_id
            )
            return
        budgets = self._admission.look_at_budgets(caller, parsed.request)
        context.bounded, context.spent_targets = budgets.bounded, budgets.spent_targets
        if context.admission is None:
            context.admission = await self._admission.take(caller, parsed, context.reply)
        if parsed.request.stream and parsed.request.operation == "chat":
            context.reply.may_begin_early()
        if context.answer is not None and await self._is_given_again(context, context.answer):
            return
        # Plan and dispatch.
        committed = await self._committed(context, caller, parsed, downgraded=budgets.downgraded)
        # Relay: from the first byte on nothing falls back; a failure is told in the answer.
        context.answering = committed.attempt
        await relay_answer(context, committed, self._habits, self._dispatcher)

    def _look_for_answer(
        self,
        cache: AnswerCache,
        context: RequestContext,
        caller: Caller,
        parsed: ParsedRequest,
        headers: RequestHeaders,
    ) -> None:
        """Begin to look for an answer that may be given again. Nothing is looked for where the gateway asks itself: it wants to know
        what a model says now. Raises BadRequest.
        """
        is_callers = context.memory is None and not context.asks_itself
        config = context.config
        lookup = None
        if is_callers:
            rules = (config.answers_digest, self.guard_digest, repr(caller.guard).encode())
            lookup = cache.look(context.wire.name, context.dialect, caller, parsed, headers, rules)
        context.answer, context.cached = lookup, "bypass" if lookup is None else lookup.result
        if lookup is None:
            context.reply.lines += BYPASS

    async def _is_given_again(self, context: RequestContext, lookup: Lookup) -> bool:
        """Give an answer again that was kept, and return True; else return False. Raises DeadlineExceeded."""
        committed = await lookup.committed(context.request_id, context.config)
        context.cached = lookup.result
        context.reply.lines += lookup.lines
        if committed is None:
            return False
        context.answering = committed.attempt
        await relay_answer(context, committed, None)
        return True

    def _is_guarded(self, caller: Caller) -> bool:
        return self.guard is not None and self.guard.is_on(caller.guard)

    async def _judged_within_limits(
        self, context: RequestContext, caller: Caller, parsed: ParsedRequest
    ) -> ParsedRequest:
        """Return the request as the guard lets it go on: limits first, as looking takes time. One that is answered later goes on as its
        caller sent it, and is judged again then. Raises RateLimited, and the refusals of the guard.
        """
        if parsed.later is not None:
            await self.judged(context, caller, parsed)
            return parsed
        context.admission = await self._admission.take(caller, parsed, context.reply)
        return await self.judged(context, caller, parsed)

    async def judged(
        self, context: RequestContext, caller: Caller, parsed: ParsedRequest, *, sent: bool = False
    ) -> ParsedRequest:
        """Return the request as the guard lets it go on, and tell in the reply's head what was found. `sent` is for one that was judged and
        sent before. Raises ContentFiltered, GuardUnavailable or BadRequest.
        """
        if self.guard is None or not self.guard.is_on(caller.guard):
            return parsed
        asked = Asked(moderation=self.moderation, plugins=self._plugin_guards, request_id=context.request_id)
        found = await guarded(self.guard, caller, context.wire, parsed, self.parser.bodies, sent=sent, asked=asked)
        context.guarded = found
        context.reply.lines += field_lines(header_of(found.verdict.findings))
        found.check()
        context.parsed = found.parsed
        return found.parsed

    async def _answer_without_model(self, context: RequestContext, caller: Caller, parsed: ParsedRequest) -> None:
        """Answer a wire's own question, or count the prompt's tokens as its target would."""
        wire = context.wire
        context.admission = await self._admission.take(caller, parsed, context.reply)
        if wire.answer is not None:
            body, told = wire.answer(parsed.request, parsed.input_tokens)
            await context.reply.whole(200, body, told)
        elif wire.count is not None:
            # Its target may be asked to count.
            parsed = await self.judged(context, caller, parsed)
            target = None
            with contextlib.suppress(Refused):
                target = self.plan(context, caller, parsed, downgraded=False, dry=True).plan.candidates[0].target
            fleet = () if target is None else self._breakers.available(target, caller.scope)
            found = await counted(self._counter, parsed, target, fleet, context.request_id)
            await context.reply.whole(200, wire.count(found.tokens), found.headers)

    def is_bounded(self, caller: Caller, request: ChatRequest) -> bool:
        """Return True where a hard budget holds the most that the request may cost."""
        return self._admission.is_bounded(caller, request)

    def plan(
        self,
        context: RequestContext,
        caller: Caller,
        parsed: ParsedRequest,
        *,
        downgraded: bool,
        dry: bool = False,
    ) -> RoutedRequest:
        """Classify the prompt and order the candidates. In a `dry` run nobody is told, and nothing is remembered.

        Raises ModelNotFound, NoEligibleTarget and their like when there are none.
        """
        request, prediction = parsed.request, None
        if request.model == AUTO or downgraded:
            before = self._clock()
            prediction = self._classifier.classify(parsed.prompt, caller.team_id, learns=caller.settings.learns)
            context.classify_s = self._clock() - before
        else:
            # Who names a model gets it: nothing hangs on how hard the prompt is.
            context.config = with_names(context.config, request.model)
        return self._router.route(
            context.request_id,
            caller,
            parsed,
            prediction,
            context.config,
            now=context.reply.now,
            in_flight=self.in_flight,
            downgraded=downgraded,
            bounded=context.bounded,
            spent_targets=context.spent_targets,
            compared=self.shadow is not None and self.shadow.wants(caller, request.model, context.request_id),
            trace_headers=None if context.trace is None else context.trace.headers(),
            dry=dry,
        )

    async def _committed(
        self, context: RequestContext, caller: Caller, parsed: ParsedRequest, *, downgraded: bool
    ) -> Committed:
        """Plan the request and return the answer to give, open at its first token. A target whose budget is spent in between may be
        replaced once.
        """
        while True:
            try:
                routed = context.routed = self.plan(context, caller, parsed, downgraded=downgraded)
                return await self._dispatch(context, routed)
            except BudgetExceeded as exceeded:
                named = not downgraded and parsed.request.model != AUTO
                untried = named and not context.attempts and is_replaceable(parsed.request)
                if not exceeded.downgrade or not untried:
                    raise
                # What was wanted does not fit any more; the cheapest that is good enough may, which is planned as `auto`.
                downgraded = True

    async def _dispatch(self, context: RequestContext, routed: RoutedRequest) -> Committed:
        """Return the answer to give, open at its first token, judged where that is wanted. Raises the errors of
        dispatching.
        """
        if routed.agreement is not None:
            committed = await self._two_answers.dispatch(context, routed)
            committed.attempt.released_at = self._clock()
            if context.agreement in {"agreed", "unconfirmed"}:
                return committed
        else:
            committed = await self._dispatcher.dispatch(routed, context.attempts, context.waits)
        if routed.hold is not None:
            # It was held back to be judged, so a weak one may still be asked again of a better target.
            committed = await self._better_answers.choose(context, committed)
            committed.attempt.released_at = self._clock()
        return committed
