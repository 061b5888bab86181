"""The request's straight line: authenticate → parse → admit → classify → plan → dispatch → relay → settle.

All branching stands here; the stages are leaves. Streaming or not, a request takes the same path.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Hashable
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from accounts.caller import Caller
from accounts.directory import Directory
from classifier.prediction import Classifier, Prediction
from cost.prices import Price
from providers.breaker import Breakers
from providers.catalog import Catalog
from providers.config import RetryConfig, TimeoutsConfig
from providers.errors import UpstreamError
from providers.wire import ChatRequest
from proxy.affinity import Affinity
from proxy.attempt import CALLER_GONE, Attempt, Ending
from proxy.dispatch import Committed, Dispatcher, close_quietly
from proxy.doorway import REQUEST_ID_HEADER, new_request_id
from proxy.errors import Draining, NotAuthenticated, Overloaded, UploadTimeout, WrongTeam, error_reply
from proxy.job import Job
from proxy.limits import Admission, Limiter, rate_headers
from proxy.observers.outcome import Observer, RequestOutcome
from proxy.observers.telemetry import RequestTrace, Tracing
from proxy.policy import AUTO, Facts, Fleet, Policy, RoutePlan, plan
from proxy.relay import relay
from proxy.reply import Header, Reply, read_body
from proxy.request import RequestHeaders, conversation_key, input_tokens, needs, parse_chat, prompt_of, read_headers

_log = logging.getLogger("weighbridge.line")


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What a reload may change: swapped whole, so that a request sees one set of rules from start to end."""

    catalog: Catalog
    policy: Policy
    reference: Price | None
    timeouts: TimeoutsConfig
    retry: RetryConfig
    max_in_flight: int
    max_body_bytes: int
    body_timeout_s: float
    slow_reader_s: float


class Weighed(msgspec.Struct, frozen=True):
    """A request with everything that planning learned about it."""

    request: ChatRequest
    facts: Facts
    prediction: Prediction | None
    classify_s: float | None
    conversation: Hashable
    plan: RoutePlan


class _Passage:
    """What is known of one request so far; the outcome is made from it at the end, however it ends."""

    __slots__ = (
        "admission",
        "attempts",
        "caller",
        "caller_gone",
        "error_code",
        "reading_since",
        "reply",
        "request_id",
        "started_at",
        "task",
        "too_slow",
        "trace",
        "weighed",
    )

    def __init__(self, request_id: str, reply: Reply, started_at: float) -> None:
        self.request_id = request_id
        self.reply = reply
        self.started_at = started_at
        self.task: asyncio.Task[Any] | None = asyncio.current_task()
        self.caller: Caller | None = None
        self.admission: Admission | None = None
        self.weighed: Weighed | None = None
        self.attempts: list[Attempt] = []
        self.trace: RequestTrace | None = None
        self.caller_gone = False
        self.too_slow = False
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
        classifier: Classifier,
        affinity: Affinity,
        breakers: Breakers,
        dispatcher: Dispatcher,
        observers: tuple[Observer, ...],
        tracing: Tracing,
        clock: Callable[[], float],
    ) -> None:
        self.rules = rules
        self.draining = False
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

    @property
    def in_flight(self) -> int:
        return len(self._passages)

    async def chat(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one POST /v1/chat/completions as an ASGI application."""
        reply = Reply(send, self._clock)
        passage = _Passage(new_request_id(), reply, self._clock())
        reply.headers.append((REQUEST_ID_HEADER, passage.request_id.encode()))
        self._passages.add(passage)
        try:
            await self._pass(passage, self.rules, scope, receive)
        except asyncio.CancelledError:
            if not (passage.caller_gone or passage.too_slow):
                raise
            # The cancellation was ours, and it ends here.
            if passage.task is not None:
                passage.task.uncancel()
        except Exception as error:  # noqa: BLE001 - every failure is told to the caller and counted
            await self._fail(passage, error)
        finally:
            self._passages.discard(passage)
            self._settle(passage)

    async def _pass(self, passage: _Passage, rules: Rules, scope: Scope, receive: Receive) -> None:
        if self.draining:
            raise Draining("This gateway process is stopping; send the request again.", retry_after_s=1.0)
        headers = read_headers(scope["headers"])
        passage.trace = self._tracing.begin(headers.traceparent)
        passage.caller = caller = await self.authenticate(headers)
        if len(self._passages) > rules.max_in_flight:
            # Before the body is read: what is refused should cost nothing.
            raise Overloaded(
                f"This gateway process already serves {rules.max_in_flight} requests, its limit; try again shortly.",
                retry_after_s=1.0,
            )
        body = await self._body(passage, rules, scope, receive)
        gone = asyncio.ensure_future(self._watch_caller(passage, receive))
        try:
            request = parse_chat(body, headers)
            if request.team_id is not None and request.team_id != caller.team_id:
                raise WrongTeam(
                    "`x-team-id` is not the team of this key; leave it out or use that team's key.", param="x-team-id"
                )
            passage.weighed = weighed = self._weigh(passage, rules, caller, request)
            await self._send_on(passage, rules, caller, weighed)
        finally:
            gone.cancel()

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
            passage.caller_gone = True
            raise
        finally:
            passage.reading_since = None
            passage.too_slow = False

    def _weigh(self, passage: _Passage, rules: Rules, caller: Caller, request: ChatRequest) -> Weighed:
        """Admit, classify and plan: what is decided without waiting for anybody."""
        prompt = prompt_of(request)
        facts = Facts(
            alias=request.model,
            tier=request.tier,
            needs=needs(request),
            input_tokens=input_tokens(request, prompt),
            max_output_tokens=request.max_output_tokens,
            choices=request.n,
            allowed_models=caller.allowed_models,
        )
        passage.admission = self._limiter.admit(caller.key_id, facts.input_tokens + (request.max_output_tokens or 0))
        passage.reply.headers += rate_headers(passage.admission)
        prediction: Prediction | None = None
        classify_s: float | None = None
        if request.model == AUTO:
            before = self._clock()
            prediction = self._classifier.classify(prompt)
            classify_s = self._clock() - before
        conversation = conversation_key(request, prompt)
        sticky = self._affinity.lookup(caller.team_id, conversation)
        route = plan(facts, prediction, rules.policy, rules.catalog, self._fleet(rules), sticky)
        return Weighed(request, facts, prediction, classify_s, conversation, route)

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
            reference=rules.reference,
            timeouts=rules.timeouts,
            upstream_headers=passage.trace.headers() if passage.trace is not None else {},
        )
        committed = await self._dispatcher.dispatch(job, rules.retry, passage.attempts)
        try:
            await relay(committed, passage.reply, _decision_headers(weighed, committed, passage))
        except UpstreamError as error:
            status = passage.reply.status or error_reply(error).status
            committed.attempt.close("failed", error, status=status)
            if not passage.reply.started:
                raise
            passage.error_code = error_reply(error).code
        except asyncio.CancelledError:
            committed.attempt.close(_ending(passage), status=CALLER_GONE)
            raise
        except Exception as error:
            committed.attempt.close("failed", error, status=500)
            raise
        finally:
            # The relay has settled a reply that went well, before its last bytes left.
            await close_quietly(committed.stream)

    async def _fail(self, passage: _Passage, error: Exception) -> None:
        told = error_reply(error)
        passage.error_code = told.code
        if told.status == 500:  # noqa: PLR2004
            # The traceback names code, never the request's content; the message could hold content.
            _log.error("request %s failed unexpectedly: %s", passage.request_id, type(error).__name__, exc_info=error)
        if passage.reply.started:
            passage.reply.abort()
            return
        with contextlib.suppress(OSError):
            await passage.reply.error(told)

    async def _watch_caller(self, passage: _Passage, receive: Receive) -> None:
        """Cancels the request when its caller hangs up, which in turn cuts the upstream."""
        while (await receive())["type"] != "http.disconnect":
            pass
        if passage.task is not None and not passage.reply.done:
            passage.caller_gone = True
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
                passage.too_slow = True
                passage.reply.abort()
                passage.task.cancel()

    def _settle(self, passage: _Passage) -> None:
        """Gives the place back, remembers the conversation, and tells the observers. Never raises."""
        outcome = _outcome(passage, self._clock())
        if passage.admission is not None:
            usages = [attempt.settled.usage for attempt in passage.attempts if attempt.settled is not None]
            passage.admission.settle(sum(usage.input_tokens + usage.output_tokens for usage in usages))
        if passage.weighed is not None and passage.caller is not None and outcome.target_id and not outcome.error_code:
            tokens = outcome.input_tokens + outcome.output_tokens
            self._affinity.remember(passage.caller.team_id, passage.weighed.conversation, outcome.target_id, tokens)
        for observer in self._observers:
            observer.finished(outcome)
        if passage.trace is not None:
            passage.trace.finish(outcome, outcome.alias, outcome.stream)


def _ending(passage: _Passage) -> Ending:
    if passage.too_slow:
        return "slow_reader"
    return "caller_gone" if passage.caller_gone else "shutdown"


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
    return headers


def _outcome(passage: _Passage, now: float) -> RequestOutcome:
    caller, weighed = passage.caller, passage.weighed
    settled = [attempt.settled for attempt in passage.attempts if attempt.settled is not None]
    last = passage.attempts[-1] if passage.attempts else None
    answered = last if last is not None and last.token_events + last.finished else None
    costs = [each.cost_nanousd for each in settled]
    usage = settled[-1].usage if settled else None
    return RequestOutcome(
        request_id=passage.request_id,
        organisation_id=caller.organisation_id if caller else "",
        team_id=caller.team_id if caller else "",
        key_id=caller.key_id if caller else "",
        tier=weighed.facts.tier if weighed else "interactive",
        alias=weighed.facts.alias if weighed else "",
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
        baseline_nanousd=settled[-1].baseline_nanousd if settled else None,
        ttft_s=_since(last.first_token_at if last else None, passage.started_at),
        tpot_s=_tpot(last),
        duration_s=now - passage.started_at,
    )


def _since(at: float | None, start: float) -> float | None:
    return None if at is None else at - start


def _tpot(attempt: Attempt | None) -> float | None:
    """Seconds an output token after the first; None when there were not two."""
    if attempt is None or attempt.settled is None or attempt.first_token_at is None or attempt.last_token_at is None:
        return None
    tokens = attempt.settled.usage.output_tokens
    return (attempt.last_token_at - attempt.first_token_at) / (tokens - 1) if tokens > 1 else None
