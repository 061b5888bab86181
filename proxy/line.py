"""The request's straight line: authenticate → parse → admit → classify → plan → dispatch → relay → settle.

All branching stands here; the stages are leaves. Streaming or not, a request takes the same path. Dispatch may be
passed twice: where escalation was asked for, a weak answer is asked again of a better target before any of it was given.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec
from starlette.types import Receive, Scope, Send

from accounts.caller import Caller
from accounts.directory import Directory
from classifier.prediction import Prediction, Prompt
from cost.claim.comparators import Comparators
from cost.claim.holdout import arm_of
from cost.errors import BudgetExceeded
from cost.ledger.entries import Arm
from providers.breaker import Breakers
from providers.catalog import Catalog
from providers.config import RetryConfig, TimeoutsConfig
from providers.errors import UpstreamError
from providers.wire import ChatRequest, Operation
from proxy.affinity import Affinity
from proxy.answers.weak_answer import Weakness, graver, judge
from proxy.attempt import CALLER_GONE, Attempt, Ending, Unused
from proxy.comparisons import comparator_of
from proxy.deadlines.deadline import NO_DEADLINE, Deadline, deadline_of, own_timeout_s
from proxy.deadlines.deadlines_config import DeadlinesSection
from proxy.dispatch import Committed, Dispatcher, close_quietly
from proxy.errors import (
    DeadlineExceeded,
    Draining,
    NotAuthenticated,
    Overloaded,
    ReadsOnly,
    UploadTimeout,
    WrongTeam,
    error_reply,
)
from proxy.escalation import EscalationAllowance, EscalationRules, escalation_candidate, may_escalate
from proxy.idempotency.claims import Idempotency, Replay, fingerprint_of
from proxy.idempotency.recording import Recording, is_worth_keeping, replay
from proxy.job import Hold, Job
from proxy.latency import Paces
from proxy.learning.shadow import MAX_PAYLOAD_BYTES, Shadow
from proxy.limits.headers import rate_headers
from proxy.limits.limit import Admission, Limiter
from proxy.observers.telemetry import RequestTrace, Tracing
from proxy.outcome import Observer, RequestOutcome
from proxy.overload import OverloadGuard
from proxy.policy import AUTO, DEFAULT_OUTPUT_TOKENS, Facts, Fleet, Policy, RoutePlan, absent, held_out, plan
from proxy.relay import dollars, relay
from proxy.reply import Header, Reply, read_body
from proxy.request import (
    RequestHeaders,
    conversation_key,
    input_tokens,
    messages_digest,
    most_input_tokens,
    needs,
    parse_chat,
    parse_embeddings,
    prompt_of,
    read_headers,
    wants_escalation,
)
from proxy.request_id import REQUEST_ID_HEADER, new_request_id
from proxy.tags import TagBounds
from proxy.tolerance import Tolerances, plain_tolerance
from selfhosted.rendering import instructions

_log = logging.getLogger("weighbridge.line")

_KEPT_BYTES: Final = 256 * 1024
"""Of payloads that a request holds on to, to be judged when the caller has its answer."""
_KEPT_IN_ALL_BYTES: Final = 256 * 1024 * 1024
"""Of answers that a process holds back or holds on to: thousands of streams at once must not take all its memory."""
_LATE_SCHEMA_STEPS: Final = 500
"""That judging happens on the event loop, so it may take a few milliseconds at most."""


_PARSERS: Final[Mapping[Operation, Callable[[bytes, RequestHeaders], ChatRequest]]] = {
    "chat": parse_chat,
    "embeddings": parse_embeddings,
}


class Weigher(Protocol):
    """Scores a prompt at once. Never raises."""

    def classify(self, prompt: Prompt, team_id: str = "") -> Prediction: ...


class BudgetLook(Protocol):
    """What is known of the budgets that a request falls under."""

    @property
    def exceeded(self) -> BudgetExceeded | None:
        """A hard one is spent."""
        ...

    @property
    def downgrade(self) -> bool:
        """A soft one is spent whose team asked for the cheapest capable target then."""
        ...


class BudgetGate(Protocol):
    """What a process knows of the budgets without asking anybody. The money itself is held with the reserve."""

    def look(self, organisation_id: str, team_id: str, key_id: str, tag: str) -> BudgetLook: ...


class HabitLog(Protocol):
    """Watches how teams begin their prompts, for what that costs their caches."""

    def observe(
        self, organisation_id: str, team_id: str, target_id: str, prefix: bytes, prompt_tokens: int
    ) -> None: ...


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What a reload may change: swapped whole, so that a request sees one set of rules from start to end."""

    catalog: Catalog
    policy: Policy
    comparators: Comparators
    timeouts: TimeoutsConfig
    retry: RetryConfig
    max_in_flight: int
    max_body_bytes: int
    body_timeout_s: float
    slow_reader_s: float
    escalation: EscalationRules = EscalationRules()
    pools: Mapping[str, str] = {}
    """Target → the pool of our own GPUs that it runs on."""
    holdout_share: float = 0.0
    """Of `auto`'s requests this share goes to the reference instead, and as many are counted beside them."""
    tolerances: Tolerances | None = None
    """Without them each prompt may lose what the floor gives up."""
    deadlines: DeadlinesSection = DeadlinesSection()


class Weighed(msgspec.Struct, frozen=True, kw_only=True):
    """A request with everything that planning learned about it."""

    request: ChatRequest
    prompt: Prompt
    facts: Facts
    prediction: Prediction | None
    classify_s: float | None
    conversation: Hashable
    plan: RoutePlan
    arm: Arm
    downgraded: bool
    """A budget is spent, so the cheapest capable target stands in for the one that was named."""
    escalates: bool
    """A weak answer may be asked again of a better target."""


class _Passage:
    """What is known of one request so far; the outcome is made from it at the end, however it ends."""

    __slots__ = (
        "admission",
        "answering",
        "attempts",
        "caller",
        "caller_gone",
        "cut_off",
        "deadline",
        "error_code",
        "escalated_from",
        "judged",
        "operation",
        "reading_since",
        "recording",
        "released_at",
        "reply",
        "request_id",
        "started_at",
        "task",
        "too_slow",
        "trace",
        "weakness",
        "weighed",
    )

    def __init__(self, request_id: str, operation: Operation, reply: Reply, started_at: float) -> None:
        self.request_id = request_id
        self.operation: Operation = operation
        self.reply = reply
        self.started_at = started_at
        self.task: asyncio.Task[Any] | None = asyncio.current_task()
        self.caller: Caller | None = None
        self.admission: Admission | None = None
        self.recording: Recording | None = None
        """It has an Idempotency-Key, so it runs to its end also when its caller does not wait for it."""
        self.deadline: Deadline | None = None
        self.weighed: Weighed | None = None
        self.attempts: list[Attempt] = []
        self.answering: Attempt | None = None
        self.judged = False
        self.weakness: Weakness | None = None
        self.escalated_from: Attempt | None = None
        self.released_at: float | None = None
        self.trace: RequestTrace | None = None
        self.caller_gone = False
        self.too_slow = False
        self.cut_off = False
        self.reading_since: float | None = None
        self.error_code: str | None = None


class Line:
    """Everything that a request passes, wired once per process."""

    def __init__(
        self,
        *,
        rules: Rules,
        directory: Directory,
        limiter: Limiter,
        classifier: Weigher,
        affinity: Affinity,
        breakers: Breakers,
        dispatcher: Dispatcher,
        observers: tuple[Observer, ...],
        tracing: Tracing,
        clock: Callable[[], float],
        budgets: BudgetGate | None = None,
        guard: OverloadGuard | None = None,
        once: Idempotency | None = None,
        paces: Paces | None = None,
        habits: HabitLog | None = None,
    ) -> None:
        self.rules = rules
        self.draining = False
        self.shadow: Shadow | None = None
        """Is offered what was answered, when the caller has it. It needs this line's rules, so it comes later."""
        self._directory = directory
        self._limiter = limiter
        self._classifier = classifier
        self._affinity = affinity
        self._breakers = breakers
        self._dispatcher = dispatcher
        self._observers = observers
        self._tracing = tracing
        self._clock = clock
        self._passages: set[_Passage] = set()
        self._escalations = EscalationAllowance()
        self._budgets = budgets
        self._guard = guard
        self._once = once
        self._paces = paces
        self._habits = habits
        self._tags = TagBounds()

    @property
    def in_flight(self) -> int:
        return len(self._passages)

    async def chat(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one POST /v1/chat/completions as an ASGI application."""
        await self._serve("chat", scope, receive, send)

    async def embeddings(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one POST /v1/embeddings as an ASGI application."""
        await self._serve("embeddings", scope, receive, send)

    async def _serve(self, operation: Operation, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = new_request_id()
        if self._guard is not None and not self._guard.admits(batch=_says_batch(scope)):
            await self._guard.refuse(send, (REQUEST_ID_HEADER, request_id.encode()))
            return
        reply = Reply(send, self._clock)
        passage = _Passage(request_id, operation, reply, self._clock())
        reply.headers.append((REQUEST_ID_HEADER, passage.request_id.encode()))
        self._passages.add(passage)
        try:
            await self._pass(passage, self.rules, scope, receive)
        except asyncio.CancelledError:
            if not (passage.caller_gone or passage.too_slow or passage.cut_off):
                raise
            # The cancellation was ours, and it ends here.
            if passage.task is not None:
                passage.task.uncancel()
            if passage.cut_off:
                await self._fail(passage, Draining("This gateway process had to stop before the answer was complete."))
        except Exception as error:  # noqa: BLE001 - every failure is told to the caller and counted
            await self._fail(passage, error)
        finally:
            self._passages.discard(passage)
            try:
                self._settle(passage)
            finally:
                if passage.recording is not None:
                    await passage.recording.close()

    async def _pass(self, passage: _Passage, rules: Rules, scope: Scope, receive: Receive) -> None:
        if self.draining:
            raise Draining("This gateway process is stopping; send the request again.", retry_after_s=1.0)
        headers = read_headers(scope["headers"])
        passage.trace = self._tracing.begin(headers.traceparent)
        passage.caller = caller = await self.authenticate(headers)
        if caller.role == "finance":
            raise ReadsOnly
        if len(self._passages) > rules.max_in_flight:
            # Before the body is read: what is refused should cost nothing.
            raise Overloaded(
                f"This gateway process already serves {rules.max_in_flight} requests, its limit; try again shortly.",
                retry_after_s=1.0,
            )
        body = await self._body(passage, rules, scope, receive)
        gone = asyncio.ensure_future(self._watch_caller(passage, receive))
        try:
            request = _PARSERS[passage.operation](body, headers)
            if request.team_id is not None and request.team_id != caller.team_id:
                raise WrongTeam(
                    "`x-team-id` is not the team of this key; leave it out or use that team's key.", param="x-team-id"
                )
            if request.tag:
                self._tags.admit(caller.team_id, request.tag)
            wanted = wants_escalation(headers)
            passage.deadline = deadline_of(
                own_timeout_s(headers.timeout_ms), request.tier, rules.deadlines, passage.started_at
            )
            if headers.idempotency_key is not None:
                # First: neither what its limits refuse nor repeats without end may keep the database from others.
                await self._admit(passage, caller, request, input_tokens(request, prompt_of(request)))
                fingerprint = fingerprint_of(scope["path"], scope["headers"], body)
                if await self._replayed(passage, caller, headers.idempotency_key, fingerprint):
                    return
            downgrade = self._downgrades(caller, request)
            passage.weighed = weighed = await self._weigh(passage, rules, caller, request, len(body), wanted, downgrade)
            try:
                await self._send_on(passage, rules, caller, weighed)
            except BudgetExceeded as exceeded:
                if (
                    not exceeded.downgrade
                    or weighed.facts.alias == AUTO
                    or passage.attempts
                    or not _replaceable(request)
                ):
                    raise
                # What was wanted does not fit any more; the cheapest that is good enough may.
                passage.weighed = weighed = await self._weigh(passage, rules, caller, request, len(body), wanted, True)
                await self._send_on(passage, rules, caller, weighed)
        finally:
            gone.cancel()

    async def _replayed(self, passage: _Passage, caller: Caller, key: str, fingerprint: bytes) -> bool:
        """Whether the same request was answered before, and was so again. Otherwise it is this one that is served."""
        if self._once is None:
            return False
        found = await self._once.claim(caller.team_id, key, fingerprint, passage.request_id)
        if isinstance(found, Replay):
            await replay(passage.reply, found)
            return True
        passage.recording = Recording(
            found,
            # A stream that this process cut off has the status of a good one.
            lambda status: not passage.cut_off and is_worth_keeping(status, passage.attempts),
        )
        passage.reply.recording = passage.recording
        return False

    def _downgrades(self, caller: Caller, request: ChatRequest) -> bool:
        """Whether a spent budget sends the request to the cheapest capable target. Raises BudgetExceeded."""
        if self._budgets is None:
            return False
        look = self._budgets.look(caller.organisation_id, caller.team_id, caller.key_id, request.tag)
        if look.exceeded is not None:
            raise look.exceeded
        return look.downgrade and request.model != AUTO and _replaceable(request)

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

    async def _body(self, passage: _Passage, rules: Rules, scope: Scope, receive: Receive) -> bytes:
        passage.reading_since = self._clock()
        try:
            return await read_body(scope, receive, max_bytes=rules.max_body_bytes)
        except asyncio.CancelledError:
            if passage.too_slow and passage.task is not None:
                passage.task.uncancel()
                raise UploadTimeout(f"The request body did not arrive within {rules.body_timeout_s:g} s.") from None
            passage.caller_gone = not passage.cut_off
            raise
        finally:
            passage.reading_since = None
            passage.too_slow = False

    async def _weigh(
        self,
        passage: _Passage,
        rules: Rules,
        caller: Caller,
        request: ChatRequest,
        body_bytes: int,
        wanted: bool | None,
        downgraded: bool,
    ) -> Weighed:
        """Admit, classify and plan."""
        prompt = prompt_of(request)
        estimate = input_tokens(request, prompt)
        facts = Facts(
            alias=AUTO if downgraded else request.model,
            tier=request.tier,
            needs=needs(request),
            input_tokens=estimate,
            most_input_tokens=most_input_tokens(request, body_bytes, estimate),
            max_output_tokens=request.max_output_tokens,
            choices=request.n,
            allowed_models=caller.allowed_models,
            longest_tokens=request.longest_tokens or None,
            tolerance=_tolerance(rules, caller),
        )
        await self._admit(passage, caller, request, estimate)
        prediction: Prediction | None = None
        classify_s: float | None = None
        if facts.alias == AUTO:
            before = self._clock()
            prediction = self._classifier.classify(prompt, caller.team_id)
            classify_s = self._clock() - before
        conversation = conversation_key(request, prompt)
        sticky = self._affinity.lookup(caller.team_id, conversation)
        fleet = self._fleet(rules)
        if not all(fleet.values()):
            for target in absent(facts, rules.policy, rules.catalog, fleet):
                self._dispatcher.turned_away(target, estimate + (request.max_output_tokens or DEFAULT_OUTPUT_TOKENS))
        route = plan(facts, prediction, rules.policy, rules.catalog, fleet, sticky)
        arm: Arm = ""
        if prediction is not None and not downgraded:
            arm, route = _drawn(passage.request_id, rules, route, facts, prediction, fleet)
        escalates = may_escalate(
            route, alias=facts.alias, stream=request.stream, team=caller.settings.escalation, wanted=wanted
        )
        return Weighed(
            request=request,
            prompt=prompt,
            facts=facts,
            prediction=prediction,
            classify_s=classify_s,
            conversation=conversation,
            plan=route,
            arm=arm,
            downgraded=downgraded,
            escalates=escalates,
        )

    async def _admit(self, passage: _Passage, caller: Caller, request: ChatRequest, estimate: int) -> None:
        """Takes what the request may use, once. Raises RateLimited."""
        if passage.admission is not None:
            return
        unbounded = request.max_output_tokens is None and request.operation == "chat"
        guessed = DEFAULT_OUTPUT_TOKENS * request.n if unbounded else 0
        answer = (request.max_output_tokens or 0) * request.n + guessed
        passage.admission = await self._limiter.admit(caller, request.model, estimate + answer, guessed=guessed)
        passage.reply.headers += rate_headers(passage.admission)

    def _fleet(self, rules: Rules) -> Fleet:
        return {name: self._breakers.available(target) for name, target in rules.catalog.targets.items()}

    async def _send_on(self, passage: _Passage, rules: Rules, caller: Caller, weighed: Weighed) -> None:
        """Dispatch and relay."""
        job = Job(
            request_id=passage.request_id,
            caller=caller,
            request=weighed.request,
            facts=weighed.facts,
            plan=weighed.plan,
            prediction=weighed.prediction,
            alias=weighed.request.model,
            comparators=_comparators(rules.comparators, weighed),
            pools=rules.pools,
            arm=weighed.arm,
            timeouts=rules.timeouts,
            upstream_headers=passage.trace.headers() if passage.trace is not None else {},
            hold=_hold(rules.escalation, self.in_flight) if weighed.escalates else None,
            keep_bytes=self._keep_bytes(passage, caller, weighed),
            deadline=passage.deadline or NO_DEADLINE,
        )
        committed = await self._dispatcher.dispatch(job, rules.retry, passage.attempts)
        if job.hold is not None:
            committed = await self._better(passage, rules.escalation, committed)
            passage.released_at = self._clock()
        passage.answering = committed.attempt
        try:
            self._keep_habit(committed.attempt)
            await relay(committed, passage.reply, _decision_headers(weighed, committed, passage))
        except (UpstreamError, DeadlineExceeded) as error:
            status = passage.reply.status or error_reply(error).status
            committed.attempt.close("failed", error, status=status)
            if not passage.reply.started:
                raise
            passage.error_code = error_reply(error).code
        except asyncio.CancelledError:
            committed.attempt.observe(committed.stream.unread())
            committed.attempt.close(_ending(passage), status=CALLER_GONE)
            raise
        except Exception as error:
            committed.attempt.close("failed", error, status=500)
            raise
        finally:
            # The relay has settled a reply that went well, before its last bytes left.
            await close_quietly(committed.stream)

    def _keep_habit(self, attempt: Attempt) -> None:
        if self._habits is None:
            return
        job = attempt.job
        prefix = instructions(job.request)
        if prefix:
            caller, target_id = job.caller, attempt.deployment.target_id
            self._habits.observe(caller.organisation_id, caller.team_id, target_id, prefix, job.facts.input_tokens)

    def _keep_bytes(self, passage: _Passage, caller: Caller, weighed: Weighed) -> int:
        """How much of the answer is held on to, for what is done with it when the caller has it."""
        if weighed.prediction is None or not _learns(caller):
            return 0
        compared = self.shadow is not None and self.shadow.wants(caller, weighed.request.model, passage.request_id)
        return portion_bytes(MAX_PAYLOAD_BYTES if compared else _KEPT_BYTES, self.in_flight)

    async def _better(self, passage: _Passage, rules: EscalationRules, first: Committed) -> Committed:
        """The answer to give: the one that was held, or a better target's where that one is weak.

        Nothing is committed yet, so a better target that fails, or whose answer is the worse one, costs its price and
        no more. Whatever ends this early settles everything that is open.
        """
        held = [first]
        self._escalations.request(rules)
        try:
            return await self._asked_again(passage, rules, held)
        except BaseException as error:
            for each in held:
                if isinstance(error, asyncio.CancelledError):
                    each.attempt.close(_ending(passage), status=CALLER_GONE)
                else:
                    each.attempt.close("failed", error, status=500)
            # Only when all are settled: this may wait, and be cancelled once more.
            for each in held:
                await close_quietly(each.stream)
            raise

    async def _asked_again(self, passage: _Passage, rules: EscalationRules, held: list[Committed]) -> Committed:
        (first,) = held
        passage.judged = first.whole
        passage.weakness = weakness = await _judged(first, rules)
        if weakness is None:
            return first
        job, answered = first.attempt.job, first.attempt.candidate
        candidate = escalation_candidate(job.plan, answered, {each.deployment.target_id for each in passage.attempts})
        if candidate is None or not self._escalations.try_begin(rules):
            return first
        try:
            second = await self._dispatcher.escalate(job, candidate, passage.attempts)
        except Exception as error:  # noqa: BLE001 - whatever went wrong, there is an answer to give
            _log.info("request %s: no better answer than the weak one: %s", passage.request_id, type(error).__name__)
            return first
        finally:
            self._escalations.end()
        held.append(second)
        again = await _judged(second, rules)
        if again is not None and graver(again, weakness):
            await _put_aside(second, "discarded")
            return first
        passage.escalated_from = first.attempt
        await _put_aside(first, "escalated")
        return second

    async def _fail(self, passage: _Passage, error: Exception) -> None:
        told = error_reply(error)
        passage.error_code = told.code
        if told.status == 500:  # noqa: PLR2004
            # The traceback names code, never the request's content; the message could hold content.
            _log.error("request %s failed unexpectedly: %s", passage.request_id, type(error).__name__, exc_info=error)
        try:
            if not passage.reply.started:
                await passage.reply.error(told)
            elif passage.cut_off and not passage.reply.done:
                await passage.reply.end(b"data: " + told.body + b"\n\n")
            else:
                passage.reply.abort()
        except OSError:
            pass
        except asyncio.CancelledError:
            if passage.task is None or not (passage.too_slow or passage.cut_off):
                raise
            # It reads not even this, or not before the process has to stop.
            passage.task.uncancel()
            passage.reply.abort()

    async def _watch_caller(self, passage: _Passage, receive: Receive) -> None:
        """Cancels the request when its caller hangs up, which in turn cuts the upstream."""
        while (await receive())["type"] != "http.disconnect":
            pass
        if passage.task is not None and not passage.reply.done and passage.recording is None:
            passage.caller_gone = True
            passage.task.cancel()

    def cut_off(self) -> None:
        """Ends everything that is under way, because the process has to stop: each is told, and settled."""
        for passage in tuple(self._passages):
            if passage.task is not None and not passage.reply.done:
                passage.cut_off = True
                passage.task.cancel()

    def cut_the_slow(self) -> None:
        """Refuses uploads that take too long, and cuts callers whose buffer has been full for too long.

        Called about once a second for all requests together, which costs less than a timer for each.
        """
        now = self._clock()
        for passage in tuple(self._passages):
            if passage.task is None or passage.too_slow:
                continue
            if passage.reading_since is not None:
                if now - passage.reading_since > self.rules.body_timeout_s:
                    passage.too_slow = True
                    passage.task.cancel()
            elif (since := passage.reply.sending_since) is not None and now - since > self.rules.slow_reader_s:
                passage.reply.abort()
                if passage.recording is None:
                    passage.too_slow = True
                    passage.task.cancel()

    def _settle(self, passage: _Passage) -> None:
        """Gives the place back, remembers the conversation, and tells the observers. Never raises."""
        if passage.admission is not None:
            # Before anything else: what is not given back here never is.
            usages = [attempt.settled.usage for attempt in passage.attempts if attempt.settled is not None]
            passage.admission.settle(sum(usage.input_tokens + usage.output_tokens for usage in usages))
        _judge_late(passage, self.rules.escalation)
        outcome = _outcome(passage, self._clock())
        if self._paces is not None:
            _keep_pace(self._paces, passage)
        answered = outcome.target_id if passage.weighed is not None and _replaceable(passage.weighed.request) else None
        if passage.weighed is not None and passage.caller is not None and answered and not outcome.error_code:
            tokens = outcome.input_tokens + outcome.output_tokens
            self._affinity.remember(passage.caller.team_id, passage.weighed.conversation, answered, tokens)
        for observer in self._observers:
            observer.finished(outcome)
        answering = passage.answering
        if self.shadow is not None and passage.caller is not None and answering is not None and _went_well(answering):
            self.shadow.offer(answering.job.request, passage.caller, outcome, answering.kept or ())
        if passage.trace is not None:
            passage.trace.finish(outcome, outcome.alias, outcome.stream)


def _replaceable(request: ChatRequest) -> bool:
    """Whether another model's answer would do. Vectors of different models cannot be mixed."""
    return request.operation == "chat"


def _comparators(comparators: Comparators, weighed: Weighed) -> Comparators:
    """Whom the answer is compared with. No other model's vectors would have done, so those save nothing by their model:
    what was named is their reference.
    """
    if comparators.reference is None or _replaceable(weighed.request):
        return comparators
    return msgspec.structs.replace(comparators, reference=comparator_of(weighed.plan.candidates[0].target))


def _says_batch(scope: Scope) -> bool:
    return any(name == b"x-tier" and value == b"batch" for name, value in scope["headers"])


def _keep_pace(paces: Paces, passage: _Passage) -> None:
    """Only streams tell when their first token came."""
    for attempt in passage.attempts:
        if attempt.job.request.stream and attempt.first_token_at is not None:
            ttft_s, tier = attempt.first_token_at - attempt.started_at, attempt.job.facts.tier
            paces.observe(attempt.deployment.target_id, ttft_s, _tpot(attempt), tier)


def _ending(passage: _Passage) -> Ending:
    if passage.too_slow:
        return "slow_reader"
    return "caller_gone" if passage.caller_gone else "shutdown"


def _tolerance(rules: Rules, caller: Caller) -> float:
    floor = caller.settings.quality_floor
    if rules.tolerances is None:
        return plain_tolerance(rules.policy.quality_floor if floor is None else floor)
    return rules.tolerances.of(floor, caller.allowed_models, caller.team_id)


def _drawn(
    request_id: str, rules: Rules, route: RoutePlan, facts: Facts, prediction: Prediction, fleet: Fleet
) -> tuple[Arm, RoutePlan]:
    """The arm of the experiment, and the plan in it. Only what the reference could serve too takes part in either."""
    arm = arm_of(request_id, rules.holdout_share)
    if not arm:
        return arm, route
    reference_first = held_out(route, facts, prediction, rules.policy, rules.catalog, fleet)
    if reference_first is None:
        return "", route
    return arm, reference_first if arm == "holdout" else route


def _hold(rules: EscalationRules, in_flight: int) -> Hold:
    return Hold(max_bytes=portion_bytes(rules.hold_max_bytes, in_flight), max_s=rules.hold_max_s)


def portion_bytes(most: int, in_flight: int) -> int:
    """What one of so many requests may keep of its answer: `most`, or its equal part of what all may keep together."""
    return min(most, _KEPT_IN_ALL_BYTES // max(1, in_flight))


def _learns(caller: Caller) -> bool:
    return caller.settings.learning != "off"


async def _judged(held: Committed, rules: EscalationRules) -> Weakness | None:
    """What is wrong with an answer that was held to its end."""
    if not held.whole:
        return None
    request = held.attempt.job.request
    payloads = [event.payload for event in held.events]
    if request.json_mode or request.tools:
        # A schema may take a while, which other requests should not wait for.
        return await asyncio.to_thread(judge, request, payloads, min_mean_logprob=rules.min_mean_logprob)
    return judge(request, payloads, min_mean_logprob=rules.min_mean_logprob)


def _went_well(attempt: Attempt) -> bool:
    """What was cut off on its way is no whole answer, and its end says nothing of the target."""
    return attempt.settled is not None and attempt.settled.outcome.result == "ok"


def _judge_late(passage: _Passage, rules: EscalationRules) -> None:
    """For teams that let us learn: what was wrong with an answer that its caller already has."""
    attempt = passage.answering
    if passage.judged or attempt is None or not attempt.kept or sum(map(len, attempt.kept)) > _KEPT_BYTES:
        return
    if _went_well(attempt):
        passage.judged = True
        passage.weakness = judge(
            attempt.job.request,
            attempt.kept,
            min_mean_logprob=rules.min_mean_logprob,
            max_schema_steps=_LATE_SCHEMA_STEPS,
        )


async def _put_aside(held: Committed, why: Unused) -> None:
    """Books a whole answer that nobody will see."""
    held.attempt.close("ok", status=200, unused=why)
    await close_quietly(held.stream)


def _decision_headers(weighed: Weighed, committed: Committed, passage: _Passage) -> list[Header]:
    """The routing decision, as the caller sees it."""
    candidate = committed.attempt.candidate
    headers = [
        (b"x-weighbridge-model-used", candidate.target.target_id.encode()),
        (b"x-weighbridge-target", candidate.target.target_id.encode()),
        (b"x-weighbridge-deployment", committed.attempt.deployment.deployment_id.encode()),
        (b"x-weighbridge-reason", candidate.reason.encode()),
        (b"x-weighbridge-attempts", str(len(passage.attempts)).encode()),
        (b"x-weighbridge-tier", weighed.facts.tier.encode()),
    ]
    if weighed.prediction is not None:
        headers.append((b"x-weighbridge-complexity", f"{weighed.prediction.complexity:.3f}".encode()))
        headers.append((b"x-weighbridge-classifier", weighed.prediction.source.encode()))
    if weighed.downgraded:
        headers.append((b"x-weighbridge-downgraded", b"budget"))
    if passage.weakness is not None:
        headers.append((b"x-weighbridge-weakness", passage.weakness.encode()))
    if passage.escalated_from is not None:
        headers.append((b"x-weighbridge-escalated-from", passage.escalated_from.deployment.target_id.encode()))
    if committed.attempt.slot is not None and committed.attempt.slot.waited_s > 0:
        headers.append((b"x-weighbridge-queue-ms", b"%d" % math.ceil(committed.attempt.slot.waited_s * 1000)))
    if (unused_usd := dollars(_unused_nanousd(passage.attempts))) is not None:
        headers.append((b"x-weighbridge-escalation-cost-usd", unused_usd.encode()))
    return headers


def _unused_nanousd(attempts: Sequence[Attempt]) -> int | None:
    """What the answer cost that was not given, beside the one that is."""
    unused = [attempt.settled for attempt in attempts if attempt.settled is not None and attempt.unused is not None]
    return unused[0].cost_nanousd if unused else None


def _outcome(passage: _Passage, now: float) -> RequestOutcome:
    caller, weighed = passage.caller, passage.weighed
    settled = [attempt.settled for attempt in passage.attempts if attempt.settled is not None]
    last = passage.answering or (passage.attempts[-1] if passage.attempts else None)
    answered = last if last is not None and last.token_events + last.finished else None
    costs = [each.cost_nanousd for each in settled]
    booked = last.settled if last is not None else None
    usage = booked.usage if booked is not None else None
    learns = caller is not None and _learns(caller)
    return RequestOutcome(
        request_id=passage.request_id,
        organisation_id=caller.organisation_id if caller else "",
        team_id=caller.team_id if caller else "",
        key_id=caller.key_id if caller else "",
        operation=passage.operation,
        tier=weighed.facts.tier if weighed else "interactive",
        alias=weighed.request.model if weighed else "",
        stream=weighed.request.stream if weighed else False,
        status=CALLER_GONE if passage.caller_gone else passage.reply.status,
        error_code=passage.error_code or ("slow_reader" if passage.too_slow else None),
        target_id=answered.deployment.target_id if answered else None,
        reason=answered.candidate.reason if answered else "",
        complexity=weighed.prediction.complexity if weighed and weighed.prediction else None,
        classifier=weighed.prediction.source if weighed and weighed.prediction else None,
        classify_s=weighed.classify_s if weighed else None,
        attempts=tuple(each.outcome for each in settled),
        input_tokens=usage.input_tokens if usage else 0,
        cached_input_tokens=usage.cached_input_tokens if usage else 0,
        output_tokens=usage.output_tokens if usage else 0,
        cost_nanousd=None if None in costs else sum(cost for cost in costs if cost is not None),
        baseline_nanousd=booked.baseline_nanousd if booked is not None else None,
        ttft_s=_ttft(passage, last),
        tpot_s=_tpot(last),
        duration_s=now - passage.started_at,
        escalated_from=passage.escalated_from.deployment.target_id if passage.escalated_from else None,
        weakness=passage.weakness,
        prediction=weighed.prediction if weighed else None,
        settings=caller.settings if caller else None,
        prompt=weighed.prompt if weighed and learns else None,
        conversation=weighed.conversation if weighed and learns else None,
        request_digest=messages_digest(weighed.request) if weighed and learns else None,
    )


def _ttft(passage: _Passage, attempt: Attempt | None) -> float | None:
    """An answer that was held came when it was released; one that never was, came to nobody."""
    if passage.weighed is not None and passage.weighed.escalates:
        return _since(passage.released_at, passage.started_at)
    return _since(attempt.first_token_at if attempt is not None else None, passage.started_at)


def _since(at: float | None, start: float) -> float | None:
    return None if at is None else at - start


def _tpot(attempt: Attempt | None) -> float | None:
    """Seconds an output token after the first; None when there were not two."""
    if attempt is None or attempt.settled is None or attempt.first_token_at is None or attempt.last_token_at is None:
        return None
    tokens = attempt.settled.usage.output_tokens
    return (attempt.last_token_at - attempt.first_token_at) / (tokens - 1) if tokens > 1 else None
