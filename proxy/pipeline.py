"""The pipeline of a request: http → parse → admit → plan → dispatch → judge → relay → settle.

These are the folders beside this file, in this order: each stage imports only from those before it. The server (http) calls
`serve`; `_stages` holds all branching between the stages, and each stage's own work is in its folder. Streaming or not, a
request takes the same path, and so does a line of a batch.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import TypeVar

from accounts.caller import Caller
from accounts.directory import Directory
from classifier.prediction import Classifier, Prediction
from cost.errors import BudgetExceeded
from cost.times import wall_us
from providers.breaker import Breakers
from providers.token_counts import TokenCounter
from proxy.admit.admission import AdmissionControl
from proxy.admit.idempotency.recording import is_worth_keeping
from proxy.batch.in_process import OVERLOADED, answered, exchange_of
from proxy.batch.line_protocol import Answered, Asked
from proxy.context import RequestContext, new_context
from proxy.dispatch.dispatcher import Committed, Dispatcher
from proxy.dispatch.outcome import Observer
from proxy.errors import Draining, Overloaded, ReadsOnly
from proxy.http.exchange import CallerGone, Exchange
from proxy.http.request_id import new_request_id
from proxy.judge.escalation import BetterAnswers
from proxy.judge.two_answers import TwoAnswers
from proxy.learning.shadow import Shadow
from proxy.parse.chat_request import AUTO, is_replaceable
from proxy.parse.count_tokens import counted
from proxy.parse.headers import RequestHeaders, caller_by_key, read_headers
from proxy.parse.json_bounds import check_structure, is_heavy
from proxy.parse.parsed_request import ParsedRequest, TagBounds, parsed_request
from proxy.parse.uploads import Uploads
from proxy.parse.wires.wire import Kept, Memory, Wire
from proxy.plan.agreement import AgreementRates
from proxy.plan.answer_retention import learns
from proxy.plan.overruns import Overruns
from proxy.plan.pipeline_config import PipelineConfig
from proxy.plan.route_plan import refuse_unrun_tools
from proxy.plan.routed_request import RoutedRequest
from proxy.plan.router import Router, with_names
from proxy.plan.session_affinity import Affinity
from proxy.relay.error_response import tell_failure
from proxy.relay.relay import relay_answer
from proxy.responses.background.background_responses import BackgroundResponses
from proxy.responses.stored.stored_responses import StoredResponses
from proxy.settle.observers.telemetry import Tracing
from proxy.settle.outcome_reports import Reports
from proxy.settle.settlement import Settlement
from proxy.shared.target_latency import LatencyTracker
from selfhosted.prefixes.tracker import PrefixTracker

_T = TypeVar("_T")


class RequestPipeline:
    """The stages of a request, wired once per process."""

    def __init__(
        self,
        *,
        config: PipelineConfig,
        directory: Directory,
        admission: AdmissionControl,
        classifier: Classifier,
        affinity: Affinity,
        breakers: Breakers,
        dispatcher: Dispatcher,
        observers: tuple[Observer, ...],
        tracing: Tracing,
        clock: Callable[[], float],
        latency: LatencyTracker | None = None,
        habits: PrefixTracker | None = None,
        responses: StoredResponses | None = None,
        background: BackgroundResponses | None = None,
        counter: TokenCounter | None = None,
        reported_at_once: tuple[int, int] = (1, 1),
    ) -> None:
        """`reported_at_once` bounds how many finished requests are reported together, at least and at most."""
        self.config = config
        self.draining = False
        self.shadow: Shadow | None = None
        """The sampler that is offered answers which their callers have. It needs this pipeline's configuration, so it comes later."""
        self._directory = directory
        self._admission = admission
        self._classifier = classifier
        rates = AgreementRates()
        overruns = Overruns(clock)
        self._router = Router(affinity, breakers, dispatcher.room, overruns, rates)
        self._dispatcher = dispatcher
        self._better_answers = BetterAnswers(dispatcher)
        self._two_answers = TwoAnswers(dispatcher, rates)
        self._under_way: set[RequestContext] = set()
        self.reports = Reports(observers, reported_at_once, self._under_way)
        self._settlement = Settlement(affinity, latency, self.reports, overruns)
        self._tracing = tracing
        self._clock = clock
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
        """Cut every running request because the process has to stop: each is told, and settled."""
        for context in tuple(self._under_way):
            if not context.reply.done:
                context.cut("cut_off")

    async def serve(self, wire: Wire, exchange: Exchange, memory: Memory | None = None) -> None:
        """Serve one POST of this wire, and settle it however it ends. `memory` is that of a connection that has several."""
        request_id = new_request_id()
        if self._admission.shed(wire, exchange, request_id):
            return
        context = new_context(request_id, wire, exchange, self._clock, self.config)
        context.memory = memory
        await self._run(context, exchange)

    async def answer(self, wire: Wire, asked: Asked) -> Answered:
        """Answer a request of this gateway's own for a known caller, such as a line of a batch."""
        if self._admission.sheds(batch=asked.tier == "batch"):
            return OVERLOADED
        exchange = exchange_of(asked)
        context = new_context(asked.request_id, wire, exchange, self._clock, self.config)
        context.caller = asked.caller
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
        """Answer a request that was put off before. Return its error's code, empty for none."""
        context = new_context(request_id, wire, exchange, self._clock, self.config)
        context.caller, context.keeper = caller, keep
        await self._run(context, exchange)
        return context.error_code or ""

    async def _run(self, context: RequestContext, exchange: Exchange) -> None:
        """Take a request through the stages, and settle it however that ends."""
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
                self.settle(context)
            finally:
                if context.upload is not None:
                    context.upload.close()
                if context.reply.recording is not None:
                    await context.reply.recording.close()

    async def _stages(self, context: RequestContext, exchange: Exchange) -> None:
        """Run the stages in their order; all branching between them stands here."""
        # Parse: who asks, and what.
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
        # Admit: what it may use, and whether it was answered before.
        if context.wire.answer is not None or context.wire.count is not None:
            await self._take_from_limits(context, caller, parsed)
            await self._answer_without_model(context, caller, parsed)
            return
        context.watch_caller(exchange)
        if parsed.idempotency_key is not None:
            # Limits first: neither what they refuse nor repeats without end may keep the database from others.
            await self._take_from_limits(context, caller, parsed)
            if await self._admission.replays(
                parsed.idempotency_key,
                parsed.body,
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
            await self._enqueue(self._background, context, caller, parsed, exchange)
            return
        budgets = self._admission.look_at_budgets(caller, parsed.request)
        context.bounded = budgets.bounded
        await self._take_from_limits(context, caller, parsed)
        # Plan and dispatch: a target whose budget is spent in between may be replaced once.
        routed = self.plan(context, caller, parsed, downgraded=budgets.downgraded)
        try:
            committed = await self._dispatch(context, routed)
        except BudgetExceeded as exceeded:
            untried = routed.facts.alias != AUTO and not context.attempts and is_replaceable(routed.request)
            if not exceeded.downgrade or not untried:
                raise
            # What was wanted does not fit any more; the cheapest that is good enough may.
            routed = self.plan(context, caller, parsed, downgraded=True)
            committed = await self._dispatch(context, routed)
        # Relay: from the first byte on nothing falls back; a failure is told in the answer.
        context.answering = committed.attempt
        await relay_answer(context, committed, self._habits, self._dispatcher)

    def authenticate(self, headers: RequestHeaders) -> Awaitable[Caller]:
        """Return the key's owner. Raises NotAuthenticated or an accounts error."""
        return caller_by_key(self._directory, headers)

    async def parse(
        self, context: RequestContext, caller: Caller, headers: RequestHeaders, exchange: Exchange
    ) -> ParsedRequest:
        """Read the body within its bounds and understand it.

        Raises BodyTooLarge, UploadTimeout, CallerGone, Overloaded, BadRequest or WrongTeam.
        """
        wire, config = context.wire, context.config
        if wire.takes_file:
            body, context.upload = await self._uploads.take(exchange, config.max_upload_bytes)
        else:
            body = await exchange.body(config.max_body_bytes)
        if wire.continuing is not None and self._responses is not None:
            context.keeper = functools.partial(self._responses.keep, caller)
            # Most go on from nothing.
            if names := await self.read(body, functools.partial(wire.continuing.names, body)):
                body = await self._responses.body_with_earlier(
                    caller.team_id,
                    names,
                    body,
                    wire.continuing,
                    self.read,
                    most_bytes=config.max_body_bytes,
                    memory=context.memory,
                )

        def read() -> ParsedRequest:
            understood = wire.read(body, headers, config.has_model)
            model = understood.request.model
            context.dialect = understood.dialect
            if model == AUTO or config.has_model(model):
                context.asked_model = model
            parsed = parsed_request(
                understood,
                body,
                headers,
                caller,
                aliases=config.policy.autos,
                deadlines=config.deadlines,
                started_at=context.started_at,
                tags=self._tags,
                upload=context.upload,
            )
            if parsed.request.as_written is not None:
                refuse_unrun_tools(parsed.request.as_written, config.catalog)
            return parsed

        # Nearly all are read here and now, which a coroutine of its own would make dearer.
        parsed = await self.read(body, read) if is_heavy(body) else read()
        context.prompt = parsed.prompt
        return parsed

    async def read(self, body: bytes, read: Callable[[], _T]) -> _T:
        """Return what `read` makes of the body: at once, or on a thread and one after the other where that would hold up all
        streams. Raises BadRequest, before any of it is decoded, where there is too much in it.
        """
        if not is_heavy(body):
            return read()
        async with self._reading:
            await asyncio.to_thread(check_structure, body)
            return await asyncio.to_thread(read)

    async def _take_from_limits(self, context: RequestContext, caller: Caller, parsed: ParsedRequest) -> None:
        """Take the request's tokens from its limits, once, and add the `x-ratelimit-*` headers. Raises RateLimited."""
        if context.admission is None:
            context.admission = await self._admission.take(caller, parsed)
            context.reply.lines += context.admission.lines

    async def _answer_without_model(self, context: RequestContext, caller: Caller, parsed: ParsedRequest) -> None:
        """Answer a wire's own question, or count the prompt's tokens as the target counts that would answer it."""
        wire = context.wire
        if wire.count is not None:
            prediction = self.classify(context, caller, parsed, downgraded=False)
            target, fleet = self._router.first_choice(
                context.request_id, caller, parsed, prediction, context.config
            ) or (None, ())
            found = await counted(self._counter, parsed, target, fleet, context.request_id)
            body, told = wire.count(found.tokens), found.headers
        else:
            assert wire.answer is not None  # noqa: S101  # The one caller looked.
            body, told = wire.answer(parsed.request, parsed.input_tokens)
        await context.reply.whole(200, body, told)

    async def _enqueue(
        self,
        background: BackgroundResponses,
        context: RequestContext,
        caller: Caller,
        parsed: ParsedRequest,
        exchange: Exchange,
    ) -> None:
        """Keep a request that is answered later; reply with what is queued, or with its events as long as they are read.

        Raises BackgroundFull, BadRequest, Overloaded or ResponsesUnavailable.
        """
        later = parsed.later
        assert later is not None  # noqa: S101  # The one caller looked.
        kept = later.queued(context.request_id, wall_us() // 1_000_000)
        await background.put_off(caller, kept, exchange.headers, parsed.body, streams=later.streams)
        if not later.streams:
            await context.reply.whole(200, kept.told)
            return
        # One that may not be followed now is made all the same.
        following = background.follow(caller.team_id, kept.response_id)
        context.reply.begin_events()
        async for data in following:
            await context.reply.events(data)
        await context.reply.end()

    def classify(
        self, context: RequestContext, caller: Caller, parsed: ParsedRequest, *, downgraded: bool
    ) -> Prediction | None:
        """Predict how hard the prompt is; None where the caller named a model, so that nothing hangs on it."""
        if parsed.request.model != AUTO and not downgraded:
            return None
        before = self._clock()
        prediction = self._classifier.classify(parsed.prompt, caller.team_id, learns=learns(caller))
        context.classify_s = self._clock() - before
        return prediction

    def plan(
        self, context: RequestContext, caller: Caller, parsed: ParsedRequest, *, downgraded: bool
    ) -> RoutedRequest:
        """Classify the prompt and order the candidates.

        Raises ModelNotFound, NoEligibleTarget and their like when there are none.
        """
        prediction = self.classify(context, caller, parsed, downgraded=downgraded)
        request = parsed.request
        if not downgraded and request.model != AUTO:
            context.config = with_names(context.config, request.model)
        context.routed = self._router.route(
            context.request_id,
            caller,
            parsed,
            prediction,
            context.config,
            now=context.reply.now,
            in_flight=self.in_flight,
            downgraded=downgraded,
            bounded=context.bounded,
            compared=self.shadow is not None and self.shadow.wants(caller, request.model, context.request_id),
            trace_headers=None if context.trace is None else context.trace.headers(),
        )
        return context.routed

    async def _dispatch(self, context: RequestContext, routed: RoutedRequest) -> Committed:
        """Return the answer to give, open at its first token, judged where that is wanted. Raises what dispatching raises."""
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

    def settle(self, context: RequestContext) -> None:
        """Give back what the request took, and report it. Never raises."""
        self._settlement.settle(context, self._clock(), self.shadow)
