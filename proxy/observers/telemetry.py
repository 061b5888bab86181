"""Traces: what the line calls, which does nothing by itself, and the choice between that and OpenTelemetry.

OpenTelemetry itself is imported by proxy/observers/otel_tracing.py alone, and that only when an endpoint is configured.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Final

from providers.target import Deployment
from proxy.outcome import RequestOutcome


class TelemetryUnavailable(Exception):
    """An OTLP endpoint is configured, but the `otel` extra is not installed."""


class RequestTrace:
    """One request's trace, from its first byte to its end; this one remembers nothing."""

    def headers(self) -> dict[str, str]:
        """What to send upstream, so that an engine's own spans join the trace."""
        return {}

    def finish(self, outcome: RequestOutcome, request_model: str, stream: bool) -> None:
        """Ends the trace. Never raises, never blocks; what an exporter cannot take is dropped."""


_UNTRACED: Final = RequestTrace()


class Tracing:
    """Begins traces; this one begins none, and costs nothing."""

    def begin(self, traceparent: str | None) -> RequestTrace:  # noqa: ARG002 - for those that do
        """`traceparent` is the caller's W3C header; a malformed one begins a new trace."""
        return _UNTRACED

    async def aclose(self) -> None:
        """Sends what is still queued, a few seconds at most."""


def _unknown_deployment(_: str) -> Deployment | None:
    return None


def build_tracing(
    endpoint: str | None,
    *,
    headers: Mapping[str, str] | None = None,
    share: float = 1.0,
    deployment_of: Callable[[str], Deployment | None] = _unknown_deployment,
) -> Tracing:
    """Traces to the OTLP/HTTP collector at `endpoint` (its base URL, or ending in /v1/traces), or none at all.

    `share` of the requests that bring no trace of their own are traced; one that does follows its
    caller's choice. `deployment_of` tells the address and model behind a deployment id.
    Raises TelemetryUnavailable.
    """
    if not endpoint:
        return Tracing()
    try:
        otel = import_module("proxy.observers.otel_tracing")
    except ImportError as error:
        raise TelemetryUnavailable(
            f"Traces go to {endpoint}, but OpenTelemetry is not installed ({error.name} is missing). "
            "Install it with `pip install 'weighbridge[otel]'`, or configure no endpoint."
        ) from error
    tracing: Tracing = otel.OtelTracing(endpoint, headers=headers or {}, share=share, deployment_of=deployment_of)
    return tracing
