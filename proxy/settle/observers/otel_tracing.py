"""Traces through OpenTelemetry: a SERVER span a request, a CLIENT span an attempt with its first token, and a span
for each wait in a queue, sent as OTLP over HTTP.

Attributes follow the GenAI conventions (`gen_ai.*`, status: development) and carry no content: no messages, no
completion, no key. Attributes that the conventions lack stand under `weighbridge.*`. Imports the `otel` extra: only
proxy/settle/observers/telemetry.py imports this module, and only when it is needed.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Final
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from providers.target import Deployment
from providers.wire import Operation
from proxy.dispatch.outcome import AttemptOutcome, RequestOutcome, RequestTrace
from proxy.settle.observers.logs import safe_name
from proxy.settle.observers.telemetry import Tracing

MAX_QUEUED_SPANS: Final = 8_192
MAX_BATCH_SPANS: Final = 512
EXPORT_EVERY_MS: Final = 2_000
EXPORT_TIMEOUT_S: Final = 5.0
CLOSE_TIMEOUT_S: Final = 5.0
MAX_ATTRIBUTE_CHARS: Final = 256

_TRACES_PATH: Final = "/v1/traces"
_NANO: Final = 1_000_000_000
_CLIENT_ERROR: Final = 400
_SERVER_ERROR: Final = 500
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
# The conventions' names for providers that configurations call otherwise; every other name stands as it is.
_PROVIDER_NAMES: Final = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "vertex": "gcp.vertex_ai",
    "vertex_ai": "gcp.vertex_ai",
    "watsonx": "ibm.watsonx.ai",
    "xai": "x_ai",
}

Attributes = dict[str, AttributeValue]
FindDeployment = Callable[[str], Deployment | None]


class OtelTracing(Tracing):
    """A tracing that exports spans from a background thread; when the collector is slow or gone, spans are dropped."""

    def __init__(
        self, endpoint: str, *, headers: Mapping[str, str], share: float, deployment_of: FindDeployment
    ) -> None:
        self._exporter = OTLPSpanExporter(
            endpoint=_traces_url(endpoint), headers=dict(headers), timeout=EXPORT_TIMEOUT_S
        )
        processor = BatchSpanProcessor(
            self._exporter,
            max_queue_size=MAX_QUEUED_SPANS,
            max_export_batch_size=MAX_BATCH_SPANS,
            schedule_delay_millis=EXPORT_EVERY_MS,
        )
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(share)),
            resource=Resource.create({"service.name": "weighbridge", "service.version": _version()}),
            span_limits=SpanLimits(max_span_attribute_length=MAX_ATTRIBUTE_CHARS),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("weighbridge", _version())
        self._propagator = TraceContextTextMapPropagator()
        self._deployment_of = deployment_of

    def begin(self, traceparent: str | None) -> RequestTrace:
        context = Context()
        if traceparent is not None:
            context = self._propagator.extract({"traceparent": traceparent}, context)
        # The model is not known yet; the span's end names it.
        span = self._tracer.start_span("chat", context=context, kind=SpanKind.SERVER)
        return _OtelTrace(self._tracer, self._propagator, span, self._deployment_of)

    async def aclose(self) -> None:
        # Shutting down joins the exporter's thread and may wait for a collector that does not answer.
        closing = asyncio.ensure_future(asyncio.to_thread(self._provider.shutdown))
        _, unfinished = await asyncio.wait({closing}, timeout=CLOSE_TIMEOUT_S)
        if unfinished:
            # Queued spans are given up, so that the thread ends with the process.
            self._exporter.shutdown()  # type: ignore[no-untyped-call]


class _OtelTrace(RequestTrace):
    def __init__(
        self, tracer: Tracer, propagator: TraceContextTextMapPropagator, span: Span, deployment_of: FindDeployment
    ) -> None:
        self._tracer = tracer
        self._propagator = propagator
        self._span = span
        self.is_recorded = span.is_recording()
        self._context = set_span_in_context(span, Context())
        self._deployment_of = deployment_of

    def headers(self) -> dict[str, str]:
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, self._context)
        return {"traceparent": carrier["traceparent"]} if "traceparent" in carrier else {}

    def finish(self, outcome: RequestOutcome, request_model: str, stream: bool) -> None:
        if not self._span.is_recording():
            return
        end_ns = time.time_ns()
        self._attempts(outcome, stream, end_ns)
        # A name that led to no attempt may be anything that the caller typed.
        model = safe_name(request_model) if outcome.attempts else None
        self._span.update_name(outcome.operation if model is None else f"{outcome.operation} {model}")
        if model is not None:
            self._span.set_attribute("gen_ai.request.model", model)
        self._span.set_attributes(_request_attributes(outcome, stream))
        if outcome.status >= _SERVER_ERROR:
            # For a server a 4xx is an answer, not an error: that is the conventions' rule.
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end(end_ns)

    def _attempts(self, outcome: RequestOutcome, stream: bool, end_ns: int) -> None:
        """Create the attempts' spans end to end, each behind the waits in queues before it, the last one ending now."""
        lasted = [attempt.duration_s for attempt in outcome.attempts] + [wait.waited_s for wait in outcome.waits]
        starts_ns = end_ns - sum(map(_ns, lasted))
        earlier_s = 0.0
        waits = deque(outcome.waits)

        def waited(attempts_before: float) -> None:
            nonlocal starts_ns, earlier_s
            while waits and waits[0].attempts_before <= attempts_before:
                wait = waits.popleft()
                self._part(f"queue {wait.target_id}", self._context, starts_ns, wait.waited_s)
                starts_ns += _ns(wait.waited_s)
                earlier_s += wait.waited_s

        for index, attempt in enumerate(outcome.attempts):
            waited(index)
            deployment = self._deployment_of(attempt.deployment_id)
            model = attempt.target_id if deployment is None else deployment.upstream_model
            attributes = _attempt_attributes(attempt, outcome.operation, model, index, stream)
            attributes |= _address_attributes(deployment)
            if index == len(outcome.attempts) - 1 and attempt.target_id == outcome.target_id:
                attributes |= _answer_attributes(outcome, earlier_s)
            span = self._tracer.start_span(
                f"{outcome.operation} {model}",
                context=self._context,
                kind=SpanKind.CLIENT,
                attributes=attributes,
                start_time=starts_ns,
            )
            if attempt.result != "ok":
                span.set_status(Status(StatusCode.ERROR))
            if attempt.ttft_s is not None:
                self._part("first token", set_span_in_context(span, Context()), starts_ns, attempt.ttft_s)
            starts_ns += _ns(attempt.duration_s)
            earlier_s += attempt.duration_s
            span.end(starts_ns)
        # Waits after which no attempt came.
        waited(math.inf)

    def _part(self, name: str, context: Context, starts_ns: int, took_s: float) -> None:
        """Create the span of a part of the request: from its beginning, for `took_s` seconds."""
        span = self._tracer.start_span(name, context=context, kind=SpanKind.INTERNAL, start_time=starts_ns)
        span.end(starts_ns + _ns(took_s))


def _request_attributes(outcome: RequestOutcome, stream: bool) -> Attributes:
    attributes = _without_none(
        {
            "gen_ai.operation.name": outcome.operation,
            "gen_ai.request.stream": stream,
            "gen_ai.response.model": outcome.target_id,
            "gen_ai.response.time_to_first_chunk": outcome.ttft_s,
            "http.response.status_code": outcome.status,
            "weighbridge.request_id": safe_name(outcome.request_id),
            "weighbridge.organisation_id": outcome.organisation_id or None,
            "weighbridge.team_id": outcome.team_id or None,
            "weighbridge.key_id": outcome.key_id or None,
            "weighbridge.tier": outcome.tier,
            "weighbridge.target": outcome.target_id,
            "weighbridge.reason": safe_name(outcome.reason),
            "weighbridge.complexity": outcome.complexity,
            "weighbridge.classifier": outcome.classifier,
            "weighbridge.escalated_from": safe_name(outcome.escalated_from),
            "weighbridge.weakness": outcome.weakness,
            "weighbridge.agreement": outcome.agreement,
            "weighbridge.struggle": outcome.struggle,
            "weighbridge.attempts": len(outcome.attempts),
            "weighbridge.cost_nanousd": outcome.cost_nanousd,
            "weighbridge.baseline_nanousd": outcome.baseline_nanousd,
        }
    )
    if outcome.attempts:
        attributes |= _usage_attributes(outcome)
    if outcome.error_code is not None or outcome.status >= _CLIENT_ERROR:
        attributes["error.type"] = safe_name(outcome.error_code) or str(outcome.status)
    return attributes


def _usage_attributes(outcome: RequestOutcome) -> Attributes:
    if outcome.operation == "embeddings":
        # Vectors are no tokens.
        return {"gen_ai.usage.input_tokens": outcome.input_tokens}
    return {
        "gen_ai.usage.input_tokens": outcome.input_tokens,
        "gen_ai.usage.output_tokens": outcome.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": outcome.cached_input_tokens,
    }


def _attempt_attributes(
    attempt: AttemptOutcome, operation: Operation, model: str, index: int, stream: bool
) -> Attributes:
    return _without_none(
        {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": _PROVIDER_NAMES.get(attempt.provider, attempt.provider),
            "gen_ai.request.model": model,
            "gen_ai.request.stream": stream,
            "error.type": None if attempt.result == "ok" else attempt.result,
            "weighbridge.attempt": index,
            "weighbridge.target": attempt.target_id,
            "weighbridge.deployment": attempt.deployment_id,
        }
    )


def _answer_attributes(outcome: RequestOutcome, earlier_s: float) -> Attributes:
    attributes = _usage_attributes(outcome) | _without_none({"gen_ai.response.model": outcome.target_id})
    if outcome.ttft_s is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = max(0.0, outcome.ttft_s - earlier_s)
    return attributes


def _address_attributes(deployment: Deployment | None) -> Attributes:
    """Return the server's host and port only: a URL may carry a user and a password."""
    if deployment is None or not deployment.base_url:
        return {}
    try:
        url = urlsplit(deployment.base_url)
        port = url.port or _DEFAULT_PORTS.get(url.scheme)
    except ValueError:
        return {}
    return _without_none({"server.address": url.hostname, "server.port": port})


def _without_none(attributes: Mapping[str, AttributeValue | None]) -> Attributes:
    return {name: value for name, value in attributes.items() if value is not None}


def _ns(seconds: float) -> int:
    return int(seconds * _NANO)


def _traces_url(endpoint: str) -> str:
    bare = endpoint.rstrip("/")
    return bare if bare.endswith(_TRACES_PATH) else bare + _TRACES_PATH


def _version() -> str:
    try:
        return metadata.version("weighbridge")
    except metadata.PackageNotFoundError:
        return "unknown"
