"""One attempt at one deployment, from its reservation to its single settlement."""

import math
from collections.abc import Callable
from typing import Literal

import msgspec

from cost.entries import Entry, EntryKind
from cost.ledger import Books
from cost.usage import Usage, estimated, from_openai
from providers.breaker import Permit
from providers.errors import (
    CannotCarry,
    ConnectFailed,
    FirstTokenTimeout,
    RequestRejected,
    StreamCut,
    UpstreamError,
    UpstreamRateLimited,
    UpstreamRefusedUs,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from providers.target import Deployment
from providers.wire import Event, WireUsage
from proxy.job import Job
from proxy.observers.outcome import AttemptOutcome, AttemptResult
from proxy.policy import Candidate

CALLER_GONE = 499
"""The status of a request whose caller hung up before its end (nginx's convention)."""

# Characters a token in English text, the rule of thumb of OpenAI's tokenizer guide. It serves only where an
# upstream merged tokens into larger events; otherwise an event is a token.
_CHARS_PER_TOKEN = 4

# When one of these comes before any token, the upstream did no work, so nothing can have been charged.
_NEVER_STARTED = (ConnectFailed, UpstreamUnavailable, UpstreamRateLimited, UpstreamRefusedUs, RequestRejected)

_PLAUSIBLE = 2
"""Times the configured context: a report above it is absurd."""

_VOID: tuple[EntryKind, Usage, int | None, int | None] = ("void", Usage(), 0, None)

Ending = Literal["ok", "caller_gone", "slow_reader", "shutdown", "failed"]
Unused = Literal["escalated", "discarded"]
"""Why a whole answer was not given: a better target's stood in for it, or it was itself the worse one of the two."""


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt came to."""

    outcome: AttemptOutcome
    usage: Usage
    cost_nanousd: int | None
    baseline_nanousd: int | None


class Attempt:
    """Mutable while its stream flows; `close` turns it into entries exactly once."""

    __slots__ = (
        "_books",
        "_clock",
        "_counted",
        "_now_us",
        "_permit",
        "_reserved",
        "_stale",
        "_to_keep",
        "candidate",
        "chars",
        "deployment",
        "finished",
        "first_token_at",
        "job",
        "kept",
        "last_token_at",
        "number",
        "sent",
        "settled",
        "started_at",
        "token_events",
        "unused",
        "wire_usage",
    )

    def __init__(
        self,
        job: Job,
        number: int,
        candidate: Candidate,
        deployment: Deployment,
        permit: Permit,
        books: Books,
        clock: Callable[[], float],
        now_us: Callable[[], int],
    ) -> None:
        self.job = job
        self.number = number
        self.candidate = candidate
        self.deployment = deployment
        self._permit = permit
        self._books = books
        self._clock = clock
        self._now_us = now_us
        self.started_at = clock()
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self.token_events = 0
        self.chars = 0
        self.wire_usage: WireUsage | None = None
        self._counted: Usage | None = None
        self.finished = False
        self._reserved = False
        self._stale = False
        self.sent = False
        """The upstream may have seen it; before that nothing can have been charged."""
        self.settled: Settled | None = None
        self.kept: list[bytes] | None = [] if job.keep_bytes else None
        """References to the payloads so far; None when they are not wanted, or became too many."""
        self._to_keep = job.keep_bytes
        self.unused: Unused | None = None

    async def reserve(self) -> None:
        """Books the most this attempt may cost; durable when it returns. Raises LedgerUnavailable."""
        held = Usage(input_tokens=self.job.facts.input_tokens, source="estimated")
        await self._books.reserve(self._entry("reserve", held, self.candidate.bound_nanousd, None, status=0))
        self._reserved = True

    def observe(self, events: list[Event]) -> None:
        """Takes note of what flowed by: tokens, usage and the end."""
        self._counted = None
        one_choice = self.job.request.n == 1
        if self.kept is not None:
            self._keep(events)
        for event in events:
            if event.token:
                self.token_events += 1
                self.chars += event.text_chars
                # What was reported before no longer tells the whole.
                self._stale = True
            if event.usage is not None:
                self.wire_usage = event.usage
                # Beside content it counts that event's choice alone, so it is the whole only where there is one.
                self._stale = not (one_choice or event.choices == 0 or not self.job.request.stream)
            if event.finished:
                self.finished = True
        if self.token_events:
            self.last_token_at = self._clock()
            if self.first_token_at is None:
                self.first_token_at = self.last_token_at

    def _keep(self, events: list[Event]) -> None:
        assert self.kept is not None  # noqa: S101  # The one caller looked.
        for event in events:
            self._to_keep -= len(event.payload)
            self.kept.append(event.payload)
        if self._to_keep < 0:
            self.kept = None

    def healthy(self) -> None:
        """The first token came: the deployment answers. A cut later is counted as a failure of its own."""
        self._permit.success()

    def close(
        self, ending: Ending, error: BaseException | None = None, *, status: int, unused: Unused | None = None
    ) -> Settled:
        """Settles the attempt. Only the first call does anything; every call returns the same.

        `unused` says why a whole answer was not given: it cost, but it saved nothing, so it has no baseline.
        """
        if self.settled is not None:
            return self.settled
        self.unused = unused
        self._report_health(ending, error)
        if not self.sent or (not self.token_events and isinstance(error, _NEVER_STARTED)):
            kind, usage, cost, baseline = _VOID
        else:
            usage = self._usage(_flags(ending, error) if unused is None else (unused,))
            kind, cost = "settle", self._cost(usage)
            baseline = self._baseline(usage) if ending == "ok" and unused is None else None
        if self._reserved:
            self._books.settle(self._entry(kind, usage, cost, baseline, status=status))
        outcome = AttemptOutcome(
            target_id=self.deployment.target_id,
            deployment_id=self.deployment.deployment_id,
            provider=self.candidate.target.provider,
            result=_result(ending, error),
            duration_s=self._clock() - self.started_at,
        )
        self.settled = Settled(outcome=outcome, usage=usage, cost_nanousd=cost, baseline_nanousd=baseline)
        return self.settled

    def preview(self) -> tuple[Usage, int | None, int | None]:
        """Usage, cost and baseline as they would be settled now; for the reply's last words."""
        usage = self._usage(())
        return usage, self._cost(usage), self._baseline(usage)

    def _report_health(self, ending: Ending, error: BaseException | None) -> None:
        if isinstance(error, UpstreamError) and error.gateway_failure:
            self._permit.failure()
        elif isinstance(error, CannotCarry) or (ending != "ok" and not isinstance(error, RequestRejected)):
            # Nothing was learnt of the deployment.
            self._permit.abandon()
        else:
            self._permit.success()

    def _usage(self, flags: tuple[str, ...]) -> Usage:
        if self._counted is None:
            self._counted = self._count()
        return msgspec.structs.replace(self._counted, flags=(*flags, *self._counted.flags)) if flags else self._counted

    def _count(self) -> Usage:
        guess = estimated(
            input_tokens=self.job.facts.input_tokens,
            output_tokens=max(self.token_events, math.ceil(self.chars / _CHARS_PER_TOKEN)),
        )
        if self.wire_usage is None:
            return guess
        # Our own estimate let the request pass, so a report may lie above the configured limit and still be true.
        most = _PLAUSIBLE * self.candidate.target.max_context_tokens
        told = from_openai(
            self.wire_usage, estimate=guess, max_input_tokens=most, max_output_tokens=most * self.job.request.n
        )
        if self._stale and told.source == "upstream" and guess.output_tokens > told.output_tokens:
            return msgspec.structs.replace(told, output_tokens=guess.output_tokens, source="estimated")
        return told

    def _cost(self, usage: Usage) -> int | None:
        price = self.candidate.target.price
        return price.cost_nanousd(usage) if price is not None else None

    def _baseline(self, usage: Usage) -> int | None:
        return self.job.reference.cost_nanousd(usage) if self.job.reference is not None else None

    def _entry(
        self, kind: EntryKind, usage: Usage, cost_nanousd: int | None, baseline_nanousd: int | None, *, status: int
    ) -> Entry:
        job, target = self.job, self.candidate.target
        closing = kind != "reserve"
        return Entry(
            request_id=job.request_id,
            attempt=self.number,
            entry=kind,
            at_us=self._now_us(),
            boot_id=self._books.boot_id,
            organisation_id=job.caller.organisation_id,
            team_id=job.caller.team_id,
            key_id=job.caller.key_id,
            tier=job.facts.tier,
            alias=job.facts.alias,
            target_id=target.target_id,
            deployment_id=self.deployment.deployment_id,
            provider=target.provider,
            price_version=target.price.version if target.price is not None else "",
            input_tokens=usage.input_tokens,
            cached_input_tokens=usage.cached_input_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            output_tokens=usage.output_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            cost_nanousd=cost_nanousd,
            baseline_nanousd=baseline_nanousd,
            usage_source=usage.source,
            flags=usage.flags,
            status=status,
            stream=job.request.stream,
            complexity=job.prediction.complexity if job.prediction is not None else None,
            reason=self.candidate.reason,
            ttft_us=_us(self.first_token_at, self.started_at) if closing else None,
            duration_us=_us(self._clock(), self.started_at) if closing else None,
        )


def _us(end: float | None, start: float) -> int | None:
    return None if end is None else round((end - start) * 1_000_000)


def _flags(ending: Ending, error: BaseException | None) -> tuple[str, ...]:
    match error:
        case FirstTokenTimeout():
            return ("first_token_timeout",)
        case UpstreamTimeout():
            return ("upstream_timeout",)
        case StreamCut():
            return ("stream_cut",)
        case UpstreamError():
            return ("upstream_error",)
    return () if ending == "ok" else (ending,)


def _result(ending: Ending, error: BaseException | None) -> AttemptResult:
    match error:
        case FirstTokenTimeout() | UpstreamTimeout():
            return "timeout"
        case UpstreamRateLimited():
            return "rate_limited"
        case RequestRejected():
            return "rejected"
        case StreamCut():
            return "cut"
        case UpstreamError():
            return "error"
    return "ok" if ending == "ok" else "cancelled"
