"""The trace of one request, as the pipeline and its stages see it."""

from proxy.dispatch.outcome import RequestOutcome


class RequestTrace:
    """The trace of one request, from first byte to end; this base class records nothing."""

    is_recorded: bool = False
    """True where `finish` must not be late."""

    def headers(self) -> dict[str, str]:
        """Return headers to send upstream, so that an engine's spans join the trace."""
        return {}

    def finish(self, outcome: RequestOutcome, request_model: str, stream: bool) -> None:
        """End the trace. Never raises, never blocks; spans beyond the exporter's queue are dropped."""
