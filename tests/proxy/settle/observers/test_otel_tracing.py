import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from providers.target import Deployment
from proxy.dispatch.outcome import QueueWaited
from proxy.settle.observers.telemetry import Tracing, build_tracing
from tests.proxy.settle.observers.outcomes import an_attempt, an_outcome

_TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
_PARENT_ID = "b7ad6b7169203331"
_TRACEPARENT = f"00-{_TRACE_ID}-{_PARENT_ID}-01"
_PROMPT = "canary: my patient's diagnosis is gout"


class _Collector:
    """A small OTLP/HTTP receiver that keeps what it is sent."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.raw = b""
        self.paths: set[str] = set()
        self.headers: list[str | None] = []
        self.resource: dict[str, str] = {}
        collector = self

        class Receiver(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.take(self.path, self.headers.get("x-collector-key"), body)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def take(self, path: str, key: str | None, body: bytes) -> None:
        self.raw += body
        self.paths.add(path)
        self.headers.append(key)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resource = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def by_kind(self, kind: "Span.SpanKind.ValueType") -> list[Span]:
        return [span for span in self.spans if span.kind == kind]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[_Collector]:
    made = _Collector()
    yield made
    made.close()


def _deployment(deployment_id: str) -> Deployment | None:
    if deployment_id != "llama-3-70b/a":
        return None
    return Deployment(
        deployment_id=deployment_id,
        target_id="llama-3-70b",
        kind="vllm",
        upstream_model="meta-llama/Llama-3-70B-Instruct",
        base_url="http://user:CanaryPassword@gpu-1.internal:8000/v1",
        api_key="CanaryUpstreamKey",
    )


def _tracing(collector: _Collector, share: float = 1.0) -> Tracing:
    tracing = build_tracing(collector.url, headers={"x-collector-key": "k"}, share=share, deployment_of=_deployment)
    assert tracing is not None
    return tracing


def _values(span: Span) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value") or "") for each in span.attributes}


async def test_a_request_is_a_server_span_with_a_client_span_an_attempt(collector: _Collector) -> None:
    """Names, kinds, parents and every attribute arrive as the conventions write them."""
    tracing = _tracing(collector)
    trace = tracing.begin(_TRACEPARENT)
    trace.finish(an_outcome(attempts=(an_attempt(duration_s=0.25),)), "auto", stream=True)
    await tracing.aclose()
    (server,) = collector.by_kind(Span.SPAN_KIND_SERVER)
    (client,) = collector.by_kind(Span.SPAN_KIND_CLIENT)
    assert (server.name, client.name) == ("chat auto", "chat meta-llama/Llama-3-70B-Instruct")
    assert server.trace_id.hex() == client.trace_id.hex() == _TRACE_ID
    assert server.parent_span_id.hex() == _PARENT_ID
    assert client.parent_span_id == server.span_id
    assert _values(server) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "auto",
        "gen_ai.request.stream": True,
        "gen_ai.response.model": "llama-3-70b",
        "gen_ai.response.time_to_first_chunk": 0.15,
        "gen_ai.usage.input_tokens": 800,
        "gen_ai.usage.output_tokens": 200,
        "gen_ai.usage.cache_read.input_tokens": 100,
        "http.response.status_code": 200,
        "weighbridge.request_id": "req_0123456789abcdef",
        "weighbridge.organisation_id": "org_1",
        "weighbridge.team_id": "team_1",
        "weighbridge.key_id": "key_abc",
        "weighbridge.tier": "interactive",
        "weighbridge.target": "llama-3-70b",
        "weighbridge.reason": "cheapest-capable",
        "weighbridge.complexity": 0.25,
        "weighbridge.classifier": "onnx",
        "weighbridge.attempts": 1,
        "weighbridge.cost_nanousd": 1_500_000,
        "weighbridge.baseline_nanousd": 4_000_000,
    }
    assert _values(client) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "meta-llama/Llama-3-70B-Instruct",
        "gen_ai.request.stream": True,
        "gen_ai.response.model": "llama-3-70b",
        "gen_ai.response.time_to_first_chunk": 0.15,
        "gen_ai.usage.input_tokens": 800,
        "gen_ai.usage.output_tokens": 200,
        "gen_ai.usage.cache_read.input_tokens": 100,
        "server.address": "gpu-1.internal",
        "server.port": 8000,
        "weighbridge.attempt": 0,
        "weighbridge.target": "llama-3-70b",
        "weighbridge.deployment": "llama-3-70b/a",
    }
    assert collector.paths == {"/v1/traces"}
    assert set(collector.headers) == {"k"}
    assert collector.resource["service.name"] == "weighbridge"


async def test_no_content_and_no_secret_leaves(collector: _Collector) -> None:
    """A prompt sent as model name, reason or code, a key, and a URL's password are in no span."""
    tracing = _tracing(collector)
    planted = an_outcome(alias=_PROMPT, reason=_PROMPT, error_code=_PROMPT, request_id=_PROMPT, status=502)
    tracing.begin(_PROMPT).finish(planted, _PROMPT, stream=False)
    unknown = an_outcome(alias="hunter2canary", attempts=(), target_id=None, status=404)
    tracing.begin(None).finish(unknown, "hunter2canary", stream=False)
    await tracing.aclose()
    assert len(collector.spans) == 3
    assert b"canary" not in collector.raw.lower()


async def test_the_attempts_lie_end_to_end_and_tell_their_errors(collector: _Collector) -> None:
    """A fail-over shows as two spans one after the other; only the one that answered carries usage."""
    tracing = _tracing(collector)
    attempts = (an_attempt(result="timeout", duration_s=0.5), an_attempt("gpt-4o", duration_s=0.25))
    tracing.begin(None).finish(
        an_outcome(attempts=attempts, target_id="gpt-4o", ttft_s=0.6, duration_s=0.75), "auto", stream=True
    )
    await tracing.aclose()
    first, second = sorted(collector.by_kind(Span.SPAN_KIND_CLIENT), key=lambda span: span.start_time_unix_nano)
    assert first.end_time_unix_nano == second.start_time_unix_nano
    assert first.status.code == Status.STATUS_CODE_ERROR
    assert _values(first)["error.type"] == "timeout"
    assert "gen_ai.usage.input_tokens" not in _values(first)
    assert "error.type" not in _values(second)
    assert _values(second)["gen_ai.request.model"] == "gpt-4o"
    assert _values(second)["gen_ai.response.time_to_first_chunk"] == pytest.approx(0.1)


async def test_the_wait_in_the_queue_and_for_the_first_token_are_spans(collector: _Collector) -> None:
    """The queue's comes right before the first attempt at its target, and once; the first token's begins with its attempt."""
    tracing = _tracing(collector)
    attempts = (
        an_attempt(result="timeout", duration_s=0.5),
        an_attempt(duration_s=0.25, ttft_s=0.125),
    )
    waits = (QueueWaited("llama-3-70b", 2.0, 0),)
    tracing.begin(None).finish(an_outcome(attempts=attempts, waits=waits, duration_s=3.0), "auto", stream=True)
    await tracing.aclose()
    (server,) = collector.by_kind(Span.SPAN_KIND_SERVER)
    first, second = sorted(collector.by_kind(Span.SPAN_KIND_CLIENT), key=lambda span: span.start_time_unix_nano)
    parts = {span.name: span for span in collector.by_kind(Span.SPAN_KIND_INTERNAL)}
    assert set(parts) == {"queue llama-3-70b", "first token"}
    queue, token = parts["queue llama-3-70b"], parts["first token"]
    assert queue.parent_span_id == server.span_id
    assert queue.end_time_unix_nano == first.start_time_unix_nano
    assert queue.end_time_unix_nano - queue.start_time_unix_nano == 2_000_000_000
    assert token.parent_span_id == second.span_id
    assert token.start_time_unix_nano == second.start_time_unix_nano
    assert token.end_time_unix_nano - token.start_time_unix_nano == 125_000_000


@pytest.mark.parametrize("attempts", [1, 0])
async def test_a_wait_that_ended_without_a_place_is_a_span_too(collector: _Collector, attempts: int) -> None:
    """Each queue has its own, one behind the other before the attempt that came of it, or before the refusal."""
    tracing = _tracing(collector)
    waits = (QueueWaited("llama-3-8b", 1.0, 0), QueueWaited("llama-3-70b", 2.0, 0))
    given = (an_attempt(duration_s=0.5),) * attempts
    tracing.begin(None).finish(an_outcome(attempts=given, waits=waits, duration_s=3.5), "auto", stream=True)
    await tracing.aclose()
    (server,) = collector.by_kind(Span.SPAN_KIND_SERVER)
    parts = {span.name: span for span in collector.by_kind(Span.SPAN_KIND_INTERNAL)}
    first, second = parts["queue llama-3-8b"], parts["queue llama-3-70b"]
    assert first.end_time_unix_nano - first.start_time_unix_nano == 1_000_000_000
    assert first.end_time_unix_nano == second.start_time_unix_nano
    after = [span.start_time_unix_nano for span in collector.by_kind(Span.SPAN_KIND_CLIENT)] or [
        server.end_time_unix_nano
    ]
    assert after == [second.end_time_unix_nano]


@pytest.mark.parametrize(
    ("status", "code", "error_type", "failed"),
    [(502, "upstream_failed", "upstream_failed", True), (429, "rate_limit_exceeded", "rate_limit_exceeded", False),
     (503, None, "503", True)],
)  # fmt: skip
async def test_a_failed_request_tells_its_error_type(
    collector: _Collector, status: int, code: str | None, error_type: str, failed: bool
) -> None:
    """A 5xx marks the server span as failed; a 4xx is an answer and only names its type."""
    tracing = _tracing(collector)
    tracing.begin(None).finish(an_outcome(status=status, error_code=code, attempts=()), "auto", stream=False)
    await tracing.aclose()
    (server,) = collector.spans
    assert _values(server)["error.type"] == error_type
    assert (server.status.code == Status.STATUS_CODE_ERROR) is failed
    assert server.name == "chat"


async def test_the_engine_joins_the_callers_trace(collector: _Collector) -> None:
    """What goes upstream names the caller's trace and our span, the same one for every attempt."""
    tracing = _tracing(collector)
    trace = tracing.begin(_TRACEPARENT)
    headers = trace.headers()
    assert trace.headers() == headers
    trace.finish(an_outcome(), "auto", stream=True)
    await tracing.aclose()
    (server,) = collector.by_kind(Span.SPAN_KIND_SERVER)
    assert headers == {"traceparent": f"00-{_TRACE_ID}-{server.span_id.hex()}-01"}


async def test_a_trace_that_is_not_sampled_is_not_sent(collector: _Collector) -> None:
    """Share 0 sends nothing of our own, yet a caller that samples is followed, and one that does not too."""
    tracing = _tracing(collector, share=0.0)
    tracing.begin(None).finish(an_outcome(), "auto", stream=True)
    unsampled = tracing.begin(f"00-{_TRACE_ID}-{_PARENT_ID}-00")
    assert unsampled.headers()["traceparent"].endswith("-00")
    unsampled.finish(an_outcome(), "auto", stream=True)
    tracing.begin(_TRACEPARENT).finish(an_outcome(), "auto", stream=True)
    await tracing.aclose()
    assert {span.trace_id.hex() for span in collector.spans} == {_TRACE_ID}
    assert len(collector.spans) == 2


async def test_embeddings_are_an_operation_of_their_own(collector: _Collector) -> None:
    """In both spans' names and attributes, with the tokens that went in and no others; also where none was reached."""
    tracing = _tracing(collector)
    made: dict[str, Any] = {"operation": "embeddings", "stream": False, "ttft_s": None, "output_tokens": 0}
    tracing.begin(None).finish(an_outcome(**made), "bge", stream=False)
    tracing.begin(None).finish(an_outcome(**made, attempts=(), target_id=None, status=404), "typed", stream=False)
    await tracing.aclose()
    (client,) = collector.by_kind(Span.SPAN_KIND_CLIENT)
    servers = collector.by_kind(Span.SPAN_KIND_SERVER)
    assert client.name == "embeddings meta-llama/Llama-3-70B-Instruct"
    assert sorted(span.name for span in servers) == ["embeddings", "embeddings bge"]
    for span in (client, *servers):
        values = _values(span)
        assert values["gen_ai.operation.name"] == "embeddings"
        assert "gen_ai.usage.output_tokens" not in values
        assert "gen_ai.response.time_to_first_chunk" not in values
    assert _values(client)["gen_ai.usage.input_tokens"] == 800
