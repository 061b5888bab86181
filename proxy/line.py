"""The request's straight line: authenticate → parse → admit → classify → plan → dispatch → relay → settle.

Each stage is one method of the pipeline, in this order; the branching between them stands in `_pass`, and the stages'
own work in the modules that they call. Streaming or not, a request takes the same path.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from accounts.caller import Caller
from accounts.directory import Directory
from classifier.prediction import Classifier, Prediction
from cost.errors import BudgetExceeded
from providers.breaker import Breakers
from providers.errors import UpstreamError
from providers.wire import Operation
from proxy.admitting import BudgetGate, is_downgraded, take_from_limits
from proxy.affinity import Affinity
from proxy.better_answer import BetterAnswers
from proxy.context import RequestContext
from proxy.dispatch import Committed, Dispatcher, close_quietly
from proxy.ending import CALLER_GONE
from proxy.errors import DeadlineExceeded, Draining, NotAuthenticated, Overloaded, ReadsOnly, error_reply
from proxy.idempotency.claims import Idempotency, Replay, fingerprint_of
from proxy.idempotency.recording import Recording, is_worth_keeping, replay
from proxy.kept_answer import judge_late, kept_bytes, learns, went_well
from proxy.latency import LatencyTracker
from proxy.learning.shadow import Shadow
from proxy.limits.limit import Limiter
from proxy.observers.telemetry import Tracing
from proxy.outcome import Observer
from proxy.outcome_of import observe_latency, outcome_of
from proxy.overload import OverloadGuard
from proxy.parsed_request import ParsedRequest, parsed_request
from proxy.pipeline_config import PipelineConfig
from proxy.planning import facts_of, is_replaceable, routed_request
from proxy.policy import AUTO, DEFAULT_OUTPUT_TOKENS, absent
from proxy.relay import relay_answer
from proxy.reply import Reply
from proxy.reply_headers import decision_headers
from proxy.request import RequestHeaders, conversation_key, read_headers
from proxy.request_id import REQUEST_ID_HEADER, new_request_id
from proxy.routed_request import RoutedRequest
from proxy.tags import TagBounds
from proxy.watching import body_in_time, cut_off, cut_the_slow, watch_caller
from selfhosted.prefixes.habits import Habits
from selfhosted.rendering import instructions

_log: Final = logging.getLogger("weighbridge.line")


class RequestPipeline:
    """Everything that a request passes, wired once per process."""

    def __init__(
        self,
        *,
        rules: PipelineConfig,
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
        habits: Habits | None = None,
    ) -> None:
        self.rules = rules
        self.draining = False
        self.shadow: Shadow | None = None
        """Is offered what was answered, when the caller has it. It needs this pipeline's rules, so it comes later."""
        self._directory = directory
        self._limiter = limiter
        self._classifier = classifier
        self._affinity = affinity
        self._breakers = breakers
        self._dispatcher = dispatcher
        self._better_answers = BetterAnswers(dispatcher)
        self._observers = observers
        self._tracing = tracing
        self._clock = clock
        self._budgets = budgets
        self._guard = guard
        self._once = once
        self._latency = latency
        self._habits = habits
        self._tags = TagBounds()
        self._under_way: set[RequestContext] = set()

    @property
    def in_flight(self) -> int:
        return len(self._under_way)

    def cut_off(self) -> None:
        """Ends everything that is under way, because the process has to stop: each is told, and settled."""
        cut_off(self._under_way)

    def cut_the_slow(self) -> None:
        """Refuses uploads that take too long, and cuts callers whose buffer has been full for too long.

        Called about once a second for all requests together, which costs less than a timer for each.
        """
        cut_the_slow(self._under_way, self._clock(), self.rules.slow_reader_s, self.rules.body_timeout_s)

    async def chat(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one POST /v1/chat/completions as an ASGI application."""
        await self._serve("chat", scope, receive, send)

    async def embeddings(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one POST /v1/embeddings as an ASGI application."""
        await self._serve("embeddings", scope, receive, send)

    async def _serve(self, operation: Operation, scope: Scope, receive: Receive, send: Send) -> None:
        """Takes one request down the line, and settles it however that ends."""
        request_id = new_request_id()
        if self._guard is not None and not self._guard.admits(batch=_says_batch(scope)):
            await self._guard.refuse(send, (REQUEST_ID_HEADER, request_id.encode()))
            return
        reply = Reply(send, self._clock)
        reply.headers.append((REQUEST_ID_HEADER, request_id.encode()))
        context = RequestContext(
            request_id=request_id,
            operation=operation,
            reply=reply,
            started_at=self._clock(),
            config=self.rules,
            task=_own_task(),
        )
        self._under_way.add(context)
        try:
            await self._pass(context, scope, receive)
            context.end("answered")
        except asyncio.CancelledError:
            if not context.was_cut_short:
                context.end("cancelled")
                raise
            # The cancellation was ours, and it ends here.
            context.task.uncancel()
            if context.ended_by == "cut_off":
                # Its caller is still there, and is told.
                await self._fail(context, Draining("This gateway process had to stop before the answer was complete."))
        except Exception as error:  # noqa: BLE001 - every failure is told to the caller and counted
            await self._fail(context, error)
        finally:
            self._under_way.discard(context)
            try:
                self.settle(context)
            finally:
                if context.recording is not None:
                    await context.recording.close()

    async def _pass(self, context: RequestContext, scope: Scope, receive: Receive) -> None:
        """The line itself."""
        if self.draining:
            raise Draining("This gateway process is stopping; send the request again.", retry_after_s=1.0)
        headers = read_headers(scope["headers"])
        context.trace = self._tracing.begin(headers.traceparent)
        caller = context.caller = await self.authenticate(headers)
        if caller.role == "finance":
            raise ReadsOnly
        if self.in_flight > context.config.max_in_flight:
            # Before the body is read: what is refused should cost nothing.
            raise Overloaded(
                f"This gateway process already serves {context.config.max_in_flight} requests, its limit; "
                "try again shortly.",
                retry_after_s=1.0,
            )
        parsed = await self.parse(context, caller, headers, scope, receive)
        watching = asyncio.ensure_future(watch_caller(context, receive))
        try:
            if parsed.idempotency_key is not None:
                # Limits first: neither what they refuse nor repeats without end may keep the database from others.
                await take_from_limits(self._limiter, context, caller, parsed)
                if await self._replayed(context, caller, parsed.idempotency_key, parsed, scope):
                    return
            downgraded = await self.admit(context, caller, parsed)
            prediction = self.classify(context, caller, parsed, downgraded=downgraded)
            routed = context.routed = self.plan(context, caller, parsed, prediction, downgraded=downgraded)
            try:
                committed = await self.dispatch(context, routed)
            except BudgetExceeded as exceeded:
                if not exceeded.downgrade or not _may_downgrade(context, routed):
                    raise
                # What was wanted does not fit any more; the cheapest that is good enough may.
                prediction = self.classify(context, caller, parsed, downgraded=True)
                routed = context.routed = self.plan(context, caller, parsed, prediction, downgraded=True)
                committed = await self.dispatch(context, routed)
            await self.relay(context, committed)
        finally:
            watching.cancel()

    async def authenticate(self, headers: RequestHeaders) -> Caller:
        """The key's owner. Raises NotAuthenticated or an accounts error."""
        key = headers.api_key
        if headers.authorization is not None:
            scheme, _, key = headers.authorization.partition(" ")
            if scheme.lower() != "bearer":
                key = None
        if not key:
            raise NotAuthenticated("No API key was sent; use the header `Authorization: Bearer wb-…`.")
        return self._directory.lookup_fresh(key) or await self._directory.authenticate(key)

    async def parse(
        self, context: RequestContext, caller: Caller, headers: RequestHeaders, scope: Scope, receive: Receive
    ) -> ParsedRequest:
        """The body, read within its bounds and understood. Raises BodyTooLarge, UploadTimeout, BadRequest, WrongTeam."""
        body = await body_in_time(context, scope, receive, self._clock())
        parsed = parsed_request(
            context.operation,
            body,
            headers,
            caller=caller,
            tags=self._tags,
            deadlines=context.config.deadlines,
            arrived_at=context.started_at,
        )
        context.prompt = parsed.prompt
        return parsed

    async def admit(self, context: RequestContext, caller: Caller, parsed: ParsedRequest) -> bool:
        """Whether a spent budget downgrades it. Raises BudgetExceeded or RateLimited."""
        downgraded = self._budgets is not None and is_downgraded(self._budgets, caller, parsed.request)
        await take_from_limits(self._limiter, context, caller, parsed)
        return downgraded

    def classify(
        self, context: RequestContext, caller: Caller, parsed: ParsedRequest, *, downgraded: bool
    ) -> Prediction | None:
        """How hard the prompt is; None where the caller named a model, so that nothing hangs on it."""
        if parsed.request.model != AUTO and not downgraded:
            return None
        before = self._clock()
        prediction = self._classifier.classify(parsed.prompt, caller.team_id)
        context.classify_s = self._clock() - before
        return prediction

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
        config, request = context.config, parsed.request
        facts = facts_of(parsed, caller, config, downgraded=downgraded)
        fleet = {name: self._breakers.available(target) for name, target in config.catalog.targets.items()}
        if not all(fleet.values()):
            # A pool that nobody is in any more has no other way to learn that somebody wants it.
            tokens = parsed.input_tokens + (request.max_output_tokens or DEFAULT_OUTPUT_TOKENS)
            for target in absent(facts, config.policy, config.catalog, fleet):
                self._dispatcher.turned_away(target, tokens)
        conversation = conversation_key(request, parsed.prompt)
        return routed_request(
            context,
            caller,
            parsed,
            prediction,
            facts,
            fleet=fleet,
            conversation=conversation,
            sticky=self._affinity.lookup(caller.team_id, conversation),
            downgraded=downgraded,
            in_flight=self.in_flight,
            keep_bytes=self._keep_bytes(context, caller, parsed) if prediction is not None else 0,
        )

    async def dispatch(self, context: RequestContext, routed: RoutedRequest) -> Committed:
        """The answer to give, open at its first token. Raises what `Dispatcher.dispatch` raises."""
        committed = await self._dispatcher.dispatch(routed, context.attempts)
        if routed.hold is not None:
            # It was held back to be judged, so a weak one may still be asked again of a better target.
            committed = await self._better_answers.choose(context, committed)
            context.released_at = self._clock()
        return committed

    async def relay(self, context: RequestContext, committed: Committed) -> None:
        """Gives the answer to the caller. From its first byte on nothing falls back, and a failure is told in it."""
        attempt = context.answering = committed.attempt
        try:
            self._note_habit(attempt.routed, attempt.deployment.target_id)
            headers = decision_headers(
                context.attempts, attempt, weakness=context.weakness, escalated_from=context.escalated_from
            )
            await relay_answer(committed, context.reply, headers)
        except (UpstreamError, DeadlineExceeded) as error:
            told = error_reply(error)
            attempt.close("failed", error, status=context.reply.status or told.status)
            if not context.reply.started:
                raise
            # The relay told it in place of the stream's end.
            context.end("failed")
            context.error_code = told.code
        except asyncio.CancelledError:
            attempt.observe(committed.stream.unread())
            attempt.close(context.ending, status=CALLER_GONE)
            raise
        except Exception as error:
            attempt.close("failed", error, status=500)
            raise
        finally:
            # The relay has settled a reply that went well, before its last bytes left.
            await close_quietly(committed.stream)

    def settle(self, context: RequestContext) -> None:
        """Gives the place back, remembers the conversation, and tells the observers. Never raises."""
        attempts, answering, caller, routed = context.attempts, context.answering, context.caller, context.routed
        if context.admission is not None:
            # Before anything else: what is not given back here never is.
            usages = [attempt.settled.usage for attempt in attempts if attempt.settled is not None]
            context.admission.settle(sum(usage.input_tokens + usage.output_tokens for usage in usages))
        judge_late(context)
        outcome = outcome_of(context, self._clock())
        if self._latency is not None:
            observe_latency(self._latency, attempts)
        answered = outcome.target_id if routed is not None and is_replaceable(routed.request) else None
        if routed is not None and answered and not outcome.error_code:
            tokens = outcome.input_tokens + outcome.output_tokens
            self._affinity.remember(routed.caller.team_id, routed.conversation, answered, tokens)
        for observer in self._observers:
            observer.finished(outcome)
        if self.shadow is not None and caller is not None and answering is not None and went_well(answering):
            self.shadow.offer(answering.routed.request, caller, outcome, answering.kept or ())
        if context.trace is not None:
            context.trace.finish(outcome, outcome.alias, outcome.stream)

    async def _replayed(
        self, context: RequestContext, caller: Caller, key: str, parsed: ParsedRequest, scope: Scope
    ) -> bool:
        """Whether the same request was answered before, and was so again. Otherwise it is this one that is served."""
        if self._once is None:
            return False
        fingerprint = fingerprint_of(scope["path"], scope["headers"], parsed.body)
        found = await self._once.claim(caller.team_id, key, fingerprint, context.request_id)
        if isinstance(found, Replay):
            await replay(context.reply, found)
            return True
        context.recording = context.reply.recording = Recording(
            found,
            # A stream that this process cut off has the status of a good one.
            lambda status: context.ended_by != "cut_off" and is_worth_keeping(status, context.attempts),
        )
        return False

    def _keep_bytes(self, context: RequestContext, caller: Caller, parsed: ParsedRequest) -> int:
        """How much of the answer is held on to, for what is done with it when the caller has it."""
        if not learns(caller):
            return 0
        shadow = self.shadow
        compared = shadow is not None and shadow.wants(caller, parsed.request.model, context.request_id)
        return kept_bytes(self.in_flight, compared=compared)

    def _note_habit(self, routed: RoutedRequest, target_id: str) -> None:
        """How teams begin their prompts is watched, for what that costs their caches."""
        if self._habits is not None and (prefix := instructions(routed.request)):
            caller = routed.caller
            tokens = routed.facts.input_tokens
            self._habits.observe(caller.organisation_id, caller.team_id, target_id, prefix, tokens)

    async def _fail(self, context: RequestContext, error: Exception) -> None:
        """Tells the caller, as far as it can still be told."""
        told = error_reply(error)
        context.end("failed")
        context.error_code = told.code
        if told.status == 500:  # noqa: PLR2004
            # The traceback names code, never the request's content; the message could hold content.
            _log.error("request %s failed unexpectedly: %s", context.request_id, type(error).__name__, exc_info=error)
        try:
            if not context.reply.started:
                await context.reply.error(told)
            elif context.ended_by == "cut_off" and not context.reply.done:
                await context.reply.end(b"data: " + told.body + b"\n\n")
            else:
                # A reply has begun that cannot be put right: its caller must not take it for whole.
                context.reply.abort()
        except OSError:
            pass
        except asyncio.CancelledError:
            if not context.was_cut_short:
                raise
            # It reads not even this, or not before the process has to stop.
            context.task.uncancel()
            context.reply.abort()


def _may_downgrade(context: RequestContext, routed: RoutedRequest) -> bool:
    """Whether the cheapest capable target may stand in: it was not planned by cost yet, and nothing was tried."""
    return routed.facts.alias != AUTO and not context.attempts and is_replaceable(routed.request)


def _own_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None  # noqa: S101  # A server runs each request in a task.
    return task


def _says_batch(scope: Scope) -> bool:
    return any(name == b"x-tier" and value == b"batch" for name, value in scope["headers"])
