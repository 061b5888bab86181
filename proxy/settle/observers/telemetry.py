"""Tracing, where an endpoint is configured.

OpenTelemetry itself is imported by proxy/settle/observers/otel_tracing.py alone, and that only when an endpoint is configured.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Protocol

from providers.target import Deployment
from proxy.dispatch.outcome import RequestTrace


class TelemetryUnavailable(Exception):
    """Raised when an OTLP endpoint is configured but the `otel` extra is not installed."""


class Tracing(Protocol):
    """Creates traces."""

    def begin(self, traceparent: str | None) -> RequestTrace:
        """Begins a request's trace. `traceparent` is the caller's W3C header; a malformed one begins a new trace."""
        ...

    async def aclose(self) -> None:
        """Send queued spans, for a few seconds at most."""
        ...


def _unknown_deployment(_: str) -> Deployment | None:
    return None


def build_tracing(
    endpoint: str | None,
    *,
    headers: Mapping[str, str] | None = None,
    share: float = 1.0,
    deployment_of: Callable[[str], Deployment | None] = _unknown_deployment,
) -> Tracing | None:
    """Build tracing to the OTLP/HTTP collector at `endpoint` (a base URL, or one ending in /v1/traces);
    None without one.

    `share` of the requests that bring no trace of their own are traced; one that does follows its
    caller's choice. `deployment_of` tells the address and model behind a deployment id.
    Raises TelemetryUnavailable.
    """
    if not endpoint:
        return None
    try:
        otel = import_module("proxy.settle.observers.otel_tracing")
    except ImportError as error:
        raise TelemetryUnavailable(
            f"Traces go to {endpoint}, but OpenTelemetry is not installed ({error.name} is missing). "
            "Install it with `pip install 'weighbridge[otel]'`, or configure no endpoint."
        ) from error
    tracing: Tracing = otel.OtelTracing(endpoint, headers=headers or {}, share=share, deployment_of=deployment_of)
    return tracing
